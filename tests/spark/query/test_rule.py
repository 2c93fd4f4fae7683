"""The optimizer rule: every way by which a program has Spark run a query leads here, and back with Spark's answer."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from gpujoin import FallbackError, accelerate, disable, enable, metrics
from gpujoin.report.metrics import IslandReport
from gpujoin.spark.jvm.gateway import gateway_of
from gpujoin.spark.query import planner, running
from gpujoin.spark.query.accelerate import PlannedQuery
from gpujoin.spark.query.actions import is_inside
from gpujoin.spark.query.native import rule_of
from tests.brief import brief
from tests.chaos.processes import Role, this_process, with_role
from tests.spark.checkpoints import checkpoints_dropped
from tests.spark.query.faults import KilledStage
from tests.spark.query.queries import jobs_begun

FORCED = {
    "spark.gpujoin.backend": "cpu",
    "spark.gpujoin.fallback": "warn",
    "spark.sql.planChangeValidation": "true",
}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])]

SQL = "select b.s, count(*) n, sum(a.price) p from sales a join items b on a.k = b.k group by b.s"
JOIN = "select a.id, b.item, b.cost from sales a join items b on a.k = b.k"
GIVEN_BACK = "Spark runs the query itself"


@pytest.fixture
def enabled(tables: SparkSession, planned: list[PlannedQuery]) -> Iterator[SparkSession]:
    for name in ("written", "created", "saved"):
        tables.sql(f"drop table if exists {name}")
    enable(tables)
    yield tables
    disable(tables)
    for name in ("written", "created", "saved"):
        tables.sql(f"drop table if exists {name}")
    for name in ("kept", "viewed"):
        tables.catalog.dropTempView(name)


def physical_plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def rows(given: Any) -> list[str]:
    return sorted(map(str, given))


def insert(session: SparkSession) -> Any:
    session.sql("create table written (s string, n bigint, p decimal(38, 2)) using parquet")
    session.sql(f"insert into written {SQL}")
    return session.table("written").select("s", "n").collect()


def create(session: SparkSession) -> Any:
    session.sql(f"create table created using parquet as {SQL}")
    return session.table("created").collect()


def save(session: SparkSession) -> Any:
    session.sql(SQL).write.saveAsTable("saved")
    return session.table("saved").collect()


def cache_table(session: SparkSession) -> Any:
    session.sql(f"cache table kept as {SQL}")
    return session.table("kept").collect()


def cache(session: SparkSession) -> Any:
    frame = session.sql(SQL).cache()
    result = [*frame.collect(), frame.count()]
    frame.unpersist()
    return result


def view(session: SparkSession) -> Any:
    session.sql(JOIN).createOrReplaceTempView("viewed")
    return session.sql("select item, count(*) from viewed group by item").collect()


def checkpoint(session: SparkSession) -> Any:
    with checkpoints_dropped(session):
        return session.sql(SQL).localCheckpoint().collect()


def each_batch(session: SparkSession) -> Any:
    seen: list[Any] = []

    def run(batch: Any, number: int) -> None:
        if number == 0:
            seen.extend(batch.sparkSession.sql(SQL).collect())

    stream = session.readStream.format("rate-micro-batch").option("rowsPerBatch", "1").load()
    query = stream.writeStream.foreachBatch(run).trigger(availableNow=True).start()
    query.awaitTermination()
    return seen


WAYS: dict[str, Callable[[SparkSession], Any]] = {
    "collect": lambda session: session.sql(SQL).collect(),
    "insert": insert,
    "create table as": create,
    "save as table": save,
    "cache table": cache_table,
    "cache": cache,
    "rdd": lambda session: session.sql(SQL).rdd.collect(),
    "describe": lambda session: session.sql(JOIN).describe("item").collect(),
    "view": view,
    "checkpoint": checkpoint,
    "subquery": lambda session: session.sql(f"select (select max(n) from ({SQL})) + 1").collect(),
    "union": lambda session: session.sql(f"select n from ({SQL}) union all select 1").collect(),
}


@pytest.mark.parametrize("task_bytes", ["1", "1m"], ids=["several tasks", "one task"])
def test_scalar_subqueries_that_spark_makes_one_of(
    enabled: SparkSession, planned: list[PlannedQuery], task_bytes: str
) -> None:
    """While the rules of a session are applied, Spark keeps the one above the whole query."""
    for setting in ("oneTaskBytes", "taskBytes"):
        enabled.conf.set(f"spark.gpujoin.scan.{setting}", task_bytes)
    query = """select k, count(*) from sales
        where id between (select min(item) / 10 from items) and (select max(item) / 20 from items) group by k"""
    actual = rows(enabled.sql(query).collect())
    assert [plan.changed for plan in planned] == [True]
    disable(enabled)
    frame = enabled.sql(query)
    assert "mergedValue" in frame._jdf.queryExecution().optimizedPlan().toString()
    assert actual == rows(frame.collect())
    assert len(actual) > 1


@pytest.mark.parametrize("way", brief(WAYS, "collect", "insert", "cache table", "subquery"))
def test_every_way_leads_here(enabled: SparkSession, planned: list[PlannedQuery], way: str) -> None:
    actual = rows(WAYS[way](enabled))
    assert any(query.changed and query.explanation.islands for query in planned)
    disable(enabled)
    for name in ("written", "created", "saved"):
        enabled.sql(f"drop table if exists {name}")
    enabled.catalog.clearCache()
    enabled.catalog.dropTempView("kept")
    assert actual == rows(WAYS[way](enabled))
    assert actual


def test_the_batches_of_a_stream_lead_here(enabled: SparkSession, planned: list[PlannedQuery]) -> None:
    assert rows(each_batch(enabled)) == rows(enabled.sql(SQL).collect())
    assert [query.changed for query in planned] == [True, True]


def test_a_new_session_leads_here(enabled: SparkSession, planned: list[PlannedQuery]) -> None:
    other = enabled.newSession()
    try:
        for key, value in FORCED.items():
            other.conf.set(key, value)
        for name in ("sales", "items"):
            other.read.parquet(enabled.table(name).inputFiles()[0].rpartition("/")[0]).createOrReplaceTempView(name)
        assert rows(other.sql(SQL).collect()) == rows(enabled.sql(SQL).collect())
        assert [query.changed for query in planned] == [True, True]
    finally:
        disable(other)


def test_four_threads_at_once(enabled: SparkSession, planned: list[PlannedQuery]) -> None:
    expected = rows(enabled.sql(SQL).collect())
    results: list[list[str]] = []
    threads = [threading.Thread(target=lambda: results.append(rows(enabled.sql(SQL).collect()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4
    assert [query.changed for query in planned] == [True] * 5


def test_a_call_to_python_leaves_no_connection_behind(enabled: SparkSession, planned: list[PlannedQuery]) -> None:
    """Py4J makes one for each thread of the JVM that calls, and Spark makes a thread for each of these actions."""
    actions: list[Callable[[DataFrame], Any]] = [
        lambda frame: frame.toArrow(),
        lambda frame: frame.toPandas(),
        lambda frame: frame.collect(),
    ]
    processes = [this_process(), *with_role([os.getpid()], Role.JVM)]
    assert len(processes) == 2

    def run(times: int) -> None:
        for action in actions * times:
            action(enabled.sql(SQL))

    def held() -> tuple[int, int]:
        return threading.active_count(), sum(process.files for process in processes)

    run(1)
    threads, files = held()
    run(3)
    assert [query.changed for query in planned] == [True] * 12
    # Python closes its end once it sees that the JVM has. The JVM's finalizer, which calls Python when a rule of an
    # earlier test is collected, keeps its own connection.
    most = threads + 3, files + 8
    deadline = time.monotonic() + 10
    while any(now > limit for now, limit in zip(held(), most, strict=True)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert held()[0] <= most[0]
    assert held()[1] <= most[1]


def test_python_is_asked_once_and_only_about_what_may_run_here(
    enabled: SparkSession, planned: list[PlannedQuery]
) -> None:
    enabled.table("sales").where("k > 1").orderBy("id").collect()
    enabled.table("sales").where("k > 1").limit(3).collect()
    enabled.sql("show tables").collect()
    enabled.range(5).selectExpr("id + 1").write.format("noop").mode("append").save()
    assert planned == []
    frame = enabled.sql(SQL)
    for _ in range(2):
        frame.collect()
    assert len(planned) == 1


def test_explain_shows_what_runs(enabled: SparkSession) -> None:
    frame = enabled.sql(SQL)
    assert "GpuJoinIsland island_" in physical_plan(frame)
    (text,) = enabled.sql(f"explain {SQL}").first() or ("",)
    assert "GpuJoinIsland island_" in text


def test_explaining_a_write_runs_nothing(enabled: SparkSession, planned: list[PlannedQuery]) -> None:
    enabled.sql("create table written (s string, n bigint, p decimal(38, 2)) using parquet")
    before = jobs_begun(enabled)
    enabled.sql(f"explain insert into written {SQL}").collect()
    assert jobs_begun(enabled) == before


def test_metrics_are_of_the_latest_run(enabled: SparkSession) -> None:
    frame = enabled.sql(SQL)
    assert metrics(frame) == ()
    for run in (frame.collect, frame.count, lambda: frame.write.format("noop").mode("append").save()):
        run()
        (report,) = metrics(frame)
        assert isinstance(report, IslandReport)
        assert report.runs == 1
    frame.cache()
    try:
        frame.count()
        (report,) = metrics(frame)
        assert isinstance(report, IslandReport)
        assert report.metrics.pipeline.scanned_rows > 0
    finally:
        frame.unpersist()


def test_results_of_accelerate_are_planned_once(enabled: SparkSession, planned: list[PlannedQuery]) -> None:
    frame = accelerate(enabled.sql(SQL))
    assert rows(frame.collect()) == rows(enabled.sql(SQL).collect())
    assert [query.changed for query in planned] == [True]


def test_rules_of_the_user_stay(tables: SparkSession) -> None:
    names = gateway_of(tables)
    own = getattr(getattr(names.org.apache.spark.sql.catalyst.optimizer, "RemoveNoopOperators$"), "MODULE$")
    experimental = tables._jsparkSession.experimental()
    to_seq = names.org.apache.spark.api.python.PythonUtils.toSeq
    getattr(experimental, "extraOptimizations_$eq")(to_seq([own]))
    try:
        enable(tables)
        assert experimental.extraOptimizations().size() == 2
        disable(tables)
        assert experimental.extraOptimizations().size() == 1
        assert experimental.extraOptimizations().apply(0).equals(own)
    finally:
        getattr(experimental, "extraOptimizations_$eq")(to_seq([]))


def test_a_cloned_session_is_disabled_with_its_own(enabled: SparkSession, planned: list[PlannedQuery]) -> None:
    clone = enabled._jsparkSession.cloneSession()
    clone.sql(SQL).count()
    assert [query.changed for query in planned] == [True]
    disable(enabled)
    clone.sql(SQL).count()
    assert len(planned) == 1


@pytest.mark.plans_badly
@pytest.mark.parametrize("statement", ["collect", "insert"])
def test_a_refusal_reaches_the_program_as_itself(
    enabled: SparkSession, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    monkeypatch.setattr(planner, "arrange", _failing(ValueError("no way")))
    enabled.conf.set("spark.gpujoin.fallback", "raise")
    with pytest.raises(FallbackError, match="no way"):
        WAYS[statement](enabled)
    enabled.conf.set("spark.gpujoin.fallback", "silent")
    assert WAYS["collect"](enabled)


def _failing(problem: BaseException) -> Callable[..., None]:
    def fail(*given: Any, **named: Any) -> None:
        raise problem

    return fail


def test_an_interrupt_while_planning_ends_a_statement(enabled: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    enabled.sql("create table written (s string, n bigint, p decimal(38, 2)) using parquet")
    with monkeypatch.context() as patch:
        patch.setattr(planner, "arrange", _failing(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            enabled.sql(f"insert into written {SQL}")
    assert not is_inside()
    assert enabled.table("written").count() == 0
    assert insert_count(enabled) > 0


def insert_count(session: SparkSession) -> int:
    session.sql(f"insert into written {SQL}")
    return session.table("written").count()


@pytest.mark.parametrize("way", brief(("insert", "create table as", "save as table", "checkpoint"), "insert"))
def test_a_killed_worker_gives_a_statement_back(
    enabled: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    monkeypatch.setattr(running, "RunStage", KilledStage)
    actual = rows(WAYS[way](enabled))
    assert GIVEN_BACK in caplog.text
    disable(enabled)
    for name in ("written", "created", "saved"):
        enabled.sql(f"drop table if exists {name}")
    assert actual == rows(WAYS[way](enabled))


def test_a_killed_worker_under_a_cached_query_gives_it_back_and_keeps_it_cached(
    enabled: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "RunStage", KilledStage)
    frame = enabled.sql(SQL).cache()
    try:
        above = frame.where("n > 0")
        assert above.count() == len(above.collect()) > 0
        plan = physical_plan(frame.where("n > 1"))
        assert "InMemoryTableScan" in plan
        assert "GpuJoinIsland" not in plan
    finally:
        frame.unpersist()


def test_a_session_has_one_rule_however_often_it_is_enabled(enabled: SparkSession) -> None:
    enable(enabled)
    assert enabled._jsparkSession.experimental().extraOptimizations().size() == 1
    disable(enabled)
    assert rule_of(enabled) is None


@pytest.mark.extra
def test_writes_over_other_sources_are_staged_too(
    enabled: SparkSession, planned: list[PlannedQuery], tmp_path: Path
) -> None:
    """A provider of Spark's own that reads rows while it writes."""
    options = {"url": f"jdbc:derby:memory:{tmp_path.name};create=true", "dbtable": "written"}
    driver = {"driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver"}
    enabled.sql(JOIN).write.format("jdbc").options(**options, **driver).save()
    assert [query.changed for query in planned] == [True]
    back = enabled.read.format("jdbc").options(**options, **driver).load()
    assert rows(back.select("id", "item").collect()) == rows(enabled.sql(JOIN).select("id", "item").collect())
