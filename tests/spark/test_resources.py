"""Local sessions in which Spark would start no task are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

import gpujoin
from gpujoin import ConfigurationError
from gpujoin.spark.resources import starved
from tests.spark.front import left_side, right_side

GPU = "spark.task.resource.gpu.amount"


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"spark.master": "local[2]", GPU: "0.5"}, True),
        ({"spark.master": "local", "spark.task.resource.fpga.amount": "1"}, True),
        ({"spark.master": "local[2]", GPU: "0"}, False),
        ({"spark.master": "local[2]", GPU: "?"}, False),
        ({"spark.master": "local[2]", "spark.executor.resource.gpu.amount": "1"}, False),
        ({"spark.master": "local-cluster[2,1,1024]", GPU: "1"}, False),
        ({"spark.master": "spark://host:7077", GPU: "1"}, False),
        ({GPU: "1"}, False),
    ],
)
def test_only_local_tasks_that_ask_for_resources_never_start(settings: dict[str, str], refused: bool) -> None:
    assert (starved(settings) is not None) == refused


ENTRIES: dict[str, Callable[[SparkSession], Any]] = {
    "enable": gpujoin.enable,
    "accelerate": lambda spark: gpujoin.accelerate(left_side(spark)),
    "gpu_join": lambda spark: gpujoin.gpu_join(left_side(spark), right_side(spark), "k"),
    "gpu_asof_join": lambda spark: gpujoin.gpu_asof_join(left_side(spark), right_side(spark), on="k"),
}


@pytest.mark.spark
@pytest.mark.parametrize("spark", [{GPU: "1"}], indirect=True, ids=["gpu"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_they_are_refused_with_what_to_do(spark: SparkSession, entry: str) -> None:
    with pytest.raises(ConfigurationError, match=r"gpu\.amount is 1 and the master is local.*Leave the setting"):
        ENTRIES[entry](spark)
