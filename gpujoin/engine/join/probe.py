"""Probes a build side: candidate pairs, residual condition, marks, output.

The probe side comes in morsels. Each returns first its matching pairs, then its rest: the rows that the join returns
besides. An example: ``l LEFT JOIN r ON l.k = r.k AND l.v < r.w``, right side built::

    l  k v       r  k w       candidates   (0, 0) (0, 1) (1, 0) (1, 1)     equal keys
       1 5          1 3       condition     5<3    5<9    2<3    2<9
       1 2          1 9       pairs               (0, 1) (1, 0) (1, 1)     returned; rows 0 and 1 are marked
       7 0                    rest          row 2                          unmarked: returned with nulls

Candidates are evaluated slice by slice for every join type, so every join supports every condition.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.engine.join.ahead import with_keys_ahead
from gpujoin.engine.join.build import BuiltSide
from gpujoin.engine.join.derive import Rest
from gpujoin.engine.join.early_stop import Progress, until_all_match
from gpujoin.engine.join.morsel import Morsel
from gpujoin.engine.join.output import Emitter
from gpujoin.engine.join.ranges import RangeEvaluationError
from gpujoin.engine.join.sinks import Mask
from gpujoin.engine.join.uploads import Uploads
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.morsels import in_order, morsels, with_halving
from gpujoin.errors import DeviceLostError, OutOfMemoryError


@dataclass
class _Shared:
    """What all views of a run share: the runs that replace it (on the CPU, without ranges), and their marks.

    ``saved`` are the marks of the run itself on the host, should it lose its device.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    twin: Run | None = None
    plain: Run | None = None
    marked: npt.NDArray[np.bool_] | None = None
    fewer: tuple[npt.NDArray[np.int64], Run] | None = None
    saved: npt.NDArray[np.bool_] | None = None
    progress: Progress = field(default_factory=Progress)


class Run:
    """One pass of probe rows over a build side: the marks of build rows with a match, and one thread's counters."""

    def __init__(self, built: BuiltSide, metrics: JoinMetrics) -> None:
        self.built = built
        self.metrics = metrics
        wants_marks = built.layout.derivation.build_rest is not Rest.NOTHING
        self.marks: Any = built.backend.marks(built.num_rows) if wants_marks else None
        self._shared = _Shared()

    @classmethod
    def with_fallback(cls, built: BuiltSide, metrics: JoinMetrics) -> Run:
        """Start a run on the backend, or on the CPU if not even the marks fit there."""
        try:
            return cls(built, metrics)
        except OutOfMemoryError as problem:
            metrics.count_fallback(problem)
            return cls(built.on_cpu(metrics), metrics)

    def view(self, metrics: JoinMetrics) -> Run:
        """The same run with its own counters, for one thread."""
        other = copy.copy(self)
        other.metrics = metrics
        return other

    def on_cpu(self) -> Run:
        """The run over the same side built on the CPU."""
        with self._shared.lock:
            if self._shared.twin is None:
                self._shared.twin = Run(self.built.on_cpu(self.metrics), self.metrics)
        return self._shared.twin.view(self.metrics)

    def without_ranges(self) -> Run:
        """The run over the same side built without ranges."""
        with self._shared.lock:
            if self._shared.plain is None:
                built = self.built.without_ranges(self.metrics)
                self._shared.plain = Run.with_fallback(built, self.metrics)
        return self._shared.plain.view(self.metrics)

    def host_marks(self) -> npt.NDArray[np.bool_]:
        """Mask of the build rows that have a match, on the host."""
        shared = self._shared
        try:
            marks = self.built.backend.mask_to_host(self.marks)
        except DeviceLostError:
            marks = np.zeros(self.built.num_rows, np.bool_) if shared.saved is None else shared.saved
        for other in (shared.twin, shared.plain):
            if other is not None:
                marks = marks | other.host_marks()
        if shared.marked is not None:
            marks = marks | shared.marked
        if shared.fewer is not None:
            rows, run = shared.fewer
            marks = marks.copy()
            marks[rows] |= run.host_marks()
        return marks

    def save_marks(self) -> None:
        """Copy the marks of build rows to the host, where rows there are joined on a device, which may be lost."""
        backend = self.built.backend
        if self.marks is not None and self.built.sink.copies_rows:
            self._shared.saved = backend.mask_to_host(self.marks)

    @property
    def stops_early(self) -> bool:
        """Whether only build rows are returned, so that a build row with a match needs no further probe rows."""
        derivation = self.built.layout.derivation
        return not derivation.pairs and derivation.probe_rest is Rest.NOTHING

    @property
    def progress(self) -> Progress:
        """Progress of a run that may stop early."""
        return self._shared.progress

    @property
    def current(self) -> Run:
        """The run that joins further probe rows: this one, or that over the build rows left by :meth:`leave_out`."""
        fewer = self._shared.fewer
        return self if fewer is None else fewer[1]

    def leave_out(self, marks: npt.NDArray[np.bool_], waiting: npt.NDArray[np.int64], metrics: JoinMetrics) -> None:
        """Search only the build rows ``waiting`` for a match for further probe rows. No probe may be in progress.

        The marks are those of :meth:`host_marks`; the counters are for building the new search structure.
        """
        self._shared.marked, self._shared.fewer = marks, None
        self._shared.fewer = waiting, Run.with_fallback(self.built.only(waiting, metrics), metrics)

    def probe_all(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join batches of probe rows, morsel by morsel, on as many threads as the backend asks for."""
        merging = threading.Lock()
        backend = self.built.backend

        def merge(metrics: JoinMetrics) -> None:
            with merging:
                self.metrics.merge(metrics)

        def join(run: Run, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
            metrics = JoinMetrics()
            try:
                yield from join_morsel(run.view(metrics), rows)
            finally:
                merge(metrics)

        parts = morsels(batches, self.built.layout.probe.schema, backend.morsel_rows)
        if self.stops_early:
            return until_all_match(self, parts, join, merge)
        if self.built.build is not None and self.built.sink.copies_rows:
            return self._probe_ahead(parts)
        return in_order(lambda rows: join(self, rows), parts, backend.threads)

    def _probe_ahead(self, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join morsels one after the other, while the keys of the next one are copied to the device."""
        for rows, uploads in with_keys_ahead(parts, self.built.sink, self.metrics):
            yield from join_morsel(self, rows, uploads=uploads)

    def rest_of_build(self) -> Iterator[Any]:
        """Build rows that the join returns once all probe rows have been seen."""
        built, layout, shared = self.built, self.built.layout, self._shared
        kind = layout.derivation.build_rest
        if kind is Rest.NOTHING or not built.num_rows:
            return
        alone = shared.twin is None and shared.plain is None and shared.fewer is None
        matched = Mask(self.marks, built.backend) if alone else Mask(self.host_marks(), None)
        emitter = Emitter(self, built.sink.no_rows(layout.probe))
        rows_out = 0
        try:
            for batch in emitter.rest(layout.build.side, kind, matched):
                rows_out += built.sink.count(batch)
                yield batch
            return
        except DeviceLostError as problem:
            self.metrics.count_fallback(problem)
        matched, twin = Mask(self.host_marks(), None), self.on_cpu()
        emitter = Emitter(twin, twin.built.sink.no_rows(layout.probe))
        yield from _without_rows(emitter.rest(layout.build.side, kind, matched), rows_out)


def join_morsel(
    run: Run, rows: Any, deferred: npt.NDArray[np.bool_] | None = None, uploads: Uploads | None = None
) -> Iterator[Any]:
    """Join a morsel of probe rows: its pairs in the order of its rows, then its rest.

    A morsel whose probe does not fit the device is halved again and again, and finally probed on the CPU.
    ``deferred`` is given where the build side comes in slices: only pairs are returned then, and rows with a match
    are marked there, since the rest is known only after the last slice. ``uploads`` is what of the rows lies on the
    device already.
    """
    sink = run.built.sink
    ready = [] if uploads is None else [uploads]  # for the first attempt, on all rows

    def morsel_of(target: Run, rows: Any, start: int, length: int) -> Morsel:
        marks = None if deferred is None else deferred[start : start + length]
        try:
            return Morsel(target, rows, marks, ready.pop() if ready else None).start()
        except RangeEvaluationError:
            return Morsel(target.without_ranges(), rows, marks).start()

    def on_cpu(start: int, length: int) -> Morsel:
        morsel_rows = sink.to_host(sink.slice(rows, start, length), sink.layout.probe)
        return morsel_of(run.on_cpu(), morsel_rows, start, length)

    probed = with_halving(
        0,
        sink.count(rows),
        lambda start, length: morsel_of(run, sink.slice(rows, start, length), start, length),
        on_cpu,
        run.metrics,
    )
    for morsel in probed:
        yield from _with_fallback(morsel)


def _with_fallback(morsel: Morsel) -> Iterator[Any]:
    """Join a morsel, and finish it on the CPU if the device runs out of memory in the middle.

    All backends return pairs in the same order, so the CPU skips as many pairs as were returned already.
    """
    rows_out = 0
    sink = morsel.sink
    try:
        for batch in morsel.output():
            rows_out += sink.count(batch)
            yield batch
        if morsel.untested is not None:  # marks are set while pairs are tested
            morsel.run.save_marks()
        return
    except OutOfMemoryError as problem:
        morsel.run.metrics.count_fallback(problem)
        rows = sink.to_host(morsel.rows, sink.layout.probe)
        if morsel.row_by_row:
            # The CPU tests the condition on pairs and returns rows without a match last: it starts after these rows.
            rows, rows_out = rows.slice(rows_out), 0
        twin = Morsel(morsel.run.on_cpu(), rows, morsel.deferred).start()
        if rows_out and twin.by_lookup != morsel.by_lookup:
            raise
    yield from _without_rows(twin.output(), rows_out)


def _without_rows(batches: Iterator[pa.RecordBatch], count: int) -> Iterator[pa.RecordBatch]:
    """Skip the first ``count`` rows of batches."""
    for batch in batches:
        seen = min(count, batch.num_rows)
        count -= seen
        if seen < batch.num_rows:
            yield batch.slice(seen)
