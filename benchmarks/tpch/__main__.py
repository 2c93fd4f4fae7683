"""Run the TPC-H queries by Spark itself and accelerated, taking turns in one session.

python -m benchmarks.tpch [--sf 1] [--queries 1,3,5] [--master 'local[*]'] [--out benchmarks/results]

Every answer is compared with Spark's, with DuckDB's and, at scale 1, with the published one. The exit status is 1 if
any differs.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.tpch import answers
from benchmarks.tpch.measure import Measured, measure, open_session, warm_up
from benchmarks.tpch.report import write
from gpujoin.cli.demo.data import TABLES, tpch_directory
from gpujoin.cli.demo.runner import parse_settings
from gpujoin.cli.demo.show import Progress
from gpujoin.errors import ConfigurationError, GpuJoinError


def main(argv: list[str] | None = None) -> int:
    """Run the program.

    Returns
    -------
    int
        0 if every answer is right, 1 if not.
    """
    arguments = parser().parse_args(argv)
    try:
        return run(arguments)
    except GpuJoinError as problem:
        print(f"benchmarks.tpch: {problem}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.tpch", description=__doc__.splitlines()[0] if __doc__ else None
    )
    made.add_argument(
        "--sf", type=float, default=1.0, metavar="SF", dest="scale", help="TPC-H scale factor (default: 1)"
    )
    made.add_argument(
        "--queries",
        type=_numbers,
        default=tuple(range(1, 23)),
        metavar="1,3,5",
        help="only these (default: all 22)",
    )
    made.add_argument(
        "--repeats",
        type=_count,
        default=3,
        help="timed runs of each query and way, after those that are checked; 0: the checked ones are timed",
    )
    made.add_argument("--data", type=Path, metavar="FOLDER", help="tables that are there already, as <table>.parquet")
    made.add_argument("--master", default="local[*]", help="Spark master (default: local[*])")
    made.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a Spark setting; may be given again and again",
    )
    made.add_argument("--out", type=Path, metavar="FOLDER", help="where to write NAME.json, .md, .png and .svg")
    made.add_argument("--name", default="tpch", help="name of those files (default: tpch)")
    return made


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 1,3,5") from None
    if not all(1 <= number <= 22 for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r}: queries are numbered from 1 to 22")
    return numbers


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Run, check, time and show the queries."""
    settings = parse_settings(arguments.conf)
    data = _tables(arguments.data, arguments.scale)
    measured: list[Measured] = []
    with answers.connect(data) as connection, Progress(len(arguments.queries)) as shown:
        texts = answers.queries(connection)
        spark = open_session(arguments.master, settings)
        try:
            for table in TABLES:
                spark.read.parquet(str(data / f"{table}.parquet")).createOrReplaceTempView(table)
            warm_up(spark)
            for number in arguments.queries:
                shown.step(f"query {number}")
                query = measure(spark, connection, number, texts[number], arguments.scale, arguments.repeats)
                spark_seconds, seconds = query.medians
                shown.line(
                    f"query {number:2}: Spark {spark_seconds:6.2f} s, here {seconds:6.2f} s, {query.ratio:5.2f} x,"
                    f" joins {query.joins_here}/{query.joins}" + "".join(f"\n  WRONG: {d}" for d in query.differences)
                )
                # Pages are of no machine's folders.
                measured.append(replace(query, explanation=query.explanation.replace(f"{data}/", "")))
        finally:
            spark.stop()
    print(write(measured, arguments.scale, arguments.master, settings, arguments.out, arguments.name))
    return 1 if any(query.differences for query in measured) else 0


def _tables(data: Path | None, scale: float) -> Path:
    """The folder of the tables, which are made where none was given."""
    if data is None:
        return tpch_directory(scale)
    missing = [f"{table}.parquet" for table in TABLES if not (data / f"{table}.parquet").exists()]
    if missing:
        raise ConfigurationError(f"{data} holds no {', '.join(missing)}")
    return data


if __name__ == "__main__":
    sys.exit(main())
