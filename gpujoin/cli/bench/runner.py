"""Running the TPC-H queries by Spark itself and accelerated, in one session, taking turns."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpujoin.cli.bench import answers
from gpujoin.cli.bench.measured import Measured
from gpujoin.cli.bench.report import write
from gpujoin.cli.demo.data import TABLES, tpch_directory
from gpujoin.cli.demo.runner import parse_settings
from gpujoin.cli.demo.show import progress
from gpujoin.errors import ConfigurationError
from gpujoin.spark.resources import check_resources

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Request:
    """What to run.

    Attributes
    ----------
    scale : float
        TPC-H scale factor.
    queries : tuple of int
        Numbers of queries.
    repeats : int
        Timed runs of each query, each way, after one that is not timed; 0: that one is timed.
    master : str
        Spark master.
    conf : tuple of str
        Spark settings, ``key=value``.
    out : pathlib.Path or None
        Folder for the results.
    name : str
        Name of the results' files.
    data : pathlib.Path or None
        Folder of the tables; ``None``: they are made where they are not there yet.
    """

    scale: float
    queries: tuple[int, ...]
    repeats: int
    master: str
    conf: tuple[str, ...]
    out: Path | None
    name: str = "tpch"
    data: Path | None = None


def run_tpch(request: Request) -> int:
    """Run, check, time and show the queries.

    Returns
    -------
    int
        0 if every answer is right, 1 if not.

    Raises
    ------
    ConfigurationError
        An argument makes no sense.
    BackendUnavailableError
        DuckDB or its TPC-H extension is missing.
    """
    settings = parse_settings(request.conf)
    data = _tables(request)
    with answers.connect(data) as connection, progress(len(request.queries)) as shown:
        texts = answers.queries(connection)
        spark = _session(request.master, settings)
        try:
            for table in TABLES:
                spark.read.parquet(str(data / f"{table}.parquet")).createOrReplaceTempView(table)
            _warm_up(spark)
            measured = []
            for number in request.queries:
                shown.step(f"query {number}")
                found = _measure(spark, connection, number, texts[number], request)
                spark_seconds, seconds = found.medians
                shown.line(
                    f"query {number:2}: Spark {spark_seconds:6.2f} s, here {seconds:6.2f} s, {found.ratio:5.2f} x,"
                    f" joins {found.joins_here}/{found.joins}"
                    + "".join(f"\n  WRONG: {d}" for d in found.differences)
                )
                measured.append(found)
        finally:
            spark.stop()
    print(write(measured, request.scale, request.master, settings, request.out, request.name))
    return 1 if any(found.differences for found in measured) else 0


def _tables(request: Request) -> Path:
    if request.data is None:
        return tpch_directory(request.scale)
    missing = [table for table in TABLES if not (request.data / f"{table}.parquet").exists()]
    if missing:
        raise ConfigurationError(
            f"{request.data} holds no {', '.join(f'{name}.parquet' for name in missing)}"
        )
    return request.data


def _session(master: str, settings: dict[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    from gpujoin.spark.settings import session_conf

    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    defaults = {
        "spark.driver.memory": "4g",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.appName("gpujoin bench").master(master)
    for key, value in {**defaults, **settings}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    check_resources(session_conf(spark))
    return spark


def _warm_up(spark: SparkSession) -> None:
    """Have the first query pay for the start of neither Spark nor its workers."""
    import gpujoin

    text = "select n_name, count(*) from nation join customer on n_nationkey = c_nationkey group by n_name"
    for frame in (spark.sql(text), gpujoin.accelerate(spark.sql(text))):
        frame.collect()


def _measure(
    spark: SparkSession, connection: duckdb.DuckDBPyConnection, number: int, text: str, request: Request
) -> Measured:
    import gpujoin

    def native() -> list[Any]:
        return spark.sql(text).collect()

    def accelerated() -> list[Any]:
        return gpujoin.accelerate(spark.sql(text)).collect()

    start = time.perf_counter()
    expected = native()
    middle = time.perf_counter()
    found = accelerated()
    first = (middle - start, time.perf_counter() - middle)
    differences = _differences(connection, number, text, request.scale, expected, found)
    explanation = gpujoin.explain(gpujoin.accelerate(spark.sql(text)))
    times: dict[Callable[[], list[Any]], list[float]] = {native: [], accelerated: []}
    for turn in range(request.repeats):
        order = list(times) if turn % 2 == 0 else list(times)[::-1]
        for way in order:
            start = time.perf_counter()
            way()
            times[way].append(time.perf_counter() - start)
    return Measured(
        number=number,
        spark=tuple(times[native]) or first[:1],
        accelerated=tuple(times[accelerated]) or first[1:],
        joins=len(explanation.joins),
        joins_here=sum(join.accelerated for join in explanation.joins),
        explanation=str(explanation),
        differences=differences,
    )


def _differences(
    connection: duckdb.DuckDBPyConnection,
    number: int,
    text: str,
    scale: float,
    expected: list[Any],
    found: list[Any],
) -> tuple[str, ...]:
    result = connection.execute(text)
    names = [column[0] for column in result.description or ()]
    compared = {
        "Spark": answers.difference(found, expected, answers.TOLERANCE),
        "DuckDB": answers.difference(found, result.fetchall(), answers.TOLERANCE),
    }
    known = answers.published(connection, number, scale)
    if known is not None:
        compared["the published answer"] = answers.difference(
            answers.without_texts(found, names),
            answers.without_texts(known, names),
            answers.PUBLISHED_TOLERANCE,
        )
    return tuple(f"not as {name}: {what}" for name, what in compared.items() if what is not None)
