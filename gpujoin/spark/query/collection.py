"""Has Python's collector of cyclic garbage rest while queries are planned.

Planning makes some hundred thousand objects that live as long as it does. The collector looks at all objects of the
program again whenever their number has grown by a quarter, a tenth of a second at a time, and finds nothing.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


class _Planning:
    """How many threads plan, and whether the collector was running before the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._was_running = False

    def begin(self) -> None:
        with self._lock:
            self._threads += 1
            if self._threads == 1:
                self._was_running = gc.isenabled()
                gc.disable()

    def end(self) -> None:
        with self._lock:
            self._threads -= 1
            if self._threads == 0 and self._was_running:
                gc.enable()


class _Thread(threading.local):
    plans = False


_planning, _thread = _Planning(), _Thread()


def collection_paused() -> AbstractContextManager[None]:
    """Collect no cyclic garbage, unless another thread asks for it, while a query is planned."""
    return _planning_is(True)


def collection_resumed() -> AbstractContextManager[None]:
    """Collect cyclic garbage again while planning waits, for a job or for files."""
    return _planning_is(False)


@contextmanager
def _planning_is(plans: bool) -> Iterator[None]:
    before = _thread.plans
    _turn(plans)
    try:
        yield
    finally:
        _turn(before)


def _turn(plans: bool) -> None:
    if plans is not _thread.plans:
        _thread.plans = plans
        (_planning.begin if plans else _planning.end)()
