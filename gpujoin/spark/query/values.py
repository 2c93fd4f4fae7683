"""Values of scalar subqueries, which planning needs where an island's expressions use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import types as t

from gpujoin.model.expressions import Literal
from gpujoin.spark.catalyst.nodes import Node
from gpujoin.spark.catalyst.traits import arrow_of
from gpujoin.spark.catalyst.translate import NotTranslatableError, refuse_replaced
from gpujoin.spark.query.plans import PlanNode, first_alike, subquery_plan

_COVERED = (
    t.BooleanType, t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.FloatType, t.DoubleType, t.DecimalType,
    t.StringType, t.DateType,
)  # fmt: skip


class SubqueryValues:
    """Runs scalar subqueries, those that are alike once; ``run`` gives at most two of a plan's rows."""

    def __init__(self, run: Callable[[PlanNode], list[Any]]) -> None:
        self._run = run
        self._known: dict[int, Literal] = {}
        self.asked = 0

    def placeholder(self, node: Node) -> Literal:
        """Stand in for a value while it is not known whether it will be needed."""
        self.asked += 1
        return Literal(value=None, type=self._type(node), written="(a subquery)")

    def value(self, node: Node) -> Literal:
        """Give the value.

        Raises ``NotTranslatableError`` if the subquery has more than one row, or a type that is not covered.
        """
        number = first_alike(node)
        if number not in self._known:
            dtype = self._type(node)
            rows = self._run(subquery_plan(node))
            if len(rows) > 1:
                raise NotTranslatableError(f"{node.name} has more than one row")
            value = rows[0][0] if rows else None
            refuse_replaced(value)
            self._known[number] = Literal(value=value, type=dtype)
        return self._known[number]

    def _type(self, node: Node) -> Any:
        if not isinstance(node.data_type, _COVERED) or "collate" in node.type_name.lower():
            raise NotTranslatableError(f"a scalar subquery of type {node.type_name}")
        if len(node.children) > 0:
            raise NotTranslatableError("a correlated subquery")
        if not subquery_plan(node).deterministic:
            raise NotTranslatableError("a scalar subquery that is not deterministic")
        return arrow_of(node.data_type)
