"""Functions of floating-point numbers, and operators over the bits of integers, as in Java."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pyarrow.types as pat

from gpujoin.backends.cpu.expressions import fdlibm
from gpujoin.backends.cpu.expressions.arithmetic import to_int64
from gpujoin.backends.cpu.expressions.implementation import Run, fail, of_arrays
from gpujoin.backends.cpu.expressions.vector import INT64_MAX, Array, Vector, mask_and, mask_and_not
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


def _logarithm(compute: Callable[[Array], Array], least: float = 0.0) -> Run:
    """Make an implementation that gives null for numbers up to a limit."""

    def run(node: Call, operands: list[Vector], length: int) -> Vector:
        result = of_arrays(compute)(node, operands, length)
        low = np.asarray(operands[0].values <= least)
        return result.with_valid(mask_and_not(result.valid, low)) if low.any() else result

    return run


def _log(node: Call, operands: list[Vector], length: int) -> Vector:
    """Logarithm to a base; null if either number is not positive."""
    result = of_arrays(lambda base, x: fdlibm.log(x) / fdlibm.log(base))(node, operands, length)
    low = np.asarray((operands[0].values <= 0) | (operands[1].values <= 0))
    return result.with_valid(mask_and_not(result.valid, low)) if low.any() else result


_LN2 = math.log(2.0)
"""The double next to ln 2, which fdlibm gives too."""
_FACTORIALS = np.array([math.factorial(n) for n in range(21)], np.int64)


def _factorial(node: Call, operands: list[Vector], _length: int) -> Vector:
    """Product of the numbers from 1 to 20 at most; null for other numbers."""
    (vector,) = operands
    assert node.type is not None
    outside = np.asarray((vector.values < 0) | (vector.values > 20))
    values = _FACTORIALS[np.where(outside, 0, vector.values)]
    return Vector(node.type, values, mask_and_not(vector.valid, outside) if outside.any() else vector.valid)


def _bit_get(node: Call, operands: list[Vector], length: int) -> Vector:
    """One bit of an integer; in every mode an error where it has none of that number."""
    values, positions = operands
    valid = mask_and(values.valid, positions.valid)
    outside = np.asarray((positions.values < 0) | (positions.values >= values.dtype.bit_width))
    if (outside if valid is None else outside & valid).any():
        fail(node, f"integers of {values.dtype.bit_width} bits have no such bit")
    return of_arrays(lambda v, n: (v.astype(np.int64) >> np.clip(n, 0, 63)) & 1)(node, operands, length)


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
    Function.EXP: of_arrays(fdlibm.exp),
    Function.EXPM1: of_arrays(fdlibm.expm1),
    Function.LN: _logarithm(fdlibm.log),
    Function.LOG2: _logarithm(lambda x: fdlibm.log(x) / _LN2),
    Function.LOG10: _logarithm(fdlibm.log10),
    Function.LOG1P: _logarithm(fdlibm.log1p, -1.0),
    Function.LOG: _log,
    Function.POW: of_arrays(fdlibm.pow),
    Function.CBRT: of_arrays(fdlibm.cbrt),
    Function.HYPOT: of_arrays(fdlibm.hypot),
    Function.ACOS: of_arrays(fdlibm.acos),
    Function.ASIN: of_arrays(fdlibm.asin),
    Function.ATAN: of_arrays(fdlibm.atan),
    # Spark adds a zero, which makes negative zeros positive.
    Function.ATAN2: of_arrays(lambda y, x: fdlibm.atan2(y + 0.0, x + 0.0)),
    Function.SINH: of_arrays(fdlibm.sinh),
    Function.COSH: of_arrays(fdlibm.cosh),
    Function.TANH: of_arrays(fdlibm.tanh),
    Function.ATANH: of_arrays(lambda x: 0.5 * (fdlibm.log1p(x) - fdlibm.log1p(-x))),
    Function.RINT: of_arrays(np.rint),
    Function.FACTORIAL: _factorial,
    Function.BIT_GET: _bit_get,
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
