"""Metrics and names of islands."""

from __future__ import annotations

import re

import pytest
from pyspark.sql import SparkSession

import gpujoin
from gpujoin.report.metrics import IslandReport
from gpujoin.spark.settings import join_options

FORCED = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "raise"}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])]
SQL = "select b.s, sum(a.price), count(*) from sales a join items b on a.k = b.k group by b.s"


def test_an_island_reports_what_it_did(tables: SparkSession) -> None:
    frame = gpujoin.accelerate(tables.sql(SQL))
    (before,) = gpujoin.metrics(frame)
    assert "not run yet" in str(before)
    rows = frame.collect()
    (report,) = gpujoin.metrics(frame)
    assert isinstance(report, IslandReport)
    done = report.metrics.pipeline
    assert done.files == 4
    assert done.row_groups == 4
    assert done.scanned_rows == 15
    assert done.output_rows >= len(rows)
    assert done.output_bytes > 0
    assert set(done.seconds) >= {"Scan 1", "Scan 2", "Join", "PartialAggregate", "output"}
    assert all(seconds >= 0 for seconds in done.seconds.values())
    text = str(gpujoin.metrics(frame))
    assert "15 rows scanned" in text
    assert re.search(r"took \d+\.\d\d s; predicted were [\d.]+ s, and [\d.]+ s in Spark", str(report))


def test_metrics_of_an_enabled_session_and_names_in_plans(tables: SparkSession) -> None:
    gpujoin.enable(tables)
    try:
        frame = tables.sql(SQL)
        frame.collect()
        frame.show()
        (report,) = gpujoin.metrics(frame)
        assert isinstance(report, IslandReport)
        assert report.runs == 1
        plan = gpujoin.accelerate(frame)._jdf.queryExecution().executedPlan().toString()
    finally:
        gpujoin.disable(tables)
    assert "island_join_2scans_aggregate_gpujoin_" in plan or "island_aggregate_join_2scans_gpujoin_" in plan


def test_every_stage_of_an_island_reports(tables: SparkSession) -> None:
    for name in ("scan.oneTaskBytes", "scan.taskBytes", "broadcastThreshold"):
        tables.conf.set(f"spark.gpujoin.{name}", "1")
    frame = gpujoin.accelerate(tables.sql("select a.id, b.item from sales a join items b on a.k = b.k"))
    assert len(frame.collect()) > 0
    reports = gpujoin.metrics(frame)
    assert len(reports) == 3
    assert sum(one.metrics.pipeline.scanned_rows for one in reports) == 15
    assert sum(one.metrics.pipeline.source_rows for one in reports) > 0


def test_what_an_island_spills_is_shown_and_right(tables: SparkSession) -> None:
    groups = "select item, k, count(*) as n from items group by item, k"
    query = f"select a.id, b.item, b.n from sales a join ({groups}) b on a.k = b.k"
    expected = sorted(tables.sql(query).collect(), key=str)
    tables.conf.set("spark.gpujoin.memoryBudget", "1")
    tables.conf.set("spark.gpujoin.spillEncryption", "true")
    frame = gpujoin.accelerate(tables.sql(query))
    assert sorted(frame.collect(), key=str) == expected
    reports = gpujoin.metrics(frame)
    assert sum(one.metrics.pipeline.spills for one in reports) >= 16
    assert sum(one.metrics.pipeline.spill_bytes for one in reports) > 0
    assert "of groups and" in str(gpujoin.metrics(frame))


@pytest.mark.parametrize(("told", "encrypted"), [(None, False), ("false", False), ("true", True), ("TRUE", True)])
def test_encryption_of_sparks_files_holds_for_what_is_spilled(
    spark: SparkSession, told: str | None, encrypted: bool
) -> None:
    conf = {} if told is None else {"spark.io.encryption.enabled": told}
    assert join_options(conf, None, None).spill_encryption is encrypted


@pytest.mark.parametrize(("dtype", "leaves_out"), [("decimal(15, 3)", True), ("decimal(38, 3)", False)])
def test_averages_of_groups_without_a_match_are_not_computed_unless_they_may_overflow(
    tables: SparkSession, dtype: str, *, leaves_out: bool
) -> None:
    """A product of the average is an error where it overflows, which that of few digits cannot."""
    averages = f"select k, 0.5 * avg(cast(cost as {dtype})) half from items group by k"
    query = f"""select sum(a.id) from sales a join ({averages}) i on a.k = i.k
        where a.id >= 8 and a.s = 'x' and a.day = date'2024-05-05' and a.price <> i.half + 9"""
    frame = gpujoin.accelerate(tables.sql(query))
    assert frame.collect() == tables.sql(query).collect()
    done = gpujoin.metrics(frame)[0].metrics.pipeline
    assert done.groups == (2 if leaves_out else 5)  # that of the outer sum among them
