"""Marks joins that need only the nearest match, those of decorrelated subqueries included."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpujoin.model.jointype import JoinType, Side
from gpujoin.spark.catalyst.joins import JOIN, join_type_in
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError
from gpujoin.spark.catalyst.traits import EQUALITIES
from gpujoin.spark.query.aggregates import read_aggregate
from gpujoin.spark.query.nearest.conditions import FLOATS, Candidate, bare, candidates
from gpujoin.spark.query.nearest.operations import (
    Input,
    NotUnderstoodError,
    defined,
    harmless,
    join_below,
    mark,
    operation_of,
)
from gpujoin.spark.query.nearest.terms import Domain, NearestJoins
from gpujoin.spark.query.plans import conjuncts

if TYPE_CHECKING:
    from gpujoin.spark.query.plans import PlanNode


def mark_nearest(plan: PlanNode, joins: NearestJoins) -> None:
    """Find the joins of a plan whose nearest matches alone are needed.

    Parameters
    ----------
    plan : PlanNode
        The topmost node of a plan.
    joins : NearestJoins
        Takes them.
    """
    for node in plan.walk():
        try:
            if node.class_name == JOIN:
                mark_decorrelated(node, joins)
            elif operation_of(node) is not None:
                _mark(node, joins)
        except (NotUnderstoodError, NotTranslatableError):
            continue


def _mark(node: PlanNode, joins: NearestJoins) -> None:
    below = join_below(node)
    operation = operation_of(node)
    if below is None or operation is None or below.join in joins.terms:
        return
    ways = list(candidates(below.join))
    if not ways:
        return
    above = operation(node)
    for way in ways:
        try:
            ties = above.ties(way, below)
        except NotUnderstoodError:
            continue
        if harmless(node, above, below, way.nearest):
            mark(joins, below, dataclasses.replace(way.nearest, ties=ties))
        return


def mark_decorrelated(top: PlanNode, joins: NearestJoins) -> None:
    """Mark the join within a decorrelated subquery, given the join with its result."""
    for side in Side:
        node = top.children[0 if side is Side.LEFT else 1]
        over: list[PlanNode] = []
        while node.name == "Project":
            over.append(node)
            node = node.children[0]
        operation = operation_of(node)
        below = None if operation is None else join_below(node, decorrelated=True)
        if operation is None or below is None or top.condition is None:
            continue
        ways = [way for way in candidates(below.join) if _is_distinct(below.join.child(way.nearest.rows))]
        kind, _ = join_type_in(top.fields["joinType"])
        if not ways or kind not in (JoinType.INNER, JoinType.LEFT if side is Side.RIGHT else JoinType.RIGHT):
            continue
        above = operation(node)
        whole = Input(below.join, (*map(defined, over), *above.results, *below.projects), below.filters)
        rows = top.child(side.other)
        for way in ways:
            domain = _domain(conjuncts(top.condition), rows, way, whole)
            if domain is None:
                continue
            fixed = way.fixed | {key for _, key, _ in domain.keys}
            ids = frozenset(value.expr_id for value, _ in domain.values) | {key for _, key, _ in domain.keys}
            if {below.attribute(group) for group in above.groups} != ids or not _drops_groups(below, ids):
                continue
            ties = above.ties(dataclasses.replace(way, fixed=fixed), below)
            if harmless(top, above, below, way.nearest):
                mark(joins, below, dataclasses.replace(way.nearest, ties=ties, domain=domain))
            return


def _domain(parts: Sequence[Node], rows: PlanNode, way: Candidate, whole: Input) -> Domain | None:
    """Give the rows whose distinct values are joined; ``None`` if these may not be all their values."""
    distinct = whole.join.child(way.nearest.rows)
    own = frozenset(column.expr_id for column in rows.output)
    floats = {column.expr_id for column in whole.join.output if column.type_name in FLOATS}
    by_id = {column.expr_id: column for column in distinct.output}
    values: dict[int, Node] = {}
    keys: list[tuple[Node, int, bool]] = []
    for part in parts:
        if part.name not in EQUALITIES:
            return None
        first, second = part.children
        ours = bool(first.attribute_ids) and first.attribute_ids <= own
        value, key = (first, second) if ours else (second, first)
        attribute = whole.attribute(key) if key.name == "AttributeReference" else None
        if attribute is None or value.name != "AttributeReference" or value.expr_id not in own or attribute in floats:
            return None
        if attribute in by_id:
            values[attribute] = value
        elif attribute in way.searched:
            keys.append((value, attribute, part.name == "EqualNullSafe"))
        else:
            return None
    if set(values) != set(by_id) or not _holds_all(distinct, rows, values):
        return None
    return Domain(rows, tuple((by_id[i], values[i]) for i in values), tuple(keys))


def _is_distinct(node: PlanNode) -> bool:
    """Whether a plan is distinct values of attributes."""
    if node.name != "Aggregate":
        return False
    aggregation = read_aggregate(node)
    keys = {key.expr_id for key in aggregation.keys if key.name == "AttributeReference"}
    results = [bare(result) for result in aggregation.results]
    return len(keys) == len(aggregation.keys) and all(
        result.name == "AttributeReference" and result.expr_id in keys for result in results
    )


def _holds_all(distinct: PlanNode, rows: PlanNode, values: dict[int, Node]) -> bool:
    """Whether distinct values hold all values of some rows, other than null.

    They do if they come from the same plan, which the rows may be filtered from further.
    """
    below = {
        result.expr_id: bare(result).expr_id for result in read_aggregate(distinct).results
    }  # fmt: skip
    base, filters, places = _strip(distinct.children[0])
    other, wider, others = _strip(rows)
    if not base.jvm.sameResult(other.jvm):
        return False
    at = {column.expr_id: n for n, column in enumerate(base.output)}
    at_other = {column.expr_id: n for n, column in enumerate(other.output)}
    origins = set()
    for output, value in values.items():
        origin, original = places.get(below[output], below[output]), others.get(value.expr_id, value.expr_id)
        if origin not in at or original not in at_other or at[origin] != at_other[original]:
            return False
        origins.add(origin)
    return all(
        (
            test.name == "IsNotNull"
            and test.children[0].name == "AttributeReference"
            and test.children[0].expr_id in origins
        )
        or any(test.jvm.semanticEquals(other_test.jvm) for other_test in wider)
        for test in filters
    )


def _strip(node: PlanNode) -> tuple[PlanNode, list[Node], dict[int, int]]:
    """A plan without filters and projections of attributes on its top, the filters, and what was renamed."""
    filters: list[Node] = []
    names: dict[int, int] = {}
    while node.name in ("Filter", "Project"):
        if node.name == "Filter":
            filters += conjuncts(node.expression("condition"))
        else:
            for named in node.expressions("projectList"):
                value = bare(named)
                if value.name != "AttributeReference" or value.expr_id != named.expr_id:
                    return node, filters, names
        node = node.children[0]
    return node, filters, names


def _drops_groups(below: Input, ids: frozenset[int]) -> bool:
    """Whether filters above an operation keep or drop groups as a whole, and drop none that is read."""
    return all(
        part.name == "IsNotNull" and below.attribute(part.children[0]) in ids
        for condition in below.filters for part in conjuncts(condition)
    )  # fmt: skip
