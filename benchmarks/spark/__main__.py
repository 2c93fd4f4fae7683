"""Run the benchmark: each case by ``gpu_join`` and by Spark's own strategies, in one session, taking turns.

python -m benchmarks.spark [--rows 10000000] [--repeats 3] [--out benchmarks/results/spark.json]

Every engine's answer is checked, by row count and by sums over all columns, before anything is timed.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import gpujoin
from benchmarks.machine import describe
from benchmarks.spark.data import table
from benchmarks.spark.processes import cpu_seconds
from gpujoin.config import Strategy
from gpujoin.model.jointype import SparkJoinName

GOAL = 1.6
"""Times of Spark's own best strategy that ``gpu_join`` may take when it is fed by rows and gives rows back."""


@dataclass(frozen=True)
class Case:
    """A join: sizes, type, and the strategies that compete."""

    name: str
    build_share: float
    how: SparkJoinName
    strategy: Strategy
    hints: tuple[str, ...]


CASES = (
    Case("shuffle, inner, 1 : 1", 1.0, "inner", Strategy.SHUFFLE, ("shuffle_hash", "merge")),
    Case("shuffle, left, 1 : 1", 1.0, "left", Strategy.SHUFFLE, ("shuffle_hash", "merge")),
    Case("broadcast, inner, 100 : 1", 0.01, "inner", Strategy.BROADCAST, ("broadcast",)),
    Case("broadcast, left semi, 100 : 1", 0.01, "left_semi", Strategy.BROADCAST, ("broadcast",)),
)


def digest(frame: DataFrame) -> tuple[Any, ...]:
    """Row count and a sum over each column; doubles as integers, so that the order of rows does not matter."""
    sums = [
        sf.sum(sf.floor(sf.col(name) * (1 << 20)) if kind == "double" else sf.col(name)) for name, kind in frame.dtypes
    ]
    row = frame.agg(sf.count(sf.lit(1)), *sums).first()
    return tuple(row or ())


def every_row(frame: DataFrame) -> None:
    """Compute all rows and throw them away."""
    frame.write.format("noop").mode("overwrite").save()


def measure(case: Case, session: SparkSession, directory: Path, rows: int, repeats: int) -> dict[str, Any]:
    build_rows = max(1, int(rows * case.build_share))
    left = session.read.parquet(str(table(directory, "l", rows, build_rows)))
    right = session.read.parquet(str(table(directory, "r", build_rows, build_rows)))
    engines: dict[str, Callable[[], DataFrame]] = {
        "gpujoin": lambda: gpujoin.gpu_join(left, right, "k", case.how, strategy=case.strategy)
    }
    for hint in case.hints:
        engines[f"Spark {hint}"] = lambda hint=hint: left.join(right.hint(hint), "k", case.how)  # type: ignore[misc]
    answers = {name: digest(make()) for name, make in engines.items()}
    if len(set(answers.values())) != 1:
        raise SystemExit(f"{case.name}: answers differ: {answers}")
    (planned,) = gpujoin.explain(engines["gpujoin"]()).joins
    assert planned.strategy == case.strategy, f"{case.name} ran as {planned.strategy}: {planned.reasons}"
    sinks = {"every row": every_row, "sums": digest}
    result: dict[str, Any] = {
        "case": case.name,
        "rows": rows,
        "build_rows": build_rows,
        "output_rows": answers["gpujoin"][0],
    }
    for sink_name, sink in sinks.items():
        wall: dict[str, list[float]] = {name: [] for name in engines}
        cpu: dict[str, list[float]] = {name: [] for name in engines}
        for turn in range(repeats + 1):
            for name, make in engines.items():
                cpu_before, before = cpu_seconds(), time.perf_counter()
                sink(make())
                if turn:  # the first warms up
                    wall[name].append(time.perf_counter() - before)
                    cpu[name].append(cpu_seconds() - cpu_before)
        result[sink_name] = {
            "seconds": {name: min(times) for name, times in wall.items()},
            "median_seconds": {name: statistics.median(times) for name, times in wall.items()},
            "cpu_seconds": {name: min(times) for name, times in cpu.items()},
        }
        print(f"{case.name}, {sink_name}: {result[sink_name]}", file=sys.stderr, flush=True)
    return result


def ratio(measured: dict[str, Any], kind: str) -> float:
    """Our time over the best of Spark's."""
    times = measured[kind]
    return float(times["gpujoin"] / min(value for name, value in times.items() if name != "gpujoin"))


def page(results: list[dict[str, Any]]) -> str:
    """Results as a Markdown table."""
    lines = [
        "| case | output rows | sink | gpujoin, s | Spark's best, s | wall ÷ | CPU ÷ | goal |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for result in results:
        for sink in ("every row", "sums"):
            measured = result[sink]
            best = min((value, name) for name, value in measured["seconds"].items() if name != "gpujoin")
            lines.append(
                f"| {result['case']} | {result['output_rows']:,} | {sink} | {measured['seconds']['gpujoin']:.2f} "
                f"| {best[0]:.2f} ({best[1].removeprefix('Spark ')}) | **{ratio(measured, 'seconds'):.2f}** "
                f"| {ratio(measured, 'cpu_seconds'):.2f} | {GOAL} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", default="", help="only cases whose name contains this")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "gpujoin-benchmark")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master(f"local[{arguments.cores}]")
        .config("spark.driver.memory", "6g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.gpujoin.fallback", "raise")
        .config("spark.sql.autoBroadcastJoinThreshold", "-1")
        .getOrCreate()
    )
    results = [
        measure(case, session, arguments.data, arguments.rows, arguments.repeats)
        for case in CASES
        if arguments.cases in case.name
    ]
    text = page(results)
    print(text)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"machine": describe(), "results": results}, indent=1) + "\n")
        run = f"`python -m benchmarks.spark`, {arguments.rows:,} rows, local[{arguments.cores}]"
        arguments.out.with_suffix(".md").write_text(f"# Joins on Spark, fed by rows\n\n{run}\n\n{text}\n")
    session.stop()


if __name__ == "__main__":
    main()
