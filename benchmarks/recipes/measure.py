"""Runs recipes by Spark alone and with gpujoin, compares what they give, and takes the time."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession

import gpujoin
from benchmarks.recipes import (
    asof_features,
    exploration,
    forecasts,
    incremental_load,
    log_parsing,
    medallion,
    nearby,
    reconciliation,
    scoring,
    sessions,
    star_schema,
    submitted,
    weighted_means,
)
from gpujoin.testing import assert_same_rows

Program: TypeAlias = Callable[[SparkSession, Path], Sequence[DataFrame]]
HERE, SPARK = "gpujoin", "Spark"


@dataclass(frozen=True)
class Recipe:
    """A program over tables."""

    name: str
    module: Any
    """The program: a module with a docstring, ``TABLES``, ``write``, ``run`` and perhaps ``run_in_spark``; one that
    writes tables may have ``prepare`` and ``explained``."""
    rows: int
    """Rows of its largest table where it is timed."""

    @property
    def title(self) -> str:
        """The docstring's first line."""
        return str(self.module.__doc__).partition("\n")[0]

    def program(self, way: str) -> Program:
        """What is run; only an as-of join is written otherwise for Spark."""
        chosen: Program = getattr(self.module, "run_in_spark" if way == SPARK else "run", self.module.run)
        return chosen

    def tables(self, folder: Path, rows: int) -> Path:
        """Folder with the tables, written first where it is not there yet; it appears whole or not at all."""
        target = folder / f"{self.name}-{rows}"
        if not target.is_dir():
            partial = folder / f".{target.name}-{os.getpid()}"
            partial.mkdir(parents=True)
            self.module.write(partial, rows)
            partial.rename(target)
        return target


RECIPES = (
    Recipe("star_schema", star_schema, 10_000_000),
    Recipe("sessions", sessions, 5_000_000),
    Recipe("asof_features", asof_features, 4_000_000),
    Recipe("incremental_load", incremental_load, 8_000_000),
    Recipe("exploration", exploration, 5_000_000),
    Recipe("scoring", scoring, 8_000_000),
    Recipe("log_parsing", log_parsing, 4_000_000),
    Recipe("nearby", nearby, 8_000_000),
    Recipe("forecasts", forecasts, 4_000_000),
    Recipe("weighted_means", weighted_means, 4_000_000),
    Recipe("reconciliation", reconciliation, 4_000_000),
)
OF_DELTA = (Recipe("medallion", medallion, 5_000_000),)
"""Recipes over tables of Delta, in sessions that have its jars."""
SUBMITTED = "spark_submit"
SUBMITTED_ROWS = 5_000_000
"""The program that is submitted reads the tables of the exploration."""


@dataclass(frozen=True)
class Outcome:
    """What a recipe took."""

    name: str
    title: str
    rows: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: {HERE: [], SPARK: []})
    """Seconds of each run, with gpujoin and by Spark."""
    explanation: str = ""
    """What ``gpujoin.explain`` says of its queries."""

    def median(self, way: str) -> float:
        """Median of the seconds of one way."""
        return statistics.median(self.seconds[way])

    @property
    def ratio(self) -> float:
        """How many times faster it is with gpujoin."""
        return self.median(SPARK) / self.median(HERE)


def measured(spark: SparkSession, recipe: Recipe, folder: Path, rows: int, repeats: int) -> Outcome:
    """Run a recipe both ways, taking turns, compare the rows of each query, and take the time.

    The first turn warms up and is compared, but not timed, unless it is the only one.
    """
    data = recipe.tables(folder, rows)
    for name in recipe.module.TABLES:
        spark.read.parquet(str(data / name)).createOrReplaceTempView(name)
    if hasattr(recipe.module, "prepare"):
        recipe.module.prepare(spark)
    outcome = Outcome(recipe.name, recipe.title, rows, explanation=_explanation(spark, recipe, data))
    for turn in range(repeats + 1):
        answers = {}
        for way in (SPARK, HERE):
            seconds, answers[way] = _timed(spark, recipe, data, way)
            if turn or not repeats:
                outcome.seconds[way].append(seconds)
        for here, in_spark in zip(answers[HERE], answers[SPARK], strict=True):
            assert_same_rows(here, in_spark, context=recipe.name)
    return outcome


def _timed(spark: SparkSession, recipe: Recipe, data: Path, way: str) -> tuple[float, list[pa.Table]]:
    (gpujoin.enable if way == HERE else gpujoin.disable)(spark)
    try:
        before = time.perf_counter()
        answers = [frame.toArrow() for frame in recipe.program(way)(spark, data)]
        return time.perf_counter() - before, answers
    finally:
        gpujoin.disable(spark)


def _explanation(spark: SparkSession, recipe: Recipe, data: Path) -> str:
    gpujoin.enable(spark)
    try:
        explained = getattr(recipe.module, "explained", None)
        frames = recipe.program(HERE)(spark, data) if explained is None else explained(spark)
        text = "\n\n\n".join(str(gpujoin.explain(frame)) for frame in frames)
    finally:
        gpujoin.disable(spark)
    return text.replace(f"{data}/", "")  # pages are of no machine's folders


def submitted_outcome(folder: Path, rows: int, repeats: int, settings: Sequence[str] = ()) -> Outcome:
    """Time an unchanged program under ``spark-submit``, by Spark and enabled by a setting."""
    data = next(recipe for recipe in RECIPES if recipe.module is exploration).tables(folder, rows)
    outcome = Outcome(SUBMITTED, str(submitted.__doc__).partition("\n")[0], rows)
    for _ in range(max(1, repeats)):
        printed = {}
        for way in (SPARK, HERE):
            enabled = f"spark.gpujoin.enabled={str(way == HERE).lower()}"
            before = time.perf_counter()
            lines = _submit(data, (enabled, *settings)).splitlines()
            outcome.seconds[way].append(time.perf_counter() - before)
            if lines[-1] != f"by {way}":
                raise SystemExit(f"spark-submit with {enabled} ran {lines[-1]}; is gpujoin installed?")
            printed[way] = lines[:-1]
        if printed[HERE] != printed[SPARK] or not printed[HERE]:
            raise SystemExit(f"the program printed something else with gpujoin: {printed}")
    return outcome


def _submit(data: Path, settings: Sequence[str]) -> str:
    home = Path(pyspark.__file__).parent
    quiet = ("spark.ui.enabled=false", "spark.log.level=ERROR", "spark.driver.memory=6g")
    options = [part for setting in (*quiet, *settings) for part in ("--conf", setting)]
    cores = f"local[{os.cpu_count()}]"
    done = subprocess.run(
        [home / "bin" / "spark-submit", "--master", cores, *options, submitted.__file__, str(data)],
        capture_output=True, text=True, check=False,
        env={**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"spark-submit failed: {done.stderr[-2000:]}")
    return done.stdout
