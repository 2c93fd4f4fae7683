"""Finds the joins that Spark runs, and names the parts of its plans as whoever wrote the query would.

A plan says ``ArrowEvalPython [slug(name#3)#9], [pythonUDF0#12], 101``. Its author wrote ``slug("name")``, and reads
``the Python UDF slug(name)``.
"""

from __future__ import annotations

from typing import Any

from gpujoin.backends.cudf import algorithm_rule
from gpujoin.config import BackendChoice, Options
from gpujoin.model.jointype import JoinType
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.sqltext import shorten
from gpujoin.plan.estimates import UNKNOWN_SIZE
from gpujoin.report.operations import JoinOperation, NoteKind, Operation, notes_of, spark_join
from gpujoin.spark.catalyst.joins import (
    AS_OF_JOIN,
    JOIN,
    JOINS,
    class_name,
    join_type_name,
    join_type_shown,
    spark_type_name,
)
from gpujoin.spark.catalyst.nodes import Node
from gpujoin.spark.catalyst.words import listed, words
from gpujoin.spark.query.asof import AsOfTerms
from gpujoin.spark.query.plans import PlanNode
from gpujoin.spark.query.scans import RELATION, SCAN_RELATION
from gpujoin.spark.settings import GpuOutlook

_MOST_NAMES = 3
_LONGEST = 100
_ROWS = {
    "InMemoryRelation": "a cached table",
    "LogicalRDD": "rows that the program gave to Spark (createDataFrame, an RDD, a checkpoint)",
    "LocalRelation": "rows that are written in the program",
    "OneRowRelation": "a select without a table",
    "Range": "spark.range",
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
_DESCRIBED = {"count", "mean", "stddev", "min", "max"}
"""The statistics of a column that ``describe()`` computes."""
_OF_LEFT_ROWS = frozenset({"LeftSemi", "LeftAnti", "ExistenceJoin"})
"""Joins that Spark takes to be as large as their left side."""
_AFTER = "functions of Spark's own, or with calls after the joins and aggregations"


def part_name(node: PlanNode) -> str:
    """Name what a node is in the query."""
    if node.class_name == RELATION:
        return _files(node)
    if node.class_name == SCAN_RELATION:
        return f"the table {node.fields['@scan']['table']} ({_source(node)})"
    if node.name == "Join":
        on = "" if node.condition is None else f" on {expression_name(node.condition)}"
        return f"the {join_type_shown(node.fields['joinType'])} join{on}"
    if node.name == "Aggregate" and (statistics := _statistics(node)):
        return "describe()" if statistics == _DESCRIBED else "summary()"
    if node.name == "Aggregate":
        keys = listed(node.expressions("groupingExpressions"), _MOST_NAMES)
        return f"the aggregation by {keys}" if keys else "the aggregation"
    if node.name == "Window":
        return f"the window {listed(node.expressions('windowExpressions'), _MOST_NAMES)}"
    if node.name in _OF_PYTHON:
        calls = [call for call in node.own_expressions() if call.name == "PythonUDF"]
        return f"the Python UDF {listed(calls, _MOST_NAMES)}" if calls else "a Python UDF"
    return _ROWS.get(node.name) or _OPERATIONS.get(node.name) or f"the part that Spark calls {node.name}"


def _statistics(node: PlanNode) -> set[str]:
    """Name the statistics that an aggregation computes of ``describe()`` or ``summary()``: maps from names to texts."""
    names: set[str] = set()
    for aggregate in node.expressions("aggregateExpressions"):
        value = aggregate.children[0] if aggregate.children else aggregate
        keys = value.children[0::2] if value.name == "CreateMap" else ()
        if not keys or not all(key.name == "Literal" and isinstance(key.fields["@value"], str) for key in keys):
            return set()
        names |= {str(key.fields["@value"]) for key in keys}
    return names if "groupingExpressions" in node.fields and not node.expressions("groupingExpressions") else set()


def is_held(node: PlanNode) -> bool:
    """Whether a node holds rows of its own, so that nobody asks why Spark gives them."""
    return node.name in _ROWS


def why_uncovered(node: PlanNode) -> tuple[str, str | None]:
    """Say why nothing here computes a node, and what its author can do."""
    if node.name in _OF_PYTHON:
        return "Spark runs Python UDFs", _AFTER
    if node.name in _ROWS:
        return "Spark holds its rows", None
    return "gpujoin has nothing that computes it", None


def join_left_to_spark(
    node: PlanNode, *reasons: Reason, inputs: tuple[Operation, ...] = (), sized: bool = True
) -> JoinOperation:
    """Describe a join of an optimized plan that Spark runs, with Spark's estimates of the inputs' sizes."""
    left, right = (child.size_bytes if sized and not _is_multiplied(child) else None for child in node.children)
    if node.class_name == AS_OF_JOIN:
        kind = JoinType.LEFT.value
        columns = (str(node.expression(name).fields["name"]) for name in ("leftOrder", "rightOrder"))
        condition: str | None = AsOfTerms.parse(node.fields["terms"]).show(*columns)
    else:
        kind = join_type_shown(node.fields["joinType"])
        condition = None if node.condition is None else expression_name(node.condition)
    return spark_join(
        kind, *reasons, condition=condition, left_bytes=left, right_bytes=right, inputs=inputs,
        by_gpu_join=node.request is not None,
    )  # fmt: skip


def _is_multiplied(node: PlanNode) -> bool:
    """Whether Spark's estimate of a part is but the product of the sizes of its joins' inputs."""
    if node.class_name == JOIN and spark_type_name(node.fields["joinType"]) in _OF_LEFT_ROWS:
        return _is_multiplied(node.children[0])
    if node.class_name in JOINS and not node.has_statistics:
        return True
    return any(map(_is_multiplied, node.children))


def expression_name(node: Node) -> str:
    """Write an expression briefly."""
    return shorten(words(node), _LONGEST)


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


def _source(node: PlanNode) -> str:
    """Name the package that a table of a data source is of, as far as its class tells."""
    name = node.fields["@scan"]["class"]
    return "Iceberg" if name.startswith("org.apache.iceberg.") else name.rpartition(".")[2].removesuffix("Scan")


NOT_ENABLED = Reason(
    ReasonKind.CONFIGURED,
    "the session",
    "it is not enabled, and gpu_join did not make the join",
    "gpujoin.enable(spark)",
)


def joins_in(plan: Any) -> tuple[JoinOperation, ...]:
    """Find the topmost joins of an analyzed plan, those below them being their inputs."""
    name, children = class_name(plan), plan.children()
    inputs = [joins_in(children.apply(i)) for i in range(children.size())]
    below = tuple(join for joins in inputs for join in joins)
    if name not in JOINS:
        return below
    # Of a join Spark knows no better size than the product of those of its inputs.
    left, right = (None if joins else size_of(children.apply(i)) for i, joins in enumerate(inputs))
    if name == AS_OF_JOIN:
        terms = AsOfTerms.parse(str(plan.terms()))
        condition = terms.show(str(plan.leftOrder().name()), str(plan.rightOrder().name()))
        notes = notes_of(NoteKind.DECISION, "gpujoin is disabled in the session")
        return (
            spark_join(
                JoinType.LEFT.value, condition=condition, left_bytes=left, right_bytes=right, notes=notes, inputs=below,
                by_gpu_join=True,
            ),
        )  # fmt: skip
    native = plan.condition()
    text = str(native.get().sql()) if native.isDefined() else None
    return (
        spark_join(join_type_name(plan), NOT_ENABLED, condition=text, left_bytes=left, right_bytes=right, inputs=below),
    )


def size_of(plan: Any) -> int | None:
    """Give Spark's estimate of a plan's size in bytes, if it is one."""
    size = int(str(plan.stats().sizeInBytes()))
    return None if size >= UNKNOWN_SIZE else size


def expected_backend(options: Options, outlook: GpuOutlook, *, keyed: bool) -> tuple[str, tuple[str, ...]]:
    """Give the backend that the driver expects, the reasons, and the rule for the matches of a GPU."""
    name, notes = _expected(options, outlook)
    return name, (*notes, algorithm_rule(options.gpu_algorithm)) if keyed and name == "gpu" else notes


def _expected(options: Options, outlook: GpuOutlook) -> tuple[str, tuple[str, ...]]:
    if options.backend is not BackendChoice.AUTO:
        return options.backend.value, (f"backend {options.backend.value} was asked for",)
    if outlook is GpuOutlook.EXPECTED:
        return "gpu", ("backend auto: a GPU is expected; a worker that gets none uses the CPU",)
    return "cpu", ()
