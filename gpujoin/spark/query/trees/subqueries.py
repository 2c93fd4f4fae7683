"""Scalar subqueries: values that planning asks Spark for, and subqueries that an island computes.

A filter by a subquery that the island computes is a join with the only row that it has. An aggregation without keys has
one row, whatever its input. Where the island runs in one task, the subquery needs no query of its own, and a part that
it has in common with the rest is computed once. TPC-H 15 asks for the suppliers with the greatest revenue::

    filter total = (select max(total) from revenue)        join, right side built, if total = max(total)
      aggregate sum(…) as total by supplier                  aggregate sum(…) as total by supplier
        scan lineitem                                          scan lineitem
                                                             aggregate max(total)
                                                               aggregate sum(…) as total by supplier
                                                                 (its rows are taken from above)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as t

from gpujoin.model.expressions import Expression, Literal
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import Join
from gpujoin.model.spec import JoinSpec
from gpujoin.plan.ranges import all_of
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError
from gpujoin.spark.catalyst.traits import arrow_of
from gpujoin.spark.catalyst.translate import refuse_replaced, subquery_in
from gpujoin.spark.query.aggregates import read_aggregate
from gpujoin.spark.query.plans import PlanNode, first_alike, subquery_plan
from gpujoin.spark.query.trees.builder import ColumnReader, Fragment, TreeBuilder, counting_column

_COVERED = (
    t.BooleanType, t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.FloatType, t.DoubleType, t.DecimalType,
    t.StringType, t.DateType,
)  # fmt: skip


class SubqueryValues:
    """Runs scalar subqueries, those alike once; ``run`` gives at most two rows of a plan."""

    def __init__(self, run: Callable[[PlanNode], list[Any]]) -> None:
        self._run = run
        self._values: dict[int, Any] = {}
        self.placeholders = 0

    def placeholder(self, node: Node) -> Literal:
        """Stand in for a value while it is not known whether it will be needed."""
        self.placeholders += 1
        check_subquery(node)
        return Literal(value=None, type=arrow_of(node.data_type), written="(a subquery)")

    def value(self, node: Node) -> Literal:
        """Give the value of a subquery, or of a field of it, as `catalyst.translate.subquery_in` has them.

        Raises ``NotTranslatableError`` if the subquery has more than one row, or a type that is not covered.
        """
        subquery = check_subquery(node)
        number = first_alike(subquery)
        if number not in self._values:
            rows = self._run(subquery_plan(subquery))
            if len(rows) > 1:
                raise NotTranslatableError("a scalar subquery has more than one row")
            self._values[number] = rows[0][0] if rows else None
        value = self._values[number]
        if subquery is not node and value is not None:
            value = value[node.fields["ordinal"]]
        refuse_replaced(value)
        return Literal(value=value, type=arrow_of(node.data_type))


def collect(frame: DataFrame) -> list[Any]:
    """Collect the rows of a subquery. Raises ``NotTranslatableError`` if Python does not have their values."""
    try:
        return list(frame.collect())
    except (ValueError, OverflowError) as problem:  # a date before the year 1, or after 9999
        raise NotTranslatableError("a scalar subquery gives a date before the year 1 or after 9999") from problem


def check_subquery(node: Node) -> Node:
    """Give the subquery to run for a node. Raises ``NotTranslatableError`` if it is not covered."""
    subquery = subquery_in(node)
    if not isinstance(node.data_type, _COVERED) or "collate" in node.type_name.lower():
        raise NotTranslatableError(f"a scalar subquery of type {node.type_name.lower()} is not run here")
    if subquery is None or subquery.children:
        raise NotTranslatableError("a correlated subquery is not computed here")
    if isinstance(subquery.data_type, t.StructType):  # Python is given the other fields, too
        for field in subquery.data_type.fields:
            if not isinstance(field.dataType, _COVERED):
                raise NotTranslatableError(
                    f"a scalar subquery with a field of type {field.dataType.simpleString()} is not run here"
                )
    if not subquery_plan(subquery).deterministic:
        raise NotTranslatableError("a scalar subquery gives another value each time")
    return subquery


def reads_subquery(condition: Node) -> bool:
    """Whether a condition compares with the value of a scalar subquery."""
    return any(part.name == "ScalarSubquery" for part in condition.walk())


def filtered_by_values(
    builder: TreeBuilder, below: Fragment, parts: Sequence[Node], required: frozenset[int]
) -> Fragment:
    """Filter a fragment by conditions that read scalar subqueries.

    Raises ``NotTranslatableError`` if a subquery is no aggregation without keys.
    """
    places: dict[int, int] = {}
    """Column of each subquery's value, by the number of the first one alike."""
    values: list[Fragment] = []
    for subquery in (node for part in parts for node in part.walk() if node.name == "ScalarSubquery"):
        if first_alike(subquery) not in places:
            places[first_alike(subquery)] = len(values)
            values.append(_value(builder, subquery))
    right = reduce(_beside, values)

    def value_of(node: Node) -> Expression:
        if check_subquery(node) is not node:
            raise NotTranslatableError("a field of the value of a scalar subquery is not computed here")
        return right.reference(places[first_alike(node)], Side.RIGHT)

    condition = all_of(map(ColumnReader({Side.LEFT: below, Side.RIGHT: right}, value_of), parts))
    ids = [i for i in below.positions if i in required]
    output = tuple(below.positions[i] for i in ids) or (counting_column(below.relation.schema),)
    spec = JoinSpec(JoinType.INNER, condition=condition, left_output=output)
    relation = Join(below.relation, right.relation, spec, Side.RIGHT)
    return Fragment.from_columns(relation, ids)


def _value(builder: TreeBuilder, subquery: Node) -> Fragment:
    """The only row of a subquery, with its value as the column 0."""
    check_subquery(subquery)
    plan = subquery_plan(subquery)
    if not _has_one_row(plan):
        raise NotTranslatableError("a scalar subquery may have no row")
    [column] = plan.output
    built = builder.build(plan, frozenset({column.expr_id}))
    return Fragment(built.relation, {0: built.positions[column.expr_id]})


def _has_one_row(plan: PlanNode) -> bool:
    """Whether a plan is an aggregation without keys, which has one row whatever its input.

    One of Python functions has none over no rows.
    """
    while plan.name == "Project":
        plan = plan.children[0]
    if plan.name != "Aggregate" or plan.expressions("groupingExpressions"):
        return False
    return not read_aggregate(plan).calls_functions


def _beside(left: Fragment, right: Fragment) -> Fragment:
    """The values of two fragments of one row each in one row."""
    outputs = tuple(left.positions.values()), tuple(right.positions.values())
    relation = Join(left.relation, right.relation, JoinSpec(JoinType.CROSS, (), None, *outputs), Side.RIGHT)
    return Fragment(relation, {n: n for n in range(len(outputs[0]) + len(outputs[1]))})
