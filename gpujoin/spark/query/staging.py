"""Keeps the rows of a rewritten query while an action with effects reads them.

A write, ``foreach`` and ``toLocalIterator`` cannot be begun again once they have had an effect. So the query runs
first, and the effect is had from rows that are there. For ``df.write.mode("overwrite").parquet(path)``:

=====================================================================  =====================
step                                                                   what ``path`` holds
=====================================================================  =====================
1. the rewritten query runs, its rows go to the executors' disks       the old rows
2. Spark deletes ``path``, and writes the rows to it                   the new rows
3. the rows are removed from the executors' disks                      the new rows
=====================================================================  =====================

What fails in step 1 has had no effect: Spark then runs its own query in place of all three. Step 2 is Spark's alone.
Only where it loses an executor are that executor's rows computed again, from the files on.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark import StorageLevel

from gpujoin.spark.failures import Failure, failure_of
from gpujoin.spark.gateway import analyzed_plan, cached_uncompressed, dataframe_of
from gpujoin.spark.outcomes import log
from gpujoin.spark.query.fallback import give_back

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class StagedRows:
    """The rows of a query, computed, on the disks of Spark's executors.

    Parameters
    ----------
    query : DataFrame
        A classic DataFrame. Its rows are computed here, by a job that touches nothing else; they have the partitions,
        and the order within them, that the query gives them.

    Raises
    ------
    PySparkException or py4j.protocol.Py4JError
        Whatever the query fails with; nothing stays behind.
    """

    def __init__(self, query: DataFrame) -> None:
        session, plan = query.sparkSession, analyzed_plan(query)
        # The rows are read once: compressing them costs more than what is saved on the disk (docs/performance.md).
        self._query = cached_uncompressed(query)
        try:
            self._query.persist(StorageLevel.DISK_ONLY)
            self.frame = dataframe_of(session, plan)
            """Reads the rows, and has the plan of the query."""
            self.frame.count()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Remove the rows; more than once is as good as once."""
        try:
            self._query.unpersist()
        except (Py4JError, OSError):  # the application has ended, and its rows with it
            log.debug("staged rows could not be removed", exc_info=True)

    def release_with(self, reader: Any) -> None:
        """Remove the rows when a Python object that reads them is no more."""
        # An application that ends removes them itself.
        weakref.finalize(reader, self.release).atexit = False


def stage(given: DataFrame, query: DataFrame) -> StagedRows | None:
    """Compute the rows of a rewritten query before an action with effects begins.

    Parameters
    ----------
    given : DataFrame
        The user's query.
    query : DataFrame
        What it was rewritten to.

    Returns
    -------
    StagedRows or None
        ``None`` if the query failed: then Spark is to run its own, and tells the error if it is the user's.

    Raises
    ------
    PySparkException or py4j.protocol.Py4JError
        If the query was cancelled, or gpujoin's part of it failed and ``spark.gpujoin.fallback`` is ``raise``.
    """
    try:
        return StagedRows(query)
    except Exception as problem:
        failure = failure_of(problem)
        if failure is Failure.CANCELLED:
            raise
        if failure is Failure.OURS:
            give_back(given, problem)
        else:
            log.debug("a query failed before it had an effect; Spark runs it itself", exc_info=True)
    return None
