"""Whether an island is worth taking from Spark, and in how many tasks it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpujoin.config import BackendChoice, Options, Strategy
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.relations import FileSlice

if TYPE_CHECKING:
    from gpujoin.spark.query.island import Island

SMALLEST_BYTES = 1 << 20
"""Files of fewer bytes together are left to Spark: there is nothing to gain."""


@dataclass(frozen=True)
class IslandRun:
    """How an island runs.

    Attributes
    ----------
    slices : tuple of mappings
        For each task what it reads, by the index of the scan.
    threads : int
        Threads of each task.
    notes : tuple of str
        What decided.
    """

    slices: tuple[Mapping[int, tuple[FileSlice, ...]], ...]
    threads: int
    notes: tuple[str, ...]


def worth(island: Island, options: Options) -> Reason | None:
    """Tell why an island is left to Spark, if it is."""
    if options.backend is BackendChoice.GPU:
        return Reason(
            ReasonKind.UNAVAILABLE, "backend", "islands run on the CPU, and the GPU was asked for",
            "spark.gpujoin.backend",
        )  # fmt: skip
    if options.strategy is not Strategy.AUTO or options.backend is not BackendChoice.AUTO:
        return None
    if island.nbytes < SMALLEST_BYTES:
        why = (
            f"the files have {island.nbytes} bytes, fewer than {SMALLEST_BYTES}: Spark needs little for them"
        )
        return Reason(ReasonKind.SLOWER, "size", why, "spark.gpujoin.strategy or spark.gpujoin.backend")
    return None


def arrange(island: Island, cores: int, *, local: bool) -> IslandRun:
    """Decide tasks and threads.

    Parameters
    ----------
    island : Island
        The island.
    cores : int
        Tasks that Spark runs at once.
    local : bool
        Whether all of them are threads of one process on this machine.
    """
    whole = {index: source.files.files for index, source in island.sources.items()}
    threads = cores if local else 1
    return IslandRun((whole,), threads, ("one task reads everything, so nothing is exchanged",))
