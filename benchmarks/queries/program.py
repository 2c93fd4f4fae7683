"""The program that runs the queries of a suite by Spark itself and accelerated, taking turns in one session."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.queries.measure import DEFAULT_REPEATS, Measured, measure, open_session, warm_up
from benchmarks.queries.report import write
from benchmarks.queries.sources import Source
from benchmarks.queries.suite import Suite
from gpujoin.cli.session import key_value
from gpujoin.errors import ConfigurationError, GpuJoinError


def main(suite: Suite, description: str, argv: Sequence[str] | None = None) -> int:
    """Run the program of a suite.

    Returns
    -------
    int
        0 if every answer is right, 1 if not.
    """
    arguments = _parser(suite, description).parse_args(argv)
    try:
        return _run(suite, arguments)
    except GpuJoinError as problem:
        print(f"benchmarks.{suite.name}: {problem}", file=sys.stderr)
        return 1


def _parser(suite: Suite, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{suite.name}", description=description)
    parser.add_argument(
        "--sf", type=float, default=1.0, metavar="SF", dest="scale", help=f"{suite.title} scale factor (default: 1)"
    )

    def numbers(text: str) -> tuple[int, ...]:
        return _numbers(suite, text)

    parser.add_argument(
        "--queries",
        type=numbers,
        default=suite.numbers,
        metavar="1,3,5",
        help=f"only these (default: all {suite.queries})",
    )
    parser.add_argument(
        "--repeats",
        type=_count,
        default=DEFAULT_REPEATS,
        help="timed runs of each query and way, after those that are checked; 0: the checked ones are timed",
    )
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="tables that are there already, as <table>.parquet")
    parser.add_argument(
        "--source",
        type=Source,
        choices=list(Source),
        default=Source.PARQUET,
        metavar="|".join(source.value for source in Source),
        help="what Spark reads the tables from (default: parquet)",
    )
    parser.add_argument("--master", default="local[*]", help="Spark master (default: local[*])")
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        type=key_value,
        metavar="KEY=VALUE",
        help="a Spark setting; may be given again and again",
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to write NAME.json, .md, .png and .svg")
    parser.add_argument("--name", default=suite.name, help=f"name of those files (default: {suite.name})")
    return parser


def _numbers(suite: Suite, text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 1,3,5") from None
    if not set(numbers) <= set(suite.numbers):
        raise argparse.ArgumentTypeError(f"{text!r}: queries are numbered from 1 to {suite.queries}")
    return numbers


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return int(text)


def _run(suite: Suite, arguments: argparse.Namespace) -> int:
    """Run, check, time and show the queries."""
    settings = dict(arguments.conf)
    data = _data(suite, arguments.data, arguments.scale)
    measured: list[Measured] = []
    with suite.connect(data) as connection:
        texts = suite.texts(connection)
        spark = open_session(arguments.master, arguments.source.settings | settings)
        try:
            warm_up(spark, list(suite.register(spark, data, arguments.source).values()))
            for number in arguments.queries:
                query = measure(
                    spark,
                    suite,
                    None if arguments.source.lacks_rows else connection,
                    number,
                    texts[number],
                    arguments.scale,
                    arguments.repeats,
                )
                spark_seconds, seconds = query.medians
                print(
                    f"query {number:2}: Spark {spark_seconds:6.2f} s, here {seconds:6.2f} s, {query.ratio:5.2f} x"
                    f" (of the processor {query.processor_ratio:5.2f} x),"
                    f" joins {query.here.joins}/{query.all.joins}"
                    f", aggregations {query.here.aggregations}/{query.all.aggregations}"
                    + "".join(f"\n  WRONG: {d}" for d in query.differences),
                    file=sys.stderr,
                    flush=True,
                )
                # Pages are of no machine's folders.
                measured.append(replace(query, explanation=query.explanation.replace(f"{data}/", "")))
        finally:
            spark.stop()
    print(
        write(
            suite,
            measured,
            arguments.scale,
            arguments.source,
            arguments.master,
            settings,
            arguments.out,
            arguments.name,
        )
    )
    return 1 if any(query.differences for query in measured) else 0


def _data(suite: Suite, data: Path | None, scale: float) -> Path:
    """The folder of the tables, which are made where none was given."""
    if data is None:
        return suite.at_scale(scale)
    missing = [f"{table}.parquet" for table in suite.tables if not (data / f"{table}.parquet").exists()]
    if missing:
        raise ConfigurationError(f"{data} holds no {', '.join(missing)}")
    return data
