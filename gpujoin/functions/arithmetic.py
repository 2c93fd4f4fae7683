"""Arithmetic of integers, floats and decimals."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.comparison import with_literal_precision
from gpujoin.functions.dates import date_arithmetic
from gpujoin.functions.signatures import (
    DOUBLE,
    FLOAT,
    NUMBER,
    TO_DOUBLE,
    Parameter,
    Signature,
    Types,
    cast_to,
    first,
    kept,
    over,
    takes,
    type_of,
    typed,
    types_of,
)
from gpujoin.functions.spec import NOT_FUSED, FunctionSpec, Nulls, Order, Raises
from gpujoin.functions.widening import LEAST_SCALE, adjusted_decimal, bounded_decimal, decimal_for, tightest
from gpujoin.model.expressions import Call, EvalMode, Expression, Function
from gpujoin.model.types import is_float, is_numeric, is_text, is_whole

LONG_DIGITS = 18
"""Decimals of so many digits fit 64 bits unscaled, whatever they are."""


def _arithmetic(node: Call) -> Expression | None:
    dates = date_arithmetic(node)
    if dates is not None:
        return dates
    numbers = _as_numbers(node)
    if numbers is None:
        return None
    node = with_literal_precision(numbers)
    left, right = (type_of(a) for a in node.arguments)
    division = node.function in (Function.DIVIDE, Function.INTEGRAL_DIVIDE)
    if pat.is_decimal(left) or pat.is_decimal(right):
        if is_float(left) or is_float(right):
            left = right = pa.float64()
        else:
            return _decimals(node, decimal_for(left), decimal_for(right))
    if division:
        whole = node.function is Function.INTEGRAL_DIVIDE
        if whole and (is_float(left) or is_float(right)):
            return None
        return over(node, pa.int64() if whole else pa.float64())
    return over(node, tightest(left, right, node.mode))


def _decimals(node: Call, left_type: pa.DataType, right_type: pa.DataType) -> Call:
    left, right = node.arguments
    arguments = (cast_to(left, left_type, node.mode), cast_to(right, right_type, node.mode))
    if node.function is Function.INTEGRAL_DIVIDE:
        return typed(node, pa.int64(), *arguments)
    return typed(node, _decimal_result(node.function, left_type, right_type), *arguments)


def _as_numbers(node: Call) -> Call | None:
    """Turn text and null operands into numbers."""
    types = [type_of(a) for a in node.arguments]
    if all(pat.is_null(t) for t in types):
        return over(node, pa.float64())
    arguments = []
    for own, other, argument in zip(types, reversed(types), node.arguments, strict=True):
        if is_text(own):
            whole = node.mode is EvalMode.ANSI and is_whole(other)
            arguments.append(cast_to(argument, pa.int64() if whole else pa.float64(), node.mode))
        elif pat.is_null(own):
            arguments.append(cast_to(argument, pa.float64() if is_text(other) else other, node.mode))
        else:
            arguments.append(argument)
    if not all(is_numeric(type_of(a)) for a in arguments):
        return None
    return dataclasses.replace(node, arguments=tuple(arguments))


def _decimal_result(function: Function, left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Find the result type of ``+ - * / %`` and ``pmod`` on two decimals."""
    p1, s1, p2, s2 = left.precision, left.scale, right.precision, right.scale
    if function in (Function.ADD, Function.SUBTRACT):
        scale = max(s1, s2)
        return adjusted_decimal(max(p1 - s1, p2 - s2) + scale + 1, scale)
    if function is Function.MULTIPLY:
        return adjusted_decimal(p1 + p2 + 1, s1 + s2)
    if function is Function.DIVIDE:
        scale = max(LEAST_SCALE, s1 + p2 + 1)
        return adjusted_decimal(p1 - s1 + s2 + scale, scale)
    scale = max(s1, s2)
    return adjusted_decimal(min(p1 - s1, p2 - s2) + scale, scale)


def _has_room(node: Call) -> bool:
    """Whether the result type of a sum, difference or product of decimals holds every exact result."""
    types = types_of(node)
    if node.type is None or not pat.is_decimal(node.type) or not all(map(pat.is_decimal, types)):
        return False
    wholes, scales = [each.precision - each.scale for each in types], [each.scale for each in types]
    product = node.function is Function.MULTIPLY
    whole, scale = (sum(wholes), sum(scales)) if product else (max(wholes) + 1, max(scales))
    return bool(node.type.precision - node.type.scale >= whole and node.type.scale >= scale)


def _alike_numbers(node: Call) -> bool:
    types = types_of(node)
    same = all(map(pat.is_decimal, types)) or all(t == types[0] for t in types)
    return same and all(map(NUMBER.accepts, types))


def _to_integral(source: pa.DataType, mode: EvalMode) -> pa.DataType | None:
    return pa.int64() if is_whole(source) else TO_DOUBLE(source, mode)


def _integral(types: Types) -> pa.DataType:
    (dtype,) = types
    return bounded_decimal(dtype.precision - dtype.scale + 1, 0) if pat.is_decimal(dtype) else pa.int64()


def _is_long_decimal(dtype: pa.DataType) -> bool:
    return pat.is_decimal(dtype) and dtype.precision <= LONG_DIGITS


_PAIR = Signature(_arithmetic, _alike_numbers)
_SIGN = takes(NUMBER, gives=first)
_INTEGRAL = takes(
    Parameter(lambda t: pat.is_decimal128(t) or is_whole(t) or pat.is_float64(t), kept(pat.is_decimal, _to_integral)),
    gives=_integral,
)
_LONG_DECIMAL = Parameter(_is_long_decimal, kept(_is_long_decimal, lambda _source, _mode: None))
_F = Function

TABLE = (
    FunctionSpec(_F.ADD, ("Add",), _PAIR, raises=Raises.OVERFLOW, safe=_has_room),
    FunctionSpec(_F.SUBTRACT, ("Subtract",), _PAIR, raises=Raises.OVERFLOW, safe=_has_room),
    FunctionSpec(_F.MULTIPLY, ("Multiply",), _PAIR, raises=Raises.OVERFLOW, safe=_has_room),
    FunctionSpec(_F.DIVIDE, ("Divide",), _PAIR, raises=Raises.ANSI, order=Order.RIGHT_FIRST),
    FunctionSpec(
        _F.INTEGRAL_DIVIDE, ("IntegralDivide",), _PAIR,
        raises=Raises.ANSI_OR_DECIMAL, order=Order.RIGHT_FIRST, lacks=NOT_FUSED,
    ),
    FunctionSpec(
        _F.REMAINDER, ("Remainder",), _PAIR,
        raises=Raises.ANSI_OR_DECIMAL, order=Order.RIGHT_FIRST, lacks=NOT_FUSED,
    ),
    FunctionSpec(
        _F.PMOD, ("Pmod",), _PAIR,
        raises=Raises.ANSI_OR_DECIMAL, order=Order.RIGHT_FIRST, lacks=NOT_FUSED,
    ),
    FunctionSpec(_F.NEGATE, ("UnaryMinus",), _SIGN, raises=Raises.ANSI_OR_DECIMAL),
    FunctionSpec(_F.ABS, ("Abs",), _SIGN, raises=Raises.ANSI_OR_DECIMAL),
    FunctionSpec(_F.FLOOR, ("Floor",), _INTEGRAL, raises=Raises.ANSI, lacks=NOT_FUSED),
    FunctionSpec(_F.CEIL, ("Ceil",), _INTEGRAL, raises=Raises.ANSI, lacks=NOT_FUSED),
    FunctionSpec(_F.SQRT, ("Sqrt",), takes(DOUBLE, gives=pa.float64())),
    FunctionSpec(_F.IS_NAN, ("IsNaN",), takes(FLOAT, gives=pa.bool_()), nulls=Nulls.READ),
    FunctionSpec(_F.UNSCALED_VALUE, ("UnscaledValue",), takes(_LONG_DECIMAL, gives=pa.int64())),
)  # fmt: skip
