"""Names the parts of a plan in the words of whoever wrote the query, for reasons and for ``explain``.

A plan says ``ArrowEvalPython [slug(name#3)#9], [pythonUDF0#12], 101``. Its author wrote ``slug("name")``, and reads
``the Python UDF slug(name)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpujoin.plan.sqltext import show_value
from gpujoin.spark.catalyst.joins import join_type_shown
from gpujoin.spark.catalyst.nodes import Node
from gpujoin.spark.catalyst.translate import NotTranslatableError, python_value
from gpujoin.spark.query.plans import PlanNode
from gpujoin.spark.query.scans import RELATION

_MOST_NAMES = 3
_LONGEST = 100
_OPERATORS = {
    "EqualTo": "=", "EqualNullSafe": "<=>", "LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">",
    "GreaterThanOrEqual": ">=", "And": "and", "Or": "or", "Add": "+", "Subtract": "-", "Multiply": "*", "Divide": "/",
}  # fmt: skip
_FUNCTIONS = {"CreateArray": "array", "CreateMap": "map", "CreateNamedStruct": "struct"}
_UNSHOWN = frozenset({
    "AggregateExpression", "Alias", "Cast", "KnownFloatingPointNormalized", "KnownNotNull", "NormalizeNaNAndZero",
    "WindowExpression",
})  # fmt: skip
"""Expressions that their author did not write, as a rule; what they are of is shown."""

_ROWS = {
    "InMemoryRelation": "a cached table",
    "LogicalRDD": "rows that the program gave to Spark (createDataFrame, an RDD, a checkpoint)",
    "LocalRelation": "rows that are written in the program",
    "OneRowRelation": "a select without a table",
    "Range": "spark.range",
    "DataSourceV2ScanRelation": "a table of a data source of its own (Iceberg, JDBC, …)",
}
"""Leaves of plans."""
_FORMATS = {"Orc": "ORC", "Json": "JSON", "Xml": "XML", "Text": "text"}
_OPERATIONS = {
    "Filter": "the filter",
    "Project": "the select",
    "Expand": "the grouping sets",
    "Union": "the union",
    "Sort": "the sort",
    "GlobalLimit": "the limit",
    "LocalLimit": "the limit",
    "Offset": "the offset",
    "Tail": "the limit",
    "Sample": "the sample",
    "Generate": "explode, or another function that makes rows",
    "Repartition": "the repartitioning",
    "RepartitionByExpression": "the repartitioning",
    "RebalancePartitions": "the repartitioning",
    "MapInPandas": "mapInPandas",
    "MapInArrow": "mapInArrow",
    "SizedRows": "mapInArrow",
    "FlatMapGroupsInPandas": "applyInPandas",
    "FlatMapGroupsInArrow": "applyInArrow",
    "FlatMapCoGroupsInPandas": "applyInPandas",
    "FlatMapCoGroupsInArrow": "applyInArrow",
    "SerializeFromObject": "rows of an RDD or of a typed Dataset",
    "GpuAsOfJoin": "the as-of join",
    "WithCTE": "the with clause",
    "CollectMetrics": "the observed metrics",
    "UnionLoop": "the recursive query",
}
_OF_PYTHON = frozenset({"BatchEvalPython", "ArrowEvalPython"})
_AFTER = "functions of Spark's own, or with calls after the joins and aggregations"


def part_name(node: PlanNode) -> str:
    """Name what a node is in the query."""
    if node.class_name == RELATION:
        return _files(node)
    if node.name == "Join":
        on = "" if node.condition is None else f" on {expression_name(node.condition)}"
        return f"the {join_type_shown(node.fields['joinType'])} join{on}"
    if node.name == "Aggregate":
        keys = _names(node.expressions("groupingExpressions"))
        return f"the aggregation by {keys}" if keys else "the aggregation"
    if node.name == "Window":
        return f"the window {_names(node.expressions('windowExpressions'))}"
    if node.name in _OF_PYTHON:
        calls = [call for call in node.own_expressions() if call.name == "PythonUDF"]
        return f"the Python UDF {_names(calls)}" if calls else "a Python UDF"
    return _ROWS.get(node.name) or _OPERATIONS.get(node.name) or f"the part that Spark calls {node.name}"


def is_held(node: PlanNode) -> bool:
    """Whether a node's rows are in Spark's hands, so that nothing needs to be said of why it gives them."""
    return node.name in _ROWS


def why_uncovered(node: PlanNode) -> tuple[str, str | None]:
    """Say why there is nothing here that computes a node, and what its author can do."""
    if node.name in _OF_PYTHON:
        return "Spark runs Python UDFs", _AFTER
    if node.name == "DataSourceV2ScanRelation":
        return "only Parquet and ORC files that Spark's own reader lists are read here", None
    if node.name in _ROWS:
        return "Spark holds its rows", None
    return "gpujoin has nothing that computes it", None


def expression_name(node: Node) -> str:
    """Write an expression briefly, without a call to the JVM."""
    text = _expression(node)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _constant(node: Node) -> str:
    try:
        return show_value(python_value(node.data_type, node.fields["@value"]))
    except (NotTranslatableError, OverflowError, KeyError):
        return str(node.fields["value"])


def _files(node: PlanNode) -> str:
    relation = node.fields["@relation"]
    form = str(relation.get("format", relation["class"])).rpartition(".")[2].removesuffix("FileFormat")
    form = _FORMATS.get(form, form)
    if "table" in relation:
        return f"the table {relation['table']} ({form})"
    if "paths" not in relation:
        return f"the rows of {form}"
    first, *others = relation["paths"] or [""]
    return f"the {form} files {first}{', …' if others else ''}".rstrip()


def _names(nodes: Iterable[Node]) -> str:
    names = list(dict.fromkeys(map(expression_name, nodes)))
    return ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")


def _expression(node: Node) -> str:
    if node.name == "AttributeReference":
        return str(node.fields["name"])
    if node.name == "Literal":
        return _constant(node)
    if node.name in _UNSHOWN and node.children:
        return _expression(node.children[0])
    operands = list(map(_expression, node.children))
    if node.name in _OPERATORS and len(operands) == 2:
        return f"{operands[0]} {_OPERATORS[node.name]} {operands[1]}"
    if node.name in ("PythonUDF", "PythonUDAF"):
        return f"{node.fields['name']}({', '.join(operands)})"
    function = _FUNCTIONS.get(node.name) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", node.name).lower()
    return f"{function}({', '.join(operands)})"
