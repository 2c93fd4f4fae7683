"""A morsel of probe rows: its candidate pairs, their condition, its output.

See `gpujoin.engine.join.probe` for an example.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from gpujoin.engine.join.build import BuiltSide
from gpujoin.engine.join.derive import Rest
from gpujoin.engine.join.early_stop import until_matched
from gpujoin.engine.join.output import Emission, Emitter
from gpujoin.engine.join.sinks import Columns, Mask, on_backend
from gpujoin.engine.join.uploads import Uploads
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.morsels import with_halving
from gpujoin.errors import DeviceLostError, DeviceValueError, OutOfMemoryError
from gpujoin.logs import log
from gpujoin.model.backend import BackendName, Build, PairSlice, Probe
from gpujoin.model.expressions import Expression
from gpujoin.model.jointype import Side
from gpujoin.model.maps import Indices, OutOfBounds, RowMap, Span, cross_maps, slice_map

if TYPE_CHECKING:
    from gpujoin.engine.join.probe import Run


class Morsel:
    """A morsel of probe rows and its matches.

    ``deferred`` is as for :func:`join_morsel`.
    """

    def __init__(
        self, run: Run, rows: Any, deferred: npt.NDArray[np.bool_] | None = None, uploads: Uploads | None = None
    ) -> None:
        self.run = run
        self.rows = rows
        self.built: BuiltSide = run.built
        self.sink = run.built.sink
        self.num_rows = self.sink.count(rows)
        self.layout = run.built.layout
        self.backend = run.built.backend
        self.deferred = deferred
        self._uploads = self.sink.uploads(rows) if uploads is None else uploads
        self.emitter = Emitter(run, rows, self._uploads)
        self._matched: Mask | None = None
        self._rest_done = False
        self._maps: tuple[RowMap, RowMap] | None = None
        self._emission: Emission | None = None
        self.marks: Any = None
        self.probe: Probe[Any] | None = None
        self.untested: Expression | None = None

    def start(self) -> Self:
        """Find the candidates of the rows. Raises ``OutOfMemoryError`` where they do not fit; nothing is out then."""
        with self.run.metrics.timing("probe"):
            self.probe = self._candidates_of_rows()
        self.untested = self._restricted()
        with self.run.metrics.timing("probe"):
            self._prepare()
        return self

    def _candidates_of_rows(self) -> Probe[Any] | None:
        """Candidates of the rows; ``None`` where every build row is one of every row, or output needs no probe."""
        built = self.built
        if built.as_of is not None:
            return built.as_of.probe(self.rows)
        if built.ranges is not None:
            return built.ranges.probe(self.rows)
        if built.build is not None:
            keys = self.sink.keys(self.rows, self.layout.probe, self._uploads)
            self._emission = self._made_by_keys(built.build, keys)
            return built.build.probe(keys) if self._emission is None else None
        return None

    def _made_by_keys(self, build: Build[Any, Any], keys: Any) -> Emission | None:
        """Make the output of an inner or left join by unique keys, and nothing else, without a probe."""
        layout, derivation = self.layout, self.layout.derivation
        if (
            not build.unique or not derivation.pairs or derivation.build_rest is not Rest.NOTHING
            or layout.condition is not None or self.deferred is not None or self.built.null_patterns is not None
            or self.backend.name is BackendName.CPU or not layout.build.output
        ):  # fmt: skip
            return None
        padded = derivation.probe_rest is Rest.UNMATCHED_PADDED
        made = self.emitter.by_keys(keys, padded=padded)
        self._rest_done = padded and made is not None
        return made

    def _restricted(self) -> Expression | None:
        """Evaluate the condition in a kernel of the backend, if possible; returns the condition left to test."""
        condition, built, metrics = self.layout.condition, self.built, self.run.metrics
        if (
            condition is None or self.probe is None or built.build is None or not built.build.unique
            or built.null_patterns is not None or self.sink.evaluator is not self.backend
            or not self.sink.kernels or self.backend.name is BackendName.CPU
        ):  # fmt: skip
            return condition
        with metrics.timing("condition"):
            own, other = self._condition.frame, built.condition.frame
            left = self.backend.restrict(self.probe, condition, own, other, self.layout.probe.side)
        if left is None:
            return condition
        metrics.candidate_pairs += self.probe.pairs
        metrics.compiled_probes += 1
        self.probe = left
        return None

    def output(self) -> Iterator[Any]:
        """Pairs, then the rest, unless it is deferred."""
        yield from self._pairs_under_condition() if self.untested is not None else self._pairs()
        rest = self.layout.derivation.probe_rest
        if rest is Rest.NOTHING or self._rest_done:
            return
        if self.deferred is not None:
            assert self._matched is not None
            self.deferred |= self._matched.on_host
        elif self._emission is not None and not self.layout.derivation.pairs:
            yield from self._emission.batches()
        else:
            assert self._matched is not None
            yield from self.emitter.rest(self.layout.probe.side, rest, self._matched)

    @property
    def metrics(self) -> JoinMetrics:
        """Counters of the run."""
        return self.run.metrics

    @property
    def build_rows(self) -> int:
        """Number of build rows."""
        return self.built.num_rows

    def marked(self) -> npt.NDArray[np.bool_]:
        """Mask of the rows that have a match among the candidates evaluated so far, for joins with a condition."""
        return self.backend.mask_to_host(self.marks)

    def build_marked(self) -> npt.NDArray[np.bool_]:
        """Mask of the build rows that have had a match so far."""
        return self.backend.mask_to_host(self.run.marks)

    def _prepare(self) -> None:
        """Do what needs memory and can be done before the first row is returned."""
        derivation = self.layout.derivation
        if self.untested is not None:
            if derivation.probe_rest is not Rest.NOTHING:
                self.marks = self.backend.marks(self.num_rows)
            return
        if derivation.build_rest is not Rest.NOTHING:
            self._mark_build()
            self.run.save_marks()
        if self._emission is None:
            self._emission = self._made_at_once()
        if derivation.pairs and self.by_lookup and self._emission is None:
            self._maps = self._lookup_maps()
        rest_made = self._rest_done or (self._emission is not None and not derivation.pairs)
        if derivation.probe_rest is not Rest.NOTHING and not rest_made:
            self._matched = self._matched_without_condition()

    # -- without a condition -------------------------------------------------------------------------------

    def _made_at_once(self) -> Emission | None:
        """Make the pairs of a join, or the rest of a semi or anti join, without maps.

        Not the pairs of left joins with at most one match a row: all their probe rows are returned, unmoved, so their
        maps cost nothing.
        """
        build = self.built.build
        if self.probe is None or build is None or self.built.null_patterns is not None:
            return None
        kind = self.layout.derivation.probe_rest
        if self.layout.derivation.pairs:
            if build.unique and not (self.by_lookup and kind is Rest.NOTHING):
                return None
            return self.emitter.at_once(self.probe, pairs=True, matched=True)
        if self.deferred is None and kind in (Rest.MATCHED, Rest.UNMATCHED):
            return self.emitter.at_once(self.probe, pairs=False, matched=kind is Rest.MATCHED)
        return None

    def _pairs(self) -> Iterator[Any]:
        if not self.layout.derivation.pairs:
            return
        if self._emission is not None:
            yield from self._emission.batches()
        elif self._maps is not None:
            yield from self.emitter.pairs(*self._maps)
        else:
            for pair_slice in self._slices(self.emitter.rows_per_batch):
                yield from self.emitter.pairs(pair_slice.probe, pair_slice.build)

    @property
    def by_lookup(self) -> bool:
        """Whether no probe row has two matches, so that a single map suffices."""
        build, rest = self.built.build, self.layout.derivation.probe_rest
        return (
            self.layout.derivation.pairs
            and (self.built.as_of is not None or (build is not None and build.unique))
            and not (self.deferred is not None and rest is not Rest.NOTHING)
        )

    @property
    def row_by_row(self) -> bool:
        """Whether the output has exactly one row for each probe row, in their order."""
        return self._maps is not None and self._rest_done

    def _lookup_maps(self) -> tuple[RowMap, RowMap]:
        assert self.probe is not None
        build_rows = self.probe.lookup()
        everything = Span(0, self.num_rows)
        padded = self.layout.derivation.probe_rest is Rest.UNMATCHED_PADDED
        if self.probe.pairs == self.num_rows:
            self._rest_done = padded
            return everything, dataclasses.replace(build_rows, out_of_bounds=OutOfBounds.NEVER)
        if padded:
            self._rest_done = True
            return everything, build_rows
        matched = self.probe.matched()
        present = self.backend.filter_map(build_rows, matched)
        if isinstance(present, Indices):
            present = dataclasses.replace(present, out_of_bounds=OutOfBounds.NEVER)
        return self.backend.selection(matched, True), present

    def _mark_build(self) -> None:
        if self.probe is not None:
            self.probe.mark_build(self.run.marks)
        elif self.num_rows:
            self.backend.mark(self.run.marks, Span(0, self.built.num_rows))

    def _matched_without_condition(self) -> Mask:
        if self.probe is None:
            return Mask(np.full(self.num_rows, self.built.num_rows > 0), None)
        matched = Mask(self.probe.matched(), self.backend)
        patterns = self.built.null_patterns
        if patterns is None:
            return matched
        return self.sink.with_null_matches(patterns, self.rows, matched)

    # -- under a condition ---------------------------------------------------------------------------------

    def _pairs_under_condition(self) -> Iterator[Any]:
        derivation = self.layout.derivation
        for candidates in self._candidates():
            for pairs in self._satisfying(candidates):
                if derivation.probe_rest is not Rest.NOTHING:
                    self.backend.mark(self.marks, pairs.probe)
                if derivation.build_rest is not Rest.NOTHING:
                    self.backend.mark(self.run.marks, pairs.build)
                if derivation.pairs:
                    yield from self.emitter.pairs(pairs.probe, pairs.build)
        if self.marks is not None:
            self._matched = Mask(self.marks, self.backend)

    def _candidates(self) -> Iterator[PairSlice]:
        limit = self.sink.candidate_pairs(self.emitter.rows_per_batch)
        rounds = until_matched(self, limit)
        yield from self._slices(limit) if rounds is None else rounds
        if self.built.null_patterns is not None:
            yield from self.built.null_patterns.candidates(self, limit)

    def _satisfying(self, candidates: PairSlice) -> Iterator[PairSlice]:
        """Keep the pairs of a slice for which the condition is true."""
        metrics = self.run.metrics
        metrics.candidate_pairs += candidates.length
        with metrics.timing("condition"):
            tested = list(
                with_halving(
                    0, candidates.length,
                    lambda start, length: self._satisfying_anywhere(candidates, start, length),
                    lambda start, length: self._satisfying_on_cpu(candidates, start, length),
                    metrics,
                )
            )  # fmt: skip
        yield from (pairs for pairs in tested if pairs.length)

    def _satisfying_anywhere(self, candidates: PairSlice, start: int, length: int) -> PairSlice:
        """Test pairs here, or on the CPU where a value is one for which only that gives Spark's result."""
        try:
            return self._satisfying_piece(candidates, start, length)
        except DeviceValueError as problem:
            log.debug("pairs are tested on the CPU: %s", problem)
            return self._satisfying_on_cpu(candidates, start, length)

    def _satisfying_piece(self, candidates: PairSlice, start: int, length: int) -> PairSlice:
        probe, build = slice_map(candidates.probe, start, length), slice_map(candidates.build, start, length)
        evaluator = self.sink.evaluator
        mask = Mask(self._evaluate(probe, build, self._condition, self.built), evaluator).on(self.backend)
        return PairSlice(self.backend.filter_map(probe, mask), self.backend.filter_map(build, mask))

    def _satisfying_on_cpu(self, candidates: PairSlice, start: int, length: int) -> PairSlice:
        probe, build = slice_map(candidates.probe, start, length), slice_map(candidates.build, start, length)
        twin = self.run.on_cpu().built
        rows = self.sink.to_host(self.rows, self.layout.probe)
        columns = twin.sink.condition(rows, twin.layout.probe)
        mask = twin.backend.mask_to_host(self._evaluate(probe, build, columns, twin))
        kept = []
        for pairs in (probe, build):
            indices = self.backend.indices_to_host(pairs)[mask]
            kept.append(self.backend.indices_from_host(indices, OutOfBounds.NEVER))
        return PairSlice(*kept)

    def _evaluate(self, probe: RowMap, build: RowMap, columns: Columns, built: BuiltSide) -> Any:
        condition, evaluator = self.layout.condition, built.sink.evaluator
        assert condition is not None
        kernels = self.sink.kernels
        frames = {
            side: evaluator.gather(given.frame, on_backend(rows, self.backend, evaluator), kernels=kernels)
            for side, given, rows in (
                (self.layout.probe.side, columns, probe),
                (self.layout.build.side, built.condition, build),
            )
        }
        return evaluator.evaluate(condition, frames[Side.LEFT], frames[Side.RIGHT], probe.length)

    @cached_property
    def _condition(self) -> Columns:
        return self.sink.condition(self.rows, self.layout.probe, self._uploads)

    # -- pairs ---------------------------------------------------------------------------------------------

    def _slices(self, limit: int) -> Iterator[PairSlice]:
        """Candidate pairs, at most ``limit`` at a time, and fewer while memory is short."""
        if self.probe is None:
            for outer, inner in cross_maps(self.num_rows, self.built.num_rows, limit):
                yield PairSlice(outer, inner)
            return
        yield from self.slices_of(self.probe, limit)

    def slices_of(self, probe: Probe[Any], limit: int) -> Iterator[PairSlice]:
        """Pairs of a probe, at most ``limit`` at a time, and fewer while memory is short."""
        taken = 0
        while taken < probe.pairs:
            try:
                for pair_slice in _without_first(probe.slices(limit), taken):
                    taken += pair_slice.length
                    yield pair_slice
                return
            except OutOfMemoryError as problem:
                if limit == 1 or isinstance(problem, DeviceLostError):
                    raise
                self.run.metrics.retries += 1
                limit = max(1, limit // 2)


def _without_first(slices: Iterator[PairSlice], pairs: int) -> Iterator[PairSlice]:
    """Skip the first ``pairs`` pairs of slices."""
    for pair_slice in slices:
        if pairs >= pair_slice.length:
            pairs -= pair_slice.length
            continue
        if pairs:
            length = pair_slice.length - pairs
            yield PairSlice(slice_map(pair_slice.probe, pairs, length), slice_map(pair_slice.build, pairs, length))
            pairs = 0
        else:
            yield pair_slice
