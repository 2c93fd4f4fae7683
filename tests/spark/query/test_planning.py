"""What planning costs: a number of calls to the JVM, which no machine changes."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

from gpujoin import accelerate, disable, enable, explain
from gpujoin.spark.jvm.gateway import optimized_plan
from gpujoin.spark.query import planner as planning
from gpujoin.spark.query.accelerate import plan_query, rewrite
from gpujoin.spark.query.choice import predict_island
from gpujoin.spark.query.native import rule_of
from gpujoin.spark.query.planner import QueryPlanner
from gpujoin.spark.settings import join_options, session_conf
from gpujoin.testing import assert_same_rows
from tests.spark.calls import count_jvm_calls

FORCED = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "raise"}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])]

TEN = "".join(f" join items i{n} on i{n}.k = a.k and i{n}.cost > {n}" for n in range(10))
QUERIES = {
    "ten joins": (f"select a.s, sum(a.price), count(*) from sales a{TEN} group by a.s", 6),
    "aggregation": ("select k, sum(price), avg(price), stddev(weight), max(s) from sales group by k", 6),
    "rows": ("select a.id, b.item from sales a join items b on a.k = b.k", 6),
    "condition": (
        "select id from sales where day between date'2020-01-01' and date'2024-01-01' and k in (1, 2)",
        3,
    ),
    "two islands": (
        "select s, sum(price) from sales group by s union all select s, sum(cost) from items group by s",
        7,
    ),
    "subquery that is not read": ("select id, (select max(cost) from items) c from sales", 6),
}
"""Queries, and the most calls that planning makes: settings, two to read, and for each island one to place it."""


def _plan(spark: SparkSession, query: str) -> tuple[QueryPlanner, int]:
    plan = optimized_plan(spark.sql(query))
    with count_jvm_calls() as calls:
        conf = session_conf(spark)
        planner = QueryPlanner(spark, conf, join_options(conf, None, None), runs=True)
        planner.rewrite(plan)
    return planner, len(calls)


@pytest.mark.parametrize("name", QUERIES)
def test_planning_takes_a_handful_of_calls(tables: SparkSession, name: str) -> None:
    query, most = QUERIES[name]
    _plan(tables, query)  # classes and footers are known then
    planner, count = _plan(tables, query)
    print(f"{name}: {count} calls")
    assert planner.changed == (name != "condition")
    assert count <= most


def test_a_large_plan_is_read_in_parts(tables: SparkSession) -> None:
    """A reply of more than 8 KiB takes 40 ms, a further call one."""
    sums = ", ".join(f"sum(price * {n} + {n * n * 7919}) c{n}" for n in range(120))
    query = f"select s, {sums} from sales group by s"
    planner, count = _plan(tables, query)
    assert planner.changed
    assert 6 < count < 20
    assert_same_rows(accelerate(tables.sql(query)).toArrow(), tables.sql(query).toArrow())


def test_the_optimizer_rule_takes_ten_calls_for_ten_joins(tables: SparkSession) -> None:
    enable(tables)
    rule = rule_of(tables)
    rule.suspend()
    try:
        plan = optimized_plan(tables.sql(QUERIES["ten joins"][0]))
        plan_query(tables, plan, rule)  # classes and footers are known then
        with count_jvm_calls() as calls:
            planned = plan_query(tables, plan, rule)
    finally:
        rule.resume()
        disable(tables)
    assert planned.changed
    assert len(calls) <= 10


@pytest.mark.parametrize("joins", [1, 4])
def test_joins_left_to_spark_take_no_calls(tables: SparkSession, joins: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.conf.set("spark.gpujoin.backend", "auto")
    tables.conf.set("spark.gpujoin.fallback", "silent")
    tables.createDataFrame([(1, "a"), (2, "b")], "k int, t string").createOrReplaceTempView("given")
    query = "select count(*) from given" + "".join(f" join given g{n} on g{n}.k = given.k" for n in range(joins))
    _plan(tables, query)
    spied = Mock(side_effect=predict_island)
    monkeypatch.setattr(planning, "predict_island", spied)
    planner, count = _plan(tables, query)
    assert not planner.changed
    assert len(planner.explanation.joins) > 0
    assert count <= 4
    spied.assert_called_once()  # for the whole: no part of it gains


@pytest.mark.parametrize(
    "query",
    [
        "select s, sum(price), avg(id), count(*) from sales group by s order by s",
        pytest.param(
            "select s, count(distinct k), sum(distinct k), sum(price), max(day) from sales group by s order by s",
            marks=pytest.mark.extra,
        ),
        "select count(distinct k), sum(distinct k), avg(id), sum(price), count(*), min(day) from sales",
        "select s, median(id), count(*) from sales group by s order by s",
    ],
)
def test_the_only_task_finishes_an_aggregation(tables: SparkSession, query: str) -> None:
    if "median" in query and tables.version < "4.3":
        pytest.skip("Spark interpolates in other steps")
    frame = tables.sql(query)
    accelerated = rewrite(frame).frame
    assert len(explain(accelerated).islands) == 1
    assert "Aggregate" not in accelerated._jdf.queryExecution().optimizedPlan().toString()
    assert accelerated.collect() == frame.collect()
