"""Joins of frames that stay on the device: the derivations of `gpujoin.engine.derive`, without Arrow in between."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from gpujoin.config import Options
from gpujoin.engine.derive import Rest
from gpujoin.engine.layout import JoinLayout, SideLayout
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import DeviceMemoryError
from gpujoin.model.backend import Build, Probe
from gpujoin.model.expressions import Expression
from gpujoin.model.jointype import Side
from gpujoin.model.keyfacts import Choice, Choose, KeyFacts, Wanted
from gpujoin.model.maps import AllNull, Indices, OutOfBounds, RowMap, Span
from gpujoin.model.pipeline import AnyDevicePipeline
from gpujoin.model.relations import Join
from gpujoin.model.spec import NullEquality
from gpujoin.plan.algorithm import chooser
from gpujoin.plan.gathering import gather_chooser

_Frame: TypeAlias = Any

_FEWEST = 1024
"""Rows that do not fit are halved down to so many."""
_MOST_PAIRS = 1 << 30
"""Pairs of one chunk: well within the rows of a device column."""


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Rows of the stream side that do not fit the device, however few.

    Attributes
    ----------
    rows : Frame
        The rows; nothing of their result has been given out.
    """

    rows: _Frame


class _TooMany(Exception):  # noqa: N818 - not an error: the chunk is halved
    """A chunk's result is larger than it should be."""


class FrameJoin:
    """A build side on the device, probed by frames.

    Parameters
    ----------
    node : Join
        What to compute; the device has no obstacle to it.
    build : Frame
        The build side's rows.
    device : DevicePipelineBackend
        Where.
    options : Options
        Algorithm and candidate pairs.
    metrics : JoinMetrics
        Counters to add to.
    piece_bytes : int
        Size that output frames aim at.

    Raises
    ------
    DeviceMemoryError
        If the build does not fit.
    """

    def __init__(
        self, node: Join, build: _Frame, device: AnyDevicePipeline, options: Options, metrics: JoinMetrics,
        piece_bytes: int,
    ) -> None:  # fmt: skip
        self._node = node
        self._device = device
        self._backend = device.backend
        self._options = options
        self._metrics = metrics
        self._piece_bytes = piece_bytes
        layout = JoinLayout.of(node.spec, node.left.schema, node.right.schema, node.build_side)
        self.layout = dataclasses.replace(layout, ranged=None)
        self._choices: list[Choice] = []
        self._choose_gather = gather_chooser(options.gpu_algorithm)
        self.rows = self._backend.frame_rows(build)
        with metrics.timing("build"):
            codes = self._codes(build, layout.build.side)
            self._build: Build[Any, Any] = self._backend.build(codes, self._chooser(), self._wanted())
            self._output = device.select(build, layout.build.output)
            self._tested = device.select(build, layout.build.condition)
            self.ranged = layout.ranged is not None and not self._build.unique
            rests = layout.derivation.build_rest is not Rest.NOTHING
            self.marks: Any = self._backend.marks(self.rows) if rests else None
        metrics.build_rows += self.rows
        algorithm = self._build.algorithm
        metrics.algorithms[algorithm] = metrics.algorithms.get(algorithm, 0) + 1
        if self._choices:
            made = self._choices[-1]
            metrics.algorithm_reasons.setdefault(algorithm, f"{made.algorithm.value}: {made.reason}")

    def _chooser(self) -> Choose | None:
        """The planner's choice of an algorithm, remembered for the metrics."""
        choose = chooser(self._options.gpu_algorithm)
        if choose is None:
            return None

        def remembered(facts: KeyFacts) -> Choice:
            choice = choose(facts)
            self._choices.append(choice)
            return choice

        return remembered

    def _wanted(self) -> Wanted:
        layout = self.layout
        pairs = layout.derivation.pairs or layout.condition is not None
        return Wanted.PAIRS if pairs or layout.derivation.build_rest is not Rest.NOTHING else Wanted.MARKS

    def _codes(self, frame: _Frame, side: Side) -> _Frame:
        keys, codec = self._node.spec.keys, self.layout.codec
        equal = [nulls is NullEquality.EQUAL for nulls in codec.nulls]
        return self._device.keys(frame, [key.of(side) for key in keys], codec.types, equal)

    # -- the stream side -----------------------------------------------------------------------------------

    def probe(self, frame: _Frame) -> Iterator[_Frame | Chunk]:
        """Join rows of the stream side, in halves where they do not fit.

        Yields
        ------
        Frame or Chunk
            Rows of the join's schema; or rows that the caller is to join elsewhere.
        """
        rows = self._backend.frame_rows(frame)
        self._metrics.probe_rows += rows
        pieces = [(0, rows)]
        while pieces:
            start, length = pieces.pop()
            if length == 0:
                continue
            chunk = frame
            try:
                if length < rows:
                    chunk = self._device.part(frame, start, length)
                done = self._joined(chunk, length)
            except _TooMany:
                pieces += _halves(start, length)
                continue
            except DeviceMemoryError:
                self._metrics.retries += 1
                if length > _FEWEST:
                    pieces += _halves(start, length)
                    continue
                self._metrics.fallbacks += 1
                yield Chunk(chunk)
                continue
            yield from done

    def _joined(self, chunk: _Frame, length: int) -> list[_Frame]:
        """All that the join returns of some rows but the rest of the build side; may be repeated."""
        with self._metrics.timing("probe"):
            probe = self._build.probe(self._codes(chunk, self.layout.probe.side))
        output = self._device.select(chunk, self.layout.probe.output)
        per_batch = self._rows_per_batch(output, length)
        derivation = self.layout.derivation
        if (
            length > 1 and (derivation.pairs or self.layout.condition is not None)
            and probe.pairs > max(min(4 * per_batch, _MOST_PAIRS), 4 * length)
        ):  # fmt: skip
            raise _TooMany
        condition = self.layout.condition
        if condition is None:
            return self._plain(probe, output, length, per_batch)
        tested = self._device.select(chunk, self.layout.probe.condition)
        left = self._restricted(probe, condition, tested)
        if left is not None:
            return self._plain(left, output, length, per_batch)
        return self._under_condition(probe, tested, output, length, per_batch)

    def _restricted(self, probe: Probe[Any], condition: Expression, tested: _Frame) -> Probe[Any] | None:
        """The probe with the matches for which the condition is true, where a kernel tests it."""
        if not self._build.unique or self._choose_gather is None:
            return None
        with self._metrics.timing("condition"):
            left = self._backend.restrict(probe, condition, tested, self._tested, self.layout.probe.side)
        if left is not None:
            self._metrics.candidate_pairs += probe.pairs
            self._metrics.compiled_probes += 1
        return left

    def _rows_per_batch(self, output: _Frame, rows: int) -> int:
        size = sum(
            self._backend.frame_bytes(frame) / max(1, count)
            for frame, count in ((output, rows), (self._output, self.rows))
        )
        return max(1024, int(self._piece_bytes / max(1.0, size)))

    def _plain(self, probe: Probe[Any], output: _Frame, length: int, per_batch: int) -> list[_Frame]:
        derivation, backend = self.layout.derivation, self._backend
        if derivation.build_rest is not Rest.NOTHING:
            probe.mark_build(self.marks)
        done: list[_Frame] = []
        kind = derivation.probe_rest
        if derivation.pairs and self._build.unique:
            found, everything = probe.lookup(), Span(0, length)
            if probe.pairs == length:
                kind = Rest.NOTHING if kind is Rest.UNMATCHED_PADDED else kind
                pairs: tuple[RowMap, RowMap] = (everything, _present(found))
            elif kind is Rest.UNMATCHED_PADDED:
                kind = Rest.NOTHING
                pairs = (everything, found)
            else:
                matched = probe.matched()
                kept = backend.filter_map(found, matched)
                pairs = (backend.selection(matched, True), _present(kept))
            done.append(self._emitted(output, *pairs))
        elif derivation.pairs:
            done += [self._emitted(output, part.probe, part.build) for part in probe.slices(per_batch)]
        if kind is not Rest.NOTHING:
            done += self._rest(output, length, kind, probe.matched())
        return done

    def _under_condition(
        self, probe: Probe[Any], tested: _Frame, output: _Frame, length: int, per_batch: int
    ) -> list[_Frame]:
        derivation, backend, metrics = self.layout.derivation, self._backend, self._metrics
        matched = backend.marks(length) if derivation.probe_rest is not Rest.NOTHING else None
        done: list[_Frame] = []
        for part in probe.slices(max(self._options.candidate_pairs, per_batch)):
            metrics.candidate_pairs += part.length
            with metrics.timing("condition"):
                mask = self._mask(tested, part.probe, part.build)
                left, right = backend.filter_map(part.probe, mask), backend.filter_map(part.build, mask)
            if matched is not None:
                backend.mark(matched, left)
            if self.marks is not None:
                backend.mark(self.marks, right)
            if derivation.pairs and left.length:
                done.append(self._emitted(output, left, right))
        if matched is not None:
            done += self._rest(output, length, derivation.probe_rest, matched)
        return done

    def _mask(self, tested: _Frame, probe: RowMap, build: RowMap) -> Any:
        frames = {
            self.layout.probe.side: self._backend.gather(tested, probe, self._choose_gather),
            self.layout.build.side: self._backend.gather(self._tested, build, self._choose_gather),
        }
        assert self.layout.condition is not None
        return self._backend.evaluate(
            self.layout.condition, frames[Side.LEFT], frames[Side.RIGHT], probe.length
        )

    # -- output --------------------------------------------------------------------------------------------

    def _rest(self, output: _Frame, length: int, kind: Rest, matched: Any) -> list[_Frame]:
        """What the join returns of the stream side's rows besides pairs."""
        if kind is Rest.FLAGGED:
            return [self._device.beside([output, self._device.flags(matched, length)])]
        rows = self._backend.selection(matched, kind is Rest.MATCHED)
        if not rows.length:
            return []
        if kind is Rest.UNMATCHED_PADDED:
            return [self._emitted(output, rows, AllNull(rows.length))]
        return [self._backend.gather(output, rows, self._choose_gather)]

    def _emitted(self, output: _Frame, probe: RowMap, build: RowMap) -> _Frame:
        gather = self._backend.gather
        with self._metrics.timing("gather"):
            sides = {
                self.layout.probe.side: gather(output, probe, self._choose_gather),
                self.layout.build.side: gather(self._output, build, self._choose_gather),
            }
            return self._device.beside([sides[Side.LEFT], sides[Side.RIGHT]])

    def finish(self, matched: Any) -> Iterator[_Frame]:
        """What the join returns of the build side's rows, given which of them have met a match.

        Raises
        ------
        DeviceMemoryError
            If a piece of it does not fit; what was given out before stands for the rows before it.
        """
        kind = self.layout.derivation.build_rest
        if kind is Rest.NOTHING or self.rows == 0:
            return
        if kind is Rest.FLAGGED:
            yield self._device.beside([self._output, self._device.flags(matched, self.rows)])
            return
        rows = self._backend.selection(matched, kind is Rest.MATCHED)
        if not rows.length:
            return
        own = self._backend.gather(self._output, rows, self._choose_gather)
        if kind is not Rest.UNMATCHED_PADDED:
            yield own
            return
        stream: SideLayout = self.layout.probe
        nothing = self._device.nulls(_output_columns(self._node, stream), rows.length)
        sides = {self.layout.build.side: own, stream.side: nothing}
        yield self._device.beside([sides[Side.LEFT], sides[Side.RIGHT]])


def _output_columns(node: Join, side: SideLayout) -> pa.Schema:
    schema = node.side(side.side).schema
    return pa.schema([schema.field(i) for i in side.output])


def _present(rows: RowMap) -> RowMap:
    """A map that is known to have a row everywhere."""
    return dataclasses.replace(rows, out_of_bounds=OutOfBounds.NEVER) if isinstance(rows, Indices) else rows


def _halves(start: int, length: int) -> Sequence[tuple[int, int]]:
    """The second half, then the first, which is taken from the end next."""
    half = length // 2
    return (start + half, length - half), (start, half)
