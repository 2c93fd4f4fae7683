"""Describes joins that need only the nearest match."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpujoin.model.jointype import Side
from gpujoin.model.spec import Direction
from gpujoin.spark.catalyst.nodes import Node

if TYPE_CHECKING:
    from gpujoin.spark.query.plans import PlanNode


@dataclass(frozen=True)
class Tie:
    """What decides among matches of equal order."""

    expr_id: int
    """An attribute of the side that is searched."""
    descending: bool
    """Whether the greatest is taken."""
    nulls_first: bool
    """Whether null comes before all else."""


@dataclass(frozen=True)
class Shift:
    """A whole number added to an attribute; the sum is an error if it has no value of the attribute's type."""

    attribute: Node
    """An integer or a long integer."""
    by: int
    """What is added."""


@dataclass(frozen=True)
class Limit:
    """A tolerance: a bound of the attribute from the other end. If the nearest match is beyond it, all matches are."""

    bound: Node
    """Over the columns of the side whose rows are matched."""
    exact: bool
    """Whether the attribute may equal its bound."""
    test: Node
    """The comparison."""
    shift: Shift | None = None
    """What the bound is, if computing it may fail. It is computed only of rows with a match then, as in Spark."""
    first: bool = False
    """Whether Spark tests it before the comparison with the attribute's bound from this end."""


@dataclass(frozen=True)
class Domain:
    """The rows that replace the distinct values with which Spark decorrelates a subquery.

    Spark joins ``distinct l.t`` with all of ``r`` by order, groups by ``l.t`` and ``r.k``, and joins the groups with
    ``l`` by both. Only groups with a row of ``l`` are read. So those rows may be joined with ``r`` by ``k`` at once.
    """

    rows: PlanNode
    """``l``."""
    values: tuple[tuple[Node, Node], ...]
    """Each attribute of the distinct values, and the expression over ``l`` that it stands for."""
    keys: tuple[tuple[Node, int, bool], ...]
    """An expression over ``l``, the attribute of the other side that it must equal, and whether null equals null."""


@dataclass(frozen=True)
class Nearest:
    """The search that replaces a join whose rows need only the nearest of their matches."""

    rows: Side
    """Whose rows."""
    column: int
    """By which attribute of the other side."""
    direction: Direction
    """``BACKWARD``: the greatest that matches; ``FORWARD``: the least."""
    bound: Node
    """What the attribute is bounded by, over the columns of ``rows``."""
    exact: bool
    """Whether the attribute may equal its bound."""
    keys: tuple[Node, ...]
    """The condition's equalities between the sides."""
    limits: tuple[Limit, ...]
    """Bounds from the other end."""
    conditions: tuple[Node, ...]
    """What the condition asks of ``rows`` alone."""
    ties: tuple[Tie, ...] = ()
    """What decides among matches of equal order."""
    domain: Domain | None = None
    """What the rows are taken from instead of that side of the join."""


@dataclass(frozen=True)
class NearestJoins:
    """Joins of a query that may give of each row's matches the nearest alone."""

    terms: dict[PlanNode, Nearest] = field(default_factory=dict)
    """What each join is told."""
    orders: dict[PlanNode, PlanNode] = field(default_factory=dict)
    """The join for which a ``Sort`` says which match is the nearest, where it does nothing else."""
