"""Streaming queries of one stream and some tables, and what each micro-batch gave."""

from __future__ import annotations

import datetime as dt
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.oracle.streams import rows_of
from tests.spark.streams.queries import Output, progress_of
from tests.streams.streams import counted

BEGINNING = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
KEYS = [*range(20), None]

Query = Callable[[DataFrame, "Readings"], DataFrame]
Between = Callable[[int], None]


@dataclass
class Readings:
    """A stream of readings, and a table of bands that readings fall into.

    Attributes
    ----------
    spark : SparkSession
        The session.
    folder : Path
        Where files are.
    batches : int
        Micro-batches with rows.
    """

    spark: SparkSession
    folder: Path
    batches: int = 3
    draw: random.Random = field(default_factory=lambda: random.Random(7))

    def __post_init__(self) -> None:
        self.stream.mkdir(parents=True)
        for number in range(self.batches):
            file = self.stream / f"{number}.parquet"
            pq.write_table(self._readings(60, number), file)
            os.utime(file, (1_700_000_000 + number,) * 2)  # Spark takes the oldest first
        self.write_bands("0", 40)

    @property
    def stream(self) -> Path:
        """Folder of the stream's files."""
        return self.folder / "stream"

    @property
    def table(self) -> Path:
        """Folder of the table's files."""
        return self.folder / "bands"

    def _readings(self, count: int, batch: int) -> pa.Table:
        seconds = [self.draw.choice([None, *range(20 * batch, 20 * batch + 30)]) for _ in range(count)]
        times = [None if s is None else BEGINNING + dt.timedelta(seconds=s) for s in seconds]
        return pa.table({
            "k": pa.array(self.draw.choices(KEYS, k=count), pa.int64()),
            "t": pa.array(times, pa.timestamp("us", "UTC")),
            "v": pa.array(self.draw.choices([*range(100), *[None] * 5], k=count), pa.int32()),
        })  # fmt: skip

    def write_bands(self, name: str, count: int) -> None:
        """Write a file of the table, in the place of one of the same name."""
        self.table.mkdir(exist_ok=True)
        lows = self.draw.choices([*range(100), None], k=count)
        bands = pa.table({
            "lo": pa.array(lows, pa.int32()),
            "hi": pa.array([None if lo is None else lo + self.draw.randrange(4) for lo in lows], pa.int32()),
            "band": [f"{name}-{number}" for number in range(count)],
            "kb": pa.array(self.draw.choices(KEYS, k=count), pa.int64()),
        })  # fmt: skip
        pq.write_table(bands, self.table / f"{name}.parquet")

    def bands(self) -> DataFrame:
        """Read the table, whose files Spark lists now."""
        return self.spark.read.parquet(str(self.table))

    def unmarked(self) -> DataFrame:
        """Read the stream, without a watermark."""
        reader = self.spark.readStream.schema("k long, t timestamp, v int").option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.stream))

    def readings(self) -> DataFrame:
        """Read the stream, with a watermark."""
        return self.unmarked().withWatermark("t", "5 seconds")

    def run(
        self, query: Query, name: str, *, between: Between | None = None, most: int | None = None, mode: str = "append"
    ) -> Run:  # fmt: skip
        """Run a query to the end of the stream's files, or for some micro-batches; again, from its checkpoint.

        ``between`` is called after each micro-batch with its number.
        """
        output = Run()

        def collect(frame: DataFrame, batch: int) -> None:
            if most is not None and len(output.rows) == most:
                raise StopError
            table = frame.toArrow()
            output.rows[batch] = counted(rows_of(table.to_batches(), table.schema))
            (query,) = self.spark.streams.active
            output.plans[batch] = str(query._jsq.explainInternal(False))
            if between is not None:
                between(batch)

        writer = query(self.readings(), self).writeStream.foreachBatch(collect).outputMode(mode)
        started = writer.option("checkpointLocation", str(self.folder / f"checkpoint {name}"))
        running = started.trigger(availableNow=True).start()
        try:
            running.awaitTermination(300)
        except StreamingQueryException as problem:
            output.error = problem
        finally:
            output.progress = progress_of(running)
            running.stop()
        return output


class StopError(Exception):
    """Ends a stream."""


@dataclass
class Run(Output):
    """What a query gave, and the physical plans of its micro-batches.

    Attributes
    ----------
    plans : dict of int to str
        The plans.
    error : StreamingQueryException or None
        What it ended with.
    """

    plans: dict[int, str] = field(default_factory=dict)
    error: StreamingQueryException | None = None

    @property
    def here(self) -> list[bool]:
        """Whether gpujoin had a part in each micro-batch."""
        return ["GpuJoinIsland island_" in plan for plan in self.plans.values()]
