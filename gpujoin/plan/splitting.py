"""Finds joins of exchanged rows in which the rows of one heavy key may be divided among tasks.

The rows of a heavy key are divided on one side, and sent to every task on the other side. Each divided row still has
all of its matches. That is correct where the join's result is the union of the results over parts of the divided side,
and where nothing further up in the stage requires rows with equal keys to be in one task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
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
from gpujoin.model.stages import Stage
from gpujoin.plan.distribution import DIVIDES

_ROW_BY_ROW = (Filter, Project, Expand, Explode, Limit, TopN)


@dataclass(frozen=True)
class ExchangedJoin:
    """A join of two exchanged inputs, whose rows any task of the stage may give."""

    node: Join
    """The join."""
    left: int
    right: int
    """Indexes of its sources."""

    @property
    def sides(self) -> tuple[Side, ...]:
        """Sides whose rows of a key may be divided."""
        return tuple(side for side in Side if self.node.spec.join_type in DIVIDES[side])

    def source(self, side: Side) -> int:
        """Index of the source on one side."""
        return self.left if side is Side.LEFT else self.right


def split_joins(stage: Stage) -> Iterator[ExchangedJoin]:
    """Joins of a stage in which keys may be divided, without those of earlier stages."""
    join = exchanged_join(stage)
    if join is not None and join.sides:
        yield join


def exchanged_join(stage: Stage) -> ExchangedJoin | None:
    """Find the join of a stage's exchanged inputs above which nothing requires rows with equal keys to be in one task.

    ``None`` where there is none. Above it, joins have one side whole in every task.
    """
    shares = {exchange.index for exchange in stage.inputs if not exchange.replicated}
    keyed = {exchange.index for exchange in stage.inputs if exchange.columns}
    node: Relation | None = stage.tree
    while node is not None:
        match node:
            case Join(left=ExchangeSource() as left, right=ExchangeSource() as right):
                by_key = keyed.issuperset((left.index, right.index))
                return ExchangedJoin(node, left.index, right.index) if by_key else None
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
    """The side of whose rows every task is sent a share, by sources in ``shares``, if every task has the other whole.

    ``None`` where there is no such side, or the join may not be done in parts.
    """
    fed = [
        side
        for side in Side
        if any(isinstance(node, ExchangeSource) and node.index in shares for node in join.side(side).walk())
    ]
    if len(fed) != 1 or join.spec.join_type not in DIVIDES[fed[0]]:
        return None
    return join.side(fed[0])


def cheap_to_sample(stage: Stage) -> bool:
    """Whether the first rows of a stage cost no more than reading them, or having Spark compute them."""
    return not stage.inputs and all(
        isinstance(node, (Scan, ExchangeSource, Filter, Project, Expand)) for node in stage.tree.walk()
    )
