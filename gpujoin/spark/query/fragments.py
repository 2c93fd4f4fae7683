"""Optimized plans as trees of relational nodes that a worker runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import TypeAlias

import pyarrow as pa

from gpujoin.config import Options
from gpujoin.engine.pipeline import supports_node
from gpujoin.errors import JoinSpecError, KeyTypeError, RelationError
from gpujoin.model.expressions import Call, Case, ColumnRef, Expression, Function, Literal
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.reasons import Reason
from gpujoin.model.relations import (
    Expand,
    FileFooter,
    Filter,
    Join,
    Output,
    PartialAggregate,
    Project,
    Relation,
    Scan,
    Union,
    column,
)
from gpujoin.model.spec import AsOf, JoinSpec, KeyPair, NullEquality
from gpujoin.plan.estimates import estimate
from gpujoin.plan.explain import show_expression
from gpujoin.plan.key_types import key_type
from gpujoin.spark.catalyst.joins import join_type_in
from gpujoin.spark.catalyst.nodes import Node
from gpujoin.spark.catalyst.traits import EQUALITIES
from gpujoin.spark.catalyst.translate import ExpressionReader, NotTranslatableError
from gpujoin.spark.query.aggregates import FinalReader, read_aggregate, unique_calls
from gpujoin.spark.query.footers import footers_of
from gpujoin.spark.query.nearest import Domain, Nearest
from gpujoin.spark.query.plans import PlanNode, conjuncts, items, read_sequence
from gpujoin.spark.query.scans import RELATION, ParquetFiles, read_relation

_NORMALIZED = frozenset({"KnownFloatingPointNormalized", "NormalizeNaNAndZero"})


_Key: TypeAlias = tuple[Node, Node, NullEquality]


class BrokenError(Exception):
    """A part of a plan cannot run in a worker.

    Attributes
    ----------
    node : PlanNode
        Where.
    """

    def __init__(self, node: PlanNode, why: str) -> None:
        super().__init__(why)
        self.node = node


@contextmanager
def _broken_at(node: PlanNode) -> Iterator[None]:
    """Let what is not covered be told of a relation, not of the filter above that reads it."""
    try:
        yield
    except NotTranslatableError as problem:
        raise BrokenError(node, str(problem)) from problem


@dataclass(frozen=True)
class Fragment:
    """A part of a plan as a relation.

    Attributes
    ----------
    relation : Relation
        What computes it.
    positions : dict from int to int
        Where in the relation's output each attribute is, by expression id.
    """

    relation: Relation
    positions: Mapping[int, int]

    def reference(self, expr_id: int, side: Side = Side.LEFT) -> ColumnRef:
        """Refer to an attribute's column."""
        position = self.positions[expr_id]
        column = self.relation.schema.field(position)
        return ColumnRef(side=side, name=column.name, index=position, type=column.type)


@dataclass
class ScanSource:
    """What a scan of a tree reads, by its index."""

    files: ParquetFiles
    footers: tuple[FileFooter, ...]
    columns: tuple[str, ...]
    filters: tuple[str, ...]

    @property
    def rows(self) -> float:
        """Rows of the files."""
        return float(sum(sum(footer.rows) for footer in self.footers))

    @property
    def nbytes(self) -> int:
        """Compressed bytes of the columns read."""
        return sum(sum(footer.group_bytes) for footer in self.footers)


class ColumnReader(ExpressionReader):
    """Translates expressions over the columns of one fragment, or of a join's two.

    Parameters
    ----------
    fragments : dict from Side to Fragment
        Where columns come from.
    constant : callable
        Gives the value of a scalar subquery.
    """

    def __init__(self, fragments: Mapping[Side, Fragment], constant: Callable[[Node], Literal]) -> None:
        self._fragments = fragments
        self._constant = constant

    def column(self, node: Node) -> Expression:
        """Translate an attribute reference."""
        for side, fragment in self._fragments.items():
            if node.expr_id in fragment.positions:
                return fragment.reference(node.expr_id, side)
        raise NotTranslatableError(f"{node.fields['name']} is no column of the input")

    def subquery(self, node: Node) -> Expression:
        """Translate a scalar subquery: its value."""
        return self._constant(node)


@dataclass
class TreeBuilder:
    """Builds the tree of one island.

    Attributes
    ----------
    options : Options
        Settings.
    constant : callable
        Gives the value of a scalar subquery.
    sources : dict from int to ScanSource
        The scans made so far.
    sound : dict from int to Relation
        Nodes that can be run, by their ``id()``.
    """

    options: Options
    constant: Callable[[Node], Literal]
    sources: dict[int, ScanSource] = field(default_factory=dict)
    sound: dict[int, Relation] = field(default_factory=dict, repr=False)

    def build(self, node: PlanNode, required: frozenset[int]) -> Fragment:
        """Translate a plan.

        Parameters
        ----------
        node : PlanNode
            Its topmost node.
        required : frozenset of int
            Attributes that are needed of it; others may be left out.

        Raises
        ------
        BrokenError
            If some node is not covered.
        """
        build = _BUILDERS.get(node.name)
        if build is None:
            raise BrokenError(node, f"{node.name} is not covered")
        try:
            found = build(self, node, required)
            reasons = self.obstacles(found.relation)
        except (NotTranslatableError, RelationError, JoinSpecError, KeyTypeError) as problem:
            raise BrokenError(node, str(problem)) from problem
        if reasons:
            raise BrokenError(node, "; ".join(str(reason) for reason in reasons))
        return found

    def obstacles(self, relation: Relation) -> tuple[Reason, ...]:
        """Tell why a tree cannot be run; what was found sound is not looked at again."""
        if id(relation) in self.sound:
            return ()
        below = [reason for child in relation.children for reason in self.obstacles(child)]
        found = tuple(dict.fromkeys([*supports_node(relation), *below]))
        if not found:
            self.sound[id(relation)] = relation
        return found

    def reader(self, *fragments: Fragment) -> ColumnReader:
        """Make a translator over one fragment, or over a join's two."""
        return ColumnReader(dict(zip(Side, fragments, strict=False)), self.constant)

    # -- leaves and one input ------------------------------------------------------------------------------

    def scan(self, node: PlanNode, required: frozenset[int], conditions: Sequence[Node] = ()) -> Fragment:
        """Read a Parquet relation, with filters."""
        if node.class_name != RELATION:
            raise NotTranslatableError(f"{node.class_name} is no relation of files")
        with _broken_at(node):
            read = read_relation(node, self.options, conditions)
        conditions = read.rest
        wanted = required.union(*(condition.attribute_ids for condition in conditions))
        parts = [i for i in read.files.partitions if i in wanted]
        files = read.files.with_partitions(parts)
        chosen = [i for i in files.columns if i in wanted]
        chosen = [*chosen, *parts] or [_narrowest(files)]
        with _broken_at(node):
            for attribute in node.output:
                if attribute.expr_id in chosen:
                    _check_column(attribute)
        index = len(self.sources)
        every = {**files.columns, **files.partitions}
        bare = Scan(pa.schema([every[i] for i in chosen]), len(parts), index=index)
        with _broken_at(node):
            footers = footers_of(bare, files.files)
        fragment = Fragment(bare, {i: position for position, i in enumerate(chosen)})
        filters = tuple(self.reader(fragment)(condition) for condition in conditions)
        self.sources[index] = ScanSource(
            files, footers, tuple(bare.columns.names), tuple(map(show_expression, filters))
        )
        found = Fragment(dataclasses.replace(bare, filters=filters), fragment.positions)
        return narrowed(found, required)

    def filter(self, node: PlanNode, required: frozenset[int]) -> Fragment:
        """Filter an input; conditions right above a scan become part of it."""
        condition, child = node.expression("condition"), node.children[0]
        if child.class_name == RELATION:
            return self.scan(child, required, conjuncts(condition))
        parts = conjuncts(condition)
        below = self.build(child, required.union(*(part.attribute_ids for part in parts)))
        reader = self.reader(below)
        relation = below.relation
        if parts:
            relation = Filter(relation, reduce(_both, map(reader, parts)))
        return Fragment(relation, below.positions)

    def project(self, node: PlanNode, required: frozenset[int]) -> Fragment:
        """Compute columns; mere renaming needs no node."""
        chosen = {
            one.expr_id: one for one in node.expressions("projectList") if one.expr_id in required
        }.values()  # one column may be named twice
        values = {one.expr_id: one.children[0] if one.name == "Alias" else one for one in chosen}
        needed = frozenset().union(*(value.attribute_ids for value in values.values()))
        below = self.build(node.children[0], needed)
        if all(value.name == "AttributeReference" for value in values.values()):
            positions = {i: below.positions[_known(value, below)] for i, value in values.items()}
            return Fragment(below.relation, positions)
        reader = self.reader(below)
        outputs = tuple(
            Output(f"{one.fields['name']}#{one.expr_id}", reader(values[one.expr_id])) for one in chosen
        )
        relation = Project(below.relation, outputs)
        return Fragment(relation, {i: position for position, i in enumerate(values)})

    def union(self, node: PlanNode, required: frozenset[int]) -> Fragment:
        """Put inputs together, column by column."""
        if node.fields["byName"]:
            raise NotTranslatableError("a union by name")
        wanted = [i for i, column in enumerate(node.output) if column.expr_id in required]
        if not node.output:
            counted = (Output("c0", Literal(value=True, type=pa.bool_())),)
            built = [self.build(child, frozenset()) for child in node.children]
            return Fragment(Union(tuple(Project(one.relation, counted) for one in built)), {})
        wanted = wanted or [0]
        inputs = []
        for child in node.children:
            ids = [child.output[i].expr_id for i in wanted]
            below = self.build(child, frozenset(ids))
            inputs.append(
                Project(below.relation, tuple(Output(f"c{n}", below.reference(i)) for n, i in enumerate(ids)))
            )
        positions = {node.output[i].expr_id: n for n, i in enumerate(wanted)}
        return Fragment(Union(tuple(inputs)), positions)

    def expand(self, node: PlanNode, required: frozenset[int]) -> Fragment:
        """Project each row in several ways, as grouping sets and distinct aggregates of several columns have it."""
        ids = [column.expr_id for column in node.output]
        wanted = [n for n, i in enumerate(ids) if i in required] or [len(ids) - 1]
        ways = [read_sequence(way) for way in items(node.jvm.projections())]
        chosen = [[way[n] for n in wanted] for way in ways]
        needed = frozenset().union(*(value.attribute_ids for way in chosen for value in way))
        below = self.build(node.children[0], needed)
        reader = self.reader(below)
        projections = tuple(
            tuple(Output(f"c{n}", reader(value)) for n, value in zip(wanted, way, strict=True))
            for way in chosen
        )
        return Fragment(Expand(below.relation, projections), {ids[n]: at for at, n in enumerate(wanted)})

    def aggregate(self, node: PlanNode, required: frozenset[int]) -> Fragment:
        """Aggregate an input wholly, for a node above that needs the final values."""
        read = read_aggregate(node)
        below = self.build(node.children[0], read.attribute_ids)
        reader = self.reader(below)
        keys = tuple(Output(f"k{number}", reader(key)) for number, key in enumerate(read.keys))
        calls = read.calls(reader)
        if read.distinct:
            raise NotTranslatableError("a distinct aggregation below another operation")
        relation = PartialAggregate(below.relation, keys, unique_calls(calls), once=True)
        final = FinalReader(read, relation, calls)
        chosen = [one for one in read.results if one.expr_id in required] or list(read.results[:1])
        outputs = tuple(
            Output(
                f"{one.fields['name']}#{one.expr_id}", final(one.children[0] if one.name == "Alias" else one)
            )
            for one in chosen
        )
        positions = {one.expr_id: n for n, one in enumerate(chosen)}
        return Fragment(Project(relation, outputs), positions)

    # -- joins ---------------------------------------------------------------------------------------------

    def join(self, node: PlanNode, required: frozenset[int]) -> Fragment:
        """Join two inputs."""
        kind, exists = join_type_in(node.fields["joinType"])
        if kind is None:
            raise NotTranslatableError(f"join type {node.jvm.joinType().toString()} is not covered")
        if node.nearest is not None:
            return self._nearest(node, kind, node.nearest, required)
        parts = () if node.condition is None else conjuncts(node.condition)
        needed = required.union(*(part.attribute_ids for part in parts))
        sides = {side: self.build(child, needed) for side, child in zip(Side, node.children, strict=True)}
        keys: list[_Key] = []
        rest: list[Node] = []
        unknowing = [_null_aware(part, sides) for part in parts] if kind is JoinType.LEFT_ANTI else []
        if any(unknowing):
            kind = JoinType.NULL_AWARE_ANTI
            keys, rest = _not_in(list(zip(parts, unknowing, strict=True)), sides)
        else:
            for part in parts:
                pair = _key_of(part, sides)
                if pair is None:
                    rest.append(part)
                elif pair not in keys:
                    keys.append(pair)
        return self._joined(kind, exists, sides, keys, rest, required)

    def _nearest(
        self, node: PlanNode, kind: JoinType, nearest: Nearest, required: frozenset[int]
    ) -> Fragment:
        """Join each row of one side with its nearest match on the other."""
        if nearest.ties:
            raise NotTranslatableError("an as-of join with further order keys")
        tests = [*(limit.test for limit in nearest.limits), *nearest.conditions]
        wanted = required.union({nearest.column}, *(test.attribute_ids for test in tests))
        needed = wanted.union(nearest.bound.attribute_ids, *(key.attribute_ids for key in nearest.keys))
        domain = nearest.domain
        needed = needed.union({key for _, key, _ in domain.keys} if domain is not None else ())
        one = self.build(node.child(nearest.rows), needed) if domain is None else self._values(domain)
        sides = {Side.LEFT: one, Side.RIGHT: self.build(node.child(nearest.rows.other), needed)}
        keys = [key for part in nearest.keys if (key := _key_of(part, sides)) is not None]
        if len(keys) != len(nearest.keys):
            raise NotTranslatableError("an as-of join whose keys are not those of its sides")
        if domain is not None:
            by_id = {one.expr_id: one for one in node.child(nearest.rows.other).output}
            nulls = {True: NullEquality.EQUAL, False: NullEquality.UNEQUAL}
            keys += [(one, by_id[two], nulls[safe]) for one, two, safe in domain.keys]
        left, mine = self._with_keys(sides[Side.LEFT], [*(one for one, _, _ in keys), nearest.bound], wanted)
        right, theirs = self._with_keys(sides[Side.RIGHT], [two for _, two, _ in keys], wanted)
        pairs = tuple(KeyPair(one, two, key[2]) for one, two, key in zip(mine, theirs, keys, strict=False))
        terms = AsOf(mine[-1], right.positions[nearest.column], nearest.direction, None, nearest.exact)
        ids = {Side.LEFT: [i for i in left.positions if i in wanted]}
        ids[Side.RIGHT] = [i for i in right.positions if i in wanted]
        outputs = (
            tuple(left.positions[i] for i in ids[Side.LEFT]) or (0,),
            tuple(right.positions[i] for i in ids[Side.RIGHT]),
        )
        spec = JoinSpec(JoinType.LEFT, pairs, None, *outputs, as_of=terms)
        first = len(outputs[0])
        positions = {i: n for n, i in enumerate(ids[Side.LEFT])}
        positions |= {i: first + n for n, i in enumerate(ids[Side.RIGHT])}
        found = Fragment(Join(left.relation, right.relation, spec, Side.RIGHT), positions)
        order = found.reference(nearest.column)
        matched: Expression = Call(function=Function.IS_NOT_NULL, arguments=(order,), type=pa.bool_())
        reader = self.reader(found)
        for test in tests:
            matched = _both(matched, reader(test))
        if kind is JoinType.INNER:
            return Fragment(Filter(found.relation, matched), found.positions)
        return _only_where(matched, found, first) if tests else found

    def _values(self, domain: Domain) -> Fragment:
        """Compute what a decorrelated subquery reads of the rows around it."""
        needed = frozenset().union(*(value.attribute_ids for _, value in domain.values))
        needed = needed.union(*(key.attribute_ids for key, _, _ in domain.keys))
        below = self.build(domain.rows, needed)
        kept = [i for i in below.positions if i in needed]
        outputs = [Output(f"c{i}", below.reference(i)) for i in kept]
        outputs += [Output(f"d{one.expr_id}", below.reference(value.expr_id)) for one, value in domain.values]
        ids = [*kept, *(one.expr_id for one, _ in domain.values)]
        return Fragment(Project(below.relation, tuple(outputs)), {i: n for n, i in enumerate(ids)})

    def _joined(
        self,
        kind: JoinType,
        exists: int | None,
        sides: dict[Side, Fragment],
        keys: Sequence[_Key],
        rest: Sequence[Node],
        required: frozenset[int],
    ) -> Fragment:
        wanted = required.union(*(part.attribute_ids for part in rest))
        placed = {}
        by_side = {Side.LEFT: [one for one, _, _ in keys], Side.RIGHT: [two for _, two, _ in keys]}
        for side in Side:
            sides[side], placed[side] = self._with_keys(sides[side], by_side[side], wanted)
        left, right = sides[Side.LEFT], sides[Side.RIGHT]
        pairs = tuple(
            KeyPair(one, two, key[2])
            for one, two, key in zip(placed[Side.LEFT], placed[Side.RIGHT], keys, strict=True)
        )
        for pair in pairs:
            key_type(left.relation.schema.field(pair.left).type, right.relation.schema.field(pair.right).type)
        reader = self.reader(left, right)
        residual: Expression | None = None
        for part in rest:
            one = reader(part)
            residual = one if residual is None else _both(residual, one)
        if kind in (JoinType.INNER, JoinType.CROSS):
            kind = JoinType.INNER if pairs or residual is not None else JoinType.CROSS
        outputs = {side: [i for i in sides[side].positions if i in required] for side in Side}
        if kind.left_rows_only:
            outputs[Side.RIGHT] = []
        left_output = tuple(left.positions[i] for i in outputs[Side.LEFT])
        right_output = tuple(right.positions[i] for i in outputs[Side.RIGHT])
        ids: list[int | None] = [*outputs[Side.LEFT], *outputs[Side.RIGHT]]
        if not ids:
            # Its rows are counted: any column will do, one that has no id above too.
            left_output, ids = (0,), [None]
        spec = JoinSpec(kind, pairs, residual, left_output, right_output, f"exists#{exists}")
        if kind is JoinType.EXISTENCE:
            assert exists is not None
            ids.append(exists)
        side = _build_side(kind, self._rows(left), self._rows(right))
        relation = Join(left.relation, right.relation, spec, side)
        return Fragment(relation, {i: position for position, i in enumerate(ids) if i is not None})

    def _rows(self, fragment: Fragment) -> float:
        return estimate(fragment.relation, self.scanned).rows

    @property
    def scanned(self) -> dict[int, float]:
        """Rows of the scans' files."""
        return {index: source.rows for index, source in self.sources.items()}

    def _with_keys(
        self, below: Fragment, keys: Sequence[Node], wanted: frozenset[int]
    ) -> tuple[Fragment, list[int]]:
        """Have a column for each key; those that are no attributes are computed."""
        if all(key.name == "AttributeReference" for key in keys):
            return below, [below.positions[key.expr_id] for key in keys]
        reader = self.reader(below)
        kept = [i for i in below.positions if i in wanted]
        outputs = [Output(f"c{i}", below.reference(i)) for i in kept]
        places = []
        for number, key in enumerate(keys):
            if key.name == "AttributeReference" and key.expr_id in kept:
                places.append(kept.index(key.expr_id))
            else:
                places.append(len(outputs))
                outputs.append(Output(f"k{number}", reader(key)))
        relation = Project(below.relation, tuple(outputs))
        return Fragment(relation, {i: n for n, i in enumerate(kept)}), places


def narrowed(fragment: Fragment, required: frozenset[int]) -> Fragment:
    """Leave out columns that are not required, though never all."""
    kept = [i for i in fragment.positions if i in required] or list(fragment.positions)[:1]
    if len(kept) == len(fragment.relation.schema):
        return fragment
    outputs = tuple(
        Output(fragment.relation.schema.field(fragment.positions[i]).name, fragment.reference(i))
        for i in kept
    )
    return Fragment(Project(fragment.relation, outputs), {i: n for n, i in enumerate(kept)})


def _known(value: Node, below: Fragment) -> int:
    if value.expr_id not in below.positions:
        raise NotTranslatableError(f"{value.fields['name']} is no column of the input")
    return value.expr_id


def _only_where(matched: Expression, found: Fragment, first: int) -> Fragment:
    """Leave out the right row, whose columns begin at a position, where a condition is not true."""
    outputs = []
    for at, field_ in enumerate(found.relation.schema):
        value: Expression = column(found.relation.schema, at)
        if at >= first:
            nothing = Literal(value=None, type=field_.type)
            value = Case(conditions=(matched,), values=(value,), otherwise=nothing, type=field_.type)
        outputs.append(Output(f"c{at}", value))
    return Fragment(Project(found.relation, tuple(outputs)), found.positions)


def _both(one: Expression, two: Expression) -> Expression:
    return Call(function=Function.AND, arguments=(one, two), type=pa.bool_())


def _key_of(part: Node, sides: Mapping[Side, Fragment]) -> _Key | None:
    if part.name not in EQUALITIES:
        return None
    nulls = NullEquality.EQUAL if part.name == "EqualNullSafe" else NullEquality.UNEQUAL
    one, two = (_bare_key(child) for child in part.children)
    left, right = (sides[side].positions.keys() for side in Side)
    if one.attribute_ids and two.attribute_ids:
        if one.attribute_ids <= left and two.attribute_ids <= right:
            return one, two, nulls
        if one.attribute_ids <= right and two.attribute_ids <= left:
            return two, one, nulls
    return None


def _bare_key(node: Node) -> Node:
    """A key without what Spark wraps around floating-point keys; keys are normalized here by themselves."""
    while node.name in _NORMALIZED:
        node = node.children[0]
    return node


def _null_aware(part: Node, sides: Mapping[Side, Fragment]) -> _Key | None:
    """A key of ``NOT IN``: ``a = b OR (a = b) IS NULL``."""
    if part.name != "Or":
        return None
    equal, unknown = part.children
    if equal.name != "EqualTo" or unknown.name != "IsNull" or unknown.children[0].name != "EqualTo":
        return None
    if not equal.jvm.semanticEquals(unknown.children[0].jvm):
        return None
    return _key_of(equal, sides)


def _not_in(
    parts: Sequence[tuple[Node, _Key | None]], sides: Mapping[Side, Fragment]
) -> tuple[list[_Key], list[Node]]:
    """Keys of ``NOT IN`` and the rest of its condition.

    What is a key may also be unknown, the rest must be true. An equality that is never unknown is a key, be it one of
    the ``NOT IN``, of which the optimizer leaves nothing else, or a correlation; one that may be unknown is a
    correlation.
    """
    keys: list[_Key] = []
    rest = []
    for part, key in parts:
        found = key
        if found is None and (part.name == "EqualNullSafe" or not part.jvm.nullable()):
            found = _key_of(part, sides)
        if found is None:
            rest.append(part)
        elif found not in keys:
            keys.append(found)
    return keys, rest


def _build_side(kind: JoinType, left_rows: float, right_rows: float) -> Side:
    """The side to hold in memory: the smaller one of an inner join, else the one whose rows are not preserved."""
    if kind in (JoinType.INNER, JoinType.CROSS, JoinType.FULL, JoinType.LEFT_SEMI, JoinType.LEFT_ANTI):
        factor = 1.0 if kind in (JoinType.INNER, JoinType.CROSS, JoinType.FULL) else 0.2
        return Side.LEFT if left_rows < factor * right_rows else Side.RIGHT
    return Side.LEFT if kind is JoinType.RIGHT else Side.RIGHT


def _check_column(attribute: Node) -> None:
    """Refuse a column that is not read or compared as its declared type says."""
    declared = attribute.fields["dataType"]
    if isinstance(declared, str) and "collate" not in declared:
        return
    name = attribute.type_name.lower()
    if "collate" in name:
        raise NotTranslatableError(
            f"column {attribute.fields['name']} has type {name}; only strings compared by bytes"
        )


def _narrowest(files: ParquetFiles) -> int:
    """A column to count rows by."""
    if not files.columns:
        raise NotTranslatableError("it has no columns")

    def width(expr_id: int) -> int:
        try:
            return int(files.columns[expr_id].type.bit_width)
        except ValueError:
            return 1 << 20

    return min(files.columns, key=width)


_BUILDERS: dict[str, Callable[[TreeBuilder, PlanNode, frozenset[int]], Fragment]] = {
    "LogicalRelation": TreeBuilder.scan,
    "Filter": TreeBuilder.filter,
    "Project": TreeBuilder.project,
    "Join": TreeBuilder.join,
    "Union": TreeBuilder.union,
    "Aggregate": TreeBuilder.aggregate,
    "Expand": TreeBuilder.expand,
}


def covered_plan_nodes() -> tuple[str, ...]:
    """Name the classes of plan nodes that are covered."""
    return tuple(_BUILDERS)
