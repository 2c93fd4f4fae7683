"""The advice on a Spark event log: which of its queries would run here, and the obstacles of others.

A log has physical plans as Spark shortens them, so expressions are not looked at: gpujoin may still leave an operation
to Spark whose function it does not compute. Nor are seconds predicted, which needs the tables.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from gpujoin.errors import GpuJoinError
from gpujoin.report.amounts import align, show_rows, show_seconds

FORMAT = 1
"""Version of the form of :meth:`LogAdvice.to_dict`."""
_SQL = "org.apache.spark.sql.execution.ui.SparkListenerSQL"
_EVENTS = re.compile(r"events_(\d+)_")
_CODECS = {".zstd": "zstd", ".zst": "zstd", ".gz": "gzip"}
_UNREAD = frozenset({".lz4", ".snappy", ".lzf"})
"""Suffixes of codecs whose streams have a form of Spark's own."""
_JOINS = {
    "SortMergeJoin": "sort-merge", "BroadcastHashJoin": "broadcast", "ShuffledHashJoin": "shuffled hash",
    "BroadcastNestedLoopJoin": "nested-loop", "CartesianProduct": "product",
}  # fmt: skip
_AGGREGATES = frozenset({"HashAggregate", "ObjectHashAggregate", "SortAggregate"})
_FILES = ("Scan parquet", "Scan orc")
_ICEBERG = re.compile(r"\bIcebergScan\(")
"""What a scan of Iceberg's says of itself; scans of changes, and of files that are rewritten, have other names."""
_OWN_ROWS = frozenset({"Range", "LocalTableScan", "EmptyRelation"})
"""Leaves whose rows are part of the query, or made by Spark from nothing."""
_PYTHON = frozenset({"ArrowEvalPython", "BatchEvalPython"})
_NOT_HERE = {
    "MapInPandas": "mapInPandas", "PythonMapInArrow": "mapInArrow", "MapInArrow": "mapInArrow",
    "FlatMapGroupsInPandas": "applyInPandas", "FlatMapGroupsInArrow": "applyInArrow",
    "FlatMapCoGroupsInPandas": "applyInPandas", "FlatMapCoGroupsInArrow": "applyInArrow",
    "AggregateInPandas": "a Python aggregate function",
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


@dataclass(frozen=True, slots=True)
class PlanNode:
    """A node of a physical plan."""

    name: str
    text: str
    """Its text, as Spark writes and shortens it."""
    is_leaf: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedQuery:
    """A query in an event log."""

    number: int
    """Its number in Spark's UI."""
    description: str
    seconds: float
    joins: tuple[str, ...]
    """Kinds of its joins."""
    aggregations: int
    windows: int
    runs: str
    """The place where the query ran, or would run."""
    obstacles: tuple[str, ...]
    """Reasons why parts of it stay in Spark."""

    @classmethod
    def from_plan(cls, number: int, description: str, seconds: float, plan: Iterable[PlanNode]) -> Self:
        """Find the operations of a plan that gpujoin runs, and their obstacles."""
        nodes = tuple(plan)
        joins = tuple(_JOINS[node.name] for node in nodes if node.name in _JOINS)
        aggregations = sum(node.name in _AGGREGATES for node in nodes if not _is_partial(node))
        windows = sum(node.name == "Window" for node in nodes)
        ran_here = any(_ISLAND.search(node.text) for node in nodes)
        obstacles = () if ran_here else tuple(dict.fromkeys(filter(None, map(_obstacle, nodes))))
        return cls(
            number=number, description=description, seconds=seconds, joins=joins, aggregations=aggregations,
            windows=windows, runs="ran here" if ran_here else "here in part" if obstacles else "here",
            obstacles=obstacles if joins or aggregations or windows else (),
        )  # fmt: skip

    @property
    def concerned(self) -> bool:
        """Whether it has operations that gpujoin runs."""
        return bool(self.joins or self.aggregations or self.windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAdvice:
    """What is known of the queries of an application; ``str()`` is for people."""

    application: str
    queries: tuple[LoggedQuery, ...]
    failed: int
    """How many queries failed, or had not ended."""

    @property
    def obstacles(self) -> tuple[tuple[str, tuple[int, ...], float], ...]:
        """Give the obstacles, with their queries and the seconds of these, most seconds first."""
        numbers: dict[str, list[int]] = {}
        seconds: dict[str, float] = {}
        for query in self.queries:
            for obstacle in query.obstacles:
                numbers.setdefault(obstacle, []).append(query.number)
                seconds[obstacle] = seconds.get(obstacle, 0.0) + query.seconds
        order = sorted(numbers, key=lambda obstacle: -seconds[obstacle])
        return tuple((obstacle, tuple(numbers[obstacle]), seconds[obstacle]) for obstacle in order)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        concerned = [query for query in self.queries if query.concerned]
        yield (
            f"{self.application}: {len(self.queries)} queries, of which {len(concerned)} have a join, an aggregation "
            "or a window"
        )
        if self.failed:
            those = "1 query" if self.failed == 1 else f"{self.failed} queries"
            yield f"without {those} that failed or had not ended"
        if concerned:
            yield ""
            yield from align([("#", "s", "joins", "runs", "query"), *map(_row, concerned)], numbers=2)
            whole = show_seconds(sum(query.seconds for query in concerned if query.runs == "here"))
            total = show_seconds(sum(query.seconds for query in concerned))
            yield (
                f"{whole} s of the {total} s are of queries that may run here as a whole; expressions are not looked "
                "at, which a log has in part"
            )
        if self.obstacles:
            yield ""
            yield "left to Spark, first what is in the queries that took longest"
            for obstacle, numbers, seconds in self.obstacles:
                queries = "query" if len(numbers) == 1 else "queries"
                change = next((f" (change with {setting})" for why, setting in _ADVICE.items() if why in obstacle), "")
                yield f"  {queries} {', '.join(map(str, numbers))}, {show_seconds(seconds)} s: {obstacle}{change}"

    def to_dict(self) -> dict[str, Any]:
        """Give the advice for programs."""
        return {
            "format": FORMAT,
            "application": self.application,
            "failed": self.failed,
            "queries": [dataclasses.asdict(query) for query in self.queries],
            "obstacles": [
                {"text": obstacle, "queries": list(numbers), "seconds": seconds}
                for obstacle, numbers, seconds in self.obstacles
            ],
        }


def _row(query: LoggedQuery) -> tuple[str, ...]:
    joins = ", ".join(f"{show_rows(n)} {kind}" for kind, n in Counter(query.joins).items())
    return str(query.number), show_seconds(query.seconds), joins, query.runs, query.description


def _obstacle(node: PlanNode) -> str | None:
    """Say why a node stays in Spark; ``None`` if gpujoin may run it."""
    if node.name in _PYTHON:
        called = re.search(r"\[(.*?)\], \[", node.text)
        return f"the Python UDF {_NUMBERS.sub('', called[1]) if called else ''}".rstrip() + ": Spark runs Python UDFs"
    if node.name in _NOT_HERE:
        return f"{_NOT_HERE[node.name]}: Spark runs it"
    if not node.is_leaf or node.name in _OWN_ROWS or node.name.startswith((*_FILES, "Reused", "Subquery")):
        return None
    if node.name.startswith("InMemoryTableScan"):
        return "a cached table: Spark holds its rows"
    if node.name.startswith("Scan "):
        return f"{_NUMBERS.sub('', node.name.removeprefix('Scan '))}: only Parquet and ORC files are read here"
    if node.name.startswith("BatchScan") and not _ICEBERG.search(node.text):
        return f"{node.name.removeprefix('BatchScan ')}, a table of a data source of its own: only files are read here"
    return None


def _is_partial(node: PlanNode) -> bool:
    return "partial_" in node.text or ("functions=[]" in node.text and "Aggregate(keys=[]" not in node.text)


@dataclass
class _Reading:
    """What is known while a log is read, of queries by their numbers."""

    application: str = ""
    descriptions: dict[int, str] = field(default_factory=dict)
    plans: dict[int, tuple[PlanNode, ...]] = field(default_factory=dict)
    started: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    """Milliseconds; those that failed have not ended."""

    def take(self, event: Mapping[str, Any]) -> None:
        kind = event["Event"]
        if kind == "SparkListenerApplicationStart":
            self.application = str(event.get("App Name", ""))
        elif kind == f"{_SQL}ExecutionStart":
            self.descriptions[event["executionId"]] = str(event.get("description", ""))
            self.plans[event["executionId"]] = tuple(_nodes(event["sparkPlanInfo"]))
            self.started[event["executionId"]] = int(event["time"])
        elif kind == f"{_SQL}AdaptiveExecutionUpdate":
            self.plans[event["executionId"]] = tuple(_nodes(event["sparkPlanInfo"]))
        elif kind == f"{_SQL}ExecutionEnd" and not event.get("errorMessage"):
            self.ended[event["executionId"]] = int(event["time"])

    def advice(self) -> LogAdvice:
        queries = tuple(
            LoggedQuery.from_plan(
                number, self.descriptions[number], max(0, self.ended[number] - start) / 1000, self.plans[number]
            )
            for number, start in sorted(self.started.items())
            if number in self.ended
        )
        return LogAdvice(application=self.application, queries=queries, failed=len(self.started) - len(queries))


def _nodes(info: Mapping[str, Any]) -> Iterator[PlanNode]:
    yield PlanNode(str(info["nodeName"]).strip(), str(info["simpleString"]), not info["children"])
    for child in info["children"]:
        yield from _nodes(child)


def is_event_log(path: Path) -> bool:
    """Tell whether a path is an event log: a folder of one, or a file other than a program."""
    return path.is_dir() or (path.is_file() and path.suffix != ".py")


def read_event_log(path: Path) -> LogAdvice:
    """Read the log of one application, a file or the folder of a rolling log, and say what would run here.

    Raises
    ------
    GpuJoinError
        If it is no event log, or one that is compressed in a form of Spark's own.
    """
    reading = _Reading()
    events = 0
    for line in _lines(path):
        try:
            event = json.loads(line)
        except ValueError:
            if events:
                break  # the end of a log that is still written
            raise GpuJoinError(f"{path} is no event log of Spark") from None
        if not isinstance(event, dict) or "Event" not in event:
            raise GpuJoinError(f"{path} is no event log of Spark")
        events += 1
        try:
            reading.take(event)
        except (KeyError, TypeError) as problem:
            raise GpuJoinError(f"{path}: an event lacks {problem}: {event['Event']}") from problem
    if not events:
        raise GpuJoinError(f"{path} has no events")
    return reading.advice()


def _lines(path: Path) -> Iterator[str]:
    for file in _files(path):
        if file.suffix in _UNREAD:
            raise GpuJoinError(
                f"{file} is compressed with {file.suffix[1:]} in a form of Spark's own; write logs with "
                "spark.eventLog.compression.codec=zstd, or with spark.eventLog.compress=false"
            )
        name = file.name.removesuffix(".inprogress")
        codec = next((codec for suffix, codec in _CODECS.items() if name.endswith(suffix)), None)
        try:
            with pa.OSFile(str(file)) as raw, pa.CompressedInputStream(raw, codec) if codec else raw as stream:
                yield from _text_lines(stream)
        except OSError as problem:
            raise GpuJoinError(f"{file} cannot be read: {problem}") from problem


def _text_lines(stream: Any) -> Iterator[str]:
    """Yield the lines of a stream, as far as it can be decompressed: a log may still be written."""
    rest = b""
    while True:
        try:
            block = stream.read(1 << 20)
        except OSError:
            if not rest:
                raise
            block = b""
        *lines, rest = (rest + block).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in lines if line.strip())
        if not block:
            break
    if rest.strip():
        yield rest.decode("utf-8", "replace")


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    numbered = [(match, file) for file in path.iterdir() if (match := _EVENTS.match(file.name)) is not None]
    if not numbered:
        raise GpuJoinError(
            f"{path} has no events_… files; give the log of one application: a file, or a folder eventlog_v2_…"
        )
    return [file for _, file in sorted(numbered, key=lambda each: int(each[0][1]))]
