"""Reports what planning waits for where it takes long: in the log, or in a line for the user.

For a table of many files in a store::

    planning a query takes long, 3 s so far: footers of 500 files of s3://sales/orders
    planning a query took 4.2 s: footers of 500 files of s3://sales/orders 3.9 s, a scalar subquery 0.2 s

Where Spark shows its progress bar (``spark.ui.showConsoleProgress``; shells, notebooks and programs of Python do), and
the log does not take INFO, a terminal or a notebook shows the first line, anew each second, and at last the second.
"""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress

from gpujoin.logs import log
from gpujoin.report.amounts import show_seconds

_FIRST_SECONDS = 3.0
"""After so many seconds it is said what planning does; then after twice as many, and so on."""
_TOLD_SECONDS = 1.0
"""Planning that took less is not spoken of."""
_LEAST_SHARE = 0.05
"""Activities that took a smaller part of the time are left out."""
_LINE_SECONDS = 1.0
"""After so many seconds the line for the user is written anew."""
_PROGRESS_BAR = "spark.ui.showConsoleProgress"


_ERASE = "\x1b[K"
"""Has a terminal erase what stands right of the cursor."""


class _Line:
    """A line of standard error that is overwritten, in a terminal by Spark's progress bar too."""

    def __init__(self) -> None:
        self._width = 0

    def write(self, text: str, end: str = "") -> None:
        columns = shutil.get_terminal_size().columns - 1
        line = f"gpujoin: {text}" if end else f"gpujoin: {text}"[:columns]
        with suppress(OSError, ValueError):  # standard error is closed
            rest = _ERASE if sys.stderr.isatty() else " " * (self._width - len(line))
            sys.stderr.write(f"\r{line}{rest}{end}")
            sys.stderr.flush()
        self._width = len(line)


def _is_seen_by_a_user() -> bool:
    """Whether standard error is a terminal or the output of a notebook's cell."""
    try:
        return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel.")
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


class _Planning:
    """The planning of a query: its activities, and their seconds."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._doing: list[str] = []
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()
        self._has_ended = False
        self._timer: threading.Timer | None = None
        self._line: _Line | None = None
        self.has_progress_bar = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def watch(self, seconds: float) -> None:
        """Say what is being done after so many seconds, and from then on again and again."""
        with self._lock:
            if self._has_ended:
                return
            self._timer = threading.Timer(seconds, self._tell, [seconds])
            self._timer.daemon = True
            self._timer.start()

    def _tell(self, seconds: float) -> None:
        what = (*self._doing, "reading and rewriting the plan")[0]
        message = f"planning a query takes long, {show_seconds(self.seconds)} s so far: {what}"
        if log.isEnabledFor(logging.INFO) or not (self.has_progress_bar and _is_seen_by_a_user()):
            log.info("%s", message)
            self.watch(seconds * 2)
            return
        with self._lock:
            if self._has_ended:
                return
            self._line = self._line or _Line()
            self._line.write(message)
        self.watch(_LINE_SECONDS)

    def end(self) -> None:
        """Watch no longer, and say what took long."""
        with self._lock:
            self._has_ended = True
            if self._timer is not None:
                self._timer.cancel()
        took = self.seconds
        if took <= _TOLD_SECONDS:
            return
        longest = sorted(self._seconds.items(), key=lambda item: -item[1])
        parts = [f"{what} {show_seconds(spent)} s" for what, spent in longest if spent > took * _LEAST_SHARE]
        message = f"planning a query took {show_seconds(took)} s" + (f": {', '.join(parts)}" if parts else "")
        log.info("%s", message)
        if self._line is not None:
            self._line.write(message, end="\n")

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
    """Report what the planning within this context waits for, if it takes long."""
    if _thread.planning is not None:
        yield
        return
    planning = _thread.planning = _Planning()
    planning.watch(_FIRST_SECONDS)
    try:
        yield
    finally:
        _thread.planning = None
        planning.end()


def show_planning(conf: Mapping[str, str]) -> None:
    """Report the planning of this thread's query to the user, if the session shows Spark's progress bar."""
    if _thread.planning is not None:
        _thread.planning.has_progress_bar = conf.get(_PROGRESS_BAR) == "true"


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Name what this thread waits for while it plans a query; without a query nothing is noted."""
    planning = _thread.planning
    with nullcontext() if planning is None else planning.doing(what):
        yield
