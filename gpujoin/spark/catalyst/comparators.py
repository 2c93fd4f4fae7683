"""Reads comparators of ``array_sort``: by what they order elements, in which direction, and where nulls go.

A comparator of a query is any expression of two elements. One that says no more than an order compares a key of both::

    (l, r) -> case when length(l) > length(r) then -1 when length(l) < length(r) then 1 else 0 end

Each such expression is followed for the six ways in which two keys may be to one another. Here it is negative where the
left key is greater, positive where it is less, and 0 where both are equal or one is null: longest first, and nothing is
said of nulls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from gpujoin.model.expressions import Expression, Variable
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError
from gpujoin.spark.catalyst.traits import MayFail, may_fail


class _Relation(Enum):
    """How the key of the left element is to that of the right one."""

    LESS = "less"
    EQUAL = "equal"
    GREATER = "greater"
    LEFT_NULL = "left null"
    RIGHT_NULL = "right null"
    BOTH_NULL = "both null"


_NULL = frozenset({_Relation.LEFT_NULL, _Relation.RIGHT_NULL, _Relation.BOTH_NULL})
_TRUE_FOR = {
    "LessThan": frozenset({_Relation.LESS}),
    "LessThanOrEqual": frozenset({_Relation.LESS, _Relation.EQUAL}),
    "EqualTo": frozenset({_Relation.EQUAL}),
    "GreaterThanOrEqual": frozenset({_Relation.GREATER, _Relation.EQUAL}),
    "GreaterThan": frozenset({_Relation.GREATER}),
}
_MIRRORED = {
    _Relation.LESS: _Relation.GREATER,
    _Relation.GREATER: _Relation.LESS,
}


@dataclass(frozen=True)
class Order:
    """What a comparator of ``array_sort`` orders elements by."""

    key: Expression
    """The sort key, computed of :attr:`element`."""
    element: Variable
    descending: bool
    nulls_first: bool | None
    """Whether elements whose key is null come first; ``None``: the comparator does not say."""


def order_of(function: Node, reader: Callable[[Node], Expression]) -> Order:
    """Give the order of a comparator.

    Raises ``NotTranslatableError`` if it says more than the order of one key.
    """
    body, *variables = function.children
    if function.name != "LambdaFunction" or len(variables) != 2:
        raise NotTranslatableError(f"the comparator {function} is not computed here")
    comparator = _Comparator(function, body, variables, reader)
    less, equal, greater = (comparator.result(way) for way in (_Relation.LESS, _Relation.EQUAL, _Relation.GREATER))
    if (less, greater) not in {(-1, 1), (1, -1)} or equal != 0:
        raise NotTranslatableError(f"the comparator {function} gives no order")
    nulls = tuple(map(comparator.result, (_Relation.BOTH_NULL, _Relation.LEFT_NULL, _Relation.RIGHT_NULL)))
    nulls_first = True if nulls == (0, -1, 1) else False if nulls == (0, 1, -1) else None
    return Order(comparator.key, comparator.element, less == 1, nulls_first)


class _Comparator:
    """A comparator, followed for one relation of the keys after another."""

    def __init__(self, function: Node, body: Node, variables: list[Node], reader: Callable[[Node], Expression]) -> None:
        self._function = function
        self._body = body
        self._reader = reader
        left, right = (reader(variable) for variable in variables)
        assert isinstance(left, Variable)
        assert isinstance(right, Variable)
        self.element = left
        self._other = right.name
        self._ids = {variable.expr_id: place for place, variable in enumerate(variables)}
        self._keys: dict[object, Expression] = {}
        self._places: dict[int, int] = {}

    @property
    def key(self) -> Expression:
        """What is compared of the elements."""
        if len(self._keys) != 1:
            raise NotTranslatableError(f"the comparator {self._function} compares by more than one key")
        return next(iter(self._keys.values()))

    def result(self, relation: _Relation) -> int | None:
        """The sign of what the comparator gives for two elements; ``None`` for null."""
        return self._value(self._body, relation)

    def _value(self, node: Node, relation: _Relation) -> int | None:
        if node.name == "Literal":
            value = node.fields["@value"]
            return None if value is None else (int(value) > 0) - (int(value) < 0)
        if node.name not in ("If", "CaseWhen"):
            raise NotTranslatableError(f"the comparator {self._function} computes {node}")
        operands = list(node.children)
        otherwise = operands.pop() if len(operands) % 2 else None
        for condition, value in zip(operands[0::2], operands[1::2], strict=True):
            if self._truth(condition, relation):
                return self._value(value, relation)
        return None if otherwise is None else self._value(otherwise, relation)

    def _truth(self, node: Node, relation: _Relation) -> bool | None:
        """Whether a condition is true; ``None`` where it is null."""
        match node.name:
            case "And" | "Or":
                deciding = node.name == "Or"
                truths = [self._truth(child, relation) for child in node.children]
                return deciding if deciding in truths else None if None in truths else not deciding
            case "Not":
                truth = self._truth(node.children[0], relation)
                return None if truth is None else not truth
            case "IsNull" | "IsNotNull":
                place = self._place(node.children[0])
                null = relation in (_Relation.BOTH_NULL, (_Relation.LEFT_NULL, _Relation.RIGHT_NULL)[place])
                return null == (node.name == "IsNull")
        if node.name not in _TRUE_FOR:
            raise NotTranslatableError(f"the comparator {self._function} asks {node}")
        places = tuple(map(self._place, node.children))
        if len(set(places)) < 2:
            raise NotTranslatableError(f"the comparator {self._function} asks {node}")
        if relation in _NULL:
            return None
        return (relation if places == (0, 1) else _MIRRORED.get(relation, relation)) in _TRUE_FOR[node.name]

    def _place(self, operand: Node) -> int:
        """Which element an operand is of, which is remembered as a key."""
        if operand.number not in self._places:
            self._places[operand.number] = self._read(operand)
        return self._places[operand.number]

    def _read(self, operand: Node) -> int:
        used = {self._ids.get(part.expr_id) for part in operand.walk() if part.name == "NamedLambdaVariable"}
        places = used - {None}
        if len(places) != 1 or may_fail(operand) is not MayFail.NEVER:
            raise NotTranslatableError(f"the comparator {self._function} asks for {operand}")
        key = self._of_element(self._reader(operand))
        self._keys[key.structure] = key
        return next(place for place in places if place is not None)

    def _of_element(self, node: Expression) -> Expression:
        if isinstance(node, Variable):
            return self.element if node.name == self._other else node
        children = [self._of_element(child) for child in node.children]
        return node.with_children(children) if children else node
