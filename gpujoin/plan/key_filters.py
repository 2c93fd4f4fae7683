"""Keys that drop rows of one side of a join before they are exchanged.

For ``lineitem JOIN (orders JOIN customer)`` by orders, of which a filter keeps a tenth::

    stage 1    scan orders, filter             their keys: to every task of stage 2
    stage 2    scan lineitem ⋉ keys            a tenth of the rows: by key to the stage that joins
    stage 3    scan orders, filter ⋈ customer  by key to the stage that joins

Orders are read twice, and must have the same keys both times. Customers are left out of stage 1, since few of them
would drop an order: more keys than those of the side drop fewer rows, and none that is needed.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpujoin.model.expressions import ColumnId
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import Join, Output, Project, column
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.model.stages import NullKeys, null_keys_of
from gpujoin.plan.determinism import is_repeatable
from gpujoin.plan.estimates import Sizes
from gpujoin.plan.fragments import ColumnTree

SELECTIVE = 0.5
"""Keys filter where the filters below them keep at most this share of them."""
_MUCH_MORE = 1.25
"""A larger relation gives the keys where it has at most so many times more of them."""
_SAME_KEYS = frozenset({JoinType.INNER, JoinType.LEFT_SEMI})
"""Joins in whose result the keys of either side are also those of the other."""


def filtered_by_keys(join: Join, side: Side, sizes: Sizes) -> Join | None:
    """Make the semi-join of one side of a join with keys of the other side, or with more of them.

    ``None`` where it may drop rows that are needed, or would drop few.
    """
    spec, small = join.spec, join.side(side.other)
    if not spec.keys or null_keys_of(spec.join_type, side) is not NullKeys.DROP:
        return None
    places = [pair.of(side.other) for pair in spec.keys]
    if len(spec.keys) == 1 and spec.keys[0].nulls is NullEquality.UNEQUAL:
        tree = ColumnTree.from_relation(small)
        tree, column_id = _origin(tree, tree.ids[places[0]], sizes)
        small, places = tree.relation, [tree.positions[column_id]]
    if sizes.of(small).kept > SELECTIVE or not is_repeatable(small):
        return None
    columns = list(dict.fromkeys(places))
    keys = Project(small, tuple(Output(f"key{n}", column(small.schema, old), True) for n, old in enumerate(columns)))
    pairs = tuple(
        KeyPair(pair.of(side), columns.index(place), pair.nulls) for pair, place in zip(spec.keys, places, strict=True)
    )
    given = join.side(side)
    return Join(given, keys, JoinSpec(JoinType.LEFT_SEMI, pairs, left_output=tuple(range(len(given.schema)))))


def _origin(tree: ColumnTree, id_: ColumnId, sizes: Sizes) -> tuple[ColumnTree, ColumnId]:
    """Find the smallest part of a relation that has a column with all of a column's values, and few others."""
    while candidates := list(with_values(tree, id_)):
        part, of_part = min(candidates, key=lambda candidate: sizes.of(candidate[0].relation).kept)
        if sizes.of(part.relation).kept > _MUCH_MORE * sizes.of(tree.relation).kept:
            break
        tree, id_ = part, of_part
    return tree, id_


def with_values(tree: ColumnTree, id_: ColumnId) -> Iterator[tuple[ColumnTree, ColumnId]]:
    """Find inputs of a relation with a column that has all values of a column of it, but for null."""
    if not isinstance(tree.relation, (Project, Join)):
        return
    for side, child in zip(Side, tree.inputs, strict=False):
        if id_ not in child.positions:
            continue
        yield child, id_
        if not isinstance(tree.relation, Join) or tree.relation.spec.join_type not in _SAME_KEYS:
            continue
        other = tree.side(side.other)
        for pair in tree.relation.spec.keys:
            if child.ids[pair.of(side)] is id_ and pair.nulls is NullEquality.UNEQUAL:
                beyond = pair.of(side.other)
                if other.relation.schema.field(beyond).type == child.relation.schema.field(pair.of(side)).type:
                    yield other, other.ids[beyond]
