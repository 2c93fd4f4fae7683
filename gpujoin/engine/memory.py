"""Watches the memory of this process: the budget of its work, its use, and the release of unused memory.

A worker's *budget* is the lesser of ``spark.gpujoin.memoryBudget`` and what limits of the system leave: the address
space (``RLIMIT_AS``, which PySpark sets from ``spark.executor.pyspark.memory`` divided by the executor's cores) and
the control group. It is for all that the worker holds beyond its *base*, the private memory that the interpreter and
the libraries had before any work. Consumers take shares of it that together stay near it:

====================  =====================================================================================
share                 of what
====================  =====================================================================================
1/32, 64 MiB at most  a piece of a scan or a source, as it is decoded; what filters and projections make of it
1/4, all together     rows of build sides, counted again for putting them together and for search structures
1/6                   states of an aggregation, which merging has there three times
1/16 at most          an output batch; rows that a mapper of an exchange gathers to split them
1/2 at most           output of a morsel on a GPU, in eight batches
====================  =====================================================================================

With a budget of 256 MiB pieces are of 8 MiB; a first build side of 50 MiB stays in memory, a second one of 20 MiB is
divided on disk: of the 64 MiB for all, 14 are left, and 16, a quarter of them, go to whoever comes.

Python and Arrow raise ``MemoryError`` where an allocation fails, but Polars (like most of Rust) aborts the process. So
memory is looked at between pieces, and a :class:`~gpujoin.errors.HostMemoryError` is raised before that happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import resource
import sys
import time
import weakref
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from gpujoin.config import Options
from gpujoin.engine.morsels import AHEAD
from gpujoin.errors import HostMemoryError

_PIECES = 32
_BUILDS = 4
_STATES = 6
_ROUNDS = 16
"""A mapper gathers this part of the budget before it splits rows. With the default budget the fixed limit is lower,
:data:`gpujoin.spark.shuffle.scattering.ROUND_BYTES`."""
_LEAST_SHARE = 4
"""A single build side gets at least this part of the share of all, whatever the others hold."""
_LEAST_PIECE = 1 << 20
"""Least size of a piece: smaller ones cost more in calls than they save."""
_LEAST_BUDGET = 32 << 20
"""Least budget: with less, no piece of ordinary rows can be processed."""
_RESERVE = 64 << 20
"""Address space, or memory of a control group, that must stay free.

It covers the largest allocation between two checks, for pieces of the size that small budgets have, and Spark's own
buffers."""
_FRAGMENTED = 3
"""Bytes of address space for each byte of the budget: allocators leave gaps, and merging holds states twice."""
_RELEASE_SECONDS = 0.5
"""Least seconds between two releases of unused memory; Polars' allocator does it as often."""
_ONE_ARENA = 1
_M_ARENA_MAX = -8
"""Option of ``mallopt``, from glibc's ``malloc.h``."""
_NO_LIMIT = 1 << 60
"""Least value that stands for "no limit": version 1 of control groups reports 2**63 rounded down to a page."""
_PAGE = resource.getpagesize()


@dataclass(frozen=True)
class HostMemory:
    """The shares of a worker's memory that its consumers may take."""

    budget: int
    """Bytes that all work of this process may take beyond its base."""

    @classmethod
    def from_budget(cls, budget: int) -> HostMemory:
        """Determine the budget of this process, by ``spark.gpujoin.memoryBudget`` and the limits of the system.

        Raises ``HostMemoryError`` if those leave too little to work with.
        """
        return cls(min(budget, _left_by_limits()))

    def piece_bytes(self, most: int) -> int:
        """Size of a piece, as decoded."""
        return min(most, max(_LEAST_PIECE, self.budget // _PIECES))

    @property
    def build_bytes(self) -> int:
        """Bytes that the rows of one more build side may take."""
        share = self.tables_bytes
        return max(1, share // _LEAST_SHARE, share - held_bytes())

    @property
    def tables_bytes(self) -> int:
        """Bytes of build sides that may be kept from run to run: the share of all build sides."""
        return self.budget // _BUILDS

    @property
    def round_bytes(self) -> int:
        """Bytes of rows that a mapper gathers before it splits them. Each row is held six times until it is sent."""
        return max(_LEAST_PIECE, self.budget // _ROUNDS)

    @property
    def state_bytes(self) -> int:
        """Bytes that the states of an aggregation may take."""
        return max(1, self.budget // _STATES)

    def bounded(self, options: Options) -> Options:
        """Settings with this budget, and batches small enough for it."""
        threads = options.cpu_threads or 1
        ahead = max(2 * (threads + 1), AHEAD) if threads > 1 else _STATES
        return options.replace(
            memory_budget=self.budget,
            batch_bytes=min(options.batch_bytes, max(_LEAST_PIECE, self.budget // (_BUILDS * ahead))),
        )

    def watch(self) -> None:
        """Check the memory in use; beyond the budget, have allocators release unused memory.

        Raises ``HostMemoryError`` if a limit of the system is near.
        """
        if private_bytes() - base_bytes() > self.budget:
            _release_now_and_then()
        near = _near_a_limit()
        if near is None:
            return
        release()
        near = _near_a_limit()
        if near is not None:
            raise HostMemoryError(near)


# -- what is taken -----------------------------------------------------------------------------------------------

_sizes: dict[int, int] = {}
"""Bytes held, by owner. Finalizers may run within any statement, so each change is one operation of the dictionary."""
_numbers = itertools.count()
_release_times = deque([0.0], maxlen=1)


def hold(owner: object, nbytes: int) -> None:
    """Count memory as held until its owner is garbage-collected."""
    number = next(_numbers)
    _sizes[number] = nbytes
    weakref.finalize(owner, _sizes.pop, number, None).atexit = False


def held_bytes() -> int:
    """Bytes that the build sides of all queries in this process hold."""
    return sum(tuple(_sizes.values()))


def private_bytes() -> int:
    """Resident memory of this process that no file backs; 0 if the system does not report it."""
    pages = _statm()
    return 0 if pages is None else (pages[1] - pages[2]) * _PAGE


@functools.cache
def base_bytes() -> int:
    """Private memory of this process at the first call."""
    return private_bytes()


def _statm() -> list[int] | None:
    """Pages of address space, resident pages, and resident pages of files."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - read between pieces
            return [int(part) for part in file.read().split()[:3]]
    except OSError:
        return None


def release() -> None:
    """Let allocators give unused memory back to the system."""
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _release_now_and_then() -> None:
    now = time.monotonic()
    if now - _release_times[-1] >= _RELEASE_SECONDS:
        _release_times.append(now)
        release()


# -- limits ------------------------------------------------------------------------------------------------------


def prepare_libraries() -> None:
    """Have libraries reserve less address space if it is limited. Must be called before Polars is imported.

    glibc reserves 64 MiB of addresses for each thread, Polars' allocator keeps all that it ever had, and Arrow's
    allocator takes a gigabyte at a time.
    """
    if address_limit() is None:
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ONE_ARENA)
    pa.set_memory_pool(pa.system_memory_pool())
    if "polars" not in sys.modules:
        # Polars appends this to its own.
        os.environ.setdefault("_RJEM_MALLOC_CONF", "retain:false")


def address_limit() -> int | None:
    """Limit of this process's address space, if it has one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def _left_by_limits() -> int:
    left = sys.maxsize
    limit, pages = address_limit(), _statm()
    if limit is not None and pages is not None:
        # Memory that is held already was taken from the same budget.
        in_use = max(0, private_bytes() - base_bytes())
        left = (limit - pages[0] * _PAGE - _RESERVE + in_use) // _FRAGMENTED
        if left < _LEAST_BUDGET:
            least = _RESERVE + _FRAGMENTED * _LEAST_BUDGET
            raise HostMemoryError(
                f"the address space of this worker is limited to {limit >> 20} MiB, of which it and its libraries take"
                f" {pages[0] * _PAGE >> 20} MiB; {least >> 20} MiB more are needed. Raise"
                " spark.executor.pyspark.memory, which is divided by the executor's cores"
            )
    group = _control_group()
    if group is not None:
        # Half of the free memory: workers that start later get half of the rest.
        left = min(left, max(_LEAST_BUDGET, (group.limit - group.usage) // 2))
    return left


def _near_a_limit() -> str | None:
    """Describe the limit that is near, if one is."""
    limit, pages = address_limit(), _statm()
    if limit is not None and pages is not None and limit - pages[0] * _PAGE < _RESERVE:
        return (
            f"the address space of this worker is limited to {limit >> 20} MiB, and {pages[0] * _PAGE >> 20} MiB are"
            " taken. Raise spark.executor.pyspark.memory, which is divided by the executor's cores, or lower"
            " spark.gpujoin.memoryBudget"
        )
    group = _control_group()
    if group is not None and group.limit - group.usage < min(_RESERVE, group.limit // 32):
        return (
            f"of {group.limit >> 20} MiB that this container may take, {group.usage >> 20} MiB are taken. Raise"
            " spark.executor.memoryOverhead, or lower spark.gpujoin.memoryBudget or spark.executor.cores"
        )
    return None


@dataclass(frozen=True)
class _ControlGroup:
    """Limit and usage of a control group, in bytes. Pages of files do not count, since the kernel can drop them."""

    limit: int
    usage: int

    @classmethod
    def read(cls, folder: Path) -> _ControlGroup | None:
        """Read a control group's folder; ``None`` for a group without limit."""
        for most, current in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),  # version 1
        ):
            try:
                limit = int((folder / most).read_text())
                usage = int((folder / current).read_text())
                lines = (folder / "memory.stat").read_text().splitlines()
            except (OSError, ValueError):  # no such file, or "max"
                continue
            if limit >= _NO_LIMIT:
                return None
            facts = dict(line.split() for line in lines)
            files = int(facts.get("inactive_file", 0)) + int(facts.get("active_file", 0))
            return cls(limit, max(0, usage - files))
        return None


def _control_group() -> _ControlGroup | None:
    """The control group that leaves the least, among this process's own and its ancestors."""
    groups = [group for folder in _limited_folders() if (group := _ControlGroup.read(folder)) is not None]
    return min(groups, key=lambda group: group.limit - group.usage, default=None)


@functools.cache
def _limited_folders(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> tuple[Path, ...]:
    """Folders of the control groups that limit this process's memory."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return ()
    folders: list[Path] = []
    for _, controllers, path in lines:
        if controllers not in ("", "memory"):
            continue
        top = root / controllers
        within = top / path.lstrip("/")
        folders += [folder for folder in (within, *within.parents) if folder.is_relative_to(top)]
    return tuple(folder for folder in folders if _ControlGroup.read(folder) is not None)
