"""Plans to broadcast a side of an exchanged join that proves small while the query runs.

Both sides of a join are exchanged by key where both are estimated to be large. Once the tasks that give the smaller
one have run, its size is known. Where it is small, its rows are sent to every task of the stage that would have given
the larger one, and that stage goes on with the join::

    as planned                               where B proves small
    stage 3: join, aggregate                 stage 2: scan A, join, aggregate
      exchange 0: stage 1, scan A              exchange 1: all that stage 1 has given, to every task
      exchange 1: stage 2, scan and join B     stage 1: scan and join B

What is above the join has to give the same rows however A's are shared out among tasks: nothing that relies on the rows
of a key being in one task.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container
from dataclasses import dataclass

from gpujoin.model.jointype import Side
from gpujoin.model.relations import (
    ExchangeSource,
    Expand,
    Explode,
    Filter,
    Join,
    Limit,
    PartialAggregate,
    Project,
    Relation,
    Scan,
    TopN,
)
from gpujoin.model.stages import Distribution, Exchange, NullKeys, Stage
from gpujoin.plan.distribution import DIVIDES
from gpujoin.plan.parts import BUILDING, EXCHANGED, STAGE_BYTES, in_order

_COMPRESSION = 2
"""Spark compresses blobs to about half."""
_TIMES_SMALLER = 4
"""How many times fewer bytes the smaller side must be estimated to have: else waiting for its size gains nothing."""
_TIMES_WRONG = 10
"""Rows are at most expected to be so many times fewer than estimated."""


@dataclass(frozen=True)
class LateBroadcast:
    """A stage that replaces another one if one of its inputs proves small."""

    stage: Stage
    small: Exchange
    """The input that proves small: every task is sent all its rows."""
    large: Exchange
    """The other input, which is not exchanged: its producer's tasks are those of the stage."""

    def limit(self, tasks: int, threshold: int) -> int:
        """Most bytes, as Spark compresses them, with which it is cheaper.

        Of rows that are sent to ``tasks`` tasks there may be ``threshold`` bytes.
        """
        cheaper = EXCHANGED * self.large.nbytes / ((EXCHANGED + BUILDING) * tasks)
        return int(min(cheaper, threshold) / _COMPRESSION)

    def may_have(self, limit: int) -> bool:
        """Whether the small input may prove to have at most so many bytes, as Spark compresses them."""
        return self.small.nbytes <= _TIMES_WRONG * _COMPRESSION * limit


def late_broadcast(stage: Stage, shared: Container[int] = ()) -> LateBroadcast | None:
    """Plan the stage that may replace another one; ``None`` if there is none.

    ``shared`` has the indexes of exchanges that are made in any case, such as those that other stages read.
    """
    if stage.branches or stage.partitions < 2 or len(stage.inputs) != 2:
        return None
    if any(exchange.index in shared or not _is_by_key(exchange) for exchange in stage.inputs):
        return None
    small, large = sorted(stage.inputs, key=lambda exchange: exchange.nbytes)
    if large.nbytes < STAGE_BYTES or large.nbytes < _TIMES_SMALLER * small.nbytes:
        return None
    if not _is_divided(large.producer) or _is_known(small.producer.tree):
        return None
    tree = _Fused(stage.tree, small, large).tree
    if tree is None:
        return None
    producer = large.producer
    branches = tuple(
        dataclasses.replace(branch, replicated=branch.replicated | stage.replicated) for branch in producer.branches
    )
    fused = Stage(
        tree, branches, in_order(tree, (*producer.inputs, small)), producer.partitions,
        frozenset() if branches else producer.replicated | stage.replicated, cost=stage.cost,
    )  # fmt: skip
    return LateBroadcast(fused, small, large)


def _is_by_key(exchange: Exchange) -> bool:
    """Whether each row goes to one partition, by its key."""
    return bool(exchange.columns) and exchange.nulls is not NullKeys.EVERYWHERE and not exchange.last_complete


def _is_divided(producer: Stage) -> bool:
    """Whether a stage has several tasks, each with a share of the rows."""
    if producer.branches:
        return all(branch.partitioned is not None for branch in producer.branches)
    return producer.spark is None and producer.partitions > 1


def _is_known(tree: Relation) -> bool:
    """Whether the number of rows is known before they are read: files have it in their footers."""
    return all(isinstance(node, Project) or (isinstance(node, Scan) and not node.filters) for node in tree.walk())


class _Fused:
    """A stage's tree with the tree of an input's producer in it."""

    def __init__(self, tree: Relation, small: Exchange, large: Exchange) -> None:
        self._small = small
        self._large = large
        self.tree = self._fuse(tree)

    def _fuse(self, node: Relation) -> Relation | None:
        match node:
            case Join():
                return self._fuse_join(node)
            case PartialAggregate() | TopN() | Limit() if node.final:
                return None
            case PartialAggregate() | TopN() | Limit() | Filter() | Project() | Expand() | Explode():
                below = self._fuse(node.child)
                return None if below is None else node.with_children([below])
        return None

    def _fuse_join(self, node: Join) -> Relation | None:
        sides = [side for side in Side if any(isinstance(part, ExchangeSource) for part in node.side(side).walk())]
        if len(sides) == 1:  # the other side is read by every task
            (side,) = sides
            below = self._fuse(node.side(side)) if node.spec.join_type in DIVIDES[side] else None
            if below is None:
                return None
            return node.with_children([below, node.right] if side is Side.LEFT else [node.left, below])
        left, right = node.children
        if not isinstance(left, ExchangeSource) or not isinstance(right, ExchangeSource):
            return None
        large = Side.LEFT if left.index == self._large.index else Side.RIGHT
        movable = node.spec.as_of is None and not node.spec.join_type.null_aware
        if node.distribution is not Distribution.ANY or node.spec.join_type not in DIVIDES[large] or not movable:
            return None
        tree = self._large.producer.tree
        children = [tree, right] if large is Side.LEFT else [left, tree]
        return dataclasses.replace(node, left=children[0], right=children[1], build_side=large.other)
