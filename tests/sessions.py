"""How tests start Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tests import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1500m",
    "spark.sql.ui.retainedExecutions": "20",  # each keeps its plan as text
    "spark.buffer.pageSize": "1m",
    "spark.python.task.killTimeout": "100ms",  # how long a worker of a cancelled task goes on
    "spark.sql.shuffle.partitions": "3",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.log.level": "ERROR",
}
_FORKED_READY = {"spark.python.daemon.module": "tests.spark.daemon"}
"""Saves each worker two seconds of imports; programs, and `make test-all`, have Spark's own daemon."""


def start_session(scratch: Path, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark, with more settings than tests usually have; what it writes of its own is in a folder."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    usual = _SETTINGS if os.environ.get(java.CODEGEN_VARIABLE) else {**_SETTINGS, **_FORKED_READY}
    folders = {"spark.sql.warehouse.dir": str(scratch / "warehouse"), "spark.local.dir": str(scratch / "local")}
    builder = SparkSession.builder.master(os.environ.get("GPUJOIN_TEST_MASTER", "local[2]")).appName("gpujoin tests")
    for key, value in {**usual, **folders, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
