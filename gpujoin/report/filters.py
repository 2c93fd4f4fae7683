"""Writes conditions that all hold, without those that follow from the others."""

from __future__ import annotations

from collections.abc import Sequence

from gpujoin.functions import SPECS
from gpujoin.functions.spec import Nulls
from gpujoin.model.expressions import Call, Cast, Expression, Function
from gpujoin.model.sqltext import AND, Columns, Writer


def show_filters(conditions: Sequence[Expression], columns: Columns | None = None) -> tuple[str, ...]:
    """Format conditions that all hold, without tests for nulls that follow from the others.

    Spark adds ``v is not null`` to ``v > 3``.
    """
    writer = Writer.of_one_input(columns)
    return tuple(
        writer.at(condition, AND)
        for n, condition in enumerate(conditions)
        if not any(_follows(condition, other) for m, other in enumerate(conditions) if m != n)
    )


def _follows(condition: Expression, other: Expression) -> bool:
    """Whether a condition asks that a value be not null of which another one is not true."""
    if not isinstance(condition, Call) or condition.function is not Function.IS_NOT_NULL or condition.same_as(other):
        return False
    return _is_null_of(condition.arguments[0], other)


def _is_null_of(null: Expression, expression: Expression) -> bool:
    """Whether an expression is null, or false, where a part of it is null."""
    if expression.same_as(null):
        return True
    if not isinstance(expression, Call):
        return isinstance(expression, Cast) and _is_null_of(null, expression.child)
    if expression.function is Function.OR:
        return all(_is_null_of(null, argument) for argument in expression.arguments)
    if expression.function is Function.IN:
        return _is_null_of(null, expression.arguments[0])
    if expression.function is not Function.AND and SPECS[expression.function].nulls is not Nulls.PROPAGATE:
        return False
    return any(_is_null_of(null, argument) for argument in expression.arguments)
