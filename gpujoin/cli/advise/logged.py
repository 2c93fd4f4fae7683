"""The advice on an event log: which of the queries that ran would run here, and what keeps the others in Spark.

A log has physical plans as Spark shortens them, so expressions are not looked at: gpujoin may still leave an operation
to Spark whose function it does not compute.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpujoin.cli.advise.eventlog import LoggedApplication, LoggedNode, LoggedQuery
from gpujoin.costs import Costs
from gpujoin.plan.cost import (
    Estimate,
    aggregation_seconds,
    hashed_seconds,
    query_seconds,
    scan_seconds,
    window_seconds,
)
from gpujoin.report.amounts import aligned, show_rows, show_seconds

FORMAT = 1
"""Version of the form of :meth:`LogAdvice.to_dict`."""
_JOINS = {
    "SortMergeJoin": "sort-merge", "BroadcastHashJoin": "broadcast", "ShuffledHashJoin": "shuffled hash",
    "BroadcastNestedLoopJoin": "nested-loop", "CartesianProduct": "product",
}  # fmt: skip
_PAIRWISE = frozenset({"BroadcastNestedLoopJoin", "CartesianProduct"})
_AGGREGATES = frozenset({"HashAggregate", "ObjectHashAggregate", "SortAggregate"})
_FILES = ("Scan parquet", "Scan orc")
_OWN_ROWS = frozenset({"Range", "LocalTableScan", "EmptyRelation"})
"""Leaves whose rows are part of the query, or made by Spark from nothing."""
_PYTHON = frozenset({"ArrowEvalPython", "BatchEvalPython"})
_NOT_HERE = {
    "MapInPandas": "mapInPandas", "PythonMapInArrow": "mapInArrow", "MapInArrow": "mapInArrow",
    "FlatMapGroupsInPandas": "applyInPandas", "FlatMapGroupsInArrow": "applyInArrow",
    "FlatMapCoGroupsInPandas": "applyInPandas", "AggregateInPandas": "a Python aggregate function",
    "ArrowAggregatePython": "a Python aggregate function", "WindowInPandas": "a Python UDF over a window",
    "ArrowWindowPython": "a Python UDF over a window", "SerializeFromObject": "rows of an RDD or a typed Dataset",
    "Sample": "the sample",
}  # fmt: skip
_NUMBERS = re.compile(r"#\d+L?")
_ISLAND = re.compile(r"\bisland_\w*gpujoin_[0-9a-f]{12}")
_ADVICE = {
    "Spark runs Python UDFs": "functions of Spark's own, or with calls after the joins and aggregations",
    "only Parquet and ORC files are read here": "Parquet files",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedQuery:
    """What is known of a query that ran."""

    query: LoggedQuery
    joins: tuple[str, ...]
    """Kinds of its joins."""
    aggregations: int
    windows: int
    obstacles: tuple[str, ...]
    """What keeps parts of it in Spark."""
    ran_here: bool
    """Whether a part of it ran in gpujoin."""
    predicted: Estimate | None
    """Seconds that it would take here and in Spark; ``None`` where a part stays in Spark, or rows were not counted."""

    @property
    def concerned(self) -> bool:
        """Whether it has anything that gpujoin runs."""
        return bool(self.joins or self.aggregations or self.windows)

    @property
    def gain(self) -> float:
        """Seconds that are predicted to be saved; 0 where it would stay in Spark.

        What Spark took beyond its prediction counts for nothing: starting, other queries beside it, a cold cache.
        """
        if self.predicted is None or self.ran_here:
            return 0.0
        return max(0.0, min(self.query.seconds, self.predicted.spark) - self.predicted.here)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAdvice:
    """What is known of the queries of an application; ``str()`` is for people."""

    application: LoggedApplication
    queries: tuple[JudgedQuery, ...]

    @property
    def obstacles(self) -> tuple[tuple[str, tuple[int, ...], float], ...]:
        """What keeps parts in Spark, the queries, and the seconds that these took; most seconds first."""
        numbers: dict[str, list[int]] = {}
        seconds: dict[str, float] = {}
        for each in self.queries:
            for obstacle in each.obstacles:
                numbers.setdefault(obstacle, []).append(each.query.number)
                seconds[obstacle] = seconds.get(obstacle, 0.0) + each.query.seconds
        order = sorted(numbers, key=lambda obstacle: -seconds[obstacle])
        return tuple((obstacle, tuple(numbers[obstacle]), seconds[obstacle]) for obstacle in order)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        application = self.application
        concerned = [each for each in self.queries if each.concerned]
        yield (
            f"{application.name}: {len(application.queries)} queries on {application.cores} cores, of which "
            f"{len(concerned)} have a join, an aggregation or a window"
        )
        if application.failed:
            those = "1 query" if application.failed == 1 else f"{application.failed} queries"
            yield f"without {those} that failed or had not ended"
        if concerned:
            yield ""
            yield from _table(concerned)
            yield f"predicted to be saved: {show_seconds(sum(each.gain for each in concerned))} s"
            yield "by the rows that Spark counted; expressions are not looked at, which a log has in part"
        if self.obstacles:
            yield ""
            yield "left to Spark, first what is in the queries that took longest"
            for obstacle, numbers, seconds in self.obstacles:
                queries = "query" if len(numbers) == 1 else "queries"
                change = next((f" (change with {told})" for why, told in _ADVICE.items() if why in obstacle), "")
                yield f"  {queries} {', '.join(map(str, numbers))}, {show_seconds(seconds)} s: {obstacle}{change}"

    def to_dict(self) -> dict[str, Any]:
        """Give the advice for programs."""
        return {
            "format": FORMAT,
            "application": self.application.name,
            "cores": self.application.cores,
            "failed": self.application.failed,
            "queries": [
                {
                    "number": each.query.number,
                    "description": each.query.description,
                    "spark_seconds": each.query.seconds,
                    "predicted_seconds": None if each.predicted is None else each.predicted.here,
                    "predicted_spark_seconds": None if each.predicted is None else each.predicted.spark,
                    "joins": list(each.joins),
                    "aggregations": each.aggregations,
                    "windows": each.windows,
                    "ran_here": each.ran_here,
                    "obstacles": list(each.obstacles),
                }
                for each in self.queries
            ],
            "obstacles": [
                {"text": obstacle, "queries": list(numbers), "seconds": seconds}
                for obstacle, numbers, seconds in self.obstacles
            ],
        }


def judge(application: LoggedApplication, costs: Costs) -> LogAdvice:
    """Say of each query of an application what would run here."""
    queries = tuple(_judged(query, application.cores, costs) for query in application.queries)
    return LogAdvice(application=application, queries=queries)


def _judged(query: LoggedQuery, cores: int, costs: Costs) -> JudgedQuery:
    nodes = list(query.plan.walk())
    ran_here = any(_ISLAND.search(node.text) for node in nodes)
    obstacles = () if ran_here else tuple(dict.fromkeys(filter(None, map(_obstacle, nodes))))
    joins = tuple(_JOINS[node.name] for node in nodes if node.name in _JOINS)
    aggregations = sum(node.name in _AGGREGATES for node in nodes if not _is_partial(node))
    windows = sum(node.name == "Window" for node in nodes)
    concerned = bool(joins or aggregations or windows)
    predicted = None if obstacles or ran_here or not concerned else _predicted(query.plan, cores, costs)
    return JudgedQuery(
        query=query, joins=joins, aggregations=aggregations, windows=windows, obstacles=obstacles if concerned else (),
        ran_here=ran_here, predicted=predicted,
    )  # fmt: skip


def _obstacle(node: LoggedNode) -> str | None:
    """Say why a node stays in Spark; ``None`` if gpujoin may run it."""
    if node.name in _PYTHON:
        called = re.search(r"\[(.*?)\], \[", node.text)
        return f"the Python UDF {_NUMBERS.sub('', called[1]) if called else ''}".rstrip() + ": Spark runs Python UDFs"
    if node.name in _NOT_HERE:
        return f"{_NOT_HERE[node.name]}: Spark runs it"
    if node.children or node.name in _OWN_ROWS or node.name.startswith((*_FILES, "Reused", "Subquery")):
        return None
    if node.name.startswith("InMemoryTableScan"):
        return "a cached table: Spark holds its rows"
    if node.name.startswith("Scan "):
        return f"{_NUMBERS.sub('', node.name.removeprefix('Scan '))}: only Parquet and ORC files are read here"
    if node.name.startswith("BatchScan"):
        return f"{node.name.removeprefix('BatchScan ')}, a table of a data source of its own: only files are read here"
    return None


def _is_partial(node: LoggedNode) -> bool:
    return "partial_" in node.text or ("functions=[]" in node.text and "Aggregate(keys=[]" not in node.text)


def _predicted(plan: LoggedNode, cores: int, costs: Costs) -> Estimate | None:
    """Predict the seconds of a plan of which everything may run here; ``None`` where rows were not counted."""
    here, spark, stages = 0.0, 0.0, 0
    for node in plan.walk():
        inputs = [_rows(child) for child in node.children]
        own: Estimate | None = None
        if node.name.startswith(_FILES):
            rows = _rows(node) or _first_rows(plan, node)
            if rows is None:
                return None
            own = scan_seconds(rows * _columns(node), costs)
        elif node.name in _JOINS:
            if len(inputs) != 2 or inputs[0] is None or inputs[1] is None:
                return None
            own = _join_seconds(node, inputs[0], inputs[1], costs)
            stages += 1
        elif node.name in _AGGREGATES and inputs and inputs[0] is not None:
            own = aggregation_seconds(inputs[0], costs)
            stages += _is_partial(node)
        elif node.name == "Window" and inputs and inputs[0] is not None:
            own = window_seconds(inputs[0], costs)
            stages += 1
        if own is not None:
            here, spark = here + own.here, spark + own.spark
    here += (_rows(plan) or 0) * costs.row_out
    return query_seconds(Estimate(here, spark), stages, cores, costs)


def _join_seconds(node: LoggedNode, left: int, right: int, costs: Costs) -> Estimate:
    rows, pairs = left + right, left * right
    if node.name not in _PAIRWISE:
        return Estimate(here=rows * costs.join_row, spark=hashed_seconds(left, right, costs))
    ranges = re.search(r"[<>]", node.text) is not None
    here = rows * costs.sort_row * math.log2(max(2, rows)) if ranges else pairs * costs.pair
    return Estimate(here=here, spark=pairs * costs.spark_pair)


def _rows(node: LoggedNode) -> int | None:
    """Rows that a node gave, or the one below it whose rows it passes on."""
    while node.rows is None and len(node.children) == 1 and node.name not in _AGGREGATES:
        node = node.children[0]
    return node.rows


def _first_rows(plan: LoggedNode, scan: LoggedNode) -> int | None:
    """Rows that a scan gave, as the nodes right above it counted them."""
    for node in plan.walk():
        if len(node.children) == 1 and _leaf(node) is scan and node.rows is not None and node.name == "ColumnarToRow":
            return node.rows
    return None


def _leaf(node: LoggedNode) -> LoggedNode:
    while len(node.children) == 1:
        node = node.children[0]
    return node


def _columns(scan: LoggedNode) -> int:
    read = re.search(r"\[(.*?)\]", scan.text)
    return max(1, read[1].count(",") + 1 if read else 1)


def _table(queries: Sequence[JudgedQuery]) -> Iterator[str]:
    headings = ("#", "s", "~s in Spark", "~s here", "joins", "runs", "query")
    yield from aligned([headings, *map(_row, queries)], numbers=4)


def _row(each: JudgedQuery) -> tuple[str, ...]:
    if each.ran_here:
        runs = "ran here"
    elif each.obstacles:
        runs = "here in part"
    else:
        runs = "here" if each.gain else "in Spark"
    known = each.predicted
    predicted = ("", "") if known is None else (show_seconds(known.spark), show_seconds(known.here))
    joins = ", ".join(f"{show_rows(n)} {kind}" for kind, n in Counter(each.joins).items())
    return (
        str(each.query.number), show_seconds(each.query.seconds), *predicted, joins, runs, each.query.description,
    )  # fmt: skip
