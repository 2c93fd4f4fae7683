"""Estimates the share of rows that conditions keep.

Without statistics a comparison keeps its usual share (`FunctionSpec.selectivity`). With the least and the greatest
value of a column, a range keeps its part of the span between them. With the number of distinct values, one value keeps
as many rows as each other value. For ``day >= date'1994-01-01' and day < date'1995-01-01'`` over files with days
from 1992-01-01 to 1998-08-02::

    usual shares    0.5 * 0.5          = 0.25
    of the range    365 of 2,406 days  = 0.15
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from gpujoin.functions.comparison import MIRRORED
from gpujoin.functions.spec import SPECS
from gpujoin.model.expressions import Call, ColumnRef, Expression, Function, Literal, conjuncts
from gpujoin.model.files import Bounds
from gpujoin.plan.distinct import DistinctValues, values_asked

_LOGIC = frozenset({Function.AND, Function.OR})
_BELOW = frozenset({Function.LT, Function.LE})
_ABOVE = frozenset({Function.GT, Function.GE})
_START = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LEAST = 0.001
"""Least share of a range: values may be far from evenly spread."""


def selectivity(condition: Expression, distinct: DistinctValues = ()) -> float:
    """Estimate the share of rows for which a condition is true.

    ``distinct`` has the numbers of different values of the columns, where these are known.
    """
    if not isinstance(condition, Call):
        return 0.5
    if condition.function is Function.NOT:
        return max(0.05, 1.0 - selectivity(condition.arguments[0], distinct))
    if condition.function in _LOGIC:
        shares = [selectivity(operand, distinct) for operand in condition.arguments]
        return shares[0] * shares[1] if condition.function is Function.AND else min(1.0, shares[0] + shares[1])
    if (share := _of_values(condition, distinct)) is not None:
        return share
    share = SPECS[condition.function].selectivity
    return 0.5 if share is None else share


def _of_values(condition: Call, distinct: DistinctValues) -> float | None:
    """Share of rows in which a column has one of some values; ``None`` for other conditions and unknown columns."""
    count_by_column = values_asked(condition)
    if count_by_column is None or count_by_column[0] >= len(distinct):
        return None
    number = distinct[count_by_column[0]]
    return None if number is None else min(1.0, max(_LEAST, count_by_column[1] / number))


def kept_share(
    conditions: Iterable[Expression], bounds: Sequence[Bounds | None], distinct: DistinctValues = ()
) -> float:
    """Estimate the share of rows for which all conditions are true.

    ``bounds`` has the least and the greatest value of each column, and ``distinct`` the number of its values, where
    they are known.
    """
    share, ranges = 1.0, dict[int, tuple[float, float]]()
    for condition in (part for each in conditions for part in conjuncts(each)):
        limited = _limited(condition, bounds)
        if limited is None:
            share *= selectivity(condition, distinct)
        else:
            column, low, high = limited
            range_ = ranges.get(column, (low, high))
            ranges[column] = max(range_[0], low), min(range_[1], high)
    for column, (low, high) in ranges.items():
        span = _numbers(bounds[column])
        assert span is not None
        share *= min(1.0, max(_LEAST, (high - low) / (span[1] - span[0])))
    return share


def _limited(condition: Expression, bounds: Sequence[Bounds | None]) -> tuple[int, float, float] | None:
    """The column that a comparison limits, and its range; ``None`` if these are not known."""
    if not isinstance(condition, Call) or len(condition.arguments) != 2:
        return None
    function, (left, right) = condition.function, condition.arguments
    if isinstance(left, Literal):
        function, left, right = MIRRORED.get(function, function), right, left
    if function not in _BELOW | _ABOVE or not isinstance(left, ColumnRef) or not isinstance(right, Literal):
        return None
    assert left.index is not None
    span = _numbers(bounds[left.index]) if left.index < len(bounds) else None
    value = _number(right.value)
    if span is None or value is None:
        return None
    # A whole value takes up the span from a half below it to a half above it.
    edge = 0.5 if _is_counted(right.value) else 0.0
    if function in _BELOW:
        return left.index, span[0], value + (edge if function is Function.LE else -edge)
    return left.index, value + (-edge if function is Function.GE else edge), span[1]


def _numbers(bounds: Bounds | None) -> tuple[float, float] | None:
    """Convert bounds to numbers; ``None`` if no value lies between them."""
    if bounds is None:
        return None
    low, high = map(_number, bounds)
    if low is None or high is None:
        return None
    edge = 0.5 if _is_counted(bounds[0]) else 0.0
    return (low - edge, high + edge) if low - edge < high + edge else None


def _is_counted(value: Any) -> bool:
    """Whether values of this type are counted: whole numbers and dates."""
    return isinstance(value, int) or (isinstance(value, dt.date) and not isinstance(value, dt.datetime))


def _number(value: Any) -> float | None:
    """Turn a value into a number of the same order; ``None`` for types that have no such numbers."""
    match value:
        case bool():
            return None
        case int() | float() | Decimal():
            return float(value)
        case dt.datetime():
            return (value - _START.replace(tzinfo=value.tzinfo and dt.UTC)).total_seconds()
        case dt.date():
            return float(value.toordinal())
        case _:
            return None
