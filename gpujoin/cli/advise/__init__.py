"""``gpujoin advise``: tells which queries of a program or an event log would run here, and the obstacles of others."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpujoin.cli.checks import import_check, require
from gpujoin.errors import pip_install

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from gpujoin.cli.advise.findings import Advice

_DESCRIPTION = """\
Runs a PySpark program whose queries are planned and not run: no table is read or written. Actions return no rows, so a
program that depends on the rows of its queries may take another way, or stop, which the advice then says. Everything
else that the program does is done. To make a DataFrame Spark reads schemas: the footer of a Parquet file, and with
inferSchema a whole CSV file.

Of a Spark event log, a file or the folder of a rolling log, it says by the plans in the log how long queries took and
what keeps them in Spark, and runs nothing.
"""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the command line."""
    parser = commands.add_parser(
        "advise", help="say which queries of a program would run in gpujoin; no table is read",
        description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="write the advice as JSON")
    parser.add_argument("program", metavar="PROGRAM.py|LOG", help="a PySpark program, or a Spark event log")
    arguments = parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="arguments of the program"
    )
    arguments.required = False  # else the message about a missing program names them too
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the advice on a program, or on an event log; the exit status is 1 if it has no query."""
    # `gpujoin doctor` and `--help` work where PyArrow and PySpark are missing.
    from gpujoin.cli.advise.eventlog import is_event_log, read_event_log

    path = Path(arguments.program)
    if is_event_log(path):
        log = read_event_log(path)
        print(json.dumps(log.to_dict(), indent=1) if arguments.json else log)
        return 0 if log.queries else 1
    require(import_check("pyspark", minimum="4.0", below="5", advice=pip_install("spark")))
    from gpujoin.cli.advise.program import advise

    with contextlib.redirect_stdout(sys.stderr):  # what the program prints is no part of the advice
        advice: Advice = advise(arguments.program, arguments.arguments)
    print(json.dumps(advice.to_dict(), indent=1) if arguments.json else advice)
    return 0 if advice.queries else 1
