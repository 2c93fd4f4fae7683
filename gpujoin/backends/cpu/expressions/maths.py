"""Functions of floating-point numbers, and operators over the bits of integers, as in Java."""

from __future__ import annotations

import numpy as np
import pyarrow.types as pat

from gpujoin.backends.cpu.expressions.arithmetic import to_int64
from gpujoin.backends.cpu.expressions.implementation import Run, of_arrays
from gpujoin.backends.cpu.expressions.vector import INT64_MAX, Array, Vector, mask_and_not
from gpujoin.model.expressions import Call, Function

_DEGREES_OF_RADIAN = 57.29577951308232
_RADIANS_OF_DEGREE = 0.017453292519943295
"""Java's constants: each is the double next to its quotient."""


def _sign(values: Array) -> Array:
    """−1 or 1; zeros keep their sign, and NaN stays."""
    return np.asarray(np.where((values == 0) | np.isnan(values), values, np.copysign(1.0, values)))


def _width_bucket(node: Call, operands: list[Vector], length: int) -> Vector:
    """Number of the bucket of a value among equally wide ones; null for ranges that are empty or endless."""
    rows = 1 if all(o.constant for o in operands) else length
    operands = [o.expand(rows) for o in operands]
    value, first, last, count = (o.values for o in operands)
    assert node.type is not None
    unknown = (
        (count <= 0)
        | (count == INT64_MAX)
        | np.isnan(value)
        | (first == last)
        | ~np.isfinite(first)
        | ~np.isfinite(last)
    )
    with np.errstate(all="ignore"):
        ascending = first < last
        passed = np.where(ascending, value - first, first - value)
        width = np.where(ascending, last - first, first - last)
        inside = to_int64(np.asarray(count.astype(np.float64) * passed / width)) + 1
        before = np.where(ascending, value < first, value > first)
        after = np.where(ascending, value >= last, value <= last)
        buckets = np.where(before, 0, np.where(after, count + 1, inside))
    valid = mask_and_not(None, unknown)
    for operand in operands:
        mask = operand.mask()
        valid = valid if mask is None else valid & mask
    return Vector(node.type, buckets.astype(np.int64), valid)


def _bit_count(values: Array) -> Array:
    if values.dtype == np.bool_:
        return values.astype(np.int32)
    return np.asarray(np.bitwise_count(values.astype(np.int64).view(np.uint64)))


def _shifted(node: Call, operands: list[Vector], length: int) -> Vector:
    """Shift by the lowest 5 or 6 bits of the second operand."""
    bits = 64 if pat.is_int64(operands[0].dtype) else 32

    def shift(values: Array, count: Array) -> Array:
        places = (count & (bits - 1)).astype(values.dtype)
        match node.function:
            case Function.SHIFT_LEFT:
                return np.asarray(np.left_shift(values, places))
            case Function.SHIFT_RIGHT:
                return np.asarray(np.right_shift(values, places))
        unsigned = np.dtype(f"u{bits // 8}")
        return np.asarray(np.right_shift(values.view(unsigned), places.view(unsigned)).view(values.dtype))

    return of_arrays(shift)(node, operands, length)


FUNCTIONS: dict[Function, Run] = {
    Function.SIGN: of_arrays(_sign),
    Function.DEGREES: of_arrays(lambda values: values * _DEGREES_OF_RADIAN),
    Function.RADIANS: of_arrays(lambda values: values * _RADIANS_OF_DEGREE),
    Function.WIDTH_BUCKET: _width_bucket,
    Function.BIT_AND: of_arrays(np.bitwise_and),
    Function.BIT_OR: of_arrays(np.bitwise_or),
    Function.BIT_XOR: of_arrays(np.bitwise_xor),
    Function.BIT_NOT: of_arrays(np.invert),
    Function.SHIFT_LEFT: _shifted,
    Function.SHIFT_RIGHT: _shifted,
    Function.SHIFT_RIGHT_UNSIGNED: _shifted,
    Function.BIT_COUNT: of_arrays(_bit_count),
}
