"""Stages that fail or hang in a worker of Spark; small, since workers import this module."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpujoin.model.relations import Scan
from gpujoin.model.stages import Share
from gpujoin.spark.shuffle.packets import share_and_blobs, share_packets
from gpujoin.spark.worker.stage import RunStage
from tests.spark.cluster_app import fail, kill_executor, once

HANGS = 30.0
"""Seconds, far more than a cancelled query may take to end."""


class KilledStage(RunStage):
    """An island's stage whose worker is killed as the system's out-of-memory killer does, rows given out or not."""

    def run(self, batches: Any, task: Any) -> Iterator[pa.RecordBatch]:
        yield from super().run(batches, task)
        os.kill(os.getpid(), signal.SIGKILL)


class AbortedStage(RunStage):
    """An island's stage in which a native library calls ``abort``."""

    def run(self, batches: Any, task: Any) -> Iterator[pa.RecordBatch]:
        yield from super().run(batches, task)
        os.kill(os.getpid(), signal.SIGABRT)


class CrashedStage(RunStage):
    """An island's stage that dies before it has read anything."""

    def run(self, batches: Any, task: Any) -> Iterator[pa.RecordBatch]:
        os.kill(os.getpid(), signal.SIGSEGV)
        yield from super().run(batches, task)


class LostExecutorStage(RunStage):
    """An island's stage whose executor is killed with it: the parent of the daemon that forked this worker."""

    def run(self, batches: Any, task: Any) -> Iterator[pa.RecordBatch]:
        # After the name in parentheses: state, parent.
        daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
        os.kill(int(daemon[1]), signal.SIGKILL)
        yield from super().run(batches, task)


class DamagedStage(RunStage):
    """An island's stage that takes packets of which the disk has changed a bit."""

    def run(self, batches: Any, task: Any) -> Iterator[pa.RecordBatch]:
        """Compute what the stage does."""
        yield from super().run(map(_damaged, batches) if self.forms else batches, task)


def _damaged(packet: bytes) -> bytes:
    middle = len(packet) // 2
    return packet[:middle] + bytes([packet[middle] ^ 1]) + packet[middle + 1 :]


def is_any(_: RunStage) -> bool:
    """Tell that a stage is a stage."""
    return True


def drops_rows_by_keys(stage: RunStage) -> bool:
    """Tell whether a stage reads files and takes rows of other stages, such as keys."""
    return bool(stage.forms) and any(isinstance(node, Scan) for node in stage.tree.walk())


def joins_what_proved_small(stage: RunStage) -> bool:
    """Tell whether a stage runs in the place of another one, whose smaller input is sent to every task."""
    return stage.remark is not None


def is_last_of_several(stage: RunStage) -> bool:
    """Tell whether a stage takes rows through exchanges and gives Spark the result."""
    return bool(stage.forms) and stage.outlet is None


@dataclass(frozen=True)
class DisturbedStage(RunStage):
    """Fails in the first task of a query that has rows, and kills the executor of one that takes exchanged rows.

    So what others have yet to take of that executor's is lost.
    """

    flags: str = ""
    """Folder that all workers see."""
    query: str = ""
    where: Callable[[RunStage], bool] = is_any
    """Which stages are disturbed."""

    def run(self, batches: Any, task: Any) -> Iterator[pa.RecordBatch]:
        """Compute what the stage does, with a fault after the first batch."""
        disturbed = self.where(self)
        for batch in super().run(batches, task):
            yield batch
            if not disturbed:
                continue
            if once(self.flags, f"fail-{self.query}"):
                fail()
            if self.forms and once(self.flags, f"kill-{self.query}"):
                kill_executor()


@dataclass(frozen=True)
class DisturbedShare(DisturbedStage):
    """Does the same in tasks that compute shares of heavy partitions alone."""

    def run(self, batches: Any, task: Any) -> Iterator[pa.RecordBatch]:
        """Compute what the stage does, with a fault after the first batch of a share."""
        share = Share.WHOLE
        if self.split is not None:
            share, batches = share_and_blobs(batches)
        if share is Share.WHOLE:
            yield from RunStage.run(self, batches, task)
        else:
            packet = share_packets()[share].encode()
            yield from super().run(itertools.chain((packet,), batches), task)


@dataclass(frozen=True)
class HangingStage(RunStage):
    """An island's stage that hangs; it makes a file first, so that a test knows."""

    flag: str = ""

    def run(self, batches: Any, task: Any) -> Iterator[pa.RecordBatch]:
        hanging(self.flag)(None)
        yield from super().run(batches, task)


def hanging(flag: str) -> Callable[[Any], Any]:
    """Make a function that makes a file, hangs, and returns what it is given."""

    def wait(value: Any) -> Any:
        Path(flag).touch()
        time.sleep(HANGS)
        return value

    return wait
