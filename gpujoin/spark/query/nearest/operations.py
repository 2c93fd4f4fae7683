"""Operations above a join that may read of each row's matches only the nearest."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gpujoin.model.spec import Direction
from gpujoin.spark.catalyst.joins import JOIN
from gpujoin.spark.catalyst.nodes import Node
from gpujoin.spark.catalyst.traits import MayFail, may_fail
from gpujoin.spark.catalyst.translate import ordered_by
from gpujoin.spark.query.aggregates import read_aggregate
from gpujoin.spark.query.nearest.conditions import Candidate, bare, compares_by_order, fail_as_spark
from gpujoin.spark.query.nearest.terms import Nearest, NearestJoins, Tie
from gpujoin.spark.query.plans import conjuncts

if TYPE_CHECKING:
    from gpujoin.spark.query.plans import PlanNode

_PASSED = frozenset({"Project", "Sort", "WindowGroupLimit"})


class NotUnderstoodError(Exception):
    """Some part of a plan is not what it would have to be."""


Defined: TypeAlias = "dict[int, Node]"


@dataclass(frozen=True)
class Input:
    """The join below an operation, and how the operation's columns are made of the join's."""

    join: PlanNode
    """The join."""
    projects: tuple[Defined, ...]
    """Expressions of the projections in between, by expression id; the topmost projection first."""
    filters: tuple[Node, ...] = ()
    """Conditions in between."""
    order: PlanNode | None = None
    """A ``Sort`` in between."""
    above_order: int = 0
    """How many of the projections are above it."""

    @property
    def sorted_by(self) -> tuple[Node, ...]:
        """What the ``Sort`` sorts by."""
        return () if self.order is None else self.order.expressions("order")

    def at_order(self) -> Input:
        """Give what the ``Sort`` reads."""
        return dataclasses.replace(self, projects=self.projects[self.above_order :])

    def attribute(self, node: Node) -> int | None:
        """Give the join's column that orders as an expression does; ``None`` if none does."""
        node = bare(node)
        for project in self.projects:
            if node.name == "AttributeReference" and node.expr_id in project:
                node = bare(project[node.expr_id])
        return node.expr_id if node.name == "AttributeReference" else None

    def reads(self, node: Node) -> frozenset[int]:
        """The join's columns that an expression reads."""
        ids = node.attribute_ids
        for project in self.projects:
            origins = [project[expr_id].attribute_ids if expr_id in project else {expr_id} for expr_id in ids]
            ids = frozenset().union(*origins)
        return ids


class Aggregation:
    """An aggregation that gives the same result without the other matches.

    ``first`` and ``any_value`` take any row: that of the nearest match too.
    """

    def __init__(self, node: PlanNode) -> None:
        aggregation = read_aggregate(node)
        self.computed: list[Node] = [*aggregation.keys]
        self.groups = aggregation.keys
        self.results: tuple[Defined, ...] = (
            {named.expr_id: named.children[0] for named in aggregation.results if named.name == "Alias"},
        )
        self._calls: list[Node] = []
        self._any_row = False
        for call in aggregation.aggregates:
            function, *condition = call.children
            if condition or call.fields["isDistinct"]:
                raise NotUnderstoodError
            self.computed += function.children
            if function.name in _EXTREMES:
                self._calls.append(function)
            elif function.name in ("First", "Last") and not function.fields["ignoreNulls"]:
                self._any_row = True
            else:
                raise NotUnderstoodError

    def ties(self, way: Candidate, below: Input) -> tuple[Tie, ...]:
        """What decides among matches of equal order.

        Raises
        ------
        NotUnderstoodError
            If more than the nearest match is read.
        """
        if not all(below.reads(key) <= way.fixed for key in self.groups):
            raise NotUnderstoodError
        orders: set[tuple[Tie, ...]] = set()
        reads_match = self._any_row
        for function in self._calls:
            if function.name in ("Max", "Min") and below.reads(function.children[0]) <= way.fixed:
                continue
            if _EXTREMES[function.name] is not way.nearest.direction:
                raise NotUnderstoodError
            orders.add(self._order(function.children[-1], way, below))
            reads_match = True
        decisive = [ties for ties in orders if ties]
        if not reads_match or len(decisive) > 1:
            raise NotUnderstoodError
        return decisive[0] if decisive else ()

    @staticmethod
    def _order(order: Node, way: Candidate, below: Input) -> tuple[Tie, ...]:
        parts = list(order.children[1::2]) if order.name == "CreateNamedStruct" else [order]
        first, *rest = parts
        if below.attribute(first) != way.nearest.column:
            raise NotUnderstoodError
        latest = way.nearest.direction is Direction.BACKWARD
        # Null is the least of a struct's fields: the last of those that descend, the first of those that ascend.
        return tuple(
            tie for part in rest for tie in _ties_of(part, way, below, descending=latest, nulls_first=not latest)
        )


_EXTREMES = {
    "Max": Direction.BACKWARD,
    "MaxBy": Direction.BACKWARD,
    "Min": Direction.FORWARD,
    "MinBy": Direction.FORWARD,
}


class FirstOfWindow:
    """A filter of the first row that a window numbers.

    A window without an order takes any row. Where its rows are sorted below it, the first in that order is meant: Spark
    decorrelates ``ORDER BY r.t LIMIT 1`` to such plans where ``r.t`` is not selected. The row of the nearest match is
    then what was asked for, and one of those that the plan may give.
    """

    def __init__(self, node: PlanNode) -> None:
        window = node.children[0]
        numbered, *others = window.expressions("windowExpressions")
        value = numbered.children[0] if numbered.name == "Alias" else numbered
        if others or value.name != "WindowExpression" or value.children[0].name != "RowNumber":
            raise NotUnderstoodError
        if not any(_first_alone(part, numbered.expr_id) for part in conjuncts(node.expression("condition"))):
            raise NotUnderstoodError
        for below in window.walk():
            if below.name not in ("Window", *_PASSED):
                break
            if below.name == "WindowGroupLimit" and below.expression("rankLikeFunction").name != "RowNumber":
                raise NotUnderstoodError
        self.groups = window.expressions("partitionSpec")
        self.results: tuple[Defined, ...] = ()
        self._order = window.expressions("orderSpec")
        self.computed: list[Node] = [*self.groups, *(key.children[0] for key in self._order)]

    def ties(self, way: Candidate, below: Input) -> tuple[Tie, ...]:
        """What decides among matches of equal order."""
        if not all(below.reads(key) <= way.fixed for key in self.groups):
            raise NotUnderstoodError
        rest = [key for key in self._order if not below.reads(key) <= way.fixed]
        if not rest and below.order is not None:
            below = below.at_order()
            rest = [key for key in below.sorted_by if not below.reads(key) <= way.fixed]
        if not rest:
            return ()
        latest = way.nearest.direction is Direction.BACKWARD
        if below.attribute(rest[0].children[0]) != way.nearest.column:
            raise NotUnderstoodError
        if ordered_by(rest[0], "direction", "Descending") is not latest:
            raise NotUnderstoodError
        ties: list[Tie] = []
        for key in rest[1:]:
            descending = ordered_by(key, "direction", "Descending")
            nulls_first = ordered_by(key, "nullOrdering", "NullsFirst")
            ties += _ties_of(key.children[0], way, below, descending=descending, nulls_first=nulls_first)
        return tuple(ties)


Operation: TypeAlias = Aggregation | FirstOfWindow


def operation_of(node: PlanNode) -> type[Operation] | None:
    """Give the kind of operation that a node is the top of; ``None`` if it is of none."""
    if node.name == "Aggregate":
        return Aggregation
    return FirstOfWindow if node.name == "Filter" and node.children[0].name == "Window" else None


def join_below(node: PlanNode, *, decorrelated: bool = False) -> Input | None:
    """Give the join that an operation reads, with the nodes between that only pass its rows on.

    Of a decorrelated subquery filters may be between that drop groups as a whole.
    """
    child = node.children[0]
    windowed = child.name == "Window"
    if windowed:
        child = child.children[0]
    between: list[PlanNode] = []
    while (
        child.name == "Project"
        or (windowed and child.name in ("WindowGroupLimit", "Sort"))
        or (decorrelated and child.name == "Filter")
    ):
        between.append(child)
        child = child.children[0]
    if child.class_name != JOIN or not compares_by_order(child):
        return None
    projects = tuple(defined(passed) for passed in between if passed.name == "Project")
    filters = tuple(passed.expression("condition") for passed in between if passed.name == "Filter")
    sorts = [place for place, passed in enumerate(between) if passed.name == "Sort"]
    if not sorts:
        return Input(child, projects, filters)
    above = sum(passed.name == "Project" for passed in between[: sorts[0]])
    return Input(child, projects, filters, between[sorts[0]], above)


def mark(joins: NearestJoins, below: Input, nearest: Nearest) -> None:
    """Mark the join below an operation, and the ``Sort`` between the two."""
    joins.terms[below.join] = fail_as_spark(nearest, below.join.gateway)
    if below.order is not None:
        joins.orders[below.order] = below.join


def harmless(node: PlanNode, above: Operation, below: Input, nearest: Nearest) -> bool:
    """Tell whether the missing matches change nothing: they raise no error and count in no state."""
    if not node.deterministic:
        return False
    computed = [
        *above.computed,
        *(key.children[0] for key in below.sorted_by),
        *(value for project in below.projects for value in project.values()),
    ]
    computed += [
        nearest.bound,
        *(limit.bound for limit in nearest.limits if limit.shift is None),
        *nearest.conditions,
    ]
    plain = ("AttributeReference", "Literal")
    return all(may_fail(expression) is MayFail.NEVER for expression in computed if bare(expression).name not in plain)


def _ties_of(part: Node, way: Candidate, below: Input, *, descending: bool, nulls_first: bool) -> tuple[Tie, ...]:
    if below.reads(part) <= way.fixed:
        return ()
    attribute = below.attribute(part)
    if attribute is None or attribute not in way.searched:
        raise NotUnderstoodError
    return (Tie(attribute, descending, nulls_first),)


def defined(project: PlanNode) -> Defined:
    """Give what a projection computes, by expression id."""
    return {named.expr_id: named.children[0] for named in project.expressions("projectList") if named.name == "Alias"}


def _first_alone(part: Node, number: int) -> bool:
    """Whether a condition on a row's number is true of the first alone."""
    if part.name not in ("EqualTo", "LessThanOrEqual", "LessThan"):
        return False
    numbered, limit = part.children
    most = "2" if part.name == "LessThan" else "1"
    if numbered.name == "Literal" and part.name == "EqualTo":
        numbered, limit = limit, numbered
    return (
        numbered.name == "AttributeReference" and numbered.expr_id == number
        and limit.name == "Literal" and str(limit.fields.get("value")) == most
    )  # fmt: skip
