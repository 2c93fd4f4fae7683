"""Joins of whole queries whose rows all come from Spark: each one considered, in whatever surroundings."""

from __future__ import annotations

import logging

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import gpujoin
from gpujoin import FallbackError, accelerate, explain
from gpujoin.config import Strategy
from gpujoin.spark.query.accelerate import rewrite
from tests.brief import brief
from tests.spark.query.queries import check

pytestmark = pytest.mark.spark

ROWS = {"spark.gpujoin.disable": "scan", "spark.gpujoin.strategy": "broadcast"}
BY_ROWS = pytest.mark.parametrize("spark", [ROWS], indirect=True, ids=["rows"])

QUERIES = {
    "nested": "select * from sales a join items b on a.k = b.k join items c on b.s = c.s",
    "aggregate": "select b.s, count(*) n, sum(a.price) p from sales a left join items b on a.k = b.k group by b.s",
    "in subquery": "select id from sales where k in (select k from items where cost > 1)",
    "exists": "select id from sales a where exists (select 1 from items b where b.k = a.k and b.s <> a.s)",
    "not exists": "select id from sales a where not exists (select 1 from items b where b.k = a.k)",
    "correlated": "select id from sales a where price > (select avg(cost) from items b where b.k = a.k)",
    "self join": "select a.id, b.id other from sales a join sales b on a.k = b.k and a.id < b.id",
    "cte": """with c as (select a.k, b.cost from sales a join items b on a.k = b.k)
        select * from c x join c y on x.k = y.k""",
    "union": "select a.id from sales a join items b on a.k = b.k union all select item from items join none using (k)",
    "window": """select id, row_number() over (partition by b.s order by id, item) r
        from sales a join items b on a.k = b.k""",
    "order": "select a.id, b.item from sales a join items b on a.k = b.k order by a.id desc, b.item",
    "scalar": "select id from sales where price > (select max(b.cost) from items b join sales a on a.k = b.k) - 100",
    "duplicate names": "select * from sales a join items b on a.k = b.k",
    "cube": "select b.s, a.k, count(*) from sales a join items b on a.k = b.k group by cube (b.s, a.k)",
}


@BY_ROWS
@pytest.mark.parametrize(
    "name",
    brief(QUERIES, "nested", "aggregate", "window"),
)
def test_every_join_runs_here(tables: SparkSession, name: str) -> None:
    tables.conf.set("spark.gpujoin.fallback", "silent")
    found = check(tables.sql(QUERIES[name]))
    assert found.joins
    assert all(join.strategy is Strategy.BROADCAST and join.backend == "cpu" for join in found.joins)


@BY_ROWS
def test_cached_tables_and_views_are_inputs_like_others(tables: SparkSession) -> None:
    tables.sql("select * from items where k < 3").createOrReplaceTempView("some")
    tables.table("some").cache()
    found = check(tables.sql("select id, item from sales join some using (k)"))
    assert [join.accelerated for join in found.joins] == [True]


@BY_ROWS
def test_an_unsupported_join_keeps_the_rest_of_the_query(tables: SparkSession) -> None:
    found = check(
        tables.sql("""select a.id, b.item from sales a join items b on a.k = b.k
            left semi join items c on make_dt_interval(a.k) = make_dt_interval(c.k)""")
    )
    kept = [join for join in found.joins if not join.accelerated]
    assert {join.join_type for join in kept} == {"left_semi"}
    assert all(join.reasons for join in kept)
    assert any(join.accelerated for join in found.joins)


@BY_ROWS
def test_existence_joins(tables: SparkSession) -> None:
    found = check(
        tables.sql("""select a.id, b.item from sales a join items b on a.k = b.k
            where b.item in (select item from items) or a.id in (select k from items)""")
    )
    assert "existence" in {join.join_type for join in found.joins}
    assert all(join.accelerated for join in found.joins)


def test_what_is_predicted_to_be_slower_is_left_without_a_warning(
    tables: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    tables.conf.set("spark.gpujoin.disable", "scan")
    frame = tables.sql("select * from sales join items using (k)")
    with caplog.at_level(logging.WARNING, logger="gpujoin"):
        assert accelerate(frame) is frame
    assert not caplog.records
    (join,) = rewrite(frame).explanation.joins
    assert join.reasons[0].what == "cost"


@BY_ROWS
def test_left_against_the_settings_is_an_error_where_that_was_asked_for(tables: SparkSession) -> None:
    frame = tables.sql("select * from sales a full join items b on a.k = b.k")
    tables.conf.set("spark.gpujoin.fallback", "raise")
    with pytest.raises(FallbackError, match="full"):
        accelerate(frame)
    tables.conf.set("spark.gpujoin.fallback", "silent")
    assert accelerate(frame) is frame


def test_streams_are_left(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load()
    assert accelerate(stream) is stream
    (reason,) = rewrite(stream).explanation.reasons
    assert "stream" in reason.why


@BY_ROWS
def test_the_result_is_a_dataframe_like_any_other(tables: SparkSession) -> None:
    frame = tables.sql("select a.id, b.cost from sales a join items b on a.k = b.k")
    result = accelerate(frame)
    assert result.groupBy("id").agg(sf.sum("cost")).count() == frame.groupBy("id").agg(sf.sum("cost")).count()
    assert sorted(result.where(result.id > 2).collect()) == sorted(frame.where(frame.id > 2).collect())
    with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
        result.select("nothing")
    assert accelerate(result) is result
    assert explain(result).joins[0].accelerated


def test_only_dataframes_are_taken() -> None:
    with pytest.raises(gpujoin.JoinSpecError, match="list"):
        accelerate([])  # type: ignore[arg-type]
