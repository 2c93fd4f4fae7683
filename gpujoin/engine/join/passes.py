"""A pass of probe rows over a built side: morsels on several threads, with keys copied ahead, or with early stop.

Where a device joins rows in host memory, the keys of the next morsel are copied while one is joined and its output is
copied back. A copy from pageable memory takes a thread until it is done, so a second thread makes it, on a stream of
its own. A backend waits for that stream before it gives the frame out, so any thread may use it. An example of three
morsels, time from left to right::

    second thread   keys of 1   keys of 2   keys of 3
    first thread                join 1      join 2      join 3

Payload is not copied ahead: whether it is needed on the device is known only when the matches are.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from gpujoin.engine.join.build import BuiltSide
from gpujoin.engine.join.derive import Rest
from gpujoin.engine.join.devicerows import UploadedRows
from gpujoin.engine.join.early_stop import EarlyStop
from gpujoin.engine.join.probe import Run, join_morsel, rest_of_build
from gpujoin.engine.join.sinks import DeviceSink
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.morsels import ahead, in_order, morsels
from gpujoin.errors import OutOfMemoryError

LEAST_ROWS_AHEAD = 1 << 16
"""Rows of a morsel from which on its keys are copied ahead: half a megabyte of 64-bit keys. That takes some 50 µs,
about as long as to hand it to another thread."""


class Pass:
    """One pass of probe rows over a build side in memory, or on a device."""

    def __init__(self, built: BuiltSide, metrics: JoinMetrics) -> None:
        self.run = Run.start(built, metrics)
        derivation = built.layout.derivation
        build_rows_only = not derivation.pairs and derivation.probe_rest is Rest.NOTHING
        self.early_stop = EarlyStop(self.run) if build_rows_only and not built.sink.resident else None
        """Rounds of a pass that may stop early; ``None``: it needs all probe rows."""
        self._merging = threading.Lock()

    @property
    def complete(self) -> bool:
        """Whether no further probe row can change the result."""
        return self.early_stop is not None and self.early_stop.complete

    def probe(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Join probe rows, morsel by morsel, on as many threads as the backend asks for.

        They are record batches; where rows lie on a device, each item is a morsel in the form of the sink.
        """
        built, sink = self.run.built, self.run.built.sink
        if sink.resident:
            return in_order(partial(self._join, self.run), batches, built.backend.threads)
        parts = morsels(batches, built.layout.probe.schema, built.backend.morsel_rows)
        if self.early_stop is not None:
            return self.early_stop.probe(parts, self._join)
        if isinstance(sink, DeviceSink) and built.build is not None:
            return self._join_ahead(sink, parts)
        return in_order(partial(self._join, self.run), parts, built.backend.threads)

    def rest(self) -> Iterator[Any]:
        """Build rows that the join returns once all probe rows have been seen."""
        return rest_of_build(self.run)

    def _join(self, run: Run, rows: Any) -> Iterator[Any]:
        metrics = JoinMetrics()
        try:
            yield from join_morsel(run.view(metrics), rows)
        finally:
            with self._merging:
                self.run.metrics.merge(metrics)

    def _join_ahead(self, sink: DeviceSink, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join morsels one after the other, while the keys of the next one are copied to the device.

        Where these do not fit beside the morsel before, that counts as a retry, and they are copied when it is their
        turn.
        """

        def with_keys(batch: pa.RecordBatch) -> UploadedRows:
            rows = UploadedRows(sink.device, batch)
            if batch.num_rows >= LEAST_ROWS_AHEAD:
                try:
                    sink.keys(rows, sink.layout.probe)
                except OutOfMemoryError:
                    rows.release()
            return rows

        metrics = self.run.metrics
        for number, rows in enumerate(ahead(with_keys, parts, 1)):
            if rows.num_rows >= LEAST_ROWS_AHEAD:
                metrics.retries += not rows.copied
                metrics.uploads_ahead += rows.copied and number > 0
            yield from join_morsel(self.run, rows)
