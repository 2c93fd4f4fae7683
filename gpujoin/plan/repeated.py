"""Finds the parts of a tree that occur several times and are worth computing once.

Two parts are alike if they compute the same columns, whatever these are called: where a query uses a view twice, Spark
gives the columns of the second use new names. Scans are alike if they read the same, whatever their numbers.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from gpujoin.model.aggregates import AggregateCall
from gpujoin.model.expressions import ColumnRef, Expression, Literal
from gpujoin.model.python_calls import PythonCall
from gpujoin.model.relations import Join, Output, PartialAggregate, PythonStep, Relation, Scan, SortKey, Window
from gpujoin.model.spec import JoinSpec
from gpujoin.model.windows import FramedAggregate, WindowCall

_COMPARED = (Relation, Expression, Output, SortKey, AggregateCall, FramedAggregate, WindowCall, PythonCall, JoinSpec)
_NOT_COMPARED = frozenset({"written", "existence_name"})
_NOT_COMPARED_OF_SCANS = frozenset({"index", "selectivity", "distinct"})
"""Its number, and estimates."""


@dataclass(frozen=True)
class RepeatedParts:
    """Parts with a join, an aggregation, a window or a Python function that are read several times."""

    kinds: Mapping[Relation, int]
    """The number of each such part, by its topmost node; parts alike have the same."""
    uses: Mapping[int, int]
    """How often each is read, by that number, not counting parts within one that is read again."""


def repeated_parts(tree: Relation) -> RepeatedParts:
    """Find the parts that are read several times even if each part is computed once."""
    kinds = Kinds()
    kinds.of(tree)
    times = Counter(kinds.of(node) for node in tree.walk() if node in kinds.worth_keeping)
    places: dict[int, list[Relation]] = {}

    def visit(node: Relation) -> None:
        kind = kinds.of(node)
        if times[kind] > 1:
            places.setdefault(kind, []).append(node)
            if len(places[kind]) > 1:
                return
        for child in node.children:
            visit(child)

    visit(tree)
    uses = {kind: len(nodes) for kind, nodes in places.items() if len(nodes) > 1}
    return RepeatedParts({node: kind for kind in uses for node in places[kind]}, uses)


class Kinds:
    """Gives parts that are alike the same number."""

    def __init__(self) -> None:
        self.worth_keeping: set[Relation] = set()
        """Nodes at or above a join, an aggregation, a window or a Python function."""
        self._numbers: dict[Hashable, int] = {}
        self._kinds: dict[Relation, int] = {}

    def of(self, node: Relation) -> int:
        """Give the number of a part."""
        kind = self._kinds.get(node)
        if kind is None:
            kind = self._numbers.setdefault(self._likeness(node), len(self._numbers))
            self._kinds[node] = kind
            below = any(child in self.worth_keeping for child in node.children)
            if below or isinstance(node, (Join, PartialAggregate, Window, PythonStep)):
                self.worth_keeping.add(node)
        return kind

    def _likeness(self, value: Any) -> Hashable:
        kind: type = type(value)
        if kind is Literal:  # zeros of both signs are equal in Python, and NaN is not
            return kind.__name__, repr(value.value), value.type
        return kind.__name__, *[self._of_value(getattr(value, name)) for name in _compared_fields(kind)]

    def _of_value(self, value: Any) -> Hashable:
        if isinstance(value, Relation):
            return self.of(value)
        if isinstance(value, tuple):
            return tuple(map(self._of_value, value))
        return self._likeness(value) if isinstance(value, _COMPARED) else value


@cache
def _compared_fields(kind: type) -> tuple[str, ...]:
    """The fields by which two values of a class are alike.

    A name says which value it is in expressions only, as that of a lambda's variable; columns have places.
    """
    told_by_name = issubclass(kind, Expression) and not issubclass(kind, ColumnRef)
    left_out = _NOT_COMPARED | (_NOT_COMPARED_OF_SCANS if kind is Scan else set() if told_by_name else {"name"})
    return tuple(field.name for field in dataclasses.fields(kind) if field.name not in left_out)
