"""Runs a program whose queries are planned and not run."""

from __future__ import annotations

import functools
import inspect
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from gpujoin.cli.advise.findings import Advice, Query
from gpujoin.cli.checks import Status
from gpujoin.cli.checks.software import java
from gpujoin.cli.script import execute
from gpujoin.costs import Costs
from gpujoin.errors import GpuJoinError
from gpujoin.spark.failures import first_line
from gpujoin.spark.jvm.gateway import dataframe_of, gateway_of, java_session
from gpujoin.spark.query import hooks
from gpujoin.spark.query.accelerate import Purpose, rewrite
from gpujoin.spark.worker.python import use_this_python

_NO_JAVA = "JAVA_GATEWAY_EXITED"
_COSTS = "spark.gpujoin.costs"
_WRITERS = (
    "save", "insertInto", "saveAsTable", "json", "parquet", "text", "csv", "xml", "orc", "jdbc", "create", "replace",
    "createOrReplace", "append", "overwrite", "overwritePartitions",
)  # fmt: skip
_QUERIES: dict[str, Callable[..., Any]] = {
    "count": lambda frame: frame.groupBy().count(),
    "isEmpty": lambda frame: frame.limit(1),
    "show": lambda frame, n=20, *_, **__: frame.limit(n + 1),
}
"""The queries that actions make of a frame, where that is another one than the frame's."""
_NEEDING_ROWS = ("approxQuantile", "corr", "cov", "crosstab", "freqItems", "describe", "summary")
_OF_RDDS = ("collect", "collectWithJobGroup", "toLocalIterator")
_COMMAND = "org.apache.spark.sql.catalyst.plans.logical.Command"
_PARSED = "org.apache.spark.sql.catalyst.plans.logical.ParsedStatement"
_HARMLESS = (
    "CreateViewCommand", "CreateView", "CreateTempViewUsing", "CacheTable", "CacheTableAsSelect", "UncacheTable",
    "SetCommand", "ResetCommand", "SetCatalogAndNamespace", "SetNamespaceCommand", "ShowTables", "ShowNamespaces",
    "ShowColumns", "ShowTablesExtended", "DescribeRelation", "ExplainCommand", "AddJarsCommand", "AddFilesCommand",
)  # fmt: skip
"""Commands that are run: they change this session alone, and read no rows."""


class NotRunError(GpuJoinError):
    """Something of a program is not run, and has no result that could stand for one."""


class _Recorder:
    """Keeps the queries of a program."""

    def __init__(self, program: str) -> None:
        self._program = str(Path(program).resolve())
        self.queries: list[Query] = []
        self.skipped: list[str] = []

    def plan(self, frame: Any, action: str) -> None:
        """Explain a query that an action would have run."""
        use_this_python(frame.sparkSession.sparkContext)  # as `enable` does
        try:
            with _without_start(frame.sparkSession):
                explanation = rewrite(frame, Purpose.EXPLAIN).explanation
        except GpuJoinError as problem:
            self.skip(f"{action}, which gpujoin refuses ({problem}),")
            return
        number = len(self.queries) + 1
        self.queries.append(Query(number=number, action=action, place=self.place(), explanation=explanation))

    def skip(self, what: str) -> None:
        """Keep what was not run, and is no query."""
        self.skipped.append(f"{what} at {self.place()}")

    def place(self) -> str:
        """Give the line of the program that is being run."""
        frame = inspect.currentframe()
        while frame is not None:
            if os.path.realpath(frame.f_code.co_filename) == self._program:
                return f"{Path(self._program).name}:{frame.f_lineno}"
            frame = frame.f_back
        return Path(self._program).name


@contextmanager
def _without_start(spark: Any) -> Iterator[None]:
    """Predict without one-off seconds: the start of workers, and Spark's compilation of code."""
    before = spark.conf.get(_COSTS, None)
    spark.conf.set(_COSTS, f"{before or ''},start=0")
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_COSTS)
        else:
            spark.conf.set(_COSTS, before)


def advise(program: str, arguments: Sequence[str]) -> Advice:
    """Run a program with Spark's actions replaced, and say what is known of its queries.

    Raises
    ------
    GpuJoinError
        If the program cannot be read.
    """
    try:
        source = Path(program).read_bytes()
    except OSError as problem:
        raise GpuJoinError(f"the program cannot be read: {problem}") from problem
    recorder = _Recorder(program)
    stopped = None
    try:
        with _planning_only(recorder):
            execute(program, source, arguments)
    except SystemExit as end:
        stopped = f"it exited with {end.code!r}" if end.code not in (None, 0) else None
    except BaseException as problem:  # noqa: BLE001 - told with the advice
        stopped = _description(problem, program)
    costs = Costs()
    return Advice(
        program=program, queries=tuple(recorder.queries), skipped=tuple(recorder.skipped), stopped=stopped,
        start_seconds=costs.start, spark_start_seconds=costs.spark_start,
    )  # fmt: skip


def _description(problem: BaseException, program: str) -> str:
    path = os.path.realpath(program)
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(problem.__traceback__)
        if os.path.realpath(frame.filename) == path
    ]
    place = f" at {Path(program).name}:{lines[-1]}" if lines else ""
    message = f"{type(problem).__name__}{place}: {first_line(problem)}"
    if _NO_JAVA in message and (java_check := java()).status is Status.MISSING:
        message += f" ({java_check.finding}: {java_check.advice})"
    return message


@contextmanager
def _planning_only(recorder: _Recorder) -> Iterator[None]:
    """Replace actions by the planning of their queries."""
    from pyspark import RDD, SparkContext
    from pyspark.sql import DataFrameWriter, DataFrameWriterV2, SparkSession
    from pyspark.sql.classic.dataframe import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    results: dict[str, Callable[[Any], Any]] = {
        "collect": lambda _: [], "toLocalIterator": lambda _: iter(()), "tail": lambda _: [],
        "count": lambda _: 0, "isEmpty": lambda _: True, "foreach": lambda _: None, "foreachPartition": lambda _: None,
        "show": lambda _: None, "explain": lambda _: None, "toArrow": _empty_arrow, "toPandas": _empty_pandas,
        "checkpoint": lambda frame: frame, "localCheckpoint": lambda frame: frame,
    }  # fmt: skip

    def planned(name: str, result: Callable[[Any], Any]) -> Callable[..., Any]:
        def action(self: Any, *arguments: Any, **named: Any) -> Any:
            recorder.plan(_QUERIES[name](self, *arguments, **named) if name in _QUERIES else self, name)
            return result(self)

        return action

    def refused(name: str) -> Callable[..., Any]:
        def action(self: Any, *_: Any, **__: Any) -> Any:
            recorder.plan(self, name)
            raise NotRunError(f"{name}() needs the rows of its query, which was not run")

        return action

    def written(name: str) -> Callable[..., Any]:
        return lambda self, *_, **__: recorder.plan(self._df, name)

    def no_job(*_: Any, **__: Any) -> Any:
        raise NotRunError("a job of an RDD was not run")

    def no_stream(*_: Any, **__: Any) -> Any:
        recorder.skip("a stream")
        raise NotRunError("a stream was not started; gpujoin.explain shows how its joins would run")

    replaced: list[tuple[Any, str, Any]] = [
        *((DataFrame, name, planned(name, result)) for name, result in results.items()),
        *((DataFrame, name, refused(name)) for name in _NEEDING_ROWS),
        *((writer, name, written(name)) for writer in (DataFrameWriter, DataFrameWriterV2) for name in _WRITERS),
        *((DataStreamWriter, name, no_stream) for name in ("start", "toTable")),
        *((RDD, name, no_job) for name in dir(RDD) if name in _OF_RDDS or name.startswith("saveAs")),
        (SparkContext, "runJob", no_job),
        (SparkSession, "sql", _sql(SparkSession.sql, recorder)),
        (hooks, "_install", lambda: None),  # a program's own gpujoin plans no query either
    ]
    with ExitStack() as stack:
        for owner, name, replacement in replaced:
            if hasattr(owner, name):
                stack.enter_context(_replace(owner, name, replacement))
        yield


_MISSING = object()


@contextmanager
def _replace(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    """Replace an attribute; an inherited one is inherited again afterwards."""
    before = vars(owner).get(name, _MISSING)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if before is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _sql(original: Callable[..., Any], recorder: _Recorder) -> Callable[..., Any]:
    """Have statements that are no queries, and change more than the session, planned and not run."""

    @functools.wraps(original)
    def sql(self: Any, sqlQuery: str, *arguments: Any, **named: Any) -> Any:  # noqa: N803 - PySpark's name
        plan = java_session(self).sessionState().sqlParser().parsePlan(sqlQuery)
        name = str(plan.getClass().getSimpleName())
        if name in _HARMLESS or not _is_command(self, plan):
            return original(self, sqlQuery, *arguments, **named)
        query = _query_of(plan)
        if query is None:
            recorder.skip(" ".join(sqlQuery.split())[:60])
        else:
            recorder.plan(dataframe_of(self, query), name)
        return self.createDataFrame([], "nothing string")

    return sql


def _is_command(spark: Any, plan: Any) -> bool:
    classes = gateway_of(spark).java.lang.Class
    return any(bool(classes.forName(name).isInstance(plan)) for name in (_COMMAND, _PARSED))


def _query_of(plan: Any) -> Any:
    """Give the query of an ``INSERT`` or a ``CREATE TABLE … AS``; ``None`` for any other command."""
    methods = {str(method.getName()) for method in plan.getClass().getMethods()}
    return plan.query() if "query" in methods else None


def _empty_arrow(frame: Any) -> Any:
    from gpujoin.spark.compat import arrow_schema

    return arrow_schema(frame.schema).empty_table()


def _empty_pandas(frame: Any) -> Any:
    return _empty_arrow(frame).to_pandas()
