"""What Spark takes rows from here to be in bytes, and what is made of sizes that nobody knows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

import gpujoin
from gpujoin.spark.query.accelerate import rewrite
from tests.brief import brief
from tests.spark.query.queries import FORCED, check, views, write_tables

SPARK = {**FORCED, "spark.sql.shuffle.partitions": "3", "spark.gpujoin.fallback": "silent"}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [SPARK], indirect=True, ids=["cpu"])]

EXCHANGED = ("scan.oneTaskBytes", "scan.taskBytes", "broadcastThreshold")
WAYS = {
    "one task": {},
    "bytes": dict.fromkeys(EXCHANGED, "1"),
    "rows": dict.fromkeys(EXCHANGED, "1") | {"exchange.transport": "rows"},
}
QUERIES = {
    "join": "select sales.id, items.s, cost from sales join items on sales.k = items.k where id <> {n}",
    "groups": "select a.k, sum(cost), count(*) from sales a join items b on a.k = b.k where id <> {n} group by a.k",
    "all": "select sum(cost), max(sales.s) from sales join items on sales.k = items.k where id <> {n}",
}
KEEPS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "localCheckpoint later": lambda query: query.localCheckpoint(eager=False),
    "checkpoint later": lambda query: query.checkpoint(eager=False),
    "persist": lambda query: query.persist(),
}
EAGER: dict[str, Callable[[DataFrame], DataFrame]] = {
    "checkpoint": lambda query: query.checkpoint(),
    "localCheckpoint": lambda query: query.localCheckpoint(),
}


@pytest.fixture
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.getbasetemp() / "tables"
    if not folder.exists():
        write_tables(spark, folder)
    spark.sparkContext.setCheckpointDir(str(folder.with_name("checkpoints")))
    with views(spark, folder, {"sales": None, "items": None}):
        yield spark
    spark.catalog.clearCache()
    for name in (*EXCHANGED, "exchange.transport"):
        spark.conf.unset(f"spark.gpujoin.{name}")
    gpujoin.disable(spark)


def size(frame: DataFrame) -> int:
    """Bytes that Spark takes the rows of a query to have."""
    return int(str(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))


def expected(spark: SparkSession, text: str) -> int:
    gpujoin.disable(spark)
    return size(spark.sql(text))


@pytest.mark.parametrize("way", brief(WAYS, "rows"))
def test_rows_that_are_kept_are_as_large_as_spark_takes_the_query_to_be(tables: SparkSession, way: str) -> None:
    for name, value in WAYS[way].items():
        tables.conf.set(f"spark.gpujoin.{name}", value)
    for number, (query, text) in enumerate(QUERIES.items()):
        for keep in KEEPS if (way, query) == ("bytes", "join") else ["localCheckpoint later"]:
            own = text.format(n=f"{number}{len(way)}{len(keep)}")
            plain = expected(tables, own)
            gpujoin.enable(tables)
            before = tables.sql(own)
            kept = KEEPS[keep](before)
            assert "gpujoin" in before._jdf.queryExecution().optimizedPlan().toString() or keep == "persist"
            # Widths in bytes are rounded twice where rows are partial results.
            assert abs(size(kept) - plain) <= 0.01 * plain + 8, (query, keep)


@pytest.mark.parametrize("way", brief(WAYS, "bytes"))
def test_a_checkpoint_knows_how_many_rows_it_has(tables: SparkSession, way: str) -> None:
    for name, value in WAYS[way].items():
        tables.conf.set(f"spark.gpujoin.{name}", value)
    gpujoin.enable(tables)
    for number, keep in enumerate(EAGER.values()):
        kept = keep(tables.sql(list(QUERIES.values())[number].format(n=5)))
        stats = kept._jdf.queryExecution().optimizedPlan().stats()
        assert int(str(stats.rowCount().get())) == kept.count() > 0
        assert size(kept) == kept.count() * (8 + sum(map(width, kept.dtypes)))


def width(column: tuple[str, str]) -> int:
    """Bytes that Spark takes a value of a column to have."""
    return {"int": 4, "bigint": 8, "string": 20}.get(column[1].partition("(")[0], 8)


def test_spark_does_not_broadcast_a_large_checkpoint(tables: SparkSession) -> None:
    text = "select s.id, t.item from sales s join items t on s.k = t.k"
    plain = tables.sql(text).localCheckpoint(eager=False)
    gpujoin.enable(tables)
    large = tables.sql(text).localCheckpoint(eager=False)
    assert "Exchange" not in large._jdf.queryExecution().optimizedPlan().toString()
    gpujoin.disable(tables)
    small = tables.range(3, numPartitions=1)
    for rows in (plain, large):
        plan = rows.join(small, "id")._jdf.queryExecution().executedPlan().toString()
        assert "BuildRight" in plan, plan


def test_a_rewritten_query_says_its_size_wherever_it_goes(tables: SparkSession) -> None:
    """Also in a self-join, for which Spark copies its plan with new columns."""
    text = QUERIES["join"].format(n=77)
    plain, here = tables.sql(text), rewrite(tables.sql(text)).frame
    assert size(here) == size(plain)
    assert size(here.alias("a").crossJoin(here.alias("b"))) == size(plain.alias("a").crossJoin(plain.alias("b")))


def seconds(frame: DataFrame) -> list[float]:
    """All seconds that an explanation predicts, in its columns and its texts."""
    told = str(gpujoin.explain(frame)).replace(",", "")
    in_columns = [line.split()[-1] for line in re.findall(r"^ *[0-9]+ (.{8,40}?)  [a-z#]", told, re.MULTILINE)]
    in_texts = re.findall(r"([0-9][0-9.e+]*) s\b", told)
    return [float(number) for number in (*in_columns, *in_texts) if re.fullmatch(r"[0-9][0-9.e+]*", number)]


def unknown_sizes(spark: SparkSession) -> dict[str, DataFrame]:
    """Queries over tables made from seven tuples, of which Spark says that they have 8 EiB."""
    seven, sales = spark.createDataFrame([(n, n) for n in range(7)], "k long, w long"), spark.table("sales")
    items = spark.table("items")
    other = seven.select("k", (seven.w + 1).alias("x"))
    return {
        "joined": sales.join(seven, "k").groupBy("s").count(),
        "with itself": seven.join(other, "k").join(items, "k").groupBy("k").count(),
        "all pairs": seven.crossJoin(other.withColumnRenamed("k", "y")).join(items, "k").groupBy("k").count(),
        "all pairs of three": seven.crossJoin(other.select("x")).crossJoin(seven.select("w")).groupBy("x").count(),
        "a range": sales.join(seven, sales.k.between(seven.k, seven.w)).groupBy("s").count(),
        "several": seven.union(seven).distinct().join(items, "k").groupBy("k").count(),
        "kept": seven.join(items, "k").localCheckpoint().join(sales, "k").groupBy("k").count(),
        "in Python": seven.mapInArrow(lambda batches: batches, "k long, w long").join(items, "k").groupBy("k").count(),
    }


@pytest.mark.parametrize("backend", ["auto", "cpu"])
def test_an_unknown_size_is_no_size(tables: SparkSession, backend: str) -> None:
    tables.conf.set("spark.gpujoin.backend", backend)
    for name, frame in unknown_sizes(tables).items():
        assert max(seconds(frame), default=0.0) < 100, (name, str(gpujoin.explain(frame)))


def rows_of(found: object, operation: str) -> list[str]:
    """Rows that an explanation predicts for operations of a kind."""
    return [line.split()[1] for line in str(found).splitlines() if operation in line and line[:1].isdigit()]


def test_constant_lists_make_as_many_rows_as_they_have(tables: SparkSession) -> None:
    made = "(select explode(sequence(1, 300)) k)"
    found = check(tables.sql(f"select count(*) from {made} a join sales on a.k = sales.k"))
    assert rows_of(found, "explode") == ["300"], str(found)
    rows = tables.sql(f"select * from {made}").mapInArrow(lambda batches: batches, "k int")
    found = check(rows.join(tables.table("items"), "k").groupBy("s").count())
    assert rows_of(found, "rows from Spark, about") == ["300"], str(found)
