"""Incremental load: of a batch of orders, only those that are not loaded yet are written.

An anti join by two keys finds the new rows, which are written as Parquet files; a summary of what was written follows.
In an enabled session writes are computed by gpujoin, and written by Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.recipes.files import put, texts

TABLES = ("loaded", "batch")


def write(folder: Path, rows: int) -> None:
    """Write the tables; ``rows`` are those that are loaded. A quarter as many come, every tenth of which is new."""
    rng = np.random.default_rng(4)

    def orders(numbers: np.ndarray) -> pa.Table:
        return pa.table(
            {
                "source": texts("source", numbers, 5), "number": numbers, "day": numbers % 365,
                "cents": numbers * 7919 % 100_000,
            }
        )  # fmt: skip

    put(folder, "loaded", orders(np.arange(rows)), files=4)
    incoming = max(5, rows // 4)
    new = np.arange(rows, rows + max(5, incoming // 10))
    known = rng.permutation(rows)[: incoming - len(new)]
    put(folder, "batch", orders(rng.permutation(np.concatenate([new, known]))), files=2)


def run(spark: SparkSession, folder: Path) -> Sequence[DataFrame]:
    """Write what is new, and give a summary of it."""
    new = spark.table("batch").join(spark.table("loaded"), ["source", "number"], "left_anti")
    new.write.mode("overwrite").parquet(str(folder / "new"))
    written = spark.read.parquet(str(folder / "new"))
    return [written.groupBy("source").agg({"number": "count", "cents": "sum"})]
