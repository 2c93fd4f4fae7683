"""What a process and all below it take: CPU time, which other work disturbs less than wall time, and memory."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """User and system time so far of this process, its living descendants, and the dead ones they have reaped."""
    return sum(_family(os.getpid()).values())


def cpu_seconds_by_process() -> dict[int, float]:
    """User and system time of this process and of each descendant that lives, without that of dead children."""
    return _family(os.getpid(), reaped=False)


def descendants(process: int) -> list[int]:
    """A process and all that live below it."""
    return list(_family(process))


def proportional_bytes(process: int) -> int:
    """Memory of a process; of what it shares with others its part (PSS). 0: it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def is_java(process: int) -> bool:
    """Whether a process is a JVM."""
    try:
        return Path(f"/proc/{process}/comm").read_text().strip() == "java"
    except OSError:
        return False


def _family(first: int, *, reaped: bool = True) -> dict[int, float]:
    """Processor time by process."""
    children: dict[int, list[int]] = defaultdict(list)
    times: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:  # it ended meanwhile
            continue
        pid = int(entry.name)
        children[int(fields[1])].append(pid)
        times[pid] = sum(int(value) for value in fields[11 : 15 if reaped else 13]) * _TICK
    family, pending = {}, [first]
    while pending:
        process = pending.pop()
        family[process] = times.get(process, 0.0)
        pending += children[process]
    return family
