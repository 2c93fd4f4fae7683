"""``gpujoin demo``: joins over TPC-H data, each checked against Spark's own join and against DuckDB, and a stream."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``demo`` to the command line."""
    parser = commands.add_parser(
        "demo",
        help="run joins, queries and a stream over TPC-H data and check every result",
        description="Run joins of every type over TPC-H data through gpu_join, compare each result, row for row, with "
        "Spark's own join and with DuckDB, and print a table. Whole queries and a join of two streams, compared with "
        "Spark's micro-batch by micro-batch, follow. Exit status 0 if all are equal, 1 if not.",
    )
    parser.add_argument("--sf", type=float, default=0.1, metavar="SF", help="TPC-H scale factor (default: 0.1)")
    parser.add_argument("--backend", choices=("auto", "cpu", "gpu"), default="auto", help="where to join")
    parser.add_argument("--master", default="local[*]", help="Spark master (default: local[*])")
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a Spark setting; may be given again and again",
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="only joins whose title or type holds this text")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the demo, and give the exit status: 1 if a result differs. PySpark and DuckDB are imported only here."""
    from gpujoin.cli.demo.runner import run_demo

    return run_demo(
        scale=arguments.sf,
        backend=arguments.backend,
        master=arguments.master,
        conf=arguments.conf,
        only=arguments.only,
    )
