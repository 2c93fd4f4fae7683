"""Copies the keys of the next morsel to a device while the one before is joined and its output is copied back.

A copy from pageable memory takes a thread until it is done, so a second thread makes it, on a stream of its own. A
backend waits for that stream before it gives the frame out, so any thread may use it. An example of three morsels, time
from left to right::

    second thread   keys of 1   keys of 2   keys of 3
    first thread                join 1      join 2      join 3

Payload is not copied ahead: whether it is needed on the device is known only when the matches are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from gpujoin.engine.join.sinks import Sink
from gpujoin.engine.join.uploads import Uploads
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import OutOfMemoryError

LEAST_ROWS = 1 << 16
"""Rows of a morsel from which on its keys are copied ahead: half a megabyte of 64-bit keys. That takes some 50 µs,
about as long as to hand it to another thread."""


def with_keys_ahead(
    parts: Iterable[pa.RecordBatch], sink: Sink, metrics: JoinMetrics
) -> Iterator[tuple[pa.RecordBatch, Uploads | None]]:
    """Give each morsel with what was copied ahead of it; ``None`` where nothing was.

    The source is read one morsel ahead, by the caller's thread. Where the keys of a morsel do not fit beside the one
    before, that counts as a retry, and they are copied when it is its turn.
    """
    before: tuple[pa.RecordBatch, Future[Uploads | None] | None] | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="gpujoin") as pool:
        for rows in parts:
            ahead = before is not None and rows.num_rows >= LEAST_ROWS
            following = rows, pool.submit(_copied, sink, rows) if ahead else None
            if before is not None:
                yield _taken(before, metrics)
            before = following
        if before is not None:
            yield _taken(before, metrics)


def _copied(sink: Sink, rows: pa.RecordBatch) -> Uploads | None:
    uploads = sink.uploads(rows)
    assert uploads is not None, "rows go to a device"
    try:
        uploads.keys = sink.keys(rows, sink.layout.probe, uploads)
    except OutOfMemoryError:
        return None
    return uploads


def _taken(
    part: tuple[pa.RecordBatch, Future[Uploads | None] | None], metrics: JoinMetrics
) -> tuple[pa.RecordBatch, Uploads | None]:
    rows, copied = part
    if copied is None:
        return rows, None
    uploads = copied.result()
    metrics.retries += uploads is None
    metrics.uploads_ahead += uploads is not None
    return rows, uploads
