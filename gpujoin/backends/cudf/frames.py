"""Frames: tables on the device, with upload and download."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import cupy
import numpy as np
import pyarrow as pa
import pyarrow.types as pat
import pylibcudf as plc

from gpujoin.backends.cudf.arrays import Array, ArrayOps
from gpujoin.backends.cudf.device import STREAM, free_bytes
from gpujoin.backends.cudf.packing import Packing
from gpujoin.backends.cudf.rowmaps import check_length
from gpujoin.backends.cudf.storage import copyable, restore, storage_type, store
from gpujoin.errors import GpuJoinError
from gpujoin.launch.cuda import CudaDevice
from gpujoin.launch.rows import FieldColumn

_T = plc.types.TypeId
_NUMPY = {
    _T.BOOL8: np.dtype("bool"), _T.INT8: np.dtype("int8"), _T.INT16: np.dtype("int16"),
    _T.INT32: np.dtype("int32"), _T.INT64: np.dtype("int64"), _T.UINT8: np.dtype("uint8"),
    _T.UINT16: np.dtype("uint16"), _T.UINT32: np.dtype("uint32"), _T.UINT64: np.dtype("uint64"),
    _T.FLOAT32: np.dtype("float32"), _T.FLOAT64: np.dtype("float64"),
}  # fmt: skip


@dataclass(frozen=True)
class CudfFrame:
    """A table on the device."""

    table: plc.Table
    """Columns of the storage types (:mod:`gpujoin.backends.cudf.storage`), and the row count."""
    types: tuple[pa.DataType, ...] = ()
    dictionaries: dict[int, pa.Array] = field(default_factory=dict)
    """Values of each dictionary-encoded column, which stay on the host."""
    packing: Packing = field(default_factory=Packing, compare=False, repr=False)
    """Fixed-width columns as packed rows, once that pays."""
    null_safe: tuple[bool, ...] = ()
    """For key columns that are not codes: whether null equals null."""

    @property
    def rows(self) -> int:
        """Row count."""
        return self.table.num_rows()

    @property
    def nbytes(self) -> int:
        """Device memory of the rows, also if shared, with packed copies."""
        return sum(column_bytes(column) for column in self.table.columns()) + self.packing.nbytes

    def with_table(self, table: plc.Table) -> CudfFrame:
        """The same columns with other rows."""
        return CudfFrame(table, self.types, self.dictionaries)


def upload(table: pa.Table) -> CudfFrame:
    """Copy an Arrow table, of types that ``can_gather`` admits, to the device.

    Raises ``DeviceMemoryError`` if it does not fit, or has more rows than a device column can have.
    """
    check_length(table.num_rows)
    for column in table.schema:
        if storage_type(column.type) is None:
            raise GpuJoinError(f"column {column.name!r} of type {column.type} cannot be held by cuDF")
    if table.num_columns == 0:
        return CudfFrame(plc.Table([], num_rows=table.num_rows))
    dictionaries: dict[int, pa.Array] = {}
    if any(pat.is_dictionary(f.type) for f in table.schema):
        table = table.unify_dictionaries()
    columns = []
    for position, column in enumerate(table.columns):
        if pat.is_dictionary(column.type):
            dictionaries[position] = (
                column.chunk(0).dictionary if column.num_chunks else pa.array([], column.type.value_type)
            )
        columns.append(pa.chunked_array([store(chunk) for chunk in column.chunks], type=storage_type(column.type)))
    if table.num_rows == 0:
        empty = plc.copying.slice(null_row(tuple(table.schema.types)), [0, 0], stream=STREAM)[0]
        return CudfFrame(empty, tuple(table.schema.types), dictionaries)
    stored = pa.table(columns, names=[str(i) for i in range(len(columns))])
    on_device = plc.Table.from_arrow(copyable(stored), stream=STREAM)
    STREAM.synchronize()  # the host buffers must live until the copy is done
    return CudfFrame(on_device, tuple(table.schema.types), dictionaries)


def assembled(columns: Sequence[tuple[CudfFrame, int]]) -> CudfFrame:
    """Make a frame of columns of other frames of one length, without copies."""
    table = plc.Table([frame.table.columns()[at] for frame, at in columns], num_rows=columns[0][0].rows)
    dictionaries = {i: frame.dictionaries[at] for i, (frame, at) in enumerate(columns) if at in frame.dictionaries}
    return CudfFrame(table, tuple(frame.types[at] for frame, at in columns), dictionaries)


def null_row(types: tuple[pa.DataType, ...]) -> plc.Table:
    """Frame of a single null row, from which empty and all-null frames are made, for every type alike."""
    nulls = [pa.nulls(1, storage_type(dtype)) for dtype in types]
    table = plc.Table.from_arrow(pa.table(nulls, names=[str(i) for i in range(len(types))]), stream=STREAM)
    STREAM.synchronize()
    return table


def download(frame: CudfFrame, schema: pa.Schema) -> pa.RecordBatch:
    """Copy a frame to the host, as one Arrow batch of exactly a schema.

    Raises ``GpuJoinError`` if the number of columns differs.
    """
    columns = frame.table.columns()
    if len(columns) != len(schema):
        raise GpuJoinError(f"a frame of {len(columns)} columns cannot be given out as {len(schema)}: {schema.names}")
    if not columns:
        nothing = pa.Array.from_buffers(pa.struct([]), frame.rows, [None])
        return pa.RecordBatch.from_struct_array(nothing).replace_schema_metadata(schema.metadata)
    arrays: list[pa.Array]
    if frame.rows == 0:
        arrays = [pa.array([], storage_type(field.type)) for field in schema]
    else:
        arrays = [_own(column).to_arrow(stream=STREAM) for column in columns]
        STREAM.synchronize()
    restored = [
        restore(array, field.type, frame.dictionaries.get(position))
        for position, (array, field) in enumerate(zip(arrays, schema, strict=True))
    ]
    return pa.RecordBatch.from_arrays(restored, schema=schema)


def _own(column: plc.Column) -> plc.Column:
    """The column itself, or a copy of a slice of texts: libcudf would copy all bytes of its parent."""
    if column.type().id() != _T.STRING or column.num_children() == 0:
        return column
    is_unsliced = column.offset() == 0 and column.child(0).size() == column.size() + 1
    return column if is_unsliced else column.copy(stream=STREAM)


# -- between columns and arrays --------------------------------------------------------------------------------


def as_array(column: plc.Column) -> Array:
    """View the values of a fixed-width column as a CuPy array; values of null rows are arbitrary."""
    return _view(column, _NUMPY[column.type().id()], column.size(), column.offset())


def text_parts(column: plc.Column) -> tuple[Array, Array]:
    """Offsets of the rows of a text column, one more than rows, and the bytes."""
    data = column.data()
    if column.size() == 0 or column.num_children() == 0:
        return cupy.zeros(column.size() + 1, dtype=cupy.int32), cupy.zeros(1, dtype=cupy.uint8)
    start = column.offset()
    offsets = as_array(column.child(0))[start : start + column.size() + 1]
    if data is None or data.size == 0:
        return offsets, cupy.zeros(1, dtype=cupy.uint8)
    return offsets, _view(column, np.dtype("uint8"), data.size, 0)


def decimal_words(column: plc.Column) -> tuple[Array, Array]:
    """View the low (unsigned) and high (signed) 64 bits of a DECIMAL128 column as strided CuPy arrays."""
    words = _view(column, np.dtype("int64"), 2 * column.size(), 2 * column.offset())
    return words.view(np.uint64)[::2], words[1::2]


def is_fixed_width(column: plc.Column) -> bool:
    """Whether a column has values of fixed width."""
    return column.type().id() in _NUMPY or column.type().id() == _T.DECIMAL128


def as_field(column: plc.Column) -> FieldColumn:
    """Convert a fixed-width column to the form that kernels pack."""
    if column.type().id() == _T.DECIMAL128:
        words = _view(column, np.dtype("int64"), 2 * column.size(), 2 * column.offset())
        return FieldColumn(words.reshape(-1, 2), validity(column))
    return FieldColumn(as_array(column), validity(column))


def from_field(source: FieldColumn, dtype: plc.DataType) -> plc.Column:
    """Convert a column that kernels have gathered to a cuDF column over the same memory; the mask is copied."""
    # Not as a column of words: two for each decimal may exceed the rows of a column.
    data = plc.gpumemoryview(source.values) if source.values.ndim > 1 else as_column(source.values).data()
    if source.valid is None:
        return plc.Column(dtype, source.rows, data, None, 0, 0, [])
    mask, nulls = plc.transform.bools_to_mask(as_column(source.valid), stream=STREAM)
    return plc.Column(dtype, source.rows, data, mask if nulls else None, nulls, 0, [])


def _view(column: plc.Column, dtype: np.dtype[Any], size: int, offset: int) -> Array:
    data = column.data()
    if size == 0 or data is None:
        return cupy.empty(size, dtype=dtype)
    memory = cupy.cuda.UnownedMemory(data.ptr, data.size, column, cupy.cuda.runtime.getDevice())
    start = cupy.cuda.MemoryPointer(memory, offset * dtype.itemsize)
    return cupy.ndarray((size,), dtype=dtype, memptr=start)


def as_column(array: Array) -> plc.Column:
    """View a contiguous CuPy array as a column without nulls."""
    return plc.Column.from_cuda_array_interface(cupy.ascontiguousarray(array), stream=STREAM)


def validity(column: plc.Column) -> Array | None:
    """Mask of the rows that are not null; ``None`` if there are no nulls."""
    return None if column.null_count() == 0 else as_array(plc.unary.is_valid(column, stream=STREAM))


def retyped(column: plc.Column, dtype: plc.DataType) -> plc.Column:
    """View a fixed-width column as another type of the same width."""
    return plc.Column(dtype, column.size(), column.data(), column.null_mask(), column.null_count(), column.offset(), [])


def column_bytes(column: plc.Column) -> int:
    """Device memory of a column's rows. A slice of variable width counts as its parent."""
    if column.num_children() or column.type().id() == _T.STRING:
        return column.device_buffer_size()
    mask = (column.size() + 7) // 8 if column.null_count() else 0
    return column.size() * plc.types.size_of(column.type()) + mask


def device_ops() -> ArrayOps:
    """Array operations of the current device: CuPy, libcudf's radix sort and gpujoin's own kernels."""
    return ArrayOps(cupy, _stable_argsort, CudaDevice(free_bytes))


def _stable_argsort(values: Array) -> Array:
    order = plc.sorting.stable_sorted_order(
        plc.Table([as_column(values)]),
        [plc.types.Order.ASCENDING],
        [plc.types.NullOrder.AFTER],
        stream=STREAM,
    )
    return as_array(order)
