"""What is known of a join of whose matches the nearest alone is needed."""

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
    """What decides among matches of equal order.

    Attributes
    ----------
    expr_id : int
        An attribute of the side that is searched.
    descending : bool
        Whether the greatest is taken.
    nulls_first : bool
        Whether null comes before all else.
    """

    expr_id: int
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class Shift:
    """A whole number added to an attribute, which is an error where the sum has no value in the attribute's type.

    Attributes
    ----------
    attribute : Node
        An integer or a long integer.
    by : int
        What is added.
    """

    attribute: Node
    by: int


@dataclass(frozen=True)
class Limit:
    """A bound of the attribute from the other end: if the nearest match is beyond it, all are.

    Attributes
    ----------
    bound : Node
        Over the columns of the side whose rows are matched.
    exact : bool
        Whether the attribute may equal its bound.
    test : Node
        The comparison.
    shift : Shift or None
        What the bound is, if computing it may fail. It is computed only of rows with a match then, as in Spark.
    first : bool
        Whether Spark tests it before the comparison with the attribute's bound from this end.
    """

    bound: Node
    exact: bool
    test: Node
    shift: Shift | None = None
    first: bool = False


@dataclass(frozen=True)
class Domain:
    """What takes the place of distinct values that Spark decorrelates a subquery with: the rows they are values of.

    Spark joins ``distinct l.t`` with all of ``r`` by order, groups by ``l.t`` and ``r.k``, and joins the groups with
    ``l`` by both. Only groups with a row of ``l`` are read. So those rows may be joined with ``r`` by ``k`` at once.

    Attributes
    ----------
    rows : PlanNode
        ``l``.
    values : tuple of (Node, Node)
        Each attribute of the distinct values, and the expression over ``l`` that it stands for.
    keys : tuple of (Node, int, bool)
        An expression over ``l``, the attribute of the other side that it must equal, and whether null equals null.
    """

    rows: PlanNode
    values: tuple[tuple[Node, Node], ...]
    keys: tuple[tuple[Node, int, bool], ...]


@dataclass(frozen=True)
class Nearest:
    """What a join is told whose rows need only the nearest of their matches.

    Attributes
    ----------
    rows : Side
        Whose rows.
    column : int
        By which attribute of the other side.
    direction : Direction
        ``BACKWARD``: the greatest that matches; ``FORWARD``: the least.
    bound : Node
        What the attribute is bounded by, over the columns of ``rows``.
    exact : bool
        Whether the attribute may equal its bound.
    keys : tuple of Node
        The condition's equalities between the sides.
    limits : tuple of Limit
        Bounds from the other end.
    conditions : tuple of Node
        What the condition asks of ``rows`` alone.
    ties : tuple of Tie
        What decides among matches of equal order.
    domain : Domain or None
        What the rows are taken from instead of that side of the join.
    """

    rows: Side
    column: int
    direction: Direction
    bound: Node
    exact: bool
    keys: tuple[Node, ...]
    limits: tuple[Limit, ...]
    conditions: tuple[Node, ...]
    ties: tuple[Tie, ...] = ()
    domain: Domain | None = None


@dataclass(frozen=True)
class NearestJoins:
    """Joins of a query that may give of each row's matches the nearest alone.

    Attributes
    ----------
    terms : dict of PlanNode to Nearest
        What each join is told.
    orders : dict of PlanNode to PlanNode
        The join for which a ``Sort`` says which match is the nearest, where it does nothing else.
    """

    terms: dict[PlanNode, Nearest] = field(default_factory=dict)
    orders: dict[PlanNode, PlanNode] = field(default_factory=dict)
