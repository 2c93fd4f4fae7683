"""The Spark sessions in which programs of this project time queries."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpujoin.errors import ConfigurationError
from gpujoin.spark.resources import check_resources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_session(name: str, master: str, settings: Mapping[str, str]) -> SparkSession:
    """Open a session without output of its own, whose tasks can start.

    Raises ``ConfigurationError`` if Spark does not start with this master and these settings.
    """
    if master.startswith("local"):
        # Without it, workers run the first python3 on PATH, which need not be this environment's.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    defaults = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    return start_session(name, master, {**defaults, **settings})


def start_session(name: str, master: str | None, settings: Mapping[str, str]) -> SparkSession:
    """Start Spark with settings, and check that its tasks can start; without a master, with that of its configuration.

    Raises ``ConfigurationError`` if Spark does not start with them.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from gpujoin.spark.settings import session_conf

    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except (PySparkException, Py4JError) as problem:
        with_master = "" if master is None else f" with master {master!r}"
        raise ConfigurationError(f"Spark does not start{with_master}: {_telling_line(str(problem))}") from problem
    check_resources(session_conf(spark))
    return spark


def _telling_line(text: str) -> str:
    """Give the first line of an error of Spark's that says what was wrong."""
    lines = [line.removeprefix(": ") for line in text.splitlines() if not line.startswith("\tat ")]
    return next((line for line in lines if not line.startswith("An error occurred while calling")), "no message")


def key_value(text: str) -> tuple[str, str]:
    """Divide an argument ``KEY=VALUE``."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    return key, value
