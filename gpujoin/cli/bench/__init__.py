"""``gpujoin bench``: whole queries by Spark itself and accelerated, in alternation, with checked answers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``bench`` to the command line.

    Parameters
    ----------
    commands : argparse._SubParsersAction
        The subcommands of ``gpujoin``.
    """
    parser = commands.add_parser(
        "bench",
        help="time whole queries here and in Spark",
        description="Run the TPC-H queries by Spark itself and accelerated, taking turns in one session. Every answer "
        "is compared with Spark's, with DuckDB's and, at scale 1, with the published one. Exit status 1 if any "
        "differs.",
    )
    parser.add_argument("suite", choices=("tpch",), help="which queries")
    parser.add_argument(
        "--sf", type=float, default=1.0, metavar="SF", dest="scale", help="TPC-H scale factor (default: 1)"
    )
    parser.add_argument(
        "--queries", type=_numbers, default=(), metavar="1,3,5", help="only these (default: all 22)"
    )
    parser.add_argument(
        "--repeats",
        type=_count,
        default=3,
        help="timed runs of each query and way, after those that are checked; 0: the checked ones are timed",
    )
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="tables that are there already, as <table>.parquet"
    )
    parser.add_argument("--master", default="local[*]", help="Spark master (default: local[*])")
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a Spark setting; may be given again and again",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="where to write tpch.json, tpch.md, tpch.png and tpch.svg"
    )
    parser.add_argument("--name", default="tpch", help="name of those files (default: tpch)")
    parser.set_defaults(run=run)


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
    """Run the benchmark; PySpark and DuckDB are imported only here.

    Parameters
    ----------
    arguments : argparse.Namespace
        As :func:`add_parser` declares them.

    Returns
    -------
    int
        0 if every answer is right, 1 if not.
    """
    from gpujoin.cli.bench.runner import Request, run_tpch

    return run_tpch(
        Request(
            scale=arguments.scale,
            queries=arguments.queries or tuple(range(1, 23)),
            repeats=arguments.repeats,
            master=arguments.master,
            conf=tuple(arguments.conf),
            out=arguments.out,
            name=arguments.name,
            data=arguments.data,
        )
    )
