"""The out-of-memory ladder: smaller pieces, then the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import OutOfMemoryError

T = TypeVar("T")


def in_pieces(
    start: int,
    length: int,
    attempt: Callable[[int, int], T],
    last_resort: Callable[[int, int], T],
    metrics: JoinMetrics,
    floor: int = 1024,
) -> Iterator[T]:
    """Do work on a range of rows; on running out of memory, on ever smaller halves of it.

    Parameters
    ----------
    start, length : int
        The range.
    attempt : callable (start, length) -> T
        The work; must leave no trace when it raises OutOfMemoryError, and be repeatable.
    last_resort : callable (start, length) -> T
        The same work where memory does not run out; called for pieces of at most ``floor`` rows that failed.
    metrics : JoinMetrics
        Counts retries and fallbacks.
    floor : int
        Pieces this small are not halved again.

    Yields
    ------
    T
        One result a piece, in order.
    """
    pieces = [(start, length)]
    while pieces:
        start, length = pieces.pop()
        try:
            result = attempt(start, length)
        except OutOfMemoryError:
            metrics.retries += 1
            if length > floor:
                half = length // 2
                pieces += [(start + half, length - half), (start, half)]
                continue
            metrics.fallbacks += 1
            result = last_resort(start, length)
        yield result
