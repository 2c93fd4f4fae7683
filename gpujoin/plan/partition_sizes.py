"""Decides which partitions of a stage are split or coalesced once their sizes are known.

The sizes of partitions are known once the stages before have run. Neighbours that are small together are then read by
one task, as if they were one partition (*coalescing*)::

    partition           0      1      2      3
    bytes             5 MB   1 MB   2 MB   9 MB
    tasks             0, 1 and 2: 8 MB     3

Rows with equal keys stay together. Of rows that every partition has, a task reads those of its first partition alone.

A *heavy* partition of a join is computed by several tasks. Where one partition has far more bytes than the others, its
rows of one input are divided among tasks, each of which reads the partition's rows of the other input too. For a left
join whose partition 2 is heavy on the left::

    partition    0       1       2         task 0   partitions 0 and 1
    left      1 MB    2 MB    9 MB         task 1   partition 2: left rows of mappers 0, 2 and 4, all right rows
    right     1 MB    1 MB    1 MB         task 2   partition 2: left rows of mappers 1, 3 and 5, all right rows

Each divided row has all of its matches. That is correct where the join's result is the union of the results over parts
of the divided input, and where nothing further up in the stage requires rows with equal keys to be in one task.

A full join is neither divided by its left rows nor by its right ones: a row that is read by all tasks may find its
matches in any of them. There the tasks leave out the rows of the repeated input that have no match, and one more task
finds these among all rows of the partition, by an anti-join::

    left      right     task 1: left join      task 2: left join      task 3: unmatched right rows
    7  a      7  x      of (7, a)              of (7, b)              of all left rows
    7  b      8  y      7  a  7  x             7  b  7  x             null  null  8  y
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass

import pyarrow as pa

from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import (
    ConstantTable,
    ExchangeSource,
    Expand,
    Explode,
    Filter,
    Join,
    Limit,
    PartialAggregate,
    Project,
    Relation,
    TopN,
)
from gpujoin.model.stages import Exchange, NullKeys, Share, Stage
from gpujoin.plan.distribution import DIVIDES
from gpujoin.plan.remap import mirrored, replaced

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


_MOST_DIVISIONS = 8
"""A mapper's rows of a partition go to one of so many divisions of it: most shares of a heavy partition."""
_FEWER_DIVISIONS = 4
_MOST_SHUFFLE_PARTITIONS = 2000
"""Spark knows the sizes of up to so many partitions of a shuffle, and the mean size where there are more:
``spark.shuffle.minNumPartitionsToHighlyCompress``."""
_COMPRESSION = 2
"""Spark compresses blobs to about half."""
_TIMES_WRONG = 10
"""Rows are at most expected to be so many times more than estimated."""
_ROW_BY_ROW = (Filter, Project, Expand, Explode, Limit, TopN)


@dataclass(frozen=True)
class Splitting:
    """Sizes at which partitions are split; the defaults are those of Spark's settings."""

    factor: float = 5.0
    """A heavy partition has so many times the median of the bytes of all;
    ``spark.sql.adaptive.skewJoin.skewedPartitionFactor``."""
    threshold: int = 256 << 20
    """It has more than so many bytes; ``spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes``."""
    share_bytes: int = 64 << 20
    """Bytes of a share; ``spark.sql.adaptive.advisoryPartitionSizeInBytes``."""
    unsorted_partitions: int = 200
    """Spark writes a shuffle of up to so many partitions without keeping its blobs in memory;
    ``spark.shuffle.sort.bypassMergeThreshold``."""

    def divisions(self, exchange: Exchange, partitions: int, mappers: int) -> int:
        """Into how many divisions the producer of an exchange divides each partition; 1: no partition is split."""
        if exchange.nbytes * _TIMES_WRONG < self.threshold * _COMPRESSION:
            return 1
        divisions = min(_MOST_DIVISIONS, self.unsorted_partitions // partitions)
        if divisions < 2:
            divisions = min(_FEWER_DIVISIONS, _MOST_SHUFFLE_PARTITIONS // partitions)
        return max(1, min(divisions, mappers))


@dataclass(frozen=True)
class SplitPartitions:
    """A join whose heavy partitions are split."""

    left: int
    right: int
    """Indexes of its exchanges."""
    sides: tuple[Side, ...]
    """Inputs whose rows may be divided."""
    trees: Mapping[Share, Relation] = dataclasses.field(default_factory=dict)
    """The trees that replace the stage's; only of a full join."""

    def source(self, side: Side) -> int:
        """Index of the exchange of one input."""
        return self.left if side is Side.LEFT else self.right

    @property
    def finds_unmatched(self) -> bool:
        """Whether one more task finds the unmatched rows of the undivided input."""
        return bool(self.trees)


def split_partitions(stage: Stage, shared: Container[int] = ()) -> SplitPartitions | None:
    """Find the join of a stage whose heavy partitions may be split.

    ``None`` where there is none. ``shared`` has the indexes of exchanges whose partitions are not divided, such as
    those that several stages read.
    """
    join = exchanged_join(stage)
    if join is None:
        return None
    exchanges = {exchange.index: exchange for exchange in stage.inputs}
    left, right = (source.index for source in join.children if isinstance(source, ExchangeSource))
    inputs = {Side.LEFT: exchanges[left], Side.RIGHT: exchanges[right]}
    if any(exchange.index in shared for exchange in inputs.values()):
        return None
    # Tasks that read the same rows must find the same values, whatever ran again in between.
    repeatable = {side for side in Side if not inputs[side].indeterminate}
    join_type = join.spec.join_type
    if join_type is JoinType.FULL:
        unique = all(len(set(exchange.schema.names)) == len(exchange.schema) for exchange in inputs.values())
        if len(repeatable) < len(Side) or not unique:
            return None
        return SplitPartitions(left, right, tuple(Side), _full_join_trees(stage.tree, join))
    sides = tuple(side for side in Side if join_type in DIVIDES[side] and side.other in repeatable)
    return SplitPartitions(left, right, sides) if sides else None


def _full_join_trees(tree: Relation, join: Join) -> dict[Share, Relation]:
    parts = {
        Share.LEFT: _as(join, JoinType.LEFT),
        Share.RIGHT: _as(join, JoinType.RIGHT),
        Share.UNMATCHED_LEFT: _unmatched(join, Side.LEFT),
        Share.UNMATCHED_RIGHT: _unmatched(join, Side.RIGHT),
    }
    return {share: replaced(tree, {join: part}) for share, part in parts.items()}


def _as(join: Join, join_type: JoinType) -> Join:
    return dataclasses.replace(join, spec=dataclasses.replace(join.spec, join_type=join_type))


def _unmatched(join: Join, side: Side) -> Join:
    """Rows of one input of a full join that have no match, with nulls for the other's columns.

    An anti-join finds them, and a join with a table without rows pads them as the full join does.
    """
    spec, rows = join.spec, join.side(side)
    if side is Side.RIGHT:
        spec = mirrored(spec)
    every = tuple(range(len(rows.schema)))
    anti = dataclasses.replace(spec, join_type=JoinType.LEFT_ANTI, left_output=every, right_output=())
    build_side = join.build_side if side is Side.LEFT else join.build_side.other
    unmatched = Join(rows, join.side(side.other), anti, build_side)
    nothing = ConstantTable.from_batch(pa.RecordBatch.from_pylist([], join.side(side.other).schema))
    if side is Side.LEFT:
        return dataclasses.replace(_as(join, JoinType.LEFT), left=unmatched, right=nothing, build_side=Side.RIGHT)
    return dataclasses.replace(_as(join, JoinType.RIGHT), left=nothing, right=unmatched, build_side=Side.LEFT)


def exchanged_join(stage: Stage) -> Join | None:
    """Find the join of a stage's exchanged inputs above which nothing requires rows with equal keys to be in one task.

    ``None`` where there is none. Above it, joins have one side whole in every task.
    """
    shares = {exchange.index for exchange in stage.inputs if not exchange.replicated}
    keyed = {exchange.index for exchange in stage.inputs if exchange.columns}
    node: Relation | None = stage.tree
    while node is not None:
        match node:
            case Join(left=ExchangeSource() as left, right=ExchangeSource() as right):
                return node if keyed.issuperset((left.index, right.index)) else None
            case Join():
                node = _fed(node, shares)
            case PartialAggregate():
                node = None if node.final else node.child
            case _ if isinstance(node, _ROW_BY_ROW):
                (node,) = node.children
            case _:
                return None
    return None


def _fed(join: Join, shares: Collection[int]) -> Relation | None:
    """Give the side whose rows every task has a share of, if every task has all rows of the other.

    ``None`` if there is no such side, or the join may not be done in parts.
    """
    fed = [
        side
        for side in Side
        if any(isinstance(node, ExchangeSource) and node.index in shares for node in join.side(side).walk())
    ]
    if len(fed) != 1 or join.spec.join_type not in DIVIDES[fed[0]]:
        return None
    return join.side(fed[0])
