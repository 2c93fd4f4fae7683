"""Exact decimal arithmetic on unscaled integers, rounded half up to Spark's result type.

Every operation is done in int64 when the largest operands prove that nothing can overflow, and in Python integers
otherwise. The least int64 is never among int64 values, so that all of them can be negated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.types as pat

from gpujoin.functions.implementation import fail, null_or_raise
from gpujoin.functions.signatures import type_of
from gpujoin.functions.vector import INT64_MAX, Array, Mask, Vector, mask_and
from gpujoin.model.expressions import Call, Cast, EvalMode, Function
from gpujoin.model.types import LONG_DIGITS, MAX_PRECISION

_QUOTIENT_DIGITS = 39
_NEGATED_DIGITS = 34


def magnitude(vector: Vector) -> int:
    """Bound the absolute unscaled values of a decimal column."""
    if vector.values.dtype != object and vector.dtype.precision <= LONG_DIGITS:
        return int(10**vector.dtype.precision - 1)
    return largest(vector.values)


def largest(values: Array) -> int:
    """Find the largest absolute value."""
    return max(abs(int(values.max())), abs(int(values.min()))) if len(values) else 0


def _wide(values: Array) -> Array:
    return values if values.dtype == object else values.astype(object)


def narrow(values: Array) -> Array:
    """Go back to int64 if all values fit."""
    if values.dtype == object and largest(values) <= INT64_MAX:
        return values.astype(np.int64)
    return values


def scale_up(values: Array, digits: int, bound: int) -> Array:
    """Multiply by a power of ten."""
    if digits == 0:
        return values
    factor = 10**digits
    if values.dtype != object and (
        factor > INT64_MAX or (bound * factor > INT64_MAX and largest(values) * factor > INT64_MAX)
    ):
        values = _wide(values)
    return values * factor


def divide_half_up(values: Array, divisor: Any) -> Array:
    """Divide, rounding to the nearest integer and halves away from zero; divisors are positive."""
    size = np.abs(values)
    quotient = size // divisor
    rest = size - quotient * divisor
    quotient = quotient + np.asarray(rest >= divisor - rest, np.bool_)
    return np.where(np.asarray(values < 0, np.bool_), -quotient, quotient)


def truncate(values: Array, divisor: Any) -> Array:
    """Divide, rounding towards zero; divisors may be negative."""
    quotient = np.abs(values) // np.abs(divisor)
    negative = np.asarray(values < 0, np.bool_) != np.asarray(divisor < 0, np.bool_)
    return np.where(negative, -quotient, quotient)


def rescale(values: Array, source: int, target: int, bound: int | None = None) -> Array:
    """Change the scale, rounding half up where digits are dropped."""
    if target >= source:
        return scale_up(values, target - source, largest(values) if bound is None else bound)
    dropped = 10 ** (source - target)
    if dropped > INT64_MAX:
        values = _wide(values)
    return divide_half_up(values, dropped)


def too_large(values: Array, precision: int) -> Mask:
    """Mark values with more digits than a precision allows."""
    limit = 10**precision
    if values.dtype != object:
        if limit > INT64_MAX:
            return np.zeros(len(values), np.bool_)
        return np.asarray((values >= limit) | (values <= -limit))
    return np.asarray([v >= limit or v <= -limit for v in values], np.bool_)


def common_scale(left: Vector, right: Vector) -> tuple[Array, Array]:
    """Bring two decimal columns to the larger scale."""
    scale = max(left.dtype.scale, right.dtype.scale)
    left_unscaled = scale_up(left.values, scale - left.dtype.scale, magnitude(left))
    right_unscaled = scale_up(right.values, scale - right.dtype.scale, magnitude(right))
    return left_unscaled, right_unscaled


def fitted(node: Call | Cast, values: Array, valid: Mask | None, precision: int) -> tuple[Array, Mask | None]:
    """Make values that exceed the precision of the result null, or raise in ANSI mode."""
    if valid is not None and values.dtype == object:
        values = np.where(valid, values, 0)
    bad = too_large(values, precision)
    why = f"the result does not fit {node.type}"
    valid = null_or_raise(node, bad, valid, why)
    if values.dtype == object and valid is not None:
        values = np.where(valid, values, 0)
    return narrow(values), valid


def arithmetic(node: Call, left: Vector, right: Vector) -> Vector:
    """Compute ``+ - * / div % pmod`` of two decimal columns.

    The result is exact before it is rounded half up to the scale of the node's type (Spark computes with a few more
    digits than the result has and then rounds; the outcome is the same).
    """
    valid = mask_and(left.mask(), right.mask())
    if node.function in (Function.ADD, Function.SUBTRACT):
        left_unscaled, right_unscaled = common_scale(left, right)
        if (
            left_unscaled.dtype != object
            and right_unscaled.dtype != object
            and largest(left_unscaled) + largest(right_unscaled) > INT64_MAX
        ):
            left_unscaled = _wide(left_unscaled)
        values = left_unscaled + right_unscaled if node.function is Function.ADD else left_unscaled - right_unscaled
        scale = max(left.dtype.scale, right.dtype.scale)
        return _finish(node, values, scale, valid)
    if node.function is Function.MULTIPLY:
        return _finish(node, _product(left, right), left.dtype.scale + right.dtype.scale, valid)
    return _division(node, left, right, valid)


def _product(left: Vector, right: Vector) -> Array:
    left_unscaled, right_unscaled = left.values, right.values
    narrow_operands = left_unscaled.dtype != object and right_unscaled.dtype != object
    proven = narrow_operands and magnitude(left) * magnitude(right) <= INT64_MAX
    if narrow_operands and not proven and largest(left_unscaled) * largest(right_unscaled) > INT64_MAX:
        left_unscaled = _wide(left_unscaled)
    return np.asarray(left_unscaled * right_unscaled)


def _finish(node: Call, values: Array, scale: int, valid: Mask | None) -> Vector:
    assert node.type is not None
    values = rescale(values, scale, node.type.scale)
    values, valid = fitted(node, values, valid, node.type.precision)
    return Vector(node.type, values, valid)


def _division(node: Call, left: Vector, right: Vector, valid: Mask | None) -> Vector:
    assert node.type is not None
    zero = np.asarray(right.values == 0, np.bool_)
    valid = null_or_raise(node, zero, valid, "division by zero")
    dividend, divisor = left.values, np.where(zero, 1, right.values)
    if node.function is Function.DIVIDE:
        shift = node.type.scale + right.dtype.scale - left.dtype.scale
        if shift >= 0:
            dividend = scale_up(dividend, shift, magnitude(left))
        else:
            divisor = scale_up(divisor, -shift, largest(divisor))
        sign = np.where(np.asarray(divisor < 0, np.bool_), -1, 1)
        values = divide_half_up(dividend * sign, np.abs(divisor))
        values, valid = fitted(node, values, valid, node.type.precision)
        return Vector(node.type, values, valid)
    dividend, divisor = common_scale(left, Vector(right.dtype, divisor))
    if node.function is Function.INTEGRAL_DIVIDE:
        whole = left.dtype.precision - left.dtype.scale + right.dtype.scale
        return _integral(node, _quotient(node, dividend, divisor, valid), valid, min(whole, MAX_PRECISION))
    remainder = _remainder(node, dividend, divisor, valid)
    if node.function is Function.PMOD:
        negative = np.asarray(remainder < 0, np.bool_)
        if remainder.dtype != object and negative.any() and largest(remainder) + largest(divisor) > INT64_MAX:
            remainder = _wide(remainder)
        remainder = np.where(negative, _remainder(node, remainder + divisor, divisor, valid), remainder)
    return _finish(node, remainder, max(left.dtype.scale, right.dtype.scale), valid)


def _remainder(node: Call, dividend: Array, divisor: Array, valid: Mask | None) -> Array:
    return np.asarray(dividend - _quotient(node, dividend, divisor, valid) * divisor)


def _quotient(node: Call, dividend: Array, divisor: Array, valid: Mask | None) -> Array:
    """Divide, rounding towards zero; a quotient that is too long for Java is an error in every mode."""
    quotient = truncate(dividend, divisor)
    if quotient.dtype == object:
        # Java gives up on a quotient of more than 39 digits, unless all beyond are zeros.
        size = np.abs(quotient)
        unit = np.array([10 ** max(0, len(str(q)) - _QUOTIENT_DIGITS) for q in size], object)
        impossible = np.asarray(size % unit != 0, np.bool_)
        if (impossible if valid is None else impossible & valid).any():
            fail(node, f"the quotient has more than {_QUOTIENT_DIGITS} digits")
    return quotient


def _integral(node: Call, quotient: Array, valid: Mask | None, precision: int) -> Vector:
    """Convert a quotient to int64, as Java's ``longValue`` does, if it does not exceed a precision."""
    quotient, valid = fitted(node, quotient, valid, precision)
    return Vector(type_of(node), wrap_int64(quotient), valid)


def wrap_int64(values: Array) -> npt.NDArray[np.int64]:
    """Keep the low 64 bits."""
    if values.dtype != object:
        return values.astype(np.int64, copy=False)
    return np.array([v & ((1 << 64) - 1) for v in values], np.uint64).view(np.int64)


def negate(node: Call, vector: Vector) -> Array:
    """Negate unscaled values.

    Spark rounds here, and only here, to 34 significant digits, half to even. The result may then have a digit too
    many, which is an error in every mode.
    """
    values = vector.values
    if values.dtype != object or largest(values) < 10**_NEGATED_DIGITS:
        return np.asarray(-values)
    present = values if vector.valid is None else np.where(vector.valid, values, 0)
    rounded = np.array([_rounded_even(v) for v in present], object)
    if largest(rounded) >= 10**vector.dtype.precision:
        fail(node, f"the result does not fit {node.type}")
    return -rounded


def _rounded_even(value: int) -> int:
    unit = 10 ** max(0, len(str(abs(value))) - _NEGATED_DIGITS)
    quotient, rest = divmod(abs(value), unit)
    if 2 * rest > unit or (2 * rest == unit and quotient % 2):
        quotient += 1
    return quotient * unit if value > 0 else -quotient * unit


def absolute(node: Call, vector: Vector) -> Array:
    """Drop the sign; negative values are negated as by :func:`negate`."""
    negative = np.asarray(vector.values < 0, np.bool_)
    if not negative.any():
        return np.asarray(vector.values)
    only = Vector(vector.dtype, np.where(negative, vector.values, 0), vector.valid)
    return np.where(negative, negate(node, only), vector.values)


def floor_or_ceil(node: Call, vector: Vector) -> Vector:
    """Round to an integer, downwards or upwards."""
    unit = 10**vector.dtype.scale
    values = _wide(vector.values) if unit > INT64_MAX else vector.values
    rounded = values // unit if node.function is Function.FLOOR else -((-values) // unit)
    values, valid = fitted(node, np.asarray(rounded), vector.valid, type_of(node).precision)
    return Vector(type_of(node), values, valid)


def to_double(vector: Vector) -> npt.NDArray[np.float64]:
    """Convert to the nearest double."""
    scale = vector.dtype.scale
    if vector.values.dtype != object and scale <= 22 and (
        magnitude(vector) < 1 << 53 or largest(vector.values) < 1 << 53
    ):  # fmt: skip
        # Both are exact doubles, so the division rounds once.
        return np.asarray(vector.values / float(10**scale), np.float64)
    return np.asarray(_wide(vector.values) / 10**scale, np.float64)


def to_whole(node: Cast, vector: Vector) -> tuple[npt.NDArray[np.int64], Mask | None]:
    """Truncate to a 64-bit integer. Values that do not fit wrap, or raise in ANSI mode."""
    values = truncate(_scalable(vector), 10**vector.dtype.scale) if vector.dtype.scale else vector.values
    valid = vector.valid
    if node.mode is not EvalMode.LEGACY and values.dtype == object:
        bad = np.array([not -(1 << 63) <= v < 1 << 63 for v in values], np.bool_)
        valid = null_or_raise(node, bad, valid, f"a value does not fit {node.type}")
    return wrap_int64(np.asarray(values)), valid


def _scalable(vector: Vector) -> Array:
    return _wide(vector.values) if vector.dtype.scale > LONG_DIGITS else vector.values


def from_whole(node: Cast, values: Array, valid: Mask | None) -> Vector:
    """Convert integers or booleans to the decimal type of a cast."""
    assert node.type is not None
    unscaled = _wide(values) if largest(values) > INT64_MAX else values.astype(np.int64)
    unscaled = scale_up(unscaled, node.type.scale, INT64_MAX)
    unscaled, valid = fitted(node, unscaled, valid, node.type.precision)
    return Vector(node.type, unscaled, valid)


def to_decimal(node: Cast, vector: Vector) -> Vector:
    """Change precision and scale."""
    assert node.type is not None
    assert pat.is_decimal(node.type)
    values = rescale(vector.values, vector.dtype.scale, node.type.scale, magnitude(vector))
    if node.type.precision - node.type.scale >= vector.dtype.precision - vector.dtype.scale + (
        node.type.scale < vector.dtype.scale
    ):
        return Vector(node.type, narrow(values), vector.valid)
    values, valid = fitted(node, values, vector.valid, node.type.precision)
    return Vector(node.type, values, valid)


def divide_half_up_int(value: int, divisor: int) -> int:
    """Divide one non-negative integer, rounding halves up."""
    return (value + divisor // 2) // divisor
