"""Late grouping keys: groups are told apart by numbers, and the keys of a build side are gathered for groups alone.

A report by customer groups by all that it shows of one: name, address, country. Joined first, these texts are gathered
for every sale, and compared in every group. In place of them the join gives the number of the build row. Build rows
with equal keys get one code, the sales are grouped by that, and each group gets its texts in the end::

    sales JOIN customers GROUP BY customers.name, customers.city

    build side   row  name  city     code     sales   row  v      groups   code  sum(v)     result   ann  rome   9
                 0    ann   rome     0                0    4               0          9              bob  oslo   2
                 1    bob   oslo     1                2    5               1          2
                 2    ann   rome     0                1    2

Keys that are computed of the build side are computed once for each of its rows. Where fewer rows come than the build
side has, codes would cost more than they save: keys are gathered for the rows then.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from gpujoin.model.expressions import Attribute, ColumnId, ColumnRef, Expression
from gpujoin.model.jointype import Side
from gpujoin.model.relations import ExchangeSource, Filter, Join, Output, PartialAggregate, Project, Relation, column
from gpujoin.model.types import is_bytes, is_text
from gpujoin.plan.fragments import ColumnTree, Fragment, attributes, bound, with_values

NUMBER = pa.field("row of the build side", pa.int64())
"""The column that stands for the late keys."""
_LARGEST = 100
"""Most nodes of a late key: expressions may double in size with each projection that they are moved through."""
_sources = itertools.count()
"""Numbers the sources that stand for build sides: of two late aggregations in one tree they are not alike."""


@dataclass(frozen=True)
class LateKeys:
    """An aggregation over a join, with a number in place of keys from the build side."""

    built: Relation
    """The build side of the join."""
    keys: tuple[Expression, ...]
    """The late keys, over the columns of the build side."""
    build_columns: tuple[int, ...]
    """Columns of the build side that the join or the aggregation reads."""
    source: ExchangeSource
    """The source that replaces the build side, with the columns in :attr:`build_columns`, then the number."""
    numbered: PartialAggregate
    """The aggregation by the number, which is its input's last column and its first key, and by the other keys."""
    of_rows: tuple[Expression, ...]
    """Projects a row of ``numbered.child``, with its late keys appended, to the columns that :attr:`by_rows` reads."""
    by_rows: PartialAggregate
    """The original aggregation, over rows that have their late keys."""
    of_groups: tuple[ColumnRef, ...]
    """Projects a group of ``numbered``, with its late keys appended, to the columns of the original aggregation."""

    def standing_for(self, keys: Iterable[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Translate original keys to keys of ``numbered``, where 0 is the number, and give the late ones among them."""
        width = len(self.numbered.schema)
        places = [self.of_groups[key].index for key in keys]
        late = tuple(sorted(place - width for place in places if place >= width))
        return tuple(sorted({place if place < width else 0 for place in places})), late


@dataclass(frozen=True)
class _Numbered:
    """A relation's required columns, and the number."""

    rows: Fragment[ColumnId]
    keys: tuple[Expression, ...]
    """The late keys, over the columns of the build side."""
    built: ColumnTree
    build_columns: tuple[ColumnId, ...]
    """Columns of the build side that the join or the aggregation reads."""
    source: ExchangeSource
    number: ColumnId


def late_keys(node: PartialAggregate, shared: Container[Relation]) -> LateKeys | None:
    """Replace keys from one build side, with a text among them, by a number.

    ``None`` if there are none, or if they come from ``shared`` parts, which are computed for others, too.
    """
    (child,) = ColumnTree.from_relation(node).inputs
    for late in _by_origin(node, child):
        keys = [node.keys[n].expression for n in late]
        if any(is_text(key.type) or is_bytes(key.type) for key in keys):
            others = [key.expression for n, key in enumerate(node.keys) if n not in late]
            columns = child.read_by([*others, *(value for call in node.aggregates for value in call.expressions())])
            numbered = _numbered(child, columns, list(map(child.named, keys)), shared)
            if numbered is not None:
                return _late(node, child, late, [id_ for id_ in child.positions if id_ in columns], numbered)
    return None


def _late(
    node: PartialAggregate, child: ColumnTree, late: Sequence[int], columns: Sequence[ColumnId], numbered: _Numbered
) -> LateKeys:
    rows = numbered.rows.select([*columns, numbered.number])
    values = [pa.field(f"late key {n}", key.type) for n, key in zip(late, numbered.keys, strict=True)]
    late_ids = {n: ColumnId(field.name) for n, field in zip(late, values, strict=True)}

    named = [
        Attribute(id=late_ids[n], name=f"late key {n}", type=key.expression.type) if n in late_ids
        else child.named(key.expression)
        for n, key in enumerate(node.keys)
    ]  # fmt: skip

    def aggregation(
        relation: Relation, ids: Iterable[ColumnId], keys: Iterable[int], number: Sequence[Output] = ()
    ) -> PartialAggregate:
        """Make the original aggregation over other rows, by some of its keys."""
        places = {id_: n for n, id_ in enumerate(ids)}
        bound_keys = (dataclasses.replace(node.keys[n], expression=bound(named[n], places)) for n in keys)
        calls = tuple(call.mapped(lambda value: bound(child.named(value), places)) for call in node.aggregates)
        return dataclasses.replace(node, child=relation, keys=(*number, *bound_keys), aggregates=calls)

    others = [n for n in range(len(named)) if n not in late_ids]
    number = Output(NUMBER.name, column(rows.relation.schema, len(columns)))
    by_number = aggregation(rows.relation, rows.positions, others, [number])
    with_late = pa.schema([*rows.relation.schema, *values])
    of_rows = [column(with_late, n) for n, field in enumerate(with_late) if n != len(columns)]
    source = ExchangeSource(0, pa.schema([with_late.field(ref.index) for ref in of_rows]))
    grouped = pa.schema([*by_number.schema, *values])
    places = {n: len(by_number.schema) + place for place, n in enumerate(late)}
    places |= {n: 1 + place for place, n in enumerate(others)}
    buffers = range(1 + len(others), len(by_number.schema))
    return LateKeys(
        built=numbered.built.relation,
        keys=tuple(bound(key, numbered.built.positions) for key in numbered.keys),
        build_columns=tuple(numbered.built.positions[id_] for id_ in numbered.build_columns),
        source=numbered.source,
        numbered=by_number,
        of_rows=tuple(of_rows),
        by_rows=aggregation(source, [*columns, *late_ids.values()], range(len(named))),
        of_groups=tuple(column(grouped, n) for n in [*(places[n] for n in range(len(named))), *buffers]),
    )


def _by_origin(node: PartialAggregate, child: ColumnTree) -> list[list[int]]:
    """Group the keys by the join whose build side they come from, the largest group first."""
    groups: defaultdict[ColumnTree | None, list[int]] = defaultdict(list)
    origins = _Origins()
    for place, key in enumerate(node.keys):
        groups[origins.of(child, child.read_by([key.expression]))].append(place)
    groups.pop(None, None)
    return sorted(groups.values(), key=len, reverse=True)


class _Origins:
    """Finds the join whose build side a column comes from, through filters, projections and streamed sides of joins.

    Each column is followed once: where projections read columns twice, one above the other, ways down double with each.
    """

    def __init__(self) -> None:
        self._trees: dict[ColumnId, ColumnTree | None] = {}

    def of(self, tree: ColumnTree, ids: Iterable[ColumnId]) -> ColumnTree | None:
        """The join that all of some columns of a node come from."""
        joins = {self._of(tree, id_) for id_ in ids}
        return joins.pop() if len(joins) == 1 else None

    def _of(self, tree: ColumnTree, id_: ColumnId) -> ColumnTree | None:
        if id_ not in self._trees:
            self._trees[id_] = self._followed(tree, id_)
        return self._trees[id_]

    def _followed(self, tree: ColumnTree, id_: ColumnId) -> ColumnTree | None:
        match tree.relation:
            case Filter() | Project():
                computed = tree.computed.get(id_)
                return self.of(tree.inputs[0], [id_] if computed is None else attributes([computed]))
            case Join() as join:
                side = next((side for side in Side if id_ in tree.side(side).positions), None)
                if side is not None:
                    return tree if side is join.build_side else self._of(tree.side(side), id_)
        return None


def _numbered(
    tree: ColumnTree, required: frozenset[ColumnId], keys: Sequence[Expression], shared: Container[Relation]
) -> _Numbered | None:
    """Rewrite a relation to its required columns and the number; ``None`` if that is impossible."""
    node = tree.relation
    if node in shared or not isinstance(node, (Filter, Project, Join)):
        return None
    keys = [with_values(key, tree.computed) for key in keys]
    key_columns = attributes(keys)
    place = next((n for n, child in enumerate(tree.inputs) if key_columns <= child.positions.keys()), None)
    if place is None or any(sum(1 for _ in key.walk()) > _LARGEST for key in keys):
        return None
    child, input_columns = tree.inputs[place], tree.reads(required)[place]
    if isinstance(node, Join):
        side = list(Side)[place]
        if node.spec.as_of is not None:
            return None
        if node.spec.join_type.preserves(side.other) and not all(isinstance(key, Attribute) for key in keys):
            return None  # an expression over a row that the join has padded may be something else than null
        if side is node.build_side:
            below = None if child.relation in shared else _with_number(child, input_columns, keys)
        else:
            below = _numbered(child, input_columns, keys, shared)
    else:
        below = _numbered(child, input_columns, keys, shared)
    if below is None:
        return None
    inputs = [below.rows if n == place else other for n, other in enumerate(tree.inputs)]
    return dataclasses.replace(below, rows=tree.over(inputs, required | {below.number}))


def _with_number(built: ColumnTree, required: frozenset[ColumnId], keys: Sequence[Expression]) -> _Numbered:
    """Put a source of the required columns and the number in the place of a build side."""
    columns, number = tuple(id_ for id_ in built.positions if id_ in required), ColumnId(NUMBER.name)
    fields = [built.relation.schema.field(built.positions[id_]) for id_ in columns]
    source = ExchangeSource(next(_sources), pa.schema([*fields, NUMBER]))
    rows = Fragment[ColumnId](source, {id_: n for n, id_ in enumerate([*columns, number])})
    return _Numbered(rows, tuple(keys), built, columns, source, number)
