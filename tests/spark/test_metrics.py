"""Metrics: each partition counted once, whatever was attempted, and a report that people can read."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import gpujoin
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.model.jointype import JoinType
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.stages import Distribution
from gpujoin.report.metrics import (
    IslandReport,
    MetricsStore,
    metrics,
    store_of,
)
from gpujoin.spark.shuffle.blobrows import BlobCounts
from gpujoin.spark.worker.record import IslandMetrics, TaskRecord
from tests.spark.joins import joined, renamed


def record(partition: int, attempt: int, rows: int, *, stage: int = 4, name: str = "i", note: str = "") -> TaskRecord:
    measured = IslandMetrics(PipelineMetrics(output_rows=rows))
    return TaskRecord(name, stage, partition, attempt, measured, (note,) if note else ())


def store(*records: TaskRecord) -> MetricsStore:
    made = MetricsStore()
    made.register(IslandReport("i", "scan a, join b"))
    made.add(records)
    return made


def only(made: MetricsStore) -> IslandReport:
    (report,) = (report for report in made.reports() if report.name == "i")
    return report


def test_an_attempt_again_replaces_and_a_late_one_does_not() -> None:
    report = only(store(record(0, 1, 10), record(1, 2, 20), record(1, 5, 21), record(0, 0, 99)))
    assert report.metrics.pipeline.output_rows == 31
    assert report.tasks == 2


def test_runs_are_apart_and_the_oldest_are_forgotten() -> None:
    report = only(store(*(record(p, 10 * s + p, s, stage=s) for s in range(20) for p in range(2))))
    assert report.runs == 8
    assert report.metrics.pipeline.output_rows == 38
    assert "the latest of 8 runs" in str(report)


def test_unknown_stages_and_old_ones_are_dropped() -> None:
    made = store(record(0, 0, 1, name="other"))
    assert only(made).runs == 0
    for n in range(600):
        made.register(IslandReport(f"n{n}", ""))
    assert [report.name for report in made.reports()] == [f"n{n}" for n in range(88, 600)]


def test_the_accumulators_sum_is_the_store() -> None:
    made = store()
    again = made
    again += (record(0, 0, 3),)
    assert again is made
    assert only(made).metrics.pipeline.output_rows == 3


def test_a_context_that_has_stopped_has_no_records() -> None:
    context: Any = SparkContext.__new__(SparkContext)
    context._accumulatorServer = None
    assert store_of(context).reports() == ()


def test_a_report_reads_well() -> None:
    measured = IslandMetrics(sent=BlobCounts(rows=10, dropped=3, blobs=2, blob_bytes=4096))
    made = store(record(0, 0, 1234567), TaskRecord("i", 4, 1, 1, measured))
    text = str(only(made))
    for expected in ("i: scan a, join b", "2 tasks", "1,234,567 rows", "3 dropped for null keys",
                     "in 2 blobs of 4.0 KiB"):  # fmt: skip
        assert expected in text
    assert "not run yet" in str(only(store()))


def test_a_report_tells_why_tasks_did_not_run_as_planned() -> None:
    made = store()
    note, pipeline = "on the CPU: no slot", PipelineMetrics(scanned_rows=7)
    for partition, (backend, notes) in enumerate([("gpu", ()), ("cpu", (note,)), ("cpu", (note,))]):
        measured = IslandMetrics(pipeline, JoinMetrics(backends={backend: 1}))
        made.add([TaskRecord("i", 4, partition, partition, measured, notes)])
    report = only(made)
    assert report.notes == {note: 2}
    assert "3 tasks on cpu ×2, gpu ×1" in str(report)
    assert "2 tasks: on the CPU: no slot" in str(report)
    made.add([TaskRecord("i", 5, 0, 9, IslandMetrics(joins=JoinMetrics(backends={"gpu": 1})))])
    assert "  1 task on gpu\n" in str(only(made))
    assert "no slot" not in str(only(made))


@pytest.mark.spark
def test_counters_of_a_join_of_exchanged_rows(spark: SparkSession) -> None:
    left, right = renamed(spark.range(0, 3000, 1, 3), "l"), renamed(spark.range(1000, 2000, 1, 2), "r")
    result = joined(left, right, JoinType.LEFT, partitions=4)
    assert [report.runs for report in metrics(result)] == [0, 0, 0]
    assert result.count() == 3000
    build, stream, join = metrics(result.where("l0 > 5").groupBy("r0").count())
    assert [report.name for report in (build, stream)] == [f"{join.name}_0", f"{join.name}_1"]
    assert (build.tasks, stream.tasks, join.tasks) == (2, 3, 4)
    assert (build.metrics.sent.rows, stream.metrics.sent.rows) == (1000, 3000)
    assert build.metrics.sent.blobs == 8
    assert stream.metrics.sent.blob_bytes > 3000 * 2
    assert (join.metrics.pipeline.source_rows, join.metrics.pipeline.output_rows) == (4000, 3000)
    assert sum(join.metrics.joins.backends.values()) == 4


@pytest.mark.spark
def test_joins_of_a_plan_are_reported_in_order_and_others_are_not(spark: SparkSession) -> None:
    left, right = renamed(spark.range(50), "l"), renamed(spark.range(50), "r")
    first = joined(left, right, JoinType.LEFT_SEMI)
    joined(left, right, JoinType.INNER).count()
    second = joined(renamed(first, "l"), right, JoinType.INNER, Distribution.RIGHT_REPLICATED)
    assert second.count() == 50
    joins = [report for report in metrics(second) if "join" in report.description]
    assert [report.metrics.pipeline.output_rows for report in joins] == [50, 50]
    assert metrics(left) == ()


@pytest.mark.spark
@pytest.mark.parametrize("strategy", ["shuffle", "broadcast"])
def test_metrics_of_the_public_join(spark: SparkSession, strategy: Any) -> None:
    left, right = spark.range(0, 600, 1, 2).toDF("k"), spark.range(0, 600, 3, 2).toDF("k")
    result = gpujoin.gpu_join(left, right, "k", "left_anti", strategy=strategy).where("k > 100")
    assert len(result.collect()) == 333
    *_, report = gpujoin.metrics(result)
    assert report.metrics.pipeline.output_rows == 333
    shown = str(gpujoin.metrics(result))
    assert gpujoin.explain(result).operations[0].operation.split(", ~")[0] in shown  # the seconds are of later
    assert "output 333 rows" in shown
    assert str(gpujoin.metrics(left)).startswith("gpujoin has run nothing")


def test_metrics_of_what_is_no_dataframe() -> None:
    with pytest.raises(gpujoin.GpuJoinError, match="takes a Spark DataFrame, got str"):
        gpujoin.metrics("orders")  # type: ignore[arg-type]
