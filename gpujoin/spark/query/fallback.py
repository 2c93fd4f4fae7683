"""What is told and noted when gpujoin's part of a query fails and Spark runs the query in its place."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gpujoin.config import FallbackMode
from gpujoin.spark.outcomes import log
from gpujoin.spark.settings import join_options, session_conf
from gpujoin.spark.worker.python import note_failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def give_back(spark: SparkSession, problem: Exception) -> None:
    """Tell that Spark runs a query whose part in gpujoin's workers failed, or raise the problem.

    ``spark.gpujoin.fallback`` says which.
    """
    note_failure(spark.sparkContext, problem)
    options = join_options(session_conf(spark), None, None)
    if options.fallback is FallbackMode.RAISE:
        raise problem
    level = logging.WARNING if options.fallback is FallbackMode.WARN else logging.DEBUG
    log.log(level, "a task of the query failed here; Spark runs the query itself", exc_info=problem)
