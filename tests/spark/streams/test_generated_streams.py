"""Generated joins of streams in enabled sessions against Spark's own, micro-batch by micro-batch."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import gpujoin
from gpujoin.streams.join import STREAMED
from tests.spark.streams.queries import FORMS, KEYS, Output, Streams, assert_equal

pytestmark = pytest.mark.spark

STREAMS = int(os.environ.get("GPUJOIN_TEST_SPARK_STREAMS", "20"))
"""Streams of the long sweep: set it for a longer one."""
RESTARTED = 10
"""Each so many-th stream is stopped and started again in the middle."""


@pytest.mark.slow
@pytest.mark.parametrize("number", range(STREAMS))
def test_generated_streams(streaming: SparkSession, tmp_path: Path, seed: int, number: int) -> None:
    draw = random.Random(f"{seed} {number}")
    name = draw.choice(list(FORMS))
    form = FORMS[name]
    how = draw.choice(STREAMED).value if form.outer else "inner"
    key = draw.choice(list(KEYS)) if "l.k = r.k" in form.condition else "long"  # computed keys are of numbers
    batches = draw.randint(2, 4)
    restarts = [draw.randint(1, batches - 1)] if number % RESTARTED == 0 else []
    streams = Streams.drawn(draw, tmp_path, form, how, batches=batches, key=key)
    streaming.conf.set("spark.sql.shuffle.partitions", str(draw.randint(1, 3)))
    if draw.random() < 0.15:
        streaming.conf.set("spark.sql.streaming.statefulOperator.allowMultiple", "false")
    expected = refused_or(streams, streaming, restarts)
    if expected is None:
        gpujoin.enable(streaming)
        assert refused_or(streams, streaming, restarts) is None
        return
    gpujoin.enable(streaming)
    context = f"stream {number}: {how}, {name}, {key}, {batches} batches, restarts {restarts}"
    assert_equal(streams.run(streaming, "here", restarts=restarts), expected, context)


def refused_or(streams: Streams, spark: SparkSession, restarts: list[int]) -> Output | None:
    """Run a query in Spark; ``None`` if Spark refuses the join."""
    try:
        return streams.run(spark, "spark", restarts=restarts)
    except AnalysisException:
        return None
