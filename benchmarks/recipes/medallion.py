"""Medallion: what comes in is merged into a clean table, from which a report is made, in tables of Delta.

Bronze has the changes as they came, some of them several times. The last one of each order is merged into silver, whose
files of before stay as they are: rows that are updated are marked as deleted, and written anew. Gold is the revenue of
each segment and month. gpujoin reads the files of the tables, with what is marked as deleted, and computes the last
changes, the joins of `MERGE` and the report. Delta finds the files to change, writes and commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.recipes.files import moments, put, texts

TABLES = ("orders", "changes", "customers")
MERGE = """
    merge into silver using (
        select * except (n) from (
            select *, row_number() over (partition by number order by time desc) as n from bronze
        ) where n = 1
    ) as last on silver.number = last.number
    when matched and last.status = 'status 0' then delete
    when matched then update set *
    when not matched then insert *
"""
REPORT = """
    select segment, date_trunc('month', time) as month, status, sum(cents) / 100 as revenue, count(*) as orders
    from silver join customers using (customer)
    where credit > 20
    group by all
"""


def write(folder: Path, rows: int) -> None:
    """Write the tables; ``rows`` are those of the orders. A tenth as many changes come, every fifth of a new order."""
    rng = np.random.default_rng(7)
    customers = max(10, rows // 50)

    def orders(numbers: np.ndarray, seconds: np.ndarray) -> pa.Table:
        return pa.table(
            {
                "number": numbers, "customer": numbers * 31 % customers, "time": moments(seconds),
                "status": texts("status", (numbers + seconds) % 5, 5), "cents": (numbers * 7919 + seconds) % 100_000,
            }
        )  # fmt: skip

    put(folder, "orders", orders(np.arange(rows), np.arange(rows) * 30_000_000 // rows), files=4)
    count = max(10, rows // 10)
    recent = rng.integers(rows - rows // 4, rows + count // 5, count)  # most changes are of late orders
    put(folder, "changes", orders(recent, 30_000_000 + rng.permutation(count)), files=2)
    people = {
        "customer": np.arange(customers), "segment": texts("segment", customers, 6),
        "credit": rng.integers(0, 100, customers),
    }  # fmt: skip
    put(folder, "customers", pa.table(people))


def prepare(spark: SparkSession) -> None:
    """Make the table that the changes are merged into, in the state of before."""
    spark.sql(
        "create or replace table before using delta tblproperties ('delta.enableDeletionVectors' = 'true') "
        "as select * from orders"
    )


def run(spark: SparkSession, folder: Path) -> Sequence[DataFrame]:  # noqa: ARG001 - every recipe takes it
    """Take in, merge and report, beginning with the table of before; give the report."""
    spark.sql("drop table if exists silver")
    spark.sql("create table silver shallow clone before")
    spark.sql("create or replace table bronze using delta as select * from changes")
    spark.sql(MERGE)
    spark.sql(f"create or replace table gold using delta as {REPORT}")
    return [spark.table("gold")]


def explained(spark: SparkSession) -> Sequence[DataFrame]:
    """Give the query of the report."""
    run(spark, Path())
    return [spark.sql(REPORT)]
