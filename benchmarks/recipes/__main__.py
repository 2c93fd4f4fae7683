"""Run everyday programs by Spark alone and with gpujoin, and compare and time them.

python -m benchmarks.recipes [NAME ...] [--rows N] [--repeats 3] [--out benchmarks/results]

Without names all but ``medallion``, which runs by itself on the PySpark and with the jars of ``make test-lake``.
``--out`` writes recipes-cpu.json, of ``medallion`` recipes-delta-cpu.json, from which ``scripts/gen_recipes.py`` makes
docs/recipes.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.machine import describe
from benchmarks.recipes.measure import (
    HERE,
    OF_DELTA,
    RECIPES,
    SPARK,
    SUBMITTED,
    SUBMITTED_ROWS,
    Outcome,
    measured,
    submitted_outcome,
)
from tests.lake.jars import why_missing
from tests.lake.sessions import session_settings


def main(argv: list[str] | None = None) -> None:
    """Run the program."""
    names, of_delta = [*(recipe.name for recipe in RECIPES), SUBMITTED], [recipe.name for recipe in OF_DELTA]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recipes", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join([*names, *of_delta]))
    parser.add_argument("--rows", type=int, metavar="N", help="rows of the largest table (default: by recipe)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="timed runs of each way (default: 3)")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "gpujoin-recipes", metavar="FOLDER")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to write recipes-cpu.json")
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.names).difference(names, of_delta):
        parser.error(f"no recipe {', '.join(sorted(unknown))}; there are {', '.join([*names, *of_delta])}")
    chosen = arguments.names or names
    with_delta = not set(chosen).isdisjoint(of_delta)
    if with_delta and not set(chosen) <= set(of_delta):
        parser.error(f"{', '.join(of_delta)} runs by itself: no other session has the jars")
    if with_delta and (missing := why_missing()) is not None:
        parser.error(missing)
    outcomes = []
    if any(name != SUBMITTED for name in chosen):
        spark = session(session_settings("delta") if with_delta else {})
        for recipe in (*RECIPES, *OF_DELTA):
            if recipe.name in chosen:
                rows = arguments.rows or recipe.rows
                outcomes.append(measured(spark, recipe, arguments.data, rows, arguments.repeats))
                print(line(outcomes[-1]), flush=True)
        spark.stop()
    if SUBMITTED in chosen:
        rows = arguments.rows or SUBMITTED_ROWS
        outcomes.append(submitted_outcome(arguments.data, rows, arguments.repeats))
        print(line(outcomes[-1]), flush=True)
    if arguments.out is not None:
        record = {"machine": describe(), "recipes": [dataclasses.asdict(outcome) for outcome in outcomes]}
        text = json.dumps(record, indent=2) + "\n"
        (arguments.out / f"recipes-{'delta-' if with_delta else ''}cpu.json").write_text(text, encoding="utf-8")


def line(outcome: Outcome) -> str:
    """What is printed of a recipe."""
    here, spark = outcome.median(HERE), outcome.median(SPARK)
    return f"{outcome.name:18} equal   Spark {spark:7.2f} s   gpujoin {here:7.2f} s   {outcome.ratio:5.2f} times faster"


def session(more: Mapping[str, str]) -> SparkSession:
    """A local session as a person would have it, but quiet, with further settings."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.driver.memory": "6g", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR", "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": tempfile.mkdtemp(prefix="gpujoin-recipes-"), **more,
    }  # fmt: skip
    builder = SparkSession.builder.appName("recipes").master(f"local[{os.cpu_count()}]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


if __name__ == "__main__":
    main()
