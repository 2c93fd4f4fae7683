"""Matching one morsel of probe rows: candidate pairs, residual condition, marks, output."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.engine.built import BuiltSide, Emitter, Run, to_backend
from gpujoin.engine.derive import Rest
from gpujoin.engine.emission import Emission, emission
from gpujoin.engine.firstmatch import until_matched
from gpujoin.engine.keys import key_frame
from gpujoin.engine.ladder import in_pieces
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.payload import Payload
from gpujoin.engine.ranges import RangeEvaluationError
from gpujoin.errors import OutOfMemoryError
from gpujoin.model.backend import BackendName, PairSlice, Probe
from gpujoin.model.expressions import Expression
from gpujoin.model.jointype import Side
from gpujoin.model.maps import Indices, OutOfBounds, RowMap, Span, cross_maps, slice_map


def join_morsel(
    run: Run, rows: pa.RecordBatch, deferred: npt.NDArray[np.bool_] | None = None
) -> Iterator[pa.RecordBatch]:
    """All the output that a morsel of probe rows causes, in the order of its rows' matches, then its rest.

    Where its probe does not fit the device the morsel is halved, and at last probed on the CPU.

    Parameters
    ----------
    run : Run
        The run the rows belong to.
    rows : RecordBatch
        All columns of the probe side.
    deferred : ndarray of bool, shape (rows,), or None
        If given, further build rows are to come before the rest of these rows is known: only pairs are returned, and
        the rows with a match are set here.
    """

    def part_of(target: Run, start: int, length: int) -> Morsel:
        part = None if deferred is None else deferred[start : start + length]
        some = rows.slice(start, length)
        try:
            return Morsel(target, some, part)
        except RangeEvaluationError:
            return Morsel(target.without_ranges(), some, part)

    pieces = in_pieces(
        0,
        rows.num_rows,
        lambda start, length: part_of(run, start, length),
        lambda start, length: part_of(run.on_cpu(), start, length),
        run.metrics,
    )
    for morsel in pieces:
        yield from _surely(morsel)


def _surely(morsel: Morsel) -> Iterator[pa.RecordBatch]:
    """The output of a morsel, finished on the CPU if the device gives up half-way.

    All backends give pairs in one order, so the rows already out are the first ones there too.
    """
    rows_out = 0
    try:
        for batch in morsel.output():
            rows_out += batch.num_rows
            yield batch
        return
    except OutOfMemoryError:
        morsel.run.metrics.fallbacks += 1
        if morsel.row_by_row:
            # A condition tested on pairs gives the rows without one last, so the twin starts where this one stopped.
            twin = Morsel(morsel.run.on_cpu(), morsel.rows.slice(rows_out), morsel.deferred)
            rows_out = 0
        else:
            twin = Morsel(morsel.run.on_cpu(), morsel.rows, morsel.deferred)
        if rows_out and twin.by_lookup != morsel.by_lookup:
            raise
    for batch in twin.output():
        seen = min(rows_out, batch.num_rows)
        rows_out -= seen
        if seen < batch.num_rows:
            yield batch.slice(seen)


class Morsel:
    """Some probe rows, probed.

    Parameters
    ----------
    run : Run
        The run they belong to.
    rows : RecordBatch
        All columns of the probe side.
    deferred : ndarray of bool, shape (rows,), or None
        As for :func:`join_morsel`.

    Raises
    ------
    OutOfMemoryError
        If the probe does not fit the device; nothing has been emitted then.
    """

    def __init__(self, run: Run, rows: pa.RecordBatch, deferred: npt.NDArray[np.bool_] | None = None) -> None:
        self.run = run
        self.rows = rows
        self.built: BuiltSide = run.built
        self.layout = run.built.layout
        self.backend = run.built.backend
        self.deferred = deferred
        output = Payload.of(rows, self.layout.probe.output, self.backend, self.built.choose_gather)
        self.emitter = Emitter(run, output)
        self._host_mask: npt.NDArray[np.bool_] | None = None
        self._rest_done = False
        self._maps: tuple[RowMap, RowMap] | None = None
        self._emission: Emission | None = None
        self.marks: Any = None
        with run.metrics.timing("probe"):
            self.probe = self._probed()
        self.condition = self._untested()
        with run.metrics.timing("probe"):
            self._prepare()

    def _probed(self) -> Probe[Any] | None:
        """The candidates of the rows; ``None``: every build row is one of every row."""
        ranges = self.built.ranges
        if self.built.as_of is not None:
            return self.built.as_of.probe(self.rows)
        if self.built.build is None and ranges is None:
            return None
        if ranges is not None:
            return ranges.build.probe(self.backend.from_arrow(ranges.codec.bounds(self.rows)))
        assert self.built.build is not None
        keys = key_frame(self.backend, self.layout.codec, self.rows, self.layout.probe.side)
        return self.built.build.probe(keys)

    def _untested(self) -> Expression | None:
        """The condition, unless the backend's kernels have tested it: the probe then has what is left."""
        condition, built, metrics = self.layout.condition, self.built, self.run.metrics
        if (
            condition is None or self.probe is None or built.build is None or not built.build.unique
            or built.null_patterns is not None or built.evaluator is not self.backend or built.choose_gather is None
            or self.backend.name is BackendName.CPU
        ):  # fmt: skip
            return condition
        with metrics.timing("condition"):
            own, other = self._condition_payload.frame, built.condition_payload.frame
            left = self.backend.restrict(self.probe, condition, own, other, self.layout.probe.side)
        if left is None:
            return condition
        metrics.candidate_pairs += self.probe.pairs
        metrics.compiled_probes += 1
        self.probe = left
        return None

    def output(self) -> Iterator[pa.RecordBatch]:
        """Pairs, then the rest or its deferral."""
        yield from self.pairs()
        if self.deferred is None:
            yield from self.rest()
        elif self.layout.derivation.probe_rest is not Rest.NOTHING:
            self.deferred |= self.matched()

    def pairs(self) -> Iterator[pa.RecordBatch]:
        """Matching pairs, if the join returns them; marks are complete once this is exhausted."""
        if self.condition is not None:
            return self._pairs_under_condition()
        return self._all_pairs()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """What the join returns of these rows besides pairs; to be called after :meth:`pairs` is exhausted."""
        kind = self.layout.derivation.probe_rest
        if kind is Rest.NOTHING or self._rest_done:
            return
        if self._emission is not None:
            yield from self._emission.batches(self.emitter.rows_per_batch)
            return
        yield from self.emitter.rest(self.layout.probe.side, kind, self.matched())

    def matched(self) -> npt.NDArray[np.bool_]:
        """Which rows count as matched, on the host; to be called after :meth:`pairs` is exhausted."""
        assert self._host_mask is not None
        return self._host_mask

    @property
    def metrics(self) -> JoinMetrics:
        """Counters of the run."""
        return self.run.metrics

    @property
    def build_rows(self) -> int:
        """How many build rows there are."""
        return int(self.built.rows.num_rows)

    def marked(self) -> npt.NDArray[np.bool_]:
        """Tell which rows have a match among the candidates taken so far; of joins with a condition."""
        return self.backend.mask_to_host(self.marks)

    def build_marked(self) -> npt.NDArray[np.bool_]:
        """Tell which build rows have had a match so far."""
        return self.backend.mask_to_host(self.run.marks)

    def _prepare(self) -> None:
        """Whatever needs memory and can be done before the first row is out."""
        derivation = self.layout.derivation
        if self.condition is not None:
            if derivation.probe_rest is not Rest.NOTHING:
                self.marks = self.backend.marks(self.rows.num_rows)
            return
        if derivation.build_rest is not Rest.NOTHING:
            self._mark_build()
        self._emission = self._emitted()
        if derivation.pairs and self.by_lookup and self._emission is None:
            self._maps = self._lookup_maps()
        if derivation.probe_rest is not Rest.NOTHING and not self._rest_done and self._emission is None:
            self._host_mask = self._matched_without_condition()

    # -- without a condition -------------------------------------------------------------------------------

    def _emitted(self) -> Emission | None:
        """All output of the rows at once: of an inner join with at most one match a row, or of those with or without.

        A left join returns all its probe rows, which stay where they are, so its maps cost nothing to make.
        """
        if self.probe is None or self.built.build is None or self.built.null_patterns is not None:
            return None
        kind, pairs = self.layout.derivation.probe_rest, self.layout.derivation.pairs
        if pairs and self.by_lookup and kind is Rest.NOTHING:
            return emission(self.run, self.emitter, self.probe, pairs=True, matched=True)
        if not pairs and self.deferred is None and kind in (Rest.MATCHED, Rest.UNMATCHED):
            return emission(self.run, self.emitter, self.probe, pairs=False, matched=kind is Rest.MATCHED)
        return None

    def _all_pairs(self) -> Iterator[pa.RecordBatch]:
        if self._emission is not None and self.layout.derivation.pairs:
            yield from self._emission.batches(self.emitter.rows_per_batch)
        elif self._maps is not None:
            yield from self.emitter.pairs(*self._maps)
        elif self.layout.derivation.pairs:
            for part in self._slices(self.emitter.rows_per_batch):
                yield from self.emitter.pairs(part.probe, part.build)

    @property
    def by_lookup(self) -> bool:
        """Whether one map suffices, since no probe row has two matches."""
        build, rest = self.built.build, self.layout.derivation.probe_rest
        return (
            self.layout.derivation.pairs
            and (self.built.as_of is not None or (build is not None and build.unique))
            and not (self.deferred is not None and rest is not Rest.NOTHING)
        )

    @property
    def row_by_row(self) -> bool:
        """Whether the output is one row for each probe row, in their order."""
        return self._maps is not None and self._rest_done

    def _lookup_maps(self) -> tuple[RowMap, RowMap]:
        assert self.probe is not None
        found = self.probe.lookup()
        everything = Span(0, self.rows.num_rows)
        if self.probe.pairs == self.rows.num_rows:
            self._rest_done = self.layout.derivation.probe_rest is Rest.UNMATCHED_PADDED
            return everything, Indices(found.values, found.length, OutOfBounds.NEVER)
        if self.layout.derivation.probe_rest is Rest.UNMATCHED_PADDED:
            self._rest_done = True
            return everything, found
        matched = self.probe.matched()
        kept = self.backend.filter_map(found, matched)
        if isinstance(kept, Indices):
            kept = dataclasses.replace(kept, out_of_bounds=OutOfBounds.NEVER)
        return self.backend.selection(matched, True), kept

    def _mark_build(self) -> None:
        if self.probe is not None:
            self.probe.mark_build(self.run.marks)
        elif self.rows.num_rows:
            self.backend.mark(self.run.marks, Span(0, self.built.rows.num_rows))

    def _matched_without_condition(self) -> npt.NDArray[np.bool_]:
        if self.probe is None:
            return np.full(self.rows.num_rows, self.built.rows.num_rows > 0)
        mask = self.backend.mask_to_host(self.probe.matched())
        patterns = self.built.null_patterns
        if patterns is not None:
            mask = mask.copy()
            patterns.matched(self.rows, mask)
        return mask

    # -- under a condition ---------------------------------------------------------------------------------

    def _pairs_under_condition(self) -> Iterator[pa.RecordBatch]:
        derivation = self.layout.derivation
        for part in self._candidates():
            for kept in self._satisfying(part):
                if derivation.probe_rest is not Rest.NOTHING:
                    self.backend.mark(self.marks, kept.probe)
                if derivation.build_rest is not Rest.NOTHING:
                    self.backend.mark(self.run.marks, kept.build)
                if derivation.pairs:
                    yield from self.emitter.pairs(kept.probe, kept.build)
        if self.marks is not None:
            self._host_mask = self.marked()

    def _candidates(self) -> Iterator[PairSlice]:
        most = self.built.options.candidate_pairs
        rounds = until_matched(self, most)
        yield from self._slices(most) if rounds is None else rounds
        if self.built.null_patterns is not None:
            yield from self.built.null_patterns.candidates(self, most)

    def _satisfying(self, part: PairSlice) -> Iterator[PairSlice]:
        """The pairs of a slice for which the condition is true."""
        metrics = self.run.metrics
        metrics.candidate_pairs += part.length
        with metrics.timing("condition"):
            done = list(
                in_pieces(
                    0, part.length,
                    lambda start, length: self._satisfying_piece(part, start, length),
                    lambda start, length: self._satisfying_on_cpu(part, start, length),
                    metrics,
                )
            )  # fmt: skip
        yield from (kept for kept in done if kept.length)

    def _satisfying_piece(self, part: PairSlice, start: int, length: int) -> PairSlice:
        probe, build = slice_map(part.probe, start, length), slice_map(part.build, start, length)
        evaluator = self.built.evaluator
        mask = self._evaluate(probe, build, self._condition_payload, self.built.condition_payload)
        if evaluator is not self.backend:
            mask = self.backend.mask_from_host(evaluator.mask_to_host(mask))
        return PairSlice(self.backend.filter_map(probe, mask), self.backend.filter_map(build, mask))

    def _satisfying_on_cpu(self, part: PairSlice, start: int, length: int) -> PairSlice:
        probe, build = slice_map(part.probe, start, length), slice_map(part.build, start, length)
        twin = self.run.on_cpu().built
        payload = Payload.of_condition(self._condition_payload.table, twin.backend)
        mask = twin.backend.mask_to_host(self._evaluate(probe, build, payload, twin.condition_payload))
        target = self.backend
        kept = []
        for rows in (probe, build):
            indices = target.indices_to_host(rows)[mask]
            kept.append(target.indices_from_host(indices, OutOfBounds.NEVER))
        return PairSlice(*kept)

    def _evaluate(self, probe: RowMap, build: RowMap, probe_payload: Payload, build_payload: Payload) -> Any:
        condition = self.layout.condition
        assert condition is not None
        evaluator = build_payload.backend
        probe, build = (to_backend(rows, self.backend, evaluator) for rows in (probe, build))
        choose = self.built.choose_gather
        frames = {
            self.layout.probe.side: evaluator.gather(probe_payload.frame, probe, choose),
            self.layout.build.side: evaluator.gather(build_payload.frame, build, choose),
        }
        return evaluator.evaluate(condition, frames[Side.LEFT], frames[Side.RIGHT], probe.length)

    @cached_property
    def _condition_payload(self) -> Payload:
        read = pa.Table.from_batches([self.rows.select(list(self.layout.probe.condition))])
        return Payload.of_condition(read, self.built.evaluator, self.built.choose_gather)

    # -- pairs ---------------------------------------------------------------------------------------------

    def _slices(self, most: int) -> Iterator[PairSlice]:
        """Pairs with equal keys, at most ``most`` at a time, and fewer while memory is short."""
        if self.probe is None:
            for outer, inner in cross_maps(self.rows.num_rows, self.built.rows.num_rows, most):
                yield PairSlice(outer, inner)
            return
        yield from self.slices_of(self.probe, most)

    def slices_of(self, probe: Probe[Any], most: int) -> Iterator[PairSlice]:
        """Pairs of a probe, at most ``most`` at a time, and fewer while memory is short."""
        done = 0
        while done < probe.pairs:
            try:
                for part in _skip(probe.slices(most), done):
                    done += part.length
                    yield part
                return
            except OutOfMemoryError:
                if most == 1:
                    raise
                self.run.metrics.retries += 1
                most = max(1, most // 2)


def _skip(parts: Iterator[PairSlice], pairs: int) -> Iterator[PairSlice]:
    """Slices without the first ``pairs`` pairs."""
    for part in parts:
        if pairs >= part.length:
            pairs -= part.length
            continue
        if pairs:
            length = part.length - pairs
            yield PairSlice(slice_map(part.probe, pairs, length), slice_map(part.build, pairs, length))
            pairs = 0
        else:
            yield part
