"""The processes below one, by /proc: what they are, what they hold, and how to end them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Role(Enum):
    """What a process of Spark is."""

    JVM = "JVM"
    """A driver's or an executor's."""
    EXECUTOR = "executor"
    DAEMON = "daemon"
    """Forks the workers."""
    WORKER = "worker"
    """Runs Python for one task at a time."""
    OTHER = "other"


@dataclass(frozen=True)
class Process:
    """A process as it was when looked at.

    Attributes
    ----------
    pid, parent : int
        Its number, and its parent's.
    command : str
        Its command line.
    started : int
        When, in ticks since the machine started: with the number it names a process for good.
    """

    pid: int
    parent: int
    command: str
    started: int

    @property
    def resident(self) -> int:
        """Bytes in memory; 0 if it is gone."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
        except (OSError, IndexError):
            return 0

    @property
    def files(self) -> int:
        """How many files are open."""
        try:
            return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())
        except OSError:
            return 0

    @property
    def threads(self) -> int:
        """How many threads it has."""
        try:
            return sum(1 for _ in Path(f"/proc/{self.pid}/task").iterdir())
        except OSError:
            return 0

    @property
    def alive(self) -> bool:
        """Whether it runs still, and is no zombie."""
        status = _status(self.pid)
        return status is not None and status.started == self.started

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it is gone."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def this_process() -> Process:
    """The process that asks."""
    process = _status(os.getpid())
    assert process is not None
    return process


def _status(pid: int) -> Process | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
    return None if fields[0] in "ZX" else Process(pid, int(fields[1]), command, int(fields[19]))


def below(roots: Collection[int]) -> list[Process]:
    """All processes that descend from some, these left out."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    seen = [process for process in map(_status, numbers) if process is not None]
    children: dict[int, list[Process]] = {}
    for process in seen:
        children.setdefault(process.parent, []).append(process)
    descendants: list[Process] = []
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), []):
            descendants.append(child)
            waiting.append(child.pid)
    return descendants


def role_of(process: Process, everybody: Collection[Process]) -> Role:
    """What a process of Spark is."""
    if "CoarseGrainedExecutorBackend" in process.command:
        return Role.EXECUTOR
    if "java" in process.command.split(" ")[0]:
        return Role.JVM
    if "daemon" in process.command:
        daemons = {other.pid for other in everybody if "daemon" in other.command}
        return Role.WORKER if process.parent in daemons else Role.DAEMON
    return Role.OTHER


def with_role(roots: Collection[int], role: Role) -> list[Process]:
    """Descendants that have a role."""
    everybody = below(roots)
    return [process for process in everybody if role_of(process, everybody) is role]


def all_gone(processes: Collection[Process], seconds: float) -> list[Process]:
    """Wait for processes to end; those that did not."""
    deadline = time.monotonic() + seconds
    left = [process for process in processes if process.alive]
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left = [process for process in left if process.alive]
    return left
