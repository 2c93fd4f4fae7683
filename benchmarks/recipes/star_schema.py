"""Star-schema report: revenue by region, category and month.

A large table of sales is joined with small tables of items, stores and days, and aggregated. gpujoin reads the Parquet
files, joins and aggregates in one stage of Python workers: no row of `sales` goes through Spark, only the groups do.
Filters of the small tables drop rows of the large one while it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.recipes.files import put, texts

TABLES = ("sales", "items", "stores", "days")


def write(folder: Path, rows: int) -> None:
    """Write the tables; ``rows`` are those of the sales."""
    rng = np.random.default_rng(1)
    sales = {
        "item": rng.integers(0, 20_000, rows), "store": rng.integers(0, 400, rows), "day": rng.integers(0, 730, rows),
        "quantity": rng.integers(1, 9, rows), "cents": rng.integers(100, 20_000, rows),
    }  # fmt: skip
    put(folder, "sales", pa.table(sales), files=4)
    put(folder, "items", pa.table({"item": np.arange(20_000), "category": texts("category", 20_000, 30)}))
    put(folder, "stores", pa.table({"store": np.arange(400), "region": texts("region", 400, 8)}))
    days = np.arange(730)
    put(folder, "days", pa.table({"day": days, "year": 2024 + days // 365, "month": days % 365 // 31 + 1}))


def run(spark: SparkSession, folder: Path) -> Sequence[DataFrame]:  # noqa: ARG001 - every recipe takes it
    """Give the report."""
    report = """
        select region, category, month, sum(quantity * cents) / 100 as revenue, count(*) as sales
        from sales join items using (item) join stores using (store) join days using (day)
        where year = 2025 and region != 'region 0'
        group by region, category, month
    """
    return [spark.sql(report)]
