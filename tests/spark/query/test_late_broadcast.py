"""Joins of which one input proves small, so that the other is not exchanged: answers and paths."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

import gpujoin
from gpujoin.plan import late_broadcast
from tests.brief import brief
from tests.spark.query.queries import EXCHANGED, check, check_all, checked

ADAPTIVE = EXCHANGED | {"spark.gpujoin.exchange.adaptive": "on", "spark.gpujoin.exchange.partitions": "5"}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [ADAPTIVE], indirect=True, ids=["cpu"])]

PROVES = "an input of a join that proves small"
PROVED = "an input of a join proved small"
NEVER, ALWAYS = -1, 1 << 20


@pytest.fixture(params=[ALWAYS, NEVER], ids=["small", "not small"])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Most bytes of an input that proves small, where the inputs of any join may."""
    most: int = request.param
    monkeypatch.setattr(late_broadcast, "STAGE_BYTES", 0)
    monkeypatch.setattr(late_broadcast, "_TIMES_SMALLER", 1)
    monkeypatch.setattr(late_broadcast.LateBroadcast, "limit", lambda *_: most)
    monkeypatch.setattr(late_broadcast.LateBroadcast, "may_have", lambda *_: True)
    return most


FEW = "(select * from items where item < 60)"
SOME = "(select id, k, s, price, id * 2 as twice, cast(id as decimal(20, 2)) as wide from sales)"
QUERIES = {
    "inner join": f"select a.id, a.twice, a.wide, b.item from {SOME} a join {FEW} b on a.k = b.k",
    "other side": f"select a.id, a.twice, a.wide, b.item from {FEW} b join {SOME} a on a.k = b.k and a.id < b.item",
    "left join": f"select a.id, a.twice, a.wide, b.item from {SOME} a left join {FEW} b on a.k = b.k",
    "right join": f"select a.id, a.twice, a.wide, b.item from {FEW} b right join {SOME} a on a.k = b.k",
    "semi-join": f"select a.id, a.twice, a.wide from {SOME} a left semi join {FEW} b on a.k = b.k",
    "anti-join": f"select a.id, a.twice, a.wide from {SOME} a left anti join {FEW} b on a.k = b.k",
    "null-safe": f"select a.id, a.twice, a.wide, b.item from {SOME} a left join {FEW} b on a.k <=> b.k",
    "aggregation": f"""select a.s, count(*), sum(b.cost), max(a.wide) from {SOME} a join {FEW} b on a.k = b.k
        group by a.s""",
    "chain": f"""select a.id, a.twice, b.item, c.price from {SOME} a join {FEW} b on a.k = b.k
        join (select s, max(price) as price from sales where id > 2 group by s) c on a.s = c.s""",
    "chain below": f"""select x.id, x.twice, x.wide, c.item from
        (select a.*, b.cost from {SOME} a join items b on a.id * 10 = b.item) x join {FEW} c on x.k = c.k""",
    "no rows": f"select a.id, a.twice, a.wide, b.item from {SOME} a left join {FEW} b on a.k = b.k and b.k > 100",
}  # fmt: skip


def notes_of(frame: DataFrame) -> str:
    return str([stage.notes for stage in gpujoin.metrics(frame)])


@pytest.mark.few
@pytest.mark.parametrize(
    "name",
    brief(
        QUERIES, "inner join", "anti-join", "aggregation", "chain below"
    ),
)  # fmt: skip
def test_an_input_that_proves_small_is_sent_to_every_task(tables: SparkSession, name: str, limit: int) -> None:
    found = checked(tables.sql(QUERIES[name]))
    frame = found.frame
    assert PROVES in str(found.explanation)
    assert (PROVED in notes_of(frame)) is (limit == ALWAYS)
    idle = [stage for stage in gpujoin.metrics(frame) if not stage.runs]
    assert bool(idle) is (limit == ALWAYS), "the other input is not exchanged"
    assert len(frame.collect()) == frame.count()


STAY = {
    "full join": f"select a.id, a.twice, a.wide, b.item from {SOME} a full join {FEW} b on a.k = b.k",
    "rows of the small side": f"select a.id, a.twice, a.wide, b.item from {FEW} b left join {SOME} a on a.k = b.k",
    "groups by the key": f"""select a.k, count(*), max(a.wide), max(a.id) from {SOME} a join {FEW} b on a.k = b.k
        group by a.k""",
    "known": """select a.id, a.s, a.price, a.day, b.item from sales a left join (select item, k from items) b
        on a.k <=> b.k""",
    "asked for": f"select /*+ merge(b) */ a.id, a.twice, a.wide, b.item from {SOME} a join {FEW} b on a.k = b.k",
}  # fmt: skip


@pytest.mark.parametrize("limit", [ALWAYS], indirect=True, ids=["small"])
def test_joins_stay_as_planned(tables: SparkSession, limit: int) -> None:
    explained = check_all({name: tables.sql(text) for name, text in STAY.items()})
    tables.conf.set("spark.gpujoin.exchange.adaptive", "off")
    explained["off"] = check(tables.sql(QUERIES["inner join"]))
    for name, found in explained.items():
        assert "exchange by" in str(found), name
        assert PROVES not in str(found), name


def test_nothing_runs_before_an_action(enabled: SparkSession, limit: int) -> None:
    context = enabled.sparkContext
    tracker = context.statusTracker()
    group = f"late {limit}"
    context.setJobGroup(group, "")
    frame = enabled.sql(QUERIES["aggregation"])
    frame.explain("formatted")
    assert not tracker.getJobIdsForGroup(group)
    first = frame.toArrow()
    assert len(tracker.getJobIdsForGroup(group)) >= 2
    assert first.num_rows == frame.count() == frame.cache().count() > 0
    frame.unpersist()
    context._jsc.clearJobGroup()
