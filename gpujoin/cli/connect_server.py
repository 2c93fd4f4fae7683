"""``gpujoin connect-server``: a Spark Connect server whose clients' queries are planned here."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING

from gpujoin.cli.checks import import_check, require
from gpujoin.cli.checks.software import default_settings, java
from gpujoin.cli.session import key_value, start_session
from gpujoin.errors import pip_install

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_MASTER = "spark.master"
_PLUGINS = "spark.plugins"
_ENABLED = "spark.gpujoin.enabled"
_ADDRESS, _PORT = "spark.connect.grpc.binding.address", "spark.connect.grpc.binding.port"
_TOKEN, _TOKEN_VARIABLE = "spark.connect.authenticate.token", "SPARK_CONNECT_AUTHENTICATE_TOKEN"
_LOOPBACK = ("127.", "localhost", "::1", "[::1]")
_LOOK_SECONDS = 2.0
"""After so many seconds it is looked again whether the application still runs."""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to those of a command line."""
    parser = commands.add_parser(
        "connect-server", help="serve Spark Connect clients, with their queries planned by gpujoin",
        description="Start Spark with a Spark Connect server in this process, enable gpujoin in the sessions of all "
        "clients, print the address, and serve until interrupted or terminated. Settings come from Spark's own "
        f"configuration too. Clients need a token where {_TOKEN_VARIABLE} or {_TOKEN} is set.",
    )  # fmt: skip
    parser.add_argument("--host", help=f"address to listen at ({_ADDRESS}; Spark's default: every one of this machine)")
    parser.add_argument("--port", type=_port, help=f"port; 0: any free one ({_PORT}; Spark's default: 15002)")
    parser.add_argument("--master", help="Spark master (default: that of Spark's configuration, or local[*])")
    parser.add_argument(
        "--conf", action="append", default=[], type=key_value, metavar="KEY=VALUE",
        help="a Spark setting; may be given again and again",
    )  # fmt: skip
    parser.set_defaults(run=run)


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text} is no port between 0 and 65535")
    return port


def run(arguments: argparse.Namespace) -> int:
    """Serve, and give the exit status: 1 if the application ended by itself. PySpark is imported only here."""
    require(import_check("pyspark", minimum="4.0", below="5", advice=pip_install("spark")), java())
    import gpujoin
    from gpujoin.spark.compat import is_stopped
    from gpujoin.spark.jvm.gateway import connect_address
    from gpujoin.spark.settings import CONNECT_PLUGIN

    settings = dict(arguments.conf)
    plugins = [name.strip() for name in settings.get(_PLUGINS, "").split(",") if name.strip()]
    settings[_PLUGINS] = ",".join(dict.fromkeys([*plugins, CONNECT_PLUGIN]))
    settings.setdefault(_ENABLED, "true")
    for key, value in ((_ADDRESS, arguments.host), (_PORT, arguments.port)):
        if value is not None:
            settings[key] = str(value)
    if (arguments.master or settings.get(_MASTER) or default_settings()[1].get(_MASTER, "local")).startswith("local"):
        # Without it, workers run the first python3 on PATH, which need not be this environment's.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = start_session("gpujoin connect-server", arguments.master, settings)
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        ended.set()

    try:
        gpujoin.enable(spark)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)
        context = spark.sparkContext
        host, port = connect_address(spark)
        bound = context.getConf().get(_ADDRESS)
        has_token = bool(context.getConf().get(_TOKEN) or os.environ.get(_TOKEN_VARIABLE))
        if not has_token and not (bound or "").startswith(_LOOPBACK):
            print(
                f"gpujoin: without a token ({_TOKEN_VARIABLE}) whoever reaches port {port} runs programs as this user",
                file=sys.stderr, flush=True,
            )  # fmt: skip
        print(f"Spark {spark.version} serves clients at sc://{bound or host}:{port}", flush=True)
        while not ended.wait(_LOOK_SECONDS):
            if is_stopped(spark):
                print("gpujoin: the application has ended", file=sys.stderr)
                return 1
    finally:
        spark.stop()
    return 0
