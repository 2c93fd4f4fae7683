"""Rounding to a constant number of digits, after the point or, if negative, before it.

``round(x, 1)`` of 2.25 is 2.3, ``round(x, -1)`` of 25 is 30. Integers keep their type; a decimal gets room for one more
digit before the point, as 9.9 becomes 10. ``ceil`` and ``floor`` of two operands convert theirs to a decimal first.
"""

from __future__ import annotations

import dataclasses
import decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.ordered.reductions import any_true
from gpujoin.errors import DeviceValueError
from gpujoin.functions.decimals import largest, narrow, scale_up
from gpujoin.functions.device import Active, Offer, Operands, operand_types
from gpujoin.functions.device_decimals import drops_few_digits, rounded, with_decimals
from gpujoin.functions.implementation import fail, null_or_raise
from gpujoin.functions.signatures import (
    INT,
    NUMBER,
    Convert,
    Parameter,
    Signature,
    cast_to,
    constant_scale,
    to,
    type_of,
    typed,
    types_of,
)
from gpujoin.functions.spec import FunctionSpec, Raises
from gpujoin.functions.values import Value
from gpujoin.functions.vector import INT64_MAX, Array, Vector, mask_and
from gpujoin.functions.widening import decimal_for
from gpujoin.model.expressions import Call, EvalMode, Function, Literal
from gpujoin.model.types import MAX_PRECISION, is_float, is_whole

MOST_DIGITS = 15
"""Most digits after the point to which all versions of Java round doubles alike."""
_WHOLE = 2.0**52
"""Doubles from here on are integers."""
_RESOLVED = 2.0**51
"""Up to here a product of a double and a power of ten is known to less than a half."""
_SHORT_HALF = 1e14
"""Halves above lesser integers have at most 15 digits, so that their doubles are printed exactly."""
_DECIMALS_OF_FLOATS = {pa.float32(): pa.decimal128(14, 7), pa.float64(): pa.decimal128(30, 15)}
"""The decimals that floats are converted to where a decimal is wanted."""
_NULL_AS_DECIMAL = to(pa.decimal128(38, 18))


def round_by_halves(xp: Any, values: Any, scale: int, function: Function) -> tuple[Any, Any]:
    """Round doubles to 0 to 15 digits after the point, by comparing each with the half between two results.

    ``values`` is an array of the module ``xp``. Also returns the mask of the doubles that have too many digits for
    that. A result may be a negative zero, which no decimal is.
    """
    size, unit = xp.abs(values), 10.0**scale
    fractional = (size < _WHOLE) & (size != xp.floor(size))
    size = xp.where(fractional, size, 0.0)
    product = size * unit
    below = xp.floor(product)
    half = (2.0 * below + 1.0) / (2.0 * unit)
    at_half = size == half
    upwards = at_half if function is Function.ROUND else at_half & (below % 2.0 == 1.0)
    rounded = (below + ((size > half) | upwards)) / unit
    unsure = fractional & ((product >= _RESOLVED) | (at_half & (below >= _SHORT_HALF)))
    return xp.where(fractional, xp.copysign(rounded, values), values), unsure


def rounded_decimal(dtype: pa.DataType, scale: int) -> pa.DataType:
    """Type of a decimal that was rounded to a number of digits after the point."""
    whole = dtype.precision - dtype.scale + 1
    if scale < 0:
        return pa.decimal128(min(max(whole, 1 - scale), MAX_PRECISION), 0)
    digits = min(dtype.scale, scale)
    return pa.decimal128(min(whole + digits, MAX_PRECISION), digits)


def _to_decimal(source: pa.DataType, mode: EvalMode) -> pa.DataType | None:
    if is_whole(source) or pat.is_decimal(source):
        return decimal_for(source)
    return _DECIMALS_OF_FLOATS.get(source) or _NULL_AS_DECIMAL(source, mode)


def _rounding(convert: Convert) -> Signature:
    """Signature of a function of a number and a constant scale."""
    number = Parameter(NUMBER.accepts, convert)

    def resolve(node: Call) -> Call | None:
        value, scale = node.arguments
        target = number.convert(type_of(value), node.mode)
        if target is None or not isinstance(scale, Literal) or not isinstance(scale.value, int):
            return None
        scale = dataclasses.replace(scale, type=pa.int32())
        result = rounded_decimal(target, scale.value) if pat.is_decimal(target) else target
        return typed(node, result, cast_to(value, target, node.mode), scale)

    def accepts(node: Call) -> bool:
        value, scale = types_of(node)
        return number.accepts(value) and INT.accepts(scale)

    return Signature(resolve, accepts, (2, 2), (number, INT))


def _never_raises(node: Call) -> bool:
    """Whether no value can overflow: digits are dropped after the point alone, or a decimal has room for one more."""
    scale, dtype = constant_scale(node), types_of(node)[0]
    if is_float(dtype) or (scale is not None and scale >= 0):
        return True
    return pat.is_decimal(dtype) and scale is not None and max(dtype.precision - dtype.scale, -scale) < MAX_PRECISION


_NUMBERS = _rounding(NUMBER.convert)
_DECIMALS = _rounding(_to_decimal)


# -- NumPy and Arrow --------------------------------------------------------------------------------------------------


_MOST_SCALE = 2 * MAX_PRECISION
"""Greatest scale, of either sign, to which integers and decimals are rounded here."""
_EXACT = decimal.Context(prec=400)
_MODES = {Function.ROUND: decimal.ROUND_HALF_UP, Function.ROUND_EVEN: decimal.ROUND_HALF_EVEN}


def exact_scale(node: Call) -> bool:
    """Whether a call's number of digits is a constant with Spark's result."""
    scale = constant_scale(node)
    if scale is None:
        return False
    return 0 <= scale <= MOST_DIGITS if is_float(types_of(node)[0]) else abs(scale) <= _MOST_SCALE


def _round(node: Call, operands: list[Vector], _length: int) -> Vector:
    vector, scale = operands[0], constant_scale(node)
    assert scale is not None
    if pat.is_decimal(vector.dtype):
        return _decimal(node, vector, scale)
    if is_float(vector.dtype):
        rounded = round_double(vector.values.astype(np.float64), scale, node.function)
        values = rounded if pat.is_float64(vector.dtype) else _single(rounded, vector.values, scale, node.function)
        return Vector(type_of(node), values, vector.valid)
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
    return Vector(type_of(node), wrapped.astype(np.int64).astype(vector.values.dtype), valid)


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


# -- device -----------------------------------------------------------------------------------------------------------


_MOST_ZEROS = 18
"""Most digits before the point that are rounded away: the largest power of ten that fits 64 bits."""


def _device_round(operands: Operands, node: Call, active: Active) -> Value:
    value, scale = operands.fixed(node.arguments[0], active), constant_scale(node)
    assert scale is not None
    if pat.is_float64(value.dtype):
        return _device_double(operands, node, value, scale, active)
    if scale >= 0:
        return value
    return _device_integer(operands, node, value, 10**-scale, active)


def _device_integer(operands: Operands, node: Call, value: Value, unit: int, active: Active) -> Value:
    """Round to a multiple of a power of ten; what does not fit wraps around, or raises in ANSI mode."""
    xp, own = operands.xp, value.data.dtype
    wide = value.data.astype("int64")
    quotient = wide // unit
    rest = wide - quotient * unit
    # The quotient is rounded downwards, so that a half of a negative number is away from zero already.
    upwards = wide >= 0 if node.function is Function.ROUND else quotient % 2 != 0
    above = (rest > unit // 2) | ((rest == unit // 2) & upwards)
    step = xp.where(above, unit - rest, -rest)
    rounded = wide + step
    limits = xp.iinfo(own)
    bad = (rounded < limits.min) | (rounded > limits.max) | (((wide ^ rounded) & (step ^ rounded)) < 0)
    return operands.checked(node, rounded.astype(own), value.valid, bad, active)


def _device_double(operands: Operands, node: Call, value: Value, scale: int, active: Active) -> Value:
    rounded, unsure = round_by_halves(operands.xp, value.data, scale, node.function)
    looked_at = mask_and(mask_and(unsure, value.valid), active)
    if looked_at is not None and any_true(looked_at):
        raise DeviceValueError(f"{node}: a double has too many digits to be compared with a half")
    return Value(value.dtype, rounded + 0.0, value.valid)  # No decimal is a negative zero.


def _fits_device(node: Call) -> bool:
    """Whether integers or doubles are rounded to a number of digits with a result that is certainly Spark's."""
    scale, dtype = constant_scale(node), operand_types(node)[0]
    return pat.is_float64(dtype) or (is_whole(dtype) and scale is not None and scale >= -_MOST_ZEROS)


_ON_DEVICE = with_decimals(Offer(_device_round, _fits_device), rounded, drops_few_digits)


TABLE = (
    FunctionSpec(
        Function.ROUND, ("Round",), _NUMBERS,
        raises=Raises.ANSI_OR_DECIMAL, safe=_never_raises,
        exact=exact_scale, numpy=_round, device=_ON_DEVICE,
    ),
    FunctionSpec(
        Function.ROUND_EVEN, ("BRound",), _NUMBERS,
        raises=Raises.ANSI_OR_DECIMAL, safe=_never_raises,
        exact=exact_scale, numpy=_round, device=_ON_DEVICE,
    ),
    FunctionSpec(
        Function.ROUND_CEIL, ("RoundCeil",), _DECIMALS,
        raises=Raises.ANSI_OR_DECIMAL, safe=_never_raises,
        exact=exact_scale, numpy=_round,
    ),
    FunctionSpec(
        Function.ROUND_FLOOR, ("RoundFloor",), _DECIMALS,
        raises=Raises.ANSI_OR_DECIMAL, safe=_never_raises,
        exact=exact_scale, numpy=_round,
    ),
)  # fmt: skip
