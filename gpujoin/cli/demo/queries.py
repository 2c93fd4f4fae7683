"""The demo's last part: whole SQL queries, run by Spark and accelerated, unchanged."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpujoin.cli.demo.check import TOLERANCE, create_views, difference
from gpujoin.cli.demo.data import TABLES
from gpujoin.cli.demo.show import progress, table

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
_HEADER = ("query", "joins here", "rows", "seconds here", "seconds in Spark", "result equal")


@dataclass(frozen=True, slots=True)
class QueryOutcome:
    """What came of one query."""

    title: str
    joins: str
    """How many of its joins ran here, of how many."""
    rows: int
    seconds: float
    spark_seconds: float
    """From the text of the query to its rows in the driver."""
    differences: tuple[str, ...]
    """What differs from Spark or DuckDB; empty when all are equal."""


def run_queries(spark: SparkSession, data: Path) -> list[QueryOutcome]:
    """Run each query by Spark, then with the session enabled, and compare the rows with Spark's and DuckDB's."""
    import duckdb

    import gpujoin

    outcomes = []
    with duckdb.connect() as connection, progress(len(QUERIES)) as shown:
        create_views(connection, data)
        for name in TABLES:
            spark.read.parquet(str(data / f"{name}.parquet")).createOrReplaceTempView(name)
        for number, (title, text) in enumerate(QUERIES.items(), start=1):
            shown.step(title)
            expected = spark.sql(text).collect()
            spark_seconds = _seconds(spark, text)
            gpujoin.enable(spark)
            try:
                found = spark.sql(text).collect()
                seconds = _seconds(spark, text)
            finally:
                gpujoin.disable(spark)
            joins = gpujoin.explain(gpujoin.accelerate(spark.sql(text))).joins
            outcome = QueryOutcome(
                title=title,
                joins=f"{sum(join.accelerated for join in joins)} of {len(joins)}",
                rows=len(found),
                seconds=seconds,
                spark_seconds=spark_seconds,
                differences=_differences(found, expected, connection.execute(text).fetchall()),
            )
            outcomes.append(outcome)
            verdict = "NOT EQUAL" if outcome.differences else "equal"
            shown.line(f"[SQL {number}/{len(QUERIES)}] {title}: {outcome.rows:,} rows, {verdict}")
            for what in outcome.differences:
                shown.line(f"    {what}")
    return outcomes


def _seconds(spark: SparkSession, text: str) -> float:
    started = time.perf_counter()
    spark.sql(text).collect()
    return time.perf_counter() - started


def _differences(found: list[Any], by_spark: list[Any], by_duckdb: list[Any]) -> tuple[str, ...]:
    if not found:
        return ("no rows, which proves nothing",)
    against = {
        "Spark": None if found == by_spark else difference(found, by_spark, 0.0) or "the order of rows",
        "DuckDB": difference(found, by_duckdb, TOLERANCE),
    }
    return tuple(f"against {other}: {what}" for other, what in against.items() if what is not None)


def report_queries(outcomes: Sequence[QueryOutcome]) -> str:
    """The table of the queries, for people."""
    rows = [
        (
            outcome.title,
            outcome.joins,
            f"{outcome.rows:,}",
            f"{outcome.seconds:.2f}",
            f"{outcome.spark_seconds:.2f}",
            "NO" if outcome.differences else "yes",
        )
        for outcome in outcomes
    ]
    equal = sum(not outcome.differences for outcome in outcomes)
    lines = [
        "\nWhole queries, unchanged, after gpujoin.enable(spark)\n",
        table(_HEADER, rows, right=(1, 2, 3, 4)),
        f"\n{equal} of {len(outcomes)} queries equal",
    ]
    return "\n".join(lines)
