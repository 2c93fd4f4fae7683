"""Writes to tables of Iceberg in enabled sessions, and tables that change while queries are planned and run."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlparse

import pytest
from pyspark.sql import DataFrame, SparkSession

import gpujoin
from gpujoin.spark.query import running
from gpujoin.spark.query.accelerate import rewrite
from gpujoin.testing import assert_same_rows
from tests.lake.icebergs import new_table
from tests.lake.queries import TYPES, check_read, queries_of, rows, run
from tests.spark.query.faults import KilledStage
from tests.spark.query.queries import EXCHANGED, FORCED

pytestmark = [
    pytest.mark.lake("iceberg"),
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
    "UPDATE": "update {t} set s = 'u' where k in (select k from {t} where g = 1) or k > (select avg(k) from {t})",
    "DELETE": "delete from {t} where exists (select 1 from {t} b where b.k = {t}.k + 30)",
    "INSERT": "insert into {t} select a.k + 100, a.g, b.s from {t} a join {t} b on a.k = b.k + 1",
    "INSERT OVERWRITE": (
        "insert overwrite {t} select a.k, count(*), max(b.s) from {t} a join {t} b on a.g = b.g group by a.k"
    ),
}


WAYS = [
    *((FORCED, name, version) for name in WRITES for version in (1, 2, 3)),
    *((EXCHANGED, name, 2) for name in WRITES if "INSERT" not in name),
]


@pytest.mark.parametrize(
    ("spark", "name", "version"),
    WAYS,
    indirect=["spark"],
    ids=[f"{name}, {version}{'' if how is FORCED else ', exchanged'}" for how, name, version in WAYS],
)
def test_writes_leave_the_table_as_spark_does(spark: SparkSession, name: str, version: int) -> None:
    tables = [new_table(spark, BASE, version=version, by="g") for _ in range(2)]
    for table in tables:
        run(spark, table, INSERT)
        if version > 1:
            run(spark, table, "delete from {t} where k % 5 = 0")
    spark.conf.set("spark.gpujoin.fallback", "silent")  # what a write reads by columns that are in no file is Spark's
    gpujoin.enable(spark)
    run(spark, tables[0], WRITES[name])
    gpujoin.disable(spark)
    run(spark, tables[1], WRITES[name])
    assert_same_rows(spark.table(tables[0]).toArrow(), spark.table(tables[1]).toArrow())
    summaries = [
        spark.sql(f"select summary from {table}.snapshots order by committed_at desc limit 1").collect()[0][0]
        for table in tables
    ]
    counts = [{key: value for key, value in each.items() if key.endswith("-records")} for each in summaries]
    assert counts[0] == counts[1], "Spark's own metrics of rows"
    frames = queries_of(spark, tables[0])
    del frames["rows"]
    check_read(frames.items())


FAILING = {
    "MERGE": (
        f"merge into {{t}} a using {OTHER} b on a.k = b.k when matched then update set g = cast(1 / (a.k - 46) as int) "
        "when not matched then insert (k, g, s) values (b.k, b.w, b.s)"
    ),
    "UPDATE": "update {t} set g = cast(1 / (k - 46) as int) where k in (select k from {t} where k > 20)",
    "DELETE": "delete from {t} where exists (select 1 from {t} b where b.k = {t}.k and 1 / (b.k - 46) > 0.1)",
    "INSERT": "insert into {t} select a.k, cast(1 / (a.k - 46) as int), b.s from {t} a join {t} b on a.k = b.k",
}


@BOTH_WAYS
@pytest.mark.parametrize("name", FAILING)
def test_a_write_that_fails_leaves_the_table_as_it_was(spark: SparkSession, name: str) -> None:
    table = new_table(spark, BASE, by="g")
    run(spark, table, INSERT, "delete from {t} where k % 5 = 0")
    before, snapshots = spark.table(table).toArrow(), spark.table(f"{table}.snapshots").count()
    spark.conf.set("spark.gpujoin.fallback", "silent")
    gpujoin.enable(spark)
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        run(spark, table, FAILING[name])
    gpujoin.disable(spark)
    assert_same_rows(spark.table(table).toArrow(), before)
    assert spark.table(f"{table}.snapshots").count() == snapshots


@BOTH_WAYS
@pytest.mark.parametrize("name", ["MERGE", "INSERT OVERWRITE"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_write_whose_tasks_are_killed_here_is_sparks(
    spark: SparkSession, name: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [new_table(spark, BASE, version=version, by="g") for _ in range(2)]
    spark.conf.set("spark.gpujoin.fallback", "silent")
    for table in tables:
        run(spark, table, INSERT, "delete from {t} where k % 5 = 0")
    run(spark, tables[1], WRITES[name])
    monkeypatch.setattr(running, "RunStage", KilledStage)
    gpujoin.enable(spark)
    run(spark, tables[0], WRITES[name])
    gpujoin.disable(spark)
    assert_same_rows(spark.table(tables[0]).toArrow(), spark.table(tables[1]).toArrow())


def joined(spark: SparkSession, table: str) -> DataFrame:
    return spark.sql(f"select a.g, count(*) n, max(b.s) s from {table} a join {table} b on a.k = b.k group by a.g")


@BOTH_WAYS
@pytest.mark.parametrize(
    "change", ["insert into {t} values (1, 1, 'late')", "delete from {t} where k < 30", "delete from {t}"]
)
def test_a_query_has_the_snapshot_for_which_it_was_planned(spark: SparkSession, change: str) -> None:
    table = new_table(spark, BASE)
    run(spark, table, INSERT, "delete from {t} where k % 5 = 0")
    before = joined(spark, table).toArrow()
    planned = rewrite(joined(spark, table))
    assert planned.changed
    run(spark, table, change)
    assert_same_rows(planned.frame.toArrow(), before)
    assert_same_rows(rewrite(joined(spark, table)).frame.toArrow(), joined(spark, table).toArrow(), allow_empty=True)


@ONE_TASK
def test_files_that_are_gone_are_an_error_that_names_them(spark: SparkSession) -> None:
    table = new_table(spark, BASE)
    run(spark, table, INSERT)
    planned = rewrite(joined(spark, table))
    for (path,) in spark.sql(f"select file_path from {table}.files").collect():
        Path(urlparse(path).path).unlink()
    with pytest.raises(Exception, match=r"\.parquet: No such file"):
        planned.frame.toArrow()


@ONE_TASK
@pytest.mark.parametrize("damage", ["gone", "cut", "changed"])
@pytest.mark.parametrize("version", [2, 3])
def test_a_damaged_file_of_deletes_is_an_error_that_names_it(spark: SparkSession, version: int, damage: str) -> None:
    table = new_table(spark, BASE, version=version)
    run(spark, table, INSERT, "delete from {t} where k % 5 = 0")
    planned = rewrite(joined(spark, table))
    locations = spark.sql(f"select distinct file_path from {table}.delete_files").collect()
    paths = [Path(urlparse(location).path) for (location,) in locations]
    for path in paths:
        data = path.read_bytes()
        if damage == "gone":
            path.unlink()
        elif damage == "cut":
            path.write_bytes(data[:20])
        else:
            path.write_bytes(bytes(255 - byte for byte in data))
    with pytest.raises(Exception, match="|".join(path.name for path in paths)):
        planned.frame.toArrow()


@ONE_TASK
def test_a_query_of_an_enabled_session_runs_again_when_files_are_gone(spark: SparkSession) -> None:
    spark.conf.set("spark.gpujoin.fallback", "silent")
    table = new_table(spark, BASE)
    run(spark, table, INSERT)
    gpujoin.enable(spark)
    frame = joined(spark, table)
    frame._jdf.queryExecution().optimizedPlan()
    run(spark, table, "insert into {t} values (1, 1, 'late')")
    assert frame.toArrow().num_rows == 3
    gpujoin.disable(spark)


@ONE_TASK
def test_a_frame_whose_files_are_gone_is_planned_anew(spark: SparkSession) -> None:
    spark.conf.set("spark.gpujoin.fallback", "silent")
    table = new_table(spark, BASE)
    run(spark, table, INSERT)
    gpujoin.enable(spark)
    frame = joined(spark, table)
    assert len(frame.collect()) == 3
    run(spark, table, "insert overwrite {t} values (1, 7, 'only')")
    expire = "older_than => timestamp'2100-01-01 00:00:00', retain_last => 1"
    spark.sql(f"call ice.system.expire_snapshots(table => '{table.removeprefix('ice.')}', {expire})")
    assert [tuple(row) for row in frame.collect()] == [(7, 1, "only")]
    gpujoin.disable(spark)


@ONE_TASK
def test_two_snapshots_of_a_table_in_a_query(spark: SparkSession) -> None:
    table = new_table(spark, BASE)
    run(spark, table, INSERT)
    first = spark.sql(f"select snapshot_id from {table}.snapshots").collect()[0][0]
    run(spark, table, "delete from {t} where k % 2 = 0")
    text = f"select a.k, b.k k2 from {table} version as of {first} a left join {table} b on a.k = b.k"
    check_read([("two snapshots", spark.sql(text))])


@BOTH_WAYS
@pytest.mark.parametrize("kind", ["inner", "left", "full"])
def test_joins_of_tables_that_are_partitioned_alike(spark: SparkSession, kind: str) -> None:
    for key in (
        "bucketing.enabled",
        "bucketing.pushPartValues.enabled",
        "bucketing.partiallyClusteredDistribution.enabled",
    ):
        spark.conf.set(f"spark.sql.sources.v2.{key}", "true")
    spark.conf.set("spark.sql.iceberg.planning.preserve-data-grouping", "true")
    spark.conf.set("spark.sql.requireAllClusterKeysForCoPartition", "false")
    left, right = (new_table(spark, BASE, by="bucket(4, k)") for _ in range(2))
    run(spark, left, INSERT, "delete from {t} where k % 5 = 0")
    run(spark, right, INSERT, "insert into {t} select id, 1, 'y' from range(50, 80)")
    check_read([(kind, spark.sql(f"select a.*, b.k k2, b.s s2 from {left} a {kind} join {right} b on a.k = b.k"))])
    three = f"{left} a {kind} join {right} b on a.k = b.k join {right} c on a.k = c.k"
    check_read([(kind, spark.sql(f"select a.k, count(*) n from {three} group by a.k"))])
    if spark.conf.get("spark.gpujoin.exchange.partitions", None) is None:
        return
    told = str(rewrite(spark.sql(f"select a.*, b.k k2 from {left} a {kind} join {right} b on a.k = b.k")).explanation)
    assert f"{left} and {right} are divided among tasks by the buckets that their files are in" in told
    assert "exchange by" not in told
    other = new_table(spark, BASE, by="bucket(3, k)")
    run(spark, other, INSERT)
    by_others = spark.sql(f"select a.*, b.k k2 from {left} a {kind} join {other} b on a.k = b.k")
    check_read([("other buckets", by_others)])
    assert "exchange by k" in str(rewrite(by_others).explanation)


@BOTH_WAYS
def test_buckets_of_many_types_and_of_nulls(spark: SparkSession) -> None:
    """Tables that were written before and after their partitions changed, with nulls and deleted rows."""
    for key in ("k", "s", "e"):
        by = f"bucket(4, {key}), truncate(10, k)"
        left, right = (new_table(spark, TYPES, by=each) for each in (by, f"bucket(4, {key})"))
        run(spark, left, f"insert into {{t}} {rows(0, 60)}", "delete from {t} where k % 7 = 3")
        run(spark, right, f"insert into {{t}} {rows(20, 90)}", "alter table {t} add partition field b")
        run(spark, right, f"insert into {{t}} {rows(80, 100)}", "delete from {t} where k % 5 = 2")
        for kind in ("inner", "full"):
            frame = spark.sql(f"select a.*, b.k k2 from {left} a {kind} join {right} b on a.{key} = b.{key}")
            check_read([(f"{key}, {kind}", frame)])
        same = spark.sql(f"select a.k, b.k k2 from {left} a left join {right} b on a.{key} <=> b.{key} and a.k < b.k")
        check_read([(f"{key}, null safe", same)])
        groups = spark.sql(f"select {key}, count(*) n, min(k) l, max(b) m from {right} group by {key}")
        window = spark.sql(f"select k, count(*) over (partition by {key}) n from {right}")
        check_read([(f"{key}, groups", groups), (f"{key}, window", window)])
        if spark.conf.get("spark.gpujoin.exchange.partitions", None) is not None:
            for frame in (same, groups, window):
                assert "by the buckets that " in str(rewrite(frame).explanation)


@ONE_TASK
def test_a_stream_joined_with_a_table(spark: SparkSession, tmp_path: object) -> None:
    table = new_table(spark, BASE)
    run(spark, table, INSERT, "delete from {t} where k % 5 = 0")
    spark.conf.set("spark.gpujoin.fallback", "silent")
    gpujoin.enable(spark)
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load().selectExpr("value as k")
    batches: list[int] = []
    query = (
        frame.join(spark.table(table), "k")
        .writeStream.foreachBatch(lambda rows, _: batches.append(rows.count()))
        .trigger(once=True)
        .option("checkpointLocation", f"{tmp_path}/checkpoint")
        .start()
    )
    query.awaitTermination()
    gpujoin.disable(spark)
    assert sum(batches) == 40


@ONE_TASK
def test_a_stream_of_a_table_joined_with_one(spark: SparkSession, tmp_path: Path) -> None:
    source, table = (new_table(spark, BASE) for _ in range(2))
    run(spark, source, INSERT, "insert into {t} select id, 7, 'later' from range(100, 105)")
    run(spark, table, INSERT, "delete from {t} where k % 5 = 0", "insert into {t} values (102, 1, 'y')")
    spark.conf.set("spark.gpujoin.fallback", "silent")
    gpujoin.enable(spark)
    keys: list[int] = []
    query = (
        spark.readStream.format("iceberg").load(source).join(spark.table(table).select("k"), "k")
        .writeStream.foreachBatch(lambda rows, _: keys.extend(row.k for row in rows.collect()))
        .trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    )  # fmt: skip
    query.awaitTermination()
    gpujoin.disable(spark)
    assert sorted(keys) == [*(k for k in range(60) if k % 5), 102]
