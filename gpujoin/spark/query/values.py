"""Values of scalar subqueries, which planning needs where an island's expressions use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as t

from gpujoin.model.expressions import Literal
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError
from gpujoin.spark.catalyst.traits import arrow_of
from gpujoin.spark.catalyst.translate import refuse_replaced, subquery_in
from gpujoin.spark.query.plans import PlanNode, first_alike, subquery_plan

_COVERED = (
    t.BooleanType, t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.FloatType, t.DoubleType, t.DecimalType,
    t.StringType, t.DateType,
)  # fmt: skip


class SubqueryValues:
    """Runs scalar subqueries, those that are alike once; ``run`` gives at most two of a plan's rows."""

    def __init__(self, run: Callable[[PlanNode], list[Any]]) -> None:
        self._run = run
        self._known: dict[int, Any] = {}
        self.asked = 0

    def placeholder(self, node: Node) -> Literal:
        """Stand in for a value while it is not known whether it will be needed."""
        self.asked += 1
        check_subquery(node)
        return Literal(value=None, type=arrow_of(node.data_type), written="(a subquery)")

    def value(self, node: Node) -> Literal:
        """Give the value of a subquery, or of a field of it, as `catalyst.translate.subquery_in` has them.

        Raises ``NotTranslatableError`` if the subquery has more than one row, or a type that is not covered.
        """
        subquery = check_subquery(node)
        number = first_alike(subquery)
        if number not in self._known:
            rows = self._run(subquery_plan(subquery))
            if len(rows) > 1:
                raise NotTranslatableError("a scalar subquery has more than one row")
            self._known[number] = rows[0][0] if rows else None
        value = self._known[number]
        if subquery is not node and value is not None:
            value = value[node.fields["ordinal"]]
        refuse_replaced(value)
        return Literal(value=value, type=arrow_of(node.data_type))


def collected(frame: DataFrame) -> list[Any]:
    """Collect the rows of a subquery. Raises ``NotTranslatableError`` if Python does not have their values."""
    try:
        return list(frame.collect())
    except (ValueError, OverflowError) as problem:  # a date before the year 1, or after 9999
        raise NotTranslatableError("a scalar subquery gives a date before the year 1 or after 9999") from problem


def check_subquery(node: Node) -> Node:
    """Give the subquery that is to be run for a node. Raises ``NotTranslatableError`` if it is not covered."""
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
