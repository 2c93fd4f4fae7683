"""Islands on a GPU: the queries that run whole, with the answers of Spark and the path they took."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from gpujoin import accelerate
from gpujoin.report.metrics import IslandReport, metrics
from tests.spark.query.queries import check
from tests.spark.query.test_islands import WHOLE

ASKED = {"spark.gpujoin.backend": "gpu", "spark.gpujoin.fallback": "silent"}
pytestmark = [
    pytest.mark.spark, pytest.mark.gpu,
    pytest.mark.parametrize("spark", [ASKED], indirect=True, ids=["gpu"]),
]  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_queries_run_whole(tables: SparkSession, name: str) -> None:
    found = check(tables.sql(WHOLE[name]), allow_empty=name == "empty groups")
    assert found.islands
    assert {island.backend for island in found.islands} == {"gpu"}


def test_metrics_say_that_an_island_ran_on_the_gpu(tables: SparkSession) -> None:
    frame = accelerate(tables.sql(WHOLE["groups"]))
    frame.collect()
    (report,) = metrics(frame)
    assert isinstance(report, IslandReport)
    assert report.metrics.joins.backends == {"gpu": report.tasks}
    assert report.metrics.pipeline.device_steps > 0
    assert report.metrics.pipeline.cpu_runs == 0


def test_windows_run_on_the_gpu(tables: SparkSession) -> None:
    frame = accelerate(tables.sql(WHOLE["window above"]))
    frame.collect()
    (report,) = metrics(frame)
    assert isinstance(report, IslandReport)
    assert report.metrics.pipeline.windows > 0
    assert report.metrics.pipeline.device_steps > 0
    assert report.metrics.pipeline.host_steps == 0
