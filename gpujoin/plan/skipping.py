"""Finds scans that may skip rows without a match in a join above them.

The values of a build side are known before the other side is read. Files and row groups without any of them are left
out, so a dimension with a filter saves reading most of a fact table that was written in its order::

    sales JOIN dates ON sales.day = dates.day WHERE dates.year = 2024        days of the build side   730 to 1095

    sales    row group 0   days   1 to 400     left out
             row group 1   days 398 to 800     read
             row group 2   days 799 to 1200    read

A runtime filter (`plan.runtime_filters`) is a join like any other here.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from gpujoin.model.expressions import ColumnId
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import Filter, Join, PartialAggregate, Project, Relation, Scan, Union, Window
from gpujoin.model.spec import NullEquality
from gpujoin.model.types import is_whole, logical
from gpujoin.plan.fragments import ColumnTree
from gpujoin.plan.runtime_filters import PASSES, required_of_inputs


def matching_keys(join: Join) -> tuple[tuple[int, int], ...]:
    """Pairs of a build and a stream column. Stream rows with a value that no build row has do not change the result."""
    built, streamed = join.build_side, join.build_side.other
    join_type = join.spec.join_type
    returns_unmatched = join_type is JoinType.LEFT_ANTI and streamed is Side.LEFT
    if join_type.null_aware or join_type.preserves(streamed) or returns_unmatched:
        return ()
    return tuple(
        (pair.of(built), pair.of(streamed))
        for pair in join.spec.keys
        if pair.nulls is NullEquality.UNEQUAL and _comparable(join, pair.left, pair.right)
    )


def _comparable(join: Join, left: int, right: int) -> bool:
    types = logical(join.left.schema.field(left).type), logical(join.right.schema.field(right).type)
    return types[0] == types[1] or (is_whole(types[0]) and is_whole(types[1]))


def scans_of(
    tree: ColumnTree, column_id: ColumnId, required: frozenset[ColumnId], shared: Container[Relation]
) -> Iterator[tuple[Scan, int]]:
    """Find the scans that may skip rows by the values of a column, each with its own column.

    Rows with another value in the column are of no use to the caller. It needs the ``required`` columns of the others.
    Scans below ``shared`` parts are left as they are.
    """
    node = tree.relation
    below = None if node in shared else required_of_inputs(tree, required)
    if below is None:
        return
    match node:
        case Scan():
            yield node, tree.positions[column_id]
            return
        case Union():
            place = tree.positions[column_id]
            for child, required_of_child in zip(tree.inputs, below, strict=True):
                yield from scans_of(child, child.ids[place], required_of_child, shared)
            return
        case Window():
            passes = column_id in tree.inputs[0].at(node.partition)
        case Join():
            passes = any(
                column_id in tree.side(side).positions and node.spec.join_type in PASSES[side] for side in Side
            )
        case _:
            passes = isinstance(node, (Filter, Project, PartialAggregate))
    for child, required_of_child in zip(tree.inputs, below, strict=True):
        if passes and column_id in child.positions:
            yield from scans_of(child, column_id, required_of_child, shared)
