"""Columns and tables of pylibcudf over host memory that counts as the device's."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat
import pylibcudf as real

from tests.backends.cudf.libraries import record, rmm, uploads
from tests.kernels.emulator.arrays import DeviceArray

T = real.types.TypeId
DataType = real.DataType
NUMPY = {
    T.BOOL8: "u1", T.INT8: "i1", T.INT16: "i2", T.INT32: "i4", T.INT64: "i8", T.UINT8: "u1", T.UINT16: "u2",
    T.UINT32: "u4", T.UINT64: "u8", T.FLOAT32: "f4", T.FLOAT64: "f8", T.TIMESTAMP_DAYS: "i4", T.DECIMAL32: "i4",
    T.DECIMAL64: "i8", T.TIMESTAMP_MICROSECONDS: "i8", T.TIMESTAMP_MILLISECONDS: "i8", T.TIMESTAMP_NANOSECONDS: "i8",
    T.TIMESTAMP_SECONDS: "i8",
}  # fmt: skip
_OF_NUMPY = {
    "b1": T.BOOL8, "i1": T.INT8, "i2": T.INT16, "i4": T.INT32, "i8": T.INT64, "u1": T.UINT8, "u2": T.UINT16,
    "u4": T.UINT32, "u8": T.UINT64, "f4": T.FLOAT32, "f8": T.FLOAT64,
}  # fmt: skip
_freed: deque[Any] = deque(maxlen=4096)
"""Memory that was freed, kept so that reading it gives nonsense and not a crash."""


class Buffer:
    """A piece of device memory; overwritten when nothing refers to it any more."""

    def __init__(self, content: bytes | npt.NDArray[Any]) -> None:
        source = np.frombuffer(content, np.uint8) if isinstance(content, bytes | memoryview) else content.view(np.uint8)
        self.resource = rmm.current()
        self.resource.allocate(source.size)
        self.memory = np.empty(max(64, source.size), np.uint8)
        self.memory[:] = 0xEE
        record.fill(lambda memory=self.memory: memory.__setitem__(slice(source.size), source.reshape(-1)))  # type: ignore[misc]
        self.ptr, self.size = self.memory.ctypes.data, int(source.size)
        self.origin = record.origin()

    def __del__(self) -> None:
        if not hasattr(self, "origin"):
            return  # there was no memory
        self.resource.deallocate(self.size)
        self.memory[:] = 0xDD
        _freed.append(self.memory)
        record.free(self.origin)


class gpumemoryview:  # noqa: N801 - pylibcudf's name
    """Memory that another object owns."""

    def __init__(self, data: Any) -> None:
        self.obj = data
        if isinstance(data, DeviceArray):
            assert data.flags.c_contiguous
            self.ptr, self.size = data.ctypes.data, data.nbytes
        else:
            self.ptr, self.size = data.ptr, data.size

    nbytes = property(lambda self: self.size)


def raw(span: Any, dtype: str, count: int, offset: int = 0) -> npt.NDArray[Any]:
    """Copy values from memory."""
    kind = np.dtype(dtype)
    if span is None or count == 0:
        return np.empty(0, kind)
    assert (offset + count) * kind.itemsize <= span.size, "beyond the memory of a column"
    view = (ctypes.c_char * span.size).from_address(span.ptr)
    return np.frombuffer(view, kind, count, offset * kind.itemsize).copy()


class Column:
    """See pylibcudf."""

    def __init__(
        self, data_type: Any, size: int, data: Any, mask: Any, null_count: int, offset: int, children: Iterable[Column],
        validate: bool = True,
    ) -> None:  # fmt: skip
        self._type, self._size, self._data, self._mask = data_type, size, data, mask
        self._null_count, self._offset, self._children = null_count, offset, list(children)
        if null_count:
            assert mask is not None, "nulls without a mask"

    def type(self) -> Any:
        return self._type

    def size(self) -> int:
        return self._size

    def data(self) -> Any:
        return self._data

    def null_mask(self) -> Any:
        return self._mask

    def null_count(self) -> int:
        return self._null_count

    def offset(self) -> int:
        return self._offset

    def children(self) -> list[Column]:
        return list(self._children)

    def child(self, index: int) -> Column:
        return self._children[index]

    def num_children(self) -> int:
        return len(self._children)

    def device_buffer_size(self) -> int:
        own = sum(span.size for span in (self._data, self._mask) if span is not None)
        return own + sum(child.device_buffer_size() for child in self._children)

    def copy(self, stream: Any = None) -> Column:
        record.call("Column.copy", stream)
        return column_of(arrow_of(self))

    def struct_view(self) -> Any:
        return self

    def get_sliced_child(self, index: int, stream: Any = None) -> Column:
        record.call("get_sliced_child", stream)
        return sliced(self._children[index], self._offset, self._size)

    def to_arrow(self, metadata: Any = None, stream: Any = None) -> pa.Array:
        record.call("Column.to_arrow", stream)
        array = arrow_of(self)
        record.count_copy("down", array.nbytes)
        return array

    def to_scalar(self, stream: Any = None) -> Scalar:
        record.call("Column.to_scalar", stream)
        (value,) = arrow_of(self)
        return Scalar(value)

    @staticmethod
    def from_cuda_array_interface(array: Any, stream: Any = None) -> Column:
        record.call("Column.from_cuda_array_interface", stream)
        assert isinstance(array, DeviceArray)
        assert array.ndim == 1
        kind = DataType(_OF_NUMPY[array.dtype.str[1:]])
        return Column(kind, array.shape[0], gpumemoryview(array), None, 0, 0, [])

    @staticmethod
    def all_null_like(like: Column, size: int, stream: Any = None) -> Column:
        record.call("Column.all_null_like", stream)
        return column_of(pa.nulls(size, arrow_of(like).type))

    @staticmethod
    def from_scalar(scalar: Any, size: int, stream: Any = None) -> Column:
        record.call("Column.from_scalar", stream)
        return column_of(pa.array([scalar.value.as_py()] * size, scalar.value.type))


class Table:
    """See pylibcudf."""

    def __init__(self, columns: Sequence[Column], num_rows: int | None = None) -> None:
        self._columns = tuple(columns)
        assert all(isinstance(column, Column) for column in self._columns)
        sizes = {column.size() for column in self._columns}
        assert len(sizes | ({num_rows} if num_rows is not None else set())) <= 1, (sizes, num_rows)
        self._rows = num_rows if num_rows is not None else next(iter(sizes), 0)

    def columns(self) -> tuple[Column, ...]:
        return self._columns

    def num_columns(self) -> int:
        return len(self._columns)

    def num_rows(self) -> int:
        return self._rows

    @staticmethod
    def from_arrow(given: Any, stream: Any = None) -> Table:
        record.call("Table.from_arrow", stream)
        if hasattr(given, "__arrow_c_device_array__") and not isinstance(given, pa.Table | pa.RecordBatch):
            batch = imported(*given.__arrow_c_device_array__())
            return Table([column_of(array) for array in batch.columns])
        uploads.check(given)
        record.count_copy("up", given.nbytes)
        with record.delaying():
            return Table([column_of(one(column)) for column in given.columns])

    def __arrow_c_device_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        names = [str(i) for i in range(len(self._columns))]
        return exported(pa.record_batch([arrow_of(column) for column in self._columns], names=names))


def exported(batch: pa.RecordBatch) -> tuple[Any, Any]:
    """Give a batch out as one that lies on a GPU."""
    schema, array = batch.__arrow_c_device_array__()
    _device_type(array).value = 2
    return schema, array


def imported(schema: Any, array: Any) -> pa.RecordBatch:
    """Take in what :func:`exported` gave out."""
    assert _device_type(array).value == 2
    _device_type(array).value = 1
    return pa.RecordBatch._import_from_c_device_capsule(schema, array)


def _device_type(array: Any) -> Any:
    api = ctypes.pythonapi
    return ctypes.c_int32.from_address(api.PyCapsule_GetPointer(array, b"arrow_device_array") + 88)


class Scalar:
    """See pylibcudf."""

    def __init__(self, value: pa.Scalar) -> None:
        self.value = value

    @staticmethod
    def from_py(value: Any, dtype: Any = None, stream: Any = None) -> Scalar:
        record.call("Scalar.from_py", stream)
        return Scalar(pa.scalar(value, None if dtype is None else {T.INT32: pa.int32()}[dtype.id()]))

    @staticmethod
    def from_arrow(value: pa.Scalar, stream: Any = None) -> Scalar:
        record.call("Scalar.from_arrow", stream)
        return Scalar(value)


def one(column: Any) -> pa.Array:
    """A column as one array."""
    if isinstance(column, pa.Array):
        return column
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def sliced(column: Column, start: int, length: int) -> Column:
    """A view of some rows."""
    nulls = 0
    if column.null_count():
        nulls = int((~valid_of(column)[start : start + length]).sum())
    return Column(
        column.type(), length, column.data(), column.null_mask() if nulls else None, nulls, column.offset() + start,
        column.children(),
    )  # fmt: skip


def valid_of(column: Column) -> npt.NDArray[np.bool_]:
    """Mask of the rows that are not null."""
    if column.null_mask() is None or not column.null_count():
        return np.ones(column.size(), bool)
    bits = raw(column.null_mask(), "u1", (column.offset() + column.size() + 7) // 8)
    return np.unpackbits(bits, bitorder="little")[column.offset() : column.offset() + column.size()].astype(bool)


def arrow_of(column: Column) -> pa.Array:
    """Copy a column to Arrow."""
    kind, size, offset = column.type().id(), column.size(), column.offset()
    valid = valid_of(column)
    mask = None if valid.all() else ~valid
    if kind == T.STRING:
        if not column.num_children() or size == 0:
            return pa.array([None] * size, pa.string())
        wide = column.child(0).type().id() == T.INT64
        offsets = raw(column.child(0).data(), "i8" if wide else "i4", size + 1, offset + column.child(0).offset())
        assert column.data() is not None or offsets[-1] == offsets[0]
        chars = b"" if column.data() is None else raw(column.data(), "u1", int(offsets[-1])).tobytes()
        buffers = [_bits(mask), pa.py_buffer(offsets), pa.py_buffer(chars)]
        return pa.Array.from_buffers(pa.large_string() if wide else pa.string(), size, buffers)
    if kind == T.LIST:
        child = arrow_of(column.child(1))
        offsets = raw(column.child(0).data(), "i4", size + 1, offset) if size else np.zeros(1, np.int32)
        buffers = [_bits(mask), pa.py_buffer(offsets)]
        return pa.Array.from_buffers(pa.list_(child.type), size, buffers, children=[child])
    if kind == T.STRUCT:
        fields = [arrow_of(sliced(child, offset, size)) for child in column.children()]
        names = [str(i) for i in range(len(fields))]
        return pa.StructArray.from_arrays(fields, names, mask=None if mask is None else pa.array(mask))
    if kind == T.DECIMAL128:
        words = raw(column.data(), "i8", 2 * size, 2 * offset)
        buffers = [_bits(mask), pa.py_buffer(words)]
        return pa.Array.from_buffers(pa.decimal128(38, -column.type().scale()), size, buffers)
    values = raw(column.data(), NUMPY[kind], size, offset)
    if kind == T.BOOL8:
        return pa.array(values.astype(bool), mask=mask)
    if kind in (T.DECIMAL32, T.DECIMAL64):
        make, digits = (pa.decimal32, 9) if kind == T.DECIMAL32 else (pa.decimal64, 18)
        return pa.Array.from_buffers(make(digits, -column.type().scale()), size, [_bits(mask), pa.py_buffer(values)])
    return pa.Array.from_buffers(column.type().to_arrow(), size, [_bits(mask), pa.py_buffer(values)])


def _bits(mask: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    return None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little"))


def column_of(array: pa.Array) -> Column:
    """Copy an Arrow array to a column."""
    dtype, size = array.type, len(array)
    mask = None
    if array.null_count:
        valid = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), bool)
        mask = Buffer(np.packbits(np.pad(valid, (0, -len(valid) % 512)), bitorder="little"))
    nulls = array.null_count

    def made(kind: Any, data: Any, children: Sequence[Column] = ()) -> Column:
        return Column(kind, size, data, mask, nulls, 0, children)

    if pat.is_string(dtype) or pat.is_large_string(dtype):
        wide = pat.is_large_string(dtype)
        numbers = "i8" if wide else "i4"
        if size == 0:
            return made(DataType(T.STRING), None)
        offsets = np.frombuffer(array.buffers()[1], numbers)[array.offset : array.offset + size + 1]
        chars = (array.buffers()[2] or b"")[offsets[0] : offsets[-1]] if offsets[-1] > offsets[0] else b""
        plain = (offsets - offsets[0]).astype(numbers)
        child = Column(DataType(T.INT64 if wide else T.INT32), size + 1, Buffer(plain), None, 0, 0, [])
        return made(DataType(T.STRING), Buffer(bytes(chars)), [child])
    if pat.is_list(dtype):
        offsets = np.zeros(1, "i4")
        if size:
            offsets = np.frombuffer(array.buffers()[1], "i4")[array.offset : array.offset + size + 1]
        plain = offsets - offsets[0]
        values = array.values.slice(int(offsets[0]), int(offsets[-1]) - int(offsets[0]))
        child = Column(DataType(T.INT32), size + 1, Buffer(plain), None, 0, 0, [])
        return made(DataType(T.LIST), None, [child, column_of(values)])
    if pat.is_struct(dtype):
        fields = array.flatten()
        return made(DataType(T.STRUCT), None, [column_of(field) for field in fields])
    if pat.is_boolean(dtype):
        return made(DataType(T.BOOL8), Buffer(array.fill_null(False).to_numpy(zero_copy_only=False).astype("u1")))
    kind = DataType.from_arrow(dtype)
    if pat.is_decimal(dtype):
        kind = DataType(kind.id(), -dtype.scale)
    width = dtype.bit_width // 8
    content = array.buffers()[1]
    values = np.frombuffer(content, np.uint8)[array.offset * width :][: size * width] if content else np.zeros(0, "u1")
    return made(kind, Buffer(values))
