"""Asks a Spark Connect server what its gpujoin makes of a client's DataFrames.

A server that runs gpujoin (``gpujoin connect-server``) plans the queries of its clients itself (`query/serving`), so a
client asks it where a classic session would look into its own JVM. Other servers refuse the question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyspark.errors import PySparkException

from gpujoin.errors import GpuJoinError
from gpujoin.report.messages import parse_explanation, parse_reports
from gpujoin.spark.jvm.gateway import ask_server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from gpujoin.report.explanation import Explanation
    from gpujoin.report.metrics import IslandReports

HOW_TO_SERVE = (
    "`gpujoin connect-server` starts one, and so does spark.gpujoin.enabled=true where it runs in a PySpark driver"
)
"""What is to be done where a server does not plan queries with gpujoin."""
_QUESTION = "gpujoin/"
_UNKNOWN = "No handler found for extension"
_plans: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
"""Whether the servers of sessions plan queries with gpujoin, once asked."""


def plans_queries(spark: Any) -> bool:
    """Tell whether a session's server plans its queries with gpujoin; asked once."""
    if spark not in _plans:
        _plans[spark] = _answer("explain", spark.range(0)) is not None
    return _plans[spark]


def explain(frame: DataFrame) -> Explanation | None:
    """Give what the server makes of a query; ``None`` if it does not plan queries with gpujoin."""
    text = _answer("explain", frame)
    return None if text is None else parse_explanation(text)


def metrics(frame: DataFrame) -> IslandReports:
    """Do what :func:`gpujoin.metrics` does, for Spark Connect."""
    text = _answer("metrics", frame)
    if text is None:
        raise GpuJoinError(
            f"metrics() asks the Spark Connect server, which does not plan queries with gpujoin: {HOW_TO_SERVE}. Of a "
            "gpu_join that runs without it nothing is told"
        )
    return parse_reports(text)


def _answer(question: str, frame: Any) -> str | None:
    try:
        return ask_server(frame.sparkSession, _QUESTION + question, frame)
    except PySparkException as problem:
        if _UNKNOWN in str(problem):
            return None
        raise
