"""Islands over partitioned Parquet tables: values of every type, nulls, pruning by Spark's own listing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import gpujoin
from gpujoin.report.metrics import IslandReport
from gpujoin.spark.query.accelerate import rewrite
from tests.brief import together
from tests.spark.query.queries import check, check_all

FORCED = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "raise"}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])]

QUERIES = {
    "values": "select k, s, day, count(*), sum(price) from parted group by k, s, day",
    "other types": """select p, t, flag, m, count(*) from typed group by p, t, flag, m""",
    "no file column": "select s, count(*) from parted group by s",
    "nulls": "select sum(price), count(*) from parted where k is null or s is null",
    "join": "select day, id, item from parted a join items i on a.k = i.k and a.s = i.s",
    "with a file column": "select sum(id) from parted where k = 1 or price > 1",
    "nothing left": "select sum(id), max(k) from parted where k = 777",
    "declared otherwise": "select k, sum(price) from declared group by k",
}


@pytest.fixture(scope="module")
def parted(written: None, spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("parted")
    path, typed = str(folder / "parted"), str(folder / "typed")
    sales = spark_session.table("sales")
    sales.select("id", "price", "k", "s", "day").write.partitionBy("k", "s", "day").parquet(path)
    spark_session.sql(
        "select id, k as p, cast(day as timestamp) t, flag, cast(price as decimal(10, 2)) m from sales"
    ).write.partitionBy("p", "t", "flag", "m").parquet(typed)
    spark_session.read.parquet(path).createOrReplaceTempView("parted")
    spark_session.read.schema("id int, p bigint, t timestamp, flag boolean, m decimal(12, 2)").parquet(
        typed
    ).createOrReplaceTempView("typed")
    spark_session.read.schema("id int, price decimal(10,2), k string, s string, day string").parquet(
        path
    ).createOrReplaceTempView("declared")
    yield
    for name in ("parted", "typed", "declared"):
        spark_session.catalog.dropTempView(name)


@pytest.mark.parametrize("names", together(QUERIES, "other types", "nulls", "with a file column"))
def test_partitioned_tables_run_whole(tables: SparkSession, parted: None, names: tuple[str, ...]) -> None:
    found = check_all({name: tables.sql(QUERIES[name]) for name in names})
    assert all(each.islands for each in found.values())


PRUNED = {"k = 1": 3, "k > 1 and s <> 'x'": 1, "upper(s) = 'X'": 4, "day is null": 1, "id > 0": 8}
"""Conditions, and how many files have rows that fulfil them."""


def test_spark_prunes_partitions(tables: SparkSession, parted: None) -> None:
    query = "select sum(price), count(*) from parted where {}"
    for condition, found in check_all({text: tables.sql(query.format(text)) for text in PRUNED}).items():
        counted = re.search(r"scan .*\((\d+) files, ", str(found))
        assert (int(counted.group(1)) if counted else 1) == PRUNED[condition], condition


@pytest.mark.parametrize(
    ("dimension", "read"),
    [
        ("(select * from items where item = 10)", 3),
        ("(select * from values (1, 10), (3, 20) v(k, item))", 4),
        ("none", 0),
    ],
    ids=["filtered", "written", "empty"],
)
def test_partitions_without_a_match_for_a_join_are_not_read(
    tables: SparkSession, parted: None, dimension: str, read: int
) -> None:
    tables.conf.set("spark.sql.optimizer.dynamicPartitionPruning.reuseBroadcastOnly", "true")
    text = f"select sum(a.id), max(b.k) from parted a join {dimension} b on a.k = b.k"
    frame = tables.sql(text)
    if "where" in dimension:
        assert "dynamicpruning" in frame._jdf.queryExecution().optimizedPlan().toString()
    assert check(frame).islands
    run = gpujoin.accelerate(frame)
    run.collect()
    (report,) = gpujoin.metrics(run)
    assert isinstance(report, IslandReport)
    done = report.metrics.pipeline
    # One of the eight files has a null key, which an inner join asks for nowhere.
    assert done.skipped_files == 7 - read


def test_a_table_of_the_catalog(tables: SparkSession) -> None:
    tables.table("sales").write.partitionBy("k").saveAsTable("gpujoin_parted")
    try:
        for condition in ("k = 2", "true"):
            found = rewrite(tables.sql(f"select k, sum(price) from gpujoin_parted where {condition} group by k"))
            assert found.explanation.islands
        check(tables.sql("select k, s, sum(price) from gpujoin_parted where k < 3 group by k, s"))
    finally:
        tables.sql("drop table gpujoin_parted")


def test_decimals_of_another_scale_than_declared_are_left_to_spark(
    tables: SparkSession, parted: None, tmp_path: Path
) -> None:
    path = str(tmp_path / "scales")
    tables.sql("select id, cast(price as decimal(10, 2)) m from sales").write.partitionBy("m").parquet(path)
    frame = tables.read.schema("id int, m decimal(12, 3)").parquet(path)
    tables.conf.set("spark.gpujoin.fallback", "silent")
    assert "decimal(12,3)" in str(check(frame.groupBy("m").count()))
