"""Run the benchmark: a join of two large Parquet tables, accelerated and by Spark's own strategies, taking turns.

python -m benchmarks.files [--rows 10000000] [--repeats 3] [--out benchmarks/results/files-cpu.json]

Answers are checked, by row count and by sums over all columns, before anything is timed.
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
from benchmarks.spark.__main__ import digest, every_row
from benchmarks.spark.data import table


@dataclass(frozen=True)
class Case:
    """What is done with the joined rows, and how many times faster than Spark's best that should be."""

    name: str
    query: Callable[[DataFrame], DataFrame]
    sink: Callable[[DataFrame], Any]
    goal: float
    settings: tuple[tuple[str, str], ...] = ()


def sums(joined: DataFrame) -> DataFrame:
    """A small result of all rows."""
    return joined.agg(sf.sum("l_a"), sf.sum("r_c"), sf.count(sf.lit(1)))


def rows(joined: DataFrame) -> DataFrame:
    """All rows."""
    return joined


EXCHANGED = (("spark.gpujoin.scan.oneTaskBytes", "1m"), ("spark.gpujoin.broadcastThreshold", "1m"))
CASES = (
    Case("sum, sum, count", sums, lambda frame: frame.collect(), 3.0),
    Case("sum, sum, count, exchanged", sums, lambda frame: frame.collect(), 2.0, EXCHANGED),
    Case("every row", rows, every_row, 1.3),
    Case("every row, exchanged", rows, every_row, 1.0, EXCHANGED),
)
STRATEGIES = ("shuffle_hash", "merge")


def measure(case: Case, session: SparkSession, directory: Path, size: int, repeats: int) -> dict[str, Any]:
    """Check and time one case."""
    for key, value in case.settings:
        session.conf.set(key, value)
    left = session.read.parquet(str(table(directory, "l", size, size)))
    right = session.read.parquet(str(table(directory, "r", size, size)))
    engines: dict[str, Callable[[], DataFrame]] = {
        "gpujoin": lambda: gpujoin.accelerate(case.query(left.join(right, "k")))
    }
    for hint in STRATEGIES:
        engines[f"Spark {hint}"] = lambda hint=hint: case.query(left.join(right.hint(hint), "k"))  # type: ignore[misc]
    answers = {name: digest(make()) for name, make in engines.items()}
    if len(set(answers.values())) != 1:
        raise SystemExit(f"{case.name}: answers differ: {answers}")
    explanation = gpujoin.explain(engines["gpujoin"]())
    assert explanation.islands, str(explanation)
    wall: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(repeats + 1):
        for name, make in engines.items():
            before = time.perf_counter()
            case.sink(make())
            if turn:  # the first warms up
                wall[name].append(time.perf_counter() - before)
    for key, _ in case.settings:
        session.conf.unset(key)
    seconds = {name: statistics.median(times) for name, times in wall.items()}
    best = min((value, name) for name, value in seconds.items() if name != "gpujoin")
    found = {
        "case": case.name, "rows": size, "goal": case.goal, "runs": wall, "seconds": seconds, "best": best[1],
        "ratio": best[0] / seconds["gpujoin"], "explanation": str(explanation),
    }  # fmt: skip
    print(f"{case.name}: {seconds}", file=sys.stderr, flush=True)
    return found


def page(results: list[dict[str, Any]]) -> str:
    """Results as Markdown."""
    lines = [
        "| what | gpujoin, s | Spark's best, s | times faster | goal |",
        "|---|---:|---:|---:|---:|",
    ]
    for one in results:
        best = one["best"]
        lines.append(
            f"| {one['case']} | {one['seconds']['gpujoin']:.2f} | {one['seconds'][best]:.2f} "
            f"({best.removeprefix('Spark ')}) | **{one['ratio']:.2f}** | {one['goal']} |"
        )
    lines += ["", "*exchanged*: as where the files are too large for one task."]
    for one in results:
        lines += ["", f"## {one['case']}", "", "```", one["explanation"], "```"]
    return "\n".join(lines)


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.files", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--case", type=int, choices=range(1, len(CASES) + 1),
        help="only this one; results of others that --out holds already stay",
    )  # fmt: skip
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
        for number, case in enumerate(CASES, 1)
        if arguments.case in (None, number)
    ]
    if arguments.case is not None and arguments.out is not None and arguments.out.exists():
        known = {one["case"]: one for one in json.loads(arguments.out.read_text())["results"]}
        known |= {one["case"]: one for one in results}
        results = [known[case.name] for case in CASES if case.name in known]
    text = page(results)
    print(text)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"machine": describe(), "results": results}, indent=1) + "\n")
        run = f"`python -m benchmarks.files`, {arguments.rows:,} rows on each side, local[{arguments.cores}], medians"
        arguments.out.with_suffix(".md").write_text(f"# Joins of Parquet files on Spark\n\n{run}\n\n{text}\n")
    session.stop()


if __name__ == "__main__":
    main()
