"""Cuts a stream of batches into morsels, and runs work on several threads, and on ranges of rows that fit memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import Generic, TypeVar

import pyarrow as pa

from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import DeviceLostError, OutOfMemoryError
from gpujoin.model.hostgather import one_batch, own_bytes
from gpujoin.model.pipeline import PIECE_BYTES

S = TypeVar("S")
T = TypeVar("T")

AHEAD = 32
"""Results, in a join output batches, that all threads together may have ready before they are consumed."""
_SMALL = 16
"""Batches of less than 1/16 of a morsel are merged with others before they are probed."""


def morsels(batches: Iterable[pa.RecordBatch], schema: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
    """Cut batches into morsels of at most ``rows`` rows: larger ones sliced, small ones merged, empty ones dropped."""
    waiting: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        own = own_bytes(batch)
        if count and (count + batch.num_rows > rows or size + own > PIECE_BYTES):
            yield one_batch(waiting, schema)
            waiting, count, size = [], 0, 0
        start = 0
        while batch.num_rows - start >= rows:
            yield batch.slice(start, rows)
            start += rows
        if start < batch.num_rows:
            waiting.append(batch.slice(start))
            count += waiting[-1].num_rows
            size += own
        if count >= max(1, rows // _SMALL):
            yield one_batch(waiting, schema)
            waiting, count, size = [], 0, 0
    if waiting:
        yield one_batch(waiting, schema)


def drain(items: list[T]) -> Iterator[T]:
    """Yield and remove the items of a list, so that the list keeps none alive that its consumer has dropped."""
    items.reverse()
    while items:
        yield items.pop()


def halved(start: int, length: int, is_too_long: Callable[[int, int], bool]) -> Iterator[tuple[int, int]]:
    """Halve a range of rows, by start and length, until no part is too long; a single row never is."""
    parts = [(start, length)]
    while parts:
        start, length = parts.pop()
        if length > 1 and is_too_long(start, length):
            half = length // 2
            parts += [(start + half, length - half), (start, half)]
        else:
            yield start, length


def in_order(
    work: Callable[[pa.RecordBatch], Iterator[T]], items: Iterable[pa.RecordBatch], threads: int
) -> Iterator[T]:
    """Results of ``work`` over all items, in the order of the items, several items at a time.

    With one thread nothing runs ahead of the consumer. With more, at most ``threads + 1`` items are under way or have
    results waiting, :data:`AHEAD` results at most in all (two of each item, if that is more): however many results
    an item has, no more of them are held.
    """
    if threads == 1:
        for item in items:
            yield from work(item)
        return
    most = max(2, AHEAD // (threads + 1))
    queues: deque[_ResultQueue[T]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="gpujoin") as pool:
        try:
            for item in items:
                queues.append(_ResultQueue(most))
                pool.submit(queues[-1].fill, work, item)
                if len(queues) > threads:
                    yield from queues[0].results()
                    queues.popleft()
            while queues:
                yield from queues[0].results()
                queues.popleft()
        finally:
            for queue in queues:
                queue.close()


def ahead(work: Callable[[S], T], items: Iterable[S], threads: int) -> Iterator[T]:
    """Results of ``work`` over items, in their order, made by other threads while the results before are used.

    The items are taken by the caller's thread, as many as there are other threads before the first result is given. A
    single item needs none of them.
    """
    source = iter(items)
    first = list(islice(source, 2))
    if threads < 1 or len(first) < 2:
        yield from map(work, chain(first, source))
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="gpujoin") as pool:
        waiting: deque[Future[T]] = deque()
        try:
            for item in chain(first, source):
                waiting.append(pool.submit(work, item))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for result in waiting:
                result.cancel()


class _ResultQueue(Generic[T]):
    """The queue of one item's results, from a worker to the consumer; a worker waits where ``most`` results do.

    The pool starts items in order, so the one whose results are taken next is never waiting for a thread.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._ready: deque[T] = deque()
        self._ended = self._closed = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def fill(self, work: Callable[[pa.RecordBatch], Iterator[T]], item: pa.RecordBatch) -> None:
        """Run the work, in a worker."""
        error: BaseException | None = None
        try:
            if not self._closed:
                source = work(item)
                try:
                    for result in source:
                        if not self._put(result):
                            break
                finally:
                    close = getattr(source, "close", None)
                    if close is not None:
                        close()
        except BaseException as problem:  # noqa: BLE001 - raised by the consumer
            error = problem
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def _put(self, result: T) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._ready) < self._most)
            if not self._closed:
                self._ready.append(result)
                self._changed.notify_all()
            return not self._closed

    def results(self) -> Iterator[T]:
        """All results as they come, then the error that the work raised."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._ended)
                if not self._ready:
                    break
                result = self._ready.popleft()
                self._changed.notify_all()
            yield result
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Let the worker stop at its next result."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()


LEAST_ROWS = 1024
"""Ranges of at most so many rows are not halved when memory runs out: they take so little that halving cannot help."""


def may_halve(problem: Exception, length: int, metrics: JoinMetrics) -> bool:
    """Whether failed work is to be repeated on halves of its rows: if memory ran out. Counts a retry."""
    if length <= LEAST_ROWS or not isinstance(problem, OutOfMemoryError) or isinstance(problem, DeviceLostError):
        return False
    metrics.retries += 1
    return True


def with_halving(start: int, length: int, attempt: Callable[[int, int], T], metrics: JoinMetrics) -> Iterator[T]:
    """Do work on a range of rows. Where memory runs out, the range is halved again and again.

    ``attempt`` must be repeatable, and leave no trace when it raises ``OutOfMemoryError``. Yields the result of each
    range, in order. Raises the error of a range of at most :data:`LEAST_ROWS` rows, and of a device that is lost.
    """
    ranges = [(start, length)]
    while ranges:
        start, length = ranges.pop()
        try:
            result = attempt(start, length)
        except OutOfMemoryError as problem:
            if not may_halve(problem, length, metrics):
                raise
            half = length // 2
            ranges += [(start + half, length - half), (start, half)]
        else:
            yield result
