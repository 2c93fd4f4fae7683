"""Says what planning does where it takes long, in the log at level INFO.

For a table of many files in a store::

    planning a query takes long, 3 s so far: footers of 500 files of s3://sales/orders
    planning a query took 4.2 s: footers of 500 files of s3://sales/orders 3.9 s, a scalar subquery 0.2 s
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from gpujoin.logs import log
from gpujoin.plan.amounts import show_seconds
from gpujoin.spark.query.collection import collection_resumed

_FIRST_SECONDS = 3.0
"""After so many seconds it is said what planning does; then after twice as many, and so on."""
_TOLD_SECONDS = 1.0
"""Planning that took less is not spoken of."""
_LEAST_SHARE = 0.05
"""Activities that took a smaller part of the time are left out."""


class _Planning:
    """What planning of a query does, and how long it has done what."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._doing: list[str] = []
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()
        self._has_ended = False
        self._timer: threading.Timer | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def watch(self, seconds: float) -> None:
        """Say what is being done after so many seconds, and from then on again and again."""

        def tell() -> None:
            what = (*self._doing, "reading and rewriting the plan")[0]
            log.info("planning a query takes long, %s s so far: %s", show_seconds(self.seconds), what)
            self.watch(seconds * 2)

        with self._lock:
            if self._has_ended:
                return
            self._timer = threading.Timer(seconds, tell)
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> None:
        """Watch no longer, and say what took long."""
        with self._lock:
            self._has_ended = True
            if self._timer is not None:
                self._timer.cancel()
        took = self.seconds
        if took > _TOLD_SECONDS:
            longest = sorted(self._seconds.items(), key=lambda item: -item[1])
            parts = [f"{what} {show_seconds(spent)} s" for what, spent in longest if spent > took * _LEAST_SHARE]
            log.info("planning a query took %s s%s", show_seconds(took), f": {', '.join(parts)}" if parts else "")

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        begun = time.monotonic()
        self._doing.append(what)
        try:
            yield
        finally:
            self._doing.pop()
            self._seconds[what] = self._seconds.get(what, 0.0) + time.monotonic() - begun


class _Thread(threading.local):
    planning: _Planning | None = None


_thread = _Thread()


@contextmanager
def planning_watched() -> Iterator[None]:
    """Say what planning does, here and in what is called, where it takes long."""
    planning = _thread.planning = _Planning()
    planning.watch(_FIRST_SECONDS)
    try:
        yield
    finally:
        _thread.planning = None
        planning.end()


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Name what this thread waits for while it plans a query; without a query nothing is noted."""
    planning = _thread.planning
    with collection_resumed(), nullcontext() if planning is None else planning.doing(what):
        yield
