"""The built side of a join, and what one run over it remembers."""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.backends.registry import BackendRequest, create
from gpujoin.config import Options
from gpujoin.engine.asof import AsOfBuild
from gpujoin.engine.derive import Rest
from gpujoin.engine.hostgather import own_bytes, take
from gpujoin.engine.keys import key_frame
from gpujoin.engine.ladder import in_pieces
from gpujoin.engine.layout import JoinLayout
from gpujoin.engine.memory import hold
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.notin import NullPatterns
from gpujoin.engine.payload import Payload, one_batch
from gpujoin.engine.ranges import RangeCodec, RangeEvaluationError, spread
from gpujoin.errors import OutOfMemoryError
from gpujoin.model.backend import AnyBackend, BackendName, Build, RangeBuild
from gpujoin.model.gathering import ChooseGather
from gpujoin.model.jointype import Side
from gpujoin.model.keyfacts import Algorithm, Choice, Choose, KeyFacts, Wanted
from gpujoin.model.maps import AllNull, GatherMaps, Indices, RowMap, Span, slice_map
from gpujoin.plan.algorithm import ASKED_FOR, OrderChoice, choose_order, chooser
from gpujoin.plan.gathering import gather_chooser
from gpujoin.plan.ranges import LEAST_SPREAD

_OVERSHOOT = 4
"""A batch may pass its target size this many times over before it is split for long values."""


class BuiltSide:
    """The rows of the build side in memory, searchable; immutable and shared by all runs and threads.

    Parameters
    ----------
    layout : JoinLayout
        The join.
    backend : Backend
        Where it runs.
    rows : RecordBatch
        All build rows; large string types are accepted in place of the schema's.
    options : Options
        Batch sizes.
    metrics : JoinMetrics
        Gets build time and algorithm.
    probe_rows : int or None
        Expected rows of the other side; ``None``: not known.

    Raises
    ------
    OutOfMemoryError
        If the build does not fit.
    """

    def __init__(
        self,
        layout: JoinLayout,
        backend: AnyBackend,
        rows: pa.RecordBatch,
        options: Options,
        metrics: JoinMetrics,
        probe_rows: int | None = None,
    ) -> None:
        self.backend = backend
        self.probe_rows = probe_rows
        self.rows = rows
        self.options = options
        self.build: Build[Any, Any] | None = None
        self.ranges: BuiltRanges | None = None
        self._choices: list[Choice] = []
        self.as_of: AsOfBuild | None = None
        self._twin: BuiltSide | None = None
        self._plain: BuiltSide | None = None
        self._twin_lock = threading.Lock()
        with metrics.timing("build"):
            self.layout = layout = self._search(layout)
            searched = self._searched()
            if searched is not None:
                algorithm = searched.algorithm
                metrics.algorithms[algorithm] = metrics.algorithms.get(algorithm, 0) + 1
                reason = self._reason()
                if reason is not None:
                    metrics.algorithm_reasons.setdefault(algorithm, reason)
            self.evaluator = _evaluator(layout, backend)
            choose = self.choose_gather
            self.payload = Payload.of(rows, layout.build.output, backend, choose)
            read = pa.Table.from_batches([rows.select(list(layout.build.condition))])
            self.condition_payload = Payload.of_condition(read, self.evaluator, choose)
            if layout.build.output:
                _ = self.payload.frame
            if layout.build.condition:
                _ = self.condition_payload.frame
        hold(self, self.search_bytes + own_bytes(rows))

    def _search(self, layout: JoinLayout) -> JoinLayout:
        """Make the rows searchable; the layout, with ranges or without, that this serves."""
        if layout.spec.as_of is not None:
            self.as_of = AsOfBuild.of(
                layout.spec.as_of, layout.codec, layout.probe.schema, self.rows, self.backend,
                kernels=self._by.kernels,
            )  # fmt: skip
            return layout
        if layout.axes:
            self.ranges = self._by_order(layout, 0.0)
            assert self.ranges is not None, "its operands were computed before"
            return layout
        ranged = layout.ranged if self.options.range_index else None
        if layout.spec.keys:
            keys = key_frame(self.backend, layout.codec, self.rows, layout.build.side)
            self.build = self.backend.build(keys, self._chooser(), _wanted(layout))
        if ranged is not None and (self.build is None or not self.build.unique):
            self.ranges = self._by_order(ranged, LEAST_SPREAD)
            if self.ranges is not None:
                self.build = None
                return ranged
        return dataclasses.replace(layout, ranged=None)

    @cached_property
    def _by(self) -> OrderChoice:
        """How a device searches by order."""
        return choose_order(self.options.gpu_algorithm)

    def _reason(self) -> str | None:
        """Why the algorithm was chosen, if it was."""
        if self.ranges is not None or self.as_of is not None:
            return self._by.reason if self.backend.name is BackendName.GPU else None
        if not self._choices:
            return None
        return f"{self._choices[-1].algorithm.value}: {self._choices[-1].reason}"

    def _chooser(self) -> Choose | None:
        """The planner's choice of an algorithm, remembered for the metrics; ``None``: without own kernels."""
        choose = chooser(self.options.gpu_algorithm, self.probe_rows)
        if choose is None:
            if self.backend.name is BackendName.GPU:
                self._choices.append(Choice(Algorithm.CUDF, ASKED_FOR))
            return None

        def chosen(facts: KeyFacts) -> Choice:
            choice = choose(facts)
            self._choices.append(choice)
            return choice

        return chosen

    def _by_order(self, layout: JoinLayout, least_spread: float) -> BuiltRanges | None:
        """Search by order, unless an operand has no value for some row, or few rows have equal keys."""
        try:
            codec, points = RangeCodec.fit(layout.axes, layout.build.side, layout.codec, self.rows)
        except RangeEvaluationError:
            return None
        if codec.grouped and spread(points.column(0).chunk(0)) < least_spread:
            return None
        frame = self.backend.from_arrow(points)
        build = self.backend.build_ranges(frame, grouped=codec.grouped, kernels=self._by.kernels)
        return BuiltRanges(codec, build)

    def _searched(self) -> Build[Any, Any] | RangeBuild[Any, Any] | AsOfBuild | None:
        if self.as_of is not None:
            return self.as_of
        return self.build if self.ranges is None else self.ranges.build

    @property
    def choose_gather(self) -> ChooseGather | None:
        """The planner's choice between ways to gather payload."""
        return gather_chooser(self.options.gpu_algorithm)

    @property
    def search_bytes(self) -> int:
        """Memory of the search structure."""
        searched = self._searched()
        return 0 if searched is None else searched.nbytes

    @cached_property
    def null_patterns(self) -> NullPatterns | None:
        """What null keys match in a null-aware join; ``None`` in all others."""
        if not self.layout.spec.join_type.null_aware:
            return None
        choose = chooser(self.options.gpu_algorithm, self.probe_rows)
        wanted = _wanted(self.layout)
        return NullPatterns(
            self.layout.codec, self.backend, self.rows, self.layout.build.side, choose, wanted
        )

    def on_cpu(self, metrics: JoinMetrics) -> BuiltSide:
        """The same side built on the CPU backend, made once, for chunks that do not fit the device."""
        with self._twin_lock:
            if self._twin is None:
                cpu = create(BackendName.CPU, BackendRequest())
                self._twin = BuiltSide(self.layout, cpu, self.rows, self.options, metrics)
            return self._twin

    @property
    def counts_pairs(self) -> bool:
        """Whether marking costs more where there are more pairs, those of build rows that have a match included."""
        if self.layout.condition is not None:
            return self.build is not None or self.ranges is not None
        return self.ranges is not None and len(self.ranges.codec.axes) > 1

    def only(self, rows: npt.NDArray[np.int64], metrics: JoinMetrics) -> BuiltSide:
        """Some of the rows, searched in the same way; on the CPU where that does not fit."""
        wanted = pa.array(rows)
        columns = [take(column, wanted) for column in self.rows.columns]
        some = pa.RecordBatch.from_arrays(columns, schema=self.rows.schema)
        try:
            return BuiltSide(self.layout, self.backend, some, self.options, metrics, self.probe_rows)
        except OutOfMemoryError:
            metrics.fallbacks += 1
            cpu = create(BackendName.CPU, BackendRequest())
            return BuiltSide(self.layout, cpu, some, self.options, metrics)

    def without_ranges(self, metrics: JoinMetrics) -> BuiltSide:
        """The same side with all of the condition tested pair by pair, made once."""
        with self._twin_lock:
            if self._plain is None:
                spec, sides = (
                    self.layout.spec,
                    {s.side: s.schema for s in (self.layout.build, self.layout.probe)},
                )
                layout = JoinLayout.of(spec, sides[Side.LEFT], sides[Side.RIGHT], self.layout.build.side)
                layout = dataclasses.replace(layout, ranged=None)
                self._plain = BuiltSide(
                    layout, self.backend, self.rows, self.options, metrics, self.probe_rows
                )
            return self._plain


@dataclass(frozen=True)
class BuiltRanges:
    """A build side searched by order.

    Attributes
    ----------
    codec : RangeCodec
        Turns probe rows into what they ask for.
    build : RangeBuild
        The backend's part.
    """

    codec: RangeCodec
    build: RangeBuild[Any, Any]


def _wanted(layout: JoinLayout) -> Wanted:
    """Marks of probe rows are all that a join needs which returns no pairs, tests no pairs and marks no build rows."""
    pairs = layout.derivation.pairs or layout.condition is not None
    return Wanted.PAIRS if pairs or layout.derivation.build_rest is not Rest.NOTHING else Wanted.MARKS


def _evaluator(layout: JoinLayout, backend: AnyBackend) -> AnyBackend:
    """The backend itself if it can evaluate the condition and hold its columns, else the CPU backend."""
    if layout.condition is None or backend.name is BackendName.CPU:
        return backend
    types = [side.schema.field(i).type for side in (layout.build, layout.probe) for i in side.condition]
    if backend.can_evaluate(layout.condition) and all(map(backend.can_gather, types)):
        return backend
    return create(BackendName.CPU, BackendRequest())


@dataclass
class Rounds:
    """Where a run stands that needs no further probe rows once each build row has a match.

    Attributes
    ----------
    size, taken : int
        Probe rows of this round, and those that have come.
    since : int
        Probe rows since the search was made.
    settled : bool
        Whether each build row is known to have a match.
    """

    size: int = 0
    taken: int = 0
    since: int = 0
    settled: bool = False


@dataclass
class _Shared:
    """What all views of a run have in common."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    twin: Run | None = None
    plain: Run | None = None
    marked: npt.NDArray[np.bool_] | None = None
    fewer: tuple[npt.NDArray[np.int64], Run] | None = None
    rounds: Rounds = field(default_factory=Rounds)


class Run:
    """One pass of probe rows over a built side: which build rows have met a match, and counters.

    Parameters
    ----------
    built : BuiltSide
        What is probed.
    metrics : JoinMetrics
        Counters; not shared between threads, see :meth:`view`.
    """

    def __init__(self, built: BuiltSide, metrics: JoinMetrics) -> None:
        self.built = built
        self.metrics = metrics
        wants_marks = built.layout.derivation.build_rest is not Rest.NOTHING
        self.marks: Any = built.backend.marks(built.rows.num_rows) if wants_marks else None
        self._shared = _Shared()

    @classmethod
    def surely(cls, built: BuiltSide, metrics: JoinMetrics) -> Run:
        """A run on the backend, or on the CPU if even its marks do not fit there."""
        try:
            return cls(built, metrics)
        except OutOfMemoryError:
            metrics.fallbacks += 1
            return cls(built.on_cpu(metrics), metrics)

    def view(self, metrics: JoinMetrics) -> Run:
        """The same run with counters of its own, for one thread."""
        other = copy.copy(self)
        other.metrics = metrics
        return other

    def on_cpu(self) -> Run:
        """The run over the CPU twin of the built side; its marks count as this run's."""
        with self._shared.lock:
            if self._shared.twin is None:
                self._shared.twin = Run(self.built.on_cpu(self.metrics), self.metrics)
        return self._shared.twin.view(self.metrics)

    def without_ranges(self) -> Run:
        """The run over the built side without ranges; its marks count as this run's."""
        with self._shared.lock:
            if self._shared.plain is None:
                self._shared.plain = Run.surely(self.built.without_ranges(self.metrics), self.metrics)
        return self._shared.plain.view(self.metrics)

    def host_marks(self) -> npt.NDArray[np.bool_]:
        """Which build rows have a match."""
        marks = self.built.backend.mask_to_host(self.marks)
        for other in (self._shared.twin, self._shared.plain):
            if other is not None:
                marks = marks | other.host_marks()
        if self._shared.marked is not None:
            marks = marks | self._shared.marked
        if self._shared.fewer is not None:
            rows, run = self._shared.fewer
            marks = marks.copy()
            marks[rows] |= run.host_marks()
        return marks

    @property
    def settles(self) -> bool:
        """Whether a build row that has a match, and so the whole join, may need no further probe rows."""
        derivation = self.built.layout.derivation
        return not derivation.pairs and derivation.probe_rest is Rest.NOTHING

    @property
    def settled(self) -> bool:
        """Whether no further probe rows are needed."""
        return self._shared.rounds.settled

    @property
    def rounds(self) -> Rounds:
        """Where a run that settles stands."""
        return self._shared.rounds

    @property
    def current(self) -> Run:
        """The run that further probe rows are for: this one, or that over the rows left by :meth:`leave_out`."""
        fewer = self._shared.fewer
        return self if fewer is None else fewer[1]

    def leave_out(
        self, marks: npt.NDArray[np.bool_], waiting: npt.NDArray[np.int64], metrics: JoinMetrics
    ) -> None:
        """Let further probe rows meet some of the build rows only; none may be under way.

        Parameters
        ----------
        marks : ndarray of bool
            Of :meth:`host_marks`.
        waiting : ndarray of int64
            Those rows.
        metrics : JoinMetrics
            Counters of the new search.
        """
        self._shared.marked, self._shared.fewer = marks, None
        self._shared.fewer = waiting, Run.surely(self.built.only(waiting, metrics), metrics)

    def rest_of_build(self) -> Iterator[pa.RecordBatch]:
        """What the join returns of build rows, once all probe rows have been seen."""
        layout, backend = self.built.layout, self.built.backend
        kind = layout.derivation.build_rest
        if kind is Rest.NOTHING:
            return
        nothing = _no_rows(layout.probe.schema)
        emitter = Emitter(self, Payload.of(nothing, layout.probe.output, backend, self.built.choose_gather))
        yield from emitter.rest(layout.build.side, kind, self.host_marks())


class Emitter:
    """Turns gather maps into output batches: sized, gathered, assembled, with the out-of-memory ladder beneath.

    Parameters
    ----------
    run : Run
        The run emitted for.
    probe : Payload
        Output columns of the probe rows that the maps speak of.
    """

    def __init__(self, run: Run, probe: Payload) -> None:
        self.run = run
        self.layout = run.built.layout
        self.payloads = {self.layout.build.side: run.built.payload, self.layout.probe.side: probe}

    @cached_property
    def rows_per_batch(self) -> int:
        """Rows that make a batch of the target size, by mean row size."""
        size = sum(payload.row_bytes for payload in self.payloads.values())
        return max(1, int(self.run.built.options.batch_bytes / max(1.0, size)))

    def rest(self, side: Side, kind: Rest, matched: npt.NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
        """What the join returns of one side's rows besides pairs, given which of them have a match."""
        if kind is Rest.FLAGGED:
            yield from self._pieces(side, Span(0, len(matched)), None, matched)
            return
        backend = self.run.built.backend
        try:
            rows = backend.selection(backend.mask_from_host(matched), kind is Rest.MATCHED)
        except OutOfMemoryError:
            self.run.metrics.fallbacks += 1
            yield from self._on_cpu.rest(side, kind, matched)
            return
        yield from self._pieces(side, rows, AllNull(rows.length) if kind is Rest.UNMATCHED_PADDED else None)

    def pairs(self, probe: RowMap, build: RowMap) -> Iterator[pa.RecordBatch]:
        """Output rows for pairs of probe and build rows."""
        return self._pieces(self.layout.probe.side, probe, build)

    def _pieces(
        self, side: Side, rows: RowMap, others: RowMap | None, flags: npt.NDArray[np.bool_] | None = None
    ) -> Iterator[pa.RecordBatch]:
        def emit(start: int, length: int, emitter: Emitter, host: bool) -> pa.RecordBatch:
            own = slice_map(rows, start, length)
            other = None if others is None else slice_map(others, start, length)
            if host:
                own, other = self._to_host(own), other and self._to_host(other)
            extra = () if flags is None else (pa.array(flags[start : start + length]),)
            return emitter._assemble(side, own, other, extra)

        metrics = self.run.metrics
        for start in range(0, rows.length, self.rows_per_batch):
            for piece, length in self._fitting(
                side, rows, others, start, min(self.rows_per_batch, rows.length - start)
            ):
                with metrics.timing("gather"):
                    done = list(
                        in_pieces(
                            piece, length,
                            lambda s, n: emit(s, n, self, False),
                            lambda s, n: emit(s, n, self._on_cpu, True),
                            metrics,
                        )
                    )  # fmt: skip
                yield from done

    def _fitting(
        self, side: Side, rows: RowMap, others: RowMap | None, start: int, length: int
    ) -> Iterator[tuple[int, int]]:
        """Cut a range so that no column of a batch passes its limit, however long single values are."""
        options = self.run.built.options
        limit = min(options.max_column_bytes, _OVERSHOOT * options.batch_bytes)
        taken = [(side, rows)] + ([] if others is None else [(side.other, others)])
        pieces = [(start, length)]
        while pieces:
            start, length = pieces.pop()
            over = length > 1 and any(
                self.payloads[which].longest_value * length > limit
                and self._gathered_bytes(which, slice_map(wanted, start, length)) > limit
                for which, wanted in taken
            )
            if over:
                half = length // 2
                pieces += [(start + half, length - half), (start, half)]
            else:
                yield start, length

    def _gathered_bytes(self, side: Side, rows: RowMap) -> int:
        try:
            return self.payloads[side].gathered_bytes(rows)
        except OutOfMemoryError:
            self.run.metrics.fallbacks += 1
            return self._on_cpu.payloads[side].gathered_bytes(self._to_host(rows))

    @cached_property
    def _on_cpu(self) -> Emitter:
        run = self.run.on_cpu()
        probe = self.payloads[self.layout.probe.side]
        return Emitter(run, Payload(probe.table, run.built.backend))

    def _to_host(self, rows: RowMap) -> RowMap:
        return to_backend(rows, self.run.built.backend, self.run.on_cpu().built.backend)

    def _assemble(
        self, side: Side, own: RowMap, other: RowMap | None, extra: Sequence[pa.Array]
    ) -> pa.RecordBatch:
        maps = GatherMaps(own, other) if side is Side.LEFT else GatherMaps(other, own)
        columns: dict[Side, list[pa.Array]] = {}
        for which, wanted in ((Side.LEFT, maps.left), (Side.RIGHT, maps.right)):
            part = self.layout.build if which is self.layout.build.side else self.layout.probe
            absent = wanted is None or not part.output
            columns[which] = [] if absent else self.payloads[which].gather(wanted, part.output_schema)  # type: ignore[arg-type]
        if not self.layout.output_schema:
            return pa.record_batch({"rows": pa.nulls(maps.length)}).select([])
        return self.layout.assemble(columns[Side.LEFT], columns[Side.RIGHT], extra)


def to_backend(rows: RowMap, source: AnyBackend, target: AnyBackend) -> RowMap:
    """A map of one backend as a map of another; maps with structure are common to all."""
    if not isinstance(rows, Indices) or source is target:
        return rows
    return target.indices_from_host(source.indices_to_host(rows), rows.out_of_bounds)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return one_batch((), schema)
