"""One query by Spark itself and accelerated, in one session, taking turns."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

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
    spark_processor, accelerated_processor : tuple of float
        Seconds of processors in the same runs: of the driver, its JVM and their workers. Unlike the others they do
        not grow while something else runs on the machine.
    planning : tuple of float
        Seconds of the same runs that planning took beside Spark's own: what a query pays that is left to Spark.
    plan_is_sparks : bool
        Whether the accelerated query has the physical plan that Spark makes by itself. It can then be slower by
        planning alone; its ratios tell how even the machine was.
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
    spark_processor: tuple[float, ...]
    accelerated_processor: tuple[float, ...]
    planning: tuple[float, ...]
    plan_is_sparks: bool
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
    def processor_medians(self) -> tuple[float, float]:
        """Median seconds of processors, Spark and accelerated."""
        return statistics.median(self.spark_processor), statistics.median(self.accelerated_processor)

    @property
    def ratio(self) -> float:
        """How many times faster than Spark."""
        spark, accelerated = self.medians
        return spark / accelerated

    @property
    def processor_ratio(self) -> float:
        """How many times Spark's processor seconds are those of here."""
        spark, accelerated = self.processor_medians
        return spark / accelerated


@dataclass(frozen=True)
class _Run:
    """Rows of a query, and the seconds on the clock and of processors until they were there."""

    rows: list[Any]
    seconds: float
    processor: float


def _run(way: Callable[[], list[Any]]) -> _Run:
    processor, begin = _processor_seconds(), time.perf_counter()
    rows = way()
    seconds = time.perf_counter() - begin
    return _Run(rows, seconds, _processor_seconds() - processor)


def _processor_seconds() -> float:
    """Seconds of processors that this process, its descendants and those of them that have ended took until now."""
    this = psutil.Process()
    total = 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue  # it has ended since it was listed
        total += times.user + times.system + times.children_user + times.children_system
    return total


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
    connection: duckdb.DuckDBPyConnection | None,
    number: int,
    text: str,
    scale: float,
    repeats: int,
) -> Measured:
    """Check a query's answer, then time it, or let the checked run count if ``repeats`` is 0.

    Without a ``connection`` only Spark's answer is compared.
    """

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

    first = {native: _run(native), accelerated: _run(accelerated)}
    actual = first[accelerated].rows
    compared = {
        "Spark": difference(actual, first[native].rows, TOLERANCE),
        **({} if connection is None else suite.further(connection, number, text, scale, actual)),
    }
    covered = coverage(spark.sql(text))
    plans = {_physical_plan(spark.sql(text)), _physical_plan(gpujoin.accelerate(spark.sql(text)))}
    runs: dict[Callable[[], list[Any]], list[_Run]] = {native: [], accelerated: []}
    for turn in range(repeats):
        order = list(runs) if turn % 2 == 0 else list(runs)[::-1]
        for way in order:
            runs[way].append(_run(way))
    timed = {way: runs[way] or [first[way]] for way in runs}
    return Measured(
        number=number,
        spark=tuple(run.seconds for run in timed[native]),
        accelerated=tuple(run.seconds for run in timed[accelerated]),
        spark_processor=tuple(run.processor for run in timed[native]),
        accelerated_processor=tuple(run.processor for run in timed[accelerated]),
        planning=tuple(planning[1:] or planning),
        plan_is_sparks=len(plans) == 1,
        all=covered.all,
        here=covered.here,
        explanation=str(covered.explanation),
        differences=tuple(f"not as {name}: {what}" for name, what in compared.items() if what is not None),
        repeats=repeats,
    )


def _physical_plan(query: DataFrame) -> str:
    """Give a plan's text without what differs each time that it is made: ids of columns, nodes, subqueries and RDDs."""
    text = str(query._jdf.queryExecution().executedPlan().toString())  # noqa: SLF001
    numbers: dict[str, int] = {}
    text = re.sub(r"(?<=#)\d+L?", lambda found: str(numbers.setdefault(found[0], len(numbers))), text)
    return re.sub(r"plan_id=\d+|@[0-9a-f]+|RDD\[\d+\]", "", text)
