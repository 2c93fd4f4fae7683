"""Joins of rows from Spark with tables that are read here: which tables a worker can keep from run to run.

In the micro-batches of a stream the stream's rows are new each time, and come from Spark. A table that they are joined
with is the same as long as its files are. So every task reads it whole, and builds the join's search structure over
it, which the next task in that worker process uses again::

    join (right side built)          micro-batch 0: readings are joined; plants are read and sorted first
      rows from Spark: readings      micro-batch 1: other readings are joined with the same sorted plants
      scan plants                    micro-batch 2: a file of plants has changed: they are read and sorted again
"""

from __future__ import annotations

import dataclasses

from gpujoin.model.jointype import Side
from gpujoin.model.relations import ExchangeSource, Join, Relation, SparkSource
from gpujoin.plan.distribution import DIVIDES, replicated
from gpujoin.plan.estimates import Sizes, row_bytes


def is_table(relation: Relation) -> bool:
    """Tell whether a relation is made of files alone."""
    return not any(isinstance(node, (SparkSource, ExchangeSource)) for node in relation.walk())


def kept_tables(relation: Relation) -> tuple[Relation, ...]:
    """Give the build sides that are made of files alone, where the other side is not."""
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
