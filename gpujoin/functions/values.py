"""Fixed-width values of expressions, as arrays with a separate mask, and arithmetic by Spark's rules.

Runs on CuPy and on NumPy. Values under nulls are arbitrary, and computing with them never raises. CuPy compiles kernels
with flush-to-zero for single precision, so float32 values are compared as bits, and widened by integer operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.vector import Array
from gpujoin.model.types import UNITS_PER_SECOND, is_wide_decimal

MASK64 = (1 << 64) - 1
_EDGE = 2.0**63
DAY_SECONDS = 86_400
_EXACT = Context(prec=80)


@dataclass(frozen=True, eq=False)
class Value:
    """Values of an expression: one for each row, or one for all rows."""

    dtype: pa.DataType
    """Logical type of the values."""
    data: Array
    """The values, one or as many as rows: bool, intN, float32 or float64; of a decimal its unscaled value, or of a wide
    one the high 64 bits."""
    valid: Array | None = None
    """False where null; of length 1 or the number of rows; ``None``: nowhere null."""
    low: Array | None = None
    """Low 64 bits of a wide decimal."""

    def with_valid(self, valid: Array | None) -> Value:
        """The same values with another mask."""
        return Value(self.dtype, self.data, valid, self.low)


def numpy_name(dtype: pa.DataType) -> str:
    """Name of the array type that holds values of a fixed-width type."""
    if pat.is_boolean(dtype):
        return "bool"
    if pat.is_floating(dtype):
        return f"float{dtype.bit_width}"
    if pat.is_unsigned_integer(dtype):
        return f"uint{dtype.bit_width}"
    return "int64" if pat.is_decimal(dtype) else f"int{dtype.bit_width}"


def constant(xp: Any, value: Any, dtype: pa.DataType) -> Value:
    """Make a constant; ``None`` is null."""
    kind = numpy_name(dtype)
    if value is None:
        low = xp.zeros(1, dtype="uint64") if is_wide_decimal(dtype) else None
        return Value(dtype, xp.zeros(1, dtype=kind), xp.zeros(1, dtype=bool), low)
    scalar = pa.scalar(value, dtype)
    if pat.is_decimal(dtype):
        unscaled = int(scalar.as_py().scaleb(dtype.scale, _EXACT))
        if is_wide_decimal(dtype):
            low = xp.asarray([unscaled & MASK64], dtype="uint64")
            return Value(dtype, xp.asarray([unscaled >> 64], dtype="int64"), None, low)
        return Value(dtype, xp.asarray([unscaled], dtype="int64"))
    if pat.is_temporal(dtype):
        plain: Any = scalar.cast(pa.int32() if dtype.bit_width == 32 else pa.int64()).as_py()
    else:
        plain = scalar.as_py()
    return Value(dtype, xp.asarray([plain], dtype=kind))


# -- comparison ------------------------------------------------------------------------------------------------


def ordered(xp: Any, value: Value) -> tuple[Array, ...]:
    """Words whose lexicographic order is Spark's order: NaN equals NaN and is greatest, −0.0 equals 0.0."""
    if value.low is not None:
        return value.data, value.low
    if not pat.is_floating(value.dtype):
        return (value.data,)
    single = value.data.dtype.itemsize == 4
    bits = value.data.view("int32" if single else "int64")
    magnitude = bits & (0x7FFFFFFF if single else 0x7FFFFFFFFFFFFFFF)
    infinity = 0x7F800000 if single else 0x7FF0000000000000
    signed = xp.where(bits < 0, -magnitude, magnitude)
    return (xp.where(magnitude > infinity, infinity + 1, signed),)


def equal(xp: Any, left: Value, right: Value) -> Array:
    """Mask of the rows at which two values of the same type are equal, ignoring nulls."""
    same: Array = True
    for left_word, right_word in zip(ordered(xp, left), ordered(xp, right), strict=True):
        same = (left_word == right_word) & same
    return same


def less(xp: Any, left: Value, right: Value) -> Array:
    """Mask of the rows at which a value is less than another of the same type, ignoring nulls."""
    words = list(zip(ordered(xp, left), ordered(xp, right), strict=True))
    result = words[-1][0] < words[-1][1]
    for left_word, right_word in reversed(words[:-1]):
        result = (left_word < right_word) | ((left_word == right_word) & result)
    return result


# -- integers and doubles --------------------------------------------------------------------------------------


def add(left: Array, right: Array) -> tuple[Array, Array | None]:
    """Sum and overflow of two arrays of one integer type, or of doubles."""
    total = left + right
    return total, ((left ^ total) & (right ^ total)) < 0 if _whole(total) else None


def subtract(left: Array, right: Array) -> tuple[Array, Array | None]:
    """Difference and overflow."""
    difference = left - right
    return difference, ((left ^ right) & (left ^ difference)) < 0 if _whole(difference) else None


def multiply(xp: Any, left: Array, right: Array) -> tuple[Array, Array | None]:
    """Product and overflow."""
    product = left * right
    if not _whole(product):
        return product, None
    if product.dtype.itemsize < 8:
        return product, left.astype("int64") * right.astype("int64") != product
    low = xp.iinfo(product.dtype).min
    undone = product // xp.where(left == 0, 1, xp.where(left == -1, 1, left))
    plain = (left != 0) & (left != -1) & (undone != right)
    return product, plain | ((left == -1) & (right == low))


def negate(xp: Any, value: Array) -> tuple[Array, Array | None]:
    """Negation and overflow."""
    return -value, value == xp.iinfo(value.dtype).min if _whole(value) else None


def absolute(xp: Any, value: Array) -> tuple[Array, Array | None]:
    """Absolute value and overflow."""
    return xp.abs(value), value == xp.iinfo(value.dtype).min if _whole(value) else None


def quotient(xp: Any, left: Array, right: Array) -> tuple[Array, Array | None]:
    """Quotient of integers, rounded towards zero, and overflow; arbitrary where the divisor is zero."""
    safe = xp.where((right == 0) | (right == -1), 1, right)
    floored = left // safe
    rounded = floored + ((left != floored * safe) & ((left < 0) != (safe < 0)))
    overflow = (right == -1) & (left == xp.iinfo(left.dtype).min)
    return xp.where(right == -1, -left, rounded).astype(left.dtype), overflow


def remainder(xp: Any, left: Array, right: Array) -> Array:
    """Remainder of integers or doubles with the sign of the dividend; arbitrary where the divisor is zero."""
    if not _whole(left):
        return xp.fmod(left, right)
    safe = xp.where((right == 0) | (right == -1), 1, right)
    result = left - quotient(xp, left, safe)[0] * safe
    return xp.where(right == -1, 0, result).astype(left.dtype)


def positive_remainder(xp: Any, left: Array, right: Array) -> Array:
    """Remainder in the range of the divisor, as ``pmod``; arbitrary where the divisor is zero."""
    kind = left.dtype
    if kind.itemsize < 4:  # Java adds bytes and shorts as ints
        left, right = left.astype("int32"), right.astype("int32")
    rest = remainder(xp, left, right)
    return xp.where(rest < 0, remainder(xp, rest + right, right), rest).astype(kind)


def truncated(xp: Any, doubles: Array) -> Array:
    """Truncate doubles to int64 as Java does: NaN to 0, too large ones to the nearest limit."""
    inside = (doubles >= -_EDGE) & (doubles < _EDGE)
    whole = xp.where(inside, doubles, 0.0).astype("int64")
    return xp.where(doubles >= _EDGE, (1 << 63) - 1, xp.where(doubles < -_EDGE, -(1 << 63), whole))


def _whole(array: Array) -> bool:
    return bool(array.dtype.kind == "i")


def widened(xp: Any, value: Array) -> Array:
    """Convert float32 to float64. Subnormal values are made from their bits, since CuPy would flush them to zero."""
    bits = value.view("int32")
    magnitude = bits & 0x7FFFFFFF
    tiny = magnitude.astype("float64") * 2.0**-149
    exact = xp.where(bits < 0, -tiny, tiny)
    return xp.where(magnitude < 0x00800000, exact, value.astype("float64"))


# -- dates -----------------------------------------------------------------------------------------------------


def units_per_second(dtype: pa.DataType) -> int:
    """Ticks in a second of a timestamp type."""
    return UNITS_PER_SECOND[dtype.unit]


def day_of_timestamp(value: Value) -> Array:
    """Days since 1970-01-01 of a timestamp in UTC or without a zone."""
    return value.data // (DAY_SECONDS * units_per_second(value.dtype))


def second_of_day(value: Value) -> Array:
    """Whole seconds since midnight of a timestamp in UTC or without a zone."""
    return value.data // units_per_second(value.dtype) % DAY_SECONDS


def scaled(value: Value, to: pa.DataType) -> Value:
    """Convert an integer or narrow decimal to a narrow decimal with no fewer digits before and after the point."""
    scale = value.dtype.scale if pat.is_decimal(value.dtype) else 0
    return Value(to, value.data.astype("int64") * 10 ** (to.scale - scale), value.valid)


def choose(xp: Any, condition: Array, value: Value, other: Value) -> Value:
    """``value`` where a condition is true, else ``other``."""
    valid = None
    if value.valid is not None or other.valid is not None:
        masks = [xp.ones(1, dtype=bool) if v.valid is None else v.valid for v in (value, other)]
        valid = xp.where(condition, masks[0], masks[1])
    low = xp.where(condition, value.low, other.low) if value.low is not None and other.low is not None else None
    return Value(value.dtype, xp.where(condition, value.data, other.data), valid, low)


def in_words(words: Sequence[Array], dtype: pa.DataType, valid: Array | None) -> Value:
    """Make a decimal of its low (unsigned) and high (signed) words."""
    low, high = words
    return Value(dtype, high, valid, low) if is_wide_decimal(dtype) else Value(dtype, low.view("int64"), valid)
