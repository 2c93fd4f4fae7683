"""Makes output batches from gather maps. Where memory is short, they are made in smaller pieces or on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpujoin.engine.join.derive import Rest
from gpujoin.engine.join.sinks import Mask, Sink, on_backend
from gpujoin.engine.join.uploads import Uploads
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.morsels import halved, with_halving
from gpujoin.errors import DeviceLostError, OutOfMemoryError
from gpujoin.model.backend import JoinOutput, Probe
from gpujoin.model.jointype import Side
from gpujoin.model.maps import AllNull, RowMap, Span, slice_map

if TYPE_CHECKING:
    from gpujoin.engine.join.probe import Run

_OVERSHOOT = 4
"""A batch is split for long values once it would exceed its target size by this factor."""


@dataclass(frozen=True)
class Emission:
    """Output rows that a backend makes without gather maps."""

    sink: Sink
    output: JoinOutput[Any]
    """The rows."""
    sides: tuple[Side, ...]
    """Sides that the rows have columns of, that of the probe first."""
    rows_per_batch: int
    """Output rows of a batch."""
    metrics: JoinMetrics

    def batches(self) -> Iterator[Any]:
        """The rows as batches of the join's output, and smaller ones while memory is short.

        Raises ``DeviceMemoryError`` if a single row does not fit; the batches before it are valid.
        """
        start, limit = 0, self.rows_per_batch
        while start < self.output.rows:
            length = min(limit, self.output.rows - start)
            try:
                with self.metrics.timing("gather"):
                    batch = self._batch(start, length)
            except OutOfMemoryError as problem:
                if limit == 1 or isinstance(problem, DeviceLostError):
                    raise
                self.metrics.retries += 1
                limit = max(1, limit // 2)
            else:
                start += length
                yield batch

    def _batch(self, start: int, length: int) -> Any:
        frames = zip(self.sides, self.output.slice(start, length), strict=False)
        columns = {
            side: self.sink.gathered(frame, Span(0, length), self.sink.layout.side(side)) for side, frame in frames
        }
        return self.sink.assemble(columns, None, length)


class Emitter:
    """Turns gather maps over some probe rows, in the form of the run's sink, and the build side into output batches."""

    def __init__(self, run: Run, rows: Any, uploads: Uploads | None = None) -> None:
        self.run = run
        self.rows = rows
        self.sink = run.built.sink
        layout = self.layout = self.sink.layout
        self.columns = {
            layout.build.side: run.built.output,
            layout.probe.side: self.sink.output(rows, layout.probe, uploads),
        }

    @cached_property
    def rows_per_batch(self) -> int:
        """Number of rows of a batch of the target size, by mean row size."""
        size = sum(columns.row_bytes for columns in self.columns.values())
        return max(self.sink.least_batch_rows, int(self.sink.batch_bytes / max(1.0, size)))

    def rest(self, side: Side, kind: Rest, matched: Mask) -> Iterator[Any]:
        """Rows of one side that the join returns besides pairs, given which of them have a match."""
        backend = self.sink.backend
        if kind is Rest.FLAGGED:
            rows = self.run.built.rows if side is self.layout.build.side else self.rows
            yield from self._batches(side, Span(0, self.sink.count(rows)), None, matched)
            return
        try:
            wanted = backend.selection(matched.on(backend), kind is Rest.MATCHED)
        except OutOfMemoryError as problem:
            self.run.metrics.count_fallback(problem)
            yield from self._on_cpu.rest(side, kind, Mask(matched.on_host, None))
            return
        padding = AllNull(wanted.length) if kind is Rest.UNMATCHED_PADDED else None
        yield from self._batches(side, wanted, padding)

    def pairs(self, probe: RowMap, build: RowMap) -> Iterator[Any]:
        """Output rows of pairs of probe and build rows."""
        return self._batches(self.layout.probe.side, probe, build)

    def at_once(self, probe: Probe[Any], *, pairs: bool, matched: bool) -> Emission | None:
        """Let the backend make the output of the probe rows without maps.

        ``pairs``: rows are returned with each of their matches. ``matched``: rows with a match are returned, not those
        without. ``None``: the output must be made by gather maps, as it always is where columns stay on the host or
        all probe rows are returned as they are. Raises ``DeviceMemoryError`` if the columns of the probed rows do not
        fit.
        """
        layout, backend = self.layout, self.sink.backend
        sides = (layout.probe.side, layout.build.side) if pairs else (layout.probe.side,)
        if not self.sink.kernels or not layout.output_schema or any(self.columns[side].on_host for side in sides):
            return None
        build = self.run.built.build
        if pairs and build is not None and build.unique and probe.pairs == self.sink.count(self.rows):
            return None
        own = self.columns[layout.probe.side].frame
        other = self.columns[layout.build.side].frame if pairs else None
        with self.run.metrics.timing("gather"):
            made = backend.emit(probe, own, other, matched=matched)
        return None if made is None else self._emission(made, sides)

    def by_keys(self, keys: Any, *, padded: bool) -> Emission | None:
        """Let the backend make the output of the probe rows with these keys without a probe of the unique build side.

        ``padded``: rows without a match are returned, with nulls. ``None``: the build side must be probed. Raises
        ``DeviceMemoryError`` if the columns of the probed rows do not fit.
        """
        layout, build = self.layout, self.run.built.build
        if not self.sink.fetches or build is None or any(columns.on_host for columns in self.columns.values()):
            return None
        own, other = (self.columns[side].frame for side in (layout.probe.side, layout.build.side))
        with self.run.metrics.timing("gather"):
            made = self.sink.backend.fetch(build, keys, own, other, padded=padded)
        return None if made is None else self._emission(made, (layout.probe.side, layout.build.side))

    def _emission(self, made: JoinOutput[Any], sides: tuple[Side, ...]) -> Emission:
        return Emission(self.sink, made, sides, self.rows_per_batch, self.run.metrics)

    def _batches(self, side: Side, rows: RowMap, others: RowMap | None, exists: Mask | None = None) -> Iterator[Any]:
        per_batch, metrics = self.rows_per_batch, self.run.metrics
        for first in range(0, rows.length, per_batch):
            for start, length in self._fitting(side, rows, others, first, min(per_batch, rows.length - first)):
                with metrics.timing("gather"):
                    batches = list(
                        with_halving(
                            start, length,
                            lambda s, n: self.emit(side, rows, others, exists, s, n),
                            lambda s, n: self._emit_on_cpu(side, rows, others, exists, s, n),
                            metrics,
                        )
                    )  # fmt: skip
                yield from batches

    def emit(
        self, side: Side, rows: RowMap, others: RowMap | None, exists: Mask | None, start: int, length: int
    ) -> Any:
        """Make one batch: rows of one side by a map, beside rows of the other side by another map."""
        maps = {side: slice_map(rows, start, length)}
        if others is not None:
            maps[side.other] = slice_map(others, start, length)
        columns = {
            which: self.columns[which].gather(wanted, self.layout.side(which).output_schema)
            for which, wanted in maps.items()
        }
        exists_column = None if exists is None else self.sink.exists_column(exists)[start : start + length]
        return self.sink.assemble(columns, exists_column, length)

    def _emit_on_cpu(
        self, side: Side, rows: RowMap, others: RowMap | None, exists: Mask | None, start: int, length: int
    ) -> Any:
        own = self._to_cpu(slice_map(rows, start, length))
        other = None if others is None else self._to_cpu(slice_map(others, start, length))
        emitter = self._on_cpu
        if exists is not None:
            exists = Mask(exists.on_host[start : start + length], None)
        return emitter.emit(side, own, other, exists, 0, length)

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
                and self._gathered_bytes(which, slice_map(wanted, start, length)) > limit
                for which, wanted in maps
            )

        return halved(start, length, is_too_long)

    def _gathered_bytes(self, side: Side, rows: RowMap) -> int:
        try:
            return self.columns[side].gathered_bytes(rows)
        except OutOfMemoryError as problem:
            self.run.metrics.count_fallback(problem)
            return self._on_cpu.columns[side].gathered_bytes(self._to_cpu(rows))

    @cached_property
    def _on_cpu(self) -> Emitter:
        return Emitter(self.run.on_cpu(), self.sink.to_host(self.rows, self.layout.probe))

    def _to_cpu(self, rows: RowMap) -> RowMap:
        return on_backend(rows, self.sink.backend, self._on_cpu.sink.backend)
