"""Scans that may leave out rows which a join above has no match for.

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

from gpujoin.model.expressions import ColumnRef
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import Filter, Join, PartialAggregate, Project, Relation, Scan, Union, Window
from gpujoin.model.spec import NullEquality
from gpujoin.model.types import is_whole, logical
from gpujoin.plan.remap import output_source
from gpujoin.plan.runtime_filters import PASSES, read_of_children


def matching_keys(join: Join) -> tuple[tuple[int, int], ...]:
    """Pairs of a built and a streamed column: streamed rows whose value is in no built row do not change the result."""
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
    relation: Relation, position: int, read: frozenset[int], shared: Container[Relation]
) -> Iterator[tuple[Scan, int]]:
    """Scans, and the column of each, whose rows may be left out by a relation's column; none below ``shared`` parts.

    Rows of the relation with another value in the column are of no use to whoever asks, who needs the values of the
    columns at ``read`` of every row.
    """
    below = None if relation in shared else read_of_children(relation, read)
    if below is None:
        return
    match relation:
        case Scan():
            yield relation, position
        case Filter():
            yield from scans_of(relation.child, position, below[0], shared)
        case Window():
            if position in relation.partition:
                yield from scans_of(relation.child, position, below[0], shared)
        case Project():
            source = relation.outputs[position].expression
            if isinstance(source, ColumnRef):
                yield from scans_of(relation.child, source.index, below[0], shared)
        case PartialAggregate():
            key = relation.keys[position].expression if position < len(relation.keys) else None
            if isinstance(key, ColumnRef):
                yield from scans_of(relation.child, key.index, below[0], shared)
        case Union():
            for child in relation.inputs:
                yield from scans_of(child, position, below[0], shared)
        case Join():
            origin = output_source(relation.spec, position)
            if origin is not None and relation.spec.join_type in PASSES[origin[0]]:
                side, place = origin
                read_of = dict(zip(Side, below, strict=True))
                yield from scans_of(relation.side(side), place, read_of[side], shared)
