"""One query by Spark itself and accelerated, in one session, taking turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gpujoin
from benchmarks.answers import TOLERANCE, difference
from benchmarks.queries.coverage import Operations, coverage
from benchmarks.queries.suite import Suite
from gpujoin.cli import session
from gpujoin.spark.jvm.gateway import optimized_plan

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import DataFrame, SparkSession


DEFAULT_REPEATS = 3
"""Timed runs of each query and way."""
_BACKEND = "spark.gpujoin.backend"


@dataclass(frozen=True)
class Measured:
    """What was measured of one query.

    Attributes
    ----------
    number : int
        Which.
    spark, accelerated : tuple of float
        Seconds from the text to the rows in the driver, of each timed run.
    planning : tuple of float
        Seconds of the same runs that planning took beside Spark's own: what a query pays that is left to Spark.
    all, here : Operations
        Operations of the optimized plan, and those that run here.
    explanation : str
        As ``explain`` says it.
    differences : tuple of str
        What is wrong with the accelerated answer; empty if nothing is.
    repeats : int
        How many runs were timed after the one that was checked; 0: that one.
    """

    number: int
    spark: tuple[float, ...]
    accelerated: tuple[float, ...]
    planning: tuple[float, ...]
    all: Operations
    here: Operations
    explanation: str
    differences: tuple[str, ...]
    repeats: int

    @property
    def medians(self) -> tuple[float, float]:
        """Median seconds of Spark and accelerated."""
        return statistics.median(self.spark), statistics.median(self.accelerated)

    @property
    def ratio(self) -> float:
        """How many times faster than Spark."""
        spark, accelerated = self.medians
        return spark / accelerated


def open_session(master: str, settings: dict[str, str]) -> SparkSession:
    defaults = {"spark.driver.memory": "4g", "spark.log.level": "ERROR"}
    return session.open_session("gpujoin bench", master, {**defaults, **settings})


def warm_up(spark: SparkSession, tables: Sequence[DataFrame]) -> None:
    """Have the first query pay for the start of neither Spark nor its workers, and planning know that it is paid."""
    table = tables[0]
    column = table.columns[0]
    counted = table.join(table.select(column), column).groupBy(column).count()
    counted.collect()
    given = spark.conf.get(_BACKEND, None)
    if given in (None, "auto"):
        spark.conf.set(_BACKEND, "cpu")  # under auto so few rows are left to Spark
    gpujoin.accelerate(counted).collect()
    if given is None:
        spark.conf.unset(_BACKEND)
    else:
        spark.conf.set(_BACKEND, given)


def measure(
    spark: SparkSession,
    suite: Suite,
    connection: duckdb.DuckDBPyConnection,
    number: int,
    text: str,
    scale: float,
    repeats: int,
) -> Measured:
    """Check a query's answer, then time it, or let the checked run count if ``repeats`` is 0."""

    def native() -> list[Any]:
        return spark.sql(text).collect()

    planning: list[float] = []

    def accelerated() -> list[Any]:
        query = spark.sql(text)
        optimized_plan(query)
        begin = time.perf_counter()
        planned = gpujoin.accelerate(query)
        planning.append(time.perf_counter() - begin)
        return planned.collect()

    start = time.perf_counter()
    expected = native()
    middle = time.perf_counter()
    actual = accelerated()
    first = (middle - start, time.perf_counter() - middle)
    compared = {
        "Spark": difference(actual, expected, TOLERANCE),
        **suite.further(connection, number, text, scale, actual),
    }
    covered = coverage(spark.sql(text))
    times: dict[Callable[[], list[Any]], list[float]] = {native: [], accelerated: []}
    for turn in range(repeats):
        order = list(times) if turn % 2 == 0 else list(times)[::-1]
        for way in order:
            start = time.perf_counter()
            way()
            times[way].append(time.perf_counter() - start)
    return Measured(
        number=number,
        spark=tuple(times[native]) or first[:1],
        accelerated=tuple(times[accelerated]) or first[1:],
        planning=tuple(planning[1:] or planning),
        all=covered.all,
        here=covered.here,
        explanation=str(covered.explanation),
        differences=tuple(f"not as {name}: {what}" for name, what in compared.items() if what is not None),
        repeats=repeats,
    )
