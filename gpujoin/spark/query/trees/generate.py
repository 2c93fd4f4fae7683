"""Functions that make rows, as fragments: ``explode`` and its like, ``stack``, and the repeating of rows.

``select id, t from posts lateral view explode(tags) as t`` keeps ``id`` beside each tag. ``stack`` is an expansion:
each row in several ways. Spark repeats rows for ``INTERSECT ALL`` and ``EXCEPT ALL``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.model.expressions import Call, ColumnRef, Expression, Function, Literal
from gpujoin.model.relations import Expand, Explode, Output, Project, Relation, column
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError
from gpujoin.spark.catalyst.traits import arrow_of
from gpujoin.spark.query.plans import PlanNode
from gpujoin.spark.query.trees.builder import Fragment, TreeBuilder, in_type_of_all, passed_on

_OF_ELEMENTS = frozenset({"Explode", "PosExplode", "Inline"})


def generate(builder: TreeBuilder, node: PlanNode, required: frozenset[int]) -> Fragment:
    """Make rows of each row of an input."""
    generator, child = node.expression("generator"), node.children[0]
    if generator.name not in (*_OF_ELEMENTS, "Stack", "ReplicateRows"):
        raise NotTranslatableError(f"{generator} is not computed here")
    passed = required.intersection(column.expr_id for column in child.output)
    below = builder.input(child, passed | generator.attribute_ids)
    kept = [i for i in below.positions if i in passed]
    ids = [attribute.expr_id for attribute in node.expressions("generatorOutput")]
    if generator.name == "Stack":
        return _stacked(builder, below, kept, generator, node.expressions("generatorOutput"))
    if generator.name == "ReplicateRows":
        return _repeated(builder, below, kept, generator, ids)
    return _exploded(builder, below, kept, generator, ids, outer=bool(node.fields["outer"]))


def _exploded(
    builder: TreeBuilder, below: Fragment, kept: list[int], generator: Node, ids: list[int], *, outer: bool
) -> Fragment:
    values = builder.reader(below)(generator.children[0])
    relation = _explode(below, kept, values, outer=outer, positions=generator.name == "PosExplode")
    if generator.name == "Inline":
        relation = _with_fields(relation, len(kept))
    return Fragment.from_columns(relation, (*kept, *ids))


def _explode(below: Fragment, kept: Sequence[int], values: Expression, *, outer: bool, positions: bool) -> Relation:
    """Rows of the values of an expression, beside attributes."""
    if isinstance(values, ColumnRef):
        places = tuple(below.positions[i] for i in kept)
        return Explode(below.relation, values.index, places, outer, positions)
    computed = Project(below.relation, (*passed_on(below, kept).values(), Output("values", values)))
    return Explode(computed, len(kept), tuple(range(len(kept))), outer, positions)


def _with_fields(relation: Relation, kept: int) -> Relation:
    """The fields of the structs in the last column, in its place."""
    schema = relation.schema
    struct = column(schema, kept)
    assert struct.type is not None
    if not pat.is_struct(struct.type) or len({field.name for field in struct.type}) < struct.type.num_fields:
        raise NotTranslatableError("inline is not computed here of structs with several fields of one name")
    outputs = [Output(schema.field(i).name, column(schema, i)) for i in range(kept)]
    for number, field in enumerate(struct.type):
        name = Literal(value=field.name, type=pa.string())
        value = Call(function=Function.GET_FIELD, arguments=(struct, name), type=field.type)
        outputs.append(Output(f"{field.name}#0{number}", value))
    return Project(relation, tuple(outputs))


def _repeated(
    builder: TreeBuilder, below: Fragment, kept: list[int], generator: Node, ids: list[int]
) -> Fragment:  # fmt: skip
    """Each row as often as the first operand says, with the others."""
    reader = builder.reader(below)
    number, *values = map(reader, generator.children)
    outputs = [*passed_on(below, kept).values(), *(Output(f"value {n}", value) for n, value in enumerate(values))]
    computed = Project(below.relation, (*outputs, Output("number", number)))
    relation = Explode(computed, len(outputs), tuple(range(len(outputs))))
    return Fragment.from_columns(relation, (*kept, *ids))


def _stacked(
    builder: TreeBuilder, below: Fragment, kept: list[int], generator: Node, columns: Sequence[Node]
) -> Fragment:
    reader = builder.reader(below)
    count, *values = generator.children
    rows = count.fields.get("@value") if count.name == "Literal" else None
    if not isinstance(rows, int) or rows < 1:
        raise NotTranslatableError(f"{generator} is not computed here: its number of rows is no constant")
    width = math.ceil(len(values) / rows)
    types = [arrow_of(attribute.data_type) for attribute in columns]
    passed = passed_on(below, kept).values()

    def way(row: int) -> tuple[Output, ...]:
        parts = values[row * width : (row + 1) * width]
        read = [in_type_of_all(reader(part), dtype) for part, dtype in zip(parts, types, strict=False)]
        read += [Literal(value=None, type=dtype) for dtype in types[len(parts) :]]
        return (*passed, *(Output(f"value {n}", value) for n, value in enumerate(read)))

    relation = Expand(below.relation, tuple(map(way, range(rows))))
    return Fragment.from_columns(relation, (*kept, *(attribute.expr_id for attribute in columns)))
