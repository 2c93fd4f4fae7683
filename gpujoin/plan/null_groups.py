"""Moves a filter ``key IS NOT NULL`` above an aggregation by the key, if the aggregation then equals another one.

Where a query joins a view by a key of its aggregation, Spark filters nulls of the key in the scan below. Where the
query uses the view once more, Spark does not::

    join ── sum by supplier ── scan lines where day > … and supplier is not null
      └──── max ── sum by supplier ── scan lines where day > …

With the filter above, both aggregations are equal, and computed once (`plan/repeated`)::

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
    """Move filters of null keys above aggregations that then equal another one of the tree.

    An aggregation that may fail over rows with a null key is left alone, unless an equal one reads all of its rows, and
    so fails as well.
    """
    aggregations = [node for node in tree.walk() if isinstance(node, PartialAggregate)]
    if len(aggregations) < 2:
        return tree
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
    """Move the filters of null keys above an aggregation; ``None`` if it has none."""
    tree = ColumnTree.from_relation(node)
    (child,) = tree.inputs
    keys = {id_: n for n, id_ in enumerate(tree.ids[: len(node.keys)]) if id_ in child.positions}
    below, null_keys = _without_null_tests(child, keys)
    if not null_keys:
        return None
    unfiltered = dataclasses.replace(node, child=below)
    key_columns = (column(unfiltered.schema, keys[id_]) for id_ in child.positions if id_ in null_keys)
    condition = all_of(Call(function=Function.IS_NOT_NULL, arguments=(key,), type=pa.bool_()) for key in key_columns)
    assert condition is not None
    return Filter(unfiltered, condition)


def _without_null_tests(tree: ColumnTree, columns: Collection[ColumnId]) -> tuple[Relation, frozenset[ColumnId]]:
    """Remove the tests that columns are not null. Returns the relation, and the columns whose tests were removed."""
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
    """Remove the tests that some columns are not null from a condition. Returns the rest, and the tested columns."""
    tested = {n: part.arguments[0] for n, part in enumerate(parts) if _tests_not_null(part)}
    ids = {n: tree.ids[key.index] for n, key in tested.items() if isinstance(key, ColumnRef)}
    removed = {n: id_ for n, id_ in ids.items() if id_ in columns}
    return tuple(part for n, part in enumerate(parts) if n not in removed), frozenset(removed.values())


def _tests_not_null(part: Expression) -> TypeGuard[Call]:
    return isinstance(part, Call) and part.function is Function.IS_NOT_NULL
