"""Distances: from each trip's end to its customer's home, over a sphere, by city.

Arrow's own functions compute the distance (`arrow_udf`): no row becomes a pandas object, here or in Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession, functions

from benchmarks.recipes.files import put, texts

sf: Any = functions
TABLES = ("trips", "homes")


def write(folder: Path, rows: int) -> None:
    """Write the tables; ``rows`` are those of the trips."""
    rng = np.random.default_rng(13)
    people = max(1, rows // 20)
    ends = {"x": rng.normal(13.4, 0.3, rows), "y": rng.normal(52.5, 0.2, rows)}
    put(folder, "trips", pa.table({"person": rng.integers(0, people, rows), **ends}), files=4)
    homes = {"home_x": rng.normal(13.4, 0.3, people), "home_y": rng.normal(52.5, 0.2, people)}
    put(folder, "homes", pa.table({"person": np.arange(people), **homes, "city": texts("city", people, 25)}))


def run(spark: SparkSession, folder: Path) -> Sequence[DataFrame]:  # noqa: ARG001 - every recipe takes it
    """Give how many trips end within ten kilometres of home, by city."""

    @sf.arrow_udf("double")
    def kilometres(x: pa.Array, y: pa.Array, home_x: pa.Array, home_y: pa.Array) -> pa.Array:
        radians = np.pi / 180
        across = pc.multiply(pc.subtract(x, home_x), pc.cos(pc.multiply(y, radians)))
        up = pc.subtract(y, home_y)
        return pc.multiply(pc.sqrt(pc.add(pc.multiply(across, across), pc.multiply(up, up))), 111.2)

    trips = spark.table("trips").join(spark.table("homes"), "person")
    near = trips.withColumn("km", kilometres("x", "y", "home_x", "home_y")).where("km < 10")
    return [near.groupBy("city").agg(sf.count("*"), sf.max("km"))]
