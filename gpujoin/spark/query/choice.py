"""Whether an island is worth taking from Spark, and in how many tasks it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpujoin.config import BackendChoice, Options, Strategy
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.relations import Expand, FileSlice, Filter, Join, PartialAggregate, Project, Relation, Scan
from gpujoin.plan.explain import show_bytes
from gpujoin.plan.splits import plan_splits

if TYPE_CHECKING:
    from gpujoin.spark.query.fragments import ScanSource
    from gpujoin.spark.query.island import Island

SMALLEST_BYTES = 1 << 20
"""Compressed bytes below which there is nothing to gain: a query that Spark answers within its own fixed cost."""

REPEATED_BYTES = 256 << 20
"""Most compressed bytes that every task may read again, beside its share of the divided input."""

_DIVIDES = {
    Side.LEFT: frozenset({
        JoinType.INNER, JoinType.CROSS, JoinType.LEFT, JoinType.LEFT_SEMI, JoinType.LEFT_ANTI, JoinType.EXISTENCE,
        JoinType.NULL_AWARE_ANTI,
    }),
    Side.RIGHT: frozenset({JoinType.INNER, JoinType.CROSS, JoinType.RIGHT}),
}  # fmt: skip
"""Joins whose result is the union of their results over parts of one side."""


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
        why = f"{show_bytes(island.nbytes)} are to be read, less than {show_bytes(SMALLEST_BYTES)}: Spark needs little"
        return Reason(ReasonKind.SLOWER, "size", why, "spark.gpujoin.strategy or spark.gpujoin.backend")
    return None


def arrange(island: Island, options: Options, cores: int, *, local: bool) -> IslandRun | Reason:
    """Decide tasks and threads.

    Parameters
    ----------
    island : Island
        The island.
    options : Options
        Settings.
    cores : int
        Tasks that Spark runs at once.
    local : bool
        Whether all of them are threads of one process on this machine.
    """
    whole = {index: source.files.files for index, source in island.sources.items()}
    one = IslandRun((whole,), cores if local else 1, ("one task reads everything: nothing is exchanged",))
    if local and island.nbytes <= options.scan_one_task_bytes:
        return one
    divided = _divided(island, whole, options, cores)
    if divided is not None:
        return divided
    if local or island.nbytes <= options.scan_task_bytes:
        return one
    return Reason(
        ReasonKind.SLOWER, "size",
        f"{show_bytes(island.nbytes)} are to be read, and no input can be divided among tasks with little to repeat",
        "spark.gpujoin.scan.taskBytes",
    )  # fmt: skip


def _divided(
    island: Island, whole: Mapping[int, tuple[FileSlice, ...]], options: Options, cores: int
) -> IslandRun | None:
    """Divide the largest input that may be divided; every task reads the others whole."""
    read = Counter(one.index for one in island.relation.walk() if isinstance(one, Scan))
    candidates = {index for index in divisible(island.relation) if read[index] == 1}
    if not candidates:
        return None
    chosen = max(candidates, key=lambda index: island.sources[index].nbytes)
    source = island.sources[chosen]
    repeated = island.nbytes - source.nbytes
    parts = plan_splits(source.footers, cores, options.scan_task_bytes)
    if len(parts) < 2 or repeated > REPEATED_BYTES or repeated * (len(parts) - 1) > source.nbytes * cores:
        return None
    note = f"{_name(source)} is divided among tasks, {show_bytes(repeated)} are read by every task"
    return IslandRun(tuple({**whole, chosen: part} for part in parts), 1, (note,))


def divisible(relation: Relation) -> frozenset[int]:
    """Give the scans that may be divided: the relation's result is that over the parts, put together.

    A partial aggregation counts, since its results are merged; a group may come out of several parts.
    """
    match relation:
        case Scan():
            return frozenset({relation.index})
        case Filter() | Project() | Expand():
            return divisible(relation.child)
        case PartialAggregate(once=False):
            return divisible(relation.child)
        case Join():
            sides = [side for side in Side if relation.spec.join_type in _DIVIDES[side]]
            return frozenset().union(*(divisible(relation.side(side)) for side in sides))
        case _:
            return frozenset()


def _name(source: ScanSource) -> str:
    path = source.files.paths[0] if source.files.paths else "an empty table"
    return path if len(source.files.paths) == 1 else f"{path} …"
