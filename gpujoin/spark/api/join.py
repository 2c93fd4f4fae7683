"""The public functions on Spark DataFrames: :func:`gpu_join` and :func:`explain`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Never

from pyspark.sql import Column, DataFrame

from gpujoin.errors import GpuJoinError, JoinSpecError, type_name
from gpujoin.report.explanation import Explanation
from gpujoin.report.outcomes import explanation_of, new_join_id
from gpujoin.report.parts import joins_in
from gpujoin.report.streams import explain_stream
from gpujoin.spark.compat import check_running, is_connect
from gpujoin.spark.jvm.compiled import new_instance
from gpujoin.spark.jvm.gateway import analyzed_plan, dataframe_of, gateway_of, logical_plan
from gpujoin.spark.query.accelerate import Purpose, rewrite
from gpujoin.spark.query.hooks import is_disabled_by_operator, plan_gpu_joins
from gpujoin.spark.query.native import rule_of
from gpujoin.spark.resources import check_resources
from gpujoin.spark.settings import check_backend, join_options, session_conf

if TYPE_CHECKING:
    from gpujoin.config import BackendChoice, BackendChoiceName, Strategy, StrategyName
    from gpujoin.model.jointype import SparkJoinName


def gpu_join(
    left: DataFrame,
    right: DataFrame,
    on: str | list[str] | Column | list[Column] | None = None,
    how: SparkJoinName | None = None,
    *,
    strategy: Strategy | StrategyName | None = None,
    backend: BackendChoice | BackendChoiceName | None = None,
    **unknown: Never,
) -> DataFrame:
    """Join two DataFrames as ``left.join(right, on, how)`` does, by gpujoin's engine.

    The meaning is Spark's to the letter: rows, column names, order, nullability and metadata, and its errors. The join
    is Spark's own with a hint, and is planned with the query that it becomes a part of, as :func:`enable` has queries
    planned: filters, joins and aggregations written after it count. What gpujoin does not cover, or is predicted to do
    slower than Spark, Spark does; :func:`explain` says why. Settings count when the query is planned.

    Parameters
    ----------
    left, right : DataFrame
        Two DataFrames of one session, classic or Spark Connect.
    on : str, list of str, Column, list of Column, optional
        Names of columns that both sides have, or conditions. Over Spark Connect: names only.
    how : str, optional
        Any of Spark's spellings of a join type; ``"inner"`` by default.
    strategy : Strategy or str, optional
        ``"broadcast"``, ``"shuffle"``, ``"nested_loop"``, ``"spark"`` or ``"auto"``; overrides
        ``spark.gpujoin.strategy``. Any but ``"auto"`` also overrides the prediction that Spark is faster.
    backend : BackendChoice or str, optional
        ``"gpu"``, ``"cpu"`` or ``"auto"``; overrides ``spark.gpujoin.backend``, and any but ``"auto"`` the
        prediction that Spark is faster.

    Returns
    -------
    DataFrame
        With the schema of ``left.join(right, on, how)``. Columns of ``left`` and ``right`` go on to resolve in it.

    Raises
    ------
    pyspark.errors.AnalysisException
        Whatever Spark raises for this join: unknown columns, ambiguity, mismatched types, unknown join type.
    ConfigurationError
        If a strategy, backend or setting is unknown or absurd, or the session can start no task (local mode with
        ``spark.task.resource.*``).
    BackendUnavailableError
        If the GPU is asked for and cannot be there; on a cluster the workers, not the driver, decide.
    GpuJoinError
        If a session has been stopped.
    JoinSpecError
        If ``left`` or ``right`` is no DataFrame, ``on`` is neither a name, nor a Column, nor a list of them, or
        ``how`` is no text.
    FallbackError
        By the actions of a query: if the join is left to Spark and ``spark.gpujoin.fallback`` is ``raise``. Over Spark
        Connect by this call.
    ProductSizeError
        By the actions of a query, and by :func:`explain`: if there are neither keys nor ranges, and by Spark's
        estimates more pairs than ``spark.gpujoin.maxProductRows``.

    Examples
    --------
    >>> joined = gpu_join(orders, lineitem, on="orderkey", how="left", strategy="shuffle")  # doctest: +SKIP
    """
    for side, frame in (("left", left), ("right", right)):
        if not isinstance(frame, DataFrame):
            raise JoinSpecError(f"{side} must be a Spark DataFrame, got {type_name(frame)}")
        check_running(frame.sparkSession, "gpu_join()")
    _check_arguments(on, how, unknown)
    spark = left.sparkSession
    conf = session_conf(spark)
    options = join_options(conf, strategy, backend)
    check_backend(conf, options)
    check_resources(conf)
    if is_disabled_by_operator():
        return left.join(right, on, how)
    if is_connect(spark):
        is_asked_for = strategy is not None or backend is not None
        result: DataFrame = _connect().join(
            left, right, on, how, conf=conf, options=options, join_id=new_join_id(), is_asked_for=is_asked_for
        )
        return result
    hint = [
        None if argument is None else option.value
        for argument, option in ((strategy, options.strategy), (backend, options.backend))
    ]
    joined = left.join(_hinted(right, *hint), on, how)
    plan_gpu_joins(spark)
    return joined


def _check_arguments(on: object, how: object, unknown: Mapping[str, object]) -> None:
    """Refuse arguments unknown to Spark, such as those of other libraries, and say what to write instead."""
    if unknown:
        names = ", ".join(unknown)
        keys = {"left_on", "right_on", "by", "left_by", "right_by"} & unknown.keys()
        advice = "; where key columns have different names, write on=left.a == right.b" if keys else ""
        raise JoinSpecError(f"gpu_join() takes no argument {names}{advice}")
    if how is not None and not isinstance(how, str):
        raise JoinSpecError(f"how must be the name of a join type such as 'left', got {how!r}")
    if isinstance(on, list) and not on:
        raise JoinSpecError("on is an empty list; for all pairs of rows leave it out and write how='cross'")
    entries = on if isinstance(on, list) else [] if on is None else [on]
    for entry in entries:
        if not isinstance(entry, (str, Column)):
            listed = f"; write on={list(entry)!r}" if isinstance(entry, tuple) else ""
            everything = "; for all pairs of rows leave it out and write how='cross'" if entry is True else ""
            raise JoinSpecError(
                f"on must be a column's name, a Column, or a list of either, got {on!r}{listed}{everything}"
            )


def _hinted(frame: DataFrame, strategy: str | None, backend: str | None) -> DataFrame:
    """Give the right side of a join the hint by which the optimizer rule knows the join."""
    spark = frame.sparkSession
    names = gateway_of(spark)
    hint = new_instance(names, "GpuJoinHint", strategy, backend)
    logical = names.org.apache.spark.sql.catalyst.plans.logical
    return dataframe_of(spark, logical.ResolvedHint(logical_plan(frame), hint))


def explain(frame: DataFrame) -> Explanation:
    """Say of every join in a DataFrame's plan how it is run, by whom, and why.

    Of a result of :func:`accelerate`, of a query with a :func:`gpu_join`, and of any DataFrame of a session that
    :func:`enable` is in force for, it says how the whole query is run; nothing runs for it. Of a stream it says how its
    join of streams is run in each micro-batch, and how long rows are kept.

    Parameters
    ----------
    frame : DataFrame
        Any DataFrame: a result of :func:`gpu_join`, something made from one, or neither.

    Returns
    -------
    Explanation
        ``str()`` is a tree; ``joins`` lists the joins, each before those that feed it. Joins that Spark runs are
        listed with backend ``"spark"``.

    Raises
    ------
    GpuJoinError
        If ``frame`` is no DataFrame, or its session has been stopped.
    """
    if not isinstance(frame, DataFrame):
        raise GpuJoinError(f"explain() takes a Spark DataFrame, got {type_name(frame)}")
    spark = frame.sparkSession
    check_running(spark, "explain()")
    if is_connect(spark):
        explanation: Explanation = _connect().explain(frame)
        return explanation
    planned = explanation_of(frame)
    if planned is not None:
        return planned
    rule, plan = rule_of(spark), analyzed_plan(frame)
    concerned = rule is not None and rule.isConcernedWith(plan)
    if concerned and frame.isStreaming:
        return explain_stream(frame, rule)
    if concerned:
        return rewrite(frame, Purpose.EXPLAIN).explanation
    return Explanation(joins_in(plan))


def _connect() -> Any:
    """Import the Connect front end, whose packages classic sessions do not need."""
    return importlib.import_module("gpujoin.spark.api.connect")
