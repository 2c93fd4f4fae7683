"""Exploration in a notebook: a dozen small questions about two tables, one after another.

The questions are those of a first hour with new data: how many, how often, which are the largest, how do groups
differ, what is missing. Each is a query of its own; the session is enabled once, in the first cell. The
[tutorial](tutorial.ipynb) is such a notebook.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.recipes.files import put, texts

TABLES = ("orders", "customers")
QUESTIONS = (
    "select count(*), count(distinct customer), min(day), max(day) from orders",
    "select status, count(*), avg(cents) from orders group by status",
    "select customer, sum(cents) total from orders group by customer order by total desc, customer limit 20",
    "select segment, count(*), sum(cents) from orders join customers using (customer) group by segment",
    "select segment, status, count(*) from orders join customers using (customer) group by segment, status",
    "select count(*) from customers left anti join orders using (customer)",
    "select day div 30, segment, sum(cents) from orders join customers using (customer) where day < 180 group by 1, 2",
    "select segment, median(cents), max(cents) from orders join customers using (customer) group by segment",
    "select n, count(*) from (select count(*) n from orders group by customer) group by n order by n",
    "select count(*) from orders where customer in (select customer from customers where credit > 90)",
)


def write(folder: Path, rows: int) -> None:
    """Write the tables; ``rows`` are those of the orders."""
    rng = np.random.default_rng(5)
    customers = max(10, rows // 20)
    orders = {
        "customer": rng.integers(0, customers - customers // 10, rows), "day": rng.integers(0, 365, rows),
        "status": texts("status", rows, 4), "cents": rng.integers(1, 100_000, rows),
    }  # fmt: skip
    put(folder, "orders", pa.table(orders), files=4)
    people = {
        "customer": np.arange(customers), "segment": texts("segment", customers, 6),
        "credit": rng.integers(0, 100, customers),
    }  # fmt: skip
    put(folder, "customers", pa.table(people))


def run(spark: SparkSession, folder: Path) -> Sequence[DataFrame]:  # noqa: ARG001 - every recipe takes it
    """Give the answers."""
    return [spark.sql(question) for question in QUESTIONS]
