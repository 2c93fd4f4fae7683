"""Rewriting a whole query: :func:`accelerate`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from gpujoin.config import Options
from gpujoin.errors import JoinSpecError, ProductSizeError, RequirementError, type_name
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.report.explanation import Explanation
from gpujoin.report.outcomes import (
    Scope,
    explanation_of,
    keep,
    new_join_id,
    note_query,
    query_text,
    reasons_of,
    tell_query,
    text_of,
)
from gpujoin.report.summary import tally_of
from gpujoin.spark.compat import check_running, is_connect, remote_server
from gpujoin.spark.failures import is_survivable, unexpected
from gpujoin.spark.jvm.gateway import dataframe_of, java_session, session_id
from gpujoin.spark.jvm.rewrite import declared, name_query
from gpujoin.spark.query.activity import planning_watched, show_planning
from gpujoin.spark.query.native import native_plan
from gpujoin.spark.query.planner import QueryPlanner, StreamFacts
from gpujoin.spark.resources import check_resources
from gpujoin.spark.settings import check_backend, disabled_reason, join_options, session_conf
from gpujoin.spark.worker.python import note_failure, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession


class Purpose(Enum):
    """What a query is planned for."""

    RUN = "run"
    EXPLAIN = "explain"
    """Nothing runs, not even a subquery whose value planning needs."""


@dataclass(frozen=True)
class Accelerated:
    """What became of a query."""

    frame: DataFrame
    """The rewritten query, or the given one."""
    explanation: Explanation
    """What was decided."""
    changed: bool
    """Whether the query was rewritten."""


@dataclass(frozen=True)
class PlannedQuery:
    """What became of the plan of a query."""

    plan: Any
    """The logical plan that takes its place; meaningless where nothing was changed."""
    explanation: Explanation
    """What was decided."""
    changed: bool = False
    """Whether anything was replaced."""
    name: str = ""
    """Under which the explanation of a changed plan is kept."""


def accelerate(frame: DataFrame) -> DataFrame:
    """Rewrite a query so that gpujoin runs what it can run faster than Spark.

    Every join of the optimized plan is considered, in one pass. Parts of the plan that consist of filters, projections,
    joins and aggregations run in Python workers, from Parquet files and from rows that Spark computes. What is left to
    Spark, and why, is told by :func:`explain`.

    Parameters
    ----------
    frame : DataFrame
        Any DataFrame.

    Returns
    -------
    DataFrame
        With the same rows, schema, column names and order. The given one, where nothing is to be gained; so also for
        streams, and over Spark Connect, where the server plans the query if it can.

    Raises
    ------
    FallbackError
        If ``spark.gpujoin.fallback`` is ``raise`` and a join is left to Spark.
    ConfigurationError
        If a setting is unknown or absurd, or the session can start no task (local mode with ``spark.task.resource.*``).
    BackendUnavailableError
        If the GPU is asked for and cannot be there.
    JoinSpecError
        If ``frame`` is no DataFrame.
    GpuJoinError
        If its session has been stopped.

    Examples
    --------
    >>> accelerate(spark.sql("select ...")).collect()  # doctest: +SKIP
    """
    if not isinstance(frame, DataFrame):
        raise JoinSpecError(f"accelerate() takes a Spark DataFrame, got {type_name(frame)}")
    check_running(frame.sparkSession, "accelerate()")
    return rewrite(frame).frame


def rewrite(frame: DataFrame, purpose: Purpose = Purpose.RUN) -> Accelerated:
    """Plan a query, and rewrite it where that was decided."""
    spark = frame.sparkSession
    conf = session_conf(spark)
    if purpose is Purpose.RUN:
        check_resources(conf)
    options = join_options(conf, None, None)
    check_backend(conf, options)
    if is_connect(spark) and options.enabled and remote_server().plans_queries(spark):
        return Accelerated(frame, Explanation(), changed=False)
    why_not = _leave(frame, options)
    if why_not is not None:
        _tell(spark, Explanation(reasons=(why_not,)), options, purpose, lambda: text_of(frame))
        return Accelerated(frame, Explanation(reasons=(why_not,)), changed=False)
    if explanation_of(frame) is not None:
        return Accelerated(frame, Explanation(), changed=False)

    def planned() -> PlannedQuery:
        return _plan(spark, native, conf, options, purpose, lambda plan: declared(frame, plan))

    with planning_watched():
        show_planning(conf)
        native = native_plan(frame)  # a query that Spark cannot plan ends with Spark's own error
        result = _plan_or_leave(spark, options, purpose, planned, lambda: text_of(frame))
    if not result.changed:
        return Accelerated(frame, result.explanation, changed=False)
    if purpose is Purpose.EXPLAIN:
        return Accelerated(frame, result.explanation, changed=True)
    note_query(frame, [result.name])
    return Accelerated(dataframe_of(spark, result.plan), result.explanation, changed=True)


def plan_query(
    spark: SparkSession,
    plan: Any,
    rule: Any,
    scope: Scope = Scope.EVERY_QUERY,
    stream: StreamFacts | None = None,
) -> PlannedQuery:
    """Plan a query that Spark is optimizing, with the rule suspended; ``stream``: a micro-batch of one.

    Errors are those of :func:`accelerate`.
    """
    conf = session_conf(spark)
    options = join_options(conf, None, None)
    if not options.enabled:
        return PlannedQuery(plan, Explanation())
    check_backend(conf, options)
    if stream is None:
        show_planning(conf)

    def finished(changed: Any) -> Any:
        if not changed.resolved():
            changed = rule.optimized(java_session(spark), changed)
        return rule.withOutputOf(plan, changed)

    def planned() -> PlannedQuery:
        return _plan(spark, plan, conf, options, Purpose.RUN, finished, stream)

    def text() -> str:
        # Plans of micro-batches name what is new in each.
        return query_text(session_id(spark), str(plan.toString()) if stream is None else stream.run)

    return _plan_or_leave(spark, options, Purpose.RUN, planned, text, scope)


def _plan_or_leave(
    spark: SparkSession,
    options: Options,
    purpose: Purpose,
    planned: Callable[[], PlannedQuery],
    text: Callable[[], str],
    scope: Scope = Scope.EVERY_QUERY,
) -> PlannedQuery:
    """Plan a query; whatever unexpected planning meets, Spark's own plan is still right."""
    try:
        result = planned()
    except (ProductSizeError, RequirementError):
        raise
    except BaseException as problem:
        if not is_survivable(problem):
            raise
        note_failure(spark.sparkContext, problem)
        lacking = refusal(spark.sparkContext, session_conf(spark)) if isinstance(problem, ImportError) else None
        if lacking is not None and options.require:
            raise RequirementError(lacking) from problem
        result = PlannedQuery(None, Explanation(reasons=(lacking or unexpected(problem),)))
    _tell(spark, result.explanation, options, purpose, text, scope)
    return result


def _plan(
    spark: SparkSession,
    native: Any,
    conf: Mapping[str, str],
    options: Options,
    purpose: Purpose,
    finished: Callable[[Any], Any],
    stream: StreamFacts | None = None,
) -> PlannedQuery:
    """Plan a query; ``finished`` makes the planner's result what the caller needs."""
    planner = QueryPlanner(spark, conf, options, runs=purpose is Purpose.RUN, stream=stream)
    plan = planner.rewrite(native)
    if not planner.changed or purpose is Purpose.EXPLAIN:
        return PlannedQuery(native, planner.explanation, changed=planner.changed)
    plan = finished(plan)
    name = new_join_id()
    keep(name, planner.explanation)
    name_query(spark, plan, name)
    return PlannedQuery(plan, planner.explanation, changed=True, name=name)


def _tell(
    spark: SparkSession,
    explanation: Explanation,
    options: Options,
    purpose: Purpose,
    text: Callable[[], str],
    scope: Scope = Scope.EVERY_QUERY,
) -> None:
    if purpose is Purpose.RUN:
        if not is_connect(spark):
            tally_of(spark.sparkContext).planned(explanation, reasons_of(explanation, scope))
        tell_query(explanation, options, text, scope)


def _leave(frame: DataFrame, options: Options) -> Reason | None:
    """Why a query is left as it is without a look at its plan."""
    if not options.enabled:
        return disabled_reason()
    if is_connect(frame.sparkSession):
        why = f"the Spark Connect server does not plan queries with gpujoin: {remote_server().HOW_TO_SERVE}"
        return Reason(ReasonKind.UNSUPPORTED, "session", why)
    if frame.isStreaming:
        return Reason(ReasonKind.UNSUPPORTED, "query", "it is a stream")
    return None
