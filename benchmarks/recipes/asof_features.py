"""As-of features: the last known measurement before each label, for training data without a look into the future.

`gpujoin.gpu_asof_join` is one call; the tolerance leaves out measurements that are too old. Spark has no such join: the
program that it is compared with is the usual one, a union of both tables and the last value over a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

import gpujoin
from benchmarks.recipes.files import moments, put

TABLES = ("labels", "measurements")


def write(folder: Path, rows: int) -> None:
    """Write the tables; ``rows`` are those of the measurements, a quarter of them those of the labels."""
    rng = np.random.default_rng(3)
    devices = max(1, rows // 500)
    # Even seconds: no label is at the moment of a measurement, and no device measures twice at once.
    seconds = 2 * (np.arange(rows) // devices * 60 + rng.integers(0, 30, rows))
    measured = {
        "device": np.arange(rows) % devices, "time": moments(seconds), "value": rng.integers(0, 1000, rows),
    }  # fmt: skip
    put(folder, "measurements", pa.table(measured).take(rng.permutation(rows)), files=4)
    labels = max(1, rows // 4)
    asked = {
        "device": rng.integers(0, devices, labels), "time": moments(2 * rng.integers(0, 500 * 60, labels) + 1),
        "label": rng.integers(0, 2, labels),
    }  # fmt: skip
    put(folder, "labels", pa.table(asked), files=2)


def run(spark: SparkSession, folder: Path) -> Sequence[DataFrame]:  # noqa: ARG001 - every recipe takes it
    """Give the mean feature of each label, and how many labels have one."""
    labels, measurements = spark.table("labels"), spark.table("measurements")
    features = gpujoin.gpu_asof_join(labels, measurements, on="time", by="device", tolerance="10 minutes")
    return [features.groupBy("label").agg(sf.count("*"), sf.count("value"), sf.sum("value"))]


def run_in_spark(spark: SparkSession, folder: Path) -> Sequence[DataFrame]:  # noqa: ARG001 - every recipe takes it
    """Give the same, written for Spark."""
    labels, measurements = spark.table("labels"), spark.table("measurements")
    both = labels.withColumn("measured", sf.lit(None).cast("struct<time: timestamp, value: bigint>")).unionByName(
        measurements.select(
            "device", "time", sf.struct("time", "value").alias("measured"), sf.lit(None).cast("bigint").alias("label")
        )
    )
    last = sf.last("measured", ignorenulls=True).over(Window.partitionBy("device").orderBy("time"))
    features = both.withColumn("last", last).where("label is not null")
    recent = sf.when(sf.col("last.time") >= sf.col("time") - sf.expr("interval 10 minutes"), sf.col("last.value"))
    features = features.withColumn("value", recent)
    return [features.groupBy("label").agg(sf.count("*"), sf.count("value"), sf.sum("value"))]
