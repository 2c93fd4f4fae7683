"""Implements the column library of pipelines with pylibcudf. All calls of it are here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import cupy
import numpy as np
import pyarrow as pa
import pyarrow.types as pat
import pylibcudf as plc

from gpujoin.backends.cudf.arrays import Array, ArrayOps
from gpujoin.backends.cudf.backend import CudfBackend
from gpujoin.backends.cudf.device import STREAM, device_errors, is_out_of_memory
from gpujoin.backends.cudf.frames import (
    CudfFrame,
    as_array,
    as_column,
    decimal_words,
    from_field,
    null_row,
    retyped,
    validity,
)
from gpujoin.backends.cudf.lost import is_final
from gpujoin.backends.cudf.pipeline.columns import FilterTerm, Reduce, Reduced, Reduction
from gpujoin.backends.cudf.rowmaps import check_length
from gpujoin.backends.cudf.text import CudfText, FrameSource
from gpujoin.errors import DecodeError, GpuJoinError
from gpujoin.functions.device import Text
from gpujoin.functions.values import Value
from gpujoin.launch.rows import FieldColumn
from gpujoin.model.jointype import Side
from gpujoin.model.types import LONG_DIGITS, is_bytes, is_text

_T = plc.types.TypeId
_WIDE = plc.DataType(_T.DECIMAL128, 0)
_AGGREGATIONS: dict[Reduce, Callable[[], plc.aggregation.Aggregation]] = {
    Reduce.SUM: plc.aggregation.sum,
    Reduce.COUNT: lambda: plc.aggregation.count(plc.types.NullPolicy.EXCLUDE),
    Reduce.MIN: plc.aggregation.min,
    Reduce.MAX: plc.aggregation.max,
}
_OPERATORS = {
    "=": plc.expressions.ASTOperator.EQUAL,
    "<": plc.expressions.ASTOperator.LESS,
    "<=": plc.expressions.ASTOperator.LESS_EQUAL,
    ">": plc.expressions.ASTOperator.GREATER,
    ">=": plc.expressions.ASTOperator.GREATER_EQUAL,
}
_PLAIN = {
    _T.BOOL8: pa.bool_(), _T.INT8: pa.int8(), _T.INT16: pa.int16(), _T.INT32: pa.int32(), _T.INT64: pa.int64(),
    _T.FLOAT32: pa.float32(), _T.FLOAT64: pa.float64(),
}  # fmt: skip
_STAMPS = {
    _T.TIMESTAMP_MILLISECONDS: "ms", _T.TIMESTAMP_MICROSECONDS: "us", _T.TIMESTAMP_NANOSECONDS: "ns",
}  # fmt: skip
_NARROW = {_T.DECIMAL32: _T.INT32, _T.DECIMAL64: _T.INT64}


class CudfColumns:
    """Columns and tables of cuDF, for the relational nodes that run on a device.

    Methods are called inside ``backend.device.entered()``.
    """

    def __init__(self, backend: CudfBackend) -> None:
        self._backend = backend
        self._ops = backend.ops

    @property
    def ops(self) -> ArrayOps:
        return self._ops

    @property
    def backend(self) -> CudfBackend:
        return self._backend

    def memory_errors(self) -> AbstractContextManager[None]:
        return device_errors()

    def types(self, frame: CudfFrame) -> tuple[pa.DataType, ...]:
        return frame.types

    def source(self, frame: CudfFrame) -> FrameSource:
        return FrameSource({Side.LEFT: frame}, frame.rows)

    def select(self, frame: CudfFrame, positions: Sequence[int]) -> CudfFrame:
        columns = frame.table.columns()
        table = plc.Table([columns[i] for i in positions], num_rows=frame.rows)
        return CudfFrame(table, tuple(frame.types[i] for i in positions))

    def hstack(self, frames: Sequence[CudfFrame]) -> CudfFrame:
        columns = [column for frame in frames for column in frame.table.columns()]
        types = tuple(dtype for frame in frames for dtype in frame.types)
        return CudfFrame(plc.Table(columns, num_rows=frames[0].rows), types)

    def frame(self, columns: Sequence[Value | Text], types: Sequence[pa.DataType], rows: int) -> CudfFrame:
        if rows == 0 and types:
            return CudfFrame(plc.copying.slice(null_row(tuple(types)), [0, 0], stream=STREAM)[0], tuple(types))
        converted = [_column(value, rows) for value in columns]
        return CudfFrame(plc.Table(converted, num_rows=rows), tuple(types))

    def relabelled(self, frame: CudfFrame, types: Sequence[pa.DataType]) -> CudfFrame:
        return CudfFrame(frame.table, tuple(types))

    def null_safe(self, keys: CudfFrame, null_safe: Sequence[bool]) -> CudfFrame:
        return CudfFrame(keys.table, keys.types, null_safe=tuple(null_safe))

    def concat(self, frames: Sequence[CudfFrame]) -> CudfFrame:
        rows = sum(frame.rows for frame in frames)
        check_length(rows)
        if not frames[0].types:
            return CudfFrame(plc.Table([], num_rows=rows))
        filled = [frame for frame in frames if frame.rows] or list(frames[:1])
        if len(filled) == 1:
            return filled[0]
        table = plc.concatenate.concatenate([frame.table for frame in filled], stream=STREAM)
        return CudfFrame(table, frames[0].types)

    def order(self, frame: CudfFrame, descending: Sequence[bool], nulls_first: Sequence[bool]) -> Array:
        orders = [plc.types.Order.DESCENDING if down else plc.types.Order.ASCENDING for down in descending]
        # libcudf also reverses the position of nulls in a descending order.
        nulls = [
            plc.types.NullOrder.BEFORE if first != down else plc.types.NullOrder.AFTER
            for first, down in zip(nulls_first, descending, strict=True)
        ]
        return as_array(plc.sorting.stable_sorted_order(frame.table, orders, nulls, stream=STREAM))

    def codes(self, keys: CudfFrame) -> tuple[CudfFrame, Array]:
        distinct, codes = plc.transform.encode(keys.table, stream=STREAM)
        return CudfFrame(distinct, keys.types), as_array(codes)

    def grouped(self, keys: CudfFrame, reductions: Sequence[Reduction]) -> tuple[CudfFrame, list[Reduced]]:
        by = plc.groupby.GroupBy(keys.table, plc.types.NullPolicy.INCLUDE)
        requests = [
            plc.groupby.GroupByRequest(_plain_column(r.data, r.valid), [_AGGREGATIONS[r.kind]()]) for r in reductions
        ]
        group_keys, results = by.aggregate(requests, stream=STREAM)
        reduced = []
        for reduction, table in zip(reductions, results, strict=True):
            column = table.columns()[0]
            data = as_array(column)
            if reduction.kind is Reduce.COUNT:
                data = data.astype(cupy.int64)
            reduced.append(Reduced(data, validity(column)))
        return CudfFrame(group_keys, keys.types), reduced

    def partition(self, frame: CudfFrame, keys: int, parts: int) -> list[CudfFrame]:
        by = list(range(keys))
        ordered, starts = plc.partitioning.hash_partition(frame.table, by, parts, stream=STREAM)
        ends = [*starts[1:parts], frame.rows]
        bounds = [bound for pair in zip(starts[:parts], ends, strict=True) for bound in pair]
        return [CudfFrame(t, frame.types) for t in plc.copying.slice(ordered, bounds, stream=STREAM)]

    def read(
        self, path: str, names: Sequence[str], types: Sequence[pa.DataType], row_groups: Sequence[int],
        terms: Sequence[FilterTerm],
    ) -> CudfFrame:  # fmt: skip
        options = (
            plc.io.parquet.ParquetReaderOptions.builder(plc.io.types.SourceInfo([path]))
            .use_pandas_metadata(False)
            .use_arrow_schema(False)
            .build()
        )
        options.set_column_names(list(names))
        options.set_row_groups([list(row_groups)])
        # The options keep a C++ reference to the expression, not the Python object: it must live until all is read.
        predicate = _filter(terms) if terms else None
        if predicate is not None:
            options.set_filter(predicate)
        try:
            decoded = plc.io.parquet.read_parquet(options, stream=STREAM)
        except (RuntimeError, ValueError, OverflowError, OSError) as problem:
            if is_out_of_memory(problem) or is_final(problem):
                raise
            groups = f"{row_groups[0]} to {row_groups[-1]}"
            raise DecodeError(f"{path}: libcudf does not read row groups {groups}: {problem}") from problem
        columns = dict(zip(decoded.column_names(include_children=False), decoded.columns, strict=True))
        typed = [_taken_in(columns[name], dtype, path) for name, dtype in zip(names, types, strict=True)]
        return CudfFrame(
            plc.Table([column for column, _ in typed], num_rows=decoded.tbl.num_rows()),
            tuple(dtype for _, dtype in typed),
        )


def _column(value: Value | Text, rows: int) -> plc.Column:
    """Convert a computed value to a column; a single value is repeated."""
    if not isinstance(value, Value):
        return _text_column(value, rows)
    valid = None if value.valid is None else _repeated(value.valid, rows)
    if value.low is None:
        return _plain_column(_repeated(value.data, rows), valid)
    pairs = cupy.empty((rows, 2), dtype=cupy.int64)
    pairs[:, 0] = value.low.view(np.int64)
    pairs[:, 1] = value.data
    return from_field(FieldColumn(pairs, valid), _WIDE)


def _repeated(array: Array, rows: int) -> Array:
    return cupy.ascontiguousarray(cupy.broadcast_to(array, (rows,)))


def _plain_column(data: Array, valid: Array | None) -> plc.Column:
    column = as_column(data)
    return column if valid is None else from_field(FieldColumn(data, valid), column.type())


def _text_column(value: Text, rows: int) -> plc.Column:
    if not isinstance(value, CudfText):
        raise GpuJoinError(f"{type(value).__name__} is no text of this library")
    if value.content is not None:
        return CudfText(value.content, rows).column
    return plc.Column.all_null_like(null_row((pa.string(),)).columns()[0], rows, stream=STREAM)


def _taken_in(column: plc.Column, file_type: pa.DataType, path: str) -> tuple[plc.Column, pa.DataType]:
    """Convert a decoded column to a storage type. Also returns the type that this stands for.

    Raises ``DecodeError`` if it was not decoded to its file's type.
    """
    kind = column.type().id()
    if _PLAIN.get(kind) == file_type:
        return column, file_type
    if kind == _T.TIMESTAMP_DAYS and pat.is_date32(file_type):
        return retyped(column, plc.DataType(_T.INT32)), file_type
    if kind in _STAMPS and pat.is_timestamp(file_type) and _STAMPS[kind] == file_type.unit:
        return retyped(column, plc.DataType(_T.INT64)), file_type
    if kind == _T.STRING and (is_text(file_type) or is_bytes(file_type)):
        return column, pa.string() if is_text(file_type) else pa.binary()
    if pat.is_decimal(file_type) and kind in (_T.DECIMAL32, _T.DECIMAL64, _T.DECIMAL128):
        return _decimal(column, file_type)
    raise DecodeError(f"{path}: libcudf decodes a column of type {file_type} as {kind}")


def _decimal(column: plc.Column, file_type: pa.DataType) -> tuple[plc.Column, pa.DataType]:
    kind = column.type().id()
    narrow = pa.decimal64(file_type.precision, file_type.scale) if file_type.precision <= LONG_DIGITS else None
    if kind == _T.DECIMAL128:
        plain = retyped(column, _WIDE)
        if narrow is None:
            return plain, pa.decimal128(file_type.precision, file_type.scale)
        return _plain_column(decimal_words(plain)[0].view(np.int64), validity(plain)), narrow
    plain = retyped(column, plc.DataType(_NARROW[kind]))
    if narrow is None:
        data = as_array(plain).astype(cupy.int64)
        wide = Value(
            pa.decimal128(file_type.precision, file_type.scale),
            data >> 63,
            validity(plain),
            data.view(np.uint64),
        )
        return _column(wide, column.size()), wide.dtype
    if kind == _T.DECIMAL64:
        return plain, narrow
    return _plain_column(as_array(plain).astype(cupy.int64), validity(plain)), narrow


def _filter(terms: Sequence[FilterTerm]) -> plc.expressions.Expression:
    """Conjunction of comparisons."""
    parts = [
        plc.expressions.Operation(
            _OPERATORS[term.operator],
            plc.expressions.ColumnNameReference(term.column),
            plc.expressions.Literal(plc.Scalar.from_arrow(term.value, stream=STREAM)),
        )
        for term in terms
    ]
    whole: plc.expressions.Expression = parts[0]
    for part in parts[1:]:
        whole = plc.expressions.Operation(plc.expressions.ASTOperator.LOGICAL_AND, whole, part)
    return whole
