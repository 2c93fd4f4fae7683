"""Queries whose workers fail are given back to Spark; those that somebody ended run no more, in whatever phase."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from gpujoin import disable, enable, explain, gpu_join
from gpujoin.errors import CorruptBlobError, FallbackError
from gpujoin.model.reasons import ReasonKind
from gpujoin.spark.query import hooks, planner, rule, running
from gpujoin.spark.query.accelerate import PlannedQuery
from gpujoin.spark.query.actions import is_inside
from gpujoin.spark.worker import python as workerpython
from tests.brief import brief, each_once
from tests.disks import little_disk_for_blocks
from tests.spark.query.faults import (
    HANGS,
    AbortedStage,
    CrashedStage,
    DamagedStage,
    HangingStage,
    KilledStage,
    hanging,
)

FORCED = {
    "spark.gpujoin.backend": "cpu",
    "spark.gpujoin.fallback": "silent",
}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])]

SQL = "select a.id, b.item, b.cost from sales a join items b on a.k = b.k"
AGGREGATED = "select b.s, count(*) n, sum(a.price) p from sales a join items b on a.k = b.k group by b.s"
EXCHANGED = {
    "spark.gpujoin.scan.oneTaskBytes": "1",
    "spark.gpujoin.scan.taskBytes": "1",
    "spark.gpujoin.broadcastThreshold": "1",
    "spark.gpujoin.exchange.partitions": "2",
}
GROUP = "gpujoin-cancelled"
SOON = 5.0
"""Seconds in which a cancelled query must end; the phases last :data:`HANGS`."""


@pytest.fixture
def watched(tables: SparkSession, planned: list[PlannedQuery]) -> Iterator[list[PlannedQuery]]:
    """An enabled session, and what became of each query."""
    enable(tables)
    yield planned
    disable(tables)


def native(session: SparkSession, text: str) -> list[Any]:
    """What Spark answers by itself."""
    disable(session)
    rows = session.sql(text).collect()
    enable(session)
    return sorted(map(str, rows))


# -- workers that die --------------------------------------------------------------------------------------------


DEATHS = {stage.__name__: stage for stage in (KilledStage, AbortedStage, CrashedStage)}
TEXTS = {"rows": SQL, "aggregate": AGGREGATED}


@pytest.mark.parametrize(
    ("death", "query"), each_once(DEATHS, TEXTS, extra=["AbortedStage", "CrashedStage", "aggregate"])
)
def test_a_killed_worker_gives_the_query_back(
    tables: SparkSession, watched: list[PlannedQuery], monkeypatch: pytest.MonkeyPatch, death: str, query: str
) -> None:
    stage, text = DEATHS[death], TEXTS[query]
    expected = native(tables, text)
    monkeypatch.setattr(running, "RunStage", stage)
    frame = tables.sql(text)
    assert sorted(map(str, frame.collect())) == expected
    assert [one.changed for one in watched] == [True]
    assert watched[0].explanation.islands


@pytest.mark.extra
def test_a_query_that_fails_again_is_warned_of_once(
    tables: SparkSession,
    watched: list[PlannedQuery],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tables.conf.set("spark.gpujoin.fallback", "warn")
    monkeypatch.setattr(running, "RunStage", KilledStage)
    for text in (SQL, SQL, AGGREGATED):
        tables.sql(text).collect()
    warned = [record.getMessage() for record in caplog.records if "failed here" in record.getMessage()]
    assert len(warned) == 2
    assert all("Spark runs the query itself: " in text and "\n" not in text for text in warned)


ACTIONS: dict[str, Callable[[DataFrame], object]] = {
    "count": lambda frame: frame.count(),
    "toArrow": lambda frame: frame.toArrow().num_rows,
    "toPandas": lambda frame: len(frame.toPandas()),
    "tail": lambda frame: len(frame.tail(20)),
    "show": lambda frame: len(frame._show_string(20).splitlines()) - 4,  # type: ignore[operator]
    "approxQuantile": lambda frame: len(frame.approxQuantile("id", [0.5], 0.0)) + 10,
}


@pytest.mark.parametrize("action", brief(ACTIONS, "show"))
def test_every_repeatable_action_is_given_back(
    tables: SparkSession, watched: list[PlannedQuery], monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setattr(running, "RunStage", KilledStage)
    assert ACTIONS[action](tables.sql(SQL)) == 11
    assert [one.changed for one in watched] == [True]


def test_a_session_that_is_disabled_meanwhile_gives_the_query_back(
    tables: SparkSession, watched: list[PlannedQuery], monkeypatch: pytest.MonkeyPatch
) -> None:
    disable(tables)
    count = ClassicDataFrame.count

    def disabled_meanwhile(self: ClassicDataFrame) -> int:
        try:
            return count(self)
        finally:
            disable(tables)  # as another thread may

    monkeypatch.setattr(ClassicDataFrame, "count", disabled_meanwhile)
    monkeypatch.setattr(running, "RunStage", KilledStage)
    enable(tables)
    assert tables.sql(SQL).count() == 11
    assert [one.changed for one in watched] == [True]


def test_an_action_that_fails_after_an_interrupt_is_not_given_back(
    tables: SparkSession, watched: list[PlannedQuery], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark's ``toArrow`` ends its connection after Ctrl-C, and raises the error that it finds there."""

    def interrupted(self: DataFrame) -> Any:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            return self._jdf.collectToPython()

    disable(tables)
    monkeypatch.setattr(ClassicDataFrame, "toArrow", interrupted)
    monkeypatch.setattr(running, "RunStage", KilledStage)
    enable(tables)
    with pytest.raises(Py4JJavaError, match="Python worker exited unexpectedly"):
        tables.sql(SQL).toArrow()
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:  # a program that goes on
        assert len(tables.sql(SQL).collect()) == 11
    assert [one.changed for one in watched] == [True, True]
    disable(tables)


@pytest.mark.extra
def test_a_killed_worker_of_an_exchange_gives_the_query_back(
    tables: SparkSession, watched: list[PlannedQuery], monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in EXCHANGED.items():
        tables.conf.set(key, value)
    expected = native(tables, SQL)
    monkeypatch.setattr(running, "RunStage", KilledStage)
    assert sorted(map(str, tables.sql(SQL).collect())) == expected
    (island,) = watched[0].explanation.islands
    assert any("exchanged" in note.text for note in island.notes)


# -- disks -------------------------------------------------------------------------------------------------------


def _written(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


@pytest.mark.parametrize("action", brief(["collect", "toLocalIterator", "write"], "write"))
def test_a_full_disk_under_an_exchange_gives_the_query_back(
    tables: SparkSession, watched: list[PlannedQuery], tmp_path: Path, caplog: pytest.LogCaptureFixture, action: str
) -> None:
    """Spark alone sends the smaller table to every task, and needs no disk; what was exchanged before is removed."""
    configure(tables, {**EXCHANGED, "spark.gpujoin.fallback": "warn"})
    texts = np.random.default_rng(0).bytes(6 << 20)
    rows = [texts[place : place + 6000] for place in range(0, len(texts), 6000)]
    pq.write_table(pa.table({"k": range(len(rows)), "s": pa.array(rows, pa.binary())}), tmp_path / "large.parquet")
    large = tables.read.parquet(str(tmp_path / "large.parquet"))
    frame = large.join(large.selectExpr("k", "k % 7 m"), "k")
    with little_disk_for_blocks(tables, "size=4m") as folder:
        if action == "write":
            _written(frame)
        else:
            assert len(list(getattr(frame, action)())) == len(rows)
        left = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert [one.changed for one in watched] == [True]
    (warned,) = [record.getMessage() for record in caplog.records if "failed here" in record.getMessage()]
    assert "No space left on device" in warned
    assert left < 1 << 20


@pytest.mark.parametrize("action", brief(["collect", "toLocalIterator", "write"], "collect"))
def test_damage_of_what_was_exchanged_ends_the_query(
    tables: SparkSession, watched: list[PlannedQuery], monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """Spark would use the same disk, and check less."""
    configure(tables, EXCHANGED)
    monkeypatch.setattr(running, "RunStage", DamagedStage)
    frame = tables.sql(SQL)
    with pytest.raises(CorruptBlobError, match=r"stage gpujoin_.*(was altered|not one of ours|was truncated)"):
        _written(frame) if action == "write" else list(getattr(frame, action)())
    assert [one.changed for one in watched] == [True]


def test_a_killed_worker_is_an_error_where_fallback_raises(
    tables: SparkSession, watched: list[PlannedQuery], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.conf.set("spark.gpujoin.fallback", "raise")
    monkeypatch.setattr(running, "RunStage", KilledStage)
    with pytest.raises(Py4JJavaError, match="Python worker exited unexpectedly"):
        tables.sql(SQL).collect()
    assert [one.changed for one in watched] == [True]


def test_errors_of_the_users_own_functions_are_raised_once(
    tables: SparkSession, watched: list[PlannedQuery], tmp_path: Path
) -> None:
    calls = str(tmp_path / "calls")

    def fail(value: int) -> int:
        with Path(calls).open("a") as file:
            file.write("x")
        raise ValueError(f"no {value}")

    with pytest.raises(PythonException, match="ValueError: no"):
        tables.sql(SQL).coalesce(1).select(sf.udf(fail, "int")("id")).collect()
    assert [one.changed for one in watched] == [True]
    assert Path(calls).read_text() == "x"


def test_workers_that_lack_a_library_are_remembered(
    tables: SparkSession, watched: list[PlannedQuery], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on a cluster, whose machines the driver does not see: there a query has to fail before it is known."""
    expected = native(tables, SQL)
    monkeypatch.setattr(tables.sparkContext, "pythonExec", bare_python(tmp_path))
    monkeypatch.setattr(planner, "refusal", partial(_of_a_cluster, workerpython.refusal))
    assert sorted(map(str, tables.sql(SQL).collect())) == expected
    assert sorted(map(str, tables.sql(SQL).collect())) == expected
    assert [one.changed for one in watched] == [True, False]
    reasons = [reason for reason in watched[1].explanation.reasons if reason.what == "workers"]
    assert reasons[0].kind is ReasonKind.UNAVAILABLE
    assert "No module named 'pyarrow'" in reasons[0].why
    tables.conf.set("spark.gpujoin.fallback", "raise")
    with pytest.raises(FallbackError, match="No module named 'pyarrow'"):
        tables.sql(SQL).collect()


def test_islands_are_refused_where_workers_lack_libraries(
    tables: SparkSession, watched: list[PlannedQuery], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare = bare_python(tmp_path)
    monkeypatch.setattr(tables.sparkContext, "pythonExec", bare)
    assert len(tables.sql(SQL).collect()) == 11
    assert [one.changed for one in watched] == [False]
    (why,) = {reason.why for reason in watched[0].explanation.reasons if reason.what == "workers"}
    assert f"{bare}, which lacks" in why
    monkeypatch.setattr(workerpython, "driver_obstacle", lambda: "the driver's Python lacks pandas")
    (reason, *_) = explain(tables.sql(SQL)).reasons
    assert "driver: the driver's Python lacks pandas" in str(reason)


MODULES = {
    "secrets.py": "raise RuntimeError('keep out')",
}


@pytest.mark.extra
@pytest.mark.parametrize("name", MODULES)
def test_a_file_in_the_place_of_a_module_is_told_once(
    tables: SparkSession,
    watched: list[PlannedQuery],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    name: str,
) -> None:
    """Workers start in the program's working directory, where Python looks for modules first."""
    tables.conf.set("spark.gpujoin.fallback", "warn")
    expected = native(tables, SQL), native(tables, AGGREGATED)
    file = tmp_path / name
    file.write_text(MODULES[name])
    monkeypatch.setattr(tables.sparkContext, "pythonExec", python_in(tmp_path))
    assert sorted(map(str, tables.sql(SQL).collect())) == expected[0]
    assert sorted(map(str, tables.sql(SQL).collect())) == expected[0]
    assert sorted(map(str, tables.sql(AGGREGATED).collect())) == expected[1]
    assert [one.changed for one in watched] == [True, False, False]
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == 1
    assert str(file) in warned[0]
    assert "An error occurred" not in warned[0]
    file.unlink()
    assert sorted(map(str, tables.sql(SQL).collect())) == expected[0]
    assert watched[-1].changed
    assert len(caplog.records) == 1


def python_in(folder: Path) -> str:
    """This interpreter, started in another folder."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\ncd "{folder}"\nexec "{sys.executable}" "$@"\n')
    path.chmod(0o755)
    return str(path)


def bare_python(folder: Path) -> str:
    """This interpreter without the libraries of its environment."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    path.chmod(0o755)
    return str(path)


def _of_a_cluster(refusal: Callable[..., Any], context: Any, conf: Any) -> Any:
    return refusal(context, {**conf, "spark.master": "spark://host:7077"})


@pytest.mark.plans_badly
def test_planning_survives_a_panic(
    tables: SparkSession, watched: list[PlannedQuery], monkeypatch: pytest.MonkeyPatch
) -> None:
    def panic(*given: Any, **named: Any) -> None:
        raise pl.exceptions.PanicException("index out of bounds")

    expected = native(tables, SQL)
    monkeypatch.setattr(planner, "arrange", panic)
    assert sorted(map(str, tables.sql(SQL).collect())) == expected
    (reason,) = watched[0].explanation.reasons
    assert reason.kind is ReasonKind.UNEXPECTED
    assert "PanicException: index out of bounds" in reason.why


# -- cancelling --------------------------------------------------------------------------------------------------


@dataclass
class Cancelled:
    """Runs an action, ends it from another thread once its phase has begun, and tells what happened.

    Attributes
    ----------
    session : SparkSession
        The session.
    flag : str
        File that the phase makes when it begins.
    """

    session: SparkSession
    flag: str
    asked: float = 0.0
    errors: list[BaseException] = field(default_factory=list)

    def slow(self, column: str) -> Any:
        """A column that takes long."""
        return sf.udf(hanging(self.flag), "int")(column)

    def run(self, action: Callable[[], Any], jobs: int, end: Callable[[], object] | None = None) -> None:
        """Check that the action ends soon, with an error, after so many jobs."""
        context = self.session.sparkContext
        tracker = context.statusTracker()
        before = len(tracker.getJobIdsForGroup(GROUP))
        cancel = end or (lambda: context.cancelJobGroup(GROUP))
        thread = threading.Thread(target=self._watch, args=(cancel,))
        thread.start()
        with pytest.raises(BaseException) as caught:  # noqa: PT011 - checked below
            action()
        ended = time.monotonic()
        thread.join()
        assert not self.errors
        error = caught.value
        assert isinstance(error, KeyboardInterrupt) or "SPARK_JOB_CANCELLED" in str(error), repr(error)
        assert ended - self.asked < SOON
        time.sleep(0.3)
        assert len(tracker.getJobIdsForGroup(GROUP)) - before == jobs, "a job ran after the query was cancelled"
        assert not tracker.getActiveJobsIds()

    def _watch(self, end: Callable[[], object]) -> None:
        deadline = time.monotonic() + HANGS
        while not Path(self.flag).exists():
            if time.monotonic() > deadline:
                self.errors.append(TimeoutError("the phase did not begin"))
                break
            time.sleep(0.02)
        self.asked = time.monotonic()
        try:
            end()
        except Exception as problem:  # noqa: BLE001 - for the test's own thread
            self.errors.append(problem)


@pytest.fixture
def cancelled(tables: SparkSession, watched: list[PlannedQuery], tmp_path: Path) -> Iterator[Cancelled]:
    """Cancels queries of an enabled session, which works as ever afterwards."""
    context = tables.sparkContext
    native(tables, SQL)
    context.setJobGroup(GROUP, "")
    yield Cancelled(tables, str(tmp_path / "begun"))
    for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
        context.setLocalProperty(name, None)  # type: ignore[arg-type]
    tables.catalog.dropTempView("slow_items")
    assert not is_inside()


@pytest.fixture
def works_after(tables: SparkSession, watched: list[PlannedQuery]) -> Iterator[None]:
    yield
    watched.clear()
    assert len(tables.sql(SQL).collect()) == 11
    assert [one.changed for one in watched] == [True]


def slow_items(cancelled: Cancelled) -> None:
    """A view of the items with a column that takes long."""
    items = cancelled.session.table("items")
    items.select("k", "item", "cost", cancelled.slow("item").alias("late")).createOrReplaceTempView("slow_items")


BROADCAST = {"spark.gpujoin.disable": "scan", "spark.gpujoin.strategy": "broadcast"}


def configure(session: SparkSession, settings: dict[str, str]) -> None:
    for key, value in settings.items():
        session.conf.set(key, value)


@pytest.mark.extra
@pytest.mark.usefixtures("works_after")
def test_cancelled_in_a_subquery_that_planning_runs(cancelled: Cancelled) -> None:
    slow_items(cancelled)
    frame = cancelled.session.sql(f"{SQL} where a.price > (select max(late) from slow_items) - 100")
    cancelled.run(frame.collect, jobs=1)


def test_cancelled_while_a_build_side_is_collected(cancelled: Cancelled) -> None:
    slow_items(cancelled)
    configure(cancelled.session, BROADCAST)
    frame = cancelled.session.sql("select a.id, b.late from sales a join slow_items b on a.k = b.k")
    cancelled.run(frame.collect, jobs=1)


@pytest.mark.extra
def test_cancelled_while_gpu_join_collects_a_build_side(cancelled: Cancelled) -> None:
    slow_items(cancelled)
    sales, items = cancelled.session.table("sales"), cancelled.session.table("slow_items")
    joined = gpu_join(sales, items, "k", strategy="broadcast", backend="cpu")
    cancelled.run(joined.collect, jobs=1)


@pytest.fixture
def hangs(cancelled: Cancelled, monkeypatch: pytest.MonkeyPatch) -> Iterator[DataFrame]:
    """A query whose island hangs."""
    with monkeypatch.context() as patch:
        patch.setattr(running, "RunStage", partial(HangingStage, flag=cancelled.flag))
        yield cancelled.session.sql(SQL)


WAYS: dict[str, Callable[[SparkSession], object]] = {
    "session": lambda session: session.interruptAll(),
    "tag": lambda session: session.sparkContext.cancelJobsWithTag("gpujoin-tag"),
    "all": lambda session: session.sparkContext.cancelAllJobs(),
    "interrupt": lambda session: os.kill(os.getpid(), signal.SIGINT),
}


@pytest.mark.usefixtures("works_after")
@pytest.mark.parametrize("action", brief(("collect", "toArrow", "count"), "toArrow"))
def test_cancelled_while_an_island_runs(cancelled: Cancelled, hangs: DataFrame, action: str) -> None:
    cancelled.run(getattr(hangs, action), jobs=1)


@pytest.mark.usefixtures("works_after")
@pytest.mark.parametrize("way", brief(WAYS, "interrupt"))
def test_every_way_of_cancelling(cancelled: Cancelled, hangs: DataFrame, way: str) -> None:
    cancelled.session.sparkContext.addJobTag("gpujoin-tag")
    try:
        cancelled.run(hangs.collect, jobs=1, end=lambda: WAYS[way](cancelled.session))
    finally:
        cancelled.session.sparkContext.removeJobTag("gpujoin-tag")


@pytest.mark.extra
@pytest.mark.usefixtures("works_after")
def test_cancelled_after_it_was_given_back(
    cancelled: Cancelled, watched: list[PlannedQuery], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job fails here; of those that Spark then runs, none follows the one that is cancelled."""
    cancelled.session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    cancelled.session.conf.set("spark.sql.adaptive.enabled", "false")
    with monkeypatch.context() as patch:
        patch.setattr(running, "RunStage", CrashedStage)
        frame = cancelled.session.sql(SQL).select(cancelled.slow("id"))
        cancelled.run(frame.collect, jobs=2)
    assert [one.changed for one in watched] == [True]


@pytest.mark.parametrize("problem", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_while_planning_ends_the_program(
    tables: SparkSession,
    watched: list[PlannedQuery],
    monkeypatch: pytest.MonkeyPatch,
    problem: type[BaseException],
) -> None:
    def interrupted(*given: Any, **named: Any) -> None:
        raise problem

    with monkeypatch.context() as patch:
        patch.setattr(planner, "arrange", interrupted)
        with pytest.raises(problem):
            tables.sql(SQL).collect()
    assert watched == []
    assert len(tables.sql(SQL).collect()) == 11
    assert [one.changed for one in watched] == [True]


@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
def test_ctrl_c_while_the_rows_of_a_write_are_computed_ends_the_write(
    tables: SparkSession, watched: list[PlannedQuery], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, again: bool
) -> None:
    """Also after an earlier Ctrl-C, which costs the thread its connection: py4j calls back in that thread then."""

    def interrupted(spark: SparkSession, *_: Any) -> None:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        spark._jvm.java.lang.Thread.sleep(900)  # type: ignore[union-attr]

    if again:
        tables._jsparkSession._gateway_client.get_thread_connection().close()
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(rule, "stage_write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tables.sql(AGGREGATED).write.parquet(str(out))
    time.sleep(1.2)  # the statement has slept by then
    assert not out.exists()
    assert not tables.sparkContext.statusTracker().getActiveJobsIds()
    assert len(tables.sql(SQL).collect()) == 11
    assert watched[-1].changed


def test_an_interrupt_while_enabling_leaves_nothing_half_done(
    tables: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            if name == "count" and interrupts:
                raise interrupts.pop()
            super().__setattr__(name, value)

    interrupts = [KeyboardInterrupt()]
    owner = Interrupted("Owner", (ClassicDataFrame,), {})
    monkeypatch.setattr(hooks, "_owner", lambda: owner)
    with pytest.raises(KeyboardInterrupt):
        enable(tables)
    assert not hooks.is_enabled(tables)
    assert not {"collect", "count"} & owner.__dict__.keys()
    enable(tables)
    assert {"collect", "count"} <= owner.__dict__.keys()
    disable(tables)
    assert not {"collect", "count"} & owner.__dict__.keys()
