"""The shell around the subcommands: arguments in, exit status out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from gpujoin._version import __version__
from gpujoin.cli import advise, connect_server, demo, doctor
from gpujoin.errors import GpuJoinError, did_you_mean


def build_parser() -> argparse.ArgumentParser:
    """Give the parser of the whole command line.

    Its result carries ``run``, from the arguments to the exit status, if there is a command, and ``command``, the
    parser of that. ``commands`` are the names of all.
    """
    parser = argparse.ArgumentParser(
        prog="gpujoin", description="Makes joins and aggregations of PySpark queries faster.",
        epilog="`python -m gpujoin app.py` runs a PySpark program with gpujoin enabled in its sessions.",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"gpujoin {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    parser.set_defaults(command=parser)
    advise.add_parser(commands)
    connect_server.add_parser(commands)
    demo.add_parser(commands)
    doctor.add_parser(commands)
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(run=_print_version)
    for command in commands.choices.values():
        command.set_defaults(command=command)
    parser.set_defaults(commands=tuple(commands.choices))
    return parser


def _print_version(arguments: argparse.Namespace) -> int:  # noqa: ARG001
    print(__version__)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; the entry point of ``gpujoin``.

    The exit status is 0 for success, 1 for failure, 2 for wrong usage, 130 when interrupted.
    """
    parser, words = build_parser(), sys.argv[1:] if argv is None else list(argv)
    commands = parser.get_default("commands")
    if words and not words[0].startswith("-") and words[0] not in commands:
        parser.error(f"unknown command {words[0]!r}.{did_you_mean(words[0], commands)}")
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        arguments.command.error(f"unrecognized arguments: {' '.join(unknown)}")
    if "run" not in arguments:
        arguments.command.print_help(sys.stderr)
        return 2
    try:
        return int(arguments.run(arguments))
    except GpuJoinError as problem:
        print(f"gpujoin: {problem}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of a pipe such as `| head` has gone; nothing is left to say.
        sys.stderr.close()
        return 1
    except OSError as problem:
        print(f"gpujoin: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("gpujoin: interrupted", file=sys.stderr)
        return 130
