"""As-of joins as SQL spells them: joins by order of whose matches an operation above needs the nearest one alone.

``max(r.t)`` over ``r.t <= l.t`` reads of each left row's matches only the latest, and so do ``max_by(r.x, r.t)``,
``max(struct(r.t, …))``, and ``row_number()`` over rows in descending order of ``r.t`` of which the first is kept. What
such an operation groups or partitions by has one value for all matches of a left row. So the join may give of each left
row's matches the latest, and the operation above, which stays as it is, finds the same: the greatest of all matches is
the greatest of those. Correlated subqueries and lateral joins with ``ORDER BY … LIMIT 1`` are such operations over such
joins once Spark has decorrelated them.

Which of several matches of equal order ``max_by`` and ``row_number`` take is as little said here as in Spark. Further
order keys of the other side, and further fields of a struct, decide, and are told with the mark.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import Direction
from gpujoin.spark.catalyst.joins import JOIN, join_type_in
from gpujoin.spark.catalyst.nodes import Node, expand
from gpujoin.spark.catalyst.traits import EQUALITIES, MayFail, across, may_fail
from gpujoin.spark.catalyst.translate import NotTranslatableError, ordered_by
from gpujoin.spark.query.aggregates import read_aggregate
from gpujoin.spark.query.plans import conjuncts

if TYPE_CHECKING:
    from gpujoin.spark.query.plans import PlanNode

_ORDERED_TYPES = frozenset(
    {"byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz", "string"}
)
"""Types that as-of joins order as Spark does; not floats, whose NaN is greater than all else there and matches nothing
here."""
_WHOLE = ("byte", "short", "integer", "long")
_FLOATS = frozenset({"float", "double"})
_AT_MOST = {"LessThan": False, "LessThanOrEqual": True}
_AT_LEAST = {"GreaterThan": False, "GreaterThanOrEqual": True}
_PASSED = frozenset({"Project", "WindowGroupLimit"})


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
    """

    bound: Node
    exact: bool
    test: Node


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
    """Of each row's matches on the other side only the nearest is needed.

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


def mark_nearest(plan: PlanNode) -> None:
    """Set :attr:`PlanNode.nearest` of joins whose nearest matches alone are needed.

    Parameters
    ----------
    plan : PlanNode
        The topmost node of a plan.
    """
    for node in plan.walk():
        try:
            if node.class_name == JOIN:
                _mark_decorrelated(node)
            elif _operation_of(node) is not None:
                _mark(node)
        except (_NotUnderstoodError, NotTranslatableError):
            continue


class _NotUnderstoodError(Exception):
    """Some part of a plan is not what it would have to be."""


_Defined: TypeAlias = "dict[int, Node]"


@dataclass(frozen=True)
class _Input:
    """The join below an operation, and how the operation's columns are made of the join's.

    Attributes
    ----------
    join : PlanNode
        The join.
    projects : tuple of dict
        What projections in between compute, topmost first, by expression id.
    filters : tuple of Node
        Conditions in between.
    """

    join: PlanNode
    projects: tuple[_Defined, ...]
    filters: tuple[Node, ...] = ()

    def attribute(self, node: Node) -> int | None:
        """The join's column that an expression is, as it orders; ``None`` if it is more than that."""
        node = _bare(node)
        for project in self.projects:
            if node.name == "AttributeReference" and node.expr_id in project:
                node = _bare(project[node.expr_id])
        return node.expr_id if node.name == "AttributeReference" else None

    def reads(self, node: Node) -> frozenset[int]:
        """The join's columns that an expression reads."""
        found = node.attribute_ids
        for project in self.projects:
            known = [project[one].attribute_ids if one in project else {one} for one in found]
            found = frozenset().union(*known)
        return found


@dataclass(frozen=True)
class _Candidate:
    """A way to read a join as the search for the nearest match."""

    nearest: Nearest
    fixed: frozenset[int]
    """Columns with one value for all matches of a row."""
    searched: frozenset[int]
    """Columns of the other side."""


class _Aggregation:
    """An aggregation, which must not notice that matches are missing."""

    def __init__(self, node: PlanNode) -> None:
        read = read_aggregate(node)
        self.computed: list[Node] = [*read.keys]
        self.groups = read.keys
        self.results: tuple[_Defined, ...] = (
            {one.expr_id: one.children[0] for one in read.results if one.name == "Alias"},
        )
        self._calls = []
        for call in read.aggregates:
            function, *condition = call.children
            if condition or call.fields["isDistinct"] or function.name not in _EXTREMES:
                raise _NotUnderstoodError
            self._calls.append(function)
            self.computed += function.children

    def ties(self, way: _Candidate, below: _Input) -> tuple[Tie, ...]:
        """What decides among matches of equal order.

        Raises
        ------
        _NotUnderstoodError
            If more than the nearest match is read.
        """
        if not all(below.reads(key) <= way.fixed for key in self.groups):
            raise _NotUnderstoodError
        found: set[tuple[Tie, ...]] = set()
        read = False
        for function in self._calls:
            if function.name in ("Max", "Min") and below.reads(function.children[0]) <= way.fixed:
                continue
            if _EXTREMES[function.name] is not way.nearest.direction:
                raise _NotUnderstoodError
            found.add(self._order(function.children[-1], way, below))
            read = True
        told = [ties for ties in found if ties]
        if not read or len(told) > 1:
            raise _NotUnderstoodError
        return told[0] if told else ()

    @staticmethod
    def _order(order: Node, way: _Candidate, below: _Input) -> tuple[Tie, ...]:
        parts = list(order.children[1::2]) if order.name == "CreateNamedStruct" else [order]
        first, *rest = parts
        if below.attribute(first) != way.nearest.column:
            raise _NotUnderstoodError
        latest = way.nearest.direction is Direction.BACKWARD
        # Null is the least of a struct's fields: the last of those that descend, the first of those that ascend.
        return tuple(
            tie
            for part in rest
            for tie in _ties_of(part, way, below, descending=latest, nulls_first=not latest)
        )


_EXTREMES = {
    "Max": Direction.BACKWARD,
    "MaxBy": Direction.BACKWARD,
    "Min": Direction.FORWARD,
    "MinBy": Direction.FORWARD,
}


class _FirstOfWindow:
    """A window that numbers rows, of which the first is kept."""

    def __init__(self, node: PlanNode) -> None:
        window = node.children[0]
        numbered, *others = window.expressions("windowExpressions")
        value = numbered.children[0] if numbered.name == "Alias" else numbered
        if others or value.name != "WindowExpression" or value.children[0].name != "RowNumber":
            raise _NotUnderstoodError
        if not any(_first_alone(part, numbered.expr_id) for part in conjuncts(node.expression("condition"))):
            raise _NotUnderstoodError
        for below in window.walk():
            if below.name not in ("Window", *_PASSED):
                break
            if below.name == "WindowGroupLimit" and _rank_of(below) != "RowNumber":
                raise _NotUnderstoodError
        self.groups = window.expressions("partitionSpec")
        self.results: tuple[_Defined, ...] = ()
        self._order = window.expressions("orderSpec")
        self.computed: list[Node] = [*self.groups, *(one.children[0] for one in self._order)]

    def ties(self, way: _Candidate, below: _Input) -> tuple[Tie, ...]:
        """What decides among matches of equal order."""
        if not all(below.reads(one) <= way.fixed for one in self.groups):
            raise _NotUnderstoodError
        rest = [one for one in self._order if not below.reads(one) <= way.fixed]
        latest = way.nearest.direction is Direction.BACKWARD
        if not rest or below.attribute(rest[0].children[0]) != way.nearest.column:
            raise _NotUnderstoodError
        if ordered_by(rest[0], "direction", "Descending") is not latest:
            raise _NotUnderstoodError
        found: list[Tie] = []
        for one in rest[1:]:
            descending = ordered_by(one, "direction", "Descending")
            nulls_first = ordered_by(one, "nullOrdering", "NullsFirst")
            found += _ties_of(one.children[0], way, below, descending=descending, nulls_first=nulls_first)
        return tuple(found)


_Operation: TypeAlias = _Aggregation | _FirstOfWindow


def _operation_of(node: PlanNode) -> type[_Operation] | None:
    if node.name == "Aggregate":
        return _Aggregation
    return _FirstOfWindow if node.name == "Filter" and node.children[0].name == "Window" else None


def _join_below(node: PlanNode, *, decorrelated: bool = False) -> _Input | None:
    """The join that an operation reads, through nothing that changes its rows but what the operation does itself.

    Of a decorrelated subquery filters may be between that drop groups as a whole.
    """
    child = node.children[0]
    windowed = child.name == "Window"
    if windowed:
        child = child.children[0]
    between: list[PlanNode] = []
    while (
        child.name == "Project"
        or (windowed and child.name == "WindowGroupLimit")
        or (decorrelated and child.name == "Filter")
    ):
        between.append(child)
        child = child.children[0]
    if child.class_name != JOIN or not _compares_by_order(child):
        return None
    projects = tuple(_defined(one) for one in between if one.name == "Project")
    filters = tuple(one.expression("condition") for one in between if one.name == "Filter")
    return _Input(child, projects, filters)


def _mark(node: PlanNode) -> None:
    below = _join_below(node)
    operation = _operation_of(node)
    if below is None or operation is None or below.join.nearest is not None:
        return
    ways = list(_candidates(below.join))
    if not ways:
        return
    above = operation(node)
    for way in ways:
        try:
            ties = above.ties(way, below)
        except _NotUnderstoodError:
            continue
        if _harmless(node, above, below, way.nearest):
            below.join.nearest = dataclasses.replace(way.nearest, ties=ties)
        return


# -- decorrelated subqueries -------------------------------------------------------------------------------------


def _mark_decorrelated(top: PlanNode) -> None:
    """Mark the join in a subquery that Spark has decorrelated, given the join that its result is put in by."""
    for side in Side:
        node = top.children[0 if side is Side.LEFT else 1]
        over: list[PlanNode] = []
        while node.name == "Project":
            over.append(node)
            node = node.children[0]
        operation = _operation_of(node)
        below = None if operation is None else _join_below(node, decorrelated=True)
        if operation is None or below is None or top.condition is None:
            continue
        ways = [way for way in _candidates(below.join) if _is_distinct(below.join.child(way.nearest.rows))]
        kind, _ = join_type_in(top.fields["joinType"])
        if not ways or kind not in (JoinType.INNER, JoinType.LEFT if side is Side.RIGHT else JoinType.RIGHT):
            continue
        above = operation(node)
        whole = _Input(below.join, (*map(_defined, over), *above.results, *below.projects), below.filters)
        rows = top.child(side.other)
        for way in ways:
            domain = _domain(conjuncts(top.condition), rows, way, whole)
            if domain is None:
                continue
            fixed = way.fixed | {key for _, key, _ in domain.keys}
            ids = frozenset(one.expr_id for one, _ in domain.values) | {key for _, key, _ in domain.keys}
            if {below.attribute(one) for one in above.groups} != ids or not _drops_groups(below, ids):
                continue
            ties = above.ties(dataclasses.replace(way, fixed=fixed), below)
            if _harmless(top, above, below, way.nearest):
                below.join.nearest = dataclasses.replace(way.nearest, ties=ties, domain=domain)
            return


def _domain(parts: Sequence[Node], rows: PlanNode, way: _Candidate, whole: _Input) -> Domain | None:
    """What the distinct values are values of; ``None`` if it is not known that they are all there are."""
    distinct = whole.join.child(way.nearest.rows)
    own = frozenset(column.expr_id for column in rows.output)
    floats = {one.expr_id for one in whole.join.output if one.fields["dataType"] in _FLOATS}
    by_id = {one.expr_id: one for one in distinct.output}
    values: dict[int, Node] = {}
    keys: list[tuple[Node, int, bool]] = []
    for part in parts:
        if part.name not in EQUALITIES:
            return None
        one, two = part.children
        mine, theirs = (one, two) if one.attribute_ids and one.attribute_ids <= own else (two, one)
        found = whole.attribute(theirs) if theirs.name == "AttributeReference" else None
        if found is None or mine.name != "AttributeReference" or mine.expr_id not in own or found in floats:
            return None
        if found in by_id:
            values[found] = mine
        elif found in way.searched:
            keys.append((mine, found, part.name == "EqualNullSafe"))
        else:
            return None
    if set(values) != set(by_id) or not _holds_all(distinct, rows, values):
        return None
    return Domain(rows, tuple((by_id[i], values[i]) for i in values), tuple(keys))


def _is_distinct(node: PlanNode) -> bool:
    """Whether a plan is distinct values of attributes."""
    if node.name != "Aggregate":
        return False
    read = read_aggregate(node)
    keys = {key.expr_id for key in read.keys if key.name == "AttributeReference"}
    shown = [_bare(one) for one in read.results]
    return len(keys) == len(read.keys) and all(
        one.name == "AttributeReference" and one.expr_id in keys for one in shown
    )


def _holds_all(distinct: PlanNode, rows: PlanNode, values: dict[int, Node]) -> bool:
    """Whether distinct values hold all values, other than null, that rows have.

    They do if they come from the same plan, which the rows may be filtered from further.
    """
    below = {
        one.expr_id: _bare(one).expr_id for one in read_aggregate(distinct).results
    }  # fmt: skip
    base, filters, places = _stripped(distinct.children[0])
    other, wider, others = _stripped(rows)
    if not base.jvm.sameResult(other.jvm):
        return False
    at = {column.expr_id: n for n, column in enumerate(base.output)}
    mine = {column.expr_id: n for n, column in enumerate(other.output)}
    origins = set()
    for given, value in values.items():
        origin, wanted = places.get(below[given], below[given]), others.get(value.expr_id, value.expr_id)
        if origin not in at or wanted not in mine or at[origin] != mine[wanted]:
            return False
        origins.add(origin)
    return all(
        (
            one.name == "IsNotNull"
            and one.children[0].name == "AttributeReference"
            and one.children[0].expr_id in origins
        )
        or any(one.jvm.semanticEquals(two.jvm) for two in wider)
        for one in filters
    )


def _stripped(node: PlanNode) -> tuple[PlanNode, list[Node], dict[int, int]]:
    """A plan without filters and projections of attributes on its top, the filters, and what was renamed."""
    filters: list[Node] = []
    names: dict[int, int] = {}
    while node.name in ("Filter", "Project"):
        if node.name == "Filter":
            filters += conjuncts(node.expression("condition"))
        else:
            for one in node.expressions("projectList"):
                value = _bare(one)
                if value.name != "AttributeReference" or value.expr_id != one.expr_id:
                    return node, filters, names
        node = node.children[0]
    return node, filters, names


def _drops_groups(below: _Input, ids: frozenset[int]) -> bool:
    """Whether filters below an operation keep or drop its groups as a whole, and drop none that is read."""
    return all(
        part.name == "IsNotNull" and below.attribute(part.children[0]) in ids
        for condition in below.filters for part in conjuncts(condition)
    )  # fmt: skip


# -- the join ----------------------------------------------------------------------------------------------------


def _compares_by_order(join: PlanNode) -> bool:
    if join.condition is None:
        return False
    return any(part.name in (*_AT_MOST, *_AT_LEAST) for part in conjuncts(join.condition))


def _candidates(join: PlanNode) -> Iterator[_Candidate]:
    """The ways to read a join as the search for the nearest match, by its condition alone."""
    assert join.condition is not None
    parts = conjuncts(join.condition)
    kind, _ = join_type_in(join.fields["joinType"])
    preserved = {JoinType.INNER: tuple(Side), JoinType.LEFT: (Side.LEFT,), JoinType.RIGHT: (Side.RIGHT,)}
    columns = dict(zip(Side, (child.output for child in join.children), strict=True))
    ids = {side: frozenset(column.expr_id for column in columns[side]) for side in Side}
    types = {column.expr_id: column.fields["dataType"] for side in Side for column in columns[side]}
    for rows in preserved.get(kind, ()) if kind is not None else ():
        for part in parts:
            bounded = _bounded(part, ids[rows], ids[rows.other])
            if bounded is None or not _alike(bounded, types):
                continue
            column, bound, direction, exact = bounded
            split = _split([one for one in parts if one is not part], column, direction, rows, ids)
            if split is None:
                continue
            keys, limits, conditions = split
            nearest = Nearest(rows, column, direction, bound, exact, keys, limits, conditions)
            same = [
                child.expr_id
                for key in keys for child in key.children
                if child.name == "AttributeReference" and child.expr_id in ids[rows.other]
                and types[child.expr_id] not in _FLOATS
            ]  # fmt: skip
            yield _Candidate(nearest, ids[rows].union(same), ids[rows.other])


_Bounded: TypeAlias = "tuple[int, Node, Direction, bool]"


def _bounded(part: Node, rows: frozenset[int], others: frozenset[int]) -> _Bounded | None:
    """An attribute of the other side that a comparison bounds by an expression over a row."""
    known = {**_AT_MOST, **_AT_LEAST}
    if part.name not in known:
        return None
    one, two = part.children
    below = part.name in _AT_MOST
    if not (two.attribute_ids and two.attribute_ids <= rows):
        one, two, below = two, one, not below
    attribute = _bare(one)
    if attribute.name != "AttributeReference" or attribute.expr_id not in others:
        return None
    if not (two.attribute_ids and two.attribute_ids <= rows):
        return None
    return (
        attribute.expr_id, two, Direction.BACKWARD if below else Direction.FORWARD, known[part.name],
    )  # fmt: skip


def _alike(bounded: _Bounded, types: dict[int, object]) -> bool:
    """Whether an attribute and its bound are ordered as one type, as Spark orders them."""
    column, bound, _, _ = bounded
    dtype = types[column]
    if not isinstance(dtype, str) or not (dtype in _ORDERED_TYPES or dtype.startswith("decimal")):
        return False
    other = bound.data_type.jsonValue()
    return other == dtype or (dtype in _WHOLE and other in _WHOLE)


def _split(
    parts: Sequence[Node], column: int, direction: Direction, rows: Side, ids: dict[Side, frozenset[int]]
) -> tuple[tuple[Node, ...], tuple[Limit, ...], tuple[Node, ...]] | None:
    """Equalities between the sides, limits, and conditions; ``None`` if there is more."""
    keys: list[Node] = []
    limits: list[Limit] = []
    conditions: list[Node] = []
    for part in parts:
        reads = part.attribute_ids
        if across(part, ids):
            keys.append(part)
            continue
        other = _bounded(part, ids[rows], ids[rows.other])
        if other is not None and other[0] == column and other[2] is not direction:
            limits.append(Limit(other[1], other[3], part))
        elif reads and reads <= ids[rows]:
            conditions.append(part)
        else:
            return None
    return tuple(keys), tuple(limits), tuple(conditions)


def _harmless(node: PlanNode, above: _Operation, below: _Input, nearest: Nearest) -> bool:
    """Whether nothing is noticed of rows that are not computed any more: no errors, no state."""
    if not node.jvm.deterministic():
        return False
    computed = [*above.computed, *(value for project in below.projects for value in project.values())]
    computed += [nearest.bound, *(one.bound for one in nearest.limits), *nearest.conditions]
    plain = ("AttributeReference", "Literal")
    return all(
        may_fail(expand(one, node.gateway)) is MayFail.NEVER
        for one in computed
        if _bare(one).name not in plain
    )


def _ties_of(
    part: Node, way: _Candidate, below: _Input, *, descending: bool, nulls_first: bool
) -> tuple[Tie, ...]:
    if below.reads(part) <= way.fixed:
        return ()
    found = below.attribute(part)
    if found is None or found not in way.searched:
        raise _NotUnderstoodError
    return (Tie(found, descending, nulls_first),)


def _defined(project: PlanNode) -> _Defined:
    return {one.expr_id: one.children[0] for one in project.expressions("projectList") if one.name == "Alias"}


def _first_alone(part: Node, number: int) -> bool:
    """Whether a condition on a row's number is true of the first alone."""
    if part.name not in ("EqualTo", "LessThanOrEqual", "LessThan"):
        return False
    one, two = part.children
    most = "2" if part.name == "LessThan" else "1"
    if one.name == "Literal" and part.name == "EqualTo":
        one, two = two, one
    return (
        one.name == "AttributeReference" and one.expr_id == number
        and two.name == "Literal" and str(two.fields.get("value")) == most
    )  # fmt: skip


def _rank_of(limit: PlanNode) -> str:
    return str(limit.jvm.rankLikeFunction().getClass().getSimpleName())


def _bare(node: Node) -> Node:
    """Without what keeps values in their order: names, and casts of integers to wider ones."""
    while True:
        named = node.name in ("Alias", "KnownNotNull", "KnownNullable")
        if not named and not (node.name == "Cast" and _widens(node)):
            return node
        node = node.children[0]


def _widens(cast: Node) -> bool:
    child = cast.children[0]
    if child.name != "AttributeReference":
        return False
    source, target = child.fields.get("dataType"), cast.fields.get("dataType")
    if source not in _WHOLE or target not in _WHOLE:
        return False
    return _WHOLE.index(str(source)) <= _WHOLE.index(str(target))
