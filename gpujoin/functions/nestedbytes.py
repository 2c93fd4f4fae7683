"""Nested values written as bytes that are equal, and ordered, as the values are, and read from bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.functions.implementation import Run
from gpujoin.functions.kinds import is_written
from gpujoin.functions.signatures import Signature, type_of, typed, types_of
from gpujoin.functions.spec import FunctionSpec
from gpujoin.functions.vector import Array, Mask, Vector, bytes_layout, from_arrow, is_present
from gpujoin.model.expressions import Call, Function
from gpujoin.model.types import is_bytes, is_list, is_text, is_wide_decimal


def _resolve_bytes(node: Call) -> Call | None:
    return typed(node, pa.binary()) if _accepts_written(node) else None


def _accepts_written(node: Call) -> bool:
    dtype = type_of(node.arguments[0])
    return pat.is_nested(dtype) and is_written(dtype, compared=node.function is not Function.VALUE_BYTES)


def _accepts_bytes(node: Call) -> bool:
    return is_bytes(types_of(node)[0]) and node.type is not None and is_written(node.type)


_BYTES = Signature(_resolve_bytes, _accepts_written, (1, 1))


# -- NumPy and Arrow --------------------------------------------------------------------------------------------------


_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Integers: TypeAlias = npt.NDArray[np.int64]

_NULL, _PRESENT, _END, _ESCAPE = 1, 2, 0, 255
_ZERO, _ESCAPED_ZERO = bytes([_END]), bytes([_END, _ESCAPE])
_FEW = 32
"""Up to so many lists are searched one after the other; more are searched together, an element of each at a time."""
_WINDOW = 1 << 16
"""Elements of one list that are searched at a time."""


# -- values to bytes ---------------------------------------------------------------------------------------


def to_bytes(array: pa.Array, *, compared: bool) -> pa.Array:
    """Write values, nested or not, as bytes, null where the value is.

    ``compared``: bytes are equal, and ordered, as the values are; else values are made of them as they were.
    """
    valid = _validity(array)
    written = _as_binary(_concatenated(_body(array, valid, compared=compared), len(array)))
    if valid is None:
        return written
    return pc.if_else(pa.array(valid), written, pa.scalar(None, pa.large_binary()))


_Part: TypeAlias = "_Bytes | pa.Array"
"""Bytes of each row: a matrix where they are equally many, else an Arrow array."""


def _validity(array: pa.Array) -> Mask | None:
    return array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None


def _field(array: pa.Array, above: Mask | None, *, compared: bool) -> list[_Part]:
    """Write a nullable value: a mark, then its bytes. ``above`` is the mask of the rows whose parent is not null."""
    own = _validity(array)
    valid = above if own is None else own if above is None else own & above
    marks = np.full((len(array), 1), _PRESENT, np.uint8)
    if valid is not None:
        marks[~valid] = _NULL
    return [marks, *_body(array, valid, compared=compared)]


def _body(array: pa.Array, valid: Mask | None, *, compared: bool) -> list[_Part]:
    array = _plain(array)
    dtype = array.type
    if pat.is_null(dtype):
        return []
    if pat.is_struct(dtype):
        fields = (array.field(i) for i in range(dtype.num_fields))
        return [part for field in fields for part in _field(field, valid, compared=compared)]
    if is_list(dtype) or pat.is_map(dtype):
        return _list(array, valid, compared=compared)
    if is_text(dtype) or is_bytes(dtype):
        return _text(array, valid)
    return [_number(array, valid, compared=compared)]


def _plain(array: pa.Array) -> pa.Array:
    """Convert values to the layout and type in which they are written: Spark's own."""
    dtype = array.type
    if pat.is_dictionary(dtype):
        return _plain(array.dictionary_decode())
    if pat.is_run_end_encoded(dtype):
        return _plain(pc.run_end_decode(array))
    if pat.is_uint64(dtype):
        return array.cast(pa.decimal128(20, 0))
    if pat.is_unsigned_integer(dtype):
        return array.cast(pa.int64())
    if pat.is_float16(dtype):
        return array.cast(pa.float32())
    if pat.is_decimal(dtype) and not pat.is_decimal128(dtype):
        return array.cast(pa.decimal128(dtype.precision, dtype.scale))
    return array


def _list(array: pa.Array, valid: Mask | None, *, compared: bool) -> list[_Part]:
    counts = np.diff(array.offsets.to_numpy().astype(np.int64))
    if valid is not None:
        counts = np.where(valid, counts, 0)
    ends = np.cumsum(counts)
    begins = array.offsets.to_numpy().astype(np.int64)[:-1]
    places = np.repeat(begins - (ends - counts), counts) + np.arange(int(counts.sum()))
    elements = _entry_structs(array).take(pa.array(places))
    written = _as_binary(_concatenated(_field(elements, None, compared=compared), len(elements)))
    starts, _ = bytes_layout(written)
    offsets = starts[np.concatenate([[0], ends])]
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), written.buffers()[2]]
    together = pa.Array.from_buffers(pa.large_binary(), len(array), buffers)
    return [together, np.full((len(array), 1), _END, np.uint8)]


def _entry_structs(array: pa.Array) -> pa.Array:
    """Elements of lists; of maps structs of a key and a value."""
    if not pat.is_map(array.type):
        return array.values
    return pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])


def _text(array: pa.Array, valid: Mask | None) -> list[_Part]:
    if not pat.is_large_binary(array.type):
        wide = array.cast(pa.large_string() if is_text(array.type) else pa.large_binary())
        array = pa.Array.from_buffers(pa.large_binary(), len(wide), wide.buffers(), offset=wide.offset)
    if valid is not None:
        array = pc.if_else(pa.array(valid), array, pa.scalar(b"", pa.large_binary()))
    starts, data = bytes_layout(array)
    if len(array) and (data[starts[0] : starts[-1]] == _END).any():
        array = pc.replace_substring(array, pattern=_ZERO, replacement=_ESCAPED_ZERO)
    return [array, np.full((len(array), 1), _END, np.uint8)]


def _number(array: pa.Array, valid: Mask | None, *, compared: bool) -> _Bytes:
    """Numbers of any kind in big-endian order, the sign turned; zero bytes for nulls."""
    words = [_ordered(word) for word in _words(array, compared=compared)]
    if len(words) == 2:
        words[1] ^= _sign(words[1].dtype)  # the low half of a decimal has no sign
    written = np.concatenate([_big_endian(word) for word in words], axis=1)
    if valid is not None:
        written[~valid] = 0
    return written


def _words(array: pa.Array, *, compared: bool) -> list[Array]:
    """Signed integers that are ordered as numbers are; two of long decimals."""
    dtype, data = array.type, array.buffers()[1]
    if pat.is_boolean(dtype):
        return [array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.int8)]
    kind = np.dtype(f"i{8 if pat.is_decimal(dtype) else dtype.bit_width // 8}")
    if data is None or not len(array):
        return [np.zeros(len(array), kind)] * _word_count(dtype)
    if pat.is_decimal(dtype):
        limbs = np.frombuffer(data, np.int64, 2 * len(array), array.offset * 16).reshape(-1, 2)
        return [limbs[:, 0]] if _word_count(dtype) == 1 else [limbs[:, 1], limbs[:, 0]]
    bits = np.frombuffer(data, kind, len(array), array.offset * kind.itemsize)
    if not pat.is_floating(dtype):
        return [bits]
    if compared:
        values = bits.view(f"f{kind.itemsize}").copy()
        with np.errstate(invalid="ignore"):
            values += 0.0  # −0.0 becomes 0.0
        values[np.isnan(values)] = np.nan
        bits = values.view(kind)
    return [_turned(bits)]


def _turned(bits: Array) -> Array:
    """Bits of floats as integers of the same order, and back: those of negative floats descend."""
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


def _word_count(dtype: pa.DataType) -> int:
    return 2 if is_wide_decimal(dtype) else 1


def _sign(kind: np.dtype[Any]) -> Any:
    return kind.type(1 << (8 * kind.itemsize - 1))


def _ordered(words: Array) -> Array:
    unsigned = np.dtype(f"u{words.itemsize}")
    return np.ascontiguousarray(words).view(unsigned) ^ _sign(unsigned)


def _big_endian(words: Array) -> _Bytes:
    return words.astype(words.dtype.newbyteorder(">")).view(np.uint8).reshape(len(words), words.itemsize)


def _concatenated(parts: Sequence[_Part], length: int) -> _Part:
    """The parts of each row, one after the other."""
    joined: list[_Part] = []
    for part in parts:
        if joined and isinstance(part, np.ndarray) and isinstance(joined[-1], np.ndarray):
            joined[-1] = np.concatenate([joined[-1], part], axis=1)
        else:
            joined.append(part)
    if not joined:
        return np.zeros((length, 0), np.uint8)
    if len(joined) == 1:
        return joined[0]
    nothing = pa.scalar(b"", pa.large_binary())
    return pc.binary_join_element_wise(*map(_as_binary, joined), nothing)


def _as_binary(part: _Part) -> pa.Array:
    if not isinstance(part, np.ndarray):
        return part
    length, width = part.shape
    offsets = np.arange(length + 1, dtype=np.int64) * width
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(part))]
    return pa.Array.from_buffers(pa.large_binary(), length, buffers)


# -- bytes to values ---------------------------------------------------------------------------------------


def from_bytes(written: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Read the values that :func:`to_bytes` wrote. Null bytes are null values.

    Of bytes of a value that were written twice, the first time to be compared, the second ones count.
    """
    valid = _validity(written)
    present = written if valid is None else written.filter(pa.array(valid))
    starts, data = bytes_layout(present)
    reader = _Reader(data, starts[:-1])
    values = reader.values(dtype, None)
    if (reader.position != starts[1:]).any():
        values = reader.values(dtype, None)  # what came before was for comparisons
    if valid is None:
        return values
    places = np.cumsum(valid) - 1
    return values.take(pa.array(places, mask=~valid))


@dataclass
class _Reader:
    """Reads values from bytes, a part of each row after the other."""

    data: _Bytes
    position: _Integers
    """Index in ``data`` of the byte of each row that is read next."""
    ends: _Integers | None = None
    """Indexes of the bytes that may end a text or a list, in ascending order."""

    def values(self, dtype: pa.DataType, valid: Mask | None) -> pa.Array:
        """Read parts that are null where ``valid`` is false."""
        length = len(self.position)
        absent = None if valid is None else pa.array(~valid)
        if pat.is_null(dtype):
            return pa.nulls(length)
        if pat.is_struct(dtype):
            fields = [self._field(field.type) for field in dtype]
            if not fields:
                return pa.array([{} if present else None for present in is_present(valid, length)], dtype)
            return pa.StructArray.from_arrays(fields, fields=list(dtype), mask=absent)
        if is_list(dtype) or pat.is_map(dtype):
            return self._list(dtype, absent)
        if is_text(dtype) or is_bytes(dtype):
            return self._text(dtype, valid)
        return self._number(dtype, valid)

    def _field(self, dtype: pa.DataType) -> pa.Array:
        valid = self._fixed(1)[:, 0] == _PRESENT
        return self.values(dtype, None if valid.all() else valid)

    def _fixed(self, width: int) -> _Bytes:
        """The next bytes of each row, equally many."""
        start, self.position = self.position, self.position + width
        if not len(start):
            return np.zeros((0, width), np.uint8)
        step = int(start[1] - start[0]) if len(start) > 1 else width
        if step >= width and (np.diff(start) == step).all():
            shape, strides = (len(start), width), (step, 1)
            return np.lib.stride_tricks.as_strided(self.data[start[0] :], shape, strides, writeable=False)
        return self.data[start[:, None] + np.arange(width)]

    def _number(self, dtype: pa.DataType, valid: Mask | None) -> pa.Array:
        count = _word_count(dtype)
        size = 8 if pat.is_decimal(dtype) else max(1, dtype.bit_width // 8)
        unsigned = np.dtype(f"u{size}")
        written = np.ascontiguousarray(self._fixed(count * size)).view(unsigned.newbyteorder(">"))
        words = written.astype(unsigned).reshape(-1, count)
        words[:, 0] ^= _sign(unsigned)
        bits = words.view(f"i{size}")
        if pat.is_boolean(dtype):
            return pa.array(bits[:, 0] == 1, mask=None if valid is None else ~valid)
        if pat.is_decimal(dtype):
            low = bits[:, -1]
            bits = np.stack([low, low >> 63 if count == 1 else bits[:, 0]], axis=1)
        elif pat.is_floating(dtype):
            bits = _turned(bits)
        return pa.Array.from_buffers(dtype, len(bits), [_bitmap(valid), pa.py_buffer(np.ascontiguousarray(bits))])

    def _text(self, dtype: pa.DataType, valid: Mask | None) -> pa.Array:
        start, end = self.position, self._ends_after(self.position)
        self.position = end + 1
        lengths = end - start
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        places = np.repeat(start - offsets[:-1], lengths) + np.arange(int(offsets[-1]))
        data = self.data[places]
        buffers = [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(data)]
        array = pa.Array.from_buffers(pa.large_binary(), len(start), buffers)
        if (data == _END).any():
            array = pc.replace_substring(array, pattern=_ESCAPED_ZERO, replacement=_ZERO)
        if is_text(dtype):
            array = pa.Array.from_buffers(pa.large_string(), len(array), array.buffers(), offset=array.offset)
        return array.cast(dtype)

    def _ends_after(self, position: _Integers) -> _Integers:
        """Give the index of the ending byte of the texts that begin at indexes."""
        if self.ends is None:
            follows = np.append(self.data[1:], np.uint8(0))
            self.ends = np.flatnonzero((self.data == _END) & (follows != _ESCAPE))
        return self.ends[np.searchsorted(self.ends, position)]

    def _list(self, dtype: pa.DataType, absent: pa.Array | None) -> pa.Array:
        element = _element_type(dtype)
        rows, positions, self.position = self._elements(element)
        counts = np.bincount(rows, minlength=len(self.position))
        offsets = np.concatenate([[0], np.cumsum(counts)])
        inner = _Reader(self.data, positions, self.ends)
        values = inner._field(element)
        self.ends = inner.ends
        if pat.is_map(dtype):
            fields = (values.field(0), values.field(1))
            return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), *fields, dtype, mask=absent)
        kind = pa.LargeListArray if pat.is_large_list(dtype) else pa.ListArray
        indices = pa.array(offsets, pa.int64() if pat.is_large_list(dtype) else pa.int32())
        return kind.from_arrays(indices, values, dtype, mask=absent)

    def _elements(self, dtype: pa.DataType) -> tuple[_Integers, _Integers, _Integers]:
        """Row and position of each element of the lists at the current positions, and the positions after the lists."""
        position, active = self.position.copy(), np.arange(len(self.position))
        rows: list[_Integers] = [np.zeros(0, np.int64)]
        places: list[_Integers] = [np.zeros(0, np.int64)]
        width = _width(dtype)
        while len(active):
            if width is not None and len(active) <= _FEW:
                for row in map(int, active):
                    count = self._count(int(position[row]), width + 1)
                    rows.append(np.full(count, row))
                    places.append(position[row] + (width + 1) * np.arange(count))
                    position[row] += (width + 1) * count + 1
                break
            more = self.data[position[active]] != _END
            position[active[~more]] += 1
            active = active[more]
            rows.append(active)
            places.append(position[active])
            position[active] = self._skipped(dtype, position[active] + 1)
        owners = np.concatenate(rows)
        order = np.argsort(owners, kind="stable")
        return owners[order], np.concatenate(places)[order], position

    def _count(self, position: int, step: int) -> int:
        """Number of elements of a list, each of as many bytes."""
        count = 0
        while True:
            marks = self.data[position + count * step : position + (count + _WINDOW) * step : step]
            ends = np.flatnonzero(marks == _END)
            if len(ends):
                return count + int(ends[0])
            count += _WINDOW

    def _skipped(self, dtype: pa.DataType, position: _Integers) -> _Integers:
        """Give the indexes after the parts that begin at indexes."""
        width = _width(dtype)
        if width is not None:
            return position + width
        if pat.is_struct(dtype):
            for field in dtype:
                position = self._skipped(field.type, position + 1)
            return position
        if is_text(dtype) or is_bytes(dtype):
            return self._ends_after(position) + 1
        element = _element_type(dtype)
        inner = _Reader(self.data, position, self.ends)
        _, _, end = inner._elements(element)
        self.ends = inner.ends
        return end


def _element_type(dtype: pa.DataType) -> pa.DataType:
    """Type of the elements of a list, or of the entries of a map: structs of key and value."""
    return pa.struct([dtype.key_field, dtype.item_field]) if pat.is_map(dtype) else dtype.value_type


def _bitmap(valid: Mask | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _width(dtype: pa.DataType) -> int | None:
    """Bytes of a part after its mark; ``None`` where they are not equally many for all values."""
    if pat.is_null(dtype):
        return 0
    if pat.is_struct(dtype):
        widths = [_width(field.type) for field in dtype]
        return None if None in widths else sum(1 + width for width in widths if width is not None)
    if pat.is_nested(dtype) or is_text(dtype) or is_bytes(dtype):
        return None
    return _word_count(dtype) * (8 if pat.is_decimal(dtype) else max(1, dtype.bit_width // 8))


# -- functions ---------------------------------------------------------------------------------------------


def _written(*, compared: bool) -> Run:
    def run(_node: Call, operands: list[Vector], _length: int) -> Vector:
        written = to_bytes(operands[0].values, compared=compared)
        return Vector(pa.binary(), written, constant=operands[0].constant)

    return run


def _ranked(_node: Call, operands: list[Vector], _length: int) -> Vector:
    nothing = pa.scalar(b"", pa.large_binary())
    parts = [to_bytes(operands[0].values, compared=compared) for compared in (True, False)]
    return Vector(pa.binary(), pc.binary_join_element_wise(*parts, nothing), constant=operands[0].constant)


def _read(node: Call, operands: list[Vector], _length: int) -> Vector:
    return from_arrow(from_bytes(operands[0].values.cast(pa.large_binary()), type_of(node)))


TABLE = (
    FunctionSpec(Function.ORDER_BYTES, (), _BYTES, numpy=_written(compared=True)),
    FunctionSpec(Function.VALUE_BYTES, (), _BYTES, numpy=_written(compared=False)),
    FunctionSpec(Function.RANKED_BYTES, (), _BYTES, numpy=_ranked),
    FunctionSpec(Function.OF_BYTES, (), Signature(lambda _: None, _accepts_bytes, (1, 1)), numpy=_read),
)  # fmt: skip
