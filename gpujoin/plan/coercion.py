"""Spark's implicit casts, one rule for each function.

A rule takes a call whose arguments are typed and gives the call with casts put in and its result type filled, or
``None`` when the argument types do not fit the function.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import ConditionError, did_you_mean
from gpujoin.model.expressions import Call, Cast, EvalMode, Expression, Function, Literal
from gpujoin.model.types import is_bytes, is_float, is_numeric, is_text, is_whole
from gpujoin.plan.widening import (
    arithmetic_decimal,
    bounded_decimal,
    compared,
    decimal_for,
    is_atomic,
    tightest,
    wider,
    wider_of,
    wider_without_text,
)

Rule = Callable[[Call], Expression | None]

_INT64 = (-(1 << 63), (1 << 63) - 1)
_INT64_DIGITS = 18


def type_of(node: Expression) -> pa.DataType:
    """Give the type of a typed node."""
    assert node.type is not None, node
    return node.type


def cast_to(node: Expression, dtype: pa.DataType, mode: EvalMode) -> Expression:
    """Put a cast over a node, unless it has the type already; a null literal just changes its type."""
    if type_of(node) == dtype:
        return node
    if isinstance(node, Literal) and node.value is None:
        return dataclasses.replace(node, type=dtype)
    return Cast(child=node, to=dtype, mode=mode, type=dtype)


def coerce(node: Call) -> Expression:
    """Apply the rule of a call's function.

    Raises
    ------
    ConditionError
        If the function cannot take arguments of these types, or of this number.
    """
    low, high = _ARITY.get(node.function, (2, 2))
    if not low <= len(node.arguments) <= high:
        wanted = str(low) if low == high else f"{low} or more" if high == _MANY else f"{low} to {high}"
        raise ConditionError(
            f"{node}: {node.function.value} takes {wanted} arguments, not {len(node.arguments)}"
        )
    found = _RULES[node.function](node)
    if found is None:
        types = " and ".join(f"{a} ({a.type})" for a in node.arguments)
        raise ConditionError(
            f"{node}: {node.function.value} cannot be applied to {types}; cast the operands to fitting types"
        )
    return found


def _typed(node: Call, dtype: pa.DataType, *arguments: Expression) -> Call:
    return dataclasses.replace(node, arguments=arguments or node.arguments, type=dtype)


def _over(node: Call, common: pa.DataType | None, result: pa.DataType | None = None) -> Call | None:
    """Cast all arguments to one type."""
    if common is None:
        return None
    arguments = (cast_to(a, common, node.mode) for a in node.arguments)
    return _typed(node, result if result is not None else common, *arguments)


# -- logic and comparisons ---------------------------------------------------------------------------------------


def _logic(node: Call) -> Call | None:
    if not all(pat.is_boolean(type_of(a)) or pat.is_null(type_of(a)) for a in node.arguments):
        return None
    return _over(node, pa.bool_())


_FLIPPED = {
    Function.LT: Function.GT,
    Function.LE: Function.GE,
    Function.GT: Function.LT,
    Function.GE: Function.LE,
}


def _comparison(node: Call) -> Expression | None:
    one, two = node.arguments
    left, right = type_of(one), type_of(two)
    if pat.is_null(left) and pat.is_null(right):
        return _over(node, pa.bool_(), pa.bool_())
    if isinstance(two, Literal) and is_whole(left) and pat.is_decimal(right):
        reduced = _whole_against_decimal(node, one, two)
        if reduced is not None:
            return reduced
    if isinstance(one, Literal) and is_whole(right) and pat.is_decimal(left) and node.function in _FLIPPED:
        return _comparison(
            _typed(dataclasses.replace(node, function=_FLIPPED[node.function]), left, two, one)
        )
    equality = node.function in (Function.EQ, Function.NE, Function.EQ_NULL_SAFE)
    if equality and node.mode is not EvalMode.ANSI and pat.is_boolean(left) != pat.is_boolean(right):
        number = right if pat.is_boolean(left) else left
        if is_numeric(number):
            return _over(node, number, pa.bool_())
    node = _with_literal_precision(node)
    common = compared(left, right, node.mode)
    if common is not None and pat.is_decimal(common):
        widened = [decimal_for(type_of(a)) for a in node.arguments]
        common = compared(widened[0], widened[1], node.mode)
    if common is None or not _comparable(common):
        return None
    return _over(node, common, pa.bool_())


def _comparable(dtype: pa.DataType) -> bool:
    if pat.is_struct(dtype):
        return all(_comparable(f.type) for f in dtype)
    return is_atomic(dtype) or pat.is_null(dtype)


def _whole_against_decimal(node: Call, whole: Expression, literal: Literal) -> Expression | None:
    """Compare an integer with a decimal literal as integers, the literal rounded up or down as the operator asks."""
    if node.function not in _FLIPPED or literal.value is None:
        return None
    value = Decimal(literal.value)
    if value < _INT64[0] or value > _INT64[1]:
        upward = node.function in (Function.GT, Function.GE)
        return Literal(value=upward == (value < 0), type=pa.bool_())
    down = node.function in (Function.GT, Function.LE)
    bound = Literal(value=math.floor(value) if down else math.ceil(value), type=pa.int64())
    return _typed(node, pa.bool_(), cast_to(whole, pa.int64(), node.mode), bound)


def _with_literal_precision(node: Call) -> Call:
    """Next to a decimal, give an integer literal no more digits than it has."""
    one, two = node.arguments
    if pat.is_decimal(type_of(two)) and isinstance(one, Literal) and is_whole(type_of(one)):
        one = cast_to(one, _literal_decimal(one), node.mode)
    elif pat.is_decimal(type_of(one)) and isinstance(two, Literal) and is_whole(type_of(two)):
        two = cast_to(two, _literal_decimal(two), node.mode)
    return dataclasses.replace(node, arguments=(one, two))


def _literal_decimal(literal: Literal) -> pa.DataType:
    return pa.decimal128(len(str(abs(literal.value or 0))), 0)


def _in(node: Call) -> Call | None:
    common = wider_of([type_of(a) for a in node.arguments], node.mode)
    if common is None or not _comparable(common):
        return None
    return _over(node, pa.bool_() if pat.is_null(common) else common, pa.bool_())


def _extreme(node: Call) -> Call | None:
    common = wider_of([type_of(a) for a in node.arguments], node.mode, wider_without_text)
    return _over(node, common) if common is not None and _comparable(common) else None


def _coalesce(node: Call) -> Call | None:
    return _over(node, wider_of([type_of(a) for a in node.arguments], node.mode))


def _test_null(node: Call) -> Call:
    return _typed(node, pa.bool_())


# -- arithmetic --------------------------------------------------------------------------------------------------


def _arithmetic(node: Call) -> Expression | None:
    dates = _date_arithmetic(node)
    if dates is not None:
        return dates
    numbers = _as_numbers(node)
    if numbers is None:
        return None
    node = _with_literal_precision(numbers)
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
        return _over(node, pa.int64() if whole else pa.float64())
    return _over(node, tightest(left, right, node.mode))


def _decimals(node: Call, left: pa.DataType, right: pa.DataType) -> Call:
    one, two = node.arguments
    arguments = (cast_to(one, left, node.mode), cast_to(two, right, node.mode))
    if node.function is Function.INTEGRAL_DIVIDE:
        return _typed(node, pa.int64(), *arguments)
    return _typed(node, arithmetic_decimal(node.function, left, right), *arguments)


def _as_numbers(node: Call) -> Call | None:
    """Turn text and null operands into numbers."""
    types = [type_of(a) for a in node.arguments]
    if all(pat.is_null(t) for t in types):
        return _over(node, pa.float64())
    arguments = []
    for mine, other, argument in zip(types, reversed(types), node.arguments, strict=True):
        if is_text(mine):
            whole = node.mode is EvalMode.ANSI and is_whole(other)
            arguments.append(cast_to(argument, pa.int64() if whole else pa.float64(), node.mode))
        elif pat.is_null(mine):
            arguments.append(cast_to(argument, pa.float64() if is_text(other) else other, node.mode))
        else:
            arguments.append(argument)
    if not all(is_numeric(type_of(a)) for a in arguments):
        return None
    return dataclasses.replace(node, arguments=tuple(arguments))


def _date_arithmetic(node: Call) -> Expression | None:
    one, two = node.arguments
    if node.function is Function.ADD and pat.is_date(type_of(two)):
        one, two = two, one
    if node.function not in (Function.ADD, Function.SUBTRACT) or not pat.is_date(type_of(one)):
        return None
    if not (is_whole(type_of(two)) or pat.is_null(type_of(two))):
        return None
    function = Function.DATE_ADD if node.function is Function.ADD else Function.DATE_SUB
    return _date_shift(dataclasses.replace(node, function=function, arguments=(one, two)))


def _sign(node: Call) -> Call | None:
    (argument,) = node.arguments
    dtype = type_of(argument)
    if is_text(dtype) or pat.is_null(dtype):
        return _over(node, pa.float64())
    return _typed(node, dtype) if is_numeric(dtype) else None


def _floor(node: Call) -> Call | None:
    (argument,) = node.arguments
    dtype = type_of(argument)
    if pat.is_decimal(dtype):
        return _typed(node, bounded_decimal(dtype.precision - dtype.scale + 1, 0))
    if is_whole(dtype):
        return _over(node, pa.int64())
    if is_float(dtype) or is_text(dtype) or pat.is_null(dtype):
        return _over(node, pa.float64(), pa.int64())
    return None


def _unscaled(node: Call) -> Call | None:
    dtype = type_of(node.arguments[0])
    small = pat.is_decimal(dtype) and dtype.precision <= _INT64_DIGITS
    return _typed(node, pa.int64()) if small else None


def _root(node: Call) -> Call | None:
    dtype = type_of(node.arguments[0])
    if is_numeric(dtype) or is_text(dtype) or pat.is_null(dtype):
        return _over(node, pa.float64(), pa.float64())
    return None


def _is_nan(node: Call) -> Call | None:
    dtype = type_of(node.arguments[0])
    if is_float(dtype):
        return _typed(node, pa.bool_())
    if is_numeric(dtype) or is_text(dtype) or pat.is_null(dtype):
        return _over(node, pa.float64(), pa.bool_())
    return None


# -- text --------------------------------------------------------------------------------------------------------


def _text(node: Call, result: pa.DataType) -> Call | None:
    if not all(is_atomic(type_of(a)) or pat.is_null(type_of(a)) for a in node.arguments):
        return None
    return _over(node, pa.string(), result)


def _pattern(node: Call) -> Call | None:
    return _text(node, pa.bool_())


def _affix(node: Call) -> Call | None:
    if all(is_bytes(type_of(a)) for a in node.arguments):
        return _typed(node, pa.bool_())
    return _text(node, pa.bool_())


def _text_to_text(node: Call) -> Call | None:
    return _text(node, pa.string())


def _length(node: Call) -> Call | None:
    return _typed(node, pa.int32()) if is_bytes(type_of(node.arguments[0])) else _text(node, pa.int32())


def _substring(node: Call) -> Call | None:
    text, *numbers = node.arguments
    dtype = pa.binary() if is_bytes(type_of(text)) else pa.string()
    if not (is_atomic(type_of(text)) or pat.is_null(type_of(text))):
        return None
    casts = [_to_int(n, node.mode) for n in numbers]
    if any(c is None for c in casts):
        return None
    return _typed(node, dtype, cast_to(text, dtype, node.mode), *(c for c in casts if c is not None))


def _to_int(node: Expression, mode: EvalMode) -> Expression | None:
    dtype = type_of(node)
    fractional = is_float(dtype) or pat.is_decimal(dtype)
    if is_whole(dtype) or is_text(dtype) or pat.is_null(dtype) or (fractional and mode is not EvalMode.ANSI):
        return cast_to(node, pa.int32(), mode)
    return None


def _concat(node: Call) -> Call | None:
    if node.arguments and all(is_bytes(type_of(a)) for a in node.arguments):
        return _typed(node, pa.binary())
    return _text_to_text(node)


# -- dates -------------------------------------------------------------------------------------------------------


def _to_date(node: Expression, mode: EvalMode) -> Expression | None:
    dtype = type_of(node)
    if pat.is_date(dtype) or pat.is_timestamp(dtype) or is_text(dtype) or pat.is_null(dtype):
        return cast_to(node, pa.date32(), mode)
    return None


def _date_part(node: Call) -> Call | None:
    date = _to_date(node.arguments[0], node.mode)
    return None if date is None else _typed(node, pa.int32(), date)


def _time_part(node: Call) -> Call | None:
    dtype = type_of(node.arguments[0])
    if pat.is_timestamp(dtype):
        return _typed(node, pa.int32())
    if pat.is_date(dtype) or pat.is_null(dtype):
        return _over(node, pa.timestamp("us"), pa.int32())
    return None


def _date_shift(node: Call) -> Call | None:
    date = _to_date(node.arguments[0], node.mode)
    days = node.arguments[1]
    small = is_whole(type_of(days)) and type_of(days).bit_width < 32
    shift = days if small else _to_int(days, node.mode)
    if date is None or shift is None:
        return None
    return _typed(node, pa.date32(), date, cast_to(shift, pa.int32(), node.mode))


def _date_diff(node: Call) -> Call | None:
    dates = [_to_date(a, node.mode) for a in node.arguments]
    if any(d is None for d in dates):
        return None
    return _typed(node, pa.int32(), *(d for d in dates if d is not None))


def _get_field(node: Call) -> Call | None:
    struct, name = node.arguments
    dtype = type_of(struct)
    if not pat.is_struct(dtype) or not isinstance(name, Literal) or not isinstance(name.value, str):
        return None
    names = [f.name for f in dtype]
    found = [n for n in names if n == name.value] or [n for n in names if n.lower() == name.value.lower()]
    if len(found) != 1:
        why = "is ambiguous" if found else "does not exist"
        raise ConditionError(
            f"{node}: field {name.value!r} of {struct} {why}.{did_you_mean(name.value, names) if not found else ''}"
        )
    return _typed(
        node, dtype.field(names.index(found[0])).type, struct, Literal(value=found[0], type=pa.string())
    )


_MANY = 1 << 20

_ARITY: dict[Function, tuple[int, int]] = {
    **dict.fromkeys(
        (
            Function.NOT, Function.NEGATE, Function.ABS, Function.FLOOR, Function.CEIL, Function.IS_NULL,
            Function.IS_NOT_NULL, Function.IS_NAN, Function.LOWER, Function.UPPER, Function.TRIM, Function.LENGTH,
            Function.YEAR, Function.QUARTER, Function.MONTH, Function.DAY, Function.DAY_OF_WEEK,
            Function.DAY_OF_YEAR, Function.HOUR, Function.MINUTE, Function.SECOND, Function.UNSCALED_VALUE,
            Function.SQRT,
        ),
        (1, 1),
    ),
    Function.AND: (2, _MANY),
    Function.OR: (2, _MANY),
    Function.IN: (1, _MANY),
    Function.COALESCE: (1, _MANY),
    Function.CONCAT: (0, _MANY),
    Function.GREATEST: (2, _MANY),
    Function.LEAST: (2, _MANY),
    Function.LIKE: (2, 3),
    Function.SUBSTRING: (2, 3),
}  # fmt: skip

_RULES: dict[Function, Rule] = {
    **dict.fromkeys((Function.AND, Function.OR, Function.NOT), _logic),
    **dict.fromkeys(
        (
            Function.EQ, Function.NE, Function.LT, Function.LE, Function.GT, Function.GE, Function.EQ_NULL_SAFE,
        ),
        _comparison,
    ),
    **dict.fromkeys(
        (
            Function.ADD, Function.SUBTRACT, Function.MULTIPLY, Function.DIVIDE, Function.INTEGRAL_DIVIDE,
            Function.REMAINDER, Function.PMOD,
        ),
        _arithmetic,
    ),
    **dict.fromkeys((Function.NEGATE, Function.ABS), _sign),
    **dict.fromkeys((Function.FLOOR, Function.CEIL), _floor),
    **dict.fromkeys((Function.IS_NULL, Function.IS_NOT_NULL), _test_null),
    Function.IS_NAN: _is_nan,
    Function.SQRT: _root,
    Function.UNSCALED_VALUE: _unscaled,
    Function.IN: _in,
    Function.COALESCE: _coalesce,
    Function.GREATEST: _extreme,
    Function.LEAST: _extreme,
    **dict.fromkeys((Function.LIKE, Function.RLIKE), _pattern),
    **dict.fromkeys((Function.STARTS_WITH, Function.ENDS_WITH, Function.CONTAINS), _affix),
    **dict.fromkeys((Function.LOWER, Function.UPPER, Function.TRIM), _text_to_text),
    Function.LENGTH: _length,
    Function.SUBSTRING: _substring,
    Function.CONCAT: _concat,
    **dict.fromkeys(
        (
            Function.YEAR, Function.QUARTER, Function.MONTH, Function.DAY, Function.DAY_OF_WEEK,
            Function.DAY_OF_YEAR,
        ),
        _date_part,
    ),
    **dict.fromkeys((Function.HOUR, Function.MINUTE, Function.SECOND), _time_part),
    **dict.fromkeys((Function.DATE_ADD, Function.DATE_SUB), _date_shift),
    Function.DATE_DIFF: _date_diff,
    Function.GET_FIELD: _get_field,
}  # fmt: skip


def coerce_branches(values: tuple[Expression, ...], mode: EvalMode) -> tuple[Expression, ...] | None:
    """Bring the values of a ``CASE`` to one type; ``None`` if there is none."""
    common = wider_of([type_of(v) for v in values], mode, wider)
    return None if common is None else tuple(cast_to(v, common, mode) for v in values)
