"""Translates arithmetic to Polars expressions, where bounds prove that nothing overflows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.pipeline.columns import INT64, INT128, Bounds, magnitude, type_bounds, within
from gpujoin.backends.cpu.pipeline.lowering.lowered import (
    Lowered,
    NotLowered,
    Rule,
    fitted,
    known,
    of_values,
    rescaled,
    result_type,
    size,
)
from gpujoin.model.expressions import Call, EvalMode, Expression, Function, Literal
from gpujoin.model.types import MAX_PRECISION, is_float


def _simple(function: Function, left: Bounds, right: Bounds) -> Bounds:
    if function is Function.ADD:
        return left[0] + right[0], left[1] + right[1]
    if function is Function.SUBTRACT:
        return left[0] - right[1], left[1] - right[0]
    corners = [a * b for a in left for b in right]
    return min(corners), max(corners)


_OPERATE: dict[Function, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    Function.ADD: lambda a, b: a + b,
    Function.SUBTRACT: lambda a, b: a - b,
    Function.MULTIPLY: lambda a, b: a * b,
}


def _arithmetic(node: Call, values: list[Lowered]) -> Lowered:
    left, right = values
    dtype = result_type(node)
    operate = _OPERATE[node.function]
    if is_float(dtype):
        if left.dtype != dtype or right.dtype != dtype:
            raise NotLowered("mixed floats")
        if node.function is not Function.MULTIPLY and not all(map(_adds_exactly, values, node.arguments)):
            raise NotLowered("Polars leaves out the addition of a constant zero, which changes -0.0")
        return Lowered(operate(left.expr, right.expr), dtype)
    limits = type_bounds(dtype)
    if limits is None:
        raise NotLowered(f"arithmetic on {dtype}")
    if not pat.is_decimal(dtype):
        bounds = _simple(node.function, known(left), known(right))
        if left.dtype != dtype or right.dtype != dtype or not within(bounds, limits):
            raise NotLowered("an integer that may overflow")
        return Lowered(operate(left.expr, right.expr), dtype, bounds)
    if node.function is not Function.MULTIPLY:
        scale = max(left.dtype.scale, right.dtype.scale)
        left, right = rescaled(left, scale), rescaled(right, scale)
    else:
        scale = left.dtype.scale + right.dtype.scale
    bounds = _simple(node.function, known(left), known(right))
    if not within(bounds, INT128):
        raise NotLowered("a result beyond 128 bits")
    wide = left.wide or right.wide or not within(bounds, INT64)
    exact = operate(fitted(left, wide=wide), fitted(right, wide=wide))
    exact_type = pa.decimal128(38, scale) if scale <= MAX_PRECISION else pa.decimal256(76, scale)
    result = rescaled(Lowered(exact, exact_type, bounds, wide), dtype.scale)
    if not within(known(result), limits):
        raise NotLowered(f"values beyond {dtype}")
    return Lowered(result.expr, dtype, result.bounds, result.wide)


def _adds_exactly(value: Lowered, node: Expression) -> bool:
    """Whether Polars adds an operand exactly: all but constants that may be zero."""
    return not value.constant or (isinstance(node, Literal) and bool(node.value))


def _divide(node: Call, values: list[Lowered]) -> Lowered:
    left, right = values
    if pat.is_decimal(result_type(node)):
        return _divide_decimals(node, left, right)
    if not is_float(result_type(node)) or left.dtype != right.dtype:
        raise NotLowered("division")
    if right.constant:
        raise NotLowered("Polars divides by a constant through its reciprocal, which rounds twice")
    if node.mode is EvalMode.ANSI:
        raise NotLowered("division by what may be zero")
    return Lowered(pl.when(right.expr != 0).then(left.expr / right.expr), result_type(node))


def _divide_decimals(node: Call, left: Lowered, right: Lowered) -> Lowered:
    """Divide unscaled values, halves away from zero; by zero is null."""
    dtype, limits = result_type(node), type_bounds(result_type(node))
    assert limits is not None
    digits = dtype.scale + right.dtype.scale - left.dtype.scale
    left, right = rescaled(left, left.dtype.scale + max(0, digits)), rescaled(right, right.dtype.scale - min(0, digits))
    low, high = known(right)
    by_zero = low <= 0 <= high
    if by_zero and node.mode is EvalMode.ANSI:
        raise NotLowered("division by what may be zero")
    twice_dividend, most = 2 * magnitude(known(left)), magnitude((low, high))
    terms = (0, max(twice_dividend + most, 2 * most))
    if not within(terms, INT128):
        raise NotLowered("a dividend beyond 128 bits")
    least = 1 if by_zero else min(abs(low), abs(high))
    largest = (twice_dividend + least) // (2 * least)
    if not within((-largest, largest), limits):
        raise NotLowered(f"values beyond {dtype}")
    wide = left.wide or right.wide or not within(terms, INT64)
    dividend, divisor = (replace(value, expr=fitted(value, wide=wide), wide=wide) for value in (left, right))
    quotient = (size(dividend) * 2 + size(divisor)) // (size(divisor) * 2)
    negative = (dividend.expr < 0) != (divisor.expr < 0)
    result = pl.when(negative).then(quotient * -1).otherwise(quotient)
    if by_zero:
        result = pl.when(divisor.expr != 0).then(result)
    return Lowered(result, dtype, (-largest, largest), wide)


def _negate(node: Call, values: list[Lowered]) -> Lowered:
    (value,) = values
    if is_float(value.dtype):
        return Lowered(-value.expr, value.dtype)
    low, high = known(value)
    limits = type_bounds(value.dtype)
    assert limits is not None
    if not within((-high, -low), limits) or (pat.is_decimal(value.dtype) and magnitude((low, high)) >= 10**34):
        raise NotLowered("a negation that may overflow")
    return Lowered(value.expr * -1, result_type(node), (-high, -low), value.wide)


def _absolute(node: Call, values: list[Lowered]) -> Lowered:
    (value,) = values
    if is_float(value.dtype):
        return Lowered(value.expr.abs(), value.dtype)
    bounds = known(value)
    limits = type_bounds(value.dtype)
    assert limits is not None
    largest = magnitude(bounds)
    if largest > limits[1] or (pat.is_decimal(value.dtype) and largest >= 10**34):
        raise NotLowered("an absolute value that may overflow")
    return Lowered(size(value), result_type(node), (0, largest), value.wide)


FUNCTIONS: dict[Function, Rule] = {
    **dict.fromkeys(_OPERATE, _arithmetic),
    Function.DIVIDE: _divide,
    Function.NEGATE: _negate,
    Function.ABS: _absolute,
    Function.SQRT: of_values(lambda value: value.sqrt(), pa.float64()),
    Function.IS_NAN: of_values(lambda value: value.is_nan().fill_null(value=False), pa.bool_()),
    Function.UNSCALED_VALUE: lambda _node, values: Lowered(fitted(values[0], wide=False), pa.int64(), values[0].bounds),
}
