"""Quadratic joins: the engine alone at growing sizes, Polars' as-of join beside ours, and Spark's nested loops.

python -m benchmarks.quadratic --out benchmarks/results/quadratic-cpu.json

Every answer is checked: against Spark's or Polars' rows where they run, else against a count in NumPy. The engine's
cases come first, before a JVM takes memory. Some three minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.quadratic.engine_cases import as_of_case, not_in_case, overlap_case, range_case
from benchmarks.quadratic.report import page, plot
from gpujoin import __version__

Case = dict[str, Any]


def engine_cases(scale: float, repeats: int) -> Iterator[Case]:
    """The engine alone; sizes are multiplied by ``scale``."""
    million = int(1_000_000 * scale)
    steps: list[tuple[Callable[[], Case], dict[str, Any]]] = [
        *((lambda n=n: range_case(n * million // 2, "inner", repeats), {}) for n in (1, 2)),
        (lambda: range_case(2 * million, "inner", repeats), {"goal_seconds": 15}),
        (lambda: range_case(million, "full", repeats), {}),
        (lambda: overlap_case(million, repeats), {}),
        *((lambda n=n: not_in_case(n * million, million, 2, repeats), {}) for n in (1, 2, 4, 8)),
        (lambda: not_in_case(10 * million, million, 2, repeats), {"goal_seconds": 15}),
        (lambda: not_in_case(10 * million, million, 3, repeats), {"goal_seconds": 15}),
        *((lambda n=n: as_of_case(n * million, 10_000, repeats), {}) for n in (1, 2)),
        (lambda: as_of_case(5 * million, 10_000, repeats), {"goal_seconds": 10, "goal": 0.8}),
    ]
    for step, wanted in steps:
        yield step() | wanted


def spark_cases(rows: int, hot: int, share: int) -> Iterator[Case]:
    """Spark's own ways and ours."""
    from benchmarks.quadratic.spark_cases import hot_key, nested_loops, session

    with session() as spark:
        if hot:
            yield from hot_key(spark, 2 * hot, hot, max(1, hot // 1000))
        if rows:
            yield from nested_loops(spark, rows, share)


def every_case(given: argparse.Namespace) -> Iterator[Case]:
    if given.scale:
        yield from engine_cases(given.scale, given.repeats)
    if given.spark_rows or given.hot:
        yield from spark_cases(given.spark_rows, given.hot, given.spark_share)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quadratic", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the engine's sizes; 0: none of them")
    parser.add_argument("--spark-rows", type=int, default=100_000, help="of the nested loops; 0: none")
    parser.add_argument(
        "--spark-share", type=int, default=4,
        help="Spark's nested loops run over one part in so many of the left rows; their time is multiplied by it",
    )  # fmt: skip
    parser.add_argument(
        "--hot", type=int, default=1_000_000, help="rows of a hot key, which meet a thousandth as many; 0: none"
    )  # fmt: skip
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    cases: list[Case] = []
    for case in every_case(given):
        cases.append(case)
        ratio = f", ratio {case['other_seconds'] / case['seconds']:.2f}" if "other_seconds" in case else ""
        print(
            f"{case['case']}, {case['rows']:,} rows: {case['seconds']:.2f} s{ratio}",
            file=sys.stderr,
            flush=True,
        )
        write(given, cases)
    print(given.out.with_suffix(".md").read_text())


def write(given: argparse.Namespace, cases: list[Case]) -> None:
    """Write what has been measured so far."""
    record = {
        "version": __version__, "machine": describe(), "cases": cases,
        "note": f"engine cases: best of {given.repeats} on all cores; cases in Spark: once, planning included;"
        f" nested loops of Spark's: over a part of the left rows, about one in {given.spark_share}, their time"
        " multiplied accordingly, answers compared over that part",
    }  # fmt: skip
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(record, indent=1) + "\n")
    plotted = plot(cases, given.out)
    given.out.with_suffix(".md").write_text(page(record, plotted))


if __name__ == "__main__":
    main()
