"""Arithmetic of integers, floats and decimals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions import decimals
from gpujoin.functions import values as v
from gpujoin.functions.comparison import with_literal_precision
from gpujoin.functions.dates import date_arithmetic
from gpujoin.functions.device import Active, Kernel, KernelWriter, Offer, Operands, operand_types, strict, suffix
from gpujoin.functions.device_decimals import keeps_digits, signed, with_decimals
from gpujoin.functions.implementation import Run, null_or_raise, of_arrays
from gpujoin.functions.libraries import pl
from gpujoin.functions.lowered import (
    INT64,
    INT128,
    Bounds,
    Lowered,
    NotLowered,
    bounds_of,
    fitted,
    magnitude,
    of_values,
    rescaled,
    result_type,
    size,
    type_bounds,
    within,
)
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
    keep,
    over,
    takes,
    type_of,
    typed,
    types_of,
)
from gpujoin.functions.spec import FunctionSpec, Nulls, Order, Raises
from gpujoin.functions.values import Value
from gpujoin.functions.vector import INT64_MAX, Array, Mask, Vector, mask_and, mask_and_not
from gpujoin.functions.widening import LEAST_SCALE, adjusted_decimal, bounded_decimal, decimal_for, tightest
from gpujoin.model.expressions import Call, EvalMode, Expression, Function, Literal
from gpujoin.model.types import LONG_DIGITS, MAX_PRECISION, is_float, is_numeric, is_text, is_whole


def _resolve_arithmetic(node: Call) -> Expression | None:
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


def _resolve_integral(types: Types) -> pa.DataType:
    (dtype,) = types
    return bounded_decimal(dtype.precision - dtype.scale + 1, 0) if pat.is_decimal(dtype) else pa.int64()


def _is_long_decimal(dtype: pa.DataType) -> bool:
    return pat.is_decimal(dtype) and dtype.precision <= LONG_DIGITS


_PAIR = Signature(_resolve_arithmetic, _alike_numbers)
_SIGN = takes(NUMBER, gives=first)
_INTEGRAL = takes(
    Parameter(lambda t: pat.is_decimal128(t) or is_whole(t) or pat.is_float64(t), keep(pat.is_decimal, _to_integral)),
    gives=_resolve_integral,
)
_LONG_DECIMAL = Parameter(_is_long_decimal, keep(_is_long_decimal, lambda _source, _mode: None))


# -- NumPy and Arrow --------------------------------------------------------------------------------------------------


_OVERFLOW = "the integer result overflows"
_ZERO = "division by zero"


def _binary(node: Call, operands: list[Vector], _length: int) -> Vector:
    left, right = operands
    if pat.is_decimal(left.dtype):
        return decimals.arithmetic(node, left, right)
    valid = mask_and(left.mask(), right.mask())
    with np.errstate(all="ignore"):
        if node.function in _SIMPLE:
            values, valid = _simple(node, left.values, right.values, valid)
        else:
            values, valid = _division(node, left.values, right.values, valid)
    return Vector(type_of(node), values, valid)


_SIMPLE: dict[Function, Callable[[Any, Any], Any]] = {
    Function.ADD: np.add,
    Function.SUBTRACT: np.subtract,
    Function.MULTIPLY: np.multiply,
}


def _simple(node: Call, left: Array, right: Array, valid: Mask | None) -> tuple[Array, Mask | None]:
    values = np.asarray(_SIMPLE[node.function](left, right))
    if is_float(type_of(node)) or node.mode is EvalMode.LEGACY:
        return values, valid
    return values, null_or_raise(node, _overflows(node.function, left, right, values), valid, _OVERFLOW)


def _overflows(function: Function, left: Array, right: Array, result: Array) -> Mask:
    if function is Function.ADD:
        return np.asarray(((left ^ result) & (right ^ result)) < 0)
    if function is Function.SUBTRACT:
        return np.asarray(((left ^ right) & (left ^ result)) < 0)
    if result.dtype.itemsize < 8:
        return np.asarray(np.multiply(left, right, dtype=np.int64) != result)
    if decimals.largest(left) * decimals.largest(right) <= INT64_MAX:
        return np.zeros(len(result), np.bool_)
    divisor = np.where(right == 0, 1, right)
    least = np.iinfo(np.int64).min
    return np.asarray(((result // divisor != left) & (right != 0)) | ((right == -1) & (left == least)))


def _division(node: Call, left: Array, right: Array, valid: Mask | None) -> tuple[Array, Mask | None]:
    zero = right == 0
    if zero.any():
        valid = null_or_raise(node, zero, valid, _ZERO)
        right = np.where(zero, np.ones(1, right.dtype), right)
    match node.function:
        case Function.DIVIDE:
            return np.asarray(left / right), valid
        case Function.REMAINDER:
            return _remainder(left, right), valid
        case Function.PMOD:
            kind = left.dtype
            if kind.itemsize < 4:
                # Java adds bytes and shorts as ints.
                left, right = left.astype(np.int32), right.astype(np.int32)
            remainder = _remainder(left, right)
            positive = np.asarray(np.where(remainder < 0, _remainder(remainder + right, right), remainder))
            return positive.astype(kind), valid
        case _:
            least = np.iinfo(np.int64).min
            if node.mode is not EvalMode.LEGACY:
                valid = null_or_raise(node, np.asarray((left == least) & (right == -1)), valid, _OVERFLOW)
            remainder = _remainder(left, right)
            # Dividing the least integer by −1 leaves it as it is, as in Java.
            quotient = (left - remainder) // np.where(right == -1, 1, right)
            return np.where(right == -1, np.negative(left), quotient), valid


def _remainder(left: Array, right: Array) -> Array:
    """Compute Java's remainder: the sign is the dividend's."""
    if left.dtype.kind == "i":
        # C leaves the least integer modulo −1 undefined.
        return np.asarray(
            np.where(right == -1, np.zeros(1, left.dtype), np.fmod(left, np.where(right == -1, 1, right)))
        )
    return np.asarray(np.fmod(left, right))


def _signed(compute: Callable[[Array], Array], of_decimals: Callable[[Call, Vector], Array]) -> Run:
    def run(node: Call, operands: list[Vector], _length: int) -> Vector:
        (vector,) = operands
        if pat.is_decimal(vector.dtype):
            return Vector(type_of(node), of_decimals(node, vector), vector.valid)
        return Vector(type_of(node), compute(vector.values), _without_least(node, vector))

    return run


def _without_least(node: Call, vector: Vector) -> Mask | None:
    if vector.values.dtype.kind != "i" or pat.is_decimal(vector.dtype) or node.mode is EvalMode.LEGACY:
        return vector.valid
    least = np.iinfo(vector.values.dtype).min
    return null_or_raise(node, vector.values == least, vector.valid, _OVERFLOW)


def _floor_or_ceil(node: Call, operands: list[Vector], _length: int) -> Vector:
    """Round to an integer: int64, or a decimal of scale 0."""
    (vector,) = operands
    if pat.is_decimal(vector.dtype):
        return decimals.floor_or_ceil(node, vector)
    if vector.values.dtype.kind == "i":
        return Vector(pa.int64(), vector.values.astype(np.int64), vector.valid)
    rounded = np.floor(vector.values) if node.function is Function.FLOOR else np.ceil(vector.values)
    valid = vector.valid
    if node.mode is not EvalMode.LEGACY:
        edge = float(1 << 63)
        # Not a number is 0, as in Java.
        valid = null_or_raise(node, (rounded < -edge) | (rounded >= edge), valid, _OVERFLOW)
    return Vector(pa.int64(), v.truncated(np, rounded), valid)


def _is_nan(_node: Call, operands: list[Vector], _length: int) -> Vector:
    (vector,) = operands
    nan = np.isnan(vector.values)
    return Vector(pa.bool_(), nan if vector.valid is None else nan & vector.valid)


# -- Polars -----------------------------------------------------------------------------------------------------------


def _lower_bounds(function: Function, left: Bounds, right: Bounds) -> Bounds:
    if function is Function.ADD:
        return left[0] + right[0], left[1] + right[1]
    if function is Function.SUBTRACT:
        return left[0] - right[1], left[1] - right[0]
    corners = [a * b for a in left for b in right]
    return min(corners), max(corners)


_POLARS: dict[Function, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    Function.ADD: lambda a, b: a + b,
    Function.SUBTRACT: lambda a, b: a - b,
    Function.MULTIPLY: lambda a, b: a * b,
}


def _lower_arithmetic(node: Call, values: list[Lowered]) -> Lowered:
    left, right = values
    dtype = result_type(node)
    operate = _POLARS[node.function]
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
        bounds = _lower_bounds(node.function, bounds_of(left), bounds_of(right))
        if left.dtype != dtype or right.dtype != dtype or not within(bounds, limits):
            raise NotLowered("an integer that may overflow")
        return Lowered(operate(left.expr, right.expr), dtype, bounds)
    if node.function is not Function.MULTIPLY:
        scale = max(left.dtype.scale, right.dtype.scale)
        left, right = rescaled(left, scale), rescaled(right, scale)
    else:
        scale = left.dtype.scale + right.dtype.scale
    bounds = _lower_bounds(node.function, bounds_of(left), bounds_of(right))
    if not within(bounds, INT128):
        raise NotLowered("a result beyond 128 bits")
    wide = left.wide or right.wide or not within(bounds, INT64)
    exact = operate(fitted(left, wide=wide), fitted(right, wide=wide))
    exact_type = pa.decimal128(38, scale) if scale <= MAX_PRECISION else pa.decimal256(76, scale)
    result = rescaled(Lowered(exact, exact_type, bounds, wide), dtype.scale)
    if not within(bounds_of(result), limits):
        raise NotLowered(f"values beyond {dtype}")
    return Lowered(result.expr, dtype, result.bounds, result.wide)


def _adds_exactly(value: Lowered, node: Expression) -> bool:
    """Whether Polars adds an operand exactly: all but constants that may be zero."""
    return not value.constant or (isinstance(node, Literal) and bool(node.value))


def _lower_division(node: Call, values: list[Lowered]) -> Lowered:
    left, right = values
    if pat.is_decimal(result_type(node)):
        return _lower_decimal_division(node, left, right)
    if not is_float(result_type(node)) or left.dtype != right.dtype:
        raise NotLowered("division")
    if right.constant:
        raise NotLowered("Polars divides by a constant through its reciprocal, which rounds twice")
    if node.mode is EvalMode.ANSI:
        raise NotLowered("division by what may be zero")
    return Lowered(pl.when(right.expr != 0).then(left.expr / right.expr), result_type(node))


def _lower_decimal_division(node: Call, left: Lowered, right: Lowered) -> Lowered:
    """Divide unscaled values, halves away from zero; by zero is null."""
    dtype, limits = result_type(node), type_bounds(result_type(node))
    assert limits is not None
    digits = dtype.scale + right.dtype.scale - left.dtype.scale
    left, right = rescaled(left, left.dtype.scale + max(0, digits)), rescaled(right, right.dtype.scale - min(0, digits))
    low, high = bounds_of(right)
    by_zero = low <= 0 <= high
    if by_zero and node.mode is EvalMode.ANSI:
        raise NotLowered("division by what may be zero")
    twice_dividend, most = 2 * magnitude(bounds_of(left)), magnitude((low, high))
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


def _lower_negation(node: Call, values: list[Lowered]) -> Lowered:
    (value,) = values
    if is_float(value.dtype):
        return Lowered(-value.expr, value.dtype)
    low, high = bounds_of(value)
    limits = type_bounds(value.dtype)
    assert limits is not None
    if not within((-high, -low), limits) or (pat.is_decimal(value.dtype) and magnitude((low, high)) >= 10**34):
        raise NotLowered("a negation that may overflow")
    return Lowered(value.expr * -1, result_type(node), (-high, -low), value.wide)


def _lower_absolute(node: Call, values: list[Lowered]) -> Lowered:
    (value,) = values
    if is_float(value.dtype):
        return Lowered(value.expr.abs(), value.dtype)
    bounds = bounds_of(value)
    limits = type_bounds(value.dtype)
    assert limits is not None
    largest = magnitude(bounds)
    if largest > limits[1] or (pat.is_decimal(value.dtype) and largest >= 10**34):
        raise NotLowered("an absolute value that may overflow")
    return Lowered(size(value), result_type(node), (0, largest), value.wide)


# -- device -----------------------------------------------------------------------------------------------------------


def _device_is_nan(operands: Operands, node: Call, active: Active) -> Value:
    value = operands.fixed(node.arguments[0], active)
    nan = v.equal(operands.xp, value, v.constant(operands.xp, float("nan"), value.dtype))
    return Value(pa.bool_(), nan if value.valid is None else nan & value.valid)


def _device_checked(compute: Callable[..., tuple[Array, Array | None]], kernel: Kernel | None = None) -> Offer:
    """Offer a function of numbers of one type; ``compute`` returns the result and the mask of overflows."""

    def evaluate(operands: Operands, node: Call, active: Active) -> Value:
        arrays: list[Array] = []
        valid: Array | None = None
        for argument in node.arguments:
            value = operands.fixed(argument, mask_and(active, valid))
            arrays.append(value.data)
            valid = mask_and(valid, value.valid)
        result, failed = compute(operands.xp, *arrays)
        return operands.checked(node, result, valid, failed, active)

    return Offer(evaluate, _of_one_type, kernel)


def _device_division(operands: Operands, node: Call, active: Active) -> Value:
    """Divide. As in Spark, the divisor is evaluated first, and the dividend only where the divisor is not null or 0."""
    assert node.type is not None
    right = operands.fixed(node.arguments[1], active)
    zero = right.data == 0
    left = operands.fixed(node.arguments[0], mask_and_not(mask_and(active, right.valid), zero))
    valid = mask_and(left.valid, right.valid)
    if node.mode is EvalMode.ANSI:
        operands.fail_if(mask_and(mask_and(zero, valid), active), f"{node}: division by zero")
    safe = operands.xp.where(zero, 1, right.data).astype(right.data.dtype)
    valid = mask_and_not(valid, zero)
    if node.function is Function.DIVIDE:
        return Value(node.type, left.data / safe, valid)
    if node.function is Function.REMAINDER:
        return Value(node.type, v.remainder(operands.xp, left.data, safe), valid)
    if node.function is Function.PMOD:
        return Value(node.type, v.positive_remainder(operands.xp, left.data, safe), valid)
    result, failed = v.quotient(operands.xp, left.data, safe)
    return operands.checked(node, result, valid, failed, active)


def _device_integral(operands: Operands, node: Call, active: Active) -> Value:
    """``floor`` and ``ceil``, as int64."""
    value = operands.fixed(node.arguments[0], active)
    if not pat.is_floating(value.dtype):
        return Value(pa.int64(), value.data.astype("int64"), value.valid)
    rounded = (operands.xp.floor if node.function is Function.FLOOR else operands.xp.ceil)(value.data)
    failed = (rounded < -(2.0**63)) | (rounded >= 2.0**63)
    return operands.checked(node, v.truncated(operands.xp, rounded), value.valid, failed, active)


def _to_whole(node: Call) -> bool:
    (kind,) = operand_types(node)
    return bool(pat.is_int64(node.type)) and (pat.is_signed_integer(kind) or pat.is_float64(kind))


def _whole(node: Call) -> bool:
    return pat.is_signed_integer(node.type) and all(t == node.type for t in operand_types(node))


def _double(node: Call) -> bool:
    return all(map(pat.is_float64, [*operand_types(node), node.type]))


def _of_one_type(node: Call) -> bool:
    return _whole(node) or _double(node)


_MODES = {EvalMode.LEGACY: "WRAP", EvalMode.TRY: "NULL_ON_OVERFLOW", EvalMode.ANSI: "FAIL"}


def _write(integers: str | None, doubles: str) -> Kernel:
    def write_arithmetic(writer: KernelWriter, node: Call) -> str | None:
        left, right = map(writer.node, node.arguments)
        if pat.is_float64(node.type):
            return f"{left}.{doubles}({right})"
        if integers is None or not (pat.is_int32(node.type) or pat.is_int64(node.type)):
            return None
        return f"{left}.{integers}({right}).checked<{_MODES[node.mode]}>(pair)"

    return write_arithmetic


TABLE = (
    FunctionSpec(
        Function.ADD, ("Add",), _PAIR,
        raises=Raises.OVERFLOW, safe=_has_room,
        numpy=_binary, polars=_lower_arithmetic,
        device=with_decimals(_device_checked(lambda _, left, right: v.add(left, right), _write("add", "plus"))),
    ),
    FunctionSpec(
        Function.SUBTRACT, ("Subtract",), _PAIR,
        raises=Raises.OVERFLOW, safe=_has_room,
        numpy=_binary, polars=_lower_arithmetic,
        device=with_decimals(
            _device_checked(lambda _, left, right: v.subtract(left, right), _write("subtract", "minus"))
        ),
    ),
    FunctionSpec(
        Function.MULTIPLY, ("Multiply",), _PAIR,
        raises=Raises.OVERFLOW, safe=_has_room,
        numpy=_binary, polars=_lower_arithmetic,
        device=with_decimals(_device_checked(v.multiply, _write(None, "times"))),
    ),
    FunctionSpec(
        Function.DIVIDE, ("Divide",), _PAIR,
        raises=Raises.ANSI, order=Order.RIGHT_FIRST,
        numpy=_binary, polars=_lower_division,
        device=with_decimals(Offer(_device_division, _double)),
    ),
    FunctionSpec(
        Function.INTEGRAL_DIVIDE, ("IntegralDivide",), _PAIR,
        raises=Raises.ANSI_OR_DECIMAL, order=Order.RIGHT_FIRST,
        numpy=_binary, device=Offer(_device_division, _whole),
    ),
    FunctionSpec(
        Function.REMAINDER, ("Remainder",), _PAIR,
        raises=Raises.ANSI_OR_DECIMAL, order=Order.RIGHT_FIRST,
        numpy=_binary, device=Offer(_device_division, _of_one_type),
    ),
    FunctionSpec(
        Function.PMOD, ("Pmod",), _PAIR,
        raises=Raises.ANSI_OR_DECIMAL, order=Order.RIGHT_FIRST,
        numpy=_binary, device=Offer(_device_division, _of_one_type),
    ),
    FunctionSpec(
        Function.NEGATE, ("UnaryMinus",), _SIGN,
        raises=Raises.ANSI_OR_DECIMAL,
        numpy=_signed(np.negative, decimals.negate), polars=_lower_negation,
        device=with_decimals(_device_checked(v.negate), signed, keeps_digits),
    ),
    FunctionSpec(
        Function.ABS, ("Abs",), _SIGN,
        raises=Raises.ANSI_OR_DECIMAL,
        numpy=_signed(np.abs, decimals.absolute), polars=_lower_absolute,
        device=with_decimals(_device_checked(v.absolute), signed, keeps_digits),
    ),
    FunctionSpec(
        Function.FLOOR, ("Floor",), _INTEGRAL,
        raises=Raises.ANSI,
        numpy=_floor_or_ceil, device=Offer(_device_integral, _to_whole),
    ),
    FunctionSpec(
        Function.CEIL, ("Ceil",), _INTEGRAL,
        raises=Raises.ANSI,
        numpy=_floor_or_ceil, device=Offer(_device_integral, _to_whole),
    ),
    FunctionSpec(
        Function.SQRT, ("Sqrt",), takes(DOUBLE, gives=pa.float64()),
        numpy=of_arrays(np.sqrt), polars=of_values(lambda value: value.sqrt(), pa.float64()),
        device=strict(lambda xp, value: xp.sqrt(value.data)),
    ),
    FunctionSpec(
        Function.IS_NAN, ("IsNaN",), takes(FLOAT, gives=pa.bool_()),
        nulls=Nulls.OWN_RULE,
        numpy=_is_nan, polars=of_values(lambda value: value.is_nan().fill_null(value=False), pa.bool_()),
        device=Offer(_device_is_nan, kernel=suffix("is_nan()")),
    ),
    FunctionSpec(
        Function.UNSCALED_VALUE, ("UnscaledValue",), takes(_LONG_DECIMAL, gives=pa.int64()),
        numpy=of_arrays(lambda unscaled: unscaled),
        polars=lambda _node, values: Lowered(fitted(values[0], wide=False), pa.int64(), values[0].bounds),
        device=strict(lambda _, value: value.data),
    ),
)  # fmt: skip
