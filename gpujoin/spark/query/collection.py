"""Has Python's collector of cyclic garbage rest while queries are planned.

Planning makes some hundred thousand objects that live as long as it does. The collector looks at all objects of the
program again whenever their number has grown by a quarter, a tenth of a second at a time, and finds nothing.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
    pauses = 0


_planning, _thread = _Planning(), _Thread()


@contextmanager
def collection_paused() -> Iterator[None]:
    """Collect no cyclic garbage, unless another thread asks for it, while a query is planned."""
    _planning.begin()
    _thread.pauses += 1
    try:
        yield
    finally:
        _thread.pauses -= 1
        _planning.end()


@contextmanager
def collection_resumed() -> Iterator[None]:
    """Collect cyclic garbage again while planning waits, for a job or for files."""
    pauses = _thread.pauses
    for _ in range(pauses):
        _planning.end()
    _thread.pauses = 0
    try:
        yield
    finally:
        _thread.pauses = pauses
        for _ in range(pauses):
            _planning.begin()
