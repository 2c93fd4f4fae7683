"""A driver that joins two streams of files to their end and writes each micro-batch to a file of its own.

Run as ``python -m tests.chaos.streamprogram FOLDER NAME here|spark MASTER POINT …``; prints the number of each
micro-batch, then ``done``. Started again it goes on from its checkpoint; a micro-batch that was written may be written
again. A point such as ``3:joined`` has it kill itself there, once, with everything that it has started. Where there is
a file ``kill tasks`` in the folder, Spark is told to kill the tasks that run.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Collection
from enum import Enum
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.listener import StreamingQueryListener

from gpujoin import enable
from tests.spark.streams.queries import PROVIDER, ROCKSDB


class Point(Enum):
    """A point of a micro-batch at which the driver is killed."""

    PLANNED = "planned"
    """The sink was called, and nothing is computed."""
    JOINED = "joined"
    """The rows are there and the state is stored, and nothing is written."""
    WRITTEN = "written"
    """The rows are written, and the micro-batch is not in the log."""
    COMMITTED = "committed"
    """The micro-batch is in the log, and the next one is about to begin."""


class Suicide(StreamingQueryListener):
    """Kills the driver at points of micro-batches, at each once.

    Parameters
    ----------
    folder : Path
        Where is noted what was done.
    points : collection of str
        Number of a micro-batch and point, as ``3:joined``.
    """

    def __init__(self, folder: Path, points: Collection[str]) -> None:
        self._folder = folder
        self._points = points

    def at(self, batch: int, point: Point) -> None:
        """Kill if this is one of the points."""
        name = f"{batch}:{point.value}"
        note = self._folder / f"killed {name}"
        if name in self._points and not note.exists():
            note.touch()
            os.killpg(0, signal.SIGKILL)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Kill after a micro-batch."""
        self.at(event.progress.batchId, Point.COMMITTED)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Do nothing."""


def kill_tasks(spark: SparkSession, asked: Path) -> None:
    """Kill the tasks that run, whenever asked; never ends."""
    context = spark.sparkContext._jsc.sc()
    while True:
        time.sleep(0.02)
        if not asked.exists():
            continue
        running = [
            int(task.taskId())
            for stage in spark.sparkContext.statusTracker().getActiveStageIds()
            for task in _tasks(context.statusStore(), stage)
            if task.status() == "RUNNING"
        ]
        if running:
            asked.unlink()
            killed = sum(bool(context.killTaskAttempt(task, True, "chaos")) for task in running)
            print(f"killed {killed} tasks", flush=True)


def _tasks(store: Any, stage: int) -> list[Any]:
    tasks = store.taskList(stage, 0, 1000)
    return [tasks.apply(place) for place in range(tasks.size())]


def main(folder: Path, name: str, where: str, master: str, *points: str) -> None:
    """Run the query until its files end."""
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.local.dir", f"{folder}/local")
    builder = builder.config(PROVIDER, ROCKSDB).config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.executor.memory", "700m").config("spark.executor.cores", "1")
    spark = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "OFF").getOrCreate()
    if where == "here":
        enable(spark)
    suicide = Suicide(folder, points)
    spark.streams.addListener(suicide)
    threading.Thread(target=kill_tasks, args=(spark, folder / "kill tasks"), daemon=True).start()
    sides = [
        spark.readStream.schema(f"{key} long, {time_} timestamp, {value} int")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / side))
        .withWatermark(time_, "10 seconds")
        for side, key, time_, value in (("left", "k", "t", "v"), ("right", "j", "u", "x"))
    ]
    on = f.expr("k = j and u >= t and u <= t + interval 15 seconds")
    output = folder / name

    def write(frame: DataFrame, batch: int) -> None:
        suicide.at(batch, Point.PLANNED)
        rows = frame.toArrow()
        suicide.at(batch, Point.JOINED)
        pq.write_table(rows, output / f"{batch}.tmp")
        (output / f"{batch}.tmp").rename(output / f"{batch}.parquet")
        print(batch, flush=True)
        suicide.at(batch, Point.WRITTEN)

    output.mkdir(exist_ok=True)
    writer = sides[0].join(sides[1], on, "left").writeStream.foreachBatch(write)
    query = writer.option("checkpointLocation", str(folder / f"{name}-checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    operators = {o["operatorName"] for step in query.recentProgress for o in step["stateOperators"]}
    print("operators", *sorted(operators), flush=True)
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
