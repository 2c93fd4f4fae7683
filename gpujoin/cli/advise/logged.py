"""The advice on an event log: which of the queries that ran would run here, and what keeps the others in Spark.

A log has physical plans as Spark shortens them, so expressions are not looked at: gpujoin may still leave an operation
to Spark whose function it does not compute. Nor are seconds predicted, which needs the tables.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpujoin.cli.advise.eventlog import LoggedApplication, LoggedNode, LoggedQuery
from gpujoin.report.amounts import aligned, show_rows, show_seconds

FORMAT = 1
"""Version of the form of :meth:`LogAdvice.to_dict`."""
_JOINS = {
    "SortMergeJoin": "sort-merge", "BroadcastHashJoin": "broadcast", "ShuffledHashJoin": "shuffled hash",
    "BroadcastNestedLoopJoin": "nested-loop", "CartesianProduct": "product",
}  # fmt: skip
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

    @property
    def concerned(self) -> bool:
        """Whether it has anything that gpujoin runs."""
        return bool(self.joins or self.aggregations or self.windows)

    @property
    def runs(self) -> str:
        """Where it ran, or would run."""
        return "ran here" if self.ran_here else "here in part" if self.obstacles else "here"


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
            f"{application.name}: {len(application.queries)} queries, of which {len(concerned)} have a join, an "
            "aggregation or a window"
        )
        if application.failed:
            those = "1 query" if application.failed == 1 else f"{application.failed} queries"
            yield f"without {those} that failed or had not ended"
        if concerned:
            yield ""
            yield from _table(concerned)
            whole = sum(each.query.seconds for each in concerned if each.runs == "here")
            total = sum(each.query.seconds for each in concerned)
            yield (
                f"{show_seconds(whole)} s of the {show_seconds(total)} s are of queries that may run here as a whole; "
                "expressions are not looked at, which a log has in part"
            )
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
            "failed": self.application.failed,
            "queries": [
                {
                    "number": each.query.number,
                    "description": each.query.description,
                    "seconds": each.query.seconds,
                    "joins": list(each.joins),
                    "aggregations": each.aggregations,
                    "windows": each.windows,
                    "runs": each.runs,
                    "obstacles": list(each.obstacles),
                }
                for each in self.queries
            ],
            "obstacles": [
                {"text": obstacle, "queries": list(numbers), "seconds": seconds}
                for obstacle, numbers, seconds in self.obstacles
            ],
        }


def judge(application: LoggedApplication) -> LogAdvice:
    """Say of each query of an application what would run here."""
    queries = tuple(map(_judged, application.queries))
    return LogAdvice(application=application, queries=queries)


def _judged(query: LoggedQuery) -> JudgedQuery:
    nodes = list(query.plan.walk())
    ran_here = any(_ISLAND.search(node.text) for node in nodes)
    obstacles = () if ran_here else tuple(dict.fromkeys(filter(None, map(_obstacle, nodes))))
    joins = tuple(_JOINS[node.name] for node in nodes if node.name in _JOINS)
    aggregations = sum(node.name in _AGGREGATES for node in nodes if not _is_partial(node))
    windows = sum(node.name == "Window" for node in nodes)
    concerned = bool(joins or aggregations or windows)
    return JudgedQuery(
        query=query, joins=joins, aggregations=aggregations, windows=windows, obstacles=obstacles if concerned else (),
        ran_here=ran_here,
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


def _table(queries: Sequence[JudgedQuery]) -> Iterator[str]:
    yield from aligned([("#", "s", "joins", "runs", "query"), *map(_row, queries)], numbers=2)


def _row(each: JudgedQuery) -> tuple[str, ...]:
    joins = ", ".join(f"{show_rows(n)} {kind}" for kind, n in Counter(each.joins).items())
    return str(each.query.number), show_seconds(each.query.seconds), joins, each.runs, each.query.description
