"""Joins of a stream with tables, in the plans of a stream's micro-batches.

They keep no state: each micro-batch is a query by itself, whose rows of the stream come from Spark, and whether it runs
here is decided anew each time. What Spark does with event times stays in its part of the plan, below and above::

    aggregation by window             Spark, with its state
      join                            here: rows from Spark, and a scan of the table
        event time, watermark         Spark
          stream
        table

A query whose task fails has no other plan, unlike one that is no stream: the stream ends. Spark runs the micro-batch
when it is started again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpujoin.cache import Cache
from gpujoin.logs import log
from gpujoin.report.outcomes import Scope
from gpujoin.spark.query.accelerate import plan_query
from gpujoin.spark.query.planner import StreamFacts
from gpujoin.spark.settings import join_options, session_conf
from gpujoin.streams.microbatches import execution_of, is_in_real_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gpujoin.streams.microbatches import MicroBatch

_MOST_STREAMS = 1000
_planned: Cache[str, tuple[str, int]] = Cache(_MOST_STREAMS)
"""For each stream the run and the number of the last micro-batch that was planned here."""


def plan_with_tables(spark: SparkSession, plan: Any, rule: Any, batch: MicroBatch) -> Any:
    """Give the plan that takes the place of a micro-batch's optimized one; ``None`` where Spark runs its own.

    Raises ``FallbackError`` if a join is left to Spark, not because that is faster, and ``spark.gpujoin.fallback`` is
    ``raise``.
    """
    if not join_options(session_conf(spark), None, None).streaming:
        return None
    running = execution_of(spark, batch)
    if running is None or is_in_real_time(running):
        return None
    if _ended_in(batch):
        log.warning(
            "an earlier run of stream %s ended in micro-batch %d, which gpujoin had planned; Spark runs it this time",
            batch.query, batch.number,
        )  # fmt: skip
        return None
    scope = Scope.EVERY_QUERY if rule.isForEveryQuery() else Scope.GPU_JOINS
    planned = plan_query(spark, plan, rule, scope, StreamFacts(batch.run, _rows_before(running)))
    if not planned.changed:
        return None
    _planned.put(batch.query, (batch.run, batch.number))
    return planned.plan


def _ended_in(batch: MicroBatch) -> bool:
    """Whether another run of the stream has failed, or was stopped, in this micro-batch, planned here."""
    run, number = _planned.get(batch.query) or (batch.run, -1)
    return run != batch.run and number == batch.number


def _rows_before(running: Any) -> float | None:
    """Rows of the stream's last micro-batch that had any; ``None`` if none had."""
    for progress in reversed(running.recentProgress()):
        rows = int(progress.numInputRows())
        if rows:
            return float(rows)
    return None
