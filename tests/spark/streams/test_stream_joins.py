"""Joins of two streams in enabled sessions, and in the engine, against Spark's own: rows of every micro-batch.

Spark reads files, one of each side in a micro-batch, and is stopped and started again in the middle. The engine is
pushed the same rows, with the watermarks that Spark reports, and its state is saved and read again each time.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import gpujoin
from gpujoin.model.jointype import JoinType
from gpujoin.streams.format import MemoryStore
from gpujoin.streams.state import StateOptions
from gpujoin.streams.symmetric import SymmetricJoin
from tests.brief import brief
from tests.oracle.streams import rows_of
from tests.spark.streams.queries import FORMS, Output, Streams, assert_equal, milliseconds
from tests.streams import streams
from tests.streams.streams import counted, schema, stream_join

pytestmark = pytest.mark.spark

BATCHES = 3
CHUNKS = StateOptions(chunk_bytes=4000, fan_in=2)
OTHER_TYPES = [("range", how) for how in ("inner", "right", "full")]
OTHER_FORMS = [
    ("range below milliseconds", "left"),
    ("range, and filters of each side", "left"),
    ("one side", "right"),
    ("key is the time", "full"),
    ("key is the time, watermark on the left", "inner"),
    ("window", "full"),
    ("window", "left_semi"),
]
SPARK_ONLY = [
    ("range, and parts that Spark computes", "left"),
    ("range, key that Spark computes", "full"),
    ("range, keys that Spark makes null", "inner"),
    ("range, keys that Spark makes null", "left"),
    ("key is null-safe", "right"),
    ("plain keys", "inner"),
    ("plain keys, no watermark", "inner"),
]


@pytest.mark.parametrize("how", brief(("left", "left_semi"), "left"))
def test_types_return_sparks_rows_in_every_micro_batch(streaming: SparkSession, tmp_path: Path, how: str) -> None:
    check(streaming, tmp_path, "range", how, batches=2)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "how"), [*OTHER_TYPES, *OTHER_FORMS], ids=lambda part: part)
def test_every_form_returns_sparks_rows_in_every_micro_batch(
    streaming: SparkSession, tmp_path: Path, form: str, how: str
) -> None:
    check(streaming, tmp_path, form, how)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "how"), SPARK_ONLY, ids=lambda part: part)
def test_forms_that_the_engine_alone_cannot_have(streaming: SparkSession, tmp_path: Path, form: str, how: str) -> None:
    drawn(tmp_path, form, how, streaming)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["string", "double", "struct<x:int>"])
def test_keys_of_other_types(streaming: SparkSession, tmp_path: Path, key: str) -> None:
    drawn(tmp_path, "range", "full", streaming, key)


def drawn(
    folder: Path, form: str, how: str, spark: SparkSession, key: str = "long", batches: int = BATCHES
) -> tuple[Streams, Output]:
    """Run a drawn query in Spark and here; before the last of its files it is started again."""
    name = f"{form}, {how}, {key}"
    drawn = Streams.drawn(random.Random(name), folder, FORMS[form], how, batches=batches, key=key)
    expected = drawn.run(spark, "spark", restarts=[batches - 1])
    gpujoin.enable(spark)
    here = drawn.run(spark, "here", restarts=[batches - 1])
    assert_equal(here, expected, name)
    assert expected.total > 0
    assert_observed(here)
    return drawn, expected


def assert_observed(output: Output) -> None:
    """Check what micro-batches tell of themselves."""
    observed = [step["observedMetrics"].get("gpujoin") for step in output.progress]
    counters = [row for row in observed if row is not None]
    assert sum(row["output_rows"] for row in counters) == output.total
    assert sum(row["left_rows"] + row["left_late_rows"] for row in counters) > 10
    assert counters[0]["state_rows"] == counters[0]["left_rows"] + counters[0]["right_rows"]
    assert counters[0]["state_bytes"] > 0
    assert counters[0]["chunks_written"] >= 2
    assert all(row["seconds"] > 0 for row in counters)


def check(spark: SparkSession, folder: Path, form: str, how: str, batches: int = BATCHES) -> None:
    given, expected = drawn(folder, form, how, spark, batches=batches)
    join = stream_join(streams.FORMS[form], JoinType.parse(how), schema(pa.int64()))
    store = MemoryStore()
    running = SymmetricJoin(join, store, state_options=CHUNKS)
    batch, late = 0, 0
    for step in expected.progress:
        watermark = milliseconds(step["eventTime"]["watermark"])
        new: list[list[pa.RecordBatch]] = [[], []]
        if any(source["numInputRows"] for source in step["sources"]):
            new = [side[batch].to_batches() for side in given.sides]
            batch += 1
        pushed = list(running.push(new[0], new[1], watermark, late_ms=late))
        late = watermark
        names = running.output_schema.names
        shown = [number for number, name in enumerate(names) if name in given.form.returned]
        returned = counted([tuple(row[i] for i in shown) for row in rows_of(pushed, running.output_schema)])
        wanted = expected.rows.get(step["batchId"], Counter())
        assert returned == wanted, f"{form}, {how}, micro-batch {step['batchId']}"
        running = SymmetricJoin(join, store, running.manifest.to_bytes(), state_options=CHUNKS)
    assert batch == batches
    assert len(expected.progress) > batches
