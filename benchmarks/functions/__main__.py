"""Measure Python functions within islands, and in Spark: wall and processor seconds of all processes.

    python -m benchmarks.functions --rows 5000000 --repeats 3

Both ways run by turns in one session, after one run of each that does not count; the least of the runs is told.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, functions

import gpujoin
from benchmarks.spark.processes import cpu_seconds

sf: Any = functions


def plus(left: pd.Series, right: pd.Series) -> pd.Series:
    return left * 2 + right


def label(key: int, number: float) -> str:
    return f"{key}:{number:.0f}"


def large(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for rows in parts:
        yield rows[rows.v > rows.w][["k", "v"]]


def spread(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"g": [rows.g.iloc[0]], "s": [rows.v.max() - rows.v.min()]})


def queries(spark: SparkSession) -> dict[str, Callable[[], DataFrame]]:
    facts, dimension = spark.table("facts"), spark.table("dimension")
    added, named = sf.pandas_udf(plus, "double"), sf.udf(label, "string")
    return {
        "join, pandas_udf, aggregation": lambda: (
            facts.join(dimension, "k").withColumn("p", added("v", "w")).groupBy("c").agg(sf.sum("p"), sf.count("*"))
        ),
        "join, udf of a tenth, aggregation": lambda: (
            facts.where("g % 10 = 0").join(dimension, "k").groupBy(sf.length(named("k", "v"))).count()
        ),
        "pandas_udf, aggregation": lambda: facts.groupBy("k").agg(sf.sum(added("v", "v"))),
        "pandas_udf of each row": lambda: facts.select(added("v", "v").alias("p")).where("p > 2.9"),
        "join, mapInPandas": lambda: (
            facts.join(dimension, "k").select("k", "v", "w").mapInPandas(large, "k long, v double")
        ),
        "join, applyInPandas of 100,000 groups": lambda: (
            facts.join(dimension, "k").groupBy("g").applyInPandas(spread, "g long, s double")
        ),
    }


def write(folder: Path, rows: int) -> None:
    """Write a table of facts in four files, and a small one that it is joined with."""
    rng = np.random.default_rng(7)
    for n in range(4):
        count = rows // 4
        table = pa.table(
            {"k": rng.integers(0, 1000, count), "g": rng.integers(0, 100_000, count), "v": rng.random(count)}
        )
        (folder / "facts").mkdir(exist_ok=True)
        pq.write_table(table, folder / "facts" / f"{n}.parquet")
    (folder / "dimension").mkdir()
    dimension = pa.table({"k": np.arange(1000), "w": rng.random(1000), "c": np.arange(1000) % 10})
    pq.write_table(dimension, folder / "dimension" / "0.parquet")


def seconds(frame: DataFrame) -> tuple[float, float]:
    """Run a query without taking its rows; gives wall and processor seconds."""
    before, start = cpu_seconds(), time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start, cpu_seconds() - before


def main() -> None:
    """Measure all queries, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--queries", default="", help="a part of the names of some")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch), arguments.rows)
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "3g")
            .config("spark.sql.shuffle.partitions", "4")
            .config("spark.local.dir", scratch)
            .getOrCreate()
        )
        for name in ("facts", "dimension"):
            spark.read.parquet(str(Path(scratch, name))).createOrReplaceTempView(name)
        gpujoin.enable(spark)
        print("| query | Spark: s, processor s | here: s, processor s | times |\n|---|---|---|---|")
        for name, made in queries(spark).items():
            if arguments.queries in name:
                _measure(spark, name, made, arguments.repeats)
        spark.stop()


def _measure(spark: SparkSession, name: str, made: Callable[[], DataFrame], repeats: int) -> None:
    runs: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    here = False
    for _ in range(repeats + 1):
        for enabled in (False, True):
            spark.conf.set("spark.gpujoin.enabled", str(enabled).lower())
            frame = made()
            if enabled:
                here = any("Python " in line for line in str(gpujoin.explain(frame)).splitlines())
            runs[enabled].append(seconds(frame))
    (spark_wall, spark_cpu), (wall, cpu) = (tuple(map(min, zip(*runs[way][1:], strict=True))) for way in (False, True))
    where = "" if here else " (in Spark)"
    print(
        f"| {name} | {spark_wall:.2f}, {spark_cpu:.2f} | {wall:.2f}, {cpu:.2f}{where} | {spark_wall / wall:.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
