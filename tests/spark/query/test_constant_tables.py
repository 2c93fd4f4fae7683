"""Rows that are part of a query, in islands: of ``VALUES``, of ``range``, and of a select without a table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from gpujoin.report.explanation import Explanation
from gpujoin.spark.query.accelerate import rewrite
from tests.brief import shared_out
from tests.spark.query.queries import EXCHANGED, FORCED, check, check_all
from tests.spark.query.test_spark_rows import JOINS, SENT, SHOPS

pytestmark = pytest.mark.spark
WAYS = {"one task": FORCED, "sent": SENT, "exchanged": EXCHANGED}
FOLDED = ("not in nothing", "empty", "of nothing")
"""Joins of which Spark leaves nothing: of the rows that are written there, a filter leaves none."""
QUERIES = {
    **{name: query.format("shops") for name, query in JOINS.items() if name != "two" and name not in FOLDED},
    "full outer range": "select a.id, d.shop from sales a full join shops d on a.id between d.k and d.k + 3",
    "union below a join": """select u.x, i.item from (select k x from sales union all values (1), (null), (2)) u
        left join items i on u.x = i.k""",
    "union below an aggregation": """select x, count(*), sum(y) from (select k x, id y from sales union all
        select k, weight from shops union all select id, id * 2 from range(7)) group by x""",
    "union of joins": """select x, count(*) from (select a.id x from sales a join shops d on a.k = d.k union all
        select d.k from shops d join shops e on d.k = e.k union all select item from items) group by x""",
    "no keys": "select count(*), sum(a.id), max(d.weight) from sales a join shops d on a.k <> d.k",
    "numbers": "select a.id, r.id from sales a right join range(-3, 9, 4) r on a.k = r.id",
    "backwards": "select count(*) from range(9, -3, -4) r left join items i on i.k = r.id",
    "one row": "select x, count(*) from (select 1 x union all select k from sales) group by x",
    "counted alone": "select count(*) from sales a cross join (values (1), (2), (null)) cross join items",
    "only rows of the query beside": """select n, m from (select count(*) n from sales) cross join
        (select max(weight) m from shops group by k)""",
    "window": "select id, w, rank() over (partition by w order by id) from sales a join shops d(k, s, w) on a.k = d.k",
    "explode": """select e, count(*) from (select explode(l) e from values (array(1, 2, null)), (array()), (null) v(l))
        join sales on k = e group by e""",
    "limit": "select k, x from (select * from values (1, 'a'), (1, 'b') t(k, x) limit 5) join sales using (k)",
}


@pytest.fixture
def tables(written: None, spark: SparkSession) -> Iterator[SparkSession]:
    spark.sql(SHOPS).createOrReplaceTempView("shops")
    yield spark
    spark.catalog.dropTempView("shops")


def tree(explanation: Explanation) -> str:
    return "\n".join(line for island in explanation.islands for line in island.tree)


OF_JOINS = tuple(name for name in QUERIES if name in JOINS)
"""Queries that test_spark_rows.py runs, too, over rows from Spark."""
ALIKE = ("union below a join", "numbers", "one row", "limit", "window")
"""Queries whose rows are planned as those of others are."""
SHORT = [name for name in QUERIES if name not in OF_JOINS[1:] + ALIKE]


@pytest.mark.parametrize(("way", "names"), shared_out(QUERIES, SHORT, WAYS))
def test_rows_of_the_query_are_in_the_island(tables: SparkSession, way: str, names: tuple[str, ...]) -> None:
    for key, value in WAYS[way].items():
        tables.conf.set(key, value)
    for found in check_all({name: tables.sql(QUERIES[name]) for name in names}).values():
        assert "of the query itself" in tree(found)
        assert "rows from Spark" not in tree(found)


TYPED = """
select * from values
  (1, true, 1Y, 2S, 3L, 1.5F, double('nan'), 1.50, 'ü', X'00ff', date'0001-01-01',
    timestamp'1500-01-01 00:00:00.123456',
    timestamp_ntz'9999-12-31 23:59:59', array(1, null), map('a', 1.5D), named_struct('x', -0.0D, 'y', array('z'))),
  (2, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
    named_struct('x', null, 'y', null)),
  (3, false, -128Y, -32768S, -9223372036854775808L, float('-inf'), -0.0D, -99999999.99, '', X'', date'9999-12-31',
    timestamp'9999-12-31 00:00:00', timestamp_ntz'0001-01-01 00:00:00', array(), map('b', null, 'c', double('inf')),
    null)
  as t(k, o, y, h, l, f, d, n, s, b, a, t, u, xs, m, st)
"""


@pytest.mark.parametrize("spark", [FORCED, EXCHANGED], indirect=True, ids=["one task", "exchanged"])
def test_values_of_every_type(tables: SparkSession, spark: SparkSession) -> None:
    found = check(spark.sql(f"select t.*, a.id from ({TYPED}) t left join sales a on a.k = t.k"))
    assert "3 rows of the query itself" in tree(found)


OTHERS = {
    "many values": "select a.id, v from sales a join many_values on a.k = v",
    "many numbers": "select a.id, r.id from sales a join range(20000) r on a.k = r.id",
    "intervals": "select a.id, v.i from sales a join values (1, interval 1 day) v(k, i) on a.k = v.k",
}


@pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])
def test_other_rows_come_from_spark(tables: SparkSession) -> None:
    rows = ", ".join(f"({n % 5})" for n in range(10_001))
    tables.sql(f"select * from values {rows} as t(v)").createOrReplaceTempView("many_values")
    for found in check_all({name: tables.sql(text) for name, text in OTHERS.items()}).values():
        assert "of the query itself" not in tree(found)
        assert "rows from Spark" in tree(found)


@pytest.mark.parametrize("backend", ["auto", "cpu"])
def test_a_join_of_rows_of_the_query_alone_is_sparks_unless_asked_for(tables: SparkSession, backend: str) -> None:
    tables.conf.set("spark.gpujoin.backend", backend)
    tables.conf.set("spark.gpujoin.costs", "start=0")
    explanation = rewrite(tables.sql("select * from shops a join shops b on a.k = b.k")).explanation
    assert bool(explanation.islands) == (backend == "cpu")
    assert explanation.islands or "all rows are part of the query" in str(explanation)
