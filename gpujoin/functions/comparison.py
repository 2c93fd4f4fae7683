"""Comparisons, ``IN``, ``greatest`` and ``least``: operands meet in a common type and compare as Spark orders them.

NaN equals NaN and is greater than all else, −0.0 equals 0.0, text and bytes compare by bytes, structs field by field.
"""

from __future__ import annotations

import dataclasses
import math
from decimal import Decimal

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.signatures import MANY, Signature, Types, cast_to, over, type_of, typed, types_of
from gpujoin.functions.spec import NOT_FUSED, FunctionSpec, Nulls
from gpujoin.functions.widening import compared, decimal_for, is_atomic, wider_of, wider_without_text
from gpujoin.model.expressions import Call, EvalMode, Expression, Function, Literal
from gpujoin.model.types import is_bytes, is_float, is_numeric, is_text, is_whole, logical

OPERATORS = frozenset({Function.EQ, Function.NE, Function.LT, Function.LE, Function.GT, Function.GE})
"""Comparisons whose result is null where an operand is null."""
_INT64 = (-(1 << 63), (1 << 63) - 1)
MIRRORED = {
    Function.LT: Function.GT,
    Function.LE: Function.GE,
    Function.GT: Function.LT,
    Function.GE: Function.LE,
}
"""Comparisons by order, and what they are with their operands exchanged."""


def _comparison(node: Call) -> Expression | None:
    left, right = node.arguments
    left_type, right_type = type_of(left), type_of(right)
    if pat.is_null(left_type) and pat.is_null(right_type):
        return over(node, pa.bool_(), pa.bool_())
    if isinstance(right, Literal) and is_whole(left_type) and pat.is_decimal(right_type):
        reduced = _whole_against_decimal(node, left, right)
        if reduced is not None:
            return reduced
    if isinstance(left, Literal) and is_whole(right_type) and pat.is_decimal(left_type) and node.function in MIRRORED:
        return _comparison(typed(dataclasses.replace(node, function=MIRRORED[node.function]), left_type, right, left))
    equality = node.function in (Function.EQ, Function.NE, Function.EQ_NULL_SAFE)
    if equality and node.mode is not EvalMode.ANSI and pat.is_boolean(left_type) != pat.is_boolean(right_type):
        number = right_type if pat.is_boolean(left_type) else left_type
        if is_numeric(number):
            return over(node, number, pa.bool_())
    node = with_literal_precision(node)
    common = compared(left_type, right_type, node.mode)
    if common is not None and pat.is_decimal(common):
        widened = [decimal_for(type_of(a)) for a in node.arguments]
        common = compared(widened[0], widened[1], node.mode)
    if common is None or not _orders(common):
        return None
    return over(node, common, pa.bool_())


def _orders(dtype: pa.DataType) -> bool:
    """Whether Spark compares values of a type."""
    if pat.is_struct(dtype):
        return all(_orders(f.type) for f in dtype)
    if pat.is_list(dtype):
        return _orders(dtype.value_type)
    return is_atomic(dtype) or pat.is_null(dtype)


def _whole_against_decimal(node: Call, whole: Expression, literal: Literal) -> Expression | None:
    """Compare an integer with a decimal literal as integers, the literal rounded up or down as the operator asks."""
    if node.function not in MIRRORED or literal.value is None:
        return None
    value = Decimal(literal.value)
    if value < _INT64[0] or value > _INT64[1]:
        upward = node.function in (Function.GT, Function.GE)
        return Literal(value=upward == (value < 0), type=pa.bool_())
    down = node.function in (Function.GT, Function.LE)
    bound = Literal(value=math.floor(value) if down else math.ceil(value), type=pa.int64())
    return typed(node, pa.bool_(), cast_to(whole, pa.int64(), node.mode), bound)


def with_literal_precision(node: Call) -> Call:
    """Next to a decimal, give an integer literal no more digits than it has."""
    left, right = node.arguments
    if pat.is_decimal(type_of(right)) and isinstance(left, Literal) and is_whole(type_of(left)):
        left = cast_to(left, _literal_decimal(left), node.mode)
    elif pat.is_decimal(type_of(left)) and isinstance(right, Literal) and is_whole(type_of(right)):
        right = cast_to(right, _literal_decimal(right), node.mode)
    return dataclasses.replace(node, arguments=(left, right))


def _literal_decimal(literal: Literal) -> pa.DataType:
    return pa.decimal128(len(str(abs(literal.value or 0))), 0)


def _in(node: Call) -> Call | None:
    common = wider_of([type_of(a) for a in node.arguments], node.mode)
    if common is None or not _orders(common):
        return None
    return over(node, pa.bool_() if pat.is_null(common) else common, pa.bool_())


def _extreme(node: Call) -> Call | None:
    common = wider_of([type_of(a) for a in node.arguments], node.mode, wider_without_text)
    return over(node, common) if common is not None and _orders(common) else None


def comparable(dtype: pa.DataType) -> bool:
    """Whether comparisons of a type are supported."""
    if pat.is_struct(dtype):
        return all(comparable(f.type) for f in dtype)
    return (
        pat.is_boolean(dtype)
        or (is_numeric(dtype) and not pat.is_decimal256(dtype))
        or is_text(dtype)
        or is_bytes(dtype)
        or (pat.is_temporal(dtype) and not pat.is_interval(dtype))
    )


def is_written(dtype: pa.DataType, *, compared: bool = False) -> bool:
    """Whether values of a type, nested or not, are written as bytes; ``compared``: as bytes of the same order."""
    dtype = logical(dtype)
    if pat.is_map(dtype):
        return not compared and all(is_written(part) for part in (dtype.key_type, dtype.item_type))
    if pat.is_struct(dtype) or pat.is_list(dtype) or pat.is_large_list(dtype):
        return all(is_written(dtype.field(i).type, compared=compared) for i in range(dtype.num_fields))
    return comparable(dtype) or pat.is_null(dtype)


def has_floats(dtype: pa.DataType) -> bool:
    """Whether there is a floating-point number anywhere in values of a type."""
    if pat.is_nested(dtype):
        return any(has_floats(dtype.field(i).type) for i in range(dtype.num_fields))
    return is_float(dtype)


def is_alike(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether types are the same but for the names of fields, and for where there may be nulls."""
    if not pat.is_nested(left) or not pat.is_nested(right):
        return left == right
    return (
        left.id == right.id
        and left.num_fields == right.num_fields
        and all(is_alike(left.field(i).type, right.field(i).type) for i in range(left.num_fields))
    )


def has_lists(dtype: pa.DataType) -> bool:
    """Whether there is a list anywhere in values of a type, which are compared by their bytes then."""
    return pat.is_nested(dtype) and (
        not pat.is_struct(dtype) or any(has_lists(dtype.field(i).type) for i in range(dtype.num_fields))
    )


def fits_as_bytes(types: Types) -> bool:
    """Whether values of types are compared by their bytes."""
    first = types[0]
    return has_lists(first) and is_written(first, compared=True) and all(is_alike(first, dtype) for dtype in types)


def alike(types: Types) -> bool:
    """Whether types differ only in ways that a comparison allows: digits of decimals, time unit, names of fields."""
    return all(_alike(types[0], t) for t in types)


def _alike(left: pa.DataType, right: pa.DataType) -> bool:
    if pat.is_decimal(left) and pat.is_decimal(right):
        return True
    if pat.is_timestamp(left) and pat.is_timestamp(right):
        return (left.tz is None) == (right.tz is None)
    if pat.is_struct(left) and pat.is_struct(right):
        return left.num_fields == right.num_fields and all(
            _alike(a.type, b.type) for a, b in zip(left, right, strict=True)
        )
    return left == right


def _fits(node: Call) -> bool:
    types = types_of(node)
    return fits_as_bytes(types) or (alike(types) and comparable(types[0]))


_PAIR = Signature(_comparison, _fits)
_EXTREME = Signature(_extreme, _fits, (2, MANY))
_F = Function

TABLE = (
    FunctionSpec(_F.EQ, ("EqualTo",), _PAIR, selectivity=0.1),
    FunctionSpec(_F.NE, (), _PAIR),
    FunctionSpec(_F.LT, ("LessThan",), _PAIR, selectivity=0.5),
    FunctionSpec(_F.LE, ("LessThanOrEqual",), _PAIR, selectivity=0.5),
    FunctionSpec(_F.GT, ("GreaterThan",), _PAIR, selectivity=0.5),
    FunctionSpec(_F.GE, ("GreaterThanOrEqual",), _PAIR, selectivity=0.5),
    FunctionSpec(_F.EQ_NULL_SAFE, ("EqualNullSafe",), _PAIR, nulls=Nulls.READ, selectivity=0.1),
    FunctionSpec(_F.IN, ("In", "InSet"), Signature(_in, _fits, (1, MANY)), nulls=Nulls.READ, selectivity=0.2),
    FunctionSpec(_F.GREATEST, ("Greatest",), _EXTREME, nulls=Nulls.READ, lacks=NOT_FUSED),
    FunctionSpec(_F.LEAST, ("Least",), _EXTREME, nulls=Nulls.READ, lacks=NOT_FUSED),
)
