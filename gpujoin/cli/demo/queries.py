"""The demo's last part: whole SQL queries, run by Spark and accelerated, unchanged."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpujoin.cli.demo.check import TOLERANCE, create_views, difference
from gpujoin.cli.demo.show import Outcome, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES = {
    "revenue by nation of customer": """
        SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue, count(*) AS lines
        FROM customer JOIN orders ON c_custkey = o_custkey
            JOIN lineitem ON l_orderkey = o_orderkey
            JOIN nation ON c_nationkey = n_nationkey
        WHERE o_orderdate >= DATE '1995-01-01' AND l_returnflag <> 'R'
        GROUP BY n_name ORDER BY revenue DESC""",
    "late orders by priority": """
        SELECT o_orderpriority, count(*) AS orders
        FROM orders
        WHERE EXISTS (SELECT 1 FROM lineitem WHERE l_orderkey = o_orderkey AND l_receiptdate > l_commitdate)
        GROUP BY o_orderpriority ORDER BY o_orderpriority""",
    "customers by number of orders": """
        SELECT orders, count(*) AS customers
        FROM (SELECT c_custkey, count(o_orderkey) AS orders FROM customer LEFT JOIN orders ON c_custkey = o_custkey
              GROUP BY c_custkey) AS counted
        GROUP BY orders ORDER BY customers DESC, orders DESC""",
}


def run_queries(spark: SparkSession, data: Path) -> list[Outcome]:
    """Run each query by Spark, then with the session enabled, and compare the rows with Spark's and DuckDB's.

    The session has a view of each table; ``data`` has their files.
    """
    import duckdb

    import gpujoin

    outcomes = []
    with duckdb.connect() as connection, Progress(len(QUERIES)) as shown:
        create_views(connection, data)
        for number, (title, text) in enumerate(QUERIES.items(), start=1):
            shown.step(title)
            expected = spark.sql(text).collect()
            spark_seconds = _seconds(spark, text)
            gpujoin.enable(spark)
            try:
                actual = spark.sql(text).collect()
                seconds = _seconds(spark, text)
            finally:
                gpujoin.disable(spark)
            joins = gpujoin.explain(gpujoin.accelerate(spark.sql(text))).joins
            outcome = Outcome(
                labels=(title, f"{sum(join.accelerated for join in joins)} of {len(joins)}"),
                rows=len(actual),
                seconds=seconds,
                spark_seconds=spark_seconds,
                differences=_differences(actual, expected, connection.execute(text).fetchall()),
            )
            outcomes.append(outcome)
            shown.outcome(f"SQL {number}/{len(QUERIES)}", title, outcome)
    return outcomes


def _seconds(spark: SparkSession, text: str) -> float:
    started = time.perf_counter()
    spark.sql(text).collect()
    return time.perf_counter() - started


def _differences(actual: list[Any], by_spark: list[Any], by_duckdb: list[Any]) -> tuple[str, ...]:
    if not actual:
        return ("no rows, which proves nothing",)
    against = {
        "Spark": None if actual == by_spark else difference(actual, by_spark, 0.0) or "the order of rows",
        "DuckDB": difference(actual, by_duckdb, TOLERANCE),
    }
    return tuple(f"against {other}: {what}" for other, what in against.items() if what is not None)
