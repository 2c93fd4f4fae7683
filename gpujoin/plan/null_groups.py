"""Leaves out the group of null above an aggregation, where that makes it like another one.

A query that joins a view by a key of its aggregation needs no group of null, and Spark leaves out its rows far below.
Where the query uses the view once more, it does not::

    join ── sum by supplier ── scan lines where day > … and supplier is not null
      └──── max ── sum by supplier ── scan lines where day > …

Both are one (`plan/repeated`) if the group is left out above::

    join ── filter supplier is not null ── sum by supplier ── scan lines where day > …
      └──── max ────────────────────────── sum by supplier ── scan lines where day > …
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import TypeGuard

import pyarrow as pa

from gpujoin.model.expressions import Call, ColumnId, ColumnRef, Expression, Function, conjuncts
from gpujoin.model.relation import column
from gpujoin.model.relations import Filter, PartialAggregate, Project, Relation, Scan
from gpujoin.plan.complete_groups import may_stop
from gpujoin.plan.fragments import ColumnTree
from gpujoin.plan.ranges import all_of
from gpujoin.plan.remap import replaced
from gpujoin.plan.repeated import Kinds
from gpujoin.plan.runtime_filters import may_raise


def with_null_groups(tree: Relation) -> Relation:
    """Let aggregations compute the groups of null, which are left out above them, where another one does.

    Not those that may then fail, unless another one, of whose rows all are read, fails as well.
    """
    aggregations = [node for node in tree.walk() if isinstance(node, PartialAggregate)]
    filtered: dict[Relation, Filter] = {
        node: above for node in aggregations if (above := _filtered_above(node)) is not None
    }
    if not filtered or len(filtered) == len(aggregations):
        return tree
    kinds, stopped = Kinds(), may_stop(tree)
    known = set(map(kinds.of, aggregations))
    read = {kinds.of(node) for node in aggregations if node not in stopped}
    shared: dict[Relation, Relation] = {
        node: above
        for node, above in filtered.items()
        if (kind := kinds.of(above.child)) in read or (kind in known and not may_raise(above.child))
    }
    return replaced(tree, shared) if shared else tree


def _filtered_above(node: PartialAggregate) -> Filter | None:
    """Give an aggregation that leaves out groups of null above, and not below; ``None`` where it leaves out none."""
    tree = ColumnTree.from_relation(node)
    (child,) = tree.inputs
    keys = {id_: n for n, id_ in enumerate(tree.ids[: len(node.keys)]) if id_ in child.positions}
    below, asked = _with_nulls(child, keys)
    if not asked:
        return None
    whole = dataclasses.replace(node, child=below)
    there = (column(whole.schema, keys[id_]) for id_ in child.positions if id_ in asked)
    condition = all_of(Call(function=Function.IS_NOT_NULL, arguments=(key,), type=pa.bool_()) for key in there)
    assert condition is not None
    return Filter(whole, condition)


def _with_nulls(tree: ColumnTree, columns: Collection[ColumnId]) -> tuple[Relation, frozenset[ColumnId]]:
    """Give also the rows that are left out because one of some columns is null, and the columns that are so asked."""
    match node := tree.relation:
        case Scan():
            rest, asked = _without(node.filters, tree, columns)
            return (dataclasses.replace(node, filters=rest) if asked else node), asked
        case Filter():
            child, below = _with_nulls(tree.inputs[0], columns)
            rest, asked = _without(conjuncts(node.condition), tree, columns)
            condition = all_of(rest)
            return (child if condition is None else Filter(child, condition)), asked | below
        case Project():
            child, asked = _with_nulls(tree.inputs[0], columns)
            return dataclasses.replace(node, child=child), asked
    return node, frozenset()


def _without(
    parts: Sequence[Expression], tree: ColumnTree, columns: Collection[ColumnId]
) -> tuple[tuple[Expression, ...], frozenset[ColumnId]]:
    """Leave out the parts of a condition that only ask that one of some columns is not null; and tell which."""
    asked = {n: part.arguments[0] for n, part in enumerate(parts) if _asks_for_a_value(part)}
    ids = {n: tree.ids[key.index] for n, key in asked.items() if isinstance(key, ColumnRef)}
    left_out = {n: id_ for n, id_ in ids.items() if id_ in columns}
    return tuple(part for n, part in enumerate(parts) if n not in left_out), frozenset(left_out.values())


def _asks_for_a_value(part: Expression) -> TypeGuard[Call]:
    return isinstance(part, Call) and part.function is Function.IS_NOT_NULL
