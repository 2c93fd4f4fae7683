"""Writes to tables of Delta in enabled sessions, and tables that change while queries are planned and run."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import gpujoin
from benchmarks.recipes.measure import OF_DELTA, measured
from gpujoin.spark.query import running
from gpujoin.spark.query.accelerate import rewrite
from gpujoin.testing import assert_same_rows
from tests.lake.deltas import BY_NAME, VECTORS, files_of, folder_of, new_table
from tests.lake.queries import check_read, queries_of, run
from tests.spark.query.faults import KilledStage
from tests.spark.query.queries import EXCHANGED, FORCED

pytestmark = [
    pytest.mark.lake("delta"),
    pytest.mark.spark,
]
ONE_TASK = pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["one task"])
BOTH_WAYS = pytest.mark.parametrize("spark", [FORCED, EXCHANGED], indirect=True, ids=["one task", "exchanged"])

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


WAYS = [
    *((FORCED, name, properties) for name in WRITES for properties in PROPERTIES),
    *((EXCHANGED, name, "vectors") for name in WRITES if "INSERT" not in name),
]


@pytest.mark.parametrize(
    ("spark", "name", "properties"),
    WAYS,
    indirect=["spark"],
    ids=[f"{name}, {properties}{'' if how is FORCED else ', exchanged'}" for how, name, properties in WAYS],
)
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
    assert row_counts(spark, tables[0]) == row_counts(spark, tables[1])
    if "feed" in properties:
        changes = [
            spark.sql(f"select k, g, s, _change_type from table_changes('{table}', 3)").toArrow() for table in tables
        ]
        assert_same_rows(*changes, allow_empty=True)
    spark.conf.set("spark.gpujoin.fallback", "raise")
    check_read(queries_of(spark, tables[0]).items())


FAILING = {
    "MERGE": (
        f"merge into {{t}} a using {OTHER} b on a.k = b.k when matched then update set g = cast(1 / (a.k - 46) as int) "
        "when not matched then insert (k, g, s) values (b.k, b.w, b.s)"
    ),
    "UPDATE": "update {t} set g = cast(1 / (k - 46) as int) where k > 20",
    "DELETE": "delete from {t} where 1 / (k - 46) > 0.1",
    "INSERT": "insert into {t} select a.k, cast(1 / (a.k - 46) as int), b.s from {t} a join {t} b on a.k = b.k",
}


@BOTH_WAYS
@pytest.mark.parametrize("name", FAILING)
def test_a_write_that_fails_leaves_the_table_as_it_was(spark: SparkSession, name: str) -> None:
    table = new_table(spark, BASE, by="g", properties=VECTORS)
    run(spark, table, INSERT, "delete from {t} where k % 5 = 0")
    before, history = spark.table(table).toArrow(), spark.sql(f"describe history {table}").count()
    spark.conf.set("spark.gpujoin.fallback", "silent")
    gpujoin.enable(spark)
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        run(spark, table, FAILING[name])
    gpujoin.disable(spark)
    assert_same_rows(spark.table(table).toArrow(), before)
    assert spark.sql(f"describe history {table}").count() == history


@BOTH_WAYS
@pytest.mark.parametrize("name", ["MERGE", "INSERT OVERWRITE"])
def test_a_write_whose_tasks_are_killed_here_is_sparks(
    spark: SparkSession, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tables = [new_table(spark, BASE, by="g", properties=VECTORS) for _ in range(2)]
    spark.conf.set("spark.gpujoin.fallback", "warn")
    for table in tables:
        run(spark, table, INSERT, "delete from {t} where k % 5 = 0")
    run(spark, tables[1], WRITES[name])
    monkeypatch.setattr(running, "RunStage", KilledStage)
    gpujoin.enable(spark)
    run(spark, tables[0], WRITES[name])
    gpujoin.disable(spark)
    assert "Spark runs the query itself" in caplog.text
    assert_same_rows(spark.table(tables[0]).toArrow(), spark.table(tables[1]).toArrow())
    assert row_counts(spark, tables[0]) == row_counts(spark, tables[1])


def row_counts(spark: SparkSession, table: str) -> dict[str, str]:
    """Spark's own metrics of rows, of the last write."""
    (metrics,) = spark.sql(f"describe history {table} limit 1").select("operationMetrics").collect()[0]
    return {key: value for key, value in metrics.items() if "Rows" in key or "Vectors" in key}


def joined(spark: SparkSession, table: str) -> DataFrame:
    return spark.sql(f"select a.g, count(*) n, max(b.s) s from {table} a join {table} b on a.k = b.k group by a.g")


@BOTH_WAYS
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


@ONE_TASK
def test_a_frame_whose_files_are_gone_is_planned_anew(spark: SparkSession) -> None:
    """As after ``VACUUM``, which takes longer."""
    spark.conf.set("spark.gpujoin.fallback", "silent")
    table = new_table(spark, BASE)
    run(spark, table, INSERT)
    old = files_of(spark, table)
    gpujoin.enable(spark)
    frame = joined(spark, table)
    assert frame.toArrow().num_rows == 3
    run(spark, table, "insert overwrite {t} values (1, 7, 'only')")
    for file in old:
        (folder_of(spark, table) / file["path"]).unlink()
    assert frame.toArrow().to_pylist() == [{"g": 7, "n": 1, "s": "only"}]
    assert [tuple(row) for row in frame.collect()] == [(7, 1, "only")]
    gpujoin.disable(spark)


@ONE_TASK
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


@ONE_TASK
def test_batches_of_a_stream_of_a_table_are_merged_into_another(spark: SparkSession, tmp_path: Path) -> None:
    source, target = (new_table(spark, BASE, properties=VECTORS) for _ in range(2))
    run(spark, source, INSERT)
    run(spark, target, "insert into {t} select id, 9, 'old' from range(50, 70)", "delete from {t} where k % 5 = 0")
    spark.conf.set("spark.gpujoin.fallback", "silent")
    gpujoin.enable(spark)

    def merge(rows: DataFrame, _: int) -> None:
        rows.createOrReplaceTempView("batch")
        rows.sparkSession.sql(
            f"merge into {target} a using (select k, max(g) g, max(s) s from batch group by k) b on a.k = b.k "
            "when matched then update set s = b.s when not matched then insert (k, g, s) values (b.k, b.g, b.s)"
        )

    query = (
        spark.readStream.table(source).writeStream.foreachBatch(merge).trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    )  # fmt: skip
    query.awaitTermination()
    gpujoin.disable(spark)
    (counts,) = spark.sql(f"select count(*), sum(k), sum(g), count_if(s like 'x%') from {target}").collect()
    old = [k for k in range(60, 70) if k % 5]
    kept = [k for k in range(50, 60) if k % 5]
    groups = sum(k % 3 for k in range(60) if k not in kept) + 9 * len(kept + old)
    assert tuple(counts) == (68, sum(range(60)) + sum(old), groups, 60)


@ONE_TASK
def test_a_stream_of_a_table_is_aggregated(spark: SparkSession, tmp_path: Path) -> None:
    source, target = (new_table(spark, columns) for columns in (BASE, "g int, n bigint"))
    run(spark, source, INSERT, "insert into {t} select id, 7, 'later' from range(5)")
    spark.conf.set("spark.gpujoin.fallback", "silent")
    gpujoin.enable(spark)
    query = (
        spark.readStream.option("maxFilesPerTrigger", 1).table(source).groupBy("g").agg({"*": "count"})
        .toDF("g", "n").writeStream.format("delta").outputMode("complete").trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint")).toTable(target)
    )  # fmt: skip
    query.awaitTermination()
    gpujoin.disable(spark)
    assert sorted(map(tuple, spark.table(target).collect())) == [(0, 20), (1, 20), (2, 20), (7, 5)]


@ONE_TASK
def test_the_recipe_over_tables_of_delta(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.gpujoin.fallback", "silent")
    (recipe,) = OF_DELTA
    outcome = measured(spark, recipe, tmp_path, 3000, 0)
    assert "scan spark_catalog.default.silver (Delta, version 1, " in outcome.explanation
    assert "rows deleted" in outcome.explanation
