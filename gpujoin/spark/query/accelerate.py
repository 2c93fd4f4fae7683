"""Rewriting a whole query: :func:`accelerate`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from gpujoin.config import Options
from gpujoin.errors import JoinSpecError, ProductSizeError, type_name
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.plan.explain import Explanation
from gpujoin.spark.compat import is_connect
from gpujoin.spark.failures import is_survivable, unexpected
from gpujoin.spark.gateway import analyzed_plan, dataframe_of, gateway_of, optimized_plan, schema_text
from gpujoin.spark.outcomes import keep_query, kept_query, log, new_join_id, note_query, tell_query
from gpujoin.spark.query.planner import QueryPlanner
from gpujoin.spark.resources import check_resources
from gpujoin.spark.rewrite import PlanBuilder, query_tag
from gpujoin.spark.settings import check_backend, join_options, session_conf
from gpujoin.spark.workerpython import note_failure

if TYPE_CHECKING:
    from collections.abc import Mapping


class Purpose(Enum):
    """What a query is planned for."""

    RUN = "run"
    EXPLAIN = "explain"
    """Nothing runs, not even a subquery whose value planning needs."""


@dataclass(frozen=True)
class Accelerated:
    """What became of a query.

    Attributes
    ----------
    frame : DataFrame
        The rewritten query, or the given one.
    explanation : Explanation
        What was decided.
    changed : bool
        Whether the query was rewritten.
    """

    frame: DataFrame
    explanation: Explanation
    changed: bool


def accelerate(frame: DataFrame) -> DataFrame:
    """Rewrite a query so that gpujoin runs what it can run faster than Spark.

    Every join of the optimized plan is considered, in one pass. Parts of the plan that consist of Parquet files,
    filters, projections, joins and aggregations run in Python workers from the files on; other joins are replaced one
    by one as :func:`gpu_join` does. What is left to Spark, and why, is told by :func:`explain`.

    Parameters
    ----------
    frame : DataFrame
        Any DataFrame.

    Returns
    -------
    DataFrame
        With the same rows, schema, column names and order. The given one, where nothing is to be gained; so also for
        streams and over Spark Connect.

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

    Examples
    --------
    >>> accelerate(spark.sql("select ...")).collect()  # doctest: +SKIP
    """
    if not isinstance(frame, DataFrame):
        raise JoinSpecError(f"accelerate() takes a Spark DataFrame, got {type_name(frame)}")
    check_resources(session_conf(frame.sparkSession))
    return rewrite(frame).frame


def rewrite(frame: DataFrame, purpose: Purpose = Purpose.RUN, origin: DataFrame | None = None) -> Accelerated:
    """Plan a query, and rewrite it where that was decided.

    Parameters
    ----------
    frame : DataFrame
        Any DataFrame.
    purpose : Purpose
        What for.
    origin : DataFrame, optional
        What the user knows the query by, for metrics; by default the query itself.
    """
    spark = frame.sparkSession
    conf = session_conf(spark)
    options = join_options(conf, None, None)
    check_backend(conf, options)
    why_not = _untouched(frame, options)
    if why_not is not None:
        return _left(frame, options, why_not, purpose)
    if explanation_of(frame) is not None:
        return Accelerated(frame, Explanation(), changed=False)
    try:
        found = _rewritten(frame, conf, options, purpose, origin or frame)
    except ProductSizeError:
        raise
    except BaseException as problem:  # whatever else planning meets, Spark's own plan is still right
        if not is_survivable(problem):
            raise
        note_failure(spark.sparkContext, problem)
        return _left(frame, options, unexpected(problem), purpose)
    if purpose is Purpose.RUN:
        tell_query(found.explanation, options)
    return found


def for_writing(frame: DataFrame, rewritten: DataFrame) -> DataFrame:
    """Give the DataFrame to be written in the place of another.

    The original query stays in the plan, filtered by ``false``, so that Spark can still refuse to overwrite what is
    being read. Spark's optimizer removes it.

    Parameters
    ----------
    frame : DataFrame
        The given query.
    rewritten : DataFrame
        What it was rewritten to.
    """
    try:
        plan = PlanBuilder(frame.sparkSession).beside(analyzed_plan(frame), analyzed_plan(rewritten))
        result = dataframe_of(frame.sparkSession, plan)
        return result if schema_text(result) == schema_text(frame) else frame
    except BaseException as problem:  # whatever else planning meets, Spark's own plan is still right
        if not is_survivable(problem):
            raise
        log.debug("a query to be written is left to Spark", exc_info=True)
        return frame


def _left(frame: DataFrame, options: Options, reason: Reason, purpose: Purpose) -> Accelerated:
    explanation = Explanation(reasons=(reason,))
    if purpose is Purpose.RUN:
        tell_query(explanation, options)
    return Accelerated(frame, explanation, changed=False)


def _rewritten(
    frame: DataFrame, conf: Mapping[str, str], options: Options, purpose: Purpose, origin: DataFrame
) -> Accelerated:
    spark = frame.sparkSession
    planner = QueryPlanner(spark, conf, options, runs=purpose is Purpose.RUN)
    native = optimized_plan(frame)
    plan = planner.rewrite(native)
    explanation = planner.explanation
    if not planner.changed:
        return Accelerated(frame, explanation, changed=False)
    result = dataframe_of(spark, plan)
    if schema_text(result) != schema_text(frame):
        result = dataframe_of(spark, PlanBuilder(spark).declared(plan, result.schema, frame.schema))
    if schema_text(result) != schema_text(frame):
        raise JoinSpecError(f"the rewritten query has schema {result.schema}, not {frame.schema}")
    _note(result, explanation, origin)
    return Accelerated(result, explanation, changed=True)


def _untouched(frame: DataFrame, options: Options) -> Reason | None:
    """Why a query is left as it is without a look at its plan."""
    if not options.enabled:
        return Reason(ReasonKind.CONFIGURED, "settings", "gpujoin is switched off", "spark.gpujoin.enabled")
    if is_connect(frame.sparkSession):
        return Reason(
            ReasonKind.UNSUPPORTED, "session", "Spark Connect does not hand out plans; use gpu_join"
        )
    if frame.isStreaming:
        return Reason(ReasonKind.UNSUPPORTED, "query", "it is a stream")
    return None


def _note(result: DataFrame, explanation: Explanation, origin: DataFrame) -> None:
    name = new_join_id()
    keep_query(name, explanation)
    note_query(origin, name)
    analyzed_plan(result).setTagValue(query_tag(gateway_of(result.sparkSession)), name)


def explanation_of(frame: DataFrame) -> Explanation | None:
    """Give what was decided about a result of :func:`accelerate`; ``None`` for any other DataFrame."""
    found: Any = analyzed_plan(frame).getTagValue(query_tag(gateway_of(frame.sparkSession)))
    return kept_query(str(found.get())) if found.isDefined() else None
