"""Run one streaming query of the benchmark in a process of its own, and print what each micro-batch took.

python -m benchmarks.streams.query FOLDER here|rocksdb|hdfs inner|left PARTITIONS MEMORY
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import functions as f

import gpujoin
from benchmarks.streams.__main__ import DELAY, REACH
from benchmarks.streams.running import session, to_the_end

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
    spark = session(
        memory,
        partitions,
        {
            "spark.sql.streaming.stateStore.providerClass": PROVIDER[where],
            "spark.sql.streaming.join.stateFormatVersion": FORMATS[where],
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
        },
    )
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
    checkpoint = folder / f"checkpoint-{where}-{how}"
    started = time.perf_counter()
    names = [f"{side}_{name}" for side in ("l", "r") for name in ("k", "t", "a", "c")]
    query, batches = to_the_end(joined.toDF(*names[: len(joined.columns)]), checkpoint)
    progress = query.recentProgress
    state = sum(file.stat().st_size for file in (checkpoint / "state").rglob("*") if file.is_file())
    operators = sorted({operator["operatorName"] for step in progress for operator in step["stateOperators"]})
    for step, batch in zip(progress, batches, strict=True):
        batch["state_rows"] = (step["observedMetrics"].get("gpujoin") or {"state_rows": None})["state_rows"]
    print(
        json.dumps(
            {
                "where": where, "how": how, "operators": operators, "batches": batches, "state_bytes": state,
                "seconds": time.perf_counter() - started,
            }
        )
    )  # fmt: skip
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
