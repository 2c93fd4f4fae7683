"""Metrics: each partition counted once, whatever was attempted, and a report that people can read."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import gpujoin
from gpujoin.config import Strategy
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.model.jointype import JoinType
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.spark.metrics import (
    ExchangeMetrics,
    IslandMetrics,
    IslandReport,
    JoinDescription,
    JoinReport,
    MetricsStore,
    Part,
    TaskRecord,
    metrics,
)
from tests.spark.joins import join, join_reports, renamed


def record(
    partition: int, attempt: int, rows: int, *, stage: int = 4, join_id: str = "j", note: str = ""
) -> TaskRecord:
    return TaskRecord(
        join_id, Part.JOIN, stage, partition, attempt, JoinMetrics(output_rows=rows), (note,) if note else ()
    )


def store(*records: TaskRecord) -> MetricsStore:
    made = MetricsStore()
    made.register(JoinDescription("j", "inner join on k", "shuffle"))
    made.add(records)
    return made


def only(made: MetricsStore) -> JoinReport:
    (report,) = made.reports(["j"])
    assert isinstance(report, JoinReport)
    return report


def test_an_attempt_again_replaces_and_a_late_one_does_not() -> None:
    report = only(store(record(0, 1, 10), record(1, 2, 20), record(1, 5, 21), record(0, 0, 99)))
    assert report.metrics.output_rows == 31
    assert report.runs[0].tasks == 2


def test_runs_are_apart_and_the_oldest_are_forgotten() -> None:
    report = only(store(*(record(p, 10 * s + p, s, stage=s) for s in range(20) for p in range(2))))
    assert [run.metrics.output_rows for run in report.runs] == [2 * s for s in range(12, 20)]
    assert report.metrics.output_rows == 38
    assert "the latest of 8 runs" in str(report)


def test_unknown_joins_and_old_ones_are_dropped() -> None:
    made = store(record(0, 0, 1, join_id="other"))
    assert only(made).runs == ()
    for n in range(600):
        made.register(JoinDescription(f"n{n}", "", "shuffle"))
    assert len(made.join_ids()) == 512
    assert made.reports(["j"]) == ()


def test_the_accumulators_sum_is_the_store() -> None:
    made = store()
    again = made
    again += (record(0, 0, 3),)
    assert again is made
    assert only(made).metrics.output_rows == 3


def test_a_report_reads_well() -> None:
    made = store(
        record(0, 0, 1234567, note="on the CPU: no GPU"),
        TaskRecord("j", Part.BUILD_EXCHANGE, 2, 0, 0, ExchangeMetrics(10, 80, 3, 2, 4096, 0.5, 1)),
    )
    text = str(only(made))
    for expected in ("inner join on k [shuffle]", "1,234,567 rows", "3 dropped for null keys", "4.0 KiB",
                     "1 task: on the CPU: no GPU", "0.50 s in 1 task"):  # fmt: skip
        assert expected in text
    assert "not run yet" in str(only(store()))


def test_an_island_tells_why_its_tasks_did_not_run_as_planned() -> None:
    made = MetricsStore()
    made.register(JoinDescription("i", "join_2scans", Part.ISLAND.value))
    note, pipeline = "on the CPU: no slot", PipelineMetrics(scanned_rows=7)
    for partition, (backend, notes) in enumerate([("gpu", ()), ("cpu", (note,)), ("cpu", (note,))]):
        measured = IslandMetrics(pipeline, JoinMetrics(backends={backend: 1}))
        made.add([TaskRecord("i", Part.ISLAND, 4, partition, partition, measured, notes)])
    (report,) = made.reports(["i"])
    assert isinstance(report, IslandReport)
    assert report.notes == {note: 2}
    assert "3 tasks on cpu ×2, gpu ×1" in str(report)
    assert "2 tasks: on the CPU: no slot" in str(report)
    made.add([TaskRecord("i", Part.ISLAND, 5, 0, 9, IslandMetrics(joins=JoinMetrics(backends={"gpu": 1})))])
    assert "  1 task on gpu\n" in str(made.reports(["i"]))
    assert "no slot" not in str(made.reports(["i"]))


@pytest.mark.spark
def test_counters_of_a_shuffled_join(spark: SparkSession) -> None:
    left, right = renamed(spark.range(0, 3000, 1, 3), "l"), renamed(spark.range(1000, 2000, 1, 2), "r")
    joined = join(left, right, JoinType.LEFT, Strategy.SHUFFLE, partitions=4)
    (before,) = join_reports(joined)
    assert before.runs == ()
    assert joined.count() == 3000
    (report,) = join_reports(joined.where("l0 > 5").groupBy("r0").count())
    assert report.join_id == before.join_id
    assert report.description == "left join"
    assert report.strategy == "shuffle"
    (run,) = report.runs
    assert run.tasks == 4
    assert (run.metrics.build_rows, run.metrics.probe_rows, run.metrics.output_rows) == (1000, 3000, 3000)
    assert run.metrics.output_batches >= 4
    assert run.metrics.build_seconds > 0
    assert sum(run.metrics.backends.values()) == 4
    build, stream = report.exchanges[Part.BUILD_EXCHANGE], report.exchanges[Part.STREAM_EXCHANGE]
    assert (build.rows, build.tasks, stream.rows, stream.tasks) == (1000, 2, 3000, 3)
    assert build.blobs == 8
    assert stream.blob_bytes > 3000 * 2


@pytest.mark.spark
def test_joins_of_a_plan_are_reported_in_order_and_others_are_not(spark: SparkSession) -> None:
    left, right = renamed(spark.range(50), "l"), renamed(spark.range(50), "r")
    first = join(left, right, JoinType.LEFT_SEMI, Strategy.SHUFFLE)
    join(left, right, JoinType.INNER, Strategy.SHUFFLE).count()
    second = join(renamed(first, "l"), right, JoinType.INNER, Strategy.BROADCAST)
    assert second.count() == 50
    reports = join_reports(second)
    assert [report.strategy for report in reports] == ["shuffle", "broadcast"]
    assert [report.metrics.output_rows for report in reports] == [50, 50]
    assert metrics(left) == ()


@pytest.mark.spark
@pytest.mark.parametrize("strategy", ["shuffle", "broadcast"])
def test_metrics_of_the_public_join(spark: SparkSession, strategy: str) -> None:
    left, right = spark.range(0, 600, 1, 2).toDF("k"), spark.range(0, 600, 3, 2).toDF("k")
    joined = gpujoin.gpu_join(left, right, "k", "left_anti", strategy=strategy).where("k > 100")
    assert joined.count() == 333
    (report,) = join_reports(joined)
    assert report.strategy == strategy
    assert (report.metrics.probe_rows, report.metrics.output_rows) == (499, 333)
    shown = str(gpujoin.metrics(joined))
    assert shown == str(report)
    assert "output 333 rows" in shown
    assert str(gpujoin.metrics(left)) == "no joins of gpujoin"


def test_metrics_of_what_is_no_dataframe() -> None:
    with pytest.raises(gpujoin.GpuJoinError, match="takes a Spark DataFrame, got str"):
        gpujoin.metrics("orders")  # type: ignore[arg-type]
