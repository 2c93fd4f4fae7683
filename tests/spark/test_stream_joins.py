"""The symmetric join of the engine against Spark's own streaming queries: rows of every micro-batch.

Spark reads files, one of each side in a micro-batch. The engine is pushed the same rows, with the watermarks that Spark
reports, and the state is saved and read again in the middle.
"""

from __future__ import annotations

import datetime as dt
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from gpujoin.engine.streaming.chunks import MemoryStore
from gpujoin.engine.streaming.state import StateOptions
from gpujoin.engine.streaming.symmetric import SymmetricJoin
from gpujoin.model.jointype import JoinType
from tests.engine.streaming.streams import FORMS, SECOND, counted, rows, schema, stream_join
from tests.oracle.streams import rows_of

pytestmark = pytest.mark.spark

WITHIN = "l.k = r.k and r.t >= l.t and r.t <= l.t + interval 5 seconds"
QUERIES = {
    "range": WITHIN,
    "range below milliseconds": "l.k = r.k and r.t <= l.t + interval '1.0005' second"
    " and r.t >= l.t - interval '0.0005' second",
    "range, and filters of each side": "l.k = r.k and r.t >= l.t and r.t <= l.t + interval 9 seconds and l.v > 2"
    " and r.s is not null",
    "one side": "l.k = r.k and l.t < r.t - interval 5 seconds",
    "key is the time": "l.k = r.k and l.t = r.t",
    "key is the time, watermark on the left": "l.k = r.k and l.t = r.t",
    "window": "l.k = r.k and l.w = r.w",
}
"""Spark's conditions of some forms of generated streams."""

EVERY_TYPE = [("range", kind) for kind in ("inner", "left", "right", "full", "left_semi")]
OTHERS = [
    ("range below milliseconds", "left"),
    ("range, and filters of each side", "left"),
    ("one side", "right"),
    ("key is the time", "full"),
    ("key is the time, watermark on the left", "inner"),
    ("window", "full"),
    ("window", "left_semi"),
]
SIDES = {how: ("l",) if how == "left_semi" else ("l", "r") for _, how in EVERY_TYPE}
NAMES = ("k", "t", "v", "s", "t2")
BATCHES = 4
CHUNKS = StateOptions(chunk_bytes=4000, fan_in=2)


@pytest.mark.parametrize(("form", "how"), EVERY_TYPE, ids=lambda part: part)
def test_every_type_returns_sparks_rows_in_every_micro_batch(
    spark_session: SparkSession, tmp_path: Path, form: str, how: str
) -> None:
    check(spark_session, tmp_path, form, how)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "how"), OTHERS, ids=lambda part: part)
def test_every_form_returns_sparks_rows_in_every_micro_batch(
    spark_session: SparkSession, tmp_path: Path, form: str, how: str
) -> None:
    check(spark_session, tmp_path, form, how)


def check(spark: SparkSession, folder: Path, form: str, how: str) -> None:
    draw = random.Random(f"{form} {how}")
    columns = schema(pa.int64())
    sides = [
        [rows(draw, columns, [1, 2, 3, None], (100 + 15 * batch) * SECOND, 25) for batch in range(BATCHES)]
        for _ in range(2)
    ]
    if form == "window":  # Spark's window() drops rows without a time
        sides = [[table.filter(pc.is_valid(table["t"])) for table in side] for side in sides]
    output, progress = run(spark, folder, form, how, sides)
    join = stream_join(FORMS[form], JoinType.parse(how), columns)
    store = MemoryStore()
    running = SymmetricJoin(join, store, state_options=CHUNKS)
    batch, total, late = 0, 0, 0
    for step in progress:
        watermark = milliseconds(step["eventTime"]["watermark"])
        new: list[list[pa.RecordBatch]] = [[], []]
        if any(source["numInputRows"] for source in step["sources"]):
            new = [side[batch].to_batches() for side in sides]
            batch += 1
        pushed = list(running.push(new[0], new[1], watermark, late_ms=late))
        late = watermark
        names = running.output_schema.names
        shown = [number for number, name in enumerate(names) if name in returned_by(form)]
        returned = counted([tuple(row[i] for i in shown) for row in rows_of(pushed, running.output_schema)])
        expected = output.get(step["batchId"], Counter())
        assert returned == expected, f"{form}, {how}, micro-batch {step['batchId']}"
        total += returned.total()
        running = SymmetricJoin(join, store, running.manifest.to_bytes(), state_options=CHUNKS)
    assert batch == BATCHES
    assert len(progress) > BATCHES
    assert total > 5


def returned_by(form: str) -> tuple[str, ...]:
    """Columns that are compared: beside a window Spark takes no other event time."""
    return tuple(name for name in NAMES if name != "t" or form != "window")


def run(
    spark: SparkSession, folder: Path, form: str, how: str, sides: list[list[pa.Table]]
) -> tuple[dict[int, Counter[str]], list[dict[str, Any]]]:
    """Rows of each micro-batch of Spark's query, as multisets, and what it reports of each."""
    delays = ("5 seconds", "12 seconds")
    frames: list[DataFrame] = []
    for name, tables, times, delay in zip(("l", "r"), sides, FORMS[form].times, delays, strict=True):
        path = folder / name
        path.mkdir()
        for number, table in enumerate(tables):
            file = path / f"{number}.parquet"
            pq.write_table(table.drop(["w"]), file)
            os.utime(file, (1_700_000_000 + number,) * 2)  # Spark takes the oldest first
        reader = spark.readStream.schema("k long, t timestamp, v int, s string, t2 timestamp")
        frame = reader.option("maxFilesPerTrigger", 1).parquet(str(path))
        if times:
            frame = frame.withWatermark("t", delay)
        if form == "window":
            frame = frame.withColumn("w", f.window("t", "10 seconds")).drop("t")
        frames.append(frame.alias(name))
    output: dict[int, Counter[str]] = {}

    def collect(frame: DataFrame, batch: int) -> None:
        table = frame.toArrow()
        output[batch] = counted(rows_of(table.to_batches(), table.schema))

    returned = [f"{side}.{name} as {side}_{name}" for side in SIDES[how] for name in returned_by(form)]
    joined = frames[0].join(frames[1], f.expr(QUERIES[form]), how).selectExpr(*returned)
    writer = joined.writeStream.foreachBatch(collect).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination(300)
        progress = [dict(step) for step in query.recentProgress]
    finally:
        query.stop()
    return output, progress


def milliseconds(text: str) -> int:
    """Milliseconds since 1970 of a time in a progress report."""
    moment = dt.datetime.fromisoformat(text)
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
