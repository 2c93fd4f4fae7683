"""Runtime filters: a small, selective side of a join filters the other side early, by a semi-join above its scan.

Spark joins in the order of the query, so a filter on a small table may come last and drop most of the rows that were
joined before. An inner or left semi-join keeps only rows of one side whose key the other side has. If the other side is
small and selective, a semi-join with its keys is added where the key column is read, below other joins and
aggregations. The original join stays, so the result is the same. An example: ``lineitem JOIN orders ON l.o = o.o JOIN
customer ON o.c = c.c WHERE c.name = 'ann'``::

    customer  c name      orders  o c      keys of the filtered customer   7
              7 ann               1 7      orders after the semi-join      1 7
              8 bob               2 8                                      3 7
                                  3 7

Only orders 1 and 3 are joined with lineitem. Without the filter, all orders are, and the last join drops order 2.

A filter is passed on in two ways. Where it makes one side of a join below selective, the keys of that side filter the
other side as well. Here the filtered orders are selective where unfiltered ones are not, so their keys filter lineitem.
And where a small table is joined by several keys, one of which comes from a selective part, it becomes selective
itself: in ``sales JOIN stock … JOIN days d1 … JOIN days d2 ON stock.day = d2.day AND d1.week = d2.week WHERE d1.year =
1999`` (TPC-DS 72) the weeks of 1999 filter ``d2``, whose days filter ``stock``.

Keys also drop rows of one side of a join before they are exchanged. For ``lineitem JOIN (orders JOIN customer)`` by
orders, of which a filter keeps a tenth::

    stage 1    scan orders, filter             their keys: to every task of stage 2
    stage 2    scan lineitem ⋉ keys            a tenth of the rows: by key to the stage that joins
    stage 3    scan orders, filter ⋈ customer  by key to the stage that joins

Orders are read twice, and must have the same keys both times. Customers are left out of stage 1, since few of them
would drop an order: more keys than those of the side drop fewer rows, and none that is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from gpujoin.functions.spec import can_raise
from gpujoin.model.aggregates import AggregateCall
from gpujoin.model.expressions import ColumnId
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import (
    Filter,
    Join,
    Limit,
    Output,
    PartialAggregate,
    Project,
    PythonStep,
    Relation,
    Scan,
    SparkSource,
    TopN,
    Window,
    column,
)
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.model.stages import Distribution, NullKeys, null_keys_of
from gpujoin.model.windows import FramedAggregate
from gpujoin.plan.determinism import is_repeatable
from gpujoin.plan.estimates import Sizes, build_side
from gpujoin.plan.fragments import ColumnTree
from gpujoin.plan.merging import raises_by_overflow

_SELECTIVE = 0.3
"""A side is selective if its filters keep at most this share of its keys."""
_SMALLER = 8.0
"""A side is small if it reads this many times fewer rows than it filters."""

_FILTERS = {
    JoinType.INNER: (Side.LEFT, Side.RIGHT),
    JoinType.LEFT_SEMI: (Side.LEFT,),
}
"""Sides that may be filtered: the join keeps only their rows whose key the other side has."""
PASSES = {
    Side.LEFT: frozenset({
        JoinType.INNER, JoinType.CROSS, JoinType.LEFT, JoinType.LEFT_SEMI, JoinType.LEFT_ANTI, JoinType.EXISTENCE,
        JoinType.NULL_AWARE_ANTI, JoinType.NULL_AWARE_EXISTENCE,
    }),
    Side.RIGHT: frozenset({JoinType.INNER, JoinType.CROSS, JoinType.RIGHT}),
}  # fmt: skip
"""Joins whose side may be filtered by a column of it, in place of the join's result."""


def keys_of(join: Join, side: Side) -> frozenset[int]:
    """Columns of a side of a join that are compared for each of its rows: keys, and the order key of an as-of join."""
    as_of = join.spec.as_of
    order_keys = () if as_of is None else (as_of.left if side is Side.LEFT else as_of.right,)
    return frozenset((*(pair.of(side) for pair in join.spec.keys), *order_keys))


def required_of_inputs(tree: ColumnTree, required: frozenset[ColumnId]) -> tuple[frozenset[ColumnId], ...] | None:
    """Give the columns of each input that a relation needs of every row to give its ``required`` ones.

    ``None`` where a node must be given every row of its input, since it might raise for one, as in Spark, or calls a
    Python function, which may do anything. What a projection computes Spark, too, may compute for matching rows only,
    but not what a key or a condition is::

        SELECT 10 / v … FROM t JOIN …           computed for matching rows
        … FROM t JOIN … ON 10 / v = …           computed for all rows

    Sums of groups are computed of all groups, and of the rows that a limit leaves out only their order counts.
    """
    computed = [value for id_, value in tree.computed.items() if id_ in required]
    values = computed if isinstance(tree.relation, Project) else tree.relation.expressions()
    if isinstance(tree.relation, PythonStep) or any(map(can_raise, values)):
        return None
    if any(map(raises_by_overflow, _aggregates(tree.relation))):
        return None
    return tree.reads(frozenset() if isinstance(tree.relation, (Limit, TopN)) else required)


def may_raise(relation: Relation, required: frozenset[int] | None = None) -> bool:
    """Tell whether a relation may raise for a row that needs the columns at ``required``, or all of them."""
    tree = ColumnTree.from_relation(relation)
    return _may_raise(tree, tree.at(range(len(tree.ids)) if required is None else required))


def _may_raise(tree: ColumnTree, required: frozenset[ColumnId]) -> bool:
    below = required_of_inputs(tree, required)
    return below is None or any(map(_may_raise, tree.inputs, below))


def _aggregates(relation: Relation) -> list[AggregateCall]:
    match relation:
        case PartialAggregate():
            return list(relation.aggregates)
        case Window():
            return [call.call for call in relation.calls if isinstance(call, FramedAggregate)]
    return []


def with_runtime_filters(relation: Relation, sizes: Sizes) -> Relation:
    """Insert semi-joins where they save more than they cost."""
    if relation.children:
        relation = relation.with_children([with_runtime_filters(child, sizes) for child in relation.children])
    if isinstance(relation, Join):
        for side in Side:
            relation = _with_passed_on_keys(relation, side, sizes)
        for side in Side:
            relation = _filter_side(relation, side, keys_of(relation, side), sizes)
    return relation


def _with_passed_on_keys(join: Join, side: Side, sizes: Sizes) -> Join:
    """Filter a small side by a key that a selective table of the other side has, if it is joined by several."""
    small, large = join.side(side), join.side(side.other)
    if len(join.spec.keys) < 2 or side not in _FILTERS.get(join.spec.join_type, ()) or _is_selective(small, sizes):
        return join
    most = sizes.of(small).scan_rows * _SMALLER
    if most > sizes.of(large).scan_rows or may_raise(small, keys_of(join, side)):
        return join
    tree = ColumnTree.from_relation(large)
    for pair in join.spec.keys:
        if pair.nulls is not NullEquality.UNEQUAL:
            continue
        for part, place in _origins(tree, tree.ids[pair.of(side.other)]):
            # A part that others have filtered would bring them along, and so on.
            if not isinstance(part, Scan | Filter) or any(
                isinstance(node, Join | SparkSource | PythonStep) for node in part.walk()
            ):
                continue
            size = sizes.of(part)
            if size.selectivity <= _SELECTIVE and size.scan_rows <= most:
                keys = Project(part, (Output("key", column(part.schema, place)),))
                return _with_side(join, side, _semi_join(small, pair.of(side), keys), sizes)
    return join


def _origins(tree: ColumnTree, id_: ColumnId) -> Iterator[tuple[Relation, int]]:
    """Parts of a relation with a column that has all values of a column of it, but for null; nearer ones first."""
    for part, of_part in with_values(tree, id_):
        yield part.relation, part.positions[of_part]
        yield from _origins(part, of_part)


def _is_computed_once(relation: Relation) -> bool:
    """Whether a relation has rows that are not computed twice: those of Spark's, and results of Python functions."""
    return any(isinstance(node, SparkSource | PythonStep) for node in relation.walk())


def _semi_join(relation: Relation, position: int, keys: Relation) -> Join:
    every = tuple(range(len(relation.schema)))
    return Join(relation, keys, JoinSpec(JoinType.LEFT_SEMI, (KeyPair(position, 0),), left_output=every))


def _filter_side(join: Join, side: Side, required: frozenset[int], sizes: Sizes) -> Join:
    """Filter one side of a join by the keys of the other side, if that is small and selective.

    ``required`` are the filtered side's columns whose values are needed of every row.
    """
    small = join.side(side.other)
    if side not in _FILTERS.get(join.spec.join_type, ()) or not _is_selective(small, sizes):
        return join
    if _is_computed_once(small):
        return join
    least = sizes.of(small).scan_rows * _SMALLER
    if sizes.of(join.side(side)).scan_rows < least:  # so has none of its scans as many rows
        return join
    for pair in join.spec.keys:
        if pair.nulls is NullEquality.UNEQUAL:
            keys = Project(small, (Output("key", column(small.schema, pair.of(side.other))),))
            tree = ColumnTree.from_relation(join.side(side))
            filtered = _Lookup(keys, least, sizes).into(tree, tree.ids[pair.of(side)], tree.at(required), passed=False)
            join = join if filtered is None else _with_side(join, side, filtered, sizes)
    return join


def _is_selective(relation: Relation, sizes: Sizes) -> bool:
    return sizes.of(relation).selectivity <= _SELECTIVE


def _with_side(join: Join, side: Side, filtered: Relation, sizes: Sizes) -> Join:
    """Replace a side of a join, and choose the build side anew unless the user chose it."""
    sides = {Side.LEFT: join.left, Side.RIGHT: join.right, side: filtered}
    built = join.build_side
    if join.spec.keys and join.distribution is Distribution.ANY:
        built = build_side(join.spec.join_type, sides[Side.LEFT], sides[Side.RIGHT], sizes)
    return dataclasses.replace(join, left=sides[Side.LEFT], right=sides[Side.RIGHT], build_side=built)


@dataclasses.dataclass(frozen=True)
class _Lookup:
    """The keys of a small side, and the number of rows from which on filtering by them pays."""

    keys: Relation
    least: float
    sizes: Sizes

    def into(
        self, tree: ColumnTree, column_id: ColumnId, required: frozenset[ColumnId], *, passed: bool
    ) -> Relation | None:
        """Filter a relation by a column, above its scan; ``None`` if that is impossible or useless.

        ``required`` are its columns whose values nodes above need of every row. What may raise for a row is given it.
        """
        node = tree.relation
        if isinstance(node, Scan):  # a filter goes above the scan's own
            return self._above(node, tree.positions[column_id]) if passed else None
        below = required_of_inputs(tree, required)
        place = next((n for n, child in enumerate(tree.inputs) if column_id in child.positions), None)
        if below is None or place is None or not isinstance(node, (Filter, Project, PartialAggregate, Join)):
            return None
        side = list(Side)[place]
        if isinstance(node, Join) and node.spec.join_type not in PASSES[side]:
            return None
        passed = passed or isinstance(node, (PartialAggregate, Join))
        filtered = self.into(tree.inputs[place], column_id, below[place], passed=passed)
        if filtered is None or not isinstance(node, Join):
            return None if filtered is None else node.with_children([filtered])
        other = tree.side(side.other)
        required_of_other = frozenset(other.positions[id_] for id_ in below[1 - place])
        return self._pass_on(node, side, filtered, required_of_other)

    def _pass_on(self, join: Join, side: Side, filtered: Relation, required_of_other: frozenset[int]) -> Join:
        """Filter one side of a join, and the other side by its keys if it becomes selective.

        The other side then lacks rows that the join below would have given to nodes above, which may raise for them.
        """
        was_selective = _is_selective(join.side(side), self.sizes)
        join = _with_side(join, side, filtered, self.sizes)
        return join if was_selective else _filter_side(join, side.other, required_of_other, self.sizes)

    def _above(self, scan: Scan, position: int) -> Relation | None:
        if self.sizes.of(scan).rows < self.least:
            return None
        return _semi_join(scan, position, self.keys)


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
    if sizes.of(small).selectivity > SELECTIVE or not is_repeatable(small):
        return None
    columns = list(dict.fromkeys(places))
    keys = Project(small, tuple(Output(f"key{n}", column(small.schema, old), True) for n, old in enumerate(columns)))
    pairs = tuple(
        KeyPair(pair.of(side), columns.index(place), pair.nulls) for pair, place in zip(spec.keys, places, strict=True)
    )
    rows = join.side(side)
    return Join(rows, keys, JoinSpec(JoinType.LEFT_SEMI, pairs, left_output=tuple(range(len(rows.schema)))))


def _origin(tree: ColumnTree, id_: ColumnId, sizes: Sizes) -> tuple[ColumnTree, ColumnId]:
    """Find the smallest part of a relation that has a column with all of a column's values, and few others."""
    while candidates := list(with_values(tree, id_)):
        part, of_part = min(candidates, key=lambda candidate: sizes.of(candidate[0].relation).selectivity)
        if sizes.of(part.relation).selectivity > _MUCH_MORE * sizes.of(tree.relation).selectivity:
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
