"""The Spark sessions in which queries are timed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpujoin.spark.resources import check_resources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_session(name: str, master: str, settings: Mapping[str, str]) -> SparkSession:
    """Open a session that shows nothing of its own, and whose tasks can start."""
    from pyspark.sql import SparkSession

    from gpujoin.spark.settings import session_conf

    if master.startswith("local"):
        # Without it, workers run the first python3 on PATH, which need not be this environment's.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    defaults = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**defaults, **settings}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    check_resources(session_conf(spark))
    return spark
