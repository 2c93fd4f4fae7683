"""Run one streaming query of the benchmark in a process of its own, and print what each micro-batch took.

python -m benchmarks.streams.query FOLDER here|rocksdb|hdfs inner|left PARTITIONS MEMORY
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import gpujoin
from benchmarks.spark.processes import cpu_seconds, descendants, is_java, proportional_bytes
from benchmarks.streams.__main__ import DELAY, REACH

PROVIDERS = "org.apache.spark.sql.execution.streaming.state"
PROVIDER = {
    "here": f"{PROVIDERS}.RocksDBStateStoreProvider",
    "rocksdb": f"{PROVIDERS}.RocksDBStateStoreProvider",
    "hdfs": f"{PROVIDERS}.HDFSBackedStateStoreProvider",
}
FORMATS = {"here": "2", "rocksdb": "4", "hdfs": "2"}
"""Spark's formats of the state of a join; RocksDB's best is 4, and the other provider has up to 2."""


def main(folder: Path, where: str, how: str, partitions: int, memory: str) -> None:
    """Run the query to the end of its files; prints JSON."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in {
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": PROVIDER[where],
        "spark.sql.streaming.join.stateFormatVersion": FORMATS[where],
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if where == "here":
        gpujoin.enable(spark)
    columns = "k bigint, t timestamp, a bigint, c double"
    left, right = (
        spark.readStream.schema(columns)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / side))
        .withWatermark("t", f"{DELAY} seconds")
        .alias(side)
        for side in ("l", "r")
    )
    within = f"l.k = r.k and r.t >= l.t - interval {REACH} seconds and r.t <= l.t + interval {REACH} seconds"
    joined = left.join(right, f.expr(within), how)
    measured: list[dict[str, Any]] = []
    before = cpu_seconds()

    def take(frame: DataFrame, batch: int) -> None:
        nonlocal before
        rows, checksum = frame.selectExpr("count(1)", "coalesce(sum(pmod(xxhash64(*), 1000003)), 0)").first()  # type: ignore[misc]
        now = cpu_seconds()
        workers = [process for process in descendants(os.getpid())[1:] if not is_java(process)]
        memory = sum(map(proportional_bytes, workers))
        measured.append(
            {"batch": batch, "rows": rows, "checksum": checksum, "cpu": now - before, "worker_bytes": memory}
        )
        before = cpu_seconds()

    checkpoint = folder / f"checkpoint-{where}-{how}"
    started = time.perf_counter()
    query = (
        joined.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress = [dict(step) for step in query.recentProgress]
    for step, batch in zip(progress, measured, strict=False):
        assert step["batchId"] == batch["batch"]
        batch["seconds"] = step["durationMs"]["triggerExecution"] / 1000
        batch["input"] = step["numInputRows"]
    state = sum(file.stat().st_size for file in (checkpoint / "state").rglob("*") if file.is_file())
    operators = sorted({operator["operatorName"] for step in progress for operator in step["stateOperators"]})
    for step, batch in zip(progress, measured, strict=False):
        batch["state_rows"] = (step["observedMetrics"].get("gpujoin") or {"state_rows": None})["state_rows"]
    print(
        json.dumps(
            {
                "where": where, "how": how, "operators": operators, "batches": measured, "state_bytes": state,
                "seconds": time.perf_counter() - started,
            }
        )
    )  # fmt: skip
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
