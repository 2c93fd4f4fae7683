"""Writes to tables of Delta in enabled sessions, and tables that change while queries are planned and run."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import gpujoin
from gpujoin.spark.query.accelerate import rewrite
from gpujoin.testing import assert_same_rows
from tests.lake.deltas import BY_NAME, VECTORS, new_table
from tests.lake.queries import check_read, queries_of, run
from tests.spark.query.queries import FORCED

pytestmark = [
    pytest.mark.lake("delta"),
    pytest.mark.spark,
    pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"]),
]

BASE = "k bigint, g int, s string"
INSERT = "insert into {t} select id, id % 3, concat('x', id % 10) from range(60)"
OTHER = "(select id as k, id % 4 as w, concat('m', id) as s from range(40, 90))"
WRITES = {
    "MERGE": (
        f"merge into {{t}} a using {OTHER} b on a.k = b.k when matched and b.w = 0 then delete "
        "when matched and b.w = 1 then update set s = b.s when not matched and b.w < 3 then insert (k, g, s) "
        "values (b.k, b.w, b.s) when not matched by source and a.g = 1 then update set s = 'gone'"
    ),
    "MERGE that only inserts": (
        f"merge into {{t}} a using {OTHER} b on a.k = b.k when not matched then insert (k, g, s) values (b.k, b.w, b.s)"
    ),
    "UPDATE": "update {t} set s = 'u' where k % 7 = 2 or g is null",
    "DELETE": "delete from {t} where k % 7 = 3 and g < 2",
    "INSERT": "insert into {t} select a.k + 100, a.g, b.s from {t} a join {t} b on a.k = b.k + 1",
    "INSERT OVERWRITE": (
        "insert overwrite {t} select a.k, count(*), max(b.s) from {t} a join {t} b on a.g = b.g group by a.k"
    ),
    "REPLACE WHERE": "insert into {t} replace where g = 1 select a.k + 7, 1, b.s from {t} a join {t} b on a.k = b.k",
}
PROPERTIES = {"plain": {}, "vectors": VECTORS, "mapped, with a feed": BY_NAME | VECTORS | {
    "delta.enableChangeDataFeed": "true", "delta.enableRowTracking": "true",
}}  # fmt: skip


@pytest.mark.parametrize("properties", PROPERTIES)
@pytest.mark.parametrize("name", WRITES)
def test_writes_leave_the_table_as_spark_does(spark: SparkSession, name: str, properties: str) -> None:
    tables = [new_table(spark, BASE, by="g", properties=PROPERTIES[properties]) for _ in range(2)]
    spark.conf.set("spark.gpujoin.fallback", "silent")
    for table in tables:
        run(spark, table, INSERT, "delete from {t} where k % 5 = 0")
    gpujoin.enable(spark)
    run(spark, tables[0], WRITES[name])
    gpujoin.disable(spark)
    run(spark, tables[1], WRITES[name])
    assert_same_rows(spark.table(tables[0]).toArrow(), spark.table(tables[1]).toArrow())
    metrics = [
        spark.sql(f"describe history {table} limit 1").select("operationMetrics").collect()[0][0] for table in tables
    ]
    counts = [{key: value for key, value in each.items() if "Rows" in key or "Vectors" in key} for each in metrics]
    assert counts[0] == counts[1], "Spark's own metrics of rows"
    if "feed" in properties:
        changes = [
            spark.sql(f"select k, g, s, _change_type from table_changes('{table}', 3)").toArrow() for table in tables
        ]
        assert_same_rows(*changes, allow_empty=True)
    spark.conf.set("spark.gpujoin.fallback", "raise")
    check_read(queries_of(spark, tables[0]).items())


def joined(spark: SparkSession, table: str) -> DataFrame:
    return spark.sql(f"select a.g, count(*) n, max(b.s) s from {table} a join {table} b on a.k = b.k group by a.g")


@pytest.mark.parametrize(
    "change",
    ["insert into {t} values (1, 1, 'late')", "delete from {t} where k < 30", "delete from {t}", "optimize {t}"],
)
def test_a_query_has_the_snapshot_for_which_it_was_planned(spark: SparkSession, change: str) -> None:
    table = new_table(spark, BASE, properties=VECTORS)
    run(spark, table, INSERT, "delete from {t} where k % 5 = 0")
    before = joined(spark, table).toArrow()
    planned = rewrite(joined(spark, table))
    assert planned.changed
    run(spark, table, change)
    assert_same_rows(planned.frame.toArrow(), before)
    assert_same_rows(rewrite(joined(spark, table)).frame.toArrow(), joined(spark, table).toArrow(), allow_empty=True)


def test_a_stream_of_a_table_joined_with_one(spark: SparkSession, tmp_path: Path) -> None:
    source, table = (new_table(spark, BASE, properties=VECTORS) for _ in range(2))
    run(spark, source, INSERT)
    run(spark, table, INSERT, "delete from {t} where k % 5 = 0")
    spark.conf.set("spark.gpujoin.fallback", "silent")
    gpujoin.enable(spark)
    counts: list[int] = []
    query = (
        spark.readStream.table(source).join(spark.table(table).select("k"), "k")
        .writeStream.foreachBatch(lambda rows, _: counts.append(rows.count())).trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    )  # fmt: skip
    query.awaitTermination()
    gpujoin.disable(spark)
    assert sum(counts) == 48
