"""Key normalisation: converts columns of any joinable type to integer or binary *codes* that backends compare.

Two rows have equal keys by Spark's rules exactly if their codes are equal. A null code matches nothing. The exchange,
the spill and the CPU backend see codes only, so they need not know of types, of NaN and −0.0, or of null equality. A
device normalises keys itself, in the common type of both sides. Codes are:

- integers, booleans, dates, times and timestamps: their integers, in the common type of both sides;
- floats: the bits of the value, after −0.0 was replaced by 0.0 and every NaN by the same NaN;
- decimals: the unscaled integer, split into 64-bit words;
- text and bytes: the bytes;
- null-safe keys (``<=>``): zero in place of nulls, and a second code "is null"; where both fit into 64 bits they are
  one code;
- structs: the codes of the fields, null-safe, since nulls inside a struct are equal in Spark; a null struct is a null
key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.errors import JoinSpecError, KeyTypeError
from gpujoin.model.hostgather import take
from gpujoin.model.jointype import Side
from gpujoin.model.layouts import in_known_layout
from gpujoin.model.spec import JoinSpec, NullEquality
from gpujoin.model.types import LONG_DIGITS, wide_offsets
from gpujoin.plan.key_types import key_type

_NULL_FLAG = np.int64(1) << 32


@dataclass(frozen=True, slots=True)
class KeyCodec:
    """Converts the key columns of either side of a join to codes."""

    columns: tuple[tuple[int, int], ...]
    """Left and right position of each key."""
    types: tuple[pa.DataType, ...]
    """Common type of each key."""
    nulls: tuple[NullEquality, ...]
    """Null equality of each key."""

    @classmethod
    def from_spec(cls, spec: JoinSpec, left: pa.Schema, right: pa.Schema) -> KeyCodec:
        """Make the codec of a join.

        Raises ``KeyTypeError`` if a pair of keys cannot be compared; the message names the columns; ``JoinSpecError``
        if a key position is outside its schema.
        """
        types = []
        for number, key in enumerate(spec.keys, 1):
            for side, position, schema in (("left", key.left, left), ("right", key.right, right)):
                if not 0 <= position < len(schema):
                    raise JoinSpecError(f"key {number}: {side} column {position} of {len(schema)} does not exist")
            lhs, rhs = left.field(key.left), right.field(key.right)
            try:
                types.append(key_type(lhs.type, rhs.type))
            except KeyTypeError as problem:
                raise KeyTypeError(f"key {number}, left {lhs.name!r} and right {rhs.name!r}: {problem}") from None
        return cls(
            tuple((key.left, key.right) for key in spec.keys),
            tuple(types),
            tuple(key.nulls for key in spec.keys),
        )

    def each(self) -> Iterator[KeyCodec]:
        """Codecs of the single keys."""
        return (self.some((number,)) for number in range(len(self.types)))

    def some(self, numbers: Sequence[int]) -> KeyCodec:
        """Codec of some of the keys."""
        return KeyCodec(
            tuple(self.columns[number] for number in numbers),
            tuple(self.types[number] for number in numbers),
            tuple(self.nulls[number] for number in numbers),
        )

    def alone(self) -> KeyCodec:
        """The same for rows that have the keys and no other column."""
        return dataclasses.replace(self, columns=tuple((number, number) for number in range(len(self.types))))

    def positions(self, side: Side) -> list[int]:
        """Position of each key among the columns of a side."""
        return [left if side is Side.LEFT else right for left, right in self.columns]

    @property
    def null_safe(self) -> tuple[bool, ...]:
        """Whether null equals null, for each key."""
        return tuple(nulls is NullEquality.EQUAL for nulls in self.nulls)

    def codes(self, data: pa.Table | pa.RecordBatch, side: Side) -> pa.Table:
        """Convert the keys of one side's rows to codes: int32, int64 or large_binary, the same types for both sides."""
        arrays: list[pa.Array] = []
        for position, dtype, null_safe in zip(self.positions(side), self.types, self.null_safe, strict=True):
            values = in_common_type(_one_chunk(data.column(position)), wide_offsets(dtype))
            arrays += _encode(values, null_safe=null_safe)
        return pa.Table.from_arrays(arrays, names=[f"k{i}" for i in range(len(arrays))])

    def null_mask(self, data: pa.Table | pa.RecordBatch, side: Side) -> npt.NDArray[np.bool_] | None:
        """Mask of the rows that match nothing because of a null in a key that is not null-safe; ``None`` if none do."""
        mask: npt.NDArray[np.bool_] | None = None
        for position, null_safe in zip(self.positions(side), self.null_safe, strict=True):
            array = data.column(position)
            if null_safe or (array.null_count == 0 and not _may_hide_nulls(array.type)):
                continue
            here = pc.is_null(array).to_numpy(zero_copy_only=False)
            if here.any():
                mask = here if mask is None else mask | here
        return mask


def _one_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if pat.is_string(column.type) or pat.is_binary(column.type):
        # Offsets of the whole array may exceed 2 GiB.
        column = column.cast(pa.large_string() if pat.is_string(column.type) else pa.large_binary())
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def _may_hide_nulls(dtype: pa.DataType) -> bool:
    """Whether ``null_count`` is no proof of nulls: these layouts have their nulls in their values."""
    return bool(pat.is_dictionary(dtype) or pat.is_run_end_encoded(dtype) or pat.is_null(dtype))


def in_common_type(array: pa.Array, common: pa.DataType) -> pa.Array:
    """Cast an array to the common type of a key (:func:`~gpujoin.plan.key_types.key_type`).

    Raises ``KeyTypeError`` if a value does not fit: a timestamp out of the range of the finer unit, a date with
    hours.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pat.is_dictionary(array.type):
        array = take(array.dictionary, array.indices)
    if pat.is_run_end_encoded(array.type):
        array = in_known_layout(array)
    if array.type == common:
        return array
    if pat.is_null(array.type):
        return pa.nulls(len(array), common)
    if pat.is_struct(common):
        fields = [in_common_type(f, w.type) for f, w in zip(_fields(array), common, strict=True)]
        return pa.StructArray.from_arrays(fields, fields=list(common), mask=_mask(array))
    # Integers of 64 bits lose digits in a double, as in Spark, whose own cast this is.
    try:
        return array.cast(common, safe=not (pat.is_integer(array.type) and pat.is_floating(common)))
    except pa.ArrowInvalid as problem:
        raise KeyTypeError(
            f"a key of type {array.type} has values that {common}, in which the two sides are compared, cannot hold"
            f" ({problem}); cast both sides to one type before the join"
        ) from None


def _fields(array: pa.StructArray) -> list[pa.Array]:
    """Fields of a struct array, with the struct's offset applied, and without the struct's nulls."""
    return [array.field(i) for i in range(array.type.num_fields)]


def _mask(array: pa.Array) -> pa.Array | None:
    return pc.is_null(array) if array.null_count else None


def _encode(array: pa.Array, *, null_safe: bool) -> list[pa.Array]:
    if pat.is_struct(array.type):
        return _encode_struct(array, null_safe=null_safe)
    codes = _words(array)
    if not null_safe:
        return codes
    if pat.is_null(array.type):
        return [pa.array(np.zeros(len(array), np.int32))]
    return _null_safe(codes)


def _encode_struct(array: pa.StructArray, *, null_safe: bool) -> list[pa.Array]:
    mask = _mask(array)
    own = pc.if_else(pc.is_null(array), pa.scalar(int(null_safe), pa.int32()), pa.scalar(0, pa.int32()))
    if mask is not None and not null_safe:
        own = pc.if_else(mask, pa.scalar(None, pa.int32()), own)
    codes = [own]
    for field in _fields(array):
        # Field values under a null struct are arbitrary; they must not make two null structs differ.
        visible = field if mask is None else pc.if_else(mask, pa.scalar(None, field.type), field)
        codes += _encode(visible, null_safe=True)
    return codes


def _null_safe(codes: Sequence[pa.Array]) -> list[pa.Array]:
    """Codes with zero in place of nulls, and a code that tells null from zero."""
    first = codes[0]
    if pat.is_int32(first.type) and len(codes) == 1:
        widened = first.cast(pa.int64())
        return [pc.fill_null(widened, pa.scalar(int(_NULL_FLAG), pa.int64()))]
    flag = pc.is_null(first).cast(pa.int32())
    if first.null_count == 0:
        return [*codes, flag]
    zero = pa.scalar(b"", pa.large_binary()) if pat.is_large_binary(first.type) else pa.scalar(0, first.type)
    return [*(pc.fill_null(code, zero) for code in codes), flag]


def _words(array: pa.Array) -> list[pa.Array]:
    """Integer or binary codes of an array; null where the array is null."""
    dtype = array.type
    if pat.is_null(dtype):
        return [pa.nulls(len(array), pa.int32())]
    if pat.is_boolean(dtype):
        return [array.cast(pa.int32())]
    if pat.is_floating(dtype):
        return [_float_bits(array)]
    if pat.is_decimal(dtype):
        return _decimal_words(array)
    if pat.is_int64(dtype) or pat.is_int32(dtype):
        return [array]
    if pat.is_uint64(dtype):
        return [array.view(pa.int64())]
    if pat.is_integer(dtype):
        return [array.cast(pa.int64() if pat.is_uint32(dtype) else pa.int32())]
    if pat.is_temporal(dtype) and not pat.is_interval(dtype):
        return [array.view(pa.int32() if dtype.bit_width == 32 else pa.int64())]
    if pat.is_string(dtype) or pat.is_large_string(dtype) or pat.is_string_view(dtype):
        return [_as_large_binary(array.cast(pa.large_string()))]
    return [array.cast(pa.large_binary())]


def _as_large_binary(array: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(pa.large_binary(), len(array), array.buffers(), offset=array.offset)


def _float_bits(array: pa.Array) -> pa.Array:
    if pat.is_float16(array.type):
        array = array.cast(pa.float32())
    dtype: type[np.generic] = np.float32 if pat.is_float32(array.type) else np.float64
    bits = pa.int32() if pat.is_float32(array.type) else pa.int64()
    with np.errstate(invalid="ignore"):  # signaling NaNs are keys like any other
        values = _values(array, dtype) + dtype(0.0)  # −0.0 + 0.0 is 0.0
    values[np.isnan(values)] = np.nan
    return _with_validity(values.view(np.dtype(f"i{values.itemsize}")), array, bits)


def _decimal_words(array: pa.Array) -> list[pa.Array]:
    width = array.type.bit_width
    if width == 32:
        return [array.view(pa.int32())]
    if width == 64:
        return [array.view(pa.int64())]
    words = width // 64
    count = 1 if array.type.precision <= LONG_DIGITS else words
    buffer = array.buffers()[1]
    if len(array) == 0 or buffer is None:
        return [pa.array([], pa.int64())] * count
    values = np.frombuffer(buffer, np.int64)[array.offset * words :][: len(array) * words].reshape(-1, words)
    return [_with_validity(np.ascontiguousarray(values[:, i]), array, pa.int64()) for i in range(count)]


def _values(array: pa.Array, dtype: type[np.generic]) -> npt.NDArray[Any]:
    buffer = array.buffers()[1]
    if len(array) == 0 or buffer is None:
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype)[array.offset : array.offset + len(array)]


def _with_validity(values: npt.NDArray[Any], like: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Make an array of values with the nulls of another array."""
    if like.null_count == 0:
        return pa.Array.from_buffers(dtype, len(values), [None, pa.py_buffer(values)])
    validity = pc.is_valid(like)
    return pa.Array.from_buffers(dtype, len(values), [_realigned(validity), pa.py_buffer(values)])


def _realigned(booleans: pa.Array) -> pa.Buffer:
    """Copy the bits of a boolean array so that they start at bit zero."""
    if booleans.offset % 8 == 0:
        return booleans.buffers()[1].slice(booleans.offset // 8)
    return pa.concat_arrays([booleans, booleans.slice(0, 0)]).buffers()[1]


def rows_matching_nothing(codes: pa.Table) -> npt.NDArray[np.bool_] | None:
    """Mask of the rows in which any code is null; ``None`` if there are none."""
    masks: Iterable[pa.ChunkedArray] = (column for column in codes.columns if column.null_count)
    result: npt.NDArray[np.bool_] | None = None
    for column in masks:
        here = pc.is_null(column).to_numpy()
        result = here if result is None else result | here
    return result
