"""Rounding to a constant number of digits: ``round``, ``bround``, and ``ceil`` and ``floor`` of two arguments.

Spark rounds a double as the decimal that Java prints of it, so that ``round(2.675D, 2)`` is 2.68 although the double is
a little less than 2.675. Here a double is compared with the double of the half between its neighbours: of 2.675 these
neighbours are 2.67 and 2.68, the half is 2.675, and the two doubles are equal. A decimal of at most 15 digits that
gives a double is the one that is printed of it; so 2.675 is printed, and that is a half. Where the doubles differ, all
decimals of the one lie on one side of the other. Halves of more digits, and values whose digits after the point exceed
what a double resolves, are rounded row by row from the printed decimal.

Versions of Java print some doubles with different digits: integers beyond 2^53, powers of two and the least of all
values, 17 digits after the first. None of these is changed by rounding to 0 to 15 digits after the point. Other numbers
of digits are left to Spark.
"""

from __future__ import annotations

import decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.types as pat

from gpujoin.backends.cpu.expressions.decimals import largest, narrow, scale_up
from gpujoin.backends.cpu.expressions.implementation import Run, fail, null_or_raise
from gpujoin.backends.cpu.expressions.vector import INT64_MAX, Array, Vector
from gpujoin.functions.rounding import MOST_DIGITS, constant_scale, round_by_halves
from gpujoin.functions.signatures import types_of
from gpujoin.model.expressions import Call, EvalMode, Function
from gpujoin.model.types import MAX_PRECISION, is_float

_MOST_SCALE = 2 * MAX_PRECISION
"""Greatest scale, of either sign, to which integers and decimals are rounded here."""
_EXACT = decimal.Context(prec=400)
_MODES = {Function.ROUND: decimal.ROUND_HALF_UP, Function.ROUND_EVEN: decimal.ROUND_HALF_EVEN}


def exact_scale(node: Call) -> bool:
    """Whether a call's number of digits is a constant for which the result is Spark's."""
    scale = constant_scale(node)
    if scale is None:
        return False
    return 0 <= scale <= MOST_DIGITS if is_float(types_of(node)[0]) else abs(scale) <= _MOST_SCALE


def _round(node: Call, operands: list[Vector], _length: int) -> Vector:
    vector, scale = operands[0], constant_scale(node)
    assert node.type is not None
    assert scale is not None
    if pat.is_decimal(vector.dtype):
        return _decimal(node, vector, scale)
    if is_float(vector.dtype):
        rounded = round_double(vector.values.astype(np.float64), scale, node.function)
        values = rounded if pat.is_float64(vector.dtype) else _single(rounded, vector.values, scale, node.function)
        return Vector(node.type, values, vector.valid)
    if scale >= 0:
        return vector
    return _integer(node, vector, -scale)


def _multiples(function: Function, values: Array, unit: int) -> Array:
    """Round integers to multiples of a unit, and divide by it."""
    quotient, rest = values // unit, values % unit
    if function is Function.ROUND_FLOOR:
        return np.asarray(quotient)
    if function is Function.ROUND_CEIL:
        return np.asarray(quotient + (rest != 0))
    half = np.asarray(rest == unit - rest, np.bool_)
    # The quotient is rounded downwards, so that a half of a negative number is away from zero already.
    upwards = values >= 0 if function is Function.ROUND else quotient % 2 != 0
    above = np.asarray(rest > unit - rest, np.bool_) | (half & np.asarray(upwards, np.bool_))
    return np.asarray(quotient + above)


def _integer(node: Call, vector: Vector, digits: int) -> Vector:
    """Round integers before the point. Results that do not fit wrap, or raise in ANSI mode."""
    assert node.type is not None
    unit = 10**digits
    values = vector.values.astype(np.int64 if unit <= INT64_MAX else object)
    multiples = _multiples(node.function, values, unit)
    exact = narrow(multiples.astype(object) * unit) if largest(multiples) * unit > INT64_MAX else multiples * unit
    low, high = np.iinfo(vector.values.dtype).min, np.iinfo(vector.values.dtype).max
    bad = np.asarray((exact < low) | (exact > high), np.bool_)
    valid = vector.valid
    if node.mode is not EvalMode.LEGACY:
        valid = null_or_raise(node, bad, valid, "the integer result overflows")
    wrapped = exact if exact.dtype != object else np.array([v & ((1 << 64) - 1) for v in exact], np.uint64)
    return Vector(node.type, wrapped.astype(np.int64).astype(vector.values.dtype), valid)


def _decimal(node: Call, vector: Vector, scale: int) -> Vector:
    assert node.type is not None
    dropped = vector.dtype.scale - min(scale, vector.dtype.scale)
    if dropped == 0:
        return Vector(node.type, vector.values, vector.valid)
    unit = 10**dropped
    values = vector.values if unit <= INT64_MAX else vector.values.astype(object)
    multiples = narrow(_multiples(node.function, values, unit))
    if scale >= 0:
        return Vector(node.type, multiples, vector.valid)
    if vector.valid is not None:
        multiples = np.where(vector.valid, multiples, 0)
    if largest(multiples) * 10**-scale >= 10**node.type.precision:
        fail(node, f"the result does not fit {node.type}")
    return Vector(node.type, narrow(scale_up(multiples, -scale, largest(multiples))), vector.valid)


def round_double(
    values: npt.NDArray[np.float64], scale: int, function: Function = Function.ROUND
) -> npt.NDArray[np.float64]:
    """Round doubles as the decimals that are printed of them, to 0 to 15 digits after the point."""
    with np.errstate(all="ignore"):
        rounded, unsure = round_by_halves(np, values, scale, function)
    for row in np.flatnonzero(unsure):
        rounded[row] = float(_printed(float(values[row]), scale, function))
    # No decimal is a negative zero.
    return np.asarray(rounded + 0.0, np.float64)


def _printed(value: float, scale: int, function: Function) -> decimal.Decimal:
    """Round the decimal that is printed of a double."""
    exponent = decimal.Decimal((0, (1,), -scale))
    return decimal.Decimal(repr(value)).quantize(exponent, _MODES[function], _EXACT)


_DOUBLE_ONLY = np.int64((1 << 29) - 1)
"""The bits of a double that a float lacks."""


def _single(
    rounded: npt.NDArray[np.float64], values: npt.NDArray[Any], scale: int, function: Function
) -> npt.NDArray[np.float32]:
    """Floats from the doubles nearest to decimals: the float nearest to the decimal, which is rounded once only."""
    result = rounded.astype(np.float32)
    halfway = np.isfinite(rounded) & ((rounded.view(np.int64) & _DOUBLE_ONLY) == 1 << 28)
    for row in np.flatnonzero(halfway):
        exact, double = Fraction(_printed(float(values[row]), scale, function)), float(rounded[row])
        if exact != Fraction(double):
            result[row] = np.nextafter(double, np.inf if exact > Fraction(double) else -np.inf)
    return result


FUNCTIONS: dict[Function, Run] = dict.fromkeys(
    (Function.ROUND, Function.ROUND_EVEN, Function.ROUND_CEIL, Function.ROUND_FLOOR), _round
)
