"""Islands of several stages: inputs too large for every task to read are exchanged; answers and paths."""

from __future__ import annotations

import re

import pytest
from pyspark.sql import SparkSession

from gpujoin.config import Strategy
from gpujoin.plan import runtime_filters
from gpujoin.spark.query.accelerate import rewrite
from tests.brief import brief
from tests.spark.query.queries import check

SMALL = {
    "spark.gpujoin.backend": "cpu",
    "spark.gpujoin.fallback": "raise",
    "spark.gpujoin.scan.oneTaskBytes": "1",
    "spark.gpujoin.scan.taskBytes": "1",
    "spark.gpujoin.broadcastThreshold": "1",
    "spark.gpujoin.exchange.partitions": "3",
}
pytestmark = [
    pytest.mark.spark,
    pytest.mark.parametrize("spark", [SMALL], indirect=True, ids=["cpu"]),
]

JOINS = {
    "inner": "select a.id, a.price, b.item, b.cost from sales a join items b on a.k = b.k",
    "left": "select a.id, b.item from sales a left join items b on a.k = b.k and b.cost > 1",
    "right": "select a.id, b.item, b.s from sales a right join items b on a.k = b.k",
    "full": "select a.id, b.item from sales a full join items b on a.k = b.k and a.s = b.s",
    "semi": "select id, s from sales a where exists (select 1 from items b where b.k = a.k and b.s <> a.s)",
    "anti": "select id from sales a where not exists (select 1 from items b where b.k = a.k)",
    "existence": "select id from sales where k in (select k from items) or price > 5",
    "not in": "select id from sales where k not in (select k from items where item > 40)",
    "null safe": "select a.id, b.item from sales a join items b on a.s <=> b.s",
    "null safe full": "select a.id, b.item from sales a full join items b on a.s <=> b.s and a.k = b.k",
    "floats": "select a.id, b.id from sales a join sales b on a.weight = b.weight",
    "other types": "select a.id, b.item from sales a join items b on a.price = b.cost",
    "condition": "select a.id, b.item from sales a join items b on a.k = b.k and a.price > b.cost",
    "expression keys": "select a.id, b.item from sales a join items b on a.k + 1 = b.k * 2",
    "aggregate": "select b.s, sum(a.price), count(*), avg(b.cost) from sales a join items b on a.k = b.k group by b.s",
    "no groups": "select sum(a.price), count(*), max(b.s) from sales a join items b on a.k = b.k",
    "no rows": "select sum(a.price), count(*), max(b.s) from sales a join items b on a.k = b.k and a.id = b.item",
    "self join": "select a.id, b.id from sales a join sales b on a.k = b.k and a.id < b.id",
    "self join full": "select a.id, b.id from sales a full join sales b on a.k = b.k and a.s = b.s",
}

WITHOUT_KEYS = frozenset({"no groups", "no rows"})
"""One task merges the groups of all tasks."""
ADAPTIVE = tuple(JOINS)[::2]
LONG = frozenset({
    "left", "right", "semi", "anti", "null safe full", "other types", "condition", "expression keys", "no groups",
    "self join", "self join full", "floats", "existence",
})  # fmt: skip
"""What differs little from another one here, and from the tests of the engine: in the long sweeps."""


@pytest.mark.parametrize("name", brief(JOINS, *(name for name in JOINS if name not in LONG)))
def test_both_sides_are_exchanged(tables: SparkSession, name: str) -> None:
    tables.conf.set("spark.sql.adaptive.enabled", str(name in ADAPTIVE).lower())
    found = check(tables.sql(JOINS[name]), allow_empty=name == "no rows")
    assert [island.tasks for island in found.islands] == [1 if name in WITHOUT_KEYS else 3]
    assert [join.strategy for join in found.joins] == [Strategy.SHUFFLE]
    assert len(exchanges(found)) == (3 if name == "aggregate" else 2)


REUSED = {
    "three tables": (
        "select a.id, b.item, c.id from sales a join items b on a.k = b.k join sales c on b.k = c.k", 3
    ),
    "left below": (
        """select a.id, b.item, c.id from sales a left join items b on a.k = b.k and b.cost > 1
        left join sales c on a.k = c.k""", 3
    ),
    "semi below": (
        """select a.id, b.item from sales a join items b on a.k = b.k
        where exists (select 1 from sales c where c.k = a.k and c.id <> a.id)""", 3
    ),
    "other keys": ("select a.id, c.id from sales a join items b on a.k = b.k join sales c on b.s = c.s", 4),
    "groups": (
        "select a.id, n from sales a join (select k, count(*) n from items group by k) b on a.k = b.k", 2
    ),
    "groups above a join": (
        """select x.k, n, c.id from (select a.k, count(b.item) n from sales a left join items b on a.k = b.k
        group by a.k) x join sales c on x.k = c.k where n > 0""", 4
    ),
    "null-safe above left": (
        """select a.id, b.item, c.id from sales a left join items b on a.k = b.k join sales c on a.k <=> c.k""", 4
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    brief(REUSED, "three tables", "groups above a join"),
)
def test_a_partitioning_that_is_there_is_used_again(tables: SparkSession, name: str) -> None:
    query, count = REUSED[name]
    found = check(tables.sql(query))
    assert found.islands
    assert len(exchanges(found)) == count


def test_small_inputs_are_read_by_every_task(tables: SparkSession) -> None:
    tables.conf.set("spark.gpujoin.broadcastThreshold", "1m")
    found = check(
        tables.sql("select a.id, c.id, d.item from sales a join items d on a.k = d.k full join sales c on a.id = c.id")
    )
    assert sorted(join.strategy.value for join in found.joins) == ["broadcast", "shuffle"]
    assert "read by every task" in str(found)
    assert len(exchanges(found)) == 2


FILTERED = {
    "inner": ("select a.id, a.price, b.item from sales a join items b on a.k = b.k where b.cost > 2", 1),
    "both": (
        """select a.id, b.item
        from sales a join items b on a.k = b.k and a.s = b.s where b.item > 1 and a.id > 1""", 1
    ),
    "left": ("select a.id, b.item, b.s from sales a left join items b on a.k = b.k where a.id < 5", 1),
    "left, kept side selective": (
        """select a.id, b.item
        from sales a left join (select * from items where cost > 2) b on a.k = b.k""", 0
    ),
    "right": ("select a.id, b.item from sales a right join items b on a.k = b.k where b.cost > 2", 1),
    "full": ("select a.id, b.item from (select * from sales where id < 9) a full join items b on a.k = b.k", 0),
    "semi": (
        """select id
        from sales a where exists (select 1 from items b where b.k = a.k and b.cost > 2 and b.s <> a.s)""", 1
    ),
    "anti": (
        """select id
        from sales a where id < 7 and not exists (select 1 from items b where b.k = a.k and b.cost > 2)""", 1
    ),
    "null safe": ("select a.id, b.item from sales a join items b on a.s <=> b.s where b.cost > 2", 1),
    "floats": (
        """select a.id, b.id
        from sales a join sales b on a.weight = b.weight where b.id > 1""", 1
    ),
    "other types": ("select a.id, b.item from sales a join items b on a.price = b.cost where b.item > 20", 1),
    "aggregate": (
        """select a.id, n
        from sales a join (select k, count(*) n from items group by k having count(*) > 1) b on a.k = b.k""", 1
    ),
    "of a join": (
        """select a.id, c.item, d.s from sales a join (select b.id, b.k from sales b where b.s > 'b') x on a.id = x.id
        join items c on c.k = x.k join items d on d.item = c.item""", 2
    ),
    "float sums": (
        """select a.id
        from sales a join (select k, sum(weight) w from sales group by k having sum(weight) > 1) b on a.k = b.k""", 0
    ),
    "first rows": (
        """select a.id, b.item
        from sales a join (select * from items order by item limit 9) b on a.k = b.k""", 0
    ),
}  # fmt: skip
"""Queries, and how many of their exchanges send keys by which rows are dropped."""


@pytest.fixture
def keys_first(tables: SparkSession, cheap_keys: None, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """A session whose tables are exchanged, after the keys of the other side dropped rows wherever they may."""
    tables.conf.set("spark.gpujoin.broadcastThreshold", "1g")
    tables.conf.set("spark.gpujoin.strategy", "shuffle")
    monkeypatch.setattr(runtime_filters, "SELECTIVE", 0.999)  # of conditions that keep every row nothing is sent
    return tables


@pytest.mark.parametrize("name", brief(FILTERED, "null safe", "of a join", "float sums"))
def test_keys_drop_rows_before_they_are_exchanged(keys_first: SparkSession, name: str) -> None:
    keys_first.conf.set("spark.sql.adaptive.enabled", str(name in list(FILTERED)[::2]).lower())
    text, filters = FILTERED[name]
    frame = keys_first.sql(text)
    found = check(frame)
    assert found.islands
    dropping = [note.text for island in found.islands for note in island.notes if "drop rows before" in note.text]
    assert sum(2 if note.startswith("keys of other") else 1 for note in dropping) == filters, str(found)


def test_only_columns_in_use_are_exchanged(tables: SparkSession) -> None:
    tables.conf.set("spark.gpujoin.exchange.transport", "rows")
    frame = rewrite(tables.sql(JOINS["condition"])).frame
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert plan.count("REPARTITION_BY_NUM") == 1
    found = check(tables.sql("select count(*) from sales a join items b on a.k = b.k"))
    assert len(exchanges(found)) == 2


def test_what_cannot_be_exchanged_is_one_task(tables: SparkSession) -> None:
    found = check(tables.sql("select a.id, b.item from sales a join items b on a.k < b.k"))
    assert [island.tasks for island in found.islands] == [1]


def exchanges(found: object) -> list[str]:
    return re.findall(r"exchange by .*", str(found))
