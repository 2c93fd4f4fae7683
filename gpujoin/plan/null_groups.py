"""Leaves out the group of null above an aggregation if that makes it like another one.

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
    """Compute the groups of null in aggregations that are then like another one, and filter them out above.

    Not those that may then fail, unless another one, of whose rows all are read, fails as well.
    """
    aggregations = [node for node in tree.walk() if isinstance(node, PartialAggregate)]
    filtered: dict[Relation, Filter] = {
        node: above for node in aggregations if (above := _filter_above(node)) is not None
    }
    if not filtered or len(filtered) == len(aggregations):
        return tree
    kinds, stopped = Kinds(), may_stop(tree)
    all_kinds = set(map(kinds.of, aggregations))
    complete_kinds = {kinds.of(node) for node in aggregations if node not in stopped}
    shared: dict[Relation, Relation] = {
        node: above
        for node, above in filtered.items()
        if (kind := kinds.of(above.child)) in complete_kinds or (kind in all_kinds and not may_raise(above.child))
    }
    return replaced(tree, shared) if shared else tree


def _filter_above(node: PartialAggregate) -> Filter | None:
    """Move the filter of groups of null above an aggregation; ``None`` if there is none."""
    tree = ColumnTree.from_relation(node)
    (child,) = tree.inputs
    keys = {id_: n for n, id_ in enumerate(tree.ids[: len(node.keys)]) if id_ in child.positions}
    below, null_keys = _without_null_tests(child, keys)
    if not null_keys:
        return None
    whole = dataclasses.replace(node, child=below)
    there = (column(whole.schema, keys[id_]) for id_ in child.positions if id_ in null_keys)
    condition = all_of(Call(function=Function.IS_NOT_NULL, arguments=(key,), type=pa.bool_()) for key in there)
    assert condition is not None
    return Filter(whole, condition)


def _without_null_tests(tree: ColumnTree, columns: Collection[ColumnId]) -> tuple[Relation, frozenset[ColumnId]]:
    """Give the rows without tests of columns for null, and the columns whose tests were left out."""
    match node := tree.relation:
        case Scan():
            rest, null_columns = _split_null_tests(node.filters, tree, columns)
            return (dataclasses.replace(node, filters=rest) if null_columns else node), null_columns
        case Filter():
            child, below = _without_null_tests(tree.inputs[0], columns)
            rest, null_columns = _split_null_tests(conjuncts(node.condition), tree, columns)
            condition = all_of(rest)
            return (child if condition is None else Filter(child, condition)), null_columns | below
        case Project():
            child, null_columns = _without_null_tests(tree.inputs[0], columns)
            return dataclasses.replace(node, child=child), null_columns
    return node, frozenset()


def _split_null_tests(
    parts: Sequence[Expression], tree: ColumnTree, columns: Collection[ColumnId]
) -> tuple[tuple[Expression, ...], frozenset[ColumnId]]:
    """Split a condition into the tests that some columns are not null and the rest; give the rest and the columns."""
    tested = {n: part.arguments[0] for n, part in enumerate(parts) if _asks_for_a_value(part)}
    ids = {n: tree.ids[key.index] for n, key in tested.items() if isinstance(key, ColumnRef)}
    left_out = {n: id_ for n, id_ in ids.items() if id_ in columns}
    return tuple(part for n, part in enumerate(parts) if n not in left_out), frozenset(left_out.values())


def _asks_for_a_value(part: Expression) -> TypeGuard[Call]:
    return isinstance(part, Call) and part.function is Function.IS_NOT_NULL
