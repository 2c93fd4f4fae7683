"""What the stand-ins were asked for."""

from __future__ import annotations

import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

calls: Counter[str] = Counter()
"""Calls of pylibcudf by name."""
without_stream: set[str] = set()
"""Calls that were not given the stream of the thread."""
outside: set[str] = set()
"""Calls by threads that had not made the device current, with its stream and its allocator."""
copied: Counter[str] = Counter()
"""Bytes copied ``up`` to the device and ``down`` to the host."""
freed_early: set[str] = set()
"""Where memory was freed by another thread than the one that made it, which had not waited for its stream since.

RMM gives it back on the stream of the thread that frees: it may be handed out again while it is still in use.
"""
_counting = threading.Lock()
_waits: Counter[int] = Counter()
"""How often each thread has waited for its stream."""
synchronized = 0
"""Times that the stream was waited for."""
freed = 0
"""Pieces of device memory that were freed, and overwritten."""


fail_at = 0
"""Number of the call, from when it is set on, that runs out of memory; 0: none."""
lost_at = 0
"""Number of the call, copy, wait or launch, from when it is set on, from which on each fails; 0: none."""
LOST = "CUDA error at: stand_in.cu:1: cudaErrorECCUncorrectable uncorrectable ECC error encountered"


def make_room() -> bool:
    """Ask for memory that a call was not given; the stand-in for RMM puts its own function here."""
    return False


def count_copy(way: str, nbytes: int) -> None:
    """Count bytes that were copied ``up`` or ``down``; threads may copy at once."""
    with _counting:
        copied[way] += nbytes


def use(what: str) -> None:
    """Note a use of the device, which fails if the device is lost; what this thread asked for before is done."""
    arrive()
    global lost_at  # noqa: PLW0603 - the stand-ins are one for the process, as the libraries are
    if lost_at > 1:
        lost_at -= 1
    elif lost_at == 1:
        raise RuntimeError(f"{LOST}, in {what}")


def call(name: str, stream: Any) -> None:
    """Note a call."""
    global fail_at  # noqa: PLW0603 - the stand-ins are one for the process, as the libraries are
    calls[name] += 1
    use(name)
    if not getattr(_thread, "entered", 0):
        outside.add(name)
    if fail_at:
        fail_at -= 1
        if fail_at == 0 and not make_room():
            raise MemoryError(f"std::bad_alloc: out_of_memory: injected into {name}")
    if type(stream).__name__ != "Stream":
        without_stream.add(name)


def wait() -> None:
    """Note a wait for the stream of the thread: all that it has asked for is done."""
    global synchronized  # noqa: PLW0603 - the stand-ins are one for the process, as the libraries are
    synchronized += 1
    use("a wait")
    _waits[threading.get_ident()] += 1


def origin() -> tuple[int, int]:
    """This thread, and how often it has waited: where and when memory is made."""
    return threading.get_ident(), _waits[threading.get_ident()]


def free(made: tuple[int, int]) -> None:
    """Note that memory is freed, of some :func:`origin`."""
    global freed  # noqa: PLW0603 - the stand-ins are one for the process, as the libraries are
    freed += 1
    maker, waits = made
    if maker != threading.get_ident() and _waits[maker] == waits:
        frames = traceback.extract_stack(limit=8)
        own = [frame for frame in frames if "/gpujoin/" in frame.filename] or frames
        freed_early.add(f"{own[-1].filename.rpartition('/')[2]}:{own[-1].lineno}")


_thread = threading.local()


@contextmanager
def delaying() -> Iterator[None]:
    """Memory that is filled in the block is filled later: see :func:`arrive`."""
    _thread.delaying = True
    try:
        yield
    finally:
        _thread.delaying = False


def fill(copy: Callable[[], None]) -> None:
    """Fill memory, now or later."""
    if getattr(_thread, "delaying", False):
        _thread.pending = [*getattr(_thread, "pending", ()), copy]
    else:
        copy()


def arrive() -> None:
    """Do the copies that this thread has asked for.

    They are done when the thread waits for its stream, or uses the device again, since work on a stream is done in
    order. A thread that uses memory which another one fills, without a wait between, reads what was there before.
    """
    copies, _thread.pending = getattr(_thread, "pending", ()), []
    for copy in copies:
        copy()


@contextmanager
def entered() -> Iterator[None]:
    """The device is current in this thread."""
    _thread.entered = getattr(_thread, "entered", 0) + 1
    try:
        yield
    finally:
        _thread.entered -= 1


def reset() -> None:
    """Forget copies."""
    copied.clear()
