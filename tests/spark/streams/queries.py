"""Streaming queries of one join: files of both sides, one of each in a micro-batch, and the rows that each gives."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from gpujoin.streams.microbatches import OPERATOR
from tests.oracle.streams import rows_of
from tests.streams.streams import SECOND, counted, rows, schema

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
SPARKS_OPERATOR = "symmetricHashJoin"
WITHIN = "l.k = r.k and r.t >= l.t and r.t <= l.t + interval 5 seconds"
NAMES = ("k", "t", "v", "s", "t2")
DELAYS = ("5 seconds", "12 seconds")

Join = Callable[[DataFrame, DataFrame, Any, Any], DataFrame]


@dataclass(frozen=True)
class Form:
    """A kind of join.

    Attributes
    ----------
    condition : str
        Its ``ON``, of sides ``l`` and ``r``.
    watermarks : tuple of (bool, bool)
        Which sides have one.
    outer : bool
        Whether Spark takes outer and semi joins of this form.
    window : bool
        Whether the sides have windows of their times in place of these.
    """

    condition: str
    watermarks: tuple[bool, bool] = (True, True)
    outer: bool = True
    window: bool = False

    @property
    def returned(self) -> tuple[str, ...]:
        """Columns that are compared: beside a window Spark takes no other event time."""
        return tuple(name for name in NAMES if name != "t" or not self.window)


FORMS = {
    "range": Form(WITHIN),
    "range, strict": Form("l.k = r.k and r.t > l.t and r.t < l.t + interval 5 seconds"),
    "range, mirrored": Form("l.k = r.k and l.t - interval 2 seconds <= r.t and l.t + interval 3 seconds >= r.t"),
    "range, and a residual": Form(
        "l.k = r.k and r.t >= l.t - interval 4 seconds and r.t <= l.t + interval 4 seconds and l.v < r.v"
    ),
    "range, and filters of each side": Form(
        "l.k = r.k and r.t >= l.t and r.t <= l.t + interval 9 seconds and l.v > 2 and r.s is not null"
    ),
    "range, two bounds of which the lower counts": Form(
        "l.k = r.k and l.t >= r.t - interval 6 seconds and l.t > r.t - interval 2 seconds and l.t <= r.t"
    ),
    "range below milliseconds": Form(
        "l.k = r.k and r.t <= l.t + interval '1.0005' second and r.t >= l.t - interval '0.0005' second"
    ),
    "range, and parts that Spark computes": Form(WITHIN + " and extract(yearofweek from l.t2) < 1980"),
    "range, key that Spark computes": Form("l.k + 1 = r.k and r.t >= l.t and r.t <= l.t + interval 5 seconds"),
    "range, keys that Spark makes null": Form(
        "nullif(l.k, 2) = nullif(r.k, 2) and r.t >= l.t and r.t <= l.t + interval 5 seconds"
    ),
    "one side": Form("l.k = r.k and l.t < r.t - interval 5 seconds"),
    "one side, other way": Form("l.k = r.k and r.t < l.t + interval 5 seconds"),
    "key is the time": Form("l.k = r.k and l.t = r.t"),
    "key is the time, and a range": Form("l.k = r.k and l.t = r.t and r.t >= l.t - interval 5 seconds and l.v != r.v"),
    "key is the time, watermark on the left": Form("l.k = r.k and l.t = r.t", (True, False)),
    "key is the time, watermark on the right": Form("l.k = r.k and l.t = r.t", (False, True)),
    "key is another column than the time": Form(WITHIN + " and l.v = r.v"),
    "key is null-safe": Form("l.k <=> r.k and r.t >= l.t and r.t <= l.t + interval 5 seconds"),
    "window": Form("l.k = r.k and l.w = r.w", window=True),
    "window, and a residual": Form("l.k = r.k and l.w = r.w and l.v <= r.v", window=True),
    "plain keys": Form("l.k = r.k and l.v <= r.v", outer=False),
    "plain keys, no watermark": Form("l.k = r.k and l.v <= r.v", (False, False), outer=False),
    "range, watermark on one side": Form(WITHIN, (True, False), outer=False),
}

KEYS: dict[str, tuple[pa.DataType, list[object]]] = {
    "long": (pa.int64(), [1, 2, 3, None]),
    "string": (pa.string(), ["", "a", "b", "ab", None]),
    "double": (pa.float64(), [0.0, -0.0, float("nan"), 1.5, None]),
    "struct<x:int>": (pa.struct([("x", pa.int32())]), [{"x": 1}, {"x": None}, {"x": 3}, None]),
}
"""Types of the key ``k`` in Spark, with values."""


@dataclass
class Streams:
    """Two streams of files.

    Attributes
    ----------
    folder : Path
        Where the files are.
    form : Form
        How they are joined.
    how : str
        Spark's name of the join type.
    sides : list of list of Table
        Rows of each micro-batch, of each side.
    key : str
        Type of the key in Spark.
    """

    folder: Path
    form: Form
    how: str
    sides: list[list[pa.Table]]
    key: str = "long"
    columns: list[str] = field(init=False)

    def __post_init__(self) -> None:
        given = ("l",) if self.how == "left_semi" else ("l", "r")
        self.columns = [f"{side}.{name} as {side}_{name}" for side in given for name in self.form.returned]

    @classmethod
    def drawn(
        cls, draw: random.Random, folder: Path, form: Form, how: str, *, batches: int, key: str = "long"
    ) -> Streams:
        """Draw the rows."""
        dtype, pool = KEYS[key]
        sides = [
            [rows(draw, schema(dtype), pool, (100 + 15 * batch) * SECOND, 25) for batch in range(batches)]
            for _ in range(2)
        ]
        if form.window:  # Spark's window() drops rows without a time
            sides = [[table.filter(pc.is_valid(table["t"])) for table in side] for side in sides]
        return cls(folder, form, how, sides, key)

    @property
    def batches(self) -> int:
        """Micro-batches with rows."""
        return len(self.sides[0])

    def frames(self, spark: SparkSession, source: Path) -> list[DataFrame]:
        """Read both streams, of which the files lie in a folder."""
        frames = []
        for name, watermark, delay in zip(("l", "r"), self.form.watermarks, DELAYS, strict=True):
            reader = spark.readStream.schema(f"k {self.key}, t timestamp, v int, s string, t2 timestamp")
            frame = reader.option("maxFilesPerTrigger", 1).parquet(str(source / name))
            if watermark:
                frame = frame.withWatermark("t", delay)
            if self.form.window:
                frame = frame.withColumn("w", f.window("t", "10 seconds")).drop("t")
            frames.append(frame.alias(name))
        return frames

    def joined(self, spark: SparkSession, source: Path, join: Join | None = None) -> DataFrame:
        """Join both streams."""
        left, right = self.frames(spark, source)
        on = f.expr(self.form.condition)
        joined = left.join(right, on, self.how) if join is None else join(left, right, on, self.how)
        return joined.selectExpr(*self.columns)

    def write(self, source: Path, first: int, last: int) -> None:
        """Write the files of some micro-batches."""
        for name, tables in zip(("l", "r"), self.sides, strict=True):
            (source / name).mkdir(parents=True, exist_ok=True)
            for number in range(first, last):
                file = source / name / f"{number}.parquet"
                pq.write_table(tables[number].drop(["w"]), file)
                os.utime(file, (1_700_000_000 + number,) * 2)  # Spark takes the oldest first

    def run(self, spark: SparkSession, name: str, *, restarts: Sequence[int] = (), join: Join | None = None) -> Output:
        """Run the query to the end of its files, stopped and started again after some micro-batches."""
        source = self.folder / name
        output = Output()
        ends = [*restarts, self.batches]
        for first, last in zip([0, *restarts], ends, strict=True):
            self.write(source, first, last)
            output.add(started(self.joined(spark, source, join), source / "checkpoint"))
        return output


@dataclass
class Output:
    """What a query gave.

    Attributes
    ----------
    rows : dict of int to Counter
        Rows of each micro-batch, as a multiset.
    progress : list of dict
        What Spark reports of each.
    """

    rows: dict[int, Counter[str]] = field(default_factory=dict)
    progress: list[dict[str, Any]] = field(default_factory=list)

    @property
    def operators(self) -> set[str]:
        """Names of the operators that kept state."""
        return {operator["operatorName"] for step in self.progress for operator in step["stateOperators"]}

    @property
    def total(self) -> int:
        """Rows of all micro-batches."""
        return sum(rows.total() for rows in self.rows.values())

    def add(self, more: Output) -> None:
        """Add the micro-batches of a later run."""
        self.rows |= more.rows
        self.progress += more.progress

    def watermarks(self) -> list[tuple[int, str | None]]:
        """Micro-batches, and the watermark of each."""
        return [(step["batchId"], step.get("eventTime", {}).get("watermark")) for step in self.progress]


def as_it_is(frame: DataFrame) -> DataFrame:
    """Give the rows of a micro-batch as they are."""
    return frame


def progress_of(query: StreamingQuery) -> list[dict[str, Any]]:
    """What its latest micro-batches tell, as texts: PySpark asks the JVM for each of a thousand values."""
    told = (json.loads(str(each.json())) for each in query._jsq.recentProgress())
    return [dict(StreamingQueryProgress.fromJson(each)) for each in told]


def started(
    joined: DataFrame,
    checkpoint: Path,
    mode: str = "append",
    sink: Callable[[DataFrame], DataFrame] = as_it_is,
) -> Output:
    """Run a query until its files end; a sink makes what is compared of the rows of a micro-batch."""
    output = Output()

    def collect(frame: DataFrame, batch: int) -> None:
        table = sink(frame).toArrow()
        output.rows[batch] = counted(rows_of(table.to_batches(), table.schema))

    writer = joined.writeStream.foreachBatch(collect).outputMode(mode)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        query.awaitTermination(300)
        output.progress = progress_of(query)
    finally:
        query.stop()
    return output


def assert_equal(here: Output, spark: Output, context: str) -> None:
    """Compare rows and watermarks of every micro-batch, and tell that gpujoin kept the state, and Spark did not."""
    assert here.operators == {OPERATOR}, context
    assert spark.operators == {SPARKS_OPERATOR}, context
    assert here.watermarks() == spark.watermarks(), context
    for batch, expected in spark.rows.items():
        assert here.rows.get(batch) == expected, f"{context}, micro-batch {batch}"
    assert here.rows.keys() == spark.rows.keys(), context


def milliseconds(text: str) -> int:
    """Milliseconds since 1970 of a time in a progress report."""
    moment = dt.datetime.fromisoformat(text)
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
