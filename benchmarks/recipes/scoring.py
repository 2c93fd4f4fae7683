"""Scores: a model that NumPy computes, for each payment with its customer's features, by segment.

A function of columns (`pandas_udf`) is called for 8 million joined rows. Spark sends each of them to a Python process
and takes the score back. gpujoin calls the function where it has joined the rows, and only the groups go to Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions

from benchmarks.recipes.files import put, texts

sf: Any = functions
TABLES = ("payments", "customers")


def write(folder: Path, rows: int) -> None:
    """Write the tables; ``rows`` are those of the payments."""
    rng = np.random.default_rng(11)
    customers = max(1, rows // 100)
    payments = {"customer": rng.integers(0, customers, rows), "amount": rng.random(rows), "age": rng.random(rows)}
    put(folder, "payments", pa.table(payments), files=4)
    of_customer = {"customer": np.arange(customers), "risk": rng.random(customers), "income": rng.random(customers)}
    put(folder, "customers", pa.table({**of_customer, "segment": texts("segment", customers, 12)}))


def run(spark: SparkSession, folder: Path) -> Sequence[DataFrame]:  # noqa: ARG001 - every recipe takes it
    """Give the mean score, and how many are high, by segment."""
    weights = (1.5, -0.7, 2.1, -1.2)

    @sf.pandas_udf("double")
    def score(amount: pd.Series, age: pd.Series, risk: pd.Series, income: pd.Series) -> pd.Series:
        line = sum(weight * column for weight, column in zip(weights, (amount, age, risk, income), strict=True))
        return 1 / (1 + np.exp(-line))

    joined = spark.table("payments").join(spark.table("customers"), "customer")
    scored = joined.withColumn("score", score("amount", "age", "risk", "income"))
    high = sf.count_if(sf.col("score") > 0.8)
    return [scored.groupBy("segment").agg(sf.count("*"), sf.round(sf.avg("score"), 6), high)]
