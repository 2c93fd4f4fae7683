"""What users read of a query: in ``explain``, in warnings and in ``metrics``, in their own words and once."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import gpujoin
from gpujoin import explain, gpu_asof_join, gpu_join
from tests.spark.query.queries import FORCED

pytestmark = pytest.mark.spark

PREDICTION = "are predicted here"
SLOW = "query=100"
"""Costs under which nothing is faster here."""


def test_a_prediction_is_told_once(enabled: SparkSession) -> None:
    enabled.conf.set("spark.gpujoin.costs", SLOW)
    one = enabled.sql("select s, count(*) from sales join items using (k, s) group by s")
    assert str(explain(one)).count(PREDICTION) == 1
    two = enabled.sql("select * from sales join items using (k) join items other using (k)")
    text = str(explain(two))
    assert text.count(PREDICTION) == 1
    assert "1, 2  left to Spark: it is predicted to be faster there: " in text
    assert len({join.reasons for join in explain(two).joins}) == 1


def test_what_is_advised_fits_how_the_join_was_written(enabled: SparkSession) -> None:
    enabled.conf.set("spark.gpujoin.costs", SLOW)
    sql = str(explain(enabled.sql("select * from sales join items using (k)")))
    assert "change with spark.gpujoin.backend=cpu" in sql
    assert "strategy=" not in sql
    asked = gpu_join(enabled.table("sales"), enabled.table("items"), "k")
    assert "change with strategy= or backend= of gpu_join" in str(explain(asked))


def test_hints_are_advised_where_the_strategy_does_not_fit(enabled: SparkSession) -> None:
    enabled.conf.set("spark.gpujoin.strategy", "shuffle")
    (reason,) = explain(enabled.sql("select * from sales join items on sales.k < items.k")).joins[0].reasons
    assert reason.what == "the inner join on k < k"
    assert reason.why == "a shuffled join needs an equality between the sides"
    assert "hints such as /*+" in str(reason.setting)
    left, right = enabled.table("sales"), enabled.table("items")
    (reason,) = explain(gpu_join(left, right, left.k < right.k, strategy="shuffle")).joins[0].reasons
    assert reason.setting == "strategy='nested_loop'"


@pytest.mark.parametrize(
    ("direction", "shown"),
    [
        ("backward", "backward, right.day <= left.day, within interval 3 days"),
        ("forward", "forward, right.day >= left.day, within interval 3 days"),
        ("nearest", "right.day nearest to left.day, within interval 3 days"),
    ],
)
def test_an_as_of_join_shows_its_terms(tables: SparkSession, direction: Any, shown: str) -> None:
    sales = tables.table("sales").select("k", "day")
    frame = gpu_asof_join(sales, sales, on="day", by="k", direction=direction, tolerance=dt.timedelta(days=3))
    explained = explain(frame)
    (join,) = explained.joins
    assert join.condition == shown
    assert f"as-of ({shown}) left join" in str(explained)
    assert [row.k for row in frame.collect()]
    (report,) = gpujoin.metrics(frame)
    assert report.description == "scan sales, as-of join sales"
    assert shown in str(gpujoin.metrics(frame))


def unknown(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(spark.sparkContext.parallelize([(1, 2), (5, 6)]), "low long, high long")


def test_a_size_that_nobody_knows_is_not_told_in_bytes(enabled: SparkSession) -> None:
    enabled.conf.set("spark.gpujoin.backend", "cpu")
    query = unknown(enabled).join(enabled.table("sales"), sf.expr("k between low and high"))
    text = str(explain(query))
    _, head, *_ = text.splitlines()
    assert " and rows of unknown size [" in head
    assert "rows from Spark, size unknown: rows that the program gave to Spark" in text
    assert "Spark, about" not in text
    enabled.conf.set("spark.gpujoin.backend", "auto")
    enabled.conf.set("spark.gpujoin.costs", SLOW)
    text = str(explain(query))
    assert "estimated sizes: left unknown" in text
    assert "an input of unknown size was taken to have 1,000,000 rows" in text


def test_products_of_sizes_are_no_estimate(tables: SparkSession) -> None:
    text = str(explain(tables.sql("select * from sales join items using (k) join items other using (k)")))
    assert "estimated sizes: left unknown, right" in text


def plus_one(k: int) -> int:
    return k + 1


def of_csv(spark: SparkSession, folder: Path) -> DataFrame:
    spark.table("items").select("item", "k").write.mode("overwrite").csv(str(folder / "items.csv"))
    return spark.read.csv(str(folder / "items.csv"), schema="item int, k int")


PARTS: dict[str, tuple[Callable[[SparkSession, Path], DataFrame], str]] = {
    "an aggregate function": (
        lambda spark, _: spark.sql("select k, collect_set(weight) from sales group by k"),
        "the aggregation by k: collect_set(",
    ),
    "a Python UDF": (
        lambda spark, _: spark.table("sales").groupBy(sf.udf(plus_one, "long", useArrow=False)("k")).count(),
        "the Python UDF plus_one(k): Spark runs Python UDFs",
    ),
    "files that are not Parquet": (
        lambda spark, folder: spark.table("sales").join(of_csv(spark, folder), "k"),
        "items.csv (only Parquet and ORC files are read here)",
    ),
    "a cached table": (
        lambda spark, _: spark.table("sales").join(spark.sql("select k, item from items").cache(), "k"),
        ": a cached table",
    ),
    "a window": (
        lambda spark, _: spark.table("sales").join(
            spark.sql("select k, size(collect_list(item) over (partition by s)) n from items"), "k"
        ),
        "the window collect_list(item) (",
    ),
    "the type of a key": (
        lambda spark, _: spark.sql(
            "select a.id from sales a join sales b on make_ym_interval(a.k) = make_ym_interval(b.k)"
        ),
        "the inner join on make_ym_interval(k, 0) = make_ym_interval(k, 0)",
    ),
}


@pytest.mark.parametrize("part", PARTS)
def test_parts_are_named_in_the_words_of_the_query(enabled: SparkSession, part: str, tmp_path: Path) -> None:
    for setting, value in FORCED.items():
        enabled.conf.set(setting, value)
    make, shown = PARTS[part]
    text = str(explain(make(enabled, tmp_path)))
    assert shown in text
    for internal in ("island: ", "EvalPython", "InMemoryRelation", "LogicalR", "is not covered"):
        assert internal not in text.replace("  island: ", "")


def test_columns_have_the_names_that_the_query_gives_them(enabled: SparkSession, tmp_path: Path) -> None:
    enabled.conf.set("spark.gpujoin.backend", "cpu")
    read = enabled.table("sales").selectExpr("cast(k as long) k", "s")
    query = read.join(of_csv(enabled, tmp_path), "k").groupBy("s").count()
    text = str(explain(query))
    assert "k = k" in text
    assert "count(*) by s\n" in text


def warnings_of(caplog: pytest.LogCaptureFixture, *queries: DataFrame) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "gpujoin"):
        for query in queries:
            query.collect()
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("seeded", ["rand()", "uuid()"])
def test_seeds_are_no_other_query(enabled: SparkSession, caplog: pytest.LogCaptureFixture, seeded: str) -> None:
    text = f"select k, collect_set(weight), {seeded} from sales group by k"
    assert len(warnings_of(caplog, enabled.sql(text), enabled.sql(text))) == 1


def test_a_query_is_warned_of_once(enabled: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    text = "select k, collect_set(weight) from sales group by k"
    (message,) = warnings_of(caplog, *(enabled.sql(text) for _ in range(3)))
    assert message.startswith("gpujoin: a part of the query is left to Spark: the aggregation by k: collect_set(")
    assert len(warnings_of(caplog, enabled.sql(text + " having k > 1"))) == 1, "another query"
    other_function = text.replace("collect_set(weight)", "histogram_numeric(weight, 3)")
    assert len(warnings_of(caplog, enabled.sql(other_function))) == 1, "another reason"
    other = enabled.newSession()
    try:
        enabled.table("sales").createOrReplaceGlobalTempView("sold")
        assert len(warnings_of(caplog, other.sql(text.replace("sales", "global_temp.sold")))) == 1
    finally:
        enabled.catalog.dropGlobalTempView("sold")
        gpujoin.disable(other)
    assert not warnings_of(caplog, enabled.sql(text))


def test_other_seconds_are_no_other_reason(tables: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    def query(seconds: int) -> DataFrame:
        tables.conf.set("spark.gpujoin.costs", f"query={seconds}")
        return gpu_join(tables.table("sales"), tables.table("items"), "k")

    assert len(warnings_of(caplog, query(100))) == 1
    assert not warnings_of(caplog, query(200))


REASONS = {
    "a function over floats": (
        "select k, collect_set(weight * 2) from sales group by k", "collect_set(weight * 2.0): ",
    ),
    "an argument that Spark computes apart": (
        "select stddev_samp(weight * 2) over (partition by k order by id) from sales", "stddev_samp(weight * 2.0) over",
    ),
    "a list of a window": (
        "select collect_list(weight * 2) over (partition by k order by id) from sales",
        "collect_list(weight * 2.0) over",
    ),
    "a method of Java": ("select max(try_url_decode(s)) from sales", "url_decode(s) follows a setting"),
    "JSON": ("select max(to_json(named_struct('a', k))) from sales", "to_json("),
    "a lambda function": (
        "select k, max(size(array_sort(array(k), (l, r) -> if(l < r, -1, 1)))) from sales group by k",
        "the comparator (l, r) -> ",
    ),
    "a conversion that nobody wrote": (
        "select percentile_approx(k + cost, 0.5) from sales join items using (k)", "(k + cost, ",
    ),
    "a conversion that the query has": (
        "select approx_percentile(cast(k as bigint), 0.5) from sales", "approx_percentile(cast(k as bigint), 0.5",
    ),
    "a map as a group": ("select m, count(*) from (select map(k, s) m from sales) group by m", "map<int,string>"),
    "intervals as keys": (
        "select a.id from sales a join sales b on make_ym_interval(a.k) = make_ym_interval(b.k)",
        "the inner join on make_ym_interval(k, 0) = make_ym_interval(k, 0)",
    ),
    "a long constant": (f"select k, max(format_string('{'x' * 200}%o', k)) from sales group by k", f"'{'x' * 79}…'"),
    "text of doubles": (
        "select max(cast(weight as string)) from sales", "cast(weight as string) turns doubles into text, which only",
    ),
    "a range of months": (
        "select sum(id) over (order by day range between interval 1 month preceding and current row) from sales",
        "sum(id): a range of interval month around date is not computed here",
    ),
    "operators": (
        "select max(format_string('%o', k)) from sales where k in (1, 2) and not (s like 'a%') group by -(k + 1) * 2",
        "the aggregation by -(k + 1) * 2: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REASONS)
def test_reasons_are_in_the_words_of_the_query(enabled: SparkSession, name: str) -> None:
    for setting, value in FORCED.items():
        enabled.conf.set(setting, value)
    query, shown = REASONS[name]
    explained = explain(enabled.sql(query))
    reasons = [*explained.reasons, *(reason for join in explained.joins for reason in join.reasons)]
    assert any(shown in str(reason) for reason in reasons), [*map(str, reasons)]


def test_a_source_that_spark_reads_is_no_news_where_the_rest_runs_here(
    enabled: SparkSession, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    for setting, value in FORCED.items():
        enabled.conf.set(setting, value)
    enabled.conf.set("spark.gpujoin.fallback", "warn")
    counted = of_csv(enabled, tmp_path).groupBy("k").count()
    assert not warnings_of(caplog, enabled.table("sales").join(counted, "k"))
    (message,) = warnings_of(caplog, counted)
    assert "items.csv: only Parquet and ORC files are read here" in message


def test_describe_says_what_only_spark_does(enabled: SparkSession) -> None:
    enabled.conf.set("spark.gpujoin.backend", "cpu")
    reasons = explain(enabled.table("sales").describe()).reasons
    assert [reason.what for reason in reasons] == ["describe()"]
    assert "turns doubles into text, which only Spark does" in reasons[0].why
