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
    """The number that is added."""


@dataclass(frozen=True)
class Limit:
    """A tolerance: a bound of the attribute from the other end. If the nearest match is beyond it, all matches are."""

    bound: Node
    """An expression over the side whose rows are matched."""
    exact: bool
    """Whether the attribute may equal its bound."""
    test: Node
    """The comparison."""
    shift: Shift | None = None
    """The bound's sum, if it may fail: it is then computed only of rows with a match, as in Spark."""
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
    """The side whose rows are matched."""
    column: int
    """The attribute of the other side by which they are matched."""
    direction: Direction
    """``BACKWARD``: the greatest that matches; ``FORWARD``: the least."""
    bound: Node
    """The attribute's bound, over the columns of ``rows``."""
    exact: bool
    """Whether the attribute may equal its bound."""
    keys: tuple[Node, ...]
    """The condition's equalities between the sides."""
    limits: tuple[Limit, ...]
    """Bounds from the other end."""
    conditions: tuple[Node, ...]
    """Conditions on ``rows`` alone."""
    ties: tuple[Tie, ...] = ()
    """What decides among matches of equal order."""
    domain: Domain | None = None
    """Rows that replace that side of the join."""


@dataclass(frozen=True)
class NearestJoins:
    """Joins of a query that may give of each row's matches the nearest alone."""

    terms: dict[PlanNode, Nearest] = field(default_factory=dict)
    """The search of each join."""
    orders: dict[PlanNode, PlanNode] = field(default_factory=dict)
    """The join of each ``Sort`` that only says which match is the nearest."""
