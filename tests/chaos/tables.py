"""Tables and queries that faults are injected into: deterministic, so that programs on a cluster make the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

LINES, ITEMS = 60_000, 9_000

EXCHANGED = {
    "spark.gpujoin.backend": "cpu",
    "spark.gpujoin.fallback": "silent",
    "spark.gpujoin.scan.oneTaskBytes": "1",
    "spark.gpujoin.scan.taskBytes": "64k",
    "spark.gpujoin.broadcastThreshold": "1",
    "spark.gpujoin.exchange.partitions": "4",
    "spark.gpujoin.exchange.blobBytes": "64k",
    "spark.gpujoin.batchBytes": "64k",
}
"""Settings with which small tables run as large ones do: several tasks, exchanges between them."""

QUERIES = {
    "groups": "select k % 997 as g, count(*) as n, sum(amount) as total, max(text) as last from lines group by k % 997",
    "join": "select l.id, l.text, i.name from lines l join items i on l.k = i.k where l.amount < 40",
    "full join": "select l.id, i.name from lines l full join items i on l.k = i.k and l.kind = i.kind",
    "groups of a join": """select i.kind, l.k % 11 as g, count(*) as n, sum(l.amount) as total from lines l
        left join items i on l.k = i.k group by i.kind, l.k % 11""",
    "not exists": "select id, text from lines l where not exists (select 1 from items i where i.k = l.k)",
    "distinct": "select distinct l.text, i.kind from lines l join items i on l.k = i.k",
}


@dataclass(frozen=True)
class Sessions:
    """A session that is enabled, and one that is not, with views of the same files."""

    here: SparkSession
    native: SparkSession
    folder: Path


def write_tables(spark: SparkSession, folder: str) -> None:
    """Write the tables, with nulls, NaN, both zeros and heavy keys, as Parquet files."""
    lines = spark.range(0, LINES, 1, 4).selectExpr(
        "id",
        "case when id % 10 < 3 then 7 when id % 97 = 0 then null else id * 7919 % 12000 end as k",
        "id % 5 as kind",
        "case when id % 31 = 0 then null else concat('text ', id % 4001, ' é') end as text",
        "cast(id % 1000 as decimal(12,2)) / 10 as amount",
    )
    items = spark.range(0, ITEMS, 1, 3).selectExpr(
        "case when id % 89 = 0 then null when id = 5 then 7 else id * 3 % 12000 + 10 end as k",
        "id % 7 as kind",
        "concat('item ', id) as name",
    )
    lines.write.mode("overwrite").parquet(f"{folder}/lines")
    items.write.mode("overwrite").parquet(f"{folder}/items")


def register(spark: SparkSession, folder: str) -> None:
    """Make views of the tables."""
    for name in ("lines", "items"):
        spark.read.parquet(f"{folder}/{name}").createOrReplaceTempView(name)


def joined_rows(spark: SparkSession, number: int) -> DataFrame:
    """Rows to be written: a join, different by number."""
    return spark.sql(
        f"""select l.id, l.k, i.name, {number} as number from lines l join items i on l.k = i.k
        where l.id % 3 = {number % 3}"""
    )
