"""Makes output batches from gather maps, or lets the backend make them without; smaller ones where memory is short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpujoin.engine.join.build import BuiltSide
from gpujoin.engine.join.derive import Rest
from gpujoin.engine.join.marks import Mask
from gpujoin.engine.join.sinks import Columns, DeviceSink
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.morsels import halved, with_halving
from gpujoin.model.backend import JoinOutput, Probe
from gpujoin.model.jointype import Side
from gpujoin.model.maps import AllNull, RowMap, Span, slice_map

_OVERSHOOT = 4
"""A batch is split for long values once it would exceed its target size by this factor."""


@dataclass(frozen=True)
class Emission:
    """Output rows that a backend makes without gather maps."""

    sink: DeviceSink
    output: JoinOutput[Any]
    """The rows."""
    sides: tuple[Side, ...]
    """Sides that the rows have columns of, that of the probe first."""
    rows_per_batch: int
    """Output rows of a batch."""
    metrics: JoinMetrics

    def batches(self) -> Iterator[Any]:
        """The rows as batches of the join's output. Raises ``OutOfMemoryError`` where few rows do not fit."""
        for start in range(0, self.output.rows, self.rows_per_batch):
            length = min(self.rows_per_batch, self.output.rows - start)
            with self.metrics.timing("gather"):
                batches = list(with_halving(start, length, self._batch, self.metrics))
            yield from batches

    def _batch(self, start: int, length: int) -> Any:
        frames = zip(self.sides, self.output.slice(start, length), strict=False)
        columns = {side: self.sink.backend.gather(frame, Span(0, length)) for side, frame in frames}
        return self.sink.assemble(columns, None, length)


class Emitter:
    """Turns gather maps over some probe rows, in the form of the sink, and the build side into output batches.

    Its methods raise ``OutOfMemoryError`` where a batch of few rows does not fit.
    """

    def __init__(self, built: BuiltSide, rows: Any, metrics: JoinMetrics) -> None:
        self.built = built
        self.rows = rows
        self.metrics = metrics
        self.sink = built.sink
        layout = self.layout = self.sink.layout
        self.columns: dict[Side, Columns] = {
            layout.build.side: built.output,
            layout.probe.side: self.sink.output(rows, layout.probe),
        }

    @cached_property
    def rows_per_batch(self) -> int:
        """Number of rows of a batch of the target size, by mean row size."""
        size = sum(columns.row_bytes for columns in self.columns.values())
        sizes = self.sink.sizes
        return max(sizes.least_rows, int(sizes.batch_bytes / max(1.0, size)))

    def rest(self, side: Side, kind: Rest, matched: Mask, first: int = 0) -> Iterator[Any]:
        """Rows of one side that the join returns besides pairs, by the mask of rows with a match.

        They come in the order of the side's rows; the ``first`` of them are left out.
        """
        backend = self.sink.backend
        if kind is Rest.FLAGGED:
            rows = self.built.rows if side is self.layout.build.side else self.rows
            return self._batches(side, Span(0, rows.num_rows), None, matched, first)
        selection = backend.selection(matched.on(backend), kind is Rest.MATCHED)
        padding = AllNull(selection.length) if kind is Rest.UNMATCHED_PADDED else None
        return self._batches(side, selection, padding, first=first)

    def pairs(self, probe: RowMap, build: RowMap) -> Iterator[Any]:
        """Output rows of pairs of probe and build rows."""
        return self._batches(self.layout.probe.side, probe, build)

    def at_once(self, probe: Probe[Any], *, pairs: bool, matched: bool) -> Emission | None:
        """Let the backend make the output of the probe rows without maps.

        ``pairs``: rows are returned with each of their matches. ``matched``: rows with a match are returned, not those
        without. ``None``: the output must be made by gather maps, as it always is on the CPU, and where all probe rows
        are returned as they are. Raises ``DeviceMemoryError`` if the columns of the probed rows do not fit.
        """
        layout, sink = self.layout, self.sink
        sides = (layout.probe.side, layout.build.side) if pairs else (layout.probe.side,)
        if not isinstance(sink, DeviceSink) or not sink.kernels or not layout.output_schema:
            return None
        build = self.built.build
        if pairs and build is not None and build.unique and probe.pairs == self.rows.num_rows:
            return None
        own = self.columns[layout.probe.side].frame
        other = self.columns[layout.build.side].frame if pairs else None
        with self.metrics.timing("gather"):
            output = sink.backend.emit(probe, own, other, matched=matched)
        return None if output is None else Emission(sink, output, sides, self.rows_per_batch, self.metrics)

    def by_keys(self, keys: Any, *, padded: bool) -> Emission | None:
        """Let the backend make the output of the probe rows with these keys without a probe of the unique build side.

        ``padded``: rows without a match are returned, with nulls. ``None``: the build side must be probed. Raises
        ``DeviceMemoryError`` if the columns of the probed rows do not fit.
        """
        layout, sink, build = self.layout, self.sink, self.built.build
        if not isinstance(sink, DeviceSink) or not sink.fetches or build is None:
            return None
        own, other = (self.columns[side].frame for side in (layout.probe.side, layout.build.side))
        with self.metrics.timing("gather"):
            output = sink.backend.fetch(build, keys, own, other, padded=padded)
        sides = layout.probe.side, layout.build.side
        return None if output is None else Emission(sink, output, sides, self.rows_per_batch, self.metrics)

    def _batches(
        self, side: Side, rows: RowMap, others: RowMap | None, exists: Mask | None = None, first: int = 0
    ) -> Iterator[Any]:
        def batch(start: int, length: int) -> Any:
            return self._batch(side, rows, others, exists, start, length)

        for begin in range(first, rows.length, self.rows_per_batch):
            most = min(self.rows_per_batch, rows.length - begin)
            for start, length in self._fitting(side, rows, others, begin, most):
                with self.metrics.timing("gather"):
                    batches = list(with_halving(start, length, batch, self.metrics))
                yield from batches

    def _batch(
        self, side: Side, rows: RowMap, others: RowMap | None, exists: Mask | None, start: int, length: int
    ) -> Any:
        """Make one batch: rows of one side by a map, beside rows of the other side by another map."""
        maps = {side: slice_map(rows, start, length)}
        if others is not None:
            maps[side.other] = slice_map(others, start, length)
        columns = {
            which: self.columns[which].gather(row_map, self.layout.side(which).output_schema)
            for which, row_map in maps.items()
        }
        return self.sink.assemble(columns, None if exists is None else exists.slice(start, length), length)

    def _fitting(
        self, side: Side, rows: RowMap, others: RowMap | None, start: int, length: int
    ) -> Iterator[tuple[int, int]]:
        """Split a range of rows so that no column of a batch exceeds its limit, however long single values are."""
        options = self.sink.options
        limit = min(options.max_column_bytes, _OVERSHOOT * options.batch_bytes)
        maps = [(side, rows)] + ([] if others is None else [(side.other, others)])

        def is_too_long(start: int, length: int) -> bool:
            return any(
                self.columns[which].longest_value * length > limit
                and self.columns[which].gathered_bytes(slice_map(row_map, start, length)) > limit
                for which, row_map in maps
            )

        return halved(start, length, is_too_long)
