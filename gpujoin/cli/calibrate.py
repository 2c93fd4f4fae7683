"""``gpujoin calibrate``: from which size on a query is faster here than in Spark, measured on this machine."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpujoin.errors import GpuJoinError
from gpujoin.spark.resources import check_resources

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from pyspark.sql import SparkSession

SETTING = "spark.gpujoin.scan.smallestBytes"
_ROWS = (20_000, 100_000, 400_000, 1_600_000)
"""Rows of the fact tables that are read; a row is about 12 compressed bytes."""
_QUERY = """
select d.name, sum(f.amount), count(*) from fact f join dimension d on f.k = d.k where f.amount > 10 group by d.name
"""
_LEAST, _MOST = 64 << 10, 1 << 30


@dataclass(frozen=True)
class Line:
    """Seconds as a line over bytes.

    Attributes
    ----------
    fixed : float
        Seconds of a query that reads nothing.
    per_byte : float
        Seconds for each compressed byte more.
    """

    fixed: float
    per_byte: float


@dataclass(frozen=True)
class Sample:
    """One size.

    Attributes
    ----------
    nbytes : int
        Compressed bytes of the columns read.
    spark, here : float
        Median seconds from the text to the rows in the driver.
    """

    nbytes: int
    spark: float
    here: float


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``calibrate`` to the command line.

    Parameters
    ----------
    commands : argparse._SubParsersAction
        The subcommands of ``gpujoin``.
    """
    parser = commands.add_parser(
        "calibrate",
        help="measure from which size on queries are faster here",
        description="Time a join with an aggregation over tables of several sizes by Spark itself and here, taking "
        f"turns, and print the setting that follows, {SETTING}. Takes about a minute; nothing else should run.",
    )
    parser.add_argument("--master", default="local[*]", help="Spark master (default: local[*])")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="timed runs of each (default: 5)")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="also put the setting into this properties file"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; PySpark is imported only here.

    Parameters
    ----------
    arguments : argparse.Namespace
        Parsed arguments.

    Returns
    -------
    int
        0.

    Raises
    ------
    GpuJoinError
        If ``--repeats`` is below 1.
    """
    if arguments.repeats < 1:
        raise GpuJoinError(f"--repeats is {arguments.repeats}; give at least 1")
    samples = measure(arguments.master, arguments.repeats, _ROWS)
    spark, here = (
        fitted([(s.nbytes, s.spark) for s in samples]),
        fitted([(s.nbytes, s.here) for s in samples]),
    )
    for sample in samples:
        print(f"{sample.nbytes / 2**20:8.2f} MiB  Spark {sample.spark:6.3f} s  here {sample.here:6.3f} s")
    print(f"fixed cost: Spark {spark.fixed * 1e3:.0f} ms, here {here.fixed * 1e3:.0f} ms")
    size = break_even(spark, here)
    print(f"{SETTING} {size}")
    if arguments.write is not None:
        put(arguments.write, SETTING, str(size))
    return 0


def fitted(points: Sequence[tuple[int, float]]) -> Line:
    """Fit a line by least squares, relative errors counting alike, so that small sizes are not drowned.

    Parameters
    ----------
    points : sequence of (int, float)
        Bytes and seconds; at least two sizes.
    """
    weights = [1.0 / seconds**2 for _, seconds in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True)) / spread
    slope = max(slope, 0.0)
    return Line(max(mean_y - slope * mean_x, 0.0), slope)


def break_even(spark: Line, here: Line) -> int:
    """Give the size from which on the second line is below the first; bounded, should it never or always be."""
    if here.fixed <= spark.fixed:
        return _LEAST
    if here.per_byte >= spark.per_byte:
        return _MOST
    size = (here.fixed - spark.fixed) / (spark.per_byte - here.per_byte)
    return int(min(max(size, _LEAST), _MOST))


def put(path: Path, key: str, value: str) -> None:
    """Set a key in a file of Spark properties, in the place where it is already, else at the end."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    kept = [line for line in lines if not line.split() or line.replace("=", " ").split()[0] != key]
    path.write_text("\n".join([*kept, f"{key} {value}", ""]), encoding="utf-8")


def measure(master: str, repeats: int, sizes: Sequence[int]) -> list[Sample]:
    """Time the query over tables of several sizes, in one session.

    Parameters
    ----------
    master : str
        Spark master.
    repeats : int
        Timed runs of each size and way, after one that is not timed.
    sizes : sequence of int
        Rows of the fact tables.
    """
    from pyspark.sql import SparkSession

    from gpujoin.spark.settings import session_conf

    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("gpujoin calibrate").master(master)
    for key, value in {
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.gpujoin.fallback": "silent",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    check_resources(session_conf(spark))
    before = spark.conf.get("spark.gpujoin.backend", None)
    spark.conf.set("spark.gpujoin.backend", "cpu")
    try:
        with tempfile.TemporaryDirectory(prefix="gpujoin-calibrate-") as folder:
            return [_sample(spark, Path(folder), rows, repeats) for rows in sizes]
    finally:
        if before is None:
            spark.conf.unset("spark.gpujoin.backend")
        else:
            spark.conf.set("spark.gpujoin.backend", before)


def _sample(spark: SparkSession, folder: Path, rows: int, repeats: int) -> Sample:
    import gpujoin

    fact, dimension = str(folder / f"fact-{rows}"), str(folder / f"dimension-{rows}")
    spark.range(0, rows, 1, 1).selectExpr(
        "id * 7919 % 1000 as k", "cast(id * 104729 % 100003 as decimal(12, 2)) as amount"
    ).write.parquet(fact)
    spark.range(0, 1000, 1, 1).selectExpr("id as k", "concat('name ', id % 50) as name").write.parquet(
        dimension
    )
    spark.read.parquet(fact).createOrReplaceTempView("fact")
    spark.read.parquet(dimension).createOrReplaceTempView("dimension")

    def native() -> list[Any]:
        return spark.sql(_QUERY).collect()

    def accelerated() -> list[Any]:
        return gpujoin.accelerate(spark.sql(_QUERY)).collect()

    islands = gpujoin.explain(gpujoin.accelerate(spark.sql(_QUERY))).islands
    if not islands:
        raise GpuJoinError("the query that is timed does not run here; run `gpujoin doctor`")
    if sorted(native()) != sorted(accelerated()):
        raise GpuJoinError("the answers differ; please report this")
    times: dict[Callable[[], list[Any]], list[float]] = {native: [], accelerated: []}
    for turn in range(repeats):
        for way in list(times) if turn % 2 == 0 else list(times)[::-1]:
            start = time.perf_counter()
            way()
            times[way].append(time.perf_counter() - start)
    for view in ("fact", "dimension"):
        spark.catalog.dropTempView(view)
    return Sample(
        sum(island.input_bytes for island in islands),
        statistics.median(times[native]),
        statistics.median(times[accelerated]),
    )
