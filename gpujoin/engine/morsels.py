"""Cutting and merging a stream of batches into morsels, and running them on several threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa

from gpujoin.engine.payload import one_batch

T = TypeVar("T")

_SMALL = 16
"""Batches of less than one part in this many of a morsel are merged before they are probed."""


def morsels(batches: Iterable[pa.RecordBatch], schema: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
    """Batches of about ``rows`` rows: larger ones are sliced, small ones merged, empty ones dropped.

    Parameters
    ----------
    batches : iterable of RecordBatch
        Any sizes.
    schema : Schema
        Of the batches.
    rows : int
        The size wanted; never exceeded.
    """
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if count and count + batch.num_rows > rows:
            yield one_batch(waiting, schema)
            waiting, count = [], 0
        start = 0
        while batch.num_rows - start >= rows:
            yield batch.slice(start, rows)
            start += rows
        if start < batch.num_rows:
            waiting.append(batch.slice(start))
            count += waiting[-1].num_rows
        if count >= max(1, rows // _SMALL):
            yield one_batch(waiting, schema)
            waiting, count = [], 0
    if waiting:
        yield one_batch(waiting, schema)


def in_order(
    work: Callable[[pa.RecordBatch], Iterator[T]], items: Iterable[pa.RecordBatch], threads: int
) -> Iterator[T]:
    """Results of ``work`` over all items, in order; several items at once if there are threads for it.

    With one thread nothing runs ahead of the consumer. With more, at most ``threads + 1`` items are finished or under
    way before their turn.
    """
    if threads == 1:
        for item in items:
            yield from work(item)
        return
    waiting: deque[Future[list[T]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="gpujoin") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(lambda one: list(work(one)), item))
                if len(waiting) > threads:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
