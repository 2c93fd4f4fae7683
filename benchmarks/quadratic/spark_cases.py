"""Cases in Spark: its own nested loops and ours, in one session, answers compared."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from benchmarks.quadratic.engine_cases import SEED, not_in_tables
from gpujoin import accelerate, explain

QUERIES = {
    "range, inner": ("select count(*), sum(l.id + 7 * r.id) from l join r on x between y - 5 and y + 5", 20),
    "range, full": (
        "select count(*), sum(l.id + 7 * r.id) from l full join r on x between y - 5 and y + 5",
        40,
    ),
    "NOT IN, 2 columns": (
        "select count(*), sum(a + b) from n2 where (a, b) not in (select x, y from m2)",
        20,
    ),
    "NOT IN, 3 columns": (
        "select count(*), sum(a + b) from n3 where (a, b, c) not in (select x, y, z from m3)",
        20,
    ),
}
"""Queries that Spark runs as nested loops, and the speedups wanted."""

SMALL = 50_000
"""Fewer rows are left to Spark unless a backend is asked for."""


@contextmanager
def session() -> Iterator[SparkSession]:
    """A local session of all cores."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master(f"local[{os.cpu_count()}]").appName("quadratic")
        .config("spark.driver.memory", "4g").config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "4").getOrCreate()
    )  # fmt: skip
    try:
        yield spark
    finally:
        spark.stop()


def timed(frame: DataFrame) -> tuple[float, list[Any]]:
    start = time.perf_counter()
    rows = frame.collect()
    return time.perf_counter() - start, rows


def nested_loops(spark: SparkSession, rows: int, share: int) -> Iterator[dict[str, Any]]:
    """Shapes that Spark compares pair by pair, once each.

    Spark runs over about one in ``share`` of the left rows, since a nested loop takes as many times longer over all;
    answers are compared over that part.
    """
    ranged = f"select id, cast(pmod(hash(id, {{}}), {2 * rows}) as int) as {{}} from range({rows})"
    spark.sql(ranged.format(1, "x")).cache().createOrReplaceTempView("l")
    spark.sql(ranged.format(2, "y")).cache().createOrReplaceTempView("r")
    if rows < SMALL:
        spark.conf.set("spark.gpujoin.backend", "cpu")
    names = ["l", "r"]
    for columns in (2, 3):
        for table, name in zip(not_in_tables(rows, rows, columns), ("n", "m"), strict=True):
            names.append(f"{name}{columns}")
            spark.createDataFrame(table).repartition(4).cache().createOrReplaceTempView(names[-1])
    for name in names:
        spark.table(name).count()
        if share > 1 and name[0] in "ln":
            key = "x" if name == "l" else "a, b"
            sample = spark.table(name).where(f"coalesce(pmod(hash({key}), {share}), 0) = 0").cache()
            sample.createOrReplaceTempView(f"{name}_part")
            sample.count()
    warm = QUERIES["NOT IN, 2 columns"][0].replace("n2", "(select * from n2 limit 10)")
    accelerate(spark.sql(warm)).collect()
    for case, (text, goal) in QUERIES.items():
        start = time.perf_counter()
        frame = accelerate(spark.sql(text))
        planned = time.perf_counter() - start
        assert all(join.accelerated for join in explain(frame).joins), str(explain(frame))
        seconds, answer = timed(frame)
        table = "l" if case.startswith("range") else f"n{case.split()[2]}"
        part = text if share == 1 else text.replace(f"from {table} ", f"from {table}_part {table} ")
        theirs, native = timed(spark.sql(part))
        ours = answer if share == 1 else accelerate(spark.sql(part)).collect()
        assert ours == native, (case, ours, native)
        taken = rows if share == 1 else spark.table(f"{table}_part").count()
        yield {
            "case": f"{case}, in Spark", "rows": rows, "other_rows": rows, "out": int(answer[0][0]),
            "seconds": planned + seconds, "other_engine": "spark", "other_seconds": theirs * rows / taken,
            "other_rows_run": taken, "goal": goal,
        }  # fmt: skip


def hot_tables(directory: Path, rows: int, hot: int, partners: int) -> tuple[str, str]:
    """Parquet files of two sides: one key with ``hot`` and ``partners`` rows, the others met by few."""
    rng = np.random.default_rng(SEED)
    found = []
    for name, total, same in (("l", rows, hot), ("r", rows // 2, partners)):
        keys = rng.permutation(np.concatenate([np.full(same, 7), rng.integers(100, 2 * rows, total - same)]))
        table = pa.table({"k": keys, "v": rng.integers(0, 100, total)})
        pq.write_table(table, directory / f"{name}.parquet", row_group_size=max(1, total // 8))
        found.append(str(directory / f"{name}.parquet"))
    return found[0], found[1]


def hot_key(spark: SparkSession, rows: int, hot: int, partners: int) -> Iterator[dict[str, Any]]:
    """One key with very many pairs, aggregated in one task."""
    with tempfile.TemporaryDirectory() as directory:
        for name, path in zip(("h", "g"), hot_tables(Path(directory), rows, hot, partners), strict=True):
            spark.read.parquet(path).createOrReplaceTempView(name)
        text = "select count(*), sum(h.v + 2 * g.v), max(g.v) from h join g on h.k = g.k"
        accelerate(spark.sql(text)).collect()
        spark.sql(text).collect()
        seconds, answer = timed(accelerate(spark.sql(text)))
        theirs, native = timed(spark.sql(text))
        assert answer == native, (answer, native)
        yield {
            "case": "hot key, aggregated, in Spark", "rows": rows, "other_rows": rows // 2, "out": int(native[0][0]),
            "seconds": seconds, "other_engine": "spark", "other_seconds": theirs, "goal": 2,
        }  # fmt: skip
