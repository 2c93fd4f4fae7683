"""Plan nodes other than joins as fragments."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.spec import can_raise
from gpujoin.model.expressions import Call, ColumnRef, Expression, Function, Literal
from gpujoin.model.jointype import JoinType
from gpujoin.model.relations import (
    ConstantTable,
    Expand,
    Explode,
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
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.model.switches import SCAN
from gpujoin.plan.distinct import distinct_in_files
from gpujoin.plan.nested_groups import with_plain_values
from gpujoin.plan.ranges import all_of
from gpujoin.plan.selectivity import kept_share
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError, python_value
from gpujoin.spark.catalyst.traits import arrow_of
from gpujoin.spark.query.aggregates import FinalReader, ReadAggregate, read_aggregate, unique_calls
from gpujoin.spark.query.delta import is_delta, read_delta
from gpujoin.spark.query.footers import scanned_files
from gpujoin.spark.query.iceberg import read_iceberg
from gpujoin.spark.query.plans import PlanNode, conjuncts
from gpujoin.spark.query.scans import (
    RELATION,
    SCAN_RELATION,
    TABLES,
    DeletedKeys,
    ReadRelation,
    RelationFiles,
    read_relation,
)
from gpujoin.spark.query.trees.builder import (
    BrokenError,
    Fragment,
    ScanSource,
    TreeBuilder,
    check_column,
    columns_of,
    in_type_of_all,
    named_outputs,
    narrowed,
    passed_on,
    with_outputs,
)
from gpujoin.spark.query.trees.distinct import in_two_steps
from gpujoin.spark.query.trees.pivot import is_pivot, pivoted, without_arrays
from gpujoin.spark.query.trees.python_calls import python_aggregate
from gpujoin.spark.query.trees.sessions import with_sessions
from gpujoin.spark.query.trees.subqueries import filtered_by_values, reads_subquery


def scan(builder: TreeBuilder, node: PlanNode, required: frozenset[int], conditions: Sequence[Node] = ()) -> Fragment:
    """Read a table of files, with filters."""
    builder.check_switches(node, SCAN, _table_format(node))
    if builder.reading.obstacle is not None:
        raise BrokenError(node, builder.reading.obstacle.why, builder.reading.obstacle.kind)
    ids_above = required.union(*(condition.attribute_ids for condition in conditions))
    with _broken_at(node):
        if node.class_name == SCAN_RELATION:
            source = ReadRelation(read_iceberg(node, builder.options, ids_above, conditions), tuple(conditions))
        else:
            source = (read_delta if is_delta(node) else read_relation)(node, builder.options, conditions)
    conditions = source.rest
    builder.check_switches(node, source.files.format.value)
    ids_read = required.union(
        *(condition.attribute_ids for condition in conditions),
        *({*deleted.keys, deleted.constant} for deleted in source.files.deleted_keys),
    )
    parts = [i for i in source.files.partitions if i in ids_read]
    files = source.files.with_partitions(parts)
    ids = [i for i in files.columns if i in ids_read]
    ids = [*ids, *parts] or [_narrowest(files)]
    own = [i for i in ids if i in files.columns]
    with _broken_at(node):
        for attribute in node.output:
            if attribute.expr_id in ids:
                check_column(attribute)
        if node.class_name == RELATION:
            builder.reading.check_columns(node.fields["@relation"], [a for a in node.output if a.expr_id in own])
    index = len(builder.sources)
    fields = [files.partitions.get(i) or files.columns[i] for i in ids]
    bare = Scan(
        pa.schema(fields), len(parts), index=index, format=files.format,
        by_statistics=files.format in builder.reading.by_statistics,
        case_sensitive=builder.reading.case_sensitive,
        by_setting=builder.reading.by_setting if node.class_name == RELATION else (),
        stored_fields=tuple(files.stored[i] for i in own) if files.stored else (),
    )  # fmt: skip
    with _broken_at(node):
        scanned = scanned_files(bare, files.files, builder.options.scan_footers)
    fragment = Fragment.from_columns(bare, ids)
    terms = [builder.reader(fragment)(condition) for condition in conditions]
    # Rows deleted by key are gone before Spark's conditions see them: what might raise for one waits.
    late = [number for number, term in enumerate(terms) if files.deleted_keys and can_raise(term)]
    filters = tuple(term for number, term in enumerate(terms) if number not in late)
    buckets = {n: files.buckets[i] for n, i in enumerate(ids) if i in files.buckets}
    names = tuple(bare.columns.names)
    builder.sources[index] = ScanSource(scanned, names, filters, files.stores, files.snapshot, buckets)
    builder.sizes.scanned[index] = scanned.rows
    distinct = distinct_in_files(bare.columns, scanned.bounds, scanned.rows, node.distinct_values, scanned.different)
    share = kept_share(filters, scanned.bounds, distinct) if filters else None
    filtered = fragment.under(dataclasses.replace(bare, filters=filters, selectivity=share, distinct=distinct))
    with _broken_at(node):
        for deleted in files.deleted_keys:
            filtered = _without_keys(builder, filtered, deleted, files.stores)
    rest = all_of(builder.reader(filtered)(conditions[number]) for number in late)
    return narrowed(filtered if rest is None else filtered.under(Filter(filtered.relation, rest)), required)


def _table_format(node: PlanNode) -> str | None:
    if node.class_name == SCAN_RELATION:
        return "iceberg"
    return "delta" if is_delta(node) else None


def _without_keys(builder: TreeBuilder, rows: Fragment, deleted: DeletedKeys, stores: frozenset[str]) -> Fragment:
    """Leave out the rows whose keys are deleted."""
    index = len(builder.sources)
    columns = pa.schema([*deleted.keys.values(), pa.field("deletes", pa.int32(), nullable=False)])
    keys = Scan(columns, 1, index=index, stored_fields=deleted.stored)
    scanned = scanned_files(keys, deleted.files, builder.options.scan_footers)
    builder.sources[index] = ScanSource(scanned, tuple(columns.names), (), stores)
    builder.sizes.scanned[index] = scanned.rows
    pairs = tuple(
        KeyPair(rows.positions[expr_id], n, NullEquality.EQUAL)
        for n, expr_id in enumerate((*deleted.keys, deleted.constant))
    )
    spec = JoinSpec(JoinType.LEFT_ANTI, pairs, left_output=tuple(rows.positions.values()))
    return Fragment.from_columns(Join(rows.relation, keys, spec), rows.positions)


def filter_(builder: TreeBuilder, node: PlanNode, required: frozenset[int]) -> Fragment:
    """Filter an input; conditions right above a scan become part of it."""
    child, parts = node.children[0], conjuncts(node.expression("condition"))
    first = next((n for n, part in enumerate(parts) if reads_subquery(part)), len(parts))
    if builder.constant is not None or first == len(parts):
        return _filtered(builder, child, parts, required)
    below = _filtered(builder, child, parts[:first], required.union(*(part.attribute_ids for part in parts[first:])))
    return filtered_by_values(builder, below, parts[first:], required)


def _filtered(builder: TreeBuilder, child: PlanNode, parts: Sequence[Node], required: frozenset[int]) -> Fragment:
    if child.class_name in TABLES:
        return scan(builder, child, required, parts)
    below = builder.build(child, required.union(*(part.attribute_ids for part in parts)))
    whole = all_of(map(builder.reader(below), parts))
    relation = below.relation if whole is None else Filter(below.relation, whole)
    return below.under(relation)


def project(builder: TreeBuilder, node: PlanNode, required: frozenset[int]) -> Fragment:
    """Compute columns; mere renaming needs no node."""
    return projected(node, required, lambda ids: builder.build(node.children[0], ids), builder)


def projected(
    node: PlanNode, required: frozenset[int], build: Callable[[frozenset[int]], Fragment], builder: TreeBuilder
) -> Fragment:
    """Compute the columns of a ``Project`` over a fragment with the columns that they read."""
    builder.check_switch(node)
    columns = {
        named.expr_id: named for named in node.expressions("projectList") if named.expr_id in required
    }.values()  # one column may be named twice
    values = {named.expr_id: named.children[0] if named.name == "Alias" else named for named in columns}
    carried = (builder.carried & required) - columns_by_id(node).keys()
    ids = carried.union(*(value.attribute_ids for value in values.values()))
    below = build(frozenset(ids))
    if all(value.name == "AttributeReference" for value in values.values()):
        positions = {i: below.positions[_column_id(value, below)] for i, value in values.items()}
        return Fragment(below.relation, positions | {i: below.positions[i] for i in carried})
    reader = builder.reader(below)

    def value_of(node: Node) -> Expression:
        return below.reference(_column_id(node, below)) if node.name == "AttributeReference" else reader(node)

    outputs = {**named_outputs(columns, value_of), **passed_on(below, carried)}
    return Fragment.from_columns(without_arrays(Project(below.relation, tuple(outputs.values()))), outputs)


def columns_by_id(node: PlanNode) -> dict[int, Node]:
    """Give what a ``Project`` names, by the ids of the columns."""
    return {named.expr_id: named for named in node.expressions("projectList")}


def repartition(builder: TreeBuilder, node: PlanNode, required: frozenset[int]) -> Fragment:
    """Pass rows on: within an island their distribution among tasks does not matter."""
    return builder.build(node.children[0], required)


def union(builder: TreeBuilder, node: PlanNode, required: frozenset[int]) -> Fragment:
    """Put inputs together, column by column."""
    if node.fields["byName"]:
        raise NotTranslatableError("a union by name is not computed here")
    positions = [i for i, column in enumerate(node.output) if column.expr_id in required]
    if not node.output:
        counted = (Output("c0", Literal(value=True, type=pa.bool_())),)
        built = [builder.input(child, frozenset()) for child in node.children]
        return Fragment(Union(tuple(Project(fragment.relation, counted) for fragment in built)), {})
    positions = positions or [0]
    names = [f"{node.output[i].fields['name']}#{node.output[i].expr_id}" for i in positions]
    types = [arrow_of(node.output[i].data_type) for i in positions]
    inputs = []
    for child in node.children:
        ids = [child.output[i].expr_id for i in positions]
        below = builder.input(child, frozenset(ids))
        values = [in_type_of_all(below.reference(i), dtype) for i, dtype in zip(ids, types, strict=True)]
        outputs = tuple(map(Output, names, values))
        inputs.append(Project(below.relation, outputs))
    return Fragment.from_columns(Union(tuple(inputs)), (node.output[i].expr_id for i in positions))


def expand(builder: TreeBuilder, node: PlanNode, required: frozenset[int]) -> Fragment:
    """Project each row in several ways, as grouping sets and distinct aggregates of several columns have it."""
    ids = [column.expr_id for column in node.output]
    positions = [n for n, i in enumerate(ids) if i in required] or [len(ids) - 1]
    ways = node.expression_lists("projections")
    projected_ways = [[way[n] for n in positions] for way in ways]
    ids_read = frozenset().union(*(value.attribute_ids for way in projected_ways for value in way))
    below = builder.input(node.children[0], ids_read)
    reader = builder.reader(below)
    names = [f"{node.output[n].fields['name']}#{n}" for n in positions]
    projections = tuple(
        tuple(Output(name, reader(value)) for name, value in zip(names, way, strict=True)) for way in projected_ways
    )
    return Fragment.from_columns(Expand(below.relation, projections), (ids[n] for n in positions))


def aggregate(builder: TreeBuilder, node: PlanNode, required: frozenset[int]) -> Fragment:
    """Aggregate an input wholly, for a node above that needs the final values."""
    aggregation = read_aggregate(node)
    if aggregation.calls_functions:
        return python_aggregate(builder, node, aggregation, required)
    return aggregated(builder, aggregation, aggregate_input(builder, node, aggregation), required)


def aggregate_input(builder: TreeBuilder, node: PlanNode, aggregation: ReadAggregate) -> Fragment:
    """What is aggregated, with sessions merged."""
    return with_sessions(builder, builder.input(node.children[0], aggregation.attribute_ids), aggregation.keys)


def aggregated(builder: TreeBuilder, aggregation: ReadAggregate, below: Fragment, required: frozenset[int]) -> Fragment:
    """Aggregate a fragment wholly.

    Raises ``NotTranslatableError`` if Spark alone can finish an aggregate, or compute a result.
    """
    for _, node in aggregation.estimates:
        raise NotTranslatableError(f"{node} below another operation is not computed here")
    if is_pivot(aggregation):
        return pivoted(builder, aggregation, below, required)
    reader = builder.reader(below)
    relation: Relation
    if aggregation.distinct:
        relation, calls = in_two_steps(aggregation, below.relation, reader)
    else:
        calls = aggregation.calls(reader)
        keys = tuple(Output(f"k{number}", reader(key)) for number, key in enumerate(aggregation.keys))
        relation = with_plain_values(PartialAggregate(below.relation, keys, unique_calls(calls), final=True))
    final = FinalReader(aggregation, relation, calls)
    results = [named for named in aggregation.results if named.expr_id in required] or list(aggregation.results[:1])
    return with_outputs(relation, named_outputs(results, final))


@contextmanager
def _broken_at(node: PlanNode) -> Iterator[None]:
    """Report what is not covered at a relation, not at the filter above it."""
    try:
        yield
    except NotTranslatableError as problem:
        raise BrokenError(node, str(problem)) from problem


def _column_id(value: Node, below: Fragment) -> int:
    if value.expr_id not in below.positions:
        raise NotTranslatableError(f"{value.fields['name']} is no column of the input")
    return value.expr_id


def _narrowest(files: RelationFiles) -> int:
    """A column to count rows by."""
    if not files.columns:
        raise NotTranslatableError("it has no columns")

    def width(expr_id: int) -> int:
        try:
            return int(files.columns[expr_id].type.bit_width)
        except ValueError:
            return 1 << 20

    return min(files.columns, key=width)


_MOST_NUMBERS = 10_000
"""As many as values of rows that are written in a query (``PlanReader.java``)."""


def written_rows(_builder: TreeBuilder, node: PlanNode, required: frozenset[int]) -> Fragment:
    """Take the rows of a ``LocalRelation`` with the plan, if they are few."""
    rows = node.fields.get("@rows")
    if rows is None:
        raise NotTranslatableError("it has more values than are sent with each task")
    positions = [n for n, column in enumerate(node.output) if column.expr_id in required]
    values = {n: [row[n] for row in rows] for n in positions}
    return _constant_table([node.output[n] for n in positions], list(values.values()), len(rows))


def few_numbers(_builder: TreeBuilder, node: PlanNode, required: frozenset[int]) -> Fragment:
    """Take the numbers of a ``Range`` with the plan, if they are few."""
    start, end, step = (int(node.fields[name]) for name in ("start", "end", "step"))
    numbers = range(start, end, step)
    if len(numbers) > _MOST_NUMBERS:
        raise NotTranslatableError("it has more numbers than are sent with each task")
    columns = [column for column in node.output if column.expr_id in required]
    return _constant_table(columns, [list(numbers) for _ in columns], len(numbers))


def one_row(_builder: TreeBuilder, _node: PlanNode, _required: frozenset[int]) -> Fragment:
    """Take the row without columns of a select without a table."""
    return _constant_table([], [], 1)


def _constant_table(columns: Sequence[Node], values: Sequence[Sequence[Any]], count: int) -> Fragment:
    for attribute in columns:
        check_column(attribute)
    schema = columns_of(columns)
    try:
        arrays = [
            pa.array([python_value(attribute.data_type, value) for value in each], dtype, from_pandas=False)
            for attribute, each, dtype in zip(columns, values, schema.types, strict=False)
        ]
    except (OverflowError, pa.ArrowException):
        raise NotTranslatableError("it has a value of a type that is not passed to Python workers") from None
    counting = [] if arrays else [pa.array([True] * count, pa.bool_())]
    batch = pa.RecordBatch.from_arrays(arrays or counting, schema=schema)
    return Fragment.from_columns(ConstantTable.from_batch(batch), (attribute.expr_id for attribute in columns))


_OF_ELEMENTS = frozenset({"Explode", "PosExplode", "Inline"})


def generate(builder: TreeBuilder, node: PlanNode, required: frozenset[int]) -> Fragment:
    """Make rows of each row of an input."""
    generator, child = node.expression("generator"), node.children[0]
    if generator.name not in (*_OF_ELEMENTS, "Stack", "ReplicateRows"):
        raise NotTranslatableError(f"{generator} is not computed here")
    passed = required.intersection(column.expr_id for column in child.output)
    below = builder.input(child, passed | generator.attribute_ids)
    passed_ids = [i for i in below.positions if i in passed]
    ids = [attribute.expr_id for attribute in node.expressions("generatorOutput")]
    if generator.name == "Stack":
        return _stack(builder, below, passed_ids, generator, node.expressions("generatorOutput"))
    if generator.name == "ReplicateRows":
        return _repeat(builder, below, passed_ids, generator, ids)
    return _explode_values(builder, below, passed_ids, generator, ids, outer=bool(node.fields["outer"]))


def _explode_values(
    builder: TreeBuilder, below: Fragment, passed: list[int], generator: Node, ids: list[int], *, outer: bool
) -> Fragment:
    values = builder.reader(below)(generator.children[0])
    relation = _explode(below, passed, values, outer=outer, positions=generator.name == "PosExplode")
    if generator.name == "Inline":
        relation = _with_fields(relation, len(passed))
    return Fragment.from_columns(relation, (*passed, *ids))


def _explode(below: Fragment, passed: Sequence[int], values: Expression, *, outer: bool, positions: bool) -> Relation:
    """Rows of the values of an expression, beside attributes."""
    if isinstance(values, ColumnRef):
        places = tuple(below.positions[i] for i in passed)
        return Explode(below.relation, values.index, places, outer, positions)
    computed = Project(below.relation, (*passed_on(below, passed).values(), Output("values", values)))
    return Explode(computed, len(passed), tuple(range(len(passed))), outer, positions)


def _with_fields(relation: Relation, passed: int) -> Relation:
    """The fields of the structs in the last column, in its place."""
    schema = relation.schema
    struct = column(schema, passed)
    assert struct.type is not None
    if not pat.is_struct(struct.type) or len({field.name for field in struct.type}) < struct.type.num_fields:
        raise NotTranslatableError("inline is not computed here of structs with several fields of one name")
    outputs = [Output(schema.field(i).name, column(schema, i)) for i in range(passed)]
    for number, field in enumerate(struct.type):
        name = Literal(value=field.name, type=pa.string())
        value = Call(function=Function.GET_FIELD, arguments=(struct, name), type=field.type)
        outputs.append(Output(f"{field.name}#0{number}", value))
    return Project(relation, tuple(outputs))


def _repeat(
    builder: TreeBuilder, below: Fragment, passed: list[int], generator: Node, ids: list[int]
) -> Fragment:  # fmt: skip
    """Each row as often as the first operand says, with the others."""
    reader = builder.reader(below)
    number, *values = map(reader, generator.children)
    outputs = [*passed_on(below, passed).values(), *(Output(f"value {n}", value) for n, value in enumerate(values))]
    computed = Project(below.relation, (*outputs, Output("number", number)))
    relation = Explode(computed, len(outputs), tuple(range(len(outputs))))
    return Fragment.from_columns(relation, (*passed, *ids))


def _stack(
    builder: TreeBuilder, below: Fragment, passed: list[int], generator: Node, columns: Sequence[Node]
) -> Fragment:
    reader = builder.reader(below)
    count, *values = generator.children
    rows = count.fields.get("@value") if count.name == "Literal" else None
    if not isinstance(rows, int) or rows < 1:
        raise NotTranslatableError(f"{generator} is not computed here: its number of rows is no constant")
    width = math.ceil(len(values) / rows)
    types = [arrow_of(attribute.data_type) for attribute in columns]
    outputs = passed_on(below, passed).values()

    def way(row: int) -> tuple[Output, ...]:
        parts = values[row * width : (row + 1) * width]
        row_values = [in_type_of_all(reader(part), dtype) for part, dtype in zip(parts, types, strict=False)]
        row_values += [Literal(value=None, type=dtype) for dtype in types[len(parts) :]]
        return (*outputs, *(Output(f"value {n}", value) for n, value in enumerate(row_values)))

    relation = Expand(below.relation, tuple(map(way, range(rows))))
    return Fragment.from_columns(relation, (*passed, *(attribute.expr_id for attribute in columns)))
