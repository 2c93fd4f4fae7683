"""Marking the joins of a plan of whose matches the nearest alone is needed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gpujoin.spark.catalyst.joins import JOIN
from gpujoin.spark.catalyst.nodes import NotTranslatableError
from gpujoin.spark.query.nearest.conditions import candidates
from gpujoin.spark.query.nearest.decorrelated import mark_decorrelated
from gpujoin.spark.query.nearest.operations import (
    NotUnderstoodError,
    harmless,
    join_below,
    mark,
    operation_of,
)

if TYPE_CHECKING:
    from gpujoin.spark.query.nearest.terms import NearestJoins
    from gpujoin.spark.query.plans import PlanNode


def mark_nearest(plan: PlanNode, joins: NearestJoins) -> None:
    """Find the joins of a plan whose nearest matches alone are needed.

    Parameters
    ----------
    plan : PlanNode
        The topmost node of a plan.
    joins : NearestJoins
        Takes them.
    """
    for node in plan.walk():
        try:
            if node.class_name == JOIN:
                mark_decorrelated(node, joins)
            elif operation_of(node) is not None:
                _mark(node, joins)
        except (NotUnderstoodError, NotTranslatableError):
            continue


def _mark(node: PlanNode, joins: NearestJoins) -> None:
    below = join_below(node)
    operation = operation_of(node)
    if below is None or operation is None or below.join in joins.terms:
        return
    ways = list(candidates(below.join))
    if not ways:
        return
    above = operation(node)
    for way in ways:
        try:
            ties = above.ties(way, below)
        except NotUnderstoodError:
            continue
        if harmless(node, above, below, way.nearest):
            mark(joins, below, dataclasses.replace(way.nearest, ties=ties))
        return
