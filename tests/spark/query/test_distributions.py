"""How rows are brought together where a strategy, a setting or a hint asks for it: in islands, of files and of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from gpujoin import FallbackError, enable, explain, gpu_join
from gpujoin.config import Strategy
from gpujoin.model.reasons import ReasonKind
from gpujoin.report.explanation import Explanation
from tests.brief import brief, each_once
from tests.spark.query.queries import FORCED, check

pytestmark = [
    pytest.mark.spark,
    pytest.mark.parametrize("spark", [FORCED | {"spark.gpujoin.exchange.partitions": "3"}], indirect=True, ids=["cpu"]),
]
BROADCAST, SHUFFLE, NESTED_LOOP = Strategy.BROADCAST, Strategy.SHUFFLE, Strategy.NESTED_LOOP


@pytest.fixture
def sides(tables: SparkSession) -> Iterator[SparkSession]:
    """Views of the tables' rows, which Spark computes."""
    for name in ("sales", "items"):
        tables.table(name).repartition(2).cache().createOrReplaceTempView(f"{name}_rows")
    yield tables
    tables.catalog.clearCache()
    for name in ("sales", "items"):
        tables.catalog.dropTempView(f"{name}_rows")


def tree(explanation: Explanation) -> str:
    (island,) = explanation.islands
    return "\n".join((*island.tree, *map(str, island.notes)))


JOINS = {
    "inner": "select a.id, b.item from {0} a join {1} b on a.k = b.k",
    "left": "select a.id, b.item from {0} a left join {1} b on a.k = b.k and b.cost > 1",
    "right": "select a.id, b.item from {0} a right join {1} b on a.k = b.k",
    "full": "select a.id, b.item from {0} a full join {1} b on a.k = b.k",
    "semi": "select id, s from {0} a where exists (select 1 from {1} b where b.k = a.k and b.s <> a.s)",
    "anti": "select id from {0} a where not exists (select 1 from {1} b where b.k = a.k)",
    "existence": "select id, k in (select k from {1}) or price > 5 as e from {0}",
    "null-safe": "select a.id, b.item from {0} a join {1} b on a.s <=> b.s",
    "not in": "select id from {0} where k not in (select k from {1} where k > 1)",
    "range": "select a.id, b.item from {0} a join {1} b on a.k < b.k",
    "left range": "select a.id, b.item from {0} a left join {1} b on a.k between b.k - 1 and b.k",
    "product": "select a.id, b.item from {0} a cross join {1} b where a.price > 1",
    "full range": "select a.id, b.item from {0} a full join {1} b on a.k < b.k",
    "anti range": "select id from {0} a where not exists (select 1 from {1} b where b.k > a.k)",
    "grouped": "select b.s, count(*) n, sum(a.id) t from {0} a join {1} b on a.k = b.k group by b.s",
}
KEYLESS = frozenset({"range", "left range", "product", "full range", "anti range"})
SOURCES = {"files": ("sales", "items"), "rows": ("sales_rows", "items_rows"), "both": ("sales", "items_rows")}


@pytest.mark.parametrize(
    ("name", "source"),
    # These types and conditions are exchanged by test_exchanges, and the ranges run by test_quadratic.
    each_once(
        JOINS, SOURCES,
        extra=(
            "inner", "left", "right", "semi", "existence", "null-safe", "left range", "product", "full range",
            "anti range",
        ),
    ),
)  # fmt: skip
def test_a_strategy_that_is_set_is_followed(sides: SparkSession, name: str, source: str) -> None:
    query = JOINS[name].format(*SOURCES[source])
    sides.conf.set("spark.gpujoin.strategy", "nested_loop" if name in KEYLESS else "shuffle")
    found = check(sides.sql(query))
    if name not in KEYLESS:
        assert [join.strategy for join in found.joins] == [SHUFFLE]
        assert tree(found).count("exchange by") == (3 if name == "grouped" else 2)
        assert found.islands[0].tasks == 3
        return
    assert [join.strategy for join in found.joins] == [NESTED_LOOP]
    if name == "full range":
        assert "one task reads everything" in tree(found)
    elif source == "rows":
        assert "shared out among 3 tasks" in tree(found)
        assert "sent to 3 tasks" in tree(found)
        assert found.islands[0].tasks == 3
    else:
        assert "read by every task" in tree(found) or "sent to" in tree(found)
        assert "one task" not in tree(found)


@pytest.mark.parametrize(
    "name",
    brief([name for name in JOINS if name not in KEYLESS], "existence"),
)
def test_a_broadcast_sends_rows_from_spark_to_every_task(sides: SparkSession, name: str) -> None:
    sides.conf.set("spark.gpujoin.strategy", "broadcast")
    sides.conf.set("spark.gpujoin.fallback", "silent")
    found = check(sides.sql(JOINS[name].format("sales_rows", "items_rows")))
    if name == "full":
        assert "has no side that may be broadcast" in str(found)
        return
    assert [join.strategy for join in found.joins] == [BROADCAST]
    assert "shared out among 3 tasks" in tree(found)


def asked(session: SparkSession, on: Callable[[DataFrame, DataFrame], Column], how: Any, **given: Any) -> DataFrame:
    sales, items = session.table("sales"), session.table("items")
    return gpu_join(sales, items, on(sales, items), how, **given).select("id", "item")


def test_what_cannot_be_followed_is_refused_with_a_reason(tables: SparkSession) -> None:
    full = asked(tables, lambda a, b: a.k == b.k, "full", strategy="broadcast")
    shuffled = asked(tables, lambda a, b: a.k < b.k, "inner", strategy="shuffle")
    for query, why in (
        (full, "a full outer join has no side that may be broadcast"),
        (shuffled, "a shuffled join needs an equality between the sides"),
    ):
        assert why in str(explain(query))
        with pytest.raises(FallbackError, match=why):
            query.collect()


def test_joins_of_one_query_have_their_own_strategies(tables: SparkSession) -> None:
    sales, items = tables.table("sales"), tables.table("items")
    others = items.select(sf.col("k").alias("other"), "cost")
    inner = gpu_join(sales, items, "k", strategy="shuffle")
    query = gpu_join(inner, others, sales.k == others.other, strategy="broadcast").select("id", "item", "other")
    (island,) = explain(query).islands
    assert [join.strategy for join in island.joins] == [BROADCAST, SHUFFLE]
    expected = sales.join(items, "k").join(others, sales.k == others.other).select("id", "item", "other")
    assert sorted(map(str, query.collect())) == sorted(map(str, expected.collect()))


def test_a_strategy_goes_before_the_setting(tables: SparkSession) -> None:
    for setting in ("broadcast", "spark"):
        tables.conf.set("spark.gpujoin.strategy", setting)
        found = explain(asked(tables, lambda a, b: a.k == b.k, "inner", strategy="shuffle"))
        assert [join.strategy for join in found.islands[0].joins] == [SHUFFLE]
    enable(tables)
    found = explain(tables.table("sales").join(tables.table("items"), "k").groupBy("k").count())
    assert not found.islands
    assert not found.accelerated


def test_two_backends_are_two_islands(tables: SparkSession) -> None:
    sales, items = tables.table("sales"), tables.table("items").select("item", "k")
    costs = tables.table("items").select("item", "cost")
    inner = gpu_join(sales, items, "k", backend="cpu").select("id", "item")
    query = gpu_join(inner, costs, "item", backend="auto")
    outer, below = explain(query).islands
    assert len(outer.joins) == len(below.joins) == 1
    assert "rows from Spark" in "\n".join(outer.tree)
    expected = sales.join(items, "k").select("id", "item").join(costs, "item")
    assert sorted(map(str, query.collect())) == sorted(map(str, expected.collect()))


HINTS = {
    "broadcast(b)": "read by every task",
    "merge(b)": "exchange by k",
    "shuffle_hash(a)": "left side built",
    "broadcast(a)": "left side built",
}


@pytest.mark.parametrize("hint", brief(HINTS, "broadcast(a)", "merge(b)"))
def test_hints_say_what_is_replicated_and_what_is_exchanged(tables: SparkSession, hint: str) -> None:
    for name in ("oneTaskBytes", "taskBytes"):
        tables.conf.set(f"spark.gpujoin.scan.{name}", "1")
    found = check(tables.sql(f"select /*+ {hint} */ a.id, b.item from sales a join items b on a.k = b.k"))
    expected = BROADCAST if "broadcast" in hint else SHUFFLE
    assert [join.strategy for join in found.joins] == [expected]
    assert HINTS[hint] in tree(found)


def test_a_hint_is_no_reason_to_exchange_what_one_task_reads(tables: SparkSession) -> None:
    found = check(tables.sql("select /*+ merge(b) */ a.id, b.item from sales a join items b on a.k = b.k"))
    assert [island.tasks for island in found.islands] == [1]


def test_spark_asked_for_is_no_obstacle(tables: SparkSession) -> None:
    query = asked(tables, lambda a, b: a.k == b.k, "inner", strategy="spark")
    found = explain(query)
    assert not any(reason.kind is ReasonKind.UNSUPPORTED for reason in found.reasons)
    assert query.count() == 11
