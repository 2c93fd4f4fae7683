"""Stages alike run once, and few rows go on to one task: answers, paths, and what the workers have read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import gpujoin
from tests.brief import shared_out, together
from tests.spark.query.queries import EXCHANGED, check, check_all, checked, views

pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [EXCHANGED], indirect=True, ids=["cpu"])]

SUMS = "with sums as (select k, count(*) as n, sum(price) as total from sales group by k)"
TWICE = f"""{SUMS} select a.k, a.n, a.total, b.n as m, b.total as sum from sums a full
join (select k + 1 as next, n, total from sums) b on a.k = b.next"""
REPEATED = "computed once with an exchange alike"


@pytest.mark.parametrize(("transport", "scanned"), [("bytes", 8), pytest.param("rows", 16, marks=pytest.mark.extra)])
def test_a_view_that_several_stages_read_is_computed_once_and_sent_as_bytes(
    tables: SparkSession, transport: str, scanned: int
) -> None:
    tables.conf.set("spark.gpujoin.exchange.transport", transport)
    found = checked(tables.sql(TWICE))
    assert str(found.explanation).count(REPEATED) == (1 if transport == "bytes" else 0)
    assert sum(stage.metrics.pipeline.scanned_rows for stage in gpujoin.metrics(found.frame)) == scanned


DIFFERENT = {
    "other conditions": (
        """select a.k, a.n, b.n from (select k, count(*) as n from sales where id > 1 group by k) a
        join (select k + 1 as next, n from (select k, count(*) as n from sales where id > 2 group by k)) b
        on a.k = b.next"""
    ),
    "other files": (
        """select a.k, a.n, b.n from (select k, count(*) as n from sales group by k) a
        join (select k + 1 as next, n from (select k, count(*) as n from items group by k)) b on a.k = b.next"""
    ),
    "other keys": (
        """select a.id, b.id, c.item from sales a join items c on a.k = c.k join sales b on c.s = b.s"""
    ),
    "two inputs of one stage": "select a.id, b.id from sales a join sales b on a.k = b.k and a.id < b.id",
}  # fmt: skip


@pytest.mark.parametrize("names", together(DIFFERENT, "other conditions", "two inputs of one stage"))
def test_stages_that_differ_are_computed_each(tables: SparkSession, names: tuple[str, ...]) -> None:
    for name, found in check_all({name: tables.sql(DIFFERENT[name]) for name in names}).items():
        assert REPEATED not in str(found), name


def test_what_several_stages_read_is_there_in_every_run(tables: SparkSession) -> None:
    frame = gpujoin.accelerate(tables.sql(TWICE))
    first, second = sorted(frame.collect(), key=str), sorted(frame.collect(), key=str)
    assert first == second == sorted(tables.sql(TWICE).collect(), key=str)


SMALL = {
    "groups": ("select s, count(*), sum(price) from sales group by s", 1),
    "no keys": ("select count(*), max(price) from sales", 1),
    "no rows": ("select count(*), max(price) from sales where id > 1000", 1),
    "distinct": ("select s, count(distinct k), sum(price) from sales group by s", 1),
    "order": ("select s, count(*) as n from sales group by s order by n, s", 1),
    "window": ("select id, sum(price) over (partition by k order by id) from sales where id > 0", 1),
    "full join of groups": (
        """select a.k, a.n, b.n from (select k, count(*) as n from sales group by k) a
        full join (select k, count(*) as n from items group by k) b on a.k = b.k""", 1
    ),
    "union of groups": (
        """select k, count(*) as n from sales group by k
        union all select k, count(*) as n from items group by k""", 1
    ),
}  # fmt: skip
"""Queries, and the tasks of their last stages."""


@pytest.mark.parametrize(
    ("transport", "names"),
    shared_out(SMALL, ("no keys", "order", "window", "no rows", "union of groups"), ("bytes", "rows")),
)
def test_few_rows_are_finished_by_one_task_without_a_shuffle_of_sparks(
    tables: SparkSession, transport: str, names: tuple[str, ...]
) -> None:
    tables.conf.unset("spark.gpujoin.exchange.partitions")
    tables.conf.set("spark.gpujoin.exchange.transport", transport)
    for name, found in check_all({name: tables.sql(SMALL[name][0]) for name in names}, empty=["no rows"]).items():
        text, tasks = SMALL[name]
        assert [island.tasks for island in found.islands[:1]] == [tasks]
        plan = gpujoin.accelerate(tables.sql(text))._jdf.queryExecution().executedPlan().toString()
        assert "hashpartitioning" not in plan
        if transport == "bytes":
            assert "Exchange" not in plan, "Spark knows that the rows are in one partition"


def test_rows_are_not_exchanged_where_spark_alone_merges_their_sums(tables: SparkSession) -> None:
    """Spark finds the overflow of a sum without room for more digits: tasks give it partial results."""
    results = ", ".join(f"sum(cast(price as decimal(30, 2)) + {n})" for n in range(12))
    query = f"select s, {results} from sales group by s"
    (island,) = check(tables.sql(query)).islands
    assert any("partial aggregate" in line for line in island.tree), island.tree
    assert not any("exchange" in line for line in island.tree), island.tree


def test_totals_of_a_small_table_come_once_beside_the_rows_of_a_larger_one(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(5).coalesce(1).write.parquet(str(tmp_path / "small"))
    spark.range(20_000).repartition(3).write.parquet(str(tmp_path / "large"))
    spark.conf.unset("spark.gpujoin.exchange.partitions")
    spark.conf.set("spark.gpujoin.scan.taskBytes", "20000")
    with views(spark, tmp_path, {"small": None, "large": None}):
        query = "select n, count(*) from ({0} union all select id from large where id < 3) group by n"
        union = "select id, count(*) as n from small group by id union all select id, id as n from large where id < 3"
        texts = {total: query.format(f"select {total} as n from small") for total in ("count(*)", "max(id)")}
        texts["groups"] = f"select n, count(*) from ({union}) group by n"
        explained = str(check_all({name: spark.sql(text) for name, text in texts.items()})["groups"])
        assert "read by one task" in explained
        assert "read by every task" not in explained


def test_a_worker_reads_once_what_every_task_reads(tables: SparkSession) -> None:
    tables.conf.set("spark.gpujoin.broadcastThreshold", "1m")
    query = "select a.id, b.item from sales a join items b on a.k = b.k and b.item <> 21"
    assert "read by every task" in str(check(tables.sql(query)))
    frame = gpujoin.accelerate(tables.sql(query))
    for _ in range(tables.sparkContext.defaultParallelism):  # until each worker has had one of the two tasks
        frame.collect()
    (report,) = gpujoin.metrics(frame)
    assert report.metrics.pipeline.tables_kept == 2
    assert "kept from an earlier task" in str(report)


@pytest.mark.slow
def test_a_thousand_tasks_decode_a_table_once_for_each_worker(spark: SparkSession, tmp_path: Path) -> None:
    rows = np.random.default_rng(7).permutation(2_500_000)
    (tmp_path / "items").mkdir()
    table = pa.table({"k": rows, "v": rows % 1000})
    pq.write_table(table, tmp_path / "items" / "items.parquet", use_dictionary=["v"], compression="none")
    (items,) = (tmp_path / "items").iterdir()
    assert items.stat().st_size > 20_000_000
    spark.range(0, 50_000, 1, 1000).selectExpr("id", "id * 49 as k").write.parquet(str(tmp_path / "sales"))
    spark.conf.set("spark.gpujoin.broadcastThreshold", "1g")
    with views(spark, tmp_path, {"items": None, "sales": None}):
        text = "select /*+ broadcast(b) */ count(*), sum(a.id), sum(b.v) from sales a join items b on a.k = b.k"
        frame = gpujoin.accelerate(spark.sql(text))
        assert "read by every task" in str(gpujoin.explain(frame))
        (row,) = frame.collect()
        assert tuple(row) == (50_000, 49_999 * 25_000, int((np.arange(50_000) * 49 % 1000).sum()))
        stage = max(gpujoin.metrics(frame), key=lambda report: report.tasks)
    assert stage.tasks == 1000
    decoded = stage.tasks - stage.metrics.pipeline.tables_kept
    assert 1 <= decoded <= spark.sparkContext.defaultParallelism
    assert stage.metrics.pipeline.files == 1000 + decoded
