"""Stages that fail or hang in a worker of Spark; small, since workers import this module."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpujoin.spark.query.running import RunStage

HANGS = 30.0
"""Seconds, far more than a cancelled query may take to end."""


class StageKilledAtItsEnd(RunStage):
    """An island's stage whose worker is killed, as the system's out-of-memory killer does, when its rows are out."""

    def run(self, batches: Any, task: Any) -> Iterator[pa.RecordBatch]:
        yield from super().run(batches, task)
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class StageHangingAtItsStart(RunStage):
    """An island's stage that hangs; it makes a file first, so that a test knows."""

    flag: str = ""

    def run(self, batches: Any, task: Any) -> Iterator[pa.RecordBatch]:
        Path(self.flag).touch()
        time.sleep(HANGS)
        yield from super().run(batches, task)
