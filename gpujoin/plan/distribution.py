"""How the rows of a join are brought together where the user says so: by a strategy, else by hints on its sides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from gpujoin.config import Strategy
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.stages import Distribution

DIVIDES = {
    Side.LEFT: frozenset({
        JoinType.INNER, JoinType.CROSS, JoinType.LEFT, JoinType.LEFT_SEMI, JoinType.LEFT_ANTI, JoinType.EXISTENCE,
        JoinType.NULL_AWARE_ANTI, JoinType.NULL_AWARE_EXISTENCE,
    }),
    Side.RIGHT: frozenset({JoinType.INNER, JoinType.CROSS, JoinType.RIGHT}),
}  # fmt: skip
"""Joins whose result is the union of their results over parts of one side, each with the whole of the other."""


SPARK_WAS_ASKED_FOR = Reason(
    ReasonKind.CONFIGURED,
    "strategy",
    "Spark was asked for",
    "strategy= of gpu_join or spark.gpujoin.strategy",
)
"""Why a join is left to Spark under ``Strategy.SPARK``."""


class Hint(Enum):
    """Join strategy hints; values are Spark's names."""

    BROADCAST = "broadcast"
    MERGE = "merge"
    SHUFFLE_HASH = "shuffle_hash"
    SHUFFLE_REPLICATE_NL = "shuffle_replicate_nl"


def asked_distribution(
    strategy: Strategy, hints: Mapping[Side, Hint], join_type: JoinType, *, keys: bool
) -> Distribution | Reason:
    """Say what a strategy, or else hints, ask of a join; a hint that cannot be followed is ignored.

    ``keys``: there is an equality between the sides. A reason says that the strategy cannot be followed or is to
    leave the join to Spark. Of a full outer join without keys ``ANY``: it is one task under any strategy that allows
    for it.
    """
    replicable = [side for side in Side if join_type in DIVIDES[side.other]]
    broadcast = [side for side in replicable if hints.get(side) is Hint.BROADCAST]
    match strategy:
        case Strategy.SPARK:
            return SPARK_WAS_ASKED_FOR
        case Strategy.SHUFFLE:
            if keys:
                return Distribution.PARTITIONED
            why = "a shuffled join needs an equality between the sides"
            return Reason(ReasonKind.UNSUPPORTED, "strategy", why, "strategy='nested_loop'")
        case Strategy.BROADCAST | Strategy.NESTED_LOOP:
            if replicable:
                return replicated(broadcast or replicable)
            if not keys:
                return Distribution.ANY
            why = f"a {join_type.value} outer join has no side that may be broadcast"
            return Reason(ReasonKind.UNSUPPORTED, "strategy", why, "strategy='shuffle'")
    if broadcast:
        return replicated(broadcast)
    exchanged = any(hint is not Hint.BROADCAST for hint in hints.values())
    return Distribution.PARTITIONED if exchanged and keys else Distribution.ANY


def replicated(sides: Iterable[Side]) -> Distribution:
    """Give the distribution in which every task has all rows of one of these sides."""
    match tuple(sides):
        case (Side.LEFT,):
            return Distribution.LEFT_REPLICATED
        case (Side.RIGHT,):
            return Distribution.RIGHT_REPLICATED
    return Distribution.REPLICATED
