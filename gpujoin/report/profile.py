"""Runs a query by Spark alone and with gpujoin, and shows where the time goes: :func:`profile`."""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
from pyspark.sql import DataFrame

from gpujoin.errors import GpuJoinError, type_name
from gpujoin.report.amounts import show_rows, show_seconds
from gpujoin.report.explanation import QueryReport, html_page
from gpujoin.report.metrics import IslandReports, metrics
from gpujoin.report.outcomes import explanation_of
from gpujoin.spark.compat import check_running, is_connect
from gpujoin.spark.jvm.gateway import (
    analyzed_plan,
    class_of,
    clone_session,
    dataframe_in,
    dataframe_of,
    gateway_of,
    java_session,
    logical_plan,
    planning_seconds,
)
from gpujoin.spark.query.accelerate import Purpose, rewrite
from gpujoin.spark.query.native import rule_of
from gpujoin.testing import assert_same_rows

FORMAT = 1
"""Version of the form of :meth:`QueryProfile.to_dict`."""
_BAR = 30
_RELATIVE = 1e-9
"""How far sums of floats may be apart that were added up in another order."""
_COMMAND_RESULT = "org.apache.spark.sql.catalyst.plans.logical.CommandResult"


class Activity(Enum):
    """What the time of a query goes to."""

    PLANNING = "planning"
    """Spark's planning, with gpujoin's part of it."""
    READING = "reading"
    """Reading and decoding files."""
    COMPUTING = "computing"
    """Filters, projections, windows, sorts and limits."""
    JOINING = "joining"
    AGGREGATING = "aggregating"
    WAITING = "waiting for rows"
    """Taking in rows from Spark or from an exchange, and waiting for a GPU."""
    TRANSFER = "transfer to Spark"
    """Giving rows to Spark or to an exchange."""
    SPARK = "Spark"
    """The rest: starting tasks, Spark's own operators, exchanges, and fetching the result to the driver."""


class Equality(Enum):
    """How the rows of both ways compare."""

    EQUAL = "equal"
    NEARLY = "equal but for the last digits of floating-point numbers"
    """Sums of floats depend on the order of the rows, in Spark alone too."""
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryProfile:
    """Where the time of a query goes, with gpujoin and without.

    ``str()`` is text, notebooks show the same, and :meth:`to_dict` is for programs.

    Attributes
    ----------
    rows : int
        Rows of the result.
    equality : Equality
        How the rows of both ways compare.
    difference : str or None
        The first rows that differ, if some do.
    gpujoin_seconds, spark_seconds : tuple of float
        Seconds of each run, in order, with gpujoin and by Spark alone.
    activities : mapping of Activity to float
        Where the seconds of the quickest run with gpujoin went.
    report : QueryReport
        The operations of that run, with what was predicted and measured.
    """

    rows: int
    equality: Equality
    gpujoin_seconds: tuple[float, ...]
    spark_seconds: tuple[float, ...]
    activities: Mapping[Activity, float]
    report: QueryReport
    difference: str | None = None

    @property
    def speedup(self) -> float:
        """How many times as fast the query is with gpujoin: by the medians of the runs."""
        return statistics.median(self.spark_seconds) / statistics.median(self.gpujoin_seconds)

    @property
    def ran_here(self) -> bool:
        """Whether gpujoin ran any part of the query."""
        return self.report.has_run

    @property
    def verdict(self) -> str:
        """Say in a sentence what came of it."""
        here, spark = statistics.median(self.gpujoin_seconds), statistics.median(self.spark_seconds)
        times = f"{show_seconds(here)} s with gpujoin, {show_seconds(spark)} s by Spark alone"
        runs = len(self.spark_seconds)
        median = f" (medians of {runs} runs)" if runs > 1 else ""
        if not self.ran_here:
            return f"{times}{median}: gpujoin ran nothing of it"
        factor = self.speedup
        how = f"{factor:.1f} times as fast" if factor >= 1 else f"{1 / factor:.1f} times as slow"
        return f"{times}{median}: {how}"

    def __str__(self) -> str:
        result = "1 row" if self.rows == 1 else f"{show_rows(self.rows)} rows"
        lines = [self.verdict, f"rows: {result}, {self.equality.value}"]
        if self.difference is not None:
            lines += [f"  {line}" for line in self.difference.splitlines()]
        lines += ["", "seconds with gpujoin, of its quickest run", *self._bars(), "", str(self.report)]
        return "\n".join(lines)

    def _bars(self) -> list[str]:
        whole = sum(self.activities.values()) or 1.0
        positive = {activity: seconds for activity, seconds in self.activities.items() if seconds > 0}
        width = max((len(activity.value) for activity in positive), default=0)
        return [
            f"{activity.value.ljust(width)}  {show_seconds(seconds).rjust(6)}  {'█' * round(_BAR * seconds / whole)}"
            for activity, seconds in positive.items()
        ]

    def _repr_html_(self) -> str:
        return html_page(self)

    def to_dict(self) -> dict[str, Any]:
        """Give the profile as dictionaries, lists, texts and numbers, as the guide describes them."""
        return {
            "format": FORMAT,
            "rows": self.rows,
            "equality": self.equality.value,
            "difference": self.difference,
            "gpujoin_seconds": list(self.gpujoin_seconds),
            "spark_seconds": list(self.spark_seconds),
            "speedup": self.speedup,
            "activities": {activity.value: seconds for activity, seconds in self.activities.items()},
            "report": self.report.to_dict(),
        }

    def to_json(self, *, indent: int | None = None) -> str:
        """Give :meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)


_ACTIVITIES = {
    "Scan": Activity.READING, "Join": Activity.JOINING, "PartialAggregate": Activity.AGGREGATING,
    "ExchangeSource": Activity.WAITING, "output": Activity.TRANSFER,
}  # fmt: skip
"""Activities by the kind of an operation in metrics; all others compute."""


@dataclass(frozen=True)
class _Run:
    """One run of a query."""

    rows: pa.Table
    seconds: float
    planning: float
    reports: IslandReports = field(default_factory=IslandReports)
    """Reports of the stages that gpujoin ran."""


def profile(frame: DataFrame, *, repeats: int = 3) -> QueryProfile:
    """Run a query by Spark alone and with gpujoin, compare the rows, and show where the time goes.

    Both ways are run in turns. All rows of the result come to the driver each time. With gpujoin the query runs as in
    a session that :func:`gpujoin.enable` is in force for; a session that is not enabled stays so. Runs that are left to
    Spark, as the first ones of an application often are, do not count as runs with gpujoin if others ran here.

    Parameters
    ----------
    frame : DataFrame
        A query of a classic session. Nothing may depend on how often it runs: Python functions with effects run again.
    repeats : int
        How often the query runs each way.

    Returns
    -------
    QueryProfile
        ``print`` and notebooks show it; ``to_dict()`` is for programs.

    Raises
    ------
    GpuJoinError
        If ``frame`` is no DataFrame, a streaming one, one of Spark Connect, a command or a result of
        :func:`gpujoin.accelerate`; if ``repeats`` is no number from 1 on; if the session has been stopped.

    Examples
    --------
    >>> print(gpujoin.profile(spark.sql("select ...")))  # doctest: +SKIP
    """
    _check(frame, repeats)
    by_spark, with_gpujoin = [], []
    for _ in range(repeats):
        by_spark.append(_run_by_spark(frame))
        with_gpujoin.append(_run_here(frame))
    decided = rewrite(frame, Purpose.EXPLAIN).explanation
    if decided.accelerated and not any(run.reports for run in with_gpujoin):
        with_gpujoin.append(_run_here(frame))  # the seconds in which workers start are made up for by now
    equality, difference = compare(with_gpujoin[-1].rows, by_spark[0].rows)
    with_gpujoin = [run for run in with_gpujoin if run.reports] or with_gpujoin
    quickest = min(with_gpujoin, key=lambda run: run.seconds)
    cores = frame.sparkSession.sparkContext.defaultParallelism
    return QueryProfile(
        rows=by_spark[0].rows.num_rows,
        equality=equality,
        difference=difference,
        gpujoin_seconds=tuple(run.seconds for run in with_gpujoin),
        spark_seconds=tuple(run.seconds for run in by_spark),
        activities=_activities(quickest, cores),
        report=quickest.reports.report if quickest.reports else decided,
    )


def _check(frame: object, repeats: object) -> None:
    """Refuse what cannot be profiled."""
    if not isinstance(frame, DataFrame):
        raise GpuJoinError(f"profile() takes a Spark DataFrame, got {type_name(frame)}")
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise GpuJoinError(f"repeats is a whole number from 1 on, got {repeats!r}")
    check_running(frame.sparkSession, "profile()")
    if is_connect(frame.sparkSession):
        raise GpuJoinError(
            "profile() needs a classic session: its runs are timed in the driver. Over Spark Connect explain() and "
            "metrics() tell what the server makes of a query; run it with SparkSession.builder.master(…) to profile it."
        )
    if frame.isStreaming:
        raise GpuJoinError(
            "profile() runs a query that ends, and this DataFrame is a stream. explain() works on streams; profile the "
            "same query over a table that has the rows of a micro-batch."
        )
    if class_of(logical_plan(frame), gateway_of(frame.sparkSession)) == _COMMAND_RESULT:
        raise GpuJoinError(
            "profile() runs a query several times, and this is a command, which has run. Give its query."
        )
    if explanation_of(frame) is not None:
        raise GpuJoinError("profile() takes the query itself, not the result of accelerate()")


def _run_by_spark(frame: DataFrame) -> _Run:
    """Run a query in a clone of its session that has no rule of gpujoin's."""
    spark = frame.sparkSession
    rule = rule_of(spark)
    session = java_session(spark) if rule is None else clone_session(spark, rule)
    return _time(lambda: dataframe_in(session, analyzed_plan(frame), spark))[0]


def _run_here(frame: DataFrame) -> _Run:
    """Run a query as an enabled session does."""
    spark = frame.sparkSession
    enabled = _is_enabled_for(frame)
    run, ran = _time(lambda: dataframe_of(spark, analyzed_plan(frame)) if enabled else rewrite(frame).frame)
    return dataclasses.replace(run, reports=metrics(ran))


def _is_enabled_for(frame: DataFrame) -> bool:
    """Whether the rule of a query's session plans it by itself."""
    rule = rule_of(frame.sparkSession)
    return rule is not None and bool(rule.isConcernedWith(analyzed_plan(frame)))


def _time(make: Callable[[], DataFrame]) -> tuple[_Run, DataFrame]:
    """Make a query, run it, and take the time of both."""
    start = time.perf_counter()
    frame = make()
    planned = time.perf_counter() - start
    rows = frame.toArrow()
    seconds = time.perf_counter() - start
    return _Run(rows, seconds, min(seconds, planned + planning_seconds(frame))), frame


def _activities(run: _Run, cores: int) -> dict[Activity, float]:
    """Divide the seconds of a run among its activities, those of tasks at once among the tasks."""
    seconds = dict.fromkeys(Activity, 0.0)
    seconds[Activity.PLANNING] = run.planning
    for report in run.reports:
        at_once = max(1, min(report.tasks, cores))
        for operation, amount in report.metrics.pipeline.seconds.items():
            activity = _ACTIVITIES.get(operation.split(" ")[0], Activity.COMPUTING)
            seconds[activity] += amount / at_once
        seconds[Activity.WAITING] += report.metrics.joins.wait_seconds / at_once
    seconds[Activity.SPARK] = max(0.0, run.seconds - sum(seconds.values()))
    return seconds


def compare(here: pa.Table, spark: pa.Table) -> tuple[Equality, str | None]:
    """Compare rows, each as often, in any order; a difference is described."""
    try:
        assert_same_rows(here, spark, allow_empty=True)
    except AssertionError as problem:
        if _nearly(here, spark):
            return Equality.NEARLY, None
        return Equality.DIFFERENT, str(problem)
    return Equality.EQUAL, None


def _nearly(here: pa.Table, spark: pa.Table) -> bool:
    """Whether rows differ in the last digits of floats alone."""
    floats = [n for n, field in enumerate(spark.schema) if pat.is_floating(field.type)]
    if not floats or here.num_rows != spark.num_rows or here.schema.types != spark.schema.types:
        return False
    names = [f"c{n}" for n in range(spark.num_columns)]
    others = [(names[n], "ascending") for n in range(spark.num_columns) if n not in floats]
    order = [*others, *((names[n], "ascending") for n in floats)]
    try:
        tables = [table.rename_columns(names).sort_by(order) for table in (here, spark)]
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowInvalid):
        return False  # columns without an order
    first, second = tables
    if first.drop_columns([names[n] for n in floats]) != second.drop_columns([names[n] for n in floats]):
        return False
    return all(_close(first.column(n), second.column(n)) for n in floats)


def _close(first: pa.ChunkedArray[pa.Scalar], second: pa.ChunkedArray[pa.Scalar]) -> bool:
    if first.is_null() != second.is_null():
        return False
    values, expected = (column.to_numpy(zero_copy_only=False).astype(float) for column in (first, second))
    return bool(np.allclose(values, expected, rtol=_RELATIVE, atol=0.0, equal_nan=True))
