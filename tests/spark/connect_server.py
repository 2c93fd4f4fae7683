"""Run by test_connect.py: ``gpujoin connect-server``, whose stages fail or hang while a file says so.

The first argument is the file, the others are those of the command.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpujoin.spark.worker.stage import RunStage

FAULT = "GPUJOIN_TESTS_FAULT"
KILL, HANG = "kill", "hang"
HANGS = 30.0
"""Seconds, far more than an interrupted operation may take to end."""


class FaultyStage(RunStage):
    """A stage whose worker is killed, or sleeps, if the file says so."""

    def run(self, batches: Any, task: Any) -> Iterator[pa.RecordBatch]:
        """Compute what the stage does."""
        file = Path(os.environ[FAULT])
        fault = file.read_text() if file.exists() else ""
        if fault == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == HANG:
            file.with_suffix(".begun").touch()
            time.sleep(HANGS)
        yield from super().run(batches, task)


def main() -> None:
    from gpujoin.cli.main import main as run_command
    from gpujoin.spark.query import running, serving
    from tests.spark import connect_server

    os.environ[FAULT] = sys.argv[1]
    vars(running)["RunStage"] = connect_server.FaultyStage  # workers import it by this name
    serving._MOST_BYTES = 1 << 16  # rows of some queries are more
    sys.exit(run_command(["connect-server", *sys.argv[2:]]))


if __name__ == "__main__":
    main()
