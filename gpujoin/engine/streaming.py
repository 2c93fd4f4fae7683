"""Streaming probe batches over a built side that is in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import pyarrow as pa

from gpujoin.engine.built import Run
from gpujoin.engine.layout import SideLayout
from gpujoin.engine.match import join_morsel
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.morsels import in_order, morsels
from gpujoin.engine.settling import settling
from gpujoin.errors import JoinSpecError


def probe_all(run: Run, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join batches of probe rows, a morsel at a time, on as many threads as the backend wants."""
    merging = threading.Lock()
    backend = run.built.backend

    def merge(metrics: JoinMetrics) -> None:
        with merging:
            run.metrics.merge(metrics)

    def one(target: Run, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        metrics = JoinMetrics()
        try:
            yield from join_morsel(target.view(metrics), rows)
        finally:
            merge(metrics)

    parts = morsels(batches, run.built.layout.probe.schema, backend.morsel_rows)
    if run.settles:
        return settling(run, parts, one, merge)
    return in_order(lambda rows: one(run, rows), parts, backend.threads)


def checked(batches: Iterable[pa.RecordBatch], side: SideLayout) -> Iterator[pa.RecordBatch]:
    """Batches whose column types are those the join was made for.

    Raises
    ------
    JoinSpecError
        At the first batch that differs.
    """
    if isinstance(batches, pa.Table):
        batches = batches.to_batches()
    if not isinstance(batches, Iterable):
        raise JoinSpecError(f"the {side.side.value} side is given as record batches, got {batches!r}")
    for batch in batches:
        if not isinstance(batch, pa.RecordBatch):
            raise JoinSpecError(
                f"the {side.side.value} side is given as record batches, got one {type(batch).__name__}"
            )
        if batch.schema.types != side.schema.types:
            raise JoinSpecError(
                f"a {side.side.value} batch has columns {batch.schema.types} where the join was made for"
                f" {side.schema.types}; cast it first"
            )
        yield batch
