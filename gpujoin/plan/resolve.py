"""Resolves conditions: column positions, types of literals, and Spark's implicit casts."""

from __future__ import annotations

import dataclasses
import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import ConditionError, did_you_mean
from gpujoin.functions import coerce
from gpujoin.functions.kinds import can_cast
from gpujoin.functions.signatures import cast_to, type_of
from gpujoin.functions.widening import wider_of
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, EvalMode, Expression, Function, Literal
from gpujoin.model.jointype import Side
from gpujoin.model.types import MAX_PRECISION, logical

_UNSIGNED = {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}


def resolve(
    condition: Expression, left: pa.Schema, right: pa.Schema, *, mode: EvalMode = EvalMode.LEGACY
) -> Expression:
    """Check a condition against the schemas of the two sides and make every type in it explicit.

    Column positions are set, literals typed, and Spark's implicit casts added. A subtree whose root already has a
    type is assumed to come from Spark's own analyzer, and only gets its missing column positions. Calls and casts
    left at ``LEGACY`` get the mode, which also chooses the coercion rules. Raises ``ConditionError`` if a column is
    unknown or ambiguous, if types cannot be compared or combined, or if the result is not boolean.
    """
    resolved = resolve_value(condition, left, right, mode=mode)
    if pat.is_null(type_of(resolved)):
        return cast_to(resolved, pa.bool_(), mode)
    if not pat.is_boolean(type_of(resolved)):
        raise ConditionError(
            f"the condition {condition} is of type {resolved.type}, not boolean; compare it with something"
        )
    return resolved


def resolve_value(
    expression: Expression, left: pa.Schema, right: pa.Schema, *, mode: EvalMode = EvalMode.LEGACY
) -> Expression:
    """Resolve an expression of any type, as :func:`resolve` does for conditions."""
    return _Resolver({Side.LEFT: left, Side.RIGHT: right}, mode).resolve(expression)


def literal_type(value: Any) -> pa.DataType:
    """Infer the type of a Python value as Spark does for its own literals.

    Integers are int, then bigint, then decimal; a ``datetime`` without a zone has none in Spark either. Raises
    ``ConditionError`` if a condition cannot hold values of this type.
    """
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return _integer_type(value)
    if isinstance(value, Decimal):
        return _decimal_type(value)
    for kinds, dtype in _LITERAL_TYPES:
        if isinstance(value, kinds):
            return dtype
    if isinstance(value, dt.datetime):
        return pa.timestamp("us", None if value.tzinfo is None else "UTC")
    if isinstance(value, dt.date):
        return pa.date32()
    raise ConditionError(
        f"{value!r} of type {type(value).__name__} cannot be a literal; give a bool, int, float, Decimal, str, "
        f"bytes, date, datetime, time, timedelta or None, or a type: lit(value, type)"
    )


_LITERAL_TYPES: tuple[tuple[type | tuple[type, ...], pa.DataType], ...] = (
    (float, pa.float64()),
    (str, pa.string()),
    ((bytes, bytearray, memoryview), pa.binary()),
    (dt.time, pa.time64("us")),
    (dt.timedelta, pa.duration("us")),
)


def _integer_type(value: int) -> pa.DataType:
    if -(1 << 31) <= value < 1 << 31:
        return pa.int32()
    if -(1 << 63) <= value < 1 << 63:
        return pa.int64()
    digits = len(str(abs(value)))
    if digits > MAX_PRECISION:
        raise ConditionError(f"the literal {value} has {digits} digits; at most {MAX_PRECISION} are possible")
    return pa.decimal128(digits, 0)


def _decimal_type(value: Decimal) -> pa.DataType:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ConditionError(f"the literal {value!r} is not a finite decimal; use a float for NaN and infinity")
    scale = max(0, -exponent)
    precision = max(len(digits) + max(0, exponent), scale, 1)
    if precision > MAX_PRECISION:
        raise ConditionError(f"the literal {value} has {precision} digits; at most {MAX_PRECISION} are possible")
    return pa.decimal128(precision, scale)


def _check_node(node: object) -> None:
    if not isinstance(node, Expression):
        raise ConditionError(f"{node!r} is no expression such as left('a') < right('b')")


def _check_function(function: object) -> None:
    if not isinstance(function, Function):
        near = did_you_mean(str(function), Function.__members__)
        raise ConditionError(f"call() takes a member of gpujoin.Function, got {function!r}.{near}")


class _Resolver:
    def __init__(self, schemas: dict[Side, pa.Schema], mode: EvalMode) -> None:
        self._schemas = schemas
        self._mode = mode

    def resolve(self, node: Expression) -> Expression:
        _check_node(node)
        if isinstance(node, ColumnRef):
            return self._column(node)
        if isinstance(node, Literal):
            return self._literal(node)
        if node.type is not None:
            return self._analyzed(node)
        node = node.with_children([self.resolve(child) for child in node.children])
        if isinstance(node, Call):
            _check_function(node.function)
            return coerce(dataclasses.replace(node, mode=self._effective(node.mode)))
        if isinstance(node, Cast):
            return self._cast(node)
        if isinstance(node, Case):
            return self._case(node)
        raise ConditionError(f"{node!r} is not an expression that can be resolved")

    def _effective(self, mode: EvalMode) -> EvalMode:
        if not isinstance(mode, EvalMode):
            raise ConditionError(f"mode must be an EvalMode such as EvalMode.ANSI, got {mode!r}")
        return self._mode if mode is EvalMode.LEGACY else mode

    def _analyzed(self, node: Expression) -> Expression:
        untyped = [n for n in node.walk() if n.type is None]
        if untyped:
            raise ConditionError(f"{node} has a type, but {untyped[0]} below it has none; type all nodes or none")
        return self._placed(node)

    def _placed(self, node: Expression) -> Expression:
        if isinstance(node, ColumnRef):
            return dataclasses.replace(node, index=self._position(node))
        return node.with_children([self._placed(c) for c in node.children]) if node.children else node

    def _position(self, column: ColumnRef) -> int:
        schema = self._schemas[column.side]
        if column.index >= 0:
            if column.index >= len(schema):
                raise ConditionError(
                    f"the condition reads column {column.index} of the {column.side.value} side, "
                    f"which has {len(schema)}"
                )
            return column.index
        if not isinstance(column.name, str):
            raise ConditionError(f"the condition's columns are given by name, got {column.name!r}")
        positions = schema.get_all_field_indices(column.name)
        if len(positions) == 1:
            return int(positions[0])
        if positions:
            raise ConditionError(
                f"the condition's column {column.name!r} is ambiguous: the {column.side.value} side has "
                f"{len(positions)} columns of that name; rename them"
            )
        other = Side.RIGHT if column.side is Side.LEFT else Side.LEFT
        hint = did_you_mean(column.name, schema.names)
        if column.name in self._schemas[other].names:
            hint = f" The {other.value} side has one: {other.value}({column.name!r})." + hint
        raise ConditionError(
            f"the condition's column {column.name!r} does not exist on the {column.side.value} side.{hint}"
        )

    def _column(self, column: ColumnRef) -> Expression:
        index = self._position(column)
        if column.type is not None:
            return dataclasses.replace(column, index=index)
        dtype = logical(self._schemas[column.side].field(index).type)
        placed = dataclasses.replace(column, index=index, type=dtype)
        if pat.is_decimal(dtype) and dtype.precision > MAX_PRECISION:
            raise ConditionError(
                f"column {column} is of type {dtype}; conditions take decimals of up to {MAX_PRECISION} digits"
            )
        if pat.is_unsigned_integer(dtype):
            return cast_to(placed, _UNSIGNED[dtype.bit_width], EvalMode.LEGACY)
        return cast_to(placed, pa.float32(), EvalMode.LEGACY) if pat.is_float16(dtype) else placed

    def _literal(self, literal: Literal) -> Expression:
        value = literal.value.item() if isinstance(literal.value, np.generic) else literal.value
        if literal.type is None:
            return Literal(value=value, type=literal_type(value))
        try:
            pa.scalar(value, literal.type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as problem:
            raise ConditionError(f"the literal {value!r} is no {literal.type}: {problem}") from None
        return dataclasses.replace(literal, value=value)

    def _cast(self, node: Cast) -> Expression:
        if not isinstance(node.to, pa.DataType):
            raise ConditionError(f"cast() takes a type of Arrow's such as pyarrow.int32(), got {node.to!r}")
        mode, source, target = self._effective(node.mode), type_of(node.child), logical(node.to)
        if not can_cast(source, target, mode):
            raise ConditionError(f"{node}: {source} cannot be cast to {target}")
        return dataclasses.replace(node, to=target, mode=mode, type=target)

    def _case(self, node: Case) -> Expression:
        conditions = []
        for condition in node.conditions:
            if pat.is_null(type_of(condition)):
                condition = cast_to(condition, pa.bool_(), self._mode)  # noqa: PLW2901
            if not pat.is_boolean(type_of(condition)):
                raise ConditionError(f"{node}: the branch condition {condition} is {condition.type}, not boolean")
            conditions.append(condition)
        values = (*node.values, node.otherwise)
        common = wider_of([type_of(v) for v in values], self._mode)
        if common is None:
            types = ", ".join(str(v.type) for v in values)
            raise ConditionError(f"{node}: the branches have no common type ({types}); cast them")
        *branches, otherwise = (cast_to(v, common, self._mode) for v in values)
        return dataclasses.replace(
            node, conditions=tuple(conditions), values=tuple(branches), otherwise=otherwise, type=common
        )
