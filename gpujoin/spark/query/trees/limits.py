"""Limits of a plan as fragments, and those above an island: the first rows in an order, or any.

Spark writes ``select … order by k limit 3 offset 1`` as ``GlobalLimit 3 (Offset 1 (LocalLimit 4 (Sort k (…))))``, with
projections in between. A sort alone is no fragment: it is Spark's to give rows in an order. The rows after an offset
are those whose number in the order is greater::

    k  number in the order of k     limit 2 offset 1
    5  2                            yes
    2  1
    7  3                            yes
    9  4
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from gpujoin.model.expressions import Call, Function, Literal
from gpujoin.model.relations import Filter, Limit, Output, Project, TopN, Window, column
from gpujoin.model.windows import WindowCall, WindowFunction
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError
from gpujoin.spark.query.plans import PlanNode
from gpujoin.spark.query.trees.builder import Fragment, TreeBuilder
from gpujoin.spark.query.trees.nodes import projected
from gpujoin.spark.query.trees.windows import sort_key

MOST_ROWS = 1 << 20
"""Beyond, sorting in a worker has nothing over sorting in Spark, which can spill."""


def limit(builder: TreeBuilder, node: PlanNode, required: frozenset[int]) -> Fragment:
    """Keep some rows of an input, in all."""
    return _first_rows(builder, node, required, None, 0)


def local_limit(builder: TreeBuilder, node: PlanNode, required: frozenset[int]) -> Fragment:
    """Keep some rows of an input in each task: a limit above keeps as many in all."""
    below = builder.build(node.children[0], required)
    count = row_count(node.expression("limitExpr"))
    return below if count is None else below.under(Limit(below.relation, count))


def row_count(node: Node) -> int | None:
    """The rows of a limit or an offset; ``None`` unless it is a constant that is not too large."""
    value = str(node.fields.get("value")) if node.name == "Literal" else ""
    return int(value) if value.isdigit() and int(value) <= MOST_ROWS else None


def _first_rows(
    builder: TreeBuilder, node: PlanNode, required: frozenset[int], count: int | None, offset: int
) -> Fragment:
    """The first ``count`` rows of a node after ``offset`` of them, in the order that the node has."""
    child = node.children[0] if node.children else None
    match node.name:
        case "GlobalLimit" | "LocalLimit" if child is not None:
            limited = _count_of(node, "limitExpr")
            # Rows that are left out below an offset leave fewer for it to give.
            least = limited - offset if count is None else min(count, limited - offset)
            return _first_rows(builder, child, required, max(0, least), offset)
        case "Offset" if child is not None:
            return _first_rows(builder, child, required, count, offset + _count_of(node, "offsetExpr"))
        case "Project" if child is not None and node.deterministic:
            return projected(node, required, lambda ids: _first_rows(builder, child, ids, count, offset), builder)
        case "Sort" if child is not None and node.fields["global"]:
            return _in_order(builder, node, required, count, offset)
    if offset or count is None:
        raise NotTranslatableError("an offset without an order by is not computed here")
    below = builder.build(node, required)
    return below.under(Limit(below.relation, count, final=True))


def _in_order(
    builder: TreeBuilder, node: PlanNode, required: frozenset[int], count: int | None, offset: int
) -> Fragment:
    order = node.expressions("order")
    below = builder.build(node.children[0], required.union(*(key.attribute_ids for key in order)))
    reader = builder.reader(below)
    keys = tuple(sort_key(reader, key) for key in order)
    relation = below.relation
    if count is not None:
        if count + offset > MOST_ROWS:
            raise NotTranslatableError(f"it has more than {MOST_ROWS} rows in an order")
        relation = TopN(relation, keys, count + offset, final=True)
    if offset:
        call = WindowCall(function=WindowFunction.ROW_NUMBER, name="number in the order")
        numbered = Window(relation, (), keys, (call,))
        number = column(numbered.schema, len(relation.schema))
        operands = (number, Literal(value=offset, type=number.type))
        after = Filter(numbered, Call(function=Function.GT, arguments=operands, type=pa.bool_()))
        columns = range(len(relation.schema))
        relation = Project(
            after, tuple(Output(relation.schema.field(i).name, column(after.schema, i)) for i in columns)
        )
    return below.under(relation)


def _count_of(node: PlanNode, name: str) -> int:
    count = row_count(node.expression(name))
    if count is None:
        raise NotTranslatableError(f"it is of more than {MOST_ROWS} rows, or of no constant number")
    return count


@dataclass(frozen=True)
class Top:
    """The rows of each task that limits above an island take."""

    count: int
    """Most rows of each task."""
    order: tuple[Node, ...] = ()
    """Order in which they are the first; empty: any rows will do."""

    def limit(self, below: Fragment, builder: TreeBuilder) -> Fragment:
        """Limit a fragment to these rows.

        Raises ``NotTranslatableError`` if the order is not one that is exactly Spark's.
        """
        if not self.order:
            return below.under(Limit(below.relation, self.count))
        reader = builder.reader(below)
        keys = tuple(sort_key(reader, order) for order in self.order)
        return below.under(TopN(below.relation, keys, self.count))


def top_below(node: PlanNode, top: Top | None) -> Top | None:
    """Give the rows that a node takes of its input, given those that are taken of the node."""
    match node.name:
        case "LocalLimit":
            count = row_count(node.expression("limitExpr"))
            return Top(count) if count else None
        case "Project" if top is not None and not top.order:
            return top
        case "Sort" if top is not None and not top.order and node.fields["global"]:
            return Top(top.count, node.expressions("order"))
        case _:
            return None
