"""Weighted means: an aggregate function of pandas', of ratings weighted by their writers, for each film.

A function of a group's columns (`pandas_udf` in `agg`) gives one value. Here the rows are joined, brought together by
film and given to the function in one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions

from benchmarks.recipes.files import put

sf: Any = functions
TABLES = ("ratings", "writers")


def write(folder: Path, rows: int) -> None:
    """Write the tables; ``rows`` are those of the ratings."""
    rng = np.random.default_rng(15)
    writers, films = max(1, rows // 40), max(1, rows // 500)
    ratings = {"writer": rng.integers(0, writers, rows), "film": rng.integers(0, films, rows)}
    put(folder, "ratings", pa.table({**ratings, "stars": rng.integers(1, 6, rows).astype(float)}), files=4)
    put(folder, "writers", pa.table({"writer": np.arange(writers), "weight": rng.random(writers)}))


def run(spark: SparkSession, folder: Path) -> Sequence[DataFrame]:  # noqa: ARG001 - every recipe takes it
    """Give the weighted mean of each film's ratings."""

    @sf.pandas_udf("double")
    def weighted(stars: pd.Series, weight: pd.Series) -> float:
        return round(float((stars * weight).sum() / weight.sum()), 3)

    ratings = spark.table("ratings").join(spark.table("writers"), "writer")
    return [ratings.groupBy("film").agg(weighted("stars", "weight").alias("mean"))]
