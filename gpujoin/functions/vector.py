"""Columns of intermediate values of expressions, as NumPy or Arrow arrays.

Fixed-width values live in NumPy arrays with a separate validity mask, text, bytes and nested values in Arrow arrays.
Decimals are unscaled integers: int64 while every value fits, Python integers in an object array otherwise, which is
slower but exact at any width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.model.layouts import in_type
from gpujoin.model.types import LONG_DIGITS, is_bytes, is_text, logical

Array: TypeAlias = Any
"""A one-dimensional array of NumPy or CuPy."""

Mask = npt.NDArray[np.bool_]

INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Vector:
    """One column of values."""

    dtype: pa.DataType
    """Logical type of the values."""
    values: Any
    """One value a row, or a single one for all rows if ``constant``. Values under nulls are arbitrary."""
    valid: Mask | None = None
    """Mask of rows that are not null; ``None``: no row is. Always ``None`` for Arrow values, which carry their own."""
    constant: bool = False
    """Whether one value stands for all rows."""

    def __post_init__(self) -> None:
        # Of a constant and a column, functions may take the validity of the one and the values of the other.
        if self.valid is not None and len(self.valid) != len(self.values):
            values, valid = np.broadcast_arrays(self.values, self.valid)
            object.__setattr__(self, "values", values)
            object.__setattr__(self, "valid", valid)

    @property
    def in_arrow(self) -> bool:
        """Whether the values are an Arrow array."""
        return isinstance(self.values, pa.Array)

    def mask(self) -> Mask | None:
        """Rows that are not null, or ``None`` if all are."""
        if not self.in_arrow:
            return self.valid
        if self.values.null_count == 0:
            return None
        return as_numpy_bool(self.values.is_valid())

    def take(self, rows: npt.NDArray[np.int64]) -> Vector:
        """The values of some rows."""
        if self.constant:
            return self
        if self.in_arrow:
            return Vector(self.dtype, self.values.take(pa.array(rows)))
        return Vector(self.dtype, self.values[rows], None if self.valid is None else self.valid[rows])

    def slice(self, start: int, stop: int | None = None) -> Vector:
        """The rows from ``start`` on, before ``stop``."""
        if self.constant:
            return self
        return Vector(self.dtype, self.values[start:stop], None if self.valid is None else self.valid[start:stop])

    def expand(self, length: int) -> Vector:
        """Repeat a constant for each row."""
        if not self.constant:
            return self
        if self.in_arrow:
            return Vector(self.dtype, self.values.take(pa.array(np.zeros(length, np.int64))))
        valid = None if self.valid is None else np.broadcast_to(self.valid, length)
        return Vector(self.dtype, np.broadcast_to(self.values, length), valid)

    def with_valid(self, valid: Mask | None) -> Vector:
        """The same NumPy values under another validity mask."""
        return Vector(self.dtype, self.values, valid, self.constant)


def mask_and(left: Mask | None, right: Mask | None) -> Mask | None:
    """Rows that are in both of two masks; a mask of ``None`` has all rows."""
    if left is None:
        return right
    return left if right is None else left & right


def mask_and_not(mask: Mask | None, excluded: Mask) -> Mask:
    """Rows of a mask less those of another; a mask of ``None`` has all rows."""
    return ~excluded if mask is None else mask & ~excluded


def is_present(mask: Mask | None, length: int) -> Mask:
    """Rows that are in a mask, as a mask in any case."""
    return np.ones(length, np.bool_) if mask is None else mask


def nulls(dtype: pa.DataType) -> Vector:
    """Make a constant null."""
    if in_numpy(dtype):
        return Vector(dtype, np.zeros(1, numpy_type(dtype)), np.zeros(1, np.bool_), constant=True)
    return Vector(dtype, pa.nulls(1, dtype), constant=True)


def in_numpy(dtype: pa.DataType) -> bool:
    """Whether values of a type are kept in NumPy."""
    if pat.is_interval(dtype):
        return False
    return pat.is_primitive(dtype) or pat.is_boolean(dtype) or pat.is_decimal128(dtype)


_WIDTHS = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


def numpy_type(dtype: pa.DataType) -> np.dtype[Any]:
    """Find the NumPy type that holds values of a fixed-width type; int64 for decimals."""
    if pat.is_boolean(dtype):
        return np.dtype(np.bool_)
    if pat.is_floating(dtype) or pat.is_unsigned_integer(dtype):
        return np.dtype(dtype.to_pandas_dtype())
    if pat.is_decimal(dtype):
        return np.dtype(np.int64)
    return np.dtype(_WIDTHS[dtype.bit_width])


def as_numpy_bool(array: pa.Array) -> Mask:
    """Unpack an Arrow boolean array without nulls."""
    return array.to_numpy(zero_copy_only=False)


def from_arrow(array: pa.Array) -> Vector:
    """Read an Arrow array of any layout; fixed-width values are shared, not copied."""
    if isinstance(array, pa.ExtensionArray):
        return from_arrow(array.storage)
    if pat.is_dictionary(array.type):
        return from_arrow(array.dictionary_decode())
    if pat.is_run_end_encoded(array.type):
        return from_arrow(pc.run_end_decode(array))
    target = logical(array.type)
    if is_text(target) or is_bytes(target):
        return Vector(target, _plain_layout(array))
    if array.type != target and not pat.is_nested(target):
        array = array.cast(target)
    if not in_numpy(target):
        return Vector(target, array)
    valid = as_numpy_bool(array.is_valid()) if array.null_count else None
    return Vector(target, _fixed_width(array), valid)


def _plain_layout(array: pa.Array) -> pa.Array:
    if pat.is_string_view(array.type):
        return array.cast(pa.large_string())
    if pat.is_binary_view(array.type) or pat.is_fixed_size_binary(array.type):
        return array.cast(pa.large_binary())
    return array


def _fixed_width(array: pa.Array) -> Array:
    if pat.is_boolean(array.type):
        return as_numpy_bool(array.fill_null(False))
    data = array.buffers()[1]
    if data is None or len(array) == 0:
        return np.zeros(len(array), numpy_type(array.type))
    if pat.is_decimal(array.type):
        return _unscaled(data, array)
    kind = numpy_type(array.type)
    return np.frombuffer(data, kind, len(array), array.offset * kind.itemsize)


def _unscaled(data: pa.Buffer, array: pa.Array) -> Array:
    limbs = np.frombuffer(data, np.int64, 2 * len(array), array.offset * 16).reshape(-1, 2)
    low, high = limbs[:, 0], limbs[:, 1]
    narrow = array.type.precision <= LONG_DIGITS
    if not narrow:
        misfit = (high != low >> 63) | (low == np.iinfo(np.int64).min)
        if array.null_count:
            misfit &= as_numpy_bool(array.is_valid())
        narrow = not misfit.any()
    if narrow:
        return np.ascontiguousarray(low)
    return high.astype(object) * (1 << 64) + low.view(np.uint64).astype(object)


def to_arrow(vector: Vector, dtype: pa.DataType, length: int) -> pa.Array:
    """Convert a vector to an Arrow array of exactly this type."""
    vector = vector.expand(length)
    if vector.in_arrow:
        return in_type(vector.values, dtype)
    if pat.is_decimal(vector.dtype):
        return in_type(_decimal_array(vector), dtype)
    mask = None if vector.valid is None else ~vector.valid
    values = np.ascontiguousarray(vector.values)
    if pat.is_boolean(vector.dtype) or pat.is_floating(vector.dtype) or pat.is_integer(vector.dtype):
        # NaN is a value here, not a missing one.
        return in_type(pa.array(values, vector.dtype, mask=mask, from_pandas=False), dtype)
    whole = pa.array(values, pa.int64() if values.itemsize == 8 else pa.int32(), mask=mask)
    return in_type(whole.view(vector.dtype), dtype)


def _decimal_array(vector: Vector) -> pa.Array:
    values = vector.values
    limbs = np.empty((len(values), 2), np.int64)
    if values.dtype == object:
        if vector.valid is not None:
            values = np.where(vector.valid, values, 0)
        low = np.array([v & ((1 << 64) - 1) for v in values], np.uint64)
        limbs[:, 0], limbs[:, 1] = low.view(np.int64), np.array([v >> 64 for v in values], np.int64)
    else:
        limbs[:, 0], limbs[:, 1] = values, values >> 63
    validity = None
    if vector.valid is not None:
        validity = pa.py_buffer(np.packbits(vector.valid, bitorder="little"))
    return pa.Array.from_buffers(vector.dtype, len(values), [validity, pa.py_buffer(limbs)])


def bytes_layout(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Data bytes of a text or bytes array, and where each row begins in them, with the end of the last row."""
    array = array.cast(pa.large_binary())
    _, offsets, data = array.buffers()
    if offsets is None:
        return np.zeros(len(array) + 1, np.int64), np.zeros(0, np.uint8)
    starts = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8)
    return starts, np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def per_distinct(array: pa.Array, parse: Callable[[Any], Any], dtype: pa.DataType) -> pa.Array:
    """Apply a Python function to each distinct value of an Arrow array, then spread the results over the rows.

    For what no vectorised kernel computes exactly; the cost is a Python call per distinct value. A null gives a null
    without a call; a result of ``None`` is a null.
    """
    encoded = array.dictionary_encode()
    results = pa.array([parse(v) for v in encoded.dictionary.to_pylist()], dtype)
    return results.take(encoded.indices)


def choose(mask: Mask, when_true: Vector, when_false: Vector, dtype: pa.DataType) -> Vector:
    """Take ``when_true`` where the mask is true, ``when_false`` elsewhere, in the type of both together."""
    dtype = logical(dtype)
    length = max(len(mask), len(when_true.values), len(when_false.values))
    constant = when_true.constant and when_false.constant and len(mask) == 1
    if when_true.in_arrow:
        arrow_values = _choose_arrow(np.broadcast_to(mask, length), when_true, when_false, length, dtype)
        return Vector(dtype, arrow_values, constant=constant)
    if when_true.values.dtype != when_false.values.dtype:
        when_true, when_false = (
            Vector(v.dtype, v.values.astype(object), v.valid, v.constant) for v in (when_true, when_false)
        )
    values = np.where(mask, when_true.values, when_false.values)
    if when_true.valid is None and when_false.valid is None:
        return Vector(when_true.dtype, values, constant=constant)
    valid = np.where(mask, is_present(when_true.valid, 1), is_present(when_false.valid, 1))
    valid = np.broadcast_to(valid, len(values))
    return Vector(when_true.dtype, values, valid, constant)


def _choose_arrow(mask: Mask, when_true: Vector, when_false: Vector, length: int, dtype: pa.DataType) -> pa.Array:
    true_values, false_values = when_true.expand(length).values, when_false.expand(length).values
    if true_values.type != false_values.type:
        wide = pa.large_string() if is_text(dtype) else pa.large_binary() if is_bytes(dtype) else dtype
        true_values, false_values = in_type(true_values, wide), in_type(false_values, wide)
    return pc.if_else(pa.array(mask), true_values, false_values)
