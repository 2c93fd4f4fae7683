"""Which stages may have small partitions of the rows that they take through exchanges coalesced.

The sizes of partitions are known once the stages before have run. Neighbours that are small together are then read by
one task, as if they were one partition::

    partition           0      1      2      3
    bytes             5 MB   1 MB   2 MB   9 MB
    tasks             0, 1 and 2: 8 MB     3

Rows with equal keys stay together. Of rows that every partition has, a task reads those of its first partition alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpujoin.model.stages import NullKeys, Stage

LEAST_PARTITIONS = 4
"""Fewer are left as they are: to wait for the sizes takes a job for each exchange, as long as a task or two."""


@dataclass(frozen=True)
class Coalescing:
    """By which sizes partitions are coalesced."""

    tasks: int
    """Tasks that there should be, as long as each has enough to do."""
    least_bytes: int = 1 << 20
    """Bytes, as Spark compresses them, that are worth a task (docs/performance.md, "Exchanges"); Spark's own
    ``spark.sql.adaptive.coalescePartitions.minPartitionSize``."""
    most_bytes: int = 32 << 20
    """Most bytes of partitions that are coalesced: about what partitions are planned for, compressed."""


def may_coalesce(stage: Stage) -> bool:
    """Tell whether tasks of a stage may read several partitions as one.

    Not where rows with null keys, that may match anything, are in several partitions.
    """
    return (
        stage.partitions >= LEAST_PARTITIONS
        and not stage.branches
        and bool(stage.inputs)
        and not any(exchange.last_complete or exchange.nulls is NullKeys.EVERYWHERE for exchange in stage.inputs)
    )
