"""Spark's arithmetic, one value at a time, over the cells of `gpujoin.testing`."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.model.expressions import EvalMode, Function
from gpujoin.testing import Cell
from tests.cells import EXACT
from tests.oracle.casting import NoValue, failed, fits, single, to_scale, wrap

FUNCTIONS = (
    Function.ADD,
    Function.SUBTRACT,
    Function.MULTIPLY,
    Function.DIVIDE,
    Function.INTEGRAL_DIVIDE,
    Function.REMAINDER,
    Function.PMOD,
    Function.NEGATE,
    Function.ABS,
    Function.FLOOR,
    Function.CEIL,
    Function.ROUND,
    Function.ROUND_EVEN,
    Function.ROUND_CEIL,
    Function.ROUND_FLOOR,
)
_ROUNDINGS = {
    Function.ROUND: decimal.ROUND_HALF_UP,
    Function.ROUND_EVEN: decimal.ROUND_HALF_EVEN,
    Function.ROUND_CEIL: decimal.ROUND_CEILING,
    Function.ROUND_FLOOR: decimal.ROUND_FLOOR,
}
_LONG = decimal.Context(prec=400)
_DIVISIONS = (Function.DIVIDE, Function.INTEGRAL_DIVIDE, Function.REMAINDER, Function.PMOD)
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
_MOST, _KEPT_SCALE = 38, 6
_SPARKS_NEGATION = decimal.Context(prec=34, rounding=decimal.ROUND_HALF_EVEN)
"""Spark negates through Scala's BigDecimal, which rounds to the 34 digits of IEEE 754's decimal128."""


def result_type(function: Function, operands: Sequence[pa.DataType]) -> pa.DataType:
    """Type of the result, from those of the operands, by Spark's rules.

    Raises
    ------
    NotImplementedError
        If an operand is no number.
    """
    numbers = [t for t in operands if not pat.is_null(t)] or [pa.float64()]
    if not all(pat.is_integer(t) or pat.is_floating(t) or pat.is_decimal(t) for t in numbers):
        raise NotImplementedError(f"the oracle has no {function.value} over {', '.join(map(str, operands))}")
    if function in (Function.FLOOR, Function.CEIL):
        kind = numbers[0]
        return pa.decimal128(min(kind.precision - kind.scale + 1, _MOST), 0) if pat.is_decimal(kind) else pa.int64()
    if function in _ROUNDINGS and pat.is_decimal(numbers[0]):
        raise NotImplementedError(
            f"the oracle takes the type of {function.value} over {numbers[0]} from resolved trees"
        )
    if function in (Function.NEGATE, Function.ABS, *_ROUNDINGS):
        return numbers[0]
    if function is Function.INTEGRAL_DIVIDE:
        return pa.int64()
    if any(pat.is_floating(t) for t in numbers):
        doubles = function is Function.DIVIDE or not all(pat.is_float32(t) for t in numbers)
        return pa.float64() if doubles else pa.float32()
    if any(pat.is_decimal(t) for t in numbers):
        return _decimal_type(function, *(_digits(t) for t in numbers))
    if function is Function.DIVIDE:
        return pa.float64()
    return max(numbers, key=lambda t: t.bit_width)


def _digits(dtype: pa.DataType) -> tuple[int, int]:
    """Precision and scale."""
    return (dtype.precision, dtype.scale) if pat.is_decimal(dtype) else (_DIGITS[dtype.bit_width], 0)


def _decimal_type(function: Function, left: tuple[int, int], right: tuple[int, int]) -> pa.DataType:
    (p1, s1), (p2, s2) = left, right
    if function in (Function.ADD, Function.SUBTRACT):
        scale = max(s1, s2)
        precision = max(p1 - s1, p2 - s2) + scale + 1
    elif function is Function.MULTIPLY:
        precision, scale = p1 + p2 + 1, s1 + s2
    elif function is Function.DIVIDE:
        scale = max(_KEPT_SCALE, s1 + p2 + 1)
        precision = p1 - s1 + s2 + scale
    else:
        scale = max(s1, s2)
        precision = min(p1 - s1, p2 - s2) + scale
    if precision > _MOST:
        scale = max(_MOST - (precision - scale), min(scale, _KEPT_SCALE))
        precision = _MOST
    return pa.decimal128(precision, scale)


def operation(
    function: Function, operands: Sequence[pa.DataType], dtype: pa.DataType, mode: EvalMode
) -> Callable[..., Cell]:
    """Give the function of one or two cells, neither of them null.

    Parameters
    ----------
    function : Function
        One of :data:`FUNCTIONS`.
    operands : sequence of pyarrow.DataType
        Types of the operands.
    dtype : pyarrow.DataType
        Type of the result.
    mode : EvalMode
        What becomes of overflow and of division by zero.
    """
    fractional = any(pat.is_floating(t) for t in operands)
    exact = not fractional and any(pat.is_decimal(t) for t in operands)
    if pat.is_floating(dtype) or fractional:
        compute: Callable[..., Cell] = _FLOATS[function]
        prepare: Callable[[Cell], Cell] = float
    elif exact:
        compute, prepare = _DECIMALS[function], Decimal
    else:
        compute, prepare = _INTEGERS[function], int

    # Spark's negation and rounding of a decimal check the result's digits in every mode.
    on_overflow = EvalMode.ANSI if exact and function in (Function.NEGATE, Function.ABS, *_ROUNDINGS) else mode

    def run(*values: Cell) -> Cell:
        prepared = [prepare(value) for value in values]
        if function in _DIVISIONS and prepared[1] == 0:
            return failed(mode, f"division by zero in {values[0]!r} {function.value} {values[1]!r}")
        try:
            return _fitted(compute(*prepared), dtype, mode)
        except NoValue:
            return failed(on_overflow, f"{function.value} of {', '.join(map(repr, values))} overflows {dtype}")

    return run


def _fitted(value: Cell, dtype: pa.DataType, mode: EvalMode) -> Cell:
    if pat.is_float64(dtype):
        return value
    if pat.is_float32(dtype):
        return single(value)
    if pat.is_decimal(dtype):
        return to_scale(Decimal(value), dtype)
    if isinstance(value, float):  # floor and ceil: Java's conversion saturates and gives 0 for NaN
        low, high = -(1 << 63), (1 << 63) - 1
        value = 0 if math.isnan(value) else int(min(max(value, low), high))
        return min(max(value, low), high)
    bits = dtype.bit_width
    whole = int(value)
    if fits(whole, bits) or mode is EvalMode.LEGACY:
        return wrap(whole, bits)
    raise NoValue


def _float_remainder(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) or math.isinf(a) else math.fmod(a, b)


def _float_pmod(a: float, b: float) -> float:
    remainder = _float_remainder(a, b)
    return _float_remainder(remainder + b, b) if remainder < 0 else remainder


def _float_rounding(function: Callable[[float], int]) -> Callable[[float], float]:
    return lambda value: float(function(value)) if math.isfinite(value) else value


def _truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _remainder(a: int, b: int) -> int:
    return a - b * _truncated(a, b)


def _pmod(a: int, b: int) -> int:
    remainder = _remainder(a, b)
    return _remainder(remainder + b, b) if remainder < 0 else remainder


def _decimal_division(a: Decimal, b: Decimal) -> Decimal:
    # Spark divides to 38 digits after the point first, and rounds to the result's scale from there.
    numerator = int(a.scaleb(76, context=EXACT))
    denominator = int(b.scaleb(38, context=EXACT))
    quotient, rest = divmod(abs(numerator), abs(denominator))
    if 2 * rest >= abs(denominator):
        quotient += 1
    return Decimal(quotient if (numerator < 0) == (denominator < 0) else -quotient).scaleb(-38, context=EXACT)


def _decimal_pmod(a: Decimal, b: Decimal) -> Decimal:
    remainder = EXACT.remainder(a, b)
    return EXACT.remainder(EXACT.add(remainder, b), b) if remainder < 0 else remainder


def _whole(value: Decimal, rounding: str) -> Decimal:
    return value.to_integral_value(rounding, context=EXACT)


def _rounded(value: Decimal, digits: int, rounding: str) -> Decimal:
    return value.quantize(Decimal((0, (1,), -digits)), rounding, _LONG)


def _rounded_float(function: Function) -> Callable[[float, float], float]:
    """Round the decimal that is printed of a float."""
    mode = _ROUNDINGS[function]
    return lambda a, n: float(_rounded(Decimal(repr(a)), int(n), mode)) + 0.0 if math.isfinite(a) else a


def _rounded_decimal(function: Function) -> Callable[[Decimal, Decimal], Decimal]:
    mode = _ROUNDINGS[function]
    return lambda a, n: _rounded(a, int(n), mode)


def _rounded_integer(function: Function) -> Callable[[int, int], int]:
    mode = _ROUNDINGS[function]
    return lambda a, n: a if n >= 0 else int(_rounded(Decimal(a), n, mode))


_FLOATS: dict[Function, Callable[..., Cell]] = {
    Function.ADD: lambda a, b: a + b,
    Function.SUBTRACT: lambda a, b: a - b,
    Function.MULTIPLY: lambda a, b: a * b,
    Function.DIVIDE: lambda a, b: a / b,
    Function.REMAINDER: _float_remainder,
    Function.PMOD: _float_pmod,
    Function.NEGATE: lambda a: -a,
    Function.ABS: abs,
    Function.FLOOR: _float_rounding(math.floor),
    Function.CEIL: _float_rounding(math.ceil),
    **{function: _rounded_float(function) for function in _ROUNDINGS},
}
_INTEGERS: dict[Function, Callable[..., Cell]] = {
    Function.ADD: lambda a, b: a + b,
    Function.SUBTRACT: lambda a, b: a - b,
    Function.MULTIPLY: lambda a, b: a * b,
    Function.INTEGRAL_DIVIDE: _truncated,
    Function.REMAINDER: _remainder,
    Function.PMOD: _pmod,
    Function.NEGATE: lambda a: -a,
    Function.ABS: abs,
    Function.FLOOR: int,
    Function.CEIL: int,
    **{function: _rounded_integer(function) for function in _ROUNDINGS},
}
_DECIMALS: dict[Function, Callable[..., Cell]] = {
    Function.ADD: EXACT.add,
    Function.SUBTRACT: EXACT.subtract,
    Function.MULTIPLY: EXACT.multiply,
    Function.DIVIDE: _decimal_division,
    Function.INTEGRAL_DIVIDE: lambda a, b: int(_whole(EXACT.divide(a, b), decimal.ROUND_DOWN)),
    Function.REMAINDER: EXACT.remainder,
    Function.PMOD: _decimal_pmod,
    Function.NEGATE: _SPARKS_NEGATION.minus,
    Function.ABS: lambda a: _SPARKS_NEGATION.minus(a) if a < 0 else a,
    Function.FLOOR: lambda a: _whole(a, decimal.ROUND_FLOOR),
    Function.CEIL: lambda a: _whole(a, decimal.ROUND_CEILING),
    **{function: _rounded_decimal(function) for function in _ROUNDINGS},
}
