"""Whose failure an error is: told from errors that Spark really raises."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark import StatusTracker
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from gpujoin.errors import GpuJoinError, ScanError
from gpujoin.spark.failures import (
    Failure,
    failure_of,
    first_line,
    is_survivable,
    telling_line,
    worker_obstacle,
)
from gpujoin.spark.worker.functions import stage_function
from tests.brief import each_once
from tests.chaos.processes import below
from tests.disks import little_disk_for_blocks

pytestmark = pytest.mark.spark

GROUP = "gpujoin-failures"


def through(spark: SparkSession, action: Callable[[], None], schema: str = "id long") -> DataFrame:
    """One row through a worker that does something first."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        action()
        yield from batches

    return spark.range(1).repartition(1).mapInArrow(run, schema)


def daemon_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the process of this worker's daemon."""
    yield from batches
    yield pa.RecordBatch.from_pydict({"id": [os.getppid()]})


def raise_an_error() -> None:
    raise ValueError("the user's own")


def sends_itself(number: int) -> Callable[[], None]:
    def kill() -> None:
        os.kill(os.getpid(), number)

    return kill


def error_of(action: Callable[[], Any]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - any
        action()
    return caught.value


@pytest.mark.parametrize(
    ("name", "collect"), each_once(("SIGKILL", "SIGABRT", "SIGSEGV"), ("collect", "toArrow"), extra=["SIGSEGV"])
)
def test_a_worker_that_dies_is_ours(spark: SparkSession, name: str, collect: str) -> None:
    problem = error_of(getattr(through(spark, sends_itself(signal.Signals[name])), collect))
    assert failure_of(problem) is Failure.OURS
    assert telling_line(problem).startswith("Python worker exited unexpectedly (crashed)")
    assert "An error occurred while calling" not in first_line(problem)


def test_idle_workers_that_die_with_their_daemon_are_ours(spark: SparkSession) -> None:
    """Spark asks the dead daemon to end such a worker, which fails a query for each, and then starts another daemon."""
    daemon = spark.range(0).repartition(1).mapInArrow(daemon_of, "id long").collect()[0].id
    workers = below([daemon])
    for worker in workers:
        worker.send(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{worker.pid}").exists() for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(daemon, signal.SIGKILL)
    problems = []
    for _ in workers:
        try:
            through(spark, lambda: None).collect()
        except Py4JJavaError as problem:
            problems.append(problem)
    assert any("Stream closed" in str(problem) for problem in problems)
    assert {failure_of(problem) for problem in problems} == {Failure.OURS}
    assert through(spark, lambda: None).count() == 1


def test_a_worker_that_leaves_without_a_word_is_ours(spark: SparkSession) -> None:
    assert failure_of(error_of(through(spark, lambda: os._exit(0)).collect)) is Failure.OURS


def test_rows_that_are_not_as_announced_are_ours(spark: SparkSession) -> None:
    frame = through(spark, lambda: None, "id string")
    assert failure_of(error_of(frame.collect)) is Failure.OURS


def test_errors_of_the_user_are_sparks(spark: SparkSession) -> None:
    assert failure_of(error_of(through(spark, raise_an_error).collect)) is Failure.SPARKS
    raising = sf.udf(lambda value: 1 // value, "long")
    assert failure_of(error_of(spark.range(1).select(raising("id")).collect)) is Failure.SPARKS
    divided = spark.range(3).selectExpr("1 / (id - 1) as x")
    assert failure_of(error_of(divided.collect)) is Failure.SPARKS
    fed = divided.mapInArrow(lambda batches: batches, "x double")
    assert failure_of(error_of(fed.collect)) is Failure.SPARKS
    assert failure_of(error_of(lambda: spark.sql("select x"))) is Failure.SPARKS
    assert failure_of(ValueError("in the driver")) is Failure.SPARKS


def test_a_full_disk_of_sparks_is_ours_and_a_file_of_the_users_is_not(spark: SparkSession, tmp_path: Path) -> None:
    shuffled = spark.range(200_000).selectExpr("id", "uuid() as u").repartition(2, "u")
    with little_disk_for_blocks(spark, "size=100k"):
        problem = error_of(shuffled.where("length(u) > id % 40").collect)
    assert "No space left on device" in str(problem)
    assert failure_of(problem) is Failure.OURS
    spark.range(5).write.csv(str(tmp_path / "gone"))
    gone = spark.read.schema("id long").csv(str(tmp_path / "gone")).repartition(2, "id")
    assert gone.count() == 5
    gone = spark.read.schema("id long").csv(str(tmp_path / "gone")).repartition(2, "id")
    for file in (tmp_path / "gone").glob("part-*"):
        file.unlink()
    assert failure_of(error_of(gone.count)) is Failure.SPARKS


@pytest.mark.extra
def test_a_traceback_that_settings_hide_may_be_ours(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.execution.pyspark.udf.hideTraceback.enabled", "true")
    assert failure_of(error_of(through(spark, raise_an_error).collect)) is Failure.OURS


class Failing:
    """A work that cannot be unpickled in a worker."""

    def __reduce__(self) -> Any:
        return (int, ("no number",))


def test_tasks_of_ours_are_ours(spark: SparkSession) -> None:
    function = stage_function(Failing(), "failing")  # type: ignore[arg-type]
    problem = error_of(spark.range(1).mapInArrow(function, "id long").collect)
    assert telling_line(problem) == "ValueError: invalid literal for int() with base 10: 'no number'"
    assert failure_of(problem) is Failure.OURS
    assert worker_obstacle(problem) is None
    assert failure_of(ScanError("a file has changed")) is Failure.OURS


def test_workers_that_cannot_start_are_ours(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(bare.stat().st_mode | stat.S_IXUSR)
    missing = tmp_path / "missing"
    for command, said in (
        (bare, "No module named 'pyarrow'"),
        (missing, "Cannot run program"),
        ("true", None),
    ):
        monkeypatch.setattr(spark.sparkContext, "pythonExec", str(command))
        problem = error_of(through(spark, lambda: None).collect)
        assert failure_of(problem) is Failure.OURS, command
        told = worker_obstacle(problem)
        assert (told is None) == (said is None)
        assert told is None or str(said) in told.text


@pytest.fixture
def grouped(spark: SparkSession) -> Iterator[SparkSession]:
    spark.sparkContext.setJobGroup(GROUP, "", interruptOnCancel=False)
    yield spark
    for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
        spark.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type]


def when_running(spark: SparkSession, then: Callable[[], object]) -> threading.Thread:
    """Do something from another thread once the group has a job."""
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(GROUP))

    def watch() -> None:
        while not set(tracker.getJobIdsForGroup(GROUP)) - before:
            time.sleep(0.02)
        time.sleep(0.3)
        then()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def ways(spark: SparkSession) -> dict[str, Callable[[], object]]:
    context = spark.sparkContext
    tracker = context.statusTracker()
    return {
        "group": lambda: context.cancelJobGroup(GROUP),
        "all": context.cancelAllJobs,
        "session": spark.interruptAll,
        "stage": lambda: context._jsc.sc().cancelStage(stage_of_the_latest_job(tracker)),
    }


def stage_of_the_latest_job(tracker: StatusTracker) -> int:
    """The last of its stages, which cannot have ended yet."""
    job = tracker.getJobInfo(max(tracker.getJobIdsForGroup(GROUP)))
    assert job is not None
    return int(max(job.stageIds))


@pytest.mark.parametrize(
    ("way", "collect"), each_once(("group", "all", "session", "stage"), ("collect", "toArrow"), extra=["all", "stage"])
)
def test_what_somebody_ended_is_cancelled(grouped: SparkSession, way: str, collect: str) -> None:
    frame = through(grouped, lambda: time.sleep(30))
    thread = when_running(grouped, ways(grouped)[way])
    problem = error_of(getattr(frame, collect))
    thread.join()
    assert failure_of(problem) is Failure.CANCELLED
    assert not is_survivable(problem)
    wrapped = RuntimeError("planning")
    wrapped.__cause__ = problem
    assert failure_of(wrapped) is Failure.CANCELLED


@pytest.mark.parametrize(
    "problem",
    [KeyboardInterrupt(), SystemExit(1), GeneratorExit(), Py4JNetworkError(), ConnectionResetError()],
)
def test_a_program_that_ends_is_no_failure(problem: BaseException) -> None:
    assert failure_of(problem) is Failure.CANCELLED
    assert not is_survivable(problem)


def test_planning_survives_other_errors() -> None:
    assert is_survivable(ValueError())
    assert is_survivable(GpuJoinError())
    assert is_survivable(MemoryError())
    panic = error_of(a_panic)
    assert not isinstance(panic, Exception)
    assert is_survivable(panic)


def a_panic() -> None:
    """Make Polars panic: its own exception, which is no ``Exception``."""
    raise pl.exceptions.PanicException("a panic")


@pytest.mark.parametrize(
    ("file", "failure"), [("gpujoin/spark/worker/task.py", Failure.OURS), ("users/program.py", Failure.SPARKS)]
)
def test_an_error_of_a_worker_of_which_pyspark_keeps_the_text_alone(file: str, failure: Failure) -> None:
    """As on PySpark 4.1."""
    frames = f'Traceback (most recent call last):\n  File "/lib/{file}", line 5, in run\nOSError: /t/1.parquet: gone'
    problem = PythonException(f"\n  An exception was thrown from the Python worker.\n{frames}\n")
    assert failure_of(problem) is failure
