"""Joins whose condition has parts that Spark computes: the answer, and that the join runs here."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from gpujoin import FallbackError
from gpujoin.spark.query.accelerate import rewrite
from tests.brief import together
from tests.spark.query.queries import FORCED, check, check_all

pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["forced"])]

QUERIES = {
    "a key": ("select a.id, b.item from sales a join items b on try_url_decode(a.s) = try_url_decode(b.s)", 2),
    "a key on one side": ("select a.id, b.item from sales a left join items b on a.k = regexp_count(b.s, 'x')", 1),
    "a null-safe key": (
        "select a.id, b.item from sales a full join items b on try_url_decode(a.s) <=> try_url_decode(b.s)", 2,
    ),
    "a rest of one side": (
        "select a.id, b.item from sales a left join items b on a.k = b.k and extract(yearofweek from a.day) > 2000", 1,
    ),
    "a rest of both sides": (
        "select a.id, b.item from sales a left join items b on a.k = b.k and extract(yearofweek from a.day) <> b.item",
        1,
    ),
    "a range": ("select a.id, b.item from sales a join items b on extract(yearofweek from a.day) < b.item * 100", 1),
    "exists": (
        """select id from sales a
        where exists (select 1 from items b where try_url_decode(b.s) = try_url_decode(a.s)) or a.k = 3""", 2,
    ),
    "NOT IN": (
        "select id from sales where try_url_decode(s) not in (select try_url_decode(s) from items where k > 1)", 1,
    ),
    "NOT IN of two": (
        """select id from sales
        where (k, try_url_decode(s)) not in (select k, try_url_decode(s) from items where item > 40)""", 1,
    ),
    "one part twice": (
        """select a.id, b.item from sales a join items b
        on extract(yearofweek from a.day) < b.item * 100 and extract(yearofweek from a.day) > b.item - 50""", 1,
    ),
    "below an aggregation": (
        "select b.k, count(*), max(a.price) from sales a join items b on try_url_decode(a.s) = b.s group by 1", 1,
    ),
}  # fmt: skip
"""Each with how many inputs come from Spark at least."""


@pytest.mark.parametrize(
    "names",
    together(
        QUERIES, "a null-safe key", "NOT IN of two", "below an aggregation",
    ),
)  # fmt: skip
def test_it_runs_here(tables: SparkSession, names: tuple[str, ...]) -> None:
    for name, found in check_all({name: tables.sql(QUERIES[name][0]) for name in names}, empty=QUERIES).items():
        assert all(join.accelerated for join in found.joins), str(found)
        lines = [line for island in found.islands for line in island.tree]
        assert sum("rows from Spark" in line for line in lines) >= QUERIES[name][1], str(found)


def test_floating_point_keys_are_read_from_files(tables: SparkSession) -> None:
    """Spark wraps such keys in functions, which need not be computed."""
    found = check(tables.sql("select a.id, b.id j from sales a join sales b on a.weight = b.weight"))
    (island,) = found.islands
    assert not any("rows from Spark" in line for line in island.tree), str(found)


def test_python_functions_are_computed_by_spark(tables: SparkSession) -> None:
    reversed_text = sf.udf(lambda text: text and text[::-1], useArrow=False)
    sales, items = tables.table("sales"), tables.table("items")
    found = check(sales.join(items, reversed_text(sales.s) == items.s).select("id", "item"))
    assert all(join.accelerated for join in found.joins), str(found)


def test_what_may_fail_on_rows_that_spark_never_comes_to_is_left_to_spark(tables: SparkSession) -> None:
    tables.conf.set("spark.sql.ansi.enabled", "true")
    text = """select a.id, b.item from sales a join items b on a.k = b.k
        and (a.id > 5 or to_number(a.s, '99') > b.item)"""
    with pytest.raises(FallbackError, match="may fail"):
        rewrite(tables.sql(text))
