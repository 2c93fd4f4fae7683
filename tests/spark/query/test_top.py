"""Limits above islands: few rows leave a worker, and they are those that Spark would have taken."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from gpujoin.spark.query.accelerate import rewrite
from tests.brief import brief

FORCED = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "raise"}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])]

ORDERED = {
    "floats": """select a.id, weight, s, price from sales a join (select k from items) using (k)
        order by weight desc nulls last, s nulls first, id, price limit 4""",
    "text": "select s, item from sales a join items b using (s) order by s desc, item limit 3",
    "offset": """select id, weight, item from sales a left join items b using (k)
        order by weight, price desc nulls last, id, item limit 5 offset 2""",
    "booleans and days": """select flag, day, id, item from sales a join items b on a.k = b.k
        order by flag, day desc, id, item limit 4""",
    "expressions": "select id + 1 x, item from sales a join items b on a.k = b.k order by -item, id % 2, x limit 3",
    "groups": """select k, sum(price) p, avg(weight), stddev(id) from sales group by k
        order by p desc nulls last, k limit 2""",
    "of files": "select * from sales order by weight desc nulls last, s nulls first, id limit 4",
    "of files, filtered": "select s, price + 1 p from sales where k > 1 order by price desc, id limit 3 offset 1",
    "of a union": """select s, id from (select s, id from sales union all select s, -id from sales where flag)
        order by s desc nulls last, id limit 5""",
    "having": "select k, count(*) n from sales group by k having count(*) > 1 order by n desc, k limit 2",
    "below a join": """select x.id, x.item, y.cost from
        (select a.id, item from sales a join items b on a.k = b.k order by id, item limit 3) x
        join items y on x.item = y.item order by 1, 2, 3""",
}


@pytest.mark.parametrize(
    "name", brief(ORDERED, "text", "offset", "expressions", "of files, filtered", "of a union", "below a join")
)
def test_first_rows_in_an_order(tables: SparkSession, name: str) -> None:
    frame = tables.sql(ORDERED[name])
    tables.conf.set("spark.gpujoin.fallback", "silent")
    found = rewrite(frame)
    assert "first " in str(found.explanation)
    assert str(found.frame.collect()) == str(frame.collect())


def test_every_task_gives_its_first_rows(tables: SparkSession) -> None:
    tables.conf.set("spark.gpujoin.scan.oneTaskBytes", "1")
    tables.conf.set("spark.gpujoin.scan.taskBytes", "1")
    tables.conf.set("spark.gpujoin.exchange.partitions", "2")
    for name in ("floats", "groups"):
        found = rewrite(tables.sql(ORDERED[name]))
        assert all(island.tasks > 1 for island in found.explanation.islands)
        assert "first " in str(found.explanation)
        assert str(found.frame.collect()) == str(tables.sql(ORDERED[name]).collect())


def test_an_order_that_is_not_evaluated_here_stays_with_spark(tables: SparkSession) -> None:
    frame = tables.sql(
        "select s, item from sales a join items b using (s) order by try_url_decode(s) desc, item limit 3"
    )
    found = rewrite(frame)
    assert found.explanation.islands
    assert "first " not in str(found.explanation)
    assert str(found.frame.collect()) == str(frame.collect())


def test_any_rows(tables: SparkSession) -> None:
    frame = tables.sql("select a.id, b.item from sales a join items b on a.k = b.k")
    found = rewrite(frame.limit(3))
    assert "limit 3" in str(found.explanation)
    rows = found.frame.collect()
    assert len(rows) == 3
    assert set(rows) <= set(frame.collect())
    assert rewrite(frame.limit(0)).frame.collect() == []
