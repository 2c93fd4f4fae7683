"""Runs a pipeline on a device, and on the host what the device does not compute or hold.

A piece is on the device or on the host. A node that the device computes exactly runs there, and its output stays there
for the next node. A node that it does not compute, and a piece that does not fit, go to the host through Arrow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from gpujoin.config import Options
from gpujoin.engine.join.build import BuiltSide
from gpujoin.engine.join.checks import check_product
from gpujoin.engine.join.devicerows import ResidentRows
from gpujoin.engine.join.layout import JoinLayout
from gpujoin.engine.join.probe import Run, join_morsel, rest_of_build
from gpujoin.engine.join.sinks import DeviceSink
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.pipeline.aggregation import Aggregation
from gpujoin.engine.pipeline.resident import ResidentBuild, ResidentTables
from gpujoin.engine.spill import SpillStore
from gpujoin.errors import DeviceMemoryError, DeviceValueError
from gpujoin.logs import log
from gpujoin.model.backend import AnyBackend
from gpujoin.model.expressions import Expression
from gpujoin.model.files import ValueRanges
from gpujoin.model.jointype import Side
from gpujoin.model.pipeline import (
    AnyDevicePipeline,
    AnyPipelineBackend,
    Lookup,
    PipelineMetrics,
)
from gpujoin.model.relations import (
    ExchangeSource,
    FileSlice,
    Join,
    PartialAggregate,
    Scan,
    SortKey,
    Window,
)

_Inner: TypeAlias = Any
_T = TypeVar("_T")

_MOST_COPIED = 1 << 16
"""Values of a column that are copied from the device to learn their ranges: half a megabyte of 64-bit numbers."""


@dataclass(frozen=True)
class MixedPiece:
    """Rows on the device or on the host."""

    schema: pa.Schema
    frame: _Inner | None = None
    """Rows on the device; ``None``: they are on the host."""
    piece: _Inner | None = None
    """Rows on the host; ``None`` where ``frame`` is not."""


class MixedPipeline:
    """Runs nodes as a :class:`~gpujoin.model.pipeline.PipelineBackend` does, on the device or on the host."""

    def __init__(
        self, device: AnyDevicePipeline, host: AnyPipelineBackend, options: Options,
        metrics: PipelineMetrics, join_metrics: JoinMetrics, piece_bytes: int, residents: ResidentTables | None = None,
    ) -> None:  # fmt: skip
        self.device = device
        self.host = host
        self.options = options
        self.metrics = metrics
        self.join_metrics = join_metrics
        self.piece_bytes = piece_bytes
        self.residents = residents
        """Tables that stay on the device from run to run; ``None``: none do."""

    @property
    def faults(self) -> tuple[type[BaseException], ...]:
        """Exceptions of the host's library that are no ``Exception``."""
        return self.host.faults

    @property
    def joins(self) -> AnyBackend:
        """Backend of joins whose rows go through Arrow."""
        return self.device.backend

    def budget(self, host_budget: int) -> int:
        """Bytes that a build side may take."""
        return self.device.budget(host_budget)

    # -- between device and host ---------------------------------------------------------------------------

    def to_host(self, piece: MixedPiece) -> _Inner:
        """Move a piece to the host."""
        if piece.frame is None:
            return piece.piece
        batch = self.device.give_out(piece.frame, piece.schema)
        return self.host.take_in([batch], piece.schema, self.metrics)

    def to_device(self, piece: MixedPiece) -> _Inner | None:
        """Move a piece to the device; ``None`` if it cannot be there."""
        if piece.frame is not None:
            return piece.frame
        if not self.device.carries(piece.schema):
            return None
        collected = self.host.collect(piece.piece)
        rows, size = self.host.size(collected)
        batches = self.host.give_out(collected, piece.schema, max(1, size))
        return self._uploaded(pa.Table.from_batches(batches, piece.schema), piece.schema, rows)

    def _uploaded(self, table: pa.Table, schema: pa.Schema, rows: int) -> _Inner | None:
        rows_table = table if len(schema) else pa.table({"rows": pa.nulls(rows)}).select([])
        return self.on_device(lambda: self.device.take_in(rows_table, schema))

    def on_device(self, work: Callable[[], _T]) -> _T | None:
        """Do work on the device; ``None`` if it does not fit there, or has values that are left to the CPU.

        Such values are texts that are no UTF-8.
        """
        try:
            return work()
        except DeviceMemoryError as problem:
            self.metrics.count_device_retry(problem)
        except DeviceValueError as problem:
            log.debug("a piece is computed on the CPU: %s", problem)
        return None

    def _step(
        self, piece: MixedPiece, schema: pa.Schema, work: Callable[[Any, _Inner], _Inner], *, on_device: bool
    ) -> MixedPiece:
        """Do work on a piece: on the device, if it computes that and the rows fit, else on the host."""
        frame = self.to_device(piece) if on_device else None
        result = None if frame is None else self.on_device(lambda: work(self.device, frame))
        if result is not None:
            self.metrics.device_steps += 1
            return MixedPiece(schema, frame=result)
        self.metrics.host_steps += 1
        return MixedPiece(schema, piece=work(self.host, self.to_host(piece)))

    # -- sources -------------------------------------------------------------------------------------------

    def scan(self, node: Scan, piece_bytes: int, metrics: PipelineMetrics) -> Iterator[MixedPiece]:
        """Read files, on the device if it can."""
        if self.device.obstacles(node):
            for piece in self.host.scan(node, piece_bytes, metrics):
                self.metrics.host_steps += 1
                yield MixedPiece(node.schema, piece=piece)
            return
        for part in self.device.scan(node, piece_bytes, metrics):
            if not isinstance(part, FileSlice):
                self.metrics.device_steps += 1
                yield MixedPiece(node.schema, frame=part)
                continue
            counted = PipelineMetrics()
            for piece in self.host.scan(dataclasses.replace(node, slices=(part,)), piece_bytes, counted):
                self.metrics.host_steps += 1
                yield MixedPiece(node.schema, piece=piece)
            metrics.scanned_rows += counted.scanned_rows
            metrics.evaluated += counted.evaluated

    def take_in(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema, metrics: PipelineMetrics) -> MixedPiece:
        """Convert Arrow batches to a piece."""
        frame = None
        if self.device.carries(schema):
            table = pa.Table.from_batches(batches) if batches else schema.empty_table()
            frame = self._uploaded(table, schema, sum(batch.num_rows for batch in batches))
        return MixedPiece(schema, frame, None if frame is not None else self.host.take_in(batches, schema, metrics))

    def give_out(self, piece: MixedPiece, schema: pa.Schema, batch_bytes: int) -> Iterator[pa.RecordBatch]:
        """Convert a piece to batches of exactly a schema."""
        return self.host.give_out(self.to_host(piece), schema, batch_bytes)

    # -- nodes ---------------------------------------------------------------------------------------------

    def filter(self, piece: MixedPiece, condition: Expression) -> MixedPiece:
        """Keep the rows for which a condition is true."""
        possible = self.device.computes([condition])
        return self._step(piece, piece.schema, lambda on, rows: on.filter(rows, condition), on_device=possible)

    def project(self, piece: MixedPiece, expressions: Sequence[Expression]) -> MixedPiece:
        """Compute one column for each expression."""
        schema = pa.schema([(f"c{i}", node.type) for i, node in enumerate(expressions)])
        possible = self.device.computes(expressions)
        return self._step(piece, schema, lambda on, rows: on.project(rows, expressions), on_device=possible)

    def collect(self, piece: MixedPiece) -> MixedPiece:
        """Run the query of a piece that is not computed yet."""
        if piece.frame is not None:
            return piece
        return dataclasses.replace(piece, piece=self.host.collect(piece.piece))

    def size(self, piece: MixedPiece) -> tuple[int, int]:
        """Rows and bytes of a collected piece."""
        if piece.frame is not None:
            return self.device.size(piece.frame)
        return self.host.size(piece.piece)

    def concat(self, pieces: Sequence[MixedPiece], schema: pa.Schema, metrics: PipelineMetrics) -> MixedPiece:
        """Put pieces together, collected."""
        if not pieces:
            return self.take_in((), schema, metrics)
        frames = [piece.frame for piece in pieces if piece.frame is not None]
        if len(frames) == len(pieces):
            frame = pieces[0].frame if len(pieces) == 1 else self.on_device(lambda: self.device.concat(frames))
            if frame is not None:
                return pieces[0] if len(pieces) == 1 else MixedPiece(schema, frame=frame)
        return MixedPiece(schema, piece=self.host.concat([self.to_host(piece) for piece in pieces], schema, metrics))

    def window(self, piece: MixedPiece, node: Window) -> MixedPiece:
        """Compute window functions."""
        possible = not self.device.obstacles(node)
        return self._step(piece, node.schema, lambda on, rows: on.window(rows, node), on_device=possible)

    def divide(self, piece: MixedPiece, columns: Sequence[int], division: int) -> list[MixedPiece]:
        """Divide a piece by the hash of columns, on the host."""
        rows = self.host.collect(self.to_host(piece))
        return [MixedPiece(piece.schema, piece=part) for part in self.host.divide(rows, columns, division)]

    def top(self, piece: MixedPiece, order: Sequence[SortKey], count: int) -> MixedPiece:
        """The first rows in an order, or any, collected."""
        keys = [key.expression for key in order]
        possible = self.device.computes(keys) if keys else piece.frame is not None
        return self._step(piece, piece.schema, lambda on, rows: on.top(rows, order, count), on_device=possible)

    # -- joins ---------------------------------------------------------------------------------------------

    def lookup(self, node: Join, build: MixedPiece) -> Lookup[MixedPiece] | None:
        """Prepare a join of frames, or within the host's query; ``None``: the join goes through Arrow."""
        if self.device.obstacles(node):
            inner = self.host.lookup(node, self.to_host(build))
            return None if inner is None else _HostLookup(self, node, inner)
        frame = self.to_device(build)
        return None if frame is None else self.on_device(lambda: self._device_lookup(node, build, frame))

    def _device_lookup(self, node: Join, build: MixedPiece, frame: _Inner) -> _DeviceLookup | None:
        built = self._built(node, build, frame)
        return None if built is None else _DeviceLookup(self, node, Run.start(built, self.join_metrics))

    def _built(self, node: Join, build: MixedPiece, frame: _Inner) -> BuiltSide | None:
        """The built side of a join of frames, kept with its rows if these are; ``None`` if ranges need the host.

        Raises ``DeviceMemoryError`` if it does not fit.
        """
        table = None if self.residents is None else self.residents.of(build)
        name = None if table is None else _join_name(node, self.options)
        if table is not None and name in table.built:
            return table.built[name].side
        layout = JoinLayout.from_spec(node.spec, node.left.schema, node.right.schema, node.build_side)
        sink = DeviceSink.for_frames(layout, self.device, self.options, self.piece_bytes)
        built = BuiltSide(sink, ResidentRows(self.device, layout.build.schema, frame), self.join_metrics)
        if sink.layout is not layout and (built.build is None or not built.build.unique):
            return None
        self.join_metrics.build_rows += built.num_rows
        if self.residents is not None and table is not None:
            table.built[name] = ResidentBuild.from_built(built)
            self.residents.fit()
        return built

    def heaviest(self, piece: MixedPiece, keys: Sequence[int]) -> int:  # noqa: ARG002
        """0: build sides are not aggregated first, since a device makes pairs fast."""
        return 0

    def value_ranges(self, piece: MixedPiece, column: int, most: int) -> ValueRanges | None:
        """Ranges of a column's values. Many values on the device have none: they would have to be copied."""
        table = None if self.residents is None else self.residents.of(piece)
        if table is None:
            return self._value_ranges(piece, column, most)
        if (column, most) not in table.ranges:
            table.ranges[column, most] = self._value_ranges(piece, column, most)
        return table.ranges[column, most]

    def _value_ranges(self, piece: MixedPiece, column: int, most: int) -> ValueRanges | None:
        if piece.frame is not None:
            if self.device.size(piece.frame)[0] > _MOST_COPIED:
                return None
            schema = pa.schema([piece.schema.field(column)])
            piece, column = MixedPiece(schema, frame=self.device.select(piece.frame, [column])), 0
        return self.host.value_ranges(self.to_host(piece), column, most)

    def proves(self, expressions: Sequence[Expression], pieces: Sequence[MixedPiece]) -> bool:  # noqa: ARG002
        """False: bounds of values on the device are not known."""
        return False

    def join_schema(self, node: Join, side: Side, *, values: bool) -> pa.Schema:
        """Layout of one side's rows for the gather-map engine."""
        return self.host.join_schema(node, side, values=values)

    def to_join(self, piece: MixedPiece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Rows for the gather-map engine, in that layout."""
        return self.host.to_join(self.to_host(piece), schema)

    def from_join(
        self, batches: Iterable[pa.RecordBatch], node: Join, sides: dict[Side, MixedPiece | None],
        metrics: PipelineMetrics,
    ) -> Iterator[MixedPiece]:  # fmt: skip
        """Rows from the gather-map engine."""
        host_pieces = {
            side: None if piece is None or piece.piece is None else piece.piece for side, piece in sides.items()
        }
        for piece in self.host.from_join(batches, node, host_pieces, metrics):
            self.metrics.host_steps += 1
            yield MixedPiece(node.schema, piece=piece)


def _join_name(node: Join, options: Options) -> Hashable:
    """What the built side of a join over given rows is kept under."""
    left, right = (ExchangeSource(0, node.side(side).schema) for side in Side)
    return dataclasses.replace(node, left=left, right=right), options


class MixedAggregation:
    """A partial aggregation on the device. Rows that do not fit there are aggregated on the host, separately.

    There is no second aggregation on the host where each group must be returned once, or where there is one group
    only.
    """

    def __init__(
        self, mixed: MixedPipeline, node: PartialAggregate, memory_budget: int,
        new_store: Callable[[], SpillStore],
    ) -> None:  # fmt: skip
        self._mixed = mixed
        self._node = node
        self._alone = node.final or not node.keys
        self._host_budget = memory_budget
        self._new_store = new_store
        device = mixed.device
        possible = not device.obstacles(node) and device.carries(node.child.schema)
        self._on_device: Aggregation[Any] | None = None
        if possible:
            self._on_device = Aggregation(
                device.aggregate(node), node, device.budget(memory_budget), mixed.metrics, new_store
            )

    @cached_property
    def _on_host(self) -> Aggregation[Any]:
        host, metrics = self._mixed.host, self._mixed.metrics
        return Aggregation(host.aggregate(self._node, metrics), self._node, self._host_budget, metrics, self._new_store)

    def add(self, piece: MixedPiece) -> Iterator[MixedPiece]:
        """Aggregate rows; return groups if there are too many to hold.

        Raises ``DeviceMemoryError`` if the rows do not fit, and cannot be aggregated separately; ``DeviceValueError``
        likewise if the device does not compute the arguments of these rows.
        """
        mixed, schema = self._mixed, self._node.schema
        if self._on_device is not None and self._take_on_device(self._on_device, piece):
            mixed.metrics.device_steps += 1
            for groups in self._on_device.relieve():
                yield MixedPiece(schema, frame=groups)
            return
        mixed.metrics.host_steps += 1
        yield from self._of_host(self._on_host.add(mixed.to_host(piece)))

    def _take_on_device(self, device: Aggregation[Any], piece: MixedPiece) -> bool:
        """Aggregate rows on the device; whether that succeeded."""
        frame = self._mixed.to_device(piece)

        def take() -> bool:
            if frame is None:
                raise DeviceMemoryError("rows to aggregate do not fit the GPU; use spark.gpujoin.backend=cpu")
            device.take(frame)
            return True

        return take() if self._alone else self._mixed.on_device(take) is True

    def finish(self) -> Iterator[MixedPiece]:
        """Return the groups that are held."""
        if self._on_device is not None:
            for groups in self._on_device.finish():
                yield MixedPiece(self._node.schema, frame=groups)
        if self._on_device is None or "_on_host" in vars(self):
            yield from self._of_host(self._on_host.finish())

    def _of_host(self, groups: Iterator[Any]) -> Iterator[MixedPiece]:
        for piece in groups:
            yield MixedPiece(self._node.schema, piece=piece)


@dataclass(frozen=True)
class _HostLookup:
    """A join within the query of the host's pipeline."""

    mixed: MixedPipeline
    node: Join
    inner: Lookup[Any]

    def join(self, piece: MixedPiece) -> Iterator[MixedPiece]:
        """Join rows of the stream side."""
        self.mixed.metrics.host_steps += 1
        for joined in self.inner.join(self.mixed.to_host(piece)):
            yield MixedPiece(self.node.schema, piece=joined)

    def finish(self) -> Iterator[MixedPiece]:
        """Rows that are returned only after the stream side has ended."""
        for joined in self.inner.finish():
            yield MixedPiece(self.node.schema, piece=joined)


@dataclass
class _DeviceLookup:
    """A join of frames. What does not fit the device is joined on the host, in the same run."""

    mixed: MixedPipeline
    node: Join
    run: Run
    probe_rows: int = 0
    """Rows of the stream side so far."""

    def join(self, piece: MixedPiece) -> Iterator[MixedPiece]:
        """Join rows of the stream side."""
        mixed, run = self.mixed, self.run
        frame = mixed.to_device(piece)
        rows = mixed.size(mixed.collect(piece))[0]
        mixed.join_metrics.probe_rows += rows
        self.probe_rows += rows
        check_product(run.built.layout, mixed.options, run.built.num_rows, self.probe_rows)
        if frame is not None:
            mixed.metrics.device_joins += 1
            yield from self._mixed_pieces(
                join_morsel(run, ResidentRows(mixed.device, run.built.layout.probe.schema, frame))
            )
            return
        cpu = run.on_cpu()
        for batch in mixed.host.give_out(piece.piece, piece.schema, mixed.piece_bytes):
            yield from self._mixed_pieces(join_morsel(cpu, batch))

    def finish(self) -> Iterator[MixedPiece]:
        """Build rows that are returned only after the stream side has ended."""
        return self._mixed_pieces(rest_of_build(self.run))

    def _mixed_pieces(self, output: Iterator[Any]) -> Iterator[MixedPiece]:
        mixed, schema = self.mixed, self.node.schema
        for rows in output:
            if isinstance(rows, pa.RecordBatch):
                mixed.metrics.host_steps += 1
                yield MixedPiece(schema, piece=mixed.host.take_in([rows], schema, mixed.metrics))
            else:
                mixed.metrics.device_steps += 1
                yield MixedPiece(schema, frame=rows)
