"""What a plan gives in each partition when Spark runs a task of it again.

From files rows come in one order, after a shuffle in any. Most operations do not mind; a sum of floating-point numbers,
the first value of a group, a limit or a row number over ties do. Spark takes care that such rows are not sent to
different partitions by two runs of a task only where it sends them round robin; a mapper of ours has to know itself.
"""

from __future__ import annotations

from pyspark.sql import types as t

from gpujoin.model.stages import DeterminismLevel
from gpujoin.spark.catalyst.nodes import Node
from gpujoin.spark.query.plans import PlanNode, read_plan

_IN_ORDER = frozenset({
    "ArrowEvalPython", "BatchEvalPython", "Expand", "Filter", "Generate", "LocalRelation", "OneRowRelation", "Project",
    "Range", "ResolvedHint", "SubqueryAlias", "Union", "View",
})  # fmt: skip
"""Nodes that give the rows of what is below in its order."""
_ROW_BY_ROW = frozenset({"Distinct", "Join", "Repartition", "RepartitionByExpression", "Sort"})
_FILES = ".HadoopFsRelation"
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
_STRENGTH = (DeterminismLevel.INDETERMINATE, DeterminismLevel.UNORDERED, DeterminismLevel.DETERMINATE)


def determinism_of(plan: PlanNode) -> DeterminismLevel:
    """Tell what a logical plan is known to give in each partition when its task runs again.

    Parameters
    ----------
    plan : PlanNode
        An analyzed or optimized plan.
    """
    if not plan.deterministic:
        return DeterminismLevel.INDETERMINATE
    level = DeterminismLevel.DETERMINATE
    for node in plan.walk():
        level = min(level, _own(node), key=_STRENGTH.index)
        if level is DeterminismLevel.INDETERMINATE:
            break
    return level


def _own(node: PlanNode) -> DeterminismLevel:
    """What a node gives of rows that come in one order."""
    match node.name:
        case "LogicalRelation":
            files = node.fields["@relation"]["class"].endswith(_FILES)
            return DeterminismLevel.DETERMINATE if files else DeterminismLevel.UNORDERED
        case "InMemoryRelation":
            return determinism_of(read_plan(node.jvm.cacheBuilder().logicalPlan(), node.gateway))
        case "LogicalRDD":
            level = str(node.jvm.rdd().outputDeterministicLevel().toString())
            # What Spark calls unordered may hold a function that cares for the order.
            return DeterminismLevel.DETERMINATE if level == "DETERMINATE" else DeterminismLevel.INDETERMINATE
        case "Aggregate":
            exact = all(map(_exact, node.expressions("aggregateExpressions")))
            return DeterminismLevel.UNORDERED if exact else DeterminismLevel.INDETERMINATE
        case name:
            if name in _IN_ORDER:
                return DeterminismLevel.DETERMINATE
            return DeterminismLevel.UNORDERED if name in _ROW_BY_ROW else DeterminismLevel.INDETERMINATE


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
