"""Takes tables of other libraries that lie on the device as frames, and gives frames out as such tables.

No rows are copied: a column of a frame is a view of the same memory under its storage type
(:mod:`gpujoin.backends.cudf.storage`), and keeps the memory alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat
import pylibcudf as plc

from gpujoin.backends.cudf.arrowdevice import SchemaCapsule, StreamCapsule, TableCapsules
from gpujoin.backends.cudf.backend import CudfBackend
from gpujoin.backends.cudf.device import STREAM
from gpujoin.backends.cudf.frames import CudfFrame, upload
from gpujoin.backends.cudf.rowmaps import check_length
from gpujoin.backends.cudf.storage import storage_type
from gpujoin.errors import JoinSpecError
from gpujoin.model.types import is_list

if TYPE_CHECKING:
    from pylibcudf.column import SupportsCudaArrayInterface

_T = plc.types.TypeId
_PLAIN = {
    _T.BOOL8: pa.bool_(), _T.INT8: pa.int8(), _T.INT16: pa.int16(), _T.INT32: pa.int32(), _T.INT64: pa.int64(),
    _T.UINT8: pa.uint8(), _T.UINT16: pa.uint16(), _T.UINT32: pa.uint32(), _T.UINT64: pa.uint64(),
    _T.FLOAT32: pa.float32(), _T.FLOAT64: pa.float64(), _T.STRING: pa.string(), _T.TIMESTAMP_DAYS: pa.date32(),
    _T.TIMESTAMP_SECONDS: pa.timestamp("s"), _T.TIMESTAMP_MILLISECONDS: pa.timestamp("ms"),
    _T.TIMESTAMP_MICROSECONDS: pa.timestamp("us"), _T.TIMESTAMP_NANOSECONDS: pa.timestamp("ns"),
    _T.DURATION_SECONDS: pa.duration("s"), _T.DURATION_MILLISECONDS: pa.duration("ms"),
    _T.DURATION_MICROSECONDS: pa.duration("us"), _T.DURATION_NANOSECONDS: pa.duration("ns"),
}  # fmt: skip
_KINDS = {dtype: kind for kind, dtype in _PLAIN.items()}
_DECIMALS = {_T.DECIMAL32: (pa.decimal32, 9), _T.DECIMAL64: (pa.decimal64, 18), _T.DECIMAL128: (pa.decimal128, 38)}
_DECIMAL_KINDS = {32: _T.DECIMAL32, 64: _T.DECIMAL64, 128: _T.DECIMAL128}


def adopt(
    backend: CudfBackend, data: plc.Table | plc.Column | SupportsCudaArrayInterface | TableCapsules | StreamCapsule
) -> tuple[CudfFrame, pa.Schema]:
    """View a table or column of pylibcudf, an array, or a table with the Arrow interface, as a frame with its schema.

    Columns of pylibcudf, which have no names, are called by their position.
    """
    with backend.device.entered():
        if isinstance(data, TableCapsules | StreamCapsule):
            return import_arrow(data)
        if not isinstance(data, plc.Table):
            column = data if isinstance(data, plc.Column) else plc.Column.from_cuda_array_interface(data, stream=STREAM)
            data = plc.Table([column])
        frame = view_table(data)
        return frame, pa.schema([(str(i), dtype) for i, dtype in enumerate(frame.types)])


def view_table(table: plc.Table) -> CudfFrame:
    """View a table of pylibcudf as a frame.

    Raises ``JoinSpecError`` if a column has a type that frames do not hold.
    """
    check_length(table.num_rows())
    types = []
    for position, column in enumerate(table.columns()):
        dtype = arrow_type(column)
        if dtype is None or storage_type(dtype) is None:
            raise JoinSpecError(
                f"column {position} of a table on the device is of type {column.type().id().name}, which is not joined"
                " there; leave it out, or decode it"
            )
        types.append(dtype)
    columns = [_as(_aligned(column), dtype, stored=True) for column, dtype in zip(table.columns(), types, strict=True)]
    return CudfFrame(plc.Table(columns, num_rows=table.num_rows()), tuple(types))


def _aligned(column: plc.Column) -> plc.Column:
    """Copy a column if its values are not aligned to their width.

    Arrow recommends aligned buffers and does not demand them; an unaligned read of a kernel loses the device.
    """
    return column if _is_aligned(column) else column.copy(stream=STREAM)


def _is_aligned(column: plc.Column) -> bool:
    data, kind = column.data(), column.type()
    width = plc.types.size_of(kind) if plc.traits.is_fixed_width(kind) else 1
    return (data is None or data.ptr % width == 0) and all(map(_is_aligned, column.children()))


def import_arrow(capsules: TableCapsules | StreamCapsule) -> tuple[CudfFrame, pa.Schema]:
    """View a table with the Arrow C device interface as a frame; several parts of a stream are put together."""
    parts = [capsules] if isinstance(capsules, TableCapsules) else list(capsules.parts())
    fields = pa.schema(capsules.description())
    if not parts:  # of a stream
        return upload(fields.empty_table()), fields
    tables = [plc.Table.from_arrow(part, stream=STREAM) for part in parts]
    frame = view_table(tables[0] if len(tables) == 1 else plc.concatenate.concatenate(tables, stream=STREAM))
    types = [_zoned(dtype, field.type) for dtype, field in zip(frame.types, fields, strict=True)]
    schema = pa.schema([(field.name, dtype) for field, dtype in zip(fields, types, strict=True)])
    return CudfFrame(frame.table, tuple(types)), schema


def _zoned(dtype: pa.DataType, named: pa.DataType) -> pa.DataType:
    """Type of a column, with the time zone that libcudf does not know."""
    return named if pat.is_timestamp(named) and pat.is_timestamp(dtype) and named.unit == dtype.unit else dtype


def to_library_table(frame: CudfFrame) -> plc.Table:
    """View a frame as a table of pylibcudf, with its own types.

    Raises ``JoinSpecError`` if libcudf has no type for the values of a column.
    """
    columns = []
    for position, (column, dtype) in enumerate(zip(frame.table.columns(), frame.types, strict=True)):
        if not _has_kind(dtype):
            raise JoinSpecError(f"column {position} is of type {dtype}, for which libcudf has no type; use to_arrow()")
        columns.append(_as(column, dtype, stored=False))
    return plc.Table(columns, num_rows=frame.rows)


def export_arrow(frame: CudfFrame, schema: pa.Schema) -> tuple[Any, Any]:
    """Give a frame out through the Arrow C device interface, under the names and time zones of a schema."""
    table: Any = to_library_table(frame)  # whose stub does not tell the interface
    capsule, array = table.__arrow_c_device_array__()
    fields = [
        field.with_name(named.name).with_type(named.type if pat.is_timestamp(named.type) else field.type)
        for field, named in zip(pa.schema(SchemaCapsule(capsule)), schema, strict=True)
    ]
    return pa.schema(fields).__arrow_c_schema__(), array


def arrow_type(column: plc.Column) -> pa.DataType | None:
    """Arrow type of a column; ``None`` for columns that are not adopted."""
    dtype = column.type()
    kind = dtype.id()
    if kind in _DECIMALS:
        make, digits = _DECIMALS[kind]
        return make(digits, -dtype.scale())
    if kind == _T.LIST:
        item = arrow_type(column.child(1))
        return None if item is None else pa.list_(item)
    if kind == _T.STRUCT:
        fields = [arrow_type(child) for child in column.children()]
        return pa.struct([(str(i), f) for i, f in enumerate(fields)]) if fields and None not in fields else None
    return _PLAIN.get(kind)


def _as(column: plc.Column, dtype: pa.DataType, *, stored: bool) -> plc.Column:
    """View a column as its storage type, or as libcudf's type of its values."""
    children = column.children()
    if is_list(dtype):
        children = [children[0], _as(children[1], dtype.value_type, stored=stored)]
    elif pat.is_struct(dtype):
        children = [_as(child, f.type, stored=stored) for child, f in zip(children, dtype, strict=True)]
    kind = _storage_kind(dtype, column.type()) if stored else _value_kind(dtype, column.type())
    if kind == column.type() and not column.num_children():
        return column
    return plc.Column(
        kind, column.size(), column.data(), column.null_mask(), column.null_count(), column.offset(), children
    )


def _storage_kind(dtype: pa.DataType, own: plc.DataType) -> plc.DataType:
    if pat.is_decimal128(dtype):
        return plc.DataType(_T.DECIMAL128, 0)
    is_own = pat.is_nested(dtype) or own.id() == _T.STRING
    return own if is_own else plc.DataType(_KINDS[storage_type(dtype)])


def _value_kind(dtype: pa.DataType, own: plc.DataType) -> plc.DataType:
    if pat.is_decimal(dtype):
        return plc.DataType(_DECIMAL_KINDS[dtype.bit_width], -dtype.scale)
    if pat.is_timestamp(dtype):
        dtype = pa.timestamp(dtype.unit)
    return own if pat.is_nested(dtype) or own.id() == _T.STRING else plc.DataType(_KINDS[dtype])


def _has_kind(dtype: pa.DataType) -> bool:
    if is_list(dtype):
        return _has_kind(dtype.value_type)
    if pat.is_struct(dtype):
        return all(_has_kind(f.type) for f in dtype)
    if pat.is_decimal(dtype):
        return bool(dtype.bit_width <= 128)
    return pat.is_timestamp(dtype) or pat.is_large_string(dtype) or dtype in _KINDS
