"""Parts of queries whose conditions contradict one another: nothing is read for them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from gpujoin.report.outcomes import explanation_of_latest
from gpujoin.spark.query.accelerate import rewrite
from gpujoin.spark.query.native import native_plan
from tests.brief import together
from tests.spark.query.queries import FORCED, check_all

pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])]

EMPTY = {
    "values": "select count(*), sum(id) from sales where k in (1, 2) and k in (3, 4)",
    "range": "select k, count(*) from sales where k > 5 and k < 3 group by k",
    "join": "select * from sales a join items b on a.k = b.k where a.k > 5 and b.k < 3",
    "join condition": "select * from sales a join items b on a.k < b.k and a.k > b.k",
    "semi join": "select * from sales a left semi join items b on a.k < b.item and a.k > b.item",
    "left join": """select a.id, b.item from sales a
        left join (select * from items where cost > 1 and cost < 0) b using (k)""",
    "anti join": """select a.id from sales a
        left anti join (select * from items where cost > 1 and cost < 0) b using (k)""",
    "union": """select k, count(*) from (select k from sales where day < date'2024-01-01' and day > date'2025-01-01'
        union all select k from items) group by k""",
    "nan": "select k, sum(id) from sales where weight >= double('NaN') and weight < 1.5D group by k",
    "cases": "select count(*) from sales where (k = 1 and k = 2) or (s = 'x' and s is null)",
    "subquery": """select id from sales join items using (k)
        where id > (select count(*) from items where k > 3 and k < 2)""",
}
FOLDED_BY_SPARK = {
    "two values": "select count(*), sum(id) from sales where k = 1 and k = 2",
    "false": "select k, count(*) from sales where false group by k",
    "null": "select k, count(*) from sales where k = null group by k",
}
KEPT = {
    "an error below": "select k, count(*) from sales where 1 div (k - 1) > 2 and k > 5 and k < 3 group by k",
    "an error beside": """select * from (select k from sales where k > 5 and k < 3) a
        join (select id div (k - 9) n from sales where id = 6) b on a.k = b.n""",
    "numbers of rows": """select count(distinct n) from (select monotonically_increasing_id() n from (
        select k from sales where k > 5 and k < 3 union all select k from sales))""",
}


@pytest.mark.parametrize("names", together(EMPTY, "values", "left join", "anti join", "nan", "subquery"))
def test_nothing_is_read_where_no_row_fulfils_the_conditions(tables: SparkSession, names: tuple[str, ...]) -> None:
    queries = {name: tables.sql(EMPTY[name]) for name in names}
    for name, found in check_all(queries, empty=EMPTY).items():
        assert name == "subquery" or "no row fulfils" in str(found)
        assert "parquet" in str(native_plan(queries[name]).toString())
        left = "parquet" in str(native_plan(rewrite(queries[name]).frame).toString())
        assert left == (name in ("left join", "anti join"))  # no join is left there


def test_what_spark_folds_needs_nothing_here(tables: SparkSession) -> None:
    folded = check_all({name: tables.sql(text) for name, text in FOLDED_BY_SPARK.items()}, empty=FOLDED_BY_SPARK)
    assert not any(found.islands for found in folded.values())


@pytest.mark.parametrize("name", KEPT)
def test_rows_are_looked_at_where_that_may_make_a_difference(tables: SparkSession, name: str) -> None:
    tables.conf.set("spark.gpujoin.fallback", "silent")
    assert "no row fulfils" not in str(rewrite(tables.sql(KEPT[name])).explanation)


def test_after_a_run_it_is_told_what_was_decided(enabled: SparkSession) -> None:
    query = enabled.sql(EMPTY["left join"])
    assert query.collect()
    known = explanation_of_latest(query)
    assert known is not None
    assert "no row fulfils" in str(known)
