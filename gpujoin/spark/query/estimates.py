"""Rough numbers of rows, by which build sides are chosen. No statistics of columns are known."""

from __future__ import annotations

from gpujoin.model.expressions import Call, Expression, Function
from gpujoin.model.jointype import JoinType

_SELECTIVITY = {
    Function.IS_NOT_NULL: 1.0,
    Function.IS_NULL: 0.05,
    Function.EQ: 0.1,
    Function.EQ_NULL_SAFE: 0.1,
    Function.IN: 0.2,
    Function.LIKE: 0.1,
    Function.RLIKE: 0.1,
    Function.STARTS_WITH: 0.1,
    Function.ENDS_WITH: 0.1,
    Function.CONTAINS: 0.1,
    Function.LT: 0.4,
    Function.LE: 0.4,
    Function.GT: 0.4,
    Function.GE: 0.4,
}


def selectivity(condition: Expression) -> float:
    """Estimate the share of rows for which a condition is true."""
    if not isinstance(condition, Call):
        return 0.5
    if condition.function is Function.NOT:
        return max(0.05, 1.0 - selectivity(condition.arguments[0]))
    shares = [selectivity(one) for one in condition.arguments] if condition.function in _LOGIC else []
    if condition.function is Function.AND:
        return shares[0] * shares[1]
    if condition.function is Function.OR:
        return min(1.0, shares[0] + shares[1])
    return _SELECTIVITY.get(condition.function, 0.5)


_LOGIC = frozenset({Function.AND, Function.OR})


def join_rows(kind: JoinType, left: float, right: float, *, equality: bool) -> float:
    """Estimate the rows of a join, most of which follow a foreign key to a primary key."""
    if kind.left_rows_only:
        return left if kind is JoinType.EXISTENCE else max(1.0, left * 0.5)
    if not equality:
        return left * right
    if kind is JoinType.INNER:
        return max(
            1.0, min(left, right) if min(left, right) > 0.5 * max(left, right) else _followed(left, right)
        )
    return max(left, right)


def _followed(left: float, right: float) -> float:
    return max(left, right) * 0.6


def group_rows(rows: float, keys: int) -> float:
    """Estimate the groups of an aggregation."""
    return max(1.0, rows * 0.2) if keys else 1.0
