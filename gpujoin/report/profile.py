"""Runs a query both ways: :func:`profile`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from gpujoin.errors import GpuJoinError, type_name
from gpujoin.report.compare import compare
from gpujoin.report.metrics import IslandReports, metrics
from gpujoin.report.outcomes import explanation_of
from gpujoin.report.result import Activity, QueryProfile
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

if TYPE_CHECKING:
    import pyarrow as pa

_COMMAND_RESULT = "org.apache.spark.sql.catalyst.plans.logical.CommandResult"
_ACTIVITIES = {
    "Scan": Activity.READING, "Join": Activity.JOINING, "PartialAggregate": Activity.AGGREGATING,
    "ExchangeSource": Activity.WAITING, "output": Activity.TRANSFER,
}  # fmt: skip
"""By the kind of an operation in metrics; all others compute."""


@dataclass(frozen=True)
class _Run:
    """One run of a query."""

    rows: pa.Table
    seconds: float
    planning: float
    reports: IslandReports = field(default_factory=IslandReports)
    """What gpujoin ran of it."""


def profile(frame: DataFrame, *, repeats: int = 3) -> QueryProfile:
    """Run a query by Spark alone and with gpujoin, check that the rows are equal, and show where the time goes.

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
        ``print`` and notebooks show it; ``to_svg()`` is a picture, and ``to_dict()`` is for programs.

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
        report=quickest.reports.report if quickest.reports else decided.report,
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
            "profile() needs a classic session, since Spark Connect does not tell what tasks did. explain() works over "
            "Spark Connect; run the query with SparkSession.builder.master(…) to profile it."
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
    return _timed(lambda: dataframe_in(session, analyzed_plan(frame), spark))[0]


def _run_here(frame: DataFrame) -> _Run:
    """Run a query as an enabled session does."""
    spark = frame.sparkSession
    enabled = _is_enabled_for(frame)
    run, ran = _timed(lambda: dataframe_of(spark, analyzed_plan(frame)) if enabled else rewrite(frame).frame)
    return dataclasses.replace(run, reports=metrics(ran))


def _is_enabled_for(frame: DataFrame) -> bool:
    """Whether the rule of a query's session plans it by itself."""
    rule = rule_of(frame.sparkSession)
    return rule is not None and bool(rule.isConcernedWith(analyzed_plan(frame)))


def _timed(make: Callable[[], DataFrame]) -> tuple[_Run, DataFrame]:
    """Make a query, run it, and take the time of both."""
    start = time.perf_counter()
    frame = make()
    made = time.perf_counter() - start
    rows = frame.toArrow()
    seconds = time.perf_counter() - start
    return _Run(rows, seconds, min(seconds, made + planning_seconds(frame))), frame


def _activities(run: _Run, cores: int) -> dict[Activity, float]:
    """Divide the seconds of a run by what was done; those of tasks that ran at once are divided among them."""
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
