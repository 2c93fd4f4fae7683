"""Run the benchmark: what a query over tiny tables costs here more than in Spark, and where that goes.

python -m benchmarks.fixed [--repeats 9] [--out benchmarks/results/fixed-cpu.json]

Answers are checked before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import gpujoin
from benchmarks.machine import describe
from gpujoin.spark.jvm.gateway import optimized_plan
from tests.spark.calls import count_jvm_calls

JOINS = (0, 1, 5, 10)
GOAL = 0.150


def text(joins: int) -> str:
    """A query with a number of joins and an aggregation."""
    parts = "".join(f" join t{n} on t{n}.k = t0.k{n} and t{n}.v <> 'x'" for n in range(1, joins + 1))
    return f"select t0.g, count(*), sum(t0.x) from t0{parts} group by t0.g"


def prepare(session: SparkSession, folder: Path) -> None:
    """Write tiny tables and make views of them."""
    keys = ", ".join(f"id % 7 as k{n}" for n in range(1, max(JOINS) + 1))
    fact = session.range(0, 1000, 1, 1).selectExpr("id % 3 as g", "id as x", *keys.split(", "))
    fact.write.parquet(str(folder / "t0"))
    for n in range(1, max(JOINS) + 1):
        session.range(0, 7, 1, 1).selectExpr("id as k", "cast(id as string) as v").write.parquet(str(folder / f"t{n}"))
    for n in range(max(JOINS) + 1):
        session.read.parquet(str(folder / f"t{n}")).createOrReplaceTempView(f"t{n}")


def median(action: Callable[[], Any], repeats: int) -> float:
    """Median seconds of some runs, after two that are not timed."""
    times = []
    for turn in range(repeats + 2):
        start = time.perf_counter()
        action()
        if turn > 1:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def planned(session: SparkSession, joins: int) -> DataFrame:
    """The query, optimized by Spark."""
    frame = session.sql(text(joins))
    optimized_plan(frame)
    return frame


def planning(session: SparkSession, joins: int, repeats: int) -> float:
    """Median seconds of :func:`gpujoin.accelerate`, Spark's own planning aside."""
    times = []
    for turn in range(repeats + 2):
        frame = planned(session, joins)
        start = time.perf_counter()
        gpujoin.accelerate(frame)
        if turn > 1:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(session: SparkSession, joins: int, repeats: int) -> dict[str, Any]:
    """Check and time one query."""
    native = session.sql(text(joins))
    here = gpujoin.accelerate(native)
    assert gpujoin.explain(here).islands, gpujoin.explain(here)
    if sorted(map(tuple, native.collect())) != sorted(map(tuple, here.collect())):
        raise SystemExit(f"{joins} joins: the answers differ")
    frame = planned(session, joins)
    with count_jvm_calls() as calls:
        gpujoin.accelerate(frame)
    return {
        "joins": joins,
        "spark": median(lambda: session.sql(text(joins)).collect(), repeats),
        "here": median(lambda: gpujoin.accelerate(session.sql(text(joins))).collect(), repeats),
        "planning": planning(session, joins, repeats),
        "calls": len(calls),
    }


def stages(session: SparkSession, repeats: int) -> tuple[float, float]:
    """Seconds of a job of one task, and of one through a Python worker that does nothing."""
    one = session.range(0, 1, 1, 1)
    through = one.mapInArrow(lambda batches: batches, "id long")
    return median(one.collect, repeats), median(through.collect, repeats)


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fixed", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(f"local[{arguments.cores}]")
    for key, value in {
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": str(2 * arguments.cores),
        "spark.gpujoin.backend": "cpu",
        "spark.gpujoin.fallback": "raise",
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        prepare(session, Path(folder))
        results = [measure(session, joins, arguments.repeats) for joins in JOINS]
        plain, through = stages(session, arguments.repeats)
    session.stop()
    lines = [
        "| joins | Spark, ms | here, ms | more, ms | planning here, ms | calls to the JVM | goal, ms |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in results:
        more = one["here"] - one["spark"]
        shown = [one["joins"], *(round(1e3 * s) for s in (one["spark"], one["here"], more, one["planning"]))]
        lines.append(f"| {' | '.join(map(str, shown))} | {one['calls']} | {round(1e3 * GOAL)} |")
    lines += [
        "",
        f"A job of one task takes {1e3 * plain:.0f} ms, through a Python worker that does nothing {1e3 * through:.0f}.",
    ]
    page = "\n".join(lines)
    print(page)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        found = {"machine": describe(), "results": results, "job": plain, "job_with_worker": through}
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
        run = f"`python -m benchmarks.fixed`, tiny tables, local[{arguments.cores}], medians of {arguments.repeats}"
        arguments.out.with_suffix(".md").write_text(f"# What an accelerated query costs at least\n\n{run}\n\n{page}\n")


if __name__ == "__main__":
    main()
