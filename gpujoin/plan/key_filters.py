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

from gpujoin.model.expressions import ColumnRef
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import Join, Output, Project, Relation, column
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.model.stages import NullKeys, null_keys_of
from gpujoin.plan.determinism import is_repeatable
from gpujoin.plan.estimates import Sizes
from gpujoin.plan.remap import output_source

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
        small, place = _origin(small, places[0], sizes)
        places = [place]
    if sizes.of(small).kept > SELECTIVE or not is_repeatable(small):
        return None
    columns = list(dict.fromkeys(places))
    keys = Project(small, tuple(Output(f"key{n}", column(small.schema, old), True) for n, old in enumerate(columns)))
    pairs = tuple(
        KeyPair(pair.of(side), columns.index(place), pair.nulls) for pair, place in zip(spec.keys, places, strict=True)
    )
    given = join.side(side)
    return Join(given, keys, JoinSpec(JoinType.LEFT_SEMI, pairs, left_output=tuple(range(len(given.schema)))))


def _origin(relation: Relation, place: int, sizes: Sizes) -> tuple[Relation, int]:
    """Find the smallest part of a relation that has a column with all of a column's values, and few others."""
    while True:
        candidates = list(with_values(relation, place))
        if not candidates:
            return relation, place
        part, at = min(candidates, key=lambda candidate: sizes.of(candidate[0]).kept)
        if sizes.of(part).kept > _MUCH_MORE * sizes.of(relation).kept:
            return relation, place
        relation, place = part, at


def with_values(relation: Relation, place: int) -> Iterator[tuple[Relation, int]]:
    """Find inputs of a relation with a column that has all values of a column of it, but for null."""
    match relation:
        case Project():
            source = relation.outputs[place].expression
            if isinstance(source, ColumnRef):
                yield relation.child, source.index
        case Join():
            spec, origin = relation.spec, output_source(relation.spec, place)
            if origin is None:
                return
            side, at = origin
            yield relation.side(side), at
            for pair in spec.keys:
                if spec.join_type in _SAME_KEYS and pair.of(side) == at and pair.nulls is NullEquality.UNEQUAL:
                    other, beyond = relation.side(side.other), pair.of(side.other)
                    if other.schema.field(beyond).type == relation.side(side).schema.field(at).type:
                        yield other, beyond
