"""How the rows of a join are brought together by a strategy or by hints, and which tables a worker keeps.

In the micro-batches of a stream the stream's rows are new each time, and come from Spark. A table that they are joined
with is the same as long as its files are. So every task reads it whole, and builds the join's search structure over
it, which the next task in that worker process uses again::

    join (right side built)          micro-batch 0: readings are joined; plants are read and sorted first
      rows from Spark: readings      micro-batch 1: other readings are joined with the same sorted plants
      scan plants                    micro-batch 2: a file of plants has changed: they are read and sorted again
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from enum import Enum

from gpujoin.config import Strategy
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.relations import ExchangeSource, Join, PythonStep, Relation, SparkSource
from gpujoin.model.stages import Distribution
from gpujoin.plan.estimates import Sizes, row_bytes

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
    """Give the distribution that a strategy, or else a hint, demands; impossible hints are ignored.

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


def is_table(relation: Relation) -> bool:
    """Tell whether a relation is made of files alone, by what is computed here."""
    return not any(isinstance(node, (SparkSource, ExchangeSource, PythonStep)) for node in relation.walk())


def kept_tables(relation: Relation) -> tuple[Relation, ...]:
    """Give the build sides made of files alone whose other side is not."""
    return tuple(
        table
        for join in relation.walk()
        if isinstance(join, Join)
        and is_table(table := join.side(join.build_side))
        and not is_table(join.side(join.build_side.other))
    )


def with_tables_built(relation: Relation, sizes: Sizes, most: float) -> Relation:
    """Have every task read and build the tables that rows from Spark are joined with, while they are small enough.

    Parameters
    ----------
    relation : Relation
        A tree over scans and rows from Spark.
    sizes : Sizes
        Of its relations.
    most : float
        Bytes that the rows of all tables together may have, as estimated; those nearest to the rows from Spark come
        first. Joins with others, and those that were asked to be run in another way, stay as they are.
    """
    left = most

    def visit(node: Relation) -> Relation:
        nonlocal left
        if node.children:
            node = node.with_children([visit(child) for child in node.children])
        if not isinstance(node, Join):
            return node
        sides = [side for side in Side if is_table(node.side(side))]
        if len(sides) != 1:
            return node
        (side,) = sides
        table = node.side(side)
        nbytes = sizes.of(table).rows * row_bytes(table.schema)
        if nbytes > left or not node.distribution.replicates(side):
            return node
        if node.spec.join_type not in DIVIDES[side.other]:
            return node
        left -= nbytes
        return dataclasses.replace(node, build_side=side, distribution=replicated([side]))

    return visit(relation)
