"""Whether a plan gives the same rows in each partition when Spark runs a task of it again.

After a shuffle rows come in any order. Most operations do not mind; a sum of floating-point numbers, the first value of
a group, a limit or a row number over ties do. Spark takes care that such rows are not sent to different partitions by
two runs of a task only where it sends them round robin; a mapper that places rows by their content has to know itself.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import types as t

from gpujoin.spark.catalyst.nodes import Node, read_expression

_ROW_BY_ROW = frozenset({
    "Distinct", "Expand", "Filter", "Generate", "Join", "LocalRelation", "LogicalRelation", "OneRowRelation", "Project",
    "Range", "Repartition", "RepartitionByExpression", "ResolvedHint", "Sort", "SubqueryAlias", "Union", "View",
})  # fmt: skip
_ORDERED = (
    t.IntegralType,
    t.DecimalType,
    t.StringType,
    t.BinaryType,
    t.BooleanType,
    t.DateType,
    t.TimestampType,
)
_EXACT = {
    "Count": (t.DataType,), "Sum": (t.IntegralType, t.DecimalType), "Average": (t.DecimalType,), "Min": _ORDERED,
    "Max": _ORDERED,
}  # fmt: skip
"""Aggregate functions that do not depend on the order of rows, by the types of what they take."""
_AGGREGATE = "Aggregate"
_RDD = "LogicalRDD"


def repeatable(plan: Any) -> bool:
    """Tell whether a logical plan is known to give the same rows in each partition, in whatever order.

    Parameters
    ----------
    plan : py4j object
        An analyzed or optimized plan.
    """
    if not plan.deterministic():
        return False
    todo = [plan]
    while todo:
        node = todo.pop()
        name = str(node.getClass().getSimpleName())
        if name == _AGGREGATE:
            known = all(map(_exact, _expressions(node.aggregateExpressions())))
        elif name == _RDD:
            known = str(node.rdd().outputDeterministicLevel().toString()) == "DETERMINATE"
        else:
            known = name in _ROW_BY_ROW
        if not known:
            return False
        children = node.children()
        todo += [children.apply(i) for i in range(children.size())]
    return True


def _expressions(sequence: Any) -> list[Node]:
    return [read_expression(sequence.apply(i)) for i in range(sequence.size())]


def _exact(result: Node) -> bool:
    """Whether the aggregates in an expression do not depend on the order of rows."""
    for node in result.walk():
        if node.name != "AggregateExpression":
            continue
        function = node.children[0]
        kinds = _EXACT.get(function.name)
        if kinds is None or not all(isinstance(child.data_type, kinds) for child in function.children):
            return False
    return True
