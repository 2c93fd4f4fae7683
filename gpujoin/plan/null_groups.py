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
from collections.abc import Sequence
from typing import TypeGuard

import pyarrow as pa

from gpujoin.model.expressions import Call, ColumnRef, Expression, Function, conjuncts
from gpujoin.model.relation import column
from gpujoin.model.relations import Filter, PartialAggregate, Project, Relation, Scan
from gpujoin.plan.complete_groups import may_stop
from gpujoin.plan.ranges import all_of
from gpujoin.plan.remap import replaced
from gpujoin.plan.repeated import Kinds
from gpujoin.plan.runtime_filters import may_raise


def with_null_groups(tree: Relation) -> Relation:
    """Let aggregations compute the groups of null, which are left out above them, where another one does.

    Not those that may then fail, unless another one, of whose rows all are read, fails as well.
    """
    aggregations = [node for node in tree.walk() if isinstance(node, PartialAggregate)]
    filtered = {node: above for node in aggregations if (above := _filtered_above(node)) is not None}
    if not filtered or len(filtered) == len(aggregations):
        return tree
    kinds, stopped = Kinds(), may_stop(tree)
    known = set(map(kinds.of, aggregations))
    read = {kinds.of(node) for node in aggregations if node not in stopped}
    shared = {
        node: above
        for node, above in filtered.items()
        if (kind := kinds.of(above.child)) in read or (kind in known and not may_raise(above.child))
    }
    return replaced(tree, shared) if shared else tree


def _filtered_above(node: PartialAggregate) -> Filter | None:
    """Give an aggregation that leaves out groups of null above, and not below; ``None`` where it leaves out none."""
    keys = {key.expression.index: n for n, key in enumerate(node.keys) if isinstance(key.expression, ColumnRef)}
    child, asked = _with_nulls(node.child, frozenset(keys))
    if not asked:
        return None
    whole = dataclasses.replace(node, child=child)
    there = (column(whole.schema, keys[position]) for position in sorted(asked))
    condition = all_of(Call(function=Function.IS_NOT_NULL, arguments=(key,), type=pa.bool_()) for key in there)
    assert condition is not None
    return Filter(whole, condition)


def _with_nulls(node: Relation, columns: frozenset[int]) -> tuple[Relation, frozenset[int]]:
    """Give the same rows, and those that are left out because one of some columns is null; and which of these are."""
    match node:
        case Scan():
            rest, asked = _without(node.filters, columns)
            return (dataclasses.replace(node, filters=rest) if asked else node), asked
        case Filter():
            child, below = _with_nulls(node.child, columns)
            rest, asked = _without(conjuncts(node.condition), columns)
            condition = all_of(rest)
            return (child if condition is None else Filter(child, condition)), asked | below
        case Project():
            named = {position: node.outputs[position].expression for position in columns}
            read = {value.index: position for position, value in named.items() if isinstance(value, ColumnRef)}
            child, below = _with_nulls(node.child, frozenset(read))
            return dataclasses.replace(node, child=child), frozenset(read[position] for position in below)
    return node, frozenset()


def _without(parts: Sequence[Expression], columns: frozenset[int]) -> tuple[tuple[Expression, ...], frozenset[int]]:
    """Leave out the parts of a condition that only ask that one of some columns is not null; and tell which."""
    asked = {n: part.arguments[0] for n, part in enumerate(parts) if _asks_for_a_value(part)}
    left_out = {n: key.index for n, key in asked.items() if isinstance(key, ColumnRef) and key.index in columns}
    return tuple(part for n, part in enumerate(parts) if n not in left_out), frozenset(left_out.values())


def _asks_for_a_value(part: Expression) -> TypeGuard[Call]:
    return isinstance(part, Call) and part.function is Function.IS_NOT_NULL
