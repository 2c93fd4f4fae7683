"""Runs the demo's joins: check first, which also warms up, then time both ways into the same sink."""

from __future__ import annotations

import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gpujoin.cli.checks import import_check, require
from gpujoin.cli.checks.software import java
from gpujoin.cli.demo.check import Comparison, compare, create_views, parquet
from gpujoin.cli.demo.data import EXTRA, TABLES, tpch_directory
from gpujoin.cli.demo.joins import JOINS, DemoJoin
from gpujoin.cli.demo.queries import run_queries
from gpujoin.cli.demo.show import Outcome, Progress, failed, report
from gpujoin.cli.demo.streams import HOW, TITLE, StreamResult, run_stream
from gpujoin.cli.session import open_session
from gpujoin.config import BackendChoiceName
from gpujoin.errors import BackendUnavailableError, ConfigurationError

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import DataFrame, SparkSession

_STEPS_PER_JOIN = 4
_ALL_COLUMNS = "bit_xor(xxhash64(*))"
"""Has every value of every row computed, and brings back one number."""


def run_demo(*, scale: float, backend: BackendChoiceName, master: str, conf: Sequence[str], only: str) -> int:
    """Run, check, time and show the joins; 0 if every result is equal, 1 if not.

    ``only`` keeps the joins whose title or type holds this text.
    """
    joins = [join for join in JOINS if only.lower() in f"{join.title} {join.how}".lower()]
    if not joins:
        titles = ", ".join(repr(join.title) for join in JOINS)
        raise ConfigurationError(f"no join's title or type holds {only!r}. Titles: {titles}.")
    settings = parse_settings(conf)
    _require()
    data = tpch_directory(scale)
    # Beside the tables, because executors in other containers or on other machines see that folder too.
    work = Path(tempfile.mkdtemp(prefix=".demo-", dir=data.parent))
    try:
        spark = _session(master, settings)
        try:
            for name in TABLES:
                spark.read.parquet(str(data / f"{name}.parquet")).createOrReplaceTempView(name)
            outcomes = _run_all(spark, joins, data, work, backend)
            queries = run_queries(spark, data) if not only else []
            stream = run_stream(spark, data, work / "stream") if not only else StreamResult()
        finally:
            spark.stop()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    about = f"TPC-H scale {scale:g}; every row of every result compared with Spark's own join and with DuckDB"
    print(report(about, ("join", "type", "backend"), outcomes, "results"))
    if queries:
        about = "Whole queries, unchanged, after gpujoin.enable(spark)"
        print(report(about, ("query", "joins here"), queries, "queries"))
    if stream.outcomes:
        about = (
            f"Join of two streams, {HOW}: {TITLE}; each micro-batch compared with that of Spark's operator.\n"
            "The first micro-batch of either starts its workers and compiles code."
        )
        print(report(about, ("micro-batch", "new rows"), stream.outcomes, "micro-batches"))
    if stream.left_out:
        print(f"\nThe join of two streams was left out: {stream.left_out}")
    return 1 if any(outcome.differences for outcome in (*outcomes, *queries, *stream.outcomes)) else 0


def parse_settings(conf: Sequence[str]) -> dict[str, str]:
    """Spark settings from ``key=value`` arguments. Raises ``ConfigurationError`` if one is not of that form."""
    settings = {}
    for entry in conf:
        key, separator, value = entry.partition("=")
        if not separator or not key:
            raise ConfigurationError(f"--conf {entry!r} is not of the form KEY=VALUE.")
        settings[key] = value
    return settings


def _require() -> None:
    missing = [module for module in ("pyspark", "duckdb", "tqdm") if find_spec(module) is None]
    if missing:
        raise BackendUnavailableError(f"the demo needs {' and '.join(missing)}: {EXTRA}")
    require(
        import_check("pyspark", minimum="4.0", below="5", advice=EXTRA),
        import_check("duckdb", minimum="1.5", below="2", advice=EXTRA),
        import_check("tqdm", minimum="4.66", below=None, advice=EXTRA),
        java(),
    )


def _session(master: str, settings: dict[str, str]) -> SparkSession:
    # The table says all that the demo has to say.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    quiet = Path(__file__).with_name("log4j2.properties")
    defaults = {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={quiet.as_uri()}",
        "spark.driver.memory": "2g",
        "spark.gpujoin.costs": "start=0",
        "spark.gpujoin.fallback": "silent",
    }
    return open_session("gpujoin demo", master, {**defaults, **settings})


def _run_all(
    spark: SparkSession, joins: Sequence[DemoJoin], data: Path, work: Path, backend: BackendChoiceName
) -> list[Outcome]:
    import duckdb

    outcomes = []
    with duckdb.connect() as connection, Progress(_STEPS_PER_JOIN * len(joins)) as shown:
        connection.execute(f"SET temp_directory = '{work / 'duckdb'}'")
        create_views(connection, data)
        for number, join in enumerate(joins, start=1):
            try:
                outcome = _run_one(join, spark, connection, work / str(number), backend, shown)
            except Exception as problem:  # noqa: BLE001  # one join that fails is a finding; the others still run
                outcome = failed((join.title, join.how, "-"), problem)
            outcomes.append(outcome)
            shown.outcome(f"{number}/{len(joins)}", f"{join.title} ({join.how})", outcome)
    return outcomes


def _run_one(
    join: DemoJoin,
    spark: SparkSession,
    connection: duckdb.DuckDBPyConnection,
    work: Path,
    backend: BackendChoiceName,
    shown: Progress,
) -> Outcome:
    from gpujoin import explain, gpu_join

    def here() -> DataFrame:
        left, right, on = join.sides(spark)
        return gpu_join(left, right, on, join.how, backend=backend)

    def in_spark() -> DataFrame:
        left, right, on = join.sides(spark)
        return left.join(right, on, join.how)

    shown.step(f"{join.title}: gpu_join")
    frame = here()
    chosen = explain(frame).joins[0]
    used = str(chosen.backend)
    _write(frame, work / "ours")
    shown.step(f"{join.title}: Spark and DuckDB")
    _write(in_spark(), work / "spark")
    by_spark = compare(connection, parquet(work / "ours"), parquet(work / "spark"))
    by_duckdb = compare(connection, parquet(work / "ours"), f"({join.duckdb})")
    differences = (
        *_schema_differences(frame, in_spark()),
        *_named("Spark", by_spark),
        *_named("DuckDB", by_duckdb),
    )
    shutil.rmtree(work)
    shown.step(f"{join.title}: gpu_join, timed")
    seconds = _seconds(here)
    shown.step(f"{join.title}: Spark, timed")
    spark_seconds = _seconds(in_spark)
    return Outcome(
        labels=(join.title, join.how, used),
        rows=by_spark.rows,
        seconds=seconds,
        spark_seconds=spark_seconds,
        differences=differences,
        reasons=tuple(str(reason) for reason in chosen.reasons) if used == "spark" else (),
    )


def _write(frame: DataFrame, path: Path) -> None:
    frame.write.parquet(str(path), compression="none")


def _seconds(make: Callable[[], DataFrame]) -> float:
    """Time the second of two runs: the first one compiles code, here as in Spark."""
    seconds = 0.0
    for _ in range(2):
        started = time.perf_counter()
        make().selectExpr(_ALL_COLUMNS).collect()
        seconds = time.perf_counter() - started
    return seconds


def _schema_differences(actual: DataFrame, expected: DataFrame) -> tuple[str, ...]:
    if actual.schema == expected.schema:
        return ()
    return (f"schema {actual.schema.simpleString()} instead of Spark's {expected.schema.simpleString()}",)


def _named(other: str, comparison: Comparison) -> tuple[str, ...]:
    counts: tuple[str, ...] = ()
    if comparison.rows != comparison.other_rows:
        counts = (f"{comparison.rows} rows instead of {other}'s {comparison.other_rows}",)
    return (*counts, *(f"against {other}: {difference}" for difference in comparison.differences))
