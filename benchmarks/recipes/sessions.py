"""Sessions: visits of users, cut where nothing happens for half an hour, by country.

`lag` finds the events that begin a session, a running sum numbers the sessions, and two aggregations and a join
follow. gpujoin computes the windows, the aggregations and the join in one go.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from benchmarks.recipes.files import moments, put, texts

TABLES = ("events", "users")


def write(folder: Path, rows: int) -> None:
    """Write the tables; ``rows`` are those of the events."""
    rng = np.random.default_rng(2)
    users = max(1, rows // 50)
    events = {"user": rng.integers(0, users, rows), "time": moments(rng.permutation(rows) * (30 * 86_400 // rows + 1))}
    put(folder, "events", pa.table(events), files=4)
    put(folder, "users", pa.table({"user": np.arange(users), "country": texts("country", users, 40)}))


def run(spark: SparkSession, folder: Path) -> Sequence[DataFrame]:  # noqa: ARG001 - every recipe takes it
    """Give sessions and their length by country."""
    by_time = Window.partitionBy("user").orderBy("time")
    pause = sf.unix_seconds("time") - sf.unix_seconds(sf.lag("time").over(by_time))
    events = spark.table("events").withColumn("begins", sf.when(pause <= 1800, 0).otherwise(1))
    numbered = events.withColumn("session", sf.sum("begins").over(by_time))
    sessions = numbered.groupBy("user", "session").agg(
        sf.count("*").alias("events"),
        (sf.max(sf.unix_seconds("time")) - sf.min(sf.unix_seconds("time"))).alias("seconds"),
    )
    by_country = sessions.join(spark.table("users"), "user").groupBy("country")
    return [by_country.agg(sf.count("*"), sf.sum("events"), sf.sum("seconds"))]
