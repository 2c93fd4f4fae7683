"""A Spark application for the tests of a real cluster: joins whose tasks fail, hang or lose their executor once.

Run as ``python cluster_app.py MASTER FLAG_DIRECTORY [SCENARIO …]``; prints one line of JSON for each scenario.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from gpujoin import accelerate, explain
from gpujoin.model.jointype import JoinType
from gpujoin.model.stages import Distribution
from gpujoin.report.metrics import metrics
from tests.spark.joins import joined, renamed, spark_join

ROWS = 60_000
_OPTIONS: dict[str, Any] = {"fallback": "raise", "batch_bytes": 16 << 10, "exchange_blob_bytes": 64 << 10}


def once(flags: str, name: str) -> bool:
    """Whether this is the first process of the cluster to ask."""
    try:
        os.close(os.open(Path(flags) / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def disturbed(flags: str, name: str, disturb: Callable[[], None]) -> Callable[[Any], Iterator[pa.RecordBatch]]:
    """A stage function that passes batches on and, in the first task to see a second batch, disturbs it."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            yield batch
            if number == 1 and once(flags, name):
                disturb()

    return run


def fail() -> None:
    raise RuntimeError("this attempt is meant to fail")


def kill_executor() -> None:
    """SIGKILL to the JVM above this worker and its daemon."""
    daemon = os.getppid()
    executor = int(Path(f"/proc/{daemon}/stat").read_text().rsplit(")", 1)[1].split()[1])
    if b"Executor" not in Path(f"/proc/{executor}/cmdline").read_bytes():
        raise RuntimeError(f"process {executor} is no executor")
    os.kill(executor, signal.SIGKILL)
    time.sleep(60)


def hang() -> None:
    """Hang in the first attempt; the speculative copy goes on."""
    context = TaskContext.get()
    if context is None or context.attemptNumber() == 0:
        time.sleep(120)


DISTURBANCES = {"fail": fail, "kill": kill_executor, "hang": hang, "nothing": lambda: None}


def sums(frame: DataFrame) -> DataFrame:
    """Row count and order-independent sums over all columns."""
    return frame.agg(
        sf.count(sf.lit(1)),
        sf.sum(sf.xxhash64(*frame.columns).cast("decimal(38,0)")),
        sf.sum("l0"),
        sf.count("r0"),
    )


def digest(frame: DataFrame) -> list[Any]:
    """Compute the sums of a frame."""
    return numbers(sums(frame))


def numbers(summed: DataFrame) -> list[Any]:
    """Compute sums."""
    (row,) = summed.collect()
    return [None if value is None else int(value) for value in row]


def scenario(
    session: SparkSession, flags: str, name: str, how: JoinType, distribution: Distribution, **options: Any
) -> dict[str, Any]:
    left = renamed(session.range(0, ROWS, 1, 4).withColumn("t", sf.concat(sf.lit("é"), "id")), "l")
    right = renamed(session.range(0, 2 * ROWS, 3, 4).withColumn("u", sf.col("id") % 7), "r")
    result = joined(left, right, how, distribution, partitions=4, **_OPTIONS, **options)
    passed = result.mapInArrow(disturbed(flags, name, DISTURBANCES[name.split("-", maxsplit=1)[0]]), result.schema)
    start = time.monotonic()
    found = digest(passed)
    seconds = time.monotonic() - start
    build, stream, join = metrics(result)
    return {
        "name": name,
        "disturbed": (Path(flags) / name).exists(),
        "equal": found == digest(spark_join(left, right, how)),
        "rows": found[0],
        "seconds": round(seconds, 1),
        "tasks": join.tasks,
        "output_rows": join.metrics.pipeline.output_rows,
        "spills": join.metrics.joins.spills,
        "sent": [build.metrics.sent.rows, stream.metrics.sent.rows],
    }


ISLAND = {
    "spark.gpujoin.backend": "cpu",
    "spark.gpujoin.fallback": "raise",
    "spark.gpujoin.scan.oneTaskBytes": "1",
    "spark.gpujoin.scan.taskBytes": "64k",
    "spark.gpujoin.broadcastThreshold": "1",
    "spark.gpujoin.exchange.partitions": "4",
    "spark.gpujoin.exchange.blobBytes": "64k",
    "spark.gpujoin.batchBytes": "16k",
}


def island(session: SparkSession, flags: str, name: str) -> dict[str, Any]:
    """A full join of Parquet files as an island of several stages."""
    left = renamed(session.range(0, ROWS, 1, 4).withColumn("t", sf.concat(sf.lit("é"), "id")), "l")
    right = renamed(session.range(0, 2 * ROWS, 3, 4).withColumn("u", sf.col("id") % 7), "r")
    sides = []
    for side, frame in (("l", left), ("r", right)):
        path = f"{flags}/{name}-{side}"
        frame.write.parquet(path)
        sides.append(session.read.parquet(path))
    native = sides[0].join(sides[1], sf.col("l0") == sf.col("r0"), "full")
    for key, value in ISLAND.items():
        session.conf.set(key, value)
    try:
        joined = accelerate(native)
        found = explain(joined)
        passed = joined.mapInArrow(disturbed(flags, name, DISTURBANCES[name.split("-", maxsplit=1)[0]]), joined.schema)
        digested = digest(passed)
    finally:
        for key in ISLAND:
            session.conf.unset(key)
    return {
        "name": name,
        "disturbed": (Path(flags) / name).exists(),
        "equal": digested == digest(native),
        "rows": digested[0],
        "strategies": [join.strategy.value for join in found.joins],
        "tasks": [one.tasks for one in found.islands],
        "text": str(found),
    }


ISLANDS = ("nothing-island", "fail-island", "kill-island")
SCENARIOS: tuple[tuple[str, JoinType, Distribution, dict[str, Any]], ...] = (
    ("nothing-shuffle", JoinType.FULL, Distribution.PARTITIONED, {}),
    ("fail-shuffle", JoinType.FULL, Distribution.PARTITIONED, {"memory_budget": 100_000}),
    ("fail-broadcast", JoinType.LEFT, Distribution.RIGHT_REPLICATED, {}),
    ("hang-shuffle", JoinType.INNER, Distribution.PARTITIONED, {}),
    ("kill-shuffle", JoinType.FULL, Distribution.PARTITIONED, {"memory_budget": 100_000}),
    ("kill-broadcast", JoinType.LEFT, Distribution.RIGHT_REPLICATED, {}),
)


def main(master: str, flags: str, wanted: Sequence[str]) -> None:
    session = (
        SparkSession.builder.master(master)
        .appName("gpujoin cluster test")
        .config("spark.executor.memory", "700m")
        .config("spark.executor.cores", "2")
        .config("spark.network.timeout", "600s")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
        .config("spark.sql.autoBroadcastJoinThreshold", "-1")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "200ms")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.multiplier", "1.1")
        .config("spark.speculation.minTaskRuntime", "2s")
        .config("spark.speculation.efficiency.enabled", "false")
        .config("spark.task.reaper.enabled", "true")
        .config("spark.python.daemon.module", os.environ.get("CLUSTER_APP_DAEMON", "pyspark.daemon"))
        .config("spark.io.encryption.enabled", os.environ.get("CLUSTER_APP_ENCRYPTION", "false"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    deadline = time.monotonic() + 300
    status = session.sparkContext._jsc.sc().statusTracker()
    while len(status.getExecutorInfos()) < 3 and time.monotonic() < deadline:
        time.sleep(0.2)
    print(json.dumps({"name": "executors", "count": len(status.getExecutorInfos()) - 1}), flush=True)
    for name, how, distribution, options in SCENARIOS:
        if wanted and name not in wanted:
            continue
        print(json.dumps(scenario(session, flags, name, how, distribution, **options)), flush=True)
    for name in ISLANDS:
        if name in wanted or not wanted:
            print(json.dumps(island(session, flags, name)), flush=True)
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
