"""Joining with a build side on disk.

Divided by key hash, parts of the same number are joined one after the other, each like a join of its own, divided
again if it is still too big. Divided by position (one key has more rows than fit, there are no keys, or nulls may match
anything), every slice of the build side meets all probe rows, and which probe rows have a match is kept over the
slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self

import numpy as np
import pyarrow as pa

from gpujoin.backends.registry import BackendRequest, create
from gpujoin.engine.built import BuiltSide, Emitter, Run
from gpujoin.engine.derive import Rest
from gpujoin.engine.intake import Division, Spilled, build_surely, scatter, take_in
from gpujoin.engine.match import join_morsel
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.morsels import morsels
from gpujoin.engine.payload import Payload, one_batch
from gpujoin.engine.spill import SpillStore
from gpujoin.engine.streaming import probe_all
from gpujoin.errors import JoinSpecError
from gpujoin.model.backend import BackendName
from gpujoin.model.spilling import FAN_OUT

_STUCK = 0.8
"""A part that keeps this share of the rows divided is not divided by hash again."""


class PartitionedRun:
    """One pass over a spilled build side: probe rows are spilled too, and joined part by part.

    Parameters
    ----------
    spilled : Spilled
        The build side.
    metrics : JoinMetrics
        Counters.
    """

    def __init__(self, spilled: Spilled, metrics: JoinMetrics) -> None:
        self.spilled = spilled
        self.metrics = metrics
        self._store = SpillStore(spilled.options, metrics)
        count = FAN_OUT if spilled.division is Division.HASH else 1
        self._parts = self._store.new_parts(spilled.layout.probe.schema, count)
        self._finished = False

    def take(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take probe rows in; what they give comes from :meth:`finish`."""
        self._check_unfinished()
        layout = self.spilled.layout
        scatter(layout, layout.probe, self._parts, self.spilled.depth, batches)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """All output, once.

        Raises
        ------
        JoinSpecError
            If it was called before.
        """
        self._check_unfinished()
        self._finished = True
        return self._by_hash() if self.spilled.division is Division.HASH else self._by_slices()

    def _check_unfinished(self) -> None:
        if self._finished:
            raise JoinSpecError(
                "finish() was called before, and the build side is on disk: nothing is left of that pass; begin another"
                " one with HashJoin.start()"
            )

    def close(self) -> None:
        """Free the space of the spilled probe rows."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _by_hash(self) -> Iterator[pa.RecordBatch]:
        spilled = self.spilled
        total = sum(part.rows for part in spilled.parts)
        for part, probe_part in zip(spilled.parts, self._parts, strict=True):
            built = take_in(
                spilled.layout,
                spilled.backend,
                spilled.options,
                self.metrics,
                part.read(),
                depth=spilled.depth + 1,
                stuck=part.rows > _STUCK * total,
                probe_rows=probe_part.rows,
            )
            probe = probe_part.read()
            if isinstance(built, BuiltSide):
                run = Run.surely(built, self.metrics)
                yield from probe_all(run, probe)
                yield from run.rest_of_build()
                del run, probe
            else:
                try:
                    with PartitionedRun(built, self.metrics) as deeper:
                        deeper.take(probe)
                        yield from deeper.finish()
                finally:
                    built.close()
            del built  # before the next part is taken in

    def _by_slices(self) -> Iterator[pa.RecordBatch]:
        spilled, layout = self.spilled, self.spilled.layout
        matched = np.zeros(self._parts[0].rows, np.bool_)
        for part in spilled.parts:
            rows = one_batch(list(part.read()), layout.build.schema)
            built = build_surely(
                layout, spilled.backend, spilled.options, self.metrics, rows, probe_rows=len(matched)
            )
            run = Run.surely(built, self.metrics)
            size = run.built.backend.morsel_rows
            if run.settles:
                yield from probe_all(run, (morsel for _, morsel in self._probe_rows(size)))
            else:
                for start, morsel in self._probe_rows(size):
                    yield from join_morsel(run, morsel, matched[start : start + morsel.num_rows])
            yield from run.rest_of_build()
        if layout.derivation.probe_rest is Rest.NOTHING:
            return
        cpu = create(BackendName.CPU, BackendRequest())
        nothing = one_batch([], layout.build.schema)
        run = Run(BuiltSide(layout, cpu, nothing, spilled.options, self.metrics), self.metrics)
        for start, morsel in self._probe_rows(cpu.morsel_rows):
            emitter = Emitter(run, Payload.of(morsel, layout.probe.output, cpu))
            found = matched[start : start + morsel.num_rows]
            yield from emitter.rest(layout.probe.side, layout.derivation.probe_rest, found)

    def _probe_rows(self, size: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """All probe rows taken, with the position of each morsel among them."""
        start = 0
        for morsel in morsels(self._parts[0].read(), self.spilled.layout.probe.schema, size):
            yield start, morsel
            start += morsel.num_rows
