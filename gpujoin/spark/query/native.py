"""Queries as Spark runs them by itself, in sessions whose optimizer has gpujoin's rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpujoin.spark.jvm.compiled import byte_exchange, plan_reader
from gpujoin.spark.jvm.gateway import (
    analyzed_plan,
    clone_session,
    dataframe_in,
    gateway_of,
    items,
    java_context,
    java_session,
    optimized_plan,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def rule_of(spark: SparkSession) -> Any:
    """Give the optimizer rule of a classic session, its own or a cloned one; ``None`` if there is none."""
    return plan_reader(gateway_of(spark)).rule(java_session(spark))


def native_plan(frame: DataFrame) -> Any:
    """Give the optimized plan of a classic DataFrame as it is without the rule."""
    rule = rule_of(frame.sparkSession)
    if rule is None:
        return optimized_plan(frame)
    return rule.optimized(java_session(frame.sparkSession), analyzed_plan(frame))


def native_frame(frame: DataFrame, rule: Any) -> DataFrame:
    """Give a query as Spark runs it by itself, and have Spark cache by itself what it reads from the cache."""
    session = clone_session(frame.sparkSession, rule)
    plan = analyzed_plan(frame)
    _cache_natively(plan, session, rule)
    return dataframe_in(session, plan, frame.sparkSession)


def remove_exchanged(spark: SparkSession, plan: Any) -> None:
    """Remove the exchanged rows of a plan's stages from the disks, to make room for Spark's own."""
    exchange = byte_exchange(gateway_of(spark))
    if exchange is not None:
        exchange.removeExchanged(java_context(spark.sparkContext).sc(), plan)


def _cache_natively(plan: Any, session: Any, rule: Any) -> None:
    """Let Spark compute the rows of cached queries that the rule has planned, when they are next asked for."""
    manager = session.sharedState().cacheManager()
    cached = manager.lookupCachedData(session, plan)
    if cached.isDefined():
        relation = cached.get().cachedRepresentation()
        if not rule.holdsPlanned(relation):
            return
        for child in items(plan.children()):
            _cache_natively(child, session, rule)
        builder = relation.cacheBuilder()
        manager.uncacheQuery(session, plan, False)
        manager.cacheQuery(session, plan, builder.tableName(), builder.storageLevel())
        return
    for inner in (*items(plan.children()), *items(plan.subqueries())):
        _cache_natively(inner, session, rule)
