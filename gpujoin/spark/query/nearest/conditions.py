"""Reads a join's condition as the search for the nearest match.

A tolerance such as ``r.n >= l.n - 5`` may fail in ANSI mode. Spark computes ``l.n - 5`` of a row of ``l`` for its
matches by key, and fails where it has no value. Here it is computed for the one match that is found. Where Spark
compares with ``l.n - 5`` before it compares with ``l.n``, a row whose ``l.n - 5`` has no value fails with any match by
key; so such a row is searched with no bound at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from gpujoin.model.expressions import EvalMode
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import Direction
from gpujoin.spark.catalyst.joins import join_type_in
from gpujoin.spark.catalyst.nodes import Node, read_expression
from gpujoin.spark.catalyst.traits import across
from gpujoin.spark.query.nearest.terms import Limit, Nearest, Shift
from gpujoin.spark.query.plans import conjuncts

if TYPE_CHECKING:
    from gpujoin.spark.query.plans import PlanNode

_ORDERED_TYPES = frozenset({"byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz", "string"})
"""Types that as-of joins order as Spark does; not floats, whose NaN is greater than all else there and matches nothing
here."""
_WHOLE = ("byte", "short", "integer", "long")
FLOATS = frozenset({"float", "double"})
"""Types of equal values that are not the same: -0.0 and 0.0."""
_AT_MOST = {"LessThan": False, "LessThanOrEqual": True}
_AT_LEAST = {"GreaterThan": False, "GreaterThanOrEqual": True}


@dataclass(frozen=True)
class Candidate:
    """A way to read a join as the search for the nearest match."""

    nearest: Nearest
    fixed: frozenset[int]
    """Columns with one value for all matches of a row."""
    searched: frozenset[int]
    """Columns of the other side."""


def compares_by_order(join: PlanNode) -> bool:
    """Tell whether a join's condition has a comparison by order at all."""
    if join.condition is None:
        return False
    return any(part.name in (*_AT_MOST, *_AT_LEAST) for part in conjuncts(join.condition))


def candidates(join: PlanNode) -> Iterator[Candidate]:
    """Yield the ways to read a join as the search for the nearest match, by its condition alone."""
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
            split = _split([other for other in parts if other is not part], column, direction, rows, ids)
            if split is None:
                continue
            keys, limits, conditions = split
            if not conditions:
                limits = _with_shift(limits, bound, direction, parts, part)
            nearest = Nearest(rows, column, direction, bound, exact, keys, limits, conditions)
            same = [
                child.expr_id
                for key in keys for child in key.children
                if child.name == "AttributeReference" and child.expr_id in ids[rows.other]
                and types[child.expr_id] not in FLOATS
            ]  # fmt: skip
            yield Candidate(nearest, ids[rows].union(same), ids[rows.other])


_Bounded: TypeAlias = "tuple[int, Node, Direction, bool]"


def _bounded(part: Node, rows: frozenset[int], others: frozenset[int]) -> _Bounded | None:
    """An attribute of the other side that a comparison bounds by an expression over a row."""
    comparisons = {**_AT_MOST, **_AT_LEAST}
    if part.name not in comparisons:
        return None
    operand, bound = part.children
    below = part.name in _AT_MOST
    if not (bound.attribute_ids and bound.attribute_ids <= rows):
        operand, bound, below = bound, operand, not below
    attribute = bare(operand)
    if attribute.name != "AttributeReference" or attribute.expr_id not in others:
        return None
    if not (bound.attribute_ids and bound.attribute_ids <= rows):
        return None
    return (
        attribute.expr_id, bound, Direction.BACKWARD if below else Direction.FORWARD, comparisons[part.name],
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


def _with_shift(
    limits: tuple[Limit, ...], bound: Node, direction: Direction, parts: Sequence[Node], part: Node
) -> tuple[Limit, ...]:
    """A tolerance that may fail, told by how much it is from the bound."""
    own = bare(bound)
    if len(limits) != 1 or own.name != "AttributeReference":
        return limits
    shift = _shift_of(limits[0].bound)
    if shift is None or shift.attribute.expr_id != own.expr_id:
        return limits
    if (shift.by < 0) is not (direction is Direction.BACKWARD):
        return limits
    first = parts.index(limits[0].test) < parts.index(part)
    return (dataclasses.replace(limits[0], shift=shift, first=first),)


def _shift_of(node: Node) -> Shift | None:
    """Read ``n - 5`` of integers in ANSI mode."""
    if node.name == "Cast" and _whole_widened(node):
        node = node.children[0]
    if node.name not in ("Add", "Subtract") or node.eval_mode is not EvalMode.ANSI:
        return None
    operand, number = node.children
    if operand.name == "Literal" and node.name == "Add":
        operand, number = number, operand
    if operand.name != "AttributeReference" or number.name != "Literal" or number.fields.get("value") is None:
        return None
    if not operand.fields["dataType"] == number.fields["dataType"] in WHOLE_RANGES:
        return None
    by = int(number.fields["value"])
    return Shift(operand, by if node.name == "Add" else -by) if by else None


WHOLE_RANGES = {"integer": (-(1 << 31), (1 << 31) - 1), "long": (-(1 << 63), (1 << 63) - 1)}
"""Types of integers that are added as they are, and their least and greatest values."""


def _whole_widened(cast: Node) -> bool:
    return str(cast.fields.get("dataType")) == "long" and cast.children[0].type_name in ("int", "integer")


def bare(node: Node) -> Node:
    """Give an expression without what keeps values in their order: names, and casts of integers to wider ones."""
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


def fail_as_spark(nearest: Nearest, gateway: Any) -> Nearest:
    """Let rows whose tolerance is tested first, and has no value, find any match.

    Parameters
    ----------
    nearest : Nearest
        With at most one tolerance that may fail.
    gateway : py4j JVM view
        ``spark._jvm``.
    """
    shift = next((limit.shift for limit in nearest.limits if limit.shift is not None and limit.first), None)
    if shift is None:
        return nearest
    expressions = gateway.org.apache.spark.sql.catalyst.expressions
    types = gateway.org.apache.spark.sql.types.DataTypes
    kinds = {"integer": types.IntegerType, "long": types.LongType}

    def literal(value: int, kind: str) -> Any:
        # A number that fits into 32 bits comes to the JVM as an integer.
        number = expressions.Literal(value, kinds["integer" if -(1 << 31) <= value < 1 << 31 else "long"])
        nothing = getattr(getattr(gateway.scala, "None$"), "MODULE$")
        return expressions.Cast(number, kinds[kind], nothing, expressions.EvalMode.LEGACY())

    kind = str(shift.attribute.fields["dataType"])
    least, most = WHOLE_RANGES[kind]
    if shift.by < 0:
        fails = expressions.LessThan(shift.attribute.jvm, literal(least - shift.by, kind))
    else:
        fails = expressions.GreaterThan(shift.attribute.jvm, literal(most - shift.by, kind))
    bound_kind = str(nearest.bound.data_type.jsonValue())
    backward = nearest.direction is Direction.BACKWARD
    anything = literal(WHOLE_RANGES[bound_kind][1 if backward else 0], bound_kind)
    bound = nearest.bound.jvm
    if not nearest.exact:
        # Never at the end of its type: that is among what fails.
        step = expressions.Subtract if backward else expressions.Add
        bound = step(bound, literal(1, bound_kind))
    guarded = read_expression(nearest.bound.reading, expressions.If(fails, anything, bound))
    return dataclasses.replace(nearest, bound=guarded, exact=True)
