"""Stages: a relation cut into parts that run one after the other, with exchanges between them.

A *stage* is a tree that several tasks run, each over its share of the rows. Either the files of one scan are divided
among the tasks (:class:`Branch`), or rows come from earlier stages through exchanges, which send rows with equal keys
to one task or each row to any task, or the tasks are those in which Spark computes some rows (:class:`SparkInput`).
Whatever else the tree reads, every task reads whole: files, and the rows of replicated exchanges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import pyarrow as pa

from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relation import Relation


class Distribution(Enum):
    """How the rows of a join's inputs are brought together."""

    ANY = "any"
    """As costs the least."""
    REPLICATED = "replicated"
    """Every task reads or is sent one side whole, and has a share of the other."""
    LEFT_REPLICATED = "left replicated"
    RIGHT_REPLICATED = "right replicated"
    PARTITIONED = "partitioned"
    """Both sides are exchanged by key, but for a side that is partitioned by it already."""

    def replicates(self, side: Side) -> bool:
        """Whether every task may have a side whole."""
        match self:
            case Distribution.LEFT_REPLICATED:
                return side is Side.LEFT
            case Distribution.RIGHT_REPLICATED:
                return side is Side.RIGHT
            case _:
                return self is not Distribution.PARTITIONED

    @property
    def partitions(self) -> bool:
        """Whether both sides may be exchanged by key."""
        return self in (Distribution.ANY, Distribution.PARTITIONED)


class NullKeys(Enum):
    """What becomes of rows that have a null key."""

    DROP = "drop"
    """They match nothing, and cannot reach the result."""
    SPREAD = "spread"
    """They match nothing, but are needed; any partition will do."""
    LAST = "last"
    """They may match any row of the other side, all of which the last partition has."""
    EVERYWHERE = "everywhere"
    """They may match any row of the other side: every partition has them."""


class DeterminismLevel(Enum):
    """What a task is known to read when Spark runs it again, where what both runs wrote may be mixed."""

    INDETERMINATE = "indeterminate"
    """Nothing is known."""
    UNORDERED = "unordered"
    """The same rows in any order, as after a shuffle."""
    DETERMINATE = "determinate"
    """The same rows in the same order, as from files."""


class Share(Enum):
    """What a task computes of its partition: several tasks compute a heavy one."""

    WHOLE = "all rows of a partition"
    LEFT = "a share of the left rows of a heavy partition"
    RIGHT = "a share of the right rows of a heavy partition"
    BOTH = "shares of the left and the right rows of a heavy partition"
    UNMATCHED_LEFT = "the left rows of a heavy partition that have no match"
    UNMATCHED_RIGHT = "the right rows of a heavy partition that have no match"


def null_keys_of(join_type: JoinType, side: Side) -> NullKeys:
    """Say what becomes of the rows of one side of a join that have a null key."""
    if join_type.null_aware:
        return NullKeys.LAST if side is Side.LEFT else NullKeys.EVERYWHERE
    if join_type.preserves(side):
        return NullKeys.SPREAD
    if join_type is JoinType.LEFT_ANTI and side is Side.LEFT:
        return NullKeys.SPREAD
    return NullKeys.DROP


@dataclass(frozen=True)
class Branch:
    """Tasks that divide the files of one scan."""

    partitioned: int | None
    """Index of the scan that is partitioned; ``None``: there is one task."""
    replicated: frozenset[int] = frozenset()
    """Scans that each task reads whole. It reads nothing of any other scan of the tree."""
    bucketed: tuple[tuple[int, int], ...] = ()
    """Scans that are divided together, the partitioned one among them, each with the column by whose buckets. Nothing:
    one scan is divided, in any way."""


@dataclass(frozen=True)
class SparkInput:
    """Rows that a stage's tasks take from Spark as they are: a task for each partition of Spark's."""

    source: int
    """Index of the source that takes them in."""
    rows: int
    """Index of the :class:`~gpujoin.model.relations.SparkSource`."""
    indeterminate: frozenset[int] = frozenset()
    """Columns whose values may be others when Spark computes the rows again."""


@dataclass(frozen=True)
class Exchange:
    """Rows of a stage on their way to the stage that joins or groups them."""

    index: int
    """Index of the source that takes them in."""
    producer: Stage
    """Where they come from."""
    columns: tuple[int, ...]
    """The keys, in the producer's output. Without keys each row goes to any one task, or to every task."""
    types: tuple[pa.DataType, ...]
    """Types in which keys are hashed: those in which they are compared."""
    null_safe: tuple[bool, ...]
    """For each key whether null is a value like any other."""
    nulls: NullKeys
    """What becomes of rows in which another key is null."""
    nbytes: float = 0.0
    """Estimated size of the rows."""
    indeterminate: frozenset[int] = frozenset()
    """Columns whose values may be others when a task of the producer runs again. No key is one of them, but where
    that is allowed and there are no others."""
    replicated: bool = False
    """Whether every task gets all the rows; there are no keys then."""
    filters: bool = False
    """Whether its rows are keys by which tasks drop rows that match nothing, before these are exchanged."""
    last_complete: bool = False
    """Whether the last partition gets all the rows, since rows that may match any of them are there."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows."""
        return self.producer.tree.schema


@dataclass(frozen=True)
class Stage:
    """A tree that several tasks run."""

    tree: Relation
    """What each task computes; scans have no slices yet."""
    branches: tuple[Branch, ...] = ()
    """How files are divided; empty where rows come through exchanges, or from Spark."""
    inputs: tuple[Exchange, ...] = ()
    """The exchanges, in the order in which the tree reads its sources; only replicated ones where files are divided."""
    partitions: int = 1
    """Tasks of a stage whose rows come through exchanges."""
    replicated: frozenset[int] = frozenset()
    """Scans that each task of a stage without branches reads."""
    spark: SparkInput | None = None
    """What its tasks take from Spark; there are neither branches nor exchanges then."""
    cost: float = field(default=0.0, compare=False)
    """What it costs with all before it, in compressed bytes read."""

    def walk(self) -> Iterator[Stage]:
        """The stage and all before it, the last one first."""
        yield self
        for exchange in self.inputs:
            yield from exchange.producer.walk()

    @property
    def read_by_all(self) -> frozenset[int]:
        """Scans that each of its tasks reads whole."""
        if not self.branches:
            return self.replicated
        first, *others = (branch.replicated for branch in self.branches)
        return first.intersection(*others)

    @property
    def exchanges(self) -> int:
        """How many exchanges there are."""
        return sum(len(stage.inputs) for stage in self.walk())
