"""The pipeline backend of a GPU, whose pieces are frames on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic

import pyarrow as pa

from gpujoin.backends.cudf.pipeline import resident
from gpujoin.backends.cudf.pipeline import scan as parquet
from gpujoin.backends.cudf.pipeline.aggregate import FrameAggregation
from gpujoin.backends.cudf.pipeline.asof import coded_as_of
from gpujoin.backends.cudf.pipeline.columns import Columns, Frame
from gpujoin.backends.cudf.pipeline.compute import computed, filtered, key_frame, rows_at, sortable
from gpujoin.backends.cudf.pipeline.offers import carried, node_obstacles
from gpujoin.backends.cudf.pipeline.ranges import FrameRanges, can_search
from gpujoin.backends.cudf.pipeline.windows import window
from gpujoin.functions.signatures import type_of
from gpujoin.functions.support import can_carry, is_device_supported
from gpujoin.functions.values import Value
from gpujoin.model.backend import AnyDeviceBackend, CodedRows
from gpujoin.model.expressions import Expression
from gpujoin.model.maps import RowMap, Span
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.ranges import Axis
from gpujoin.model.reasons import Reason
from gpujoin.model.relations import FileSlice, PartialAggregate, Relation, Scan, SortKey, Window
from gpujoin.model.types import logical

_MEMORY_SHARE = 4
"""A build side, and the states of an aggregation, may each take a quarter of the device's memory."""


class DevicePipeline(Generic[Frame]):
    """Runs relational nodes over frames, in ``memory`` bytes of the device."""

    def __init__(
        self, columns: Columns[Frame], entered: Callable[[], AbstractContextManager[None]], memory: int
    ) -> None:
        self.columns = columns
        self.entered = entered
        self._memory = memory

    @property
    def backend(self) -> AnyDeviceBackend:
        return self.columns.backend

    def budget(self, host_budget: int) -> int:
        del host_budget
        return self._memory // _MEMORY_SHARE

    # -- what it can do ------------------------------------------------------------------------------------

    def obstacles(self, node: Relation) -> tuple[Reason, ...]:
        return node_obstacles(node)

    def carries(self, schema: pa.Schema) -> bool:
        return all(can_carry(field.type) for field in schema)

    def computes(self, expressions: Sequence[Expression]) -> bool:
        return all(is_device_supported(node) and can_carry(type_of(node)) for node in expressions)

    # -- in and out ----------------------------------------------------------------------------------------

    def scan(self, node: Scan, piece_bytes: int, metrics: PipelineMetrics) -> Iterator[Frame | FileSlice]:
        source = parquet.read(self.columns, node, metrics, piece_bytes)
        while True:
            with self.entered():
                piece = next(source, None)
            if piece is None:
                return
            yield piece

    def take_in(self, table: pa.Table, schema: pa.Schema) -> Frame:
        arrays = [_carried_array(column, field.type) for column, field in zip(table.columns, schema, strict=True)]
        if not arrays:
            with self.entered():
                return self.columns.frame([], [], table.num_rows)
        names = [str(i) for i in range(len(arrays))]
        frame = self.backend.from_arrow(pa.table(arrays, names=names))
        with self.entered():
            return self.columns.relabelled(frame, [carried(field.type) for field in schema])

    def give_out(self, frame: Frame, schema: pa.Schema) -> pa.RecordBatch:
        types = self.columns.types(frame)
        host_schema = pa.schema([(str(i), _large(dtype)) for i, dtype in enumerate(types)])
        batch = self.backend.to_arrow(frame, host_schema)
        arrays = [
            array if array.type in (field.type, _large(field.type)) else array.cast(logical(field.type))
            for array, field in zip(batch.columns, schema, strict=True)
        ]
        if not arrays:
            return batch
        return pa.RecordBatch.from_arrays(arrays, names=[field.name for field in schema])

    # -- nodes ---------------------------------------------------------------------------------------------

    def filter(self, frame: Frame, condition: Expression) -> Frame:
        with self.entered():
            return filtered(self.columns, frame, condition)

    def project(self, frame: Frame, expressions: Sequence[Expression]) -> Frame:
        with self.entered():
            return computed(self.columns, frame, expressions)

    def size(self, frame: Frame) -> tuple[int, int]:
        rows = self.backend.frame_rows(frame)
        return rows, max(self.backend.frame_bytes(frame), rows if not self.columns.types(frame) else 0)

    def concat(self, frames: Sequence[Frame]) -> Frame:
        with self.entered():
            return self.columns.concat(frames)

    def aggregate(self, node: PartialAggregate) -> FrameAggregation[Frame]:
        return FrameAggregation(self.columns, node, self.entered)

    def window(self, frame: Frame, node: Window) -> Frame:
        with self.entered():
            return window(self.columns, node, frame)

    def top(self, frame: Frame, order: Sequence[SortKey], count: int) -> Frame:
        if not order:
            return self.slice(frame, 0, min(count, self.backend.frame_rows(frame)))
        with self.entered():
            columns = self.columns
            keys = computed(columns, frame, [key.expression for key in order])
            by = columns.hstack([sortable(columns, columns.select(keys, (at,))) for at in range(len(order))])
            index = columns.order(by, [key.descending for key in order], [key.nulls_first for key in order])
            return rows_at(columns, frame, index[:count])

    def slice(self, frame: Frame, start: int, length: int) -> Frame:
        return self.backend.gather(frame, Span(start, length))

    # -- joins ---------------------------------------------------------------------------------------------

    def keys(self, frame: Frame, types: Sequence[pa.DataType], null_safe: Sequence[bool]) -> Frame:
        with self.entered():
            return key_frame(self.columns, frame, types, null_safe)

    # These two only make views, so that there is no work of the device to wait for.

    def select(self, frame: Frame, at: Sequence[int]) -> Frame:
        return self.columns.select(frame, at)

    def hstack(self, frames: Sequence[Frame]) -> Frame:
        return self.columns.hstack(frames)

    def mask_column(self, mask: Any, rows: int) -> Frame:
        with self.entered():
            return self.columns.frame([Value(pa.bool_(), mask)], (pa.bool_(),), rows)

    # -- tables that stay on the device --------------------------------------------------------------------

    def takes_keys(self, left: pa.DataType, right: pa.DataType) -> bool:
        return resident.same_codes(left, right)

    def row_numbers(self, rows: int) -> Frame:
        with self.entered():
            return resident.row_numbers(self.columns, rows)

    def positions(self, frame: Frame, at: int) -> Any:
        with self.entered():
            return resident.positions(self.columns, frame, at)

    def rows_by_nulls(self, keys: Frame, null_safe: Sequence[bool], but: Any | None) -> dict[int, RowMap]:
        with self.entered():
            return resident.rows_by_nulls(self.columns, keys, null_safe, but)

    def coalesce(self, frame: Frame, first: int, second: int, dtype: pa.DataType) -> Frame:
        with self.entered():
            return resident.coalesced(self.columns, frame, first, second, dtype)

    def searches(self, axes: Sequence[Axis]) -> bool:
        return can_search(axes)

    def ranges(
        self, frame: Frame, axes: Sequence[Axis], key_types: Sequence[pa.DataType], null_safe: Sequence[bool]
    ) -> CodedRows[Frame]:
        with self.entered():
            return FrameRanges.coded(self.columns, self.entered, frame, axes, key_types, null_safe)

    def as_of(self, frame: Frame, key_types: Sequence[pa.DataType], null_safe: Sequence[bool]) -> CodedRows[Frame]:
        with self.entered():
            return coded_as_of(self.columns, self.entered, frame, key_types, null_safe)


def _carried_array(column: pa.ChunkedArray, dtype: pa.DataType) -> pa.ChunkedArray:
    """Cast values to the type in which the device carries them."""
    if pa.types.is_dictionary(column.type) or pa.types.is_run_end_encoded(column.type):
        column = column.cast(column.type.value_type)
    target = carried(dtype)
    if column.type == target or column.type == _large(target):
        return column
    if pa.types.is_decimal(target) and column.type != logical(target):
        column = column.cast(logical(target))
    return column.cast(_large(target))


def _large(dtype: pa.DataType) -> pa.DataType:
    return {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(dtype, dtype)
