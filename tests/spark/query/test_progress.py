"""Spark's progress: what jobs and stages with islands are called, in the status store that its UI shows."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gpujoin import disable, metrics
from gpujoin.report.islands import jobs_name, stage_names
from gpujoin.report.operations import IslandOperation, Operation, OperationKind
from gpujoin.spark.query import activity
from tests.spark.query.queries import EXCHANGED, FORCED

SQL = "select b.item, count(*) from sales a join items b on a.k = b.k group by b.item"
NAME = "gpujoin: scan sales, join items, aggregate"


@pytest.fixture
def enabled(enabled: SparkSession) -> Iterator[SparkSession]:
    """The session, in which no description of jobs is left behind."""
    yield enabled
    enabled.sparkContext.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


def descriptions(spark: SparkSession, action: Callable[[], object]) -> list[str | None]:
    """Descriptions of the jobs that an action runs, the latest one first; Spark keeps the latest thousand jobs."""
    store = spark.sparkContext._jsc.sc().statusStore()
    known = store.jobsList(None)
    latest = known.apply(0).jobId() if known.size() else -1
    action()
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    jobs = store.jobsList(None)
    new = itertools.takewhile(lambda job: job.jobId() > latest, map(jobs.apply, range(jobs.size())))
    described = [job.description() for job in new]
    return [text.get() if text.isDefined() else None for text in described]


def stages(spark: SparkSession) -> list[str]:
    """Names of all stages."""
    store = spark.sparkContext._jsc.sc().statusStore()
    listed = store.stageList(None, False, False, getattr(store, "stageList$default$4")(), None)
    return [listed.apply(n).name() for n in range(listed.size())]


@pytest.mark.spark
@pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])
class TestJobs:
    @pytest.mark.parametrize("action", ["collect", "toArrow", "show"])
    def test_they_are_named_after_the_islands(self, enabled: SparkSession, action: str) -> None:
        frame = enabled.sql(SQL)
        assert set(descriptions(enabled, getattr(frame, action))) == {NAME}
        assert enabled.sparkContext.getLocalProperty("spark.job.description") is None
        assert descriptions(enabled, enabled.sparkContext.parallelize([1]).count) == [None]

    def test_a_dataframe_that_keeps_its_plan_keeps_its_name(self, enabled: SparkSession) -> None:
        frame = enabled.sql(SQL)
        frame.collect()
        assert set(descriptions(enabled, frame.collect)) == {NAME}
        assert len(metrics(frame)) == 1
        disable(enabled)
        assert set(descriptions(enabled, frame.toArrow)) == {None}

    def test_what_the_program_has_set_stands_first_and_stays(self, enabled: SparkSession) -> None:
        context = enabled.sparkContext
        context.setJobDescription("nightly report")
        assert set(descriptions(enabled, enabled.sql(SQL).collect)) == {f"nightly report ({NAME})"}
        assert context.getLocalProperty("spark.job.description") == "nightly report"
        assert set(descriptions(enabled, lambda: enabled.range(5).collect())) == {"nightly report"}

    def test_a_write_is_named_too(self, enabled: SparkSession, tmp_path: Path) -> None:
        write = enabled.sql(SQL).write.mode("overwrite")
        assert set(descriptions(enabled, lambda: write.parquet(str(tmp_path / "written")))) == {NAME}

    def test_queries_left_to_spark_are_not_named(self, enabled: SparkSession) -> None:
        enabled.conf.set("spark.gpujoin.strategy", "spark")
        assert set(descriptions(enabled, enabled.sql(SQL).collect)) == {None}


@pytest.mark.spark
@pytest.mark.parametrize("spark", [EXCHANGED], indirect=True, ids=["exchanged"])
def test_stages_that_exchange_bytes_are_named_each(enabled: SparkSession) -> None:
    enabled.sql(SQL).collect()
    names = stages(enabled)
    assert {"gpujoin: scan sales", "gpujoin: scan items"} <= set(names)


def operation(kind: OperationKind, progress: str, *inputs: Operation, stage: str = "") -> Operation:
    measured = ((stage, "output"),) if stage else ()
    return Operation(kind=kind, operation="", progress=progress, inputs=inputs, measured_as=measured)


def test_names_of_bushy_plans_and_of_stages() -> None:
    scans = {name: operation(OperationKind.SCAN, f"scan {name}") for name in "abc"}
    sent = operation(OperationKind.EXCHANGE, "", scans["a"], stage="i_0")
    right = operation(OperationKind.JOIN, "join", scans["b"], operation(OperationKind.FILTER, "", scans["c"]))
    top = operation(OperationKind.AGGREGATION, "aggregate", operation(OperationKind.JOIN, "as-of join", sent, right))
    island = IslandOperation(operation="", tasks=1, inputs=(top,), measured_as=(("i", "island"),))
    assert jobs_name([island]) == "gpujoin: scan a, as-of join (scan b, join c), aggregate"
    assert stage_names(island) == {
        "i": "exchanged rows, as-of join (scan b, join c), aggregate", "i_0": "scan a",
    }  # fmt: skip
    assert len(jobs_name([island] * 10)) == 120


def test_long_planning_says_what_it_does(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "_FIRST_SECONDS", 0.05)
    monkeypatch.setattr(activity, "_TOLD_SECONDS", 0.1)
    with caplog.at_level(logging.INFO, logger="gpujoin"):
        with activity.planning_watched(), activity.doing("footers of 500 files"):
            time.sleep(0.4)
        said = [record.getMessage() for record in caplog.records]
        time.sleep(0.3)
    assert all("planning a query takes long" in line and "footers of 500 files" in line for line in said[:-1])
    assert 2 <= len(said) - 1 <= 3
    assert "planning a query took 0.4" in said[-1]
    assert len(caplog.records) == len(said), "nothing is said once it has ended"


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Make standard error a terminal; give what is on it since the last call."""
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    with os.fdopen(ours, "rb") as shown, os.fdopen(theirs, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setenv("COLUMNS", "90")

        def screen() -> str:
            return (shown.read() or b"").decode()

        yield screen
        monkeypatch.undo()


@pytest.mark.spark
@pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])
@pytest.mark.parametrize("has_bar", [True, False], ids=["progress bar", "no progress bar"])
def test_long_planning_is_shown_in_a_terminal_where_sparks_progress_is(
    enabled: SparkSession, monkeypatch: pytest.MonkeyPatch, has_bar: bool
) -> None:
    monkeypatch.setattr(activity, "_FIRST_SECONDS", 0.0)
    monkeypatch.setattr(activity, "_LINE_SECONDS", 0.01)
    monkeypatch.setattr(activity, "_TOLD_SECONDS", 0.0)
    frame = enabled.sql(SQL)
    # Spark lets no session change this setting of the application.
    conf = enabled._jsparkSession.sessionState().conf()
    conf.setConfString("spark.ui.showConsoleProgress", str(has_bar).lower())
    try:
        with terminal(monkeypatch) as screen:
            frame.toArrow()
            lines = screen().replace("\x1b[K", "").replace("\r\n", "\r").split("\r")
    finally:
        conf.setConfString("spark.ui.showConsoleProgress", "false")
    if not has_bar:
        assert lines == [""]
        return
    assert lines[1].startswith("gpujoin: planning a query takes long, 0"), lines
    assert lines[-2].startswith("gpujoin: planning a query took "), lines
    assert all(len(line) < 90 for line in lines[:-2]), "a line that is overwritten does not wrap"
    assert lines[-1] == ""


def test_quick_planning_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="gpujoin"), activity.planning_watched(), activity.doing("a subquery"):
        pass
    assert not caplog.records
