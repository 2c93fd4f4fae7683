"""Finds row groups without a row that passes a filter, by statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpujoin.functions.comparison import MIRRORED
from gpujoin.model.expressions import Call, Cast, ColumnRef, Expression, Function, Literal
from gpujoin.model.files import ValueRanges
from gpujoin.model.types import is_float, is_whole, logical


@dataclass(frozen=True)
class Statistics:
    """Statistics of a column in a row group."""

    low: Any
    high: Any
    """Bounds of the values, as Python values of the column's type; ``None``: unknown."""
    nulls: int | None
    """Number of nulls; ``None``: unknown."""
    rows: int


Lookup = Callable[[int], Statistics | None]


def may_match(condition: Expression, statistics: Lookup) -> bool:
    """Whether a resolved condition may be true for a row; true if unknown.

    ``statistics`` gives those of a column, by its index.
    """
    if isinstance(condition, Literal):
        return bool(condition.value)
    if not isinstance(condition, Call):
        return True
    arguments = condition.arguments
    match condition.function:
        case Function.AND:
            return all(may_match(a, statistics) for a in arguments)
        case Function.OR:
            return any(may_match(a, statistics) for a in arguments)
        case Function.IS_NOT_NULL if isinstance(arguments[0], ColumnRef):
            of_column = statistics(arguments[0].index)
            return _may_have_values(of_column)
        case Function.IS_NULL if isinstance(arguments[0], ColumnRef):
            of_column = statistics(arguments[0].index)
            return of_column is None or of_column.nulls != 0
        case Function.IN if isinstance(arguments[0], ColumnRef):
            return any(_compared(Function.EQ, arguments[0], a, statistics) for a in arguments[1:])
        case function if function is Function.EQ or function in MIRRORED:
            left, right = arguments
            if _constant(left) is not _UNKNOWN:
                return _compared(MIRRORED.get(function, function), right, left, statistics)
            return _compared(function, left, right, statistics)
    return True


def may_hold(statistics: Statistics | None, ranges: ValueRanges) -> bool:
    """Whether a column may have a value in some ranges, by its statistics."""
    bounds = _bounds(statistics)
    if bounds is None:
        return _may_have_values(statistics)
    try:
        return ranges.meet(*bounds)
    except TypeError:  # types that cannot be compared
        return True


def _bounds(statistics: Statistics | None) -> tuple[Any, Any] | None:
    """Bounds of the values, to be compared; ``None`` if there are no values, or nothing is known of them."""
    if statistics is None or not _may_have_values(statistics) or statistics.low is None or statistics.high is None:
        return None
    return _in_order(statistics.low), _in_order(statistics.high)


def _may_have_values(statistics: Statistics | None) -> bool:
    """Whether not all of a column is known to be null."""
    return statistics is None or statistics.nulls != statistics.rows


_UNKNOWN = object()


def _compared(function: Function, column: Expression, literal: Expression, statistics: Lookup) -> bool:
    column, value = _unwrapped(column), _constant(literal)
    if not isinstance(column, ColumnRef) or value is _UNKNOWN:
        return True
    if value is None:
        return False
    if is_float(logical(column.type)):
        return True  # statistics do not include NaN, which is the greatest value
    of_column = statistics(column.index)
    bounds = _bounds(of_column)
    if bounds is None:
        return _may_have_values(of_column)
    low, high, value = *bounds, _in_order(value)
    try:
        match function:
            case Function.EQ:
                return bool(low <= value <= high)
            case Function.LT:
                return bool(low < value)
            case Function.LE:
                return bool(low <= value)
            case Function.GT:
                return bool(high > value)
            case _:
                return bool(high >= value)
    except TypeError:  # statistics and literal have types that cannot be compared
        return True


def _unwrapped(node: Expression) -> Expression:
    """Drop a cast to a wider integer, which changes no value."""
    if isinstance(node, Cast) and node.child.type is not None and is_whole(node.child.type) and is_whole(node.to):
        return node.child if node.child.type.bit_width <= node.to.bit_width else node
    return node


def _constant(node: Expression) -> Any:
    """Value of a literal, also of an integer under casts that change no value."""
    if isinstance(node, Literal):
        return node.value
    inner = _unwrapped(node)
    return inner.value if isinstance(inner, Literal) else _UNKNOWN


def _in_order(value: Any) -> Any:
    """Convert a value to one that Python orders as Spark does: text as bytes."""
    return value.encode() if isinstance(value, str) else value
