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
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from gpujoin.model.expressions import ColumnRef, Expression
from gpujoin.model.jointype import Side
from gpujoin.model.relations import ExchangeSource, Filter, Join, Output, PartialAggregate, Project, Relation, column
from gpujoin.model.types import is_bytes, is_text
from gpujoin.plan.remap import output_source, remapped, remapped_call, remapped_output, remapped_spec, substituted

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
    """The late keys, over its columns."""
    kept: tuple[int, ...]
    """Its columns that are read before."""
    given: ExchangeSource
    """Stands for the build side: the kept columns, then the number."""
    numbered: PartialAggregate
    """The aggregation by the number, which is its input's last column and its first key, and by the other keys."""
    of_rows: tuple[Expression, ...]
    """The keys of the original aggregation, and what its calls read, of the input of ``numbered`` and the late keys."""
    by_rows: PartialAggregate
    """The aggregation over :attr:`of_rows`."""
    of_groups: tuple[ColumnRef, ...]
    """Output of the original aggregation, among that of ``numbered`` and the late keys after it."""

    def standing_for(self, keys: Iterable[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The keys of ``numbered`` that stand for keys of the original aggregation, and the late keys among these."""
        width = len(self.numbered.schema)
        places = [self.of_groups[key].index for key in keys]
        late = tuple(sorted(place - width for place in places if place >= width))
        return tuple(sorted({place if place < width else 0 for place in places})), late


@dataclass(frozen=True)
class _Numbered:
    """A relation's required columns in their order, then the number."""

    relation: Relation
    late: Mapping[int, Expression]
    """The late keys, by place, over the columns of the build side."""
    built: Relation
    kept: tuple[int, ...]
    given: ExchangeSource


def late_keys(node: PartialAggregate, shared: Container[Relation]) -> LateKeys | None:
    """Replace keys from one build side, with a text among them, by a number.

    ``None`` if there are none, if they come from ``shared`` parts, which are computed for others, too, or if an
    aggregate gives lists, as groups with these are Arrow tables.
    """
    if any(call.gives_list for call in node.aggregates):
        return None
    for places in _by_origin(node):
        keys = {n: node.keys[n].expression for n in places}
        if any(is_text(key.type) or is_bytes(key.type) for key in keys.values()):
            others = [n for n in range(len(node.keys)) if n not in keys]
            read = [node.keys[n].expression for n in others]
            read += [value for call in node.aggregates for value in call.expressions()]
            numbered = _numbered(node.child, _columns(read), keys, shared)
            if numbered is not None:
                return _late(node, others, _columns(read), numbered)
    return None


def _late(node: PartialAggregate, others: Sequence[int], read: frozenset[int], numbered: _Numbered) -> LateKeys:
    rows, moved = numbered.relation.schema, _moved(read)
    late = list(numbered.late)
    number = Output(NUMBER.name, column(rows, len(rows) - 1))
    keys = (number, *(remapped_output(node.keys[n], moved) for n in others))
    calls = tuple(remapped_call(call, moved) for call in node.aggregates)
    aggregated = dataclasses.replace(node, child=numbered.relation, keys=keys, aggregates=calls)
    values = [pa.field(f"late key {n}", numbered.late[n].type) for n in late]
    whole_rows, whole_groups = pa.schema([*rows, *values]), pa.schema([*aggregated.schema, *values])
    without_number = [n for n in range(len(whole_rows)) if n != len(rows) - 1]
    of_rows = [column(whole_rows, n) for n in without_number]
    read_schema = pa.schema([whole_rows.field(n) for n in without_number])
    by_rows = dataclasses.replace(
        node,
        child=ExchangeSource(0, read_schema),
        keys=tuple(
            dataclasses.replace(key, expression=column(read_schema, len(rows) - 1 + late.index(n)))
            if n in numbered.late
            else remapped_output(key, moved)
            for n, key in enumerate(node.keys)
        ),
        aggregates=calls,
    )
    groups = len(aggregated.schema)
    of_groups = [
        column(whole_groups, groups + late.index(n) if n in numbered.late else 1 + others.index(n))
        for n in range(len(node.keys))
    ]
    of_groups += [column(whole_groups, n) for n in range(1 + len(others), groups)]
    return LateKeys(
        built=numbered.built, keys=tuple(numbered.late.values()), kept=numbered.kept, given=numbered.given,
        numbered=aggregated, of_rows=tuple(of_rows), by_rows=by_rows, of_groups=tuple(of_groups),
    )  # fmt: skip


def _by_origin(node: PartialAggregate) -> list[frozenset[int]]:
    """The keys by the join of whose build side they are made, the most first."""
    groups: dict[Join, set[int]] = {}
    origins = _Origins()
    for place, key in enumerate(node.keys):
        join = origins.of_all(node.child, [key.expression])
        if join is not None:
            groups.setdefault(join, set()).add(place)
    return sorted(map(frozenset, groups.values()), key=len, reverse=True)


class _Origins:
    """The joins from whose build sides columns come, through filters, projections and streamed sides of joins.

    Each column is followed once: where projections read columns twice, one above the other, ways down double with each.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Relation, int], Join | None] = {}

    def of_all(self, relation: Relation, values: Iterable[Expression]) -> Join | None:
        """The join that all columns of some expressions come from."""
        joins = {self._of(relation, n) for n in _columns(values)}
        return joins.pop() if len(joins) == 1 else None

    def _of(self, relation: Relation, position: int) -> Join | None:
        key = relation, position
        if key not in self._known:
            self._known[key] = self._followed(relation, position)
        return self._known[key]

    def _followed(self, relation: Relation, position: int) -> Join | None:
        match relation:
            case Filter():
                return self._of(relation.child, position)
            case Project():
                return self.of_all(relation.child, [relation.outputs[position].expression])
            case Join():
                origin = output_source(relation.spec, position)
                if origin is None or origin[0] is relation.build_side:
                    return None if origin is None else relation
                return self._of(relation.side(origin[0]), origin[1])
        return None


def _numbered(
    relation: Relation, required: frozenset[int], late: Mapping[int, Expression], shared: Container[Relation]
) -> _Numbered | None:
    """Rewrite a relation to its required columns and the number; ``None`` where late keys cannot be had that way."""
    if relation in shared:
        return None
    match relation:
        case Filter():
            needed = required | _columns([relation.condition])
            below = _numbered(relation.child, needed, late, shared)
            if below is None:
                return None
            kept = Filter(below.relation, remapped(relation.condition, _moved(needed)))
            positions = [_moved(needed)[n] for n in sorted(required)]
            return dataclasses.replace(below, relation=_chosen(kept, [*positions, len(needed)]))
        case Project():
            outputs = [relation.outputs[n] for n in sorted(required)]
            needed = _columns([output.expression for output in outputs])
            values = [output.expression for output in relation.outputs]
            over_child = {n: substituted(key, values) for n, key in late.items()}
            if any(sum(1 for _ in key.walk()) > _LARGEST for key in over_child.values()):
                return None
            below = _numbered(relation.child, needed, over_child, shared)
            if below is None:
                return None
            schema, moved = below.relation.schema, _moved(needed)
            number = Output(NUMBER.name, column(schema, len(schema) - 1))
            projected = Project(below.relation, (*(remapped_output(output, moved) for output in outputs), number))
            return dataclasses.replace(below, relation=projected)
        case Join():
            return _numbered_join(relation, required, late, shared)
    return None


def _numbered_join(
    node: Join, required: frozenset[int], late: Mapping[int, Expression], shared: Container[Relation]
) -> _Numbered | None:
    spec = node.spec
    sources = {n: output_source(spec, n) for key in late.values() for n in _columns([key])}
    sides = {None if source is None else source[0] for source in sources.values()}
    side = next(iter(sides), None)
    if len(sides) != 1 or side is None or spec.as_of is not None:
        return None
    if spec.join_type.preserves(side.other) and not all(isinstance(key, ColumnRef) for key in late.values()):
        return None  # an expression over a row that the join has padded may be something else than null
    places = {n: source[1] for n, source in sources.items() if source is not None}
    own = {n: remapped(key, places) for n, key in late.items()}
    needed = {s: {pair.of(s) for pair in spec.keys} for s in Side}
    for ref in () if spec.condition is None else spec.condition.columns():
        needed[ref.side].add(ref.index)
    chosen: dict[Side, list[int]] = {s: [] for s in Side}
    for n in sorted(required):
        source = output_source(spec, n)
        if source is not None:
            chosen[source[0]].append(source[1])
            needed[source[0]].add(source[1])
    of_side = frozenset(needed[side])
    if side is node.build_side:
        below = None if node.side(side) in shared else _given(node.side(side), of_side, own)
    else:
        below = _numbered(node.side(side), of_side, own, shared)
    if below is None:
        return None
    outputs = {Side.LEFT: tuple(chosen[Side.LEFT]), Side.RIGHT: tuple(chosen[Side.RIGHT])}
    everything = {n: n for n in range(len(node.side(side.other).schema))}
    stripped = dataclasses.replace(spec, left_output=outputs[Side.LEFT], right_output=outputs[Side.RIGHT])
    moved = remapped_spec(stripped, {side: _moved(of_side), side.other: everything})
    number = (len(below.relation.schema) - 1,)
    left, right = moved.left_output, moved.right_output
    left, right = (left + number, right) if side is Side.LEFT else (left, right + number)
    inputs = {Side.LEFT: node.left, Side.RIGHT: node.right, side: below.relation}
    joined = dataclasses.replace(
        node, left=inputs[Side.LEFT], right=inputs[Side.RIGHT],
        spec=dataclasses.replace(moved, left_output=left, right_output=right),
    )  # fmt: skip
    place = len(left) - 1 + (len(right) if side is Side.RIGHT else 0)
    # A flag that tells of a match stands last, and is dropped if it is not required.
    flag = [len(joined.schema) - 1] if any(output_source(spec, n) is None for n in required) else []
    order = [*(n for n in range(len(left) + len(right)) if n != place), *flag, place]
    return dataclasses.replace(below, relation=_chosen(joined, order))


def _given(built: Relation, required: frozenset[int], late: Mapping[int, Expression]) -> _Numbered:
    """Put a source of the required columns and the number in the place of a build side."""
    kept = tuple(sorted(required))
    given = ExchangeSource(next(_sources), pa.schema([*(built.schema.field(n) for n in kept), NUMBER]))
    return _Numbered(given, late, built, kept, given)


def _chosen(relation: Relation, positions: Sequence[int]) -> Relation:
    schema = relation.schema
    if list(positions) == list(range(len(schema))):
        return relation
    return Project(
        relation, tuple(Output(schema.field(n).name, column(schema, n), schema.field(n).nullable) for n in positions)
    )


def _moved(required: frozenset[int]) -> dict[int, int]:
    """Positions of the required columns among themselves."""
    return {old: new for new, old in enumerate(sorted(required))}


def _columns(expressions: Iterable[Expression]) -> frozenset[int]:
    return frozenset(ref.index for expression in expressions for ref in expression.columns())
