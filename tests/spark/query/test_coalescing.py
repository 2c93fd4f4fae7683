"""Small partitions of exchanged rows, coalesced once their sizes are known: answers, paths, and when anything runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import gpujoin
from gpujoin.plan.partition_sizes import Coalescing
from gpujoin.spark.failures import Failure, failure_of
from gpujoin.spark.query import running, runs
from tests.brief import together
from tests.spark.query.faults import HangingStage, KilledStage
from tests.spark.query.queries import EXCHANGED, check_all, checked, jobs_begun

PARTITIONS = 6
ADAPTIVE = EXCHANGED | {
    "spark.gpujoin.exchange.adaptive": "on",
    "spark.gpujoin.exchange.partitions": str(PARTITIONS),
}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [ADAPTIVE], indirect=True, ids=["cpu"])]

JOIN = "select a.id, b.item, b.cost, a.s from sales a join items b on a.k = b.k"
COALESCED = "small partitions are coalesced"
QUERIES = {
    "join": JOIN,
    "full join": "select a.id, b.item from sales a full join items b on a.k = b.k",
    "semi-join": "select a.id from sales a left semi join items b on a.k = b.k",
    "anti-join": "select a.id from sales a left anti join items b on a.k = b.k and a.s = b.s",
    "two joins": "select a.id, c.id o, b.item from sales a join items b on a.k = b.k join sales c on b.s = c.s",
    "aggregation": "select a.k, count(*), sum(b.cost) from sales a join items b on a.k = b.k group by a.k",
    "window": "select id, sum(price) over (partition by k order by id) from sales",
    "stages alike": """with sums as (select k, count(*) as n from sales group by k)
        select a.k, a.n, b.n as m from sums a full join (select k + 1 as next, n from sums) b on a.k = b.next""",
    "no rows": "select a.id, b.item from sales a join items b on a.k = b.k where a.id > 1000",
}  # fmt: skip


def mostly_extra(names: Iterable[str], kept: Collection[str]) -> list[Any]:
    """Parameters, of which only some are tested each time."""
    return [name if name in kept else pytest.param(name, marks=pytest.mark.extra) for name in names]


def tasks_of(frame: DataFrame) -> list[tuple[int, int | None]]:
    """For each stage its tasks, and the partitions that were planned where small ones are coalesced."""
    return [(stage.tasks, stage.partitions) for stage in gpujoin.metrics(frame)]


@pytest.mark.parametrize("name", mostly_extra(QUERIES, ("stages alike", "no rows")))
def test_partitions_of_few_rows_are_one_task(tables: SparkSession, name: str) -> None:
    found = checked(tables.sql(QUERIES[name]), allow_empty=name == "no rows")
    assert COALESCED in str(found.explanation)
    planned = [tasks for tasks, partitions in tasks_of(found.frame) if partitions == PARTITIONS]
    assert planned
    assert set(planned) == {1}
    assert f"{PARTITIONS} partitions planned, 1 run: their sizes were known" in str(gpujoin.metrics(found.frame))


@pytest.mark.parametrize(
    ("most", "expected"), [(1, {5}), (1500, {2, 3, 4}), pytest.param(1 << 20, {1}, marks=pytest.mark.extra)]
)
@pytest.mark.parametrize("names", together(("full join", "two joins"), "two joins"))
def test_partitions_are_coalesced_up_to_a_size(
    tables: SparkSession, monkeypatch: pytest.MonkeyPatch, most: int, expected: set[int], names: tuple[str, ...]
) -> None:
    """One partition is empty; a larger one stays by itself."""
    monkeypatch.setattr(runs, "Coalescing", lambda tasks: Coalescing(1, 1, most))
    check_all({name: tables.sql(QUERIES[name]) for name in names})
    frame = checked(tables.sql(JOIN)).frame
    (tasks,) = [tasks for tasks, partitions in tasks_of(frame) if partitions]
    assert tasks in expected


LEFT_ALONE = {
    "Spark does not adapt": (JOIN, "spark.sql.adaptive.enabled", "false"),
    "Spark does not coalesce": (JOIN, "spark.sql.adaptive.coalescePartitions.enabled", "false"),
    "off": (JOIN, "spark.gpujoin.exchange.adaptive", "off"),
    "a number was asked for": (JOIN, "spark.gpujoin.exchange.adaptive", "auto"),
    "rows": (JOIN, "spark.gpujoin.exchange.transport", "rows"),
    "three partitions": (JOIN, "spark.gpujoin.exchange.partitions", "3"),
    "NOT IN": (
        "select id from sales where (k, s) not in (select k, s from items where item < 30)",
        "spark.gpujoin.strategy", "shuffle"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", mostly_extra(LEFT_ALONE, ("Spark does not coalesce", "NOT IN")))
def test_partitions_stay_as_they_are(tables: SparkSession, name: str) -> None:
    text, setting, value = LEFT_ALONE[name]
    tables.conf.set(setting, value)
    found = checked(tables.sql(text))
    assert "exchange by" in str(found.explanation)
    assert COALESCED not in str(found.explanation)
    assert all(partitions is None for _, partitions in tasks_of(found.frame))


@pytest.fixture
def group(enabled: SparkSession) -> Iterator[str]:
    """The group of the jobs that a test runs."""
    context = enabled.sparkContext
    context.setJobGroup("coalescing", "", interruptOnCancel=False)
    yield "coalescing"
    for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
        context.setLocalProperty(name, None)  # type: ignore[arg-type]


ACTIONS: dict[str, Callable[[DataFrame], object]] = {
    "count": lambda frame: frame.count(),
    "collect": lambda frame: len(frame.collect()),
    "limit": lambda frame: len(frame.limit(100).collect()),
    "RDD": lambda frame: frame.rdd.map(lambda row: row.id).count(),
    "union": lambda frame: frame.union(frame).count() // 2,
    "coalesce": lambda frame: len(frame.coalesce(1).collect()),
    "cache": lambda frame: frame.cache().count(),
    "sort": lambda frame: len(frame.sort("id").collect()),
    "self join": lambda frame: len({row.id for row in frame.alias("a").join(frame.alias("b"), "id").collect()}) + 5,
}


def jobs_of(session: SparkSession, group: str) -> set[int]:
    """Ids of a group's jobs, once all that has begun is known."""
    session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    return set(session.sparkContext.statusTracker().getJobIdsForGroup(group))


@pytest.mark.parametrize("name", mostly_extra(ACTIONS, ("RDD", "cache")))
def test_nothing_runs_before_an_action_and_all_jobs_are_of_its_group(
    enabled: SparkSession, group: str, name: str
) -> None:
    jobs = jobs_of(enabled, group)
    others = jobs_begun(enabled) - len(jobs)
    frame = enabled.sql(JOIN)
    for mode in ("simple", "extended", "cost", "formatted", "codegen"):
        frame.explain(mode)
    assert frame._jdf.queryExecution().executedPlan().outputPartitioning() is not None
    assert jobs_of(enabled, group) == jobs
    for _ in range(2):  # of the same plan, whose map stages have run by then
        assert ACTIONS[name](frame) == 11
    own = jobs_of(enabled, group)
    assert len(own - jobs) >= 2
    assert jobs_begun(enabled) - len(own) == others
    frame.unpersist()


@pytest.mark.extra
def test_a_map_stage_that_fails_gives_the_query_back_to_spark(
    enabled: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    enabled.conf.set("spark.gpujoin.fallback", "silent")
    monkeypatch.setattr(running, "RunStage", KilledStage)
    assert enabled.sql(QUERIES["two joins"]).count() == 35


def test_the_error_of_a_map_stage_is_that_of_the_action(enabled: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    for adaptive in ("off", "on"):
        enabled.conf.set("spark.gpujoin.exchange.adaptive", adaptive)
        frame = enabled.sql("select a.id, b.item from sales a join items b on a.k = b.k where 1 div (a.id - 3) >= 0")
        with pytest.raises(Exception, match="division by zero") as raised:
            frame.collect()
        told.append((type(raised.value), failure_of(raised.value)))
    assert told[0] == told[1]


def test_an_action_that_is_cancelled_cancels_the_map_stages(
    enabled: SparkSession, group: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    flag = tmp_path / "hangs"
    monkeypatch.setattr(running, "RunStage", partial(HangingStage, flag=str(flag)))
    context = enabled.sparkContext
    frame = enabled.sql(JOIN)

    def cancel() -> None:
        while not flag.exists():
            time.sleep(0.02)
        context.cancelJobGroup(group)

    thread = threading.Thread(target=cancel)
    thread.start()
    begun = time.monotonic()
    with pytest.raises(Exception, match="cancelled") as raised:
        frame.collect()
    thread.join()
    assert time.monotonic() - begun < 20
    assert failure_of(raised.value) is Failure.CANCELLED
    tracker = context.statusTracker()
    assert not set(tracker.getActiveJobsIds()) & set(tracker.getJobIdsForGroup(group))
