"""Probes a build side: candidate pairs, residual condition, marks, output.

The probe side comes in morsels. Each returns first its matching pairs, then its rest: the rows that the join returns
besides. An example: ``l LEFT JOIN r ON l.k = r.k AND l.v < r.w``, right side built::

    l  k v       r  k w       candidates   (0, 0) (0, 1) (1, 0) (1, 1)     equal keys
       1 5          1 3       condition     5<3    5<9    2<3    2<9
       1 2          1 9       pairs               (0, 1) (1, 0) (1, 1)     returned; rows 0 and 1 are marked
       7 0                    rest          row 2                          unmarked: returned with nulls

Candidates are evaluated slice by slice for every join type, so every join supports every condition. The states of a
morsel, and what leads from one to the next::

               start                     output
    rows ──► CANDIDATES ──► PAIRS ─────────────────────► REST ──► COMPLETE
      ▲          │          Emission  by the backend       │      its marks are those of the run,
      │          │          Lookup    one map              │      its output is given out
      │          │          Slices    slices of pairs      │
      │          │          Residual  under a condition    │
      │          └─────────────────────┬───────────────────┘
      │                                │ memory is short
      ├──── half of the rows ◄─────────┤
      └──── the same rows, on the CPU ◄┘ few rows; or a value that the device does not compute

On a device output is held back until the morsel is complete, so whatever fails has left no trace. A morsel with more
output than is held back comes in parts. A single row with more is returned batch by batch, and what was returned of it
is noted: where the device fails then, the CPU joins the row again and returns the other pairs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from gpujoin.engine.join.build import BuiltSide
from gpujoin.engine.join.derive import Rest
from gpujoin.engine.join.marks import BuildMarks, Mask
from gpujoin.engine.join.output import Emission, Emitter
from gpujoin.engine.join.ranges import RangeEvaluationError
from gpujoin.engine.join.rounds import pairs_of, probe_rounds, probe_slices, product_rounds
from gpujoin.engine.join.sinks import Columns, DeviceSink
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.morsels import drain, may_halve, with_halving
from gpujoin.errors import DeviceValueError, ExpressionEvaluationError, OutOfMemoryError
from gpujoin.model.backend import BackendName, PairSlice, Probe
from gpujoin.model.expressions import Expression
from gpujoin.model.jointype import Side
from gpujoin.model.maps import Indices, OutOfBounds, RowMap, Span, cross_maps, slice_map

Marks: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Run:
    """One pass of probe rows over a build side, with marks of matched build rows and one thread's counters."""

    built: BuiltSide
    metrics: JoinMetrics
    marks: BuildMarks | None
    """Build rows with a match; ``None`` if the join does not need them."""

    @classmethod
    def start(cls, built: BuiltSide, metrics: JoinMetrics) -> Run:
        """Start a pass, without any marks."""
        asks = built.layout.derivation.build_rest is not Rest.NOTHING
        marks_on = built.backend if built.sink.resident else None
        return cls(built, metrics, BuildMarks(built.num_rows, marks_on) if asks else None)

    def view(self, metrics: JoinMetrics) -> Run:
        """The same run with its own counters, for one thread."""
        return dataclasses.replace(self, metrics=metrics)

    def on_cpu(self) -> Run:
        """The same run over the same side built on the CPU."""
        return dataclasses.replace(self, built=self.built.on_cpu(self.metrics))

    def without_ranges(self) -> Run:
        """The same run over the same side built without ranges."""
        return dataclasses.replace(self, built=self.built.without_ranges(self.metrics))

    @property
    def holds_back(self) -> bool:
        """Whether the output of a morsel is held back, since another backend may have to make it."""
        return self.built.backend.name is not BackendName.CPU


def join_morsel(run: Run, rows: Any, deferred: Marks | None = None) -> Iterator[Any]:
    """Join a morsel of probe rows: its pairs in the order of its rows, then its rest.

    Rows are a record batch, or have the form of the sink; what is copied of them to a device is let go of.
    ``deferred`` is given where the build side comes in slices: only pairs are returned then, and rows with a match
    are marked there, since the rest is known only after the last slice. Raises ``OutOfMemoryError`` where few rows do
    not fit, on the CPU too.
    """
    sink = run.built.sink
    rows = sink.take_in(rows)
    length, parts = rows.num_rows, 1
    output: Iterator[Any] | None = None
    try:
        output, parts = _attempt(run, rows, deferred)
    except (OutOfMemoryError, DeviceValueError) as problem:
        if may_halve(problem, length, run.metrics):
            parts = 2
        elif run.holds_back:
            run.metrics.count_fallback(problem)
        else:
            raise
    finally:
        sink.release(rows)
    if output is not None:
        yield from output
    elif parts == 1:
        yield from join_morsel(run.on_cpu(), sink.to_host(rows), deferred)
    elif length == 1:
        yield from _join_row(run, rows, deferred)
    else:
        size = -(-length // parts)
        for start in range(0, length, size):
            part = rows.slice(start, min(size, length - start))
            yield from join_morsel(run, part, None if deferred is None else deferred[start : start + size])


def _attempt(run: Run, rows: Any, deferred: Marks | None) -> tuple[Iterator[Any] | None, int]:
    """Join a morsel on its backend. Returns its output, or ``None`` and the number of parts to divide it into."""
    morsel = _start(run, rows, deferred)
    if not run.holds_back:
        return morsel.output(), 1
    if morsel.parts == 1:
        return drain(list(morsel.output())), 1
    return None, morsel.parts


def _join_row(run: Run, row: Any, deferred: Marks | None) -> Iterator[Any]:
    """Join a probe row with more output than is held back, batch by batch.

    The build rows of each batch are noted. Where the device fails, the CPU joins the row again without them::

        build rows    0 1 2 3 4 5 6 7
        device        0 1 2 | 3 4 5 | fails      two batches are returned
        CPU           6 7                        and all matches are marked
    """
    returned = np.zeros(run.built.num_rows, np.bool_)
    try:
        yield from _start(run, row, deferred, returned).output()
        return
    except (OutOfMemoryError, DeviceValueError) as problem:
        run.metrics.count_fallback(problem)
    row = run.built.sink.to_host(row)
    yield from _start(run.on_cpu(), row, deferred, returned).output()


def _start(run: Run, rows: Any, deferred: Marks | None, returned: Marks | None = None) -> Morsel:
    try:
        return Morsel(run, rows, deferred, returned).start()
    except RangeEvaluationError:
        pass  # and the error lets go of that morsel
    return Morsel(run.without_ranges(), rows, deferred, returned).start()


def rest_of_build(run: Run) -> Iterator[Any]:
    """Build rows that the join returns once all probe rows have been seen."""
    built, returned = run.built, 0
    kind = built.layout.derivation.build_rest
    if kind is Rest.NOTHING or not built.num_rows:
        return
    try:
        for batch in _rest_of_build(run, kind):
            returned += built.sink.count(batch)
            yield batch
        return
    except OutOfMemoryError as problem:
        if not run.holds_back:
            raise
        run.metrics.count_fallback(problem)
    yield from _rest_of_build(run.on_cpu(), kind, returned)


def _rest_of_build(run: Run, kind: Rest, first: int = 0) -> Iterator[Any]:
    built, layout = run.built, run.built.layout
    assert run.marks is not None
    emitter = Emitter(built, built.sink.no_rows(layout.probe), run.metrics)
    return emitter.rest(layout.build.side, kind, run.marks.matched, first)


# -- states of a morsel ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lookup:
    """Pairs of probe rows with at most one match each: one map of each side."""

    probe: RowMap
    build: RowMap


@dataclass(frozen=True)
class Slices:
    """Pairs in slices, each no larger than an output batch."""


@dataclass(frozen=True)
class Residual:
    """Pairs for which a condition is true, tested slice by slice."""

    condition: Expression


class Morsel:
    """A morsel of probe rows on its way from its candidates to its output; see the module.

    ``deferred`` is as for :func:`join_morsel`. ``returned``, for a morsel of a single row, marks build rows: pairs with
    them are left out, and pairs that are returned mark theirs. Both methods raise ``OutOfMemoryError`` if the morsel
    does not fit memory.
    """

    def __init__(self, run: Run, rows: Any, deferred: Marks | None, returned: Marks | None) -> None:
        self.run = run
        self.metrics = run.metrics
        self.rows = rows
        self.built = run.built
        self.sink = run.built.sink
        self.num_rows = int(rows.num_rows)
        self.layout = run.built.layout
        self.derivation = run.built.layout.derivation
        self.backend = run.built.backend
        self.deferred = deferred
        self.returned = returned
        self._emitter = Emitter(run.built, rows, run.metrics)
        self.probe: Probe[Any] | None = None
        """Candidates; ``None`` if every pair is one, or if the output is made without them."""
        self.pairs: Emission | Lookup | Slices | Residual | None = None
        """How pairs are returned; ``None`` if the join returns none."""
        self.rest: Emission | Mask | None = None
        """The rest, or the mask of matched rows that it is derived from; ``None`` if there is no rest."""
        self._build_marks: Any = None

    def start(self) -> Self:
        """Find the candidates of the rows, and decide how output is made of them."""
        with self.metrics.timing("probe"):
            self.pairs = self._find_candidates()
        condition = self._restrict() if self.pairs is None else None
        with self.metrics.timing("probe"):
            if self.run.marks is not None:
                self._build_marks = self.run.marks.on(self.backend)
            if condition is not None:
                self.pairs = Residual(condition)
                if self.derivation.probe_rest is not Rest.NOTHING:
                    self.rest = Mask(self.backend.marks(self.num_rows), self.backend)
                return self
            if self.run.marks is not None:
                self._mark_build()
            padded = False
            if self.derivation.pairs and self.pairs is None:
                self.pairs, padded = self._choose_pairs()
            elif self.derivation.pairs:
                padded = True  # what the backend has fetched by keys is padded
            if self.derivation.probe_rest is not Rest.NOTHING and not padded:
                self.rest = self._rest_at_once() or self._rows_with_match()
        return self

    @property
    def parts(self) -> int:
        """Number of parts with little enough output to be held back, if every candidate is a pair."""
        rows = 0
        if self.derivation.probe_rest is not Rest.NOTHING and self.deferred is None:
            rows = self.num_rows
        if self.derivation.pairs:
            pairs = self.num_rows * self.built.num_rows if self.probe is None else self.probe.pairs
            rows = max(rows, self.pairs.output.rows if isinstance(self.pairs, Emission) else pairs)
        return max(1, math.ceil(rows / (self.sink.sizes.held_batches * self._emitter.rows_per_batch)))

    def output(self) -> Iterator[Any]:
        """Pairs, then the rest, unless it is deferred. Before the rest the run gets the marks of build rows."""
        match self.pairs:
            case Emission() as emission:
                yield from emission.batches()
            case Lookup(probe, build):
                yield from self._emitter.pairs(probe, build)
            case Slices():
                for pairs in self._slices(self._emitter.rows_per_batch):
                    yield from self._output_of(pairs)
            case Residual(condition):
                yield from self._pairs_under(condition)
        if self.run.marks is not None:
            self.run.marks.add(self._build_marks, self.backend)
        if isinstance(self.rest, Emission):
            yield from self.rest.batches()
        elif self.rest is not None and self.deferred is not None:
            self.deferred |= self.rest.on_host
        elif self.rest is not None:
            yield from self._emitter.rest(self.layout.probe.side, self.derivation.probe_rest, self.rest)

    def _output_of(self, pairs: PairSlice) -> Iterator[Any]:
        """Output of pairs; pairs that were returned before are left out."""
        if self.returned is None:
            yield from self._emitter.pairs(pairs.probe, pairs.build)
            return
        build_rows = self.backend.indices_to_host(pairs.build)
        following = ~self.returned[build_rows]
        if not following.all():
            pairs, build_rows = self._where(pairs, self.backend.mask_from_host(following)), build_rows[following]
        start = 0
        for batch in self._emitter.pairs(pairs.probe, pairs.build):
            end = start + self.sink.count(batch)
            self.returned[build_rows[start:end]] = True
            yield batch
            start = end

    def _where(self, pairs: PairSlice, mask: Any) -> PairSlice:
        return PairSlice(self.backend.filter_map(pairs.probe, mask), self.backend.filter_map(pairs.build, mask))

    # -- candidates ----------------------------------------------------------------------------------------

    def _find_candidates(self) -> Emission | None:
        """Probe the build side, unless the backend makes the output by the keys alone."""
        built = self.built
        if built.as_of is not None:
            self.probe = built.as_of.probe(self.rows)
        elif built.ranges is not None:
            try:
                self.probe = built.ranges.probe(self.rows)
            except ExpressionEvaluationError as problem:
                raise RangeEvaluationError(str(problem)) from problem
        elif built.build is not None:
            keys = self.sink.keys(self.rows, self.layout.probe)
            fetched = self._fetch(keys)
            if fetched is not None:
                return fetched
            self.probe = built.build.probe(keys)
        return None

    def _fetch(self, keys: Any) -> Emission | None:
        """Make the output of an inner or left join by unique keys, and nothing else, without a probe."""
        layout, derivation, build = self.layout, self.derivation, self.built.build
        if (
            build is None or not build.unique or not derivation.pairs or derivation.build_rest is not Rest.NOTHING
            or layout.condition is not None or self.deferred is not None or self.built.null_patterns is not None
            or not layout.build.output
        ):  # fmt: skip
            return None
        return self._emitter.by_keys(keys, padded=derivation.probe_rest is Rest.UNMATCHED_PADDED)

    def _restrict(self) -> Expression | None:
        """Evaluate the condition in a kernel of the backend, if possible. Returns the condition left to test."""
        condition, built, sink = self.layout.condition, self.built, self.sink
        if (
            condition is None or self.probe is None or built.build is None or not built.build.unique
            or built.null_patterns is not None or not isinstance(sink, DeviceSink) or not sink.kernels
        ):  # fmt: skip
            return condition
        with self.metrics.timing("condition"):
            own, other = self._condition_columns.frame, built.condition.frame
            left = sink.backend.restrict(self.probe, condition, own, other, self.layout.probe.side)
        if left is None:
            return condition
        self.metrics.candidate_pairs += self.probe.pairs
        self.metrics.compiled_probes += 1
        self.probe = left
        return None

    # -- without a condition -------------------------------------------------------------------------------

    def _choose_pairs(self) -> tuple[Emission | Lookup | Slices, bool]:
        """Decide how pairs come, and whether rows without a match come with them, padded."""
        emission = self._pairs_at_once()
        if emission is not None:
            return emission, False
        if not self._by_lookup:
            return Slices(), False
        assert self.probe is not None
        build_rows, everything = self.probe.lookup(), Span(0, self.num_rows)
        padded = self.derivation.probe_rest is Rest.UNMATCHED_PADDED
        if self.probe.pairs == self.num_rows:
            return Lookup(everything, dataclasses.replace(build_rows, out_of_bounds=OutOfBounds.NEVER)), padded
        if padded:
            return Lookup(everything, build_rows), True
        matched = self.probe.matched()
        present = self.backend.filter_map(build_rows, matched)
        if isinstance(present, Indices):
            present = dataclasses.replace(present, out_of_bounds=OutOfBounds.NEVER)
        return Lookup(self.backend.selection(matched, True), present), False

    def _pairs_at_once(self) -> Emission | None:
        """Let the backend make the pairs without maps.

        Not those of left joins with at most one match a row: all their probe rows are returned, unmoved, so their maps
        cost nothing.
        """
        build = self.built.build
        if self.probe is None or build is None or self.built.null_patterns is not None or self.returned is not None:
            return None
        if build.unique and not (self._by_lookup and self.derivation.probe_rest is Rest.NOTHING):
            return None
        return self._emitter.at_once(self.probe, pairs=True, matched=True)

    @property
    def _by_lookup(self) -> bool:
        """Whether no probe row has two matches, so that a single map suffices."""
        build, rest = self.built.build, self.derivation.probe_rest
        return (self.built.as_of is not None or (build is not None and build.unique)) and not (
            self.deferred is not None and rest is not Rest.NOTHING
        )

    def _rest_at_once(self) -> Emission | None:
        """Let the backend make the rest of a semi or anti join without maps."""
        kind, without_patterns = self.derivation.probe_rest, self.built.null_patterns is None
        is_semi = not self.derivation.pairs and self.deferred is None and kind in (Rest.MATCHED, Rest.UNMATCHED)
        if not is_semi or not without_patterns or self.probe is None or self.built.build is None:
            return None
        return self._emitter.at_once(self.probe, pairs=False, matched=kind is Rest.MATCHED)

    def _rows_with_match(self) -> Mask:
        """Rows with a match, if there is no condition."""
        if self.probe is None:
            return Mask(np.full(self.num_rows, self.built.num_rows > 0), None)
        matched = Mask(self.probe.matched(), self.backend)
        patterns = self.built.null_patterns
        return matched if patterns is None else patterns.with_matches(self.rows, matched)

    def _mark_build(self) -> None:
        if self.probe is not None:
            self.probe.mark_build(self._build_marks)
        elif self.num_rows:
            self.backend.mark(self._build_marks, Span(0, self.built.num_rows))

    def _slices(self, limit: int) -> Iterator[PairSlice]:
        """Candidate pairs, at most ``limit`` at a time."""
        if self.probe is not None:
            yield from probe_slices(self.probe, limit, self.metrics)
            return
        for outer, inner in cross_maps(self.num_rows, self.built.num_rows, limit):
            yield PairSlice(outer, inner)

    # -- under a condition ---------------------------------------------------------------------------------

    def _pairs_under(self, condition: Expression) -> Iterator[Any]:
        for candidates in self._candidates():
            for pairs in self._filter(condition, candidates):
                if isinstance(self.rest, Mask):
                    self.backend.mark(self.rest.values, pairs.probe)
                if self._build_marks is not None:
                    self.backend.mark(self._build_marks, pairs.build)
                if self.derivation.pairs:
                    yield from self._output_of(pairs)

    def _candidates(self) -> Iterator[PairSlice]:
        limit = self.sink.options.candidate_pairs
        if self.sink.resident:
            limit = max(limit, self._emitter.rows_per_batch)
        yield from self._rounds(limit) or self._slices(limit)
        if self.built.null_patterns is not None:
            assert isinstance(self.rest, Mask)
            patterns, tested = self.built.null_patterns, self.rest
            yield from patterns.candidates(self.rows, tested, self._probe_marks, limit, self.metrics)

    def _rounds(self, limit: int) -> Iterator[PairSlice] | None:
        """Candidates of rows without a match so far, in rounds; ``None`` if the join needs all pairs."""
        of_probe_rows = self.derivation.build_rest is Rest.NOTHING
        if self.derivation.pairs:
            return None
        if self.probe is not None:
            if not of_probe_rows:
                return None
            return probe_rounds(self.backend, self.probe, self.num_rows, self._probe_marks, limit, self.metrics)
        if of_probe_rows:
            rounds = product_rounds(np.arange(self.num_rows), self.built.num_rows, limit, self._probe_marks)
            return (pairs_of(self.backend, rows, others) for rows, others in rounds)
        rounds = product_rounds(np.flatnonzero(~self._all_build_marks()), self.num_rows, limit, self._all_build_marks)
        return (pairs_of(self.backend, others, rows) for rows, others in rounds)

    def _probe_marks(self) -> Marks:
        """Rows that have a match among the candidates tested so far."""
        assert isinstance(self.rest, Mask)
        return self.backend.mask_to_host(self.rest.values)

    def _all_build_marks(self) -> Marks:
        """Build rows that have had a match so far."""
        assert self.run.marks is not None
        return self.run.marks.matched.on_host | self.backend.mask_to_host(self._build_marks)

    def _filter(self, condition: Expression, candidates: PairSlice) -> Iterator[PairSlice]:
        """Keep the pairs of a slice for which the condition is true."""

        def matches(start: int, length: int) -> PairSlice:
            probe, build = slice_map(candidates.probe, start, length), slice_map(candidates.build, start, length)
            return self._where(PairSlice(probe, build), self._evaluate(condition, probe, build))

        self.metrics.candidate_pairs += candidates.length
        with self.metrics.timing("condition"):
            parts = list(with_halving(0, candidates.length, matches, self.metrics))
        yield from (pairs for pairs in parts if pairs.length)

    def _evaluate(self, condition: Expression, probe: RowMap, build: RowMap) -> Any:
        backend = self.backend
        frames = {
            side: backend.gather(columns.frame, rows, kernels=self.sink.kernels)
            for side, columns, rows in (
                (self.layout.probe.side, self._condition_columns, probe),
                (self.layout.build.side, self.built.condition, build),
            )
        }
        return backend.evaluate(condition, frames[Side.LEFT], frames[Side.RIGHT], probe.length)

    @cached_property
    def _condition_columns(self) -> Columns:
        return self.sink.condition(self.rows, self.layout.probe)
