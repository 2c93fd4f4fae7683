"""What the benchmarks of streams in Spark share: the session, running a query to its end, comparing, the page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType

from benchmarks.spark.processes import cpu_seconds, descendants, is_java, proportional_bytes


def session(memory: str, partitions: int, settings: Mapping[str, str]) -> SparkSession:
    """A session of two cores."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in {
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        **settings,
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def to_the_end(joined: DataFrame, checkpoint: Path) -> tuple[StreamingQuery, list[dict[str, Any]]]:
    """Run a query to the end of its files; gives it, and what each micro-batch returned and took.

    Rows go to a sink that drops them; on the way they are counted, and each column of type bigint is added up.
    """
    batches: list[dict[str, Any]] = []
    before = cpu_seconds()

    def take(frame: DataFrame, batch: int) -> None:
        nonlocal before
        seen = Observation()
        summed = [field.name for field in frame.schema if isinstance(field.dataType, LongType)]
        sums = [f.sum(column).alias(column) for column in summed]
        checked = frame.observe(seen, f.count(f.lit(1)).alias("rows"), *sums)
        checked.write.format("noop").mode("overwrite").save()
        now = cpu_seconds()
        workers = [process for process in descendants(os.getpid())[1:] if not is_java(process)]
        memory = sum(map(proportional_bytes, workers))
        batches.append(
            {
                "batch": batch,
                "rows": seen.get["rows"],
                "sums": [seen.get[column] for column in summed],
                "cpu": now - before,
                "worker_bytes": memory,
            }
        )
        before = cpu_seconds()

    writer = joined.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    for step, batch in zip(query.recentProgress, batches, strict=True):
        assert step["batchId"] == batch["batch"]
        batch["seconds"] = step["durationMs"]["triggerExecution"] / 1000
        batch["input"] = step["numInputRows"]
    return query, batches


def in_own_process(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module of this package in a process of its own; gives the record that it prints last.

    Raises
    ------
    SystemExit
        If it fails.
    """
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.streams.{module}", *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{module} {' '.join(arguments)}: {done.stderr[-3000:]}")
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record


def compare(case: str, records: list[dict[str, Any]]) -> None:
    """Compare the rows of each micro-batch.

    Raises
    ------
    SystemExit
        If they differ, or there are none.
    """
    told = [[(b["batch"], b["rows"], b["sums"]) for b in record["batches"]] for record in records]
    if any(each != told[0] for each in told) or not any(rows for _, rows, _ in told[0]):
        raise SystemExit(f"{case}: the rows of micro-batches differ, or there are none: {told}")


def report(result: dict[str, Any], text: str, out: Path | None) -> None:
    """Print a page, and write it and the records of a result where that is asked for."""
    print(text)
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n")
        out.with_suffix(".md").write_text(text)
