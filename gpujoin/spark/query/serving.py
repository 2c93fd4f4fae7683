"""Runs the planned queries of Spark Connect's clients.

A client's action is executed by the server in the JVM, which sends rows while tasks run, and around which no function
of PySpark's stands. So a planned query runs while it is planned, and the server sends rows that are there::

    client                 server (JVM)                        here
    df.collect()      ►    optimizes the query, asks      ►    plans it, and runs the plan
                           LocalRelation (25 rows)        ◄    its rows
    25 rows           ◄    sends them

Where a task of gpujoin fails, no row has been sent: Spark runs its own query. Rows that are estimated to be many stay
on the executors' disks until the server has sent them (`staging`).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from gpujoin.report.explanation import Explanation
from gpujoin.report.messages import written
from gpujoin.report.metrics import reports_of
from gpujoin.report.outcomes import explanation_of_parts
from gpujoin.report.streams import explain_stream
from gpujoin.spark.jvm.compiled import shared_instance
from gpujoin.spark.jvm.gateway import frame_of, gateway_of, java_session
from gpujoin.spark.query.accelerate import Purpose, rewrite
from gpujoin.spark.query.actions import Action
from gpujoin.spark.query.staging import stage_write, with_fallback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from gpujoin.spark.query.accelerate import PlannedQuery

_MOST_BYTES = 64 << 20
"""Most bytes of rows, as Spark estimates them, that are computed in the driver. The server itself holds the rows of a
query there, in Arrow batches, until the client has taken them."""


class Question(Enum):
    """What a client asks about a DataFrame."""

    EXPLAIN = "explain"
    METRICS = "metrics"


def server_of(spark: SparkSession) -> Any:
    """Give the ``ConnectServer`` of a session's driver."""
    return shared_instance(gateway_of(spark), "ConnectServer")


def serve(spark: SparkSession, planned: PlannedQuery, query: Any, rule: Any) -> Any:
    """Run the planned query of a client, and give the plan that reads its rows.

    ``None`` if it failed and Spark is to run its own; errors are those of
    :func:`~gpujoin.spark.query.staging.with_fallback`.
    """
    action = Action(spark)
    action.name_jobs(planned.explanation)
    try:
        server, session = server_of(spark), java_session(spark)
        if not server.areFew(planned.plan, _MOST_BYTES):
            return stage_write(spark, planned.plan, query, rule)
        relation = with_fallback(spark, planned.plan, lambda: server.collect(session, planned.plan))
        return None if relation is None else rule.withOutputOf(query, relation)
    finally:
        action.restore_description()


def note_operation(spark: SparkSession, name: str) -> None:
    """Note under which name the explanation is kept of a query that this thread's client runs, if it has one."""
    server_of(spark).note(java_session(spark), name)


def answer(spark: SparkSession, dataset: Any, question: Question, names: Sequence[str], rule: Any) -> str:
    """Answer what a client asks about a ``Dataset``, as JSON; ``names``: of the explanations of its latest run."""
    frame = frame_of(spark, dataset)
    match question:
        case Question.METRICS:
            return written(reports_of(spark.sparkContext, explanation_of_parts(names) or Explanation()))
        case Question.EXPLAIN if frame.isStreaming:
            return written(explain_stream(frame, rule))
        case Question.EXPLAIN:
            return written(rewrite(frame, Purpose.EXPLAIN).explanation)
