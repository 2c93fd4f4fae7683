"""Arithmetic of 128-bit integers as two words, for decimals of more than 18 digits.

Runs on CuPy and on NumPy, whose 64-bit integers wrap around. The high word is int64, the low one uint64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gpujoin.functions.values import MASK64, Value
from gpujoin.functions.vector import Array
from gpujoin.model.types import is_wide_decimal

_HALF = 32
_LOW_HALF = (1 << _HALF) - 1
LIMBS = 4


@dataclass(frozen=True, eq=False)
class Words:
    """Numbers of 128 bits in two's complement."""

    high: Array
    """High 64 bits."""
    low: Array
    """Lower word."""


def words_of(value: Value) -> Words:
    """Unscaled values of a decimal, or values of an integer, as two words."""
    if value.low is not None:
        return Words(value.data, value.low)
    return widened(value.data.astype("int64"))


def of_words(unscaled: Words, dtype: pa.DataType, valid: Array | None) -> Value:
    """Make a decimal of two words; a narrow type has only the low one."""
    if is_wide_decimal(dtype):
        return Value(dtype, unscaled.high, valid, unscaled.low)
    return Value(dtype, unscaled.low.view("int64"), valid)


def widened(values: Array) -> Words:
    """Extend int64 values by their sign."""
    return Words(values >> 63, values.view("uint64"))


def constant(xp: Any, value: int) -> Words:
    """Make a constant, as arrays of length one."""
    return Words(xp.asarray([value >> 64], dtype="int64"), xp.asarray([value & MASK64], dtype="uint64"))


def add(left: Words, right: Words) -> Words:
    """Sum, wrapping around."""
    low = left.low + right.low
    carry = (low < left.low).astype("int64")
    return Words(left.high + right.high + carry, low)


def negate(value: Words) -> Words:
    """Negation, wrapping around."""
    low = ~value.low + value.low.dtype.type(1)
    return Words(~value.high + (low == 0).astype("int64"), low)


def subtract(left: Words, right: Words) -> Words:
    """Difference, wrapping around."""
    borrow = (left.low < right.low).astype("int64")
    return Words(left.high - right.high - borrow, left.low - right.low)


def sum_overflows(left: Words, right: Words, total: Words) -> Array:
    """Mask of the sums that overflow 128 bits."""
    return ((left.high ^ total.high) & (right.high ^ total.high)) < 0


def less(left: Words, right: Words) -> Array:
    """Mask of the rows at which a number is less than another."""
    return (left.high < right.high) | ((left.high == right.high) & (left.low < right.low))


def unsigned_less(left: Words, right: Words) -> Array:
    """Mask of the rows at which an unsigned number is less than another."""
    high, top = left.high.view("uint64"), right.high.view("uint64")
    return (high < top) | ((high == top) & (left.low < right.low))


def as_double(value: Words) -> Array:
    """Convert unsigned numbers to doubles, off by less than 2**-51 of them."""
    return value.high.view("uint64").astype("float64") * 2.0**64 + value.low.astype("float64")


def bits(value: Words, shift: int, count: int) -> Array:
    """Some bits of numbers that are not negative, less than 64, as uint64."""
    word = value.low.dtype.type
    high = value.high.view("uint64")
    if shift >= 64:
        part = high >> word(shift - 64)
    elif shift == 0:
        part = value.low
    else:
        part = (value.low >> word(shift)) | (high << word(64 - shift))
    return part & word((1 << count) - 1)


def normalised(xp: Any, value: Words) -> tuple[Words, Array]:
    """Shift magnitudes of less than 127 bits to the left until they have 127; also by how much, as int64. 0 stays 0."""
    high, low = value.high.view("uint64"), value.low
    word = low.dtype.type
    count = xp.zeros_like(value.high)
    empty = high == 0
    high, low = xp.where(empty, low >> word(1), high), xp.where(empty, low << word(63), low)
    count = count + empty * 63
    for step in (32, 16, 8, 4, 2, 1):
        small = high < word(1 << (63 - step))
        moved = (high << word(step)) | (low >> word(64 - step))
        high, low = xp.where(small, moved, high), xp.where(small, low << word(step), low)
        count = count + small * step
    return Words(high.view("int64"), low), count


def times(value: Words, factor: Array | int) -> Words:
    """Multiply by an unsigned word, wrapping around."""
    word = value.low.dtype.type(factor) if isinstance(factor, int) else factor
    top, low = _product(value.low, word)
    return Words((value.high.view("uint64") * word + top).view("int64"), low)


def magnitude(xp: Any, value: Words) -> Words:
    """Absolute value as an unsigned number, also of the most negative one."""
    return signed(xp, value, value.high < 0)


def signed(xp: Any, size: Words, negative: Array) -> Words:
    """Negate magnitudes where a mask is true."""
    turned = negate(size)
    return Words(xp.where(negative, turned.high, size.high), xp.where(negative, turned.low, size.low))


def multiply(xp: Any, left: Words, right: Words) -> tuple[Words, Array]:
    """Product, and the mask of overflows of 127 bits, where it wraps around."""
    a, b = magnitude(xp, left), magnitude(xp, right)
    a_high, b_high = a.high.view("uint64"), b.high.view("uint64")
    middle_left, over_left = _times(a_high, b.low)
    middle_right, over_right = _times(b_high, a.low)
    top, low = _product(a.low, b.low)
    high = top + middle_left
    over = (high < top) | over_left | over_right | ((a_high != 0) & (b_high != 0))
    total = high + middle_right
    over = over | (total < high) | (total.view("int64") < 0)
    return signed(xp, Words(total.view("int64"), low), (left.high < 0) ^ (right.high < 0)), over


def _times(left: Array, right: Array) -> tuple[Array, Array]:
    """Low word of a product of unsigned words, and the mask where the high word is not zero."""
    top, low = _product(left, right)
    return low, top != 0


def _product(left: Array, right: Array) -> tuple[Array, Array]:
    """High and low word of a product of unsigned words."""
    half, mask = left.dtype.type(_HALF), left.dtype.type(_LOW_HALF)
    left_high, left_low = left >> half, left & mask
    right_high, right_low = right >> half, right & mask
    lowest = left_low * right_low
    upper = left_high * right_low + (lowest >> half)
    lower = left_low * right_high + (upper & mask)
    return left_high * right_high + (upper >> half) + (lower >> half), (lower << half) | (lowest & mask)


def outside(xp: Any, value: Words, digits: int) -> Array:
    """Mask of the numbers with more than ``digits`` decimal digits."""
    limit = constant(xp, 10**digits)
    return ~unsigned_less(magnitude(xp, value), limit)


def limbs(value: Words) -> tuple[Array, ...]:
    """Split numbers into four parts of 32 bits as int64, lowest first; only the last one has a sign."""
    half, mask = value.low.dtype.type(_HALF), value.low.dtype.type(_LOW_HALF)
    return (
        (value.low & mask).view("int64"), (value.low >> half).view("int64"), value.high & _LOW_HALF,
        value.high >> _HALF,
    )  # fmt: skip


def carried(parts: tuple[Array, ...]) -> tuple[Array, ...]:
    """Carry, so that each part but the last fits 32 bits again."""
    limbs: list[Array] = []
    carry: Array | None = None
    for part in parts[:-1]:
        whole = part if carry is None else part + carry
        limbs.append(whole & _LOW_HALF)
        carry = whole >> _HALF
    last = parts[-1] if carry is None else parts[-1] + carry
    return (*limbs, last)


def of_limbs(parts: tuple[Array, ...]) -> tuple[Words, Array]:
    """Put two or four parts of :func:`carried` together; also the mask of overflows of 128 bits."""
    low = (parts[0] | ((parts[1] & _LOW_HALF) << _HALF)).view("uint64")
    if len(parts) == LIMBS:
        top = parts[3]
        fits = (top >= -(1 << 31)) & (top < (1 << 31))
        return Words((top << _HALF) | parts[2], low), ~fits
    return Words(parts[1] >> _HALF, low), parts[0] < 0
