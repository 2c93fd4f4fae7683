#!/usr/bin/env python3
"""Write the examples of docs/guide.md from what really happens, or check that they are up to date.

Usage: ``python scripts/gen_guide.py`` runs the examples on a local Spark and writes their output into the guide; with
``--check`` the exit status is 1 when the file would change. Needs PySpark and Java.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import DataFrame, SparkSession

from gpujoin import explain, gpu_join
from scripts.pages import write_or_check

TARGET = Path(__file__).resolve().parent.parent / "docs" / "guide.md"


def tables(spark: SparkSession) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Orders, line items and nations, of sizes that Spark knows."""
    orders = spark.range(1_500_000).selectExpr("id as orderkey", "id % 25 as nation", "id % 7 as priority")
    items = spark.range(6_000_000).selectExpr("id % 1500000 as orderkey", "id % 11 as quantity")
    nations = spark.range(25).selectExpr("id as nation", "concat('nation ', id) as name")
    return orders, items, nations


def island(orders: DataFrame, items: DataFrame, nations: DataFrame) -> DataFrame:
    """A backend asked for, and an aggregation after the join."""
    return gpu_join(orders, nations, on="nation", how="left", backend="cpu").groupBy("name").count()


def shuffled(orders: DataFrame, items: DataFrame, nations: DataFrame) -> DataFrame:
    """Two large sides and a residual condition."""
    on = (orders.orderkey == items.orderkey) & (orders.priority < items.quantity)
    return gpu_join(orders, items, on, "full", strategy="shuffle")


def left_to_spark(orders: DataFrame, items: DataFrame, nations: DataFrame) -> DataFrame:
    """Nothing asked for, and nothing to be won."""
    return gpu_join(orders, items, "orderkey")


EXAMPLES: dict[str, Callable[[DataFrame, DataFrame, DataFrame], DataFrame]] = {
    "island": island,
    "shuffled": shuffled,
    "left to Spark": left_to_spark,
}


def outputs() -> dict[str, str]:
    """What ``explain`` says of each example, ids made the same on every run."""
    logging.getLogger("gpujoin").setLevel(logging.ERROR)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.log.level", "ERROR").getOrCreate()
    try:
        found = {name: str(explain(example(*tables(spark)))) for name, example in EXAMPLES.items()}
    finally:
        spark.stop()
    return {name: re.sub(r"gpujoin_[0-9a-f]{12}", "gpujoin_1f2e3d4c5b6a", text) for name, text in found.items()}


def page(text: str) -> str:
    """Fill in every block that a comment ``<!-- generated: NAME -->`` stands above."""
    found = outputs()

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n```\n{found[match[2]]}\n```"

    return re.sub(r"(<!-- generated: ([^>]+?) -->)\n```\n(?:(?!```).*\n)*```", fill, text)


if __name__ == "__main__":
    sys.exit(write_or_check(TARGET, lambda: page(TARGET.read_text(encoding="utf-8")), __doc__))
