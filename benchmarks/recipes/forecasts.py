"""Forecasts: a line through the sales of each product, fitted by NumPy.

`applyInPandas` is given the sales of one product at a time, with the product's price from a join. Spark sorts the rows
of all products to bring each one's together, and sends them to Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.recipes.files import put

TABLES = ("sales", "products")


def write(folder: Path, rows: int) -> None:
    """Write the tables; ``rows`` are those of the sales."""
    rng = np.random.default_rng(14)
    products = max(1, rows // 200)
    product, day = rng.integers(0, products, rows), rng.integers(0, 365, rows)
    put(folder, "sales", pa.table({"product": product, "day": day, "units": rng.integers(1, 20, rows)}), files=4)
    prices = np.round(rng.random(products) * 100, 2)
    put(folder, "products", pa.table({"product": np.arange(products), "price": prices}))


def run(spark: SparkSession, folder: Path) -> Sequence[DataFrame]:  # noqa: ARG001 - every recipe takes it
    """Give the revenue that is expected in thirty days, and its trend, for each product."""

    def fitted(rows: pd.DataFrame) -> pd.DataFrame:
        days, revenue = rows["day"].to_numpy(float), (rows["units"] * rows["price"]).to_numpy(float)
        away = days - days.mean()
        slope = (away @ revenue) / max(1.0, away @ away)
        expected = revenue.mean() + slope * (395 - days.mean())
        return pd.DataFrame(
            {"product": rows["product"].iloc[:1], "expected": [round(expected, 2)], "trend": [round(slope, 4)]}
        )

    sales = spark.table("sales").join(spark.table("products"), "product")
    return [sales.groupBy("product").applyInPandas(fitted, "product long, expected double, trend double")]
