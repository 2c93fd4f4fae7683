"""Finds conditions that are true for no row, such as ``x > 5 and x < 3``.

Comparisons of one expression with constants leave it a range or a set of values; comparisons of two expressions with
one another leave them some of the orders less, equal and greater::

    x > 5 and x < 3            greater than 5, and at most below 3     nothing
    x in (1, 2) and x > 4      1 and 2, of which none is above 4       nothing
    x <= y and x > y           less or equal, and greater              nothing
"""

from __future__ import annotations

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from gpujoin.functions.comparison import MIRRORED
from gpujoin.model.expressions import Call, ColumnRef, Expression, Function, Literal, conjuncts

_ORDERS = {
    Function.LT: "<",
    Function.LE: "<=",
    Function.EQ: "=",
    Function.NE: "<>",
    Function.GE: ">=",
    Function.GT: ">",
}
"""Comparisons that are not true of nulls, and the orders of their operands for which they are true."""
_MIRRORED_ORDERS = str.maketrans("<>", "><")
_DAY = dt.date(1970, 1, 1)


def is_never_true(conditions: Iterable[Expression]) -> bool:
    """Tell whether all conditions are true for no row, as far as that is provable."""
    values: defaultdict[Any, _Values] = defaultdict(_Values)
    orders: dict[tuple[Any, Any], frozenset[str]] = {}
    for condition in (part for each in conditions for part in conjuncts(each)):
        if _is_false(condition):
            return True
        if isinstance(condition, Call) and condition.function is not Function.OR:
            _restrict(condition, values, orders)
        elif isinstance(condition, ColumnRef):
            values[condition.structure].compare(Function.EQ, True)
    return any(each.is_empty for each in values.values()) or not all(orders.values())


def _is_false(condition: Expression) -> bool:
    """Whether a condition alone is true for no row."""
    if isinstance(condition, Literal):
        return condition.value is not True
    if not isinstance(condition, Call):
        return False
    match condition.function, condition.arguments:
        case Function.OR, operands:
            return all(is_never_true([operand]) for operand in operands)
        case function, operands if function in _ORDERS:
            same = operands[0].same_as(operands[1]) and "=" not in _ORDERS[function]
            return same or any(isinstance(operand, Literal) and operand.value is None for operand in operands)
    return False


@dataclass
class _Values:
    """What conditions leave of the values of an expression."""

    is_null: bool = False
    is_not_null: bool = False
    least: tuple[Any, bool] | None = None
    """A lower bound, and whether the value itself is left out."""
    most: tuple[Any, bool] | None = None
    candidates: frozenset[Any] | None = None
    excluded: set[Any] = field(default_factory=set)

    def compare(self, function: Function, value: Any) -> None:
        """Add a comparison with a value that is not null."""
        self.is_not_null = True
        match function:
            case Function.EQ:
                self.restrict(frozenset([value]))
            case Function.NE:
                self.excluded.add(value)
            case Function.LT | Function.LE:
                bound = value, function is Function.LT
                if self.most is None or (value, not bound[1]) < (self.most[0], not self.most[1]):
                    self.most = bound
            case _:
                bound = value, function is Function.GT
                if self.least is None or bound > self.least:
                    self.least = bound

    def restrict(self, values: frozenset[Any]) -> None:
        """Leave only some values."""
        self.is_not_null = True
        self.candidates = values if self.candidates is None else self.candidates & values

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left."""
        if self.is_null and self.is_not_null:
            return True
        if self.candidates is not None:
            return not any(value not in self.excluded and self._is_within(value) for value in self.candidates)
        if self.least is None or self.most is None:
            return False
        (low, above), (high, below) = self.least, self.most
        if isinstance(low, int) and isinstance(high, int):
            return low + above > high - below
        return bool(low > high or (low == high and (above or below or low in self.excluded)))

    def _is_within(self, value: Any) -> bool:
        above = self.least is None or value > self.least[0] or (value == self.least[0] and not self.least[1])
        below = self.most is None or value < self.most[0] or (value == self.most[0] and not self.most[1])
        return above and below


def _restrict(
    condition: Call, values: defaultdict[Any, _Values], orders: dict[tuple[Any, Any], frozenset[str]]
) -> None:
    """Add a condition to the values that its expressions may have."""
    function, (first, *others) = condition.function, condition.arguments
    if function is Function.NOT and isinstance(first, Call) and first.function is Function.EQ:
        function, (first, *others) = Function.NE, first.arguments
    elif function is Function.NOT:
        values[first.structure].compare(Function.EQ, False)
    if function in (Function.IS_NULL, Function.IS_NOT_NULL):
        of_first = values[first.structure]
        of_first.is_null |= function is Function.IS_NULL
        of_first.is_not_null |= function is Function.IS_NOT_NULL
    elif function is Function.IN and all(isinstance(member, Literal) for member in others):
        members = [_comparable(member.value) for member in others if isinstance(member, Literal)]
        candidates = [member for member in members if member is not _NULL]
        if None not in candidates:
            values[first.structure].restrict(frozenset(candidates))
    elif function in _ORDERS or function is Function.EQ_NULL_SAFE:
        _compare(function, first, others[0], values, orders)
    elif function is not Function.NOT:
        values[condition.structure].compare(Function.EQ, True)


def _compare(
    function: Function,
    left: Expression,
    right: Expression,
    values: defaultdict[Any, _Values],
    orders: dict[tuple[Any, Any], frozenset[str]],
) -> None:
    if isinstance(left, Literal):
        function, left, right = MIRRORED.get(function, function), right, left
    if isinstance(right, Literal):
        value = _comparable(right.value)
        if value is _NULL:
            values[left.structure].is_null |= function is Function.EQ_NULL_SAFE
        elif value is not None:
            values[left.structure].compare(Function.EQ if function is Function.EQ_NULL_SAFE else function, value)
    elif function is not Function.EQ_NULL_SAFE:
        pair, symbols = (left.structure, right.structure), _ORDERS[function]
        if pair[::-1] in orders:
            pair, symbols = pair[::-1], symbols.translate(_MIRRORED_ORDERS)
        orders[pair] = orders.get(pair, frozenset("<=>")) & frozenset(symbols)


_NULL = object()


def _comparable(value: Any) -> Any:
    """Give a Python value that orders as Spark's value does; ``None`` if there is none.

    Integers and days are integers, between which there is nothing.
    """
    match value:
        case None:
            return _NULL
        case float():
            return (math.isnan(value), 0.0 if math.isnan(value) else value)  # NaN is above all
        case bool():
            return int(value)
        case dt.datetime() | int() | Decimal() | str() | bytes():
            return value
        case dt.date():
            return (value - _DAY).days
    return None
