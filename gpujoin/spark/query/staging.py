"""Keeps the rows of a planned query while an action with effects reads them.

A write, ``foreach`` and ``toLocalIterator`` cannot be begun again once they have had an effect. So the query runs
first, and the effect is had from rows that are there. For ``df.write.mode("overwrite").parquet(path)``:

=====================================================================  =====================
step                                                                   what ``path`` holds
=====================================================================  =====================
1. the planned query runs, its rows go to the executors' disks         the old rows
2. Spark deletes ``path``, and writes the rows to it                   the new rows
3. the rows are removed from the executors' disks                      the new rows
=====================================================================  =====================

What fails in step 1 has had no effect: Spark then runs its own query in place of all three. Step 2 is Spark's alone.
Only where it loses an executor are that executor's rows computed again, from the files on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from py4j.protocol import Py4JError

from gpujoin.logs import log
from gpujoin.report.outcomes import give_back, query_text
from gpujoin.spark.failures import Failure, failure_of, final_error
from gpujoin.spark.jvm.compiled import new_instance
from gpujoin.spark.jvm.gateway import clone_session, dataframe_of, gateway_of, local_property, session_id
from gpujoin.spark.query.interrupts import listener_of
from gpujoin.spark.query.native import remove_exchanged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = TypeVar("Rows")

_EXECUTION = "spark.sql.execution.id"
_SETTINGS = {
    # The rows are read once: compressing them costs more than what is saved on the disk (docs/performance.md).
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # What is cached keeps its partitions, as Spark's own cache does it.
    "spark.sql.sources.bucketing.autoBucketedScan.enabled": "false",
}


class StagedRows:
    """The rows of a query, computed, on the disks of Spark's executors.

    They are a cached relation that Spark's cache does not know, so no other query reads them.

    Parameters
    ----------
    spark : SparkSession
        A classic session.
    plan : py4j object
        A logical plan, which is optimized as Spark does it by itself. Its rows are computed here, by a job that touches
        nothing else; they have the partitions, and the order within them, that the plan gives them.
    rule : py4j object
        The optimizer rule of the session.

    Attributes
    ----------
    relation : py4j object
        The logical plan that reads the rows.
    frame : DataFrame
        The same as a DataFrame.

    Raises
    ------
    PySparkException or py4j.protocol.Py4JError
        Whatever the query fails with; nothing stays behind.
    """

    def __init__(self, spark: SparkSession, plan: Any, rule: Any) -> None:
        names = gateway_of(spark)
        session = clone_session(spark, rule)
        for key, value in _SETTINGS.items():
            session.conf().set(key, value)
        execution = names.org.apache.spark.sql.classic.Dataset.ofRows(session, plan).queryExecution()
        relations = getattr(getattr(names.org.apache.spark.sql.execution.columnar, "InMemoryRelation$"), "MODULE$")
        level = names.org.apache.spark.storage.StorageLevel.DISK_ONLY()
        self.relation = relations.apply(level, execution, names.scala.Option.empty())
        self.frame = dataframe_of(spark, self.relation)
        rule.suspend()
        try:
            new_instance(names, "CachedQuery", execution, self.relation.cacheBuilder()).compute()
        except BaseException:
            self.release()
            raise
        finally:
            rule.resume()

    def release(self) -> None:
        """Remove the rows; more than once is as good as once."""
        try:
            self.relation.cacheBuilder().clearCache(False)
        except (Py4JError, OSError):  # the application has ended, and its rows with it
            log.debug("staged rows could not be removed", exc_info=True)

    def release_with(self, reader: Any) -> None:
        """Remove the rows when a Python object that reads them is no more."""
        # An application that ends removes them itself.
        weakref.finalize(reader, self.release).atexit = False


def stage(spark: SparkSession, plan: Any, rule: Any) -> StagedRows | None:
    """Compute the rows of a planned query before an action with effects begins.

    ``None`` and errors are those of :func:`with_fallback`.
    """
    return with_fallback(spark, plan, lambda: StagedRows(spark, plan, rule))


def with_fallback(spark: SparkSession, plan: Any, compute: Callable[[], Rows]) -> Rows | None:
    """Compute the rows of a planned query, of which nothing is seen before they are there.

    ``None`` if the query failed: then Spark is to run its own, and tells the error if it is the user's. Raises the
    error of a query that was cancelled, one with which a query ends (:func:`~gpujoin.spark.failures.final_error`), and
    any of its part in gpujoin where ``spark.gpujoin.fallback`` is ``raise``.
    """
    try:
        return compute()
    except Exception as problem:
        failure = failure_of(problem)
        if failure is Failure.CANCELLED:
            raise
        if failure is Failure.OURS and (final := final_error(problem)) is not None:
            raise final from problem
        if failure is Failure.OURS:
            give_back(spark, problem, lambda: query_text(session_id(spark), str(plan.toString())))
            remove_exchanged(spark, plan)
        else:
            log.debug("a query failed before it had an effect; Spark runs it itself", exc_info=True)
    return None


def stage_write(spark: SparkSession, plan: Any, query: Any, rule: Any) -> Any:
    """Compute the rows of a write's query, and give the plan that reads them; ``None`` as :func:`stage` does.

    They are removed when Spark's execution that the thread is in has ended: the write's. Where it is in none, Spark's
    cleaner removes them once nothing refers to them.
    """
    rows = stage(spark, plan, rule)
    if rows is None:
        return None
    listener_of(spark).removeAfter(local_property(spark, _EXECUTION), rows.relation.cacheBuilder())
    return rule.withOutputOf(query, rows.relation)
