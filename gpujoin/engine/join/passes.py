"""A pass of probe batches over a built side: morsels on several threads, with keys copied ahead, or with early stop."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa

from gpujoin.engine.join.ahead import with_keys_ahead
from gpujoin.engine.join.build import BuiltSide
from gpujoin.engine.join.derive import Rest
from gpujoin.engine.join.early_stop import EarlyStop
from gpujoin.engine.join.probe import Run, join_morsel, rest_of_build
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.morsels import in_order, morsels


class Pass:
    """One pass of record batches over a build side in memory."""

    def __init__(self, built: BuiltSide, metrics: JoinMetrics) -> None:
        self.run = Run.start(built, metrics)
        derivation = built.layout.derivation
        build_rows_only = not derivation.pairs and derivation.probe_rest is Rest.NOTHING
        self.early_stop = EarlyStop(self.run) if build_rows_only else None
        """Rounds of a pass that may stop early; ``None``: it needs all probe rows."""
        self._merging = threading.Lock()

    @property
    def complete(self) -> bool:
        """Whether no further probe row can change the result."""
        return self.early_stop is not None and self.early_stop.complete

    def probe(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join batches of probe rows, morsel by morsel, on as many threads as the backend asks for."""
        built = self.run.built
        parts = morsels(batches, built.layout.probe.schema, built.backend.morsel_rows)
        if self.early_stop is not None:
            return self.early_stop.probe(parts, self._join)
        if built.build is not None and built.sink.copies_rows:
            return self._join_ahead(parts)
        return in_order(partial(self._join, self.run), parts, built.backend.threads)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Build rows that the join returns once all probe rows have been seen."""
        return rest_of_build(self.run)

    def _join(self, run: Run, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        metrics = JoinMetrics()
        try:
            yield from join_morsel(run.view(metrics), rows)
        finally:
            with self._merging:
                self.run.metrics.merge(metrics)

    def _join_ahead(self, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join morsels one after the other, while the keys of the next one are copied to the device."""
        for rows, uploads in with_keys_ahead(parts, self.run.built.sink, self.run.metrics):
            yield from join_morsel(self.run, rows, uploads=uploads)
