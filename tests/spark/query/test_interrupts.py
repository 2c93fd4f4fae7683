"""Ctrl-C ends what the program has called, in whatever call it comes, with the jobs that the call has yet to begin."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from gpujoin import disable, enable
from gpujoin.spark.query import interrupts, rule
from gpujoin.spark.query.accelerate import plan_query
from gpujoin.spark.query.staging import stage_write
from tests.brief import brief, each_once
from tests.spark.query.faults import hanging

FORCED = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "silent"}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])]

JOIN = "select a.id, b.cost from sales a join items b on a.k = b.k"
SOON = 5.0
"""Seconds within which no job may be active any more; the jobs last far longer."""

WRITES: dict[str, Callable[[SparkSession, str, str], Any]] = {
    "write": lambda session, query, path: session.sql(query).write.mode("overwrite").parquet(path),
    "insert": lambda session, query, path: session.sql(f"insert overwrite directory '{path}' using parquet {query}"),
    "create table": lambda session, query, path: session.sql(
        f"create table interrupted using parquet location '{path}' as {query}"
    ),
}


@pytest.fixture
def enabled(tables: SparkSession) -> Iterator[SparkSession]:
    enable(tables)
    yield tables
    disable(tables)
    tables.sql("drop table if exists interrupted")
    tables.sql("uncache table if exists interrupted_rows")


def interrupt_when(begun: Callable[[], bool]) -> threading.Thread:
    """Send Ctrl-C to this process as soon as something has begun."""

    def watch() -> None:
        deadline = time.monotonic() + 60
        while not begun() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def ends(session: SparkSession, call: Callable[[], Any], begun: Callable[[], bool]) -> None:
    """Check that Ctrl-C reaches the program, and that its jobs end soon and stay away."""
    thread = interrupt_when(begun)
    with pytest.raises(KeyboardInterrupt):
        call()
    thread.join()
    tracker, deadline = session.sparkContext.statusTracker(), time.monotonic() + SOON
    while tracker.getActiveJobsIds():
        assert time.monotonic() < deadline, "a job goes on"
        time.sleep(0.05)


def active_jobs(session: SparkSession) -> list[int]:
    """Ids of the jobs that run, once all that has begun and ended is known."""
    session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    return session.sparkContext.statusTracker().getActiveJobsIds()


SLOW = "select slow(id) x from sales"
CALLS: dict[str, Callable[[SparkSession, str], Any]] = {
    "write": lambda session, path: WRITES["write"](session, SLOW, path),
    "insert": lambda session, path: WRITES["insert"](session, SLOW, path),
    "create table": lambda session, path: WRITES["create table"](session, SLOW, path),
    "cache table": lambda session, _: session.sql(f"cache table interrupted_rows as {SLOW}"),
    "count of an RDD": lambda session, _: session.sql(SLOW).rdd.count(),
    "count": lambda session, _: session.sql(SLOW).groupBy("x").count().count(),
}


@pytest.mark.parametrize("name", brief(CALLS, "insert", "count of an RDD"))
def test_the_job_of_an_interrupted_call_ends(enabled: SparkSession, tmp_path: Path, name: str) -> None:
    """Spark's own, of a call that is none of the actions that gpujoin knows."""
    flag, out = tmp_path / "begun", tmp_path / "out"
    enabled.udf.register("slow", sf.udf(hanging(str(flag)), "long"))
    ends(enabled, lambda: CALLS[name](enabled, str(out)), flag.exists)
    assert not list(out.glob("part-*"))


def new_callback_client(session: SparkSession) -> None:
    """Have the JVM call back over a connection of its own, and so in another thread, as it first does in a program."""
    gateway: Any = session.sparkContext._gateway
    server = gateway.java_gateway_server
    server.resetCallbackClient(server.getCallbackClient().getAddress(), gateway._python_proxy_port)


def new_connection(session: SparkSession) -> None:
    """Have it call back in the thread that waits, as it does after an earlier Ctrl-C."""
    session._jsparkSession._gateway_client.get_thread_connection().close()


STEPS = ("planning", "about to begin")
PLANNERS = {"another thread": new_callback_client, "main thread": new_connection}


@pytest.mark.parametrize(
    ("name", "step", "planner"), each_once(WRITES, STEPS, PLANNERS, extra=["main thread", "create table"])
)
def test_no_job_runs_for_a_write_that_is_interrupted_before_it(
    enabled: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, step: str, planner: str
) -> None:
    """While its query is planned, or between the last look whether the program still waits and the job of its rows.

    What was in its place stays.
    """
    reached, out = threading.Event(), tmp_path / "out"
    if name != "create table":
        enabled.range(3).write.parquet(str(out))
    went_on: list[threading.Thread] = []
    PLANNERS[planner](enabled)

    def interrupted(original: Callable[..., Any], *arguments: Any) -> Any:
        reached.set()
        deadline = time.monotonic() + 10
        while not interrupts._interrupted - before:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        went_on.append(threading.current_thread())
        if original is stage_write:
            time.sleep(0.3)  # the jobs that are active now have been cancelled
        return original(*arguments)

    before = set(interrupts._interrupted)
    with monkeypatch.context() as patch:
        patch.setattr(rule, "stage_write", stage_write if step == "planning" else partial(interrupted, stage_write))
        patch.setattr(rule, "plan_query", partial(interrupted, plan_query) if step == "planning" else plan_query)
        ends(enabled, lambda: WRITES[name](enabled, JOIN, str(out)), reached.is_set)
        time.sleep(0.5)
    assert not active_jobs(enabled)
    assert bool(went_on) == (planner == "another thread")  # Ctrl-C comes to the main thread itself
    if name == "create table":
        assert not out.exists()
    else:
        assert enabled.read.parquet(str(out)).count() == 3
    assert enabled.sql(JOIN).count() == 11


def test_other_threads_go_on_after_ctrl_c(enabled: SparkSession, tmp_path: Path) -> None:
    flags = [tmp_path / name for name in ("here", "there")]
    slow = [sf.udf(hanging(str(flag)), "long")("id") for flag in flags]
    errors: list[BaseException] = []

    def elsewhere() -> None:
        try:
            enabled.range(1).select(slow[1]).collect()
        except BaseException as problem:  # noqa: BLE001 - for the test's own thread
            errors.append(problem)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    interrupting = interrupt_when(lambda: all(flag.exists() for flag in flags))
    enabled.range(1).select(slow[0]).createOrReplaceTempView("slow_row")
    with pytest.raises(KeyboardInterrupt):
        enabled.sql("cache table interrupted_rows as select * from slow_row")
    interrupting.join()
    tracker = enabled.sparkContext.statusTracker()
    deadline = time.monotonic() + SOON
    while len(tracker.getActiveJobsIds()) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.3)
    assert len(tracker.getActiveJobsIds()) == 1
    enabled.sparkContext.cancelAllJobs()
    thread.join()
    assert "SPARK_JOB_CANCELLED" in str(errors[0])
