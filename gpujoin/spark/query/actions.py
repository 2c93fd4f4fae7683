"""Keeps what was planned for running actions, and describes their jobs.

While an action of a query with islands runs, its jobs are described by what the islands do, in Spark's UI, its event
log and its status store::

    job description    none             gpujoin: scan orders, join lineitem, aggregate
                       nightly report   nightly report (gpujoin: scan orders, join lineitem, aggregate)
    stage name         collect at app.py:12

Then the description is again what the program has set.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from gpujoin.logs import log
from gpujoin.report.islands import jobs_name
from gpujoin.report.outcomes import explanation_of_latest, note_query
from gpujoin.spark.jvm.gateway import java_context, jvm_thread
from gpujoin.spark.query.native import rule_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gpujoin.report.explanation import Explanation

_DESCRIPTION = "spark.job.description"


class _Thread(threading.local):
    depth = 0


_thread = _Thread()
_running: dict[int, Action] = {}
"""Actions, by the JVM's thread that plans and runs their queries."""


class Action:
    """An action of a query while it runs.

    Parameters
    ----------
    spark : SparkSession
        The session of the query.

    Attributes
    ----------
    names : list of str
        Under which the explanations are kept of what was planned for it.
    was_planned : bool
        Whether Spark has asked for a plan since it began; a DataFrame that has run may keep its plan.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._description: str | None = None
        self._is_named = False
        self.names: list[str] = []
        self.was_planned = False

    def name_jobs(self, explanation: Explanation) -> None:
        """Describe the jobs that begin from now on by the operations of islands."""
        name = jobs_name(explanation.islands)
        if not self._is_named:
            self._description = self._spark.sparkContext.getLocalProperty(_DESCRIPTION)
            self._is_named = True
        self._describe(f"{self._description} ({name})" if self._description else name)

    def restore_description(self) -> None:
        """Describe jobs as the program does; more than once is as good as once."""
        if self._is_named:
            self._is_named = False
            self._describe(self._description)

    def _describe(self, text: str | None) -> None:
        try:
            java_context(self._spark.sparkContext).setLocalProperty(_DESCRIPTION, text)
        except (Py4JError, OSError, AttributeError):  # the application has ended
            log.debug("the description of jobs could not be set", exc_info=True)


def is_inside() -> bool:
    """Tell whether this thread is within an action, or planning; what it then runs concerns nobody else."""
    return _thread.depth > 0


@contextmanager
def inside() -> Iterator[None]:
    """Mark that this thread is within an action, or planning."""
    _thread.depth += 1
    try:
        yield
    finally:
        _thread.depth -= 1


@contextmanager
def running(frame: DataFrame) -> Iterator[Action]:
    """Note what is planned for an action of a query while it runs, and name its jobs.

    Planning itself takes place in another thread: py4j has one for each of the JVM's that calls Python.
    """
    spark = frame.sparkSession
    action = Action(spark)
    thread = jvm_thread(spark)
    if thread is None:
        yield action
        return
    explanation = explanation_of_latest(frame)
    if explanation is not None and rule_of(spark) is None:
        explanation = None  # what was planned then is not used any more
    _running[thread] = action
    try:
        if explanation is not None:
            action.name_jobs(explanation)
        yield action
    finally:
        _running.pop(thread, None)
        action.restore_description()
        if action.was_planned or explanation is None:
            note_query(frame, action.names)


def action_of(thread: int) -> Action | None:
    """Give the action for which a thread of the JVM plans; ``None`` if there is none."""
    return _running.get(thread)
