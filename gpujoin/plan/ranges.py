"""Splits a condition into ranges, which are searched by order, and a rest, which is tested by pair.

A conjunct that compares an expression of the build side with one of the probe side bounds a range. An example, right
side built: ``r.c > l.a AND r.c <= l.a + 5 AND r.x <> l.x``. The first two conjuncts bound ``r.c`` by ``(l.a, l.a +
5]``; the third one is the residual condition::

    r   c  x      l   a  x      candidates   l.a = 4 with c 5 and 8      result   4 5
        5  u          4  v                   l.a = 9: none
        8  v          9  u
        2  u

The shape of a join (:class:`Shape`) says how matches are found, and at which cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from enum import Enum

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import KeyTypeError
from gpujoin.model.expressions import Call, Cast, Expression, Function, Literal, conjuncts
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.ranges import Axis, Bound, Comparison
from gpujoin.model.relations import Join, PartialAggregate, Project, Relation
from gpujoin.model.types import LONG_DIGITS, is_bytes, is_text, plain
from gpujoin.plan.key_types import key_type

MOST_AXES = 2
"""Build-side expressions that are searched at the same time; comparisons of others are tested pair by pair."""

LEAST_SPREAD = 16
"""Least average number of rows of a key for which a range within equality keys is searched. Fewer rows are compared
faster one by one; measured in `benchmarks/engine/README.md`, "ranges within keys"."""


class Shape(Enum):
    """How matches are found. Values are shown to users; n and m in the costs are numbers of rows and of matches."""

    EQUALITY = "equality: n + m"
    ONE_ROW = "one row: n"
    RANGE = "range: n log n + m"
    NOT_IN = "not in: n for each pair of null patterns"
    AS_OF = "as-of: n log n"
    PRODUCT = "product: quadratic, n × n pairs are looked at"

    @property
    def quadratic(self) -> bool:
        """Whether the cost grows with the product of the sides."""
        return self is Shape.PRODUCT


_COMPARISONS = {
    Function.LT: Comparison.LESS,
    Function.LE: Comparison.AT_MOST,
    Function.EQ: Comparison.EQUAL,
    Function.GE: Comparison.AT_LEAST,
    Function.GT: Comparison.GREATER,
}


@dataclass(frozen=True)
class RangedCondition:
    """A condition split into ranges and the rest."""

    axes: tuple[Axis, ...]
    """At most :data:`MOST_AXES`."""
    residual: Expression | None
    """Conjunction of the other conjuncts."""


def extract_ranges(condition: Expression | None, build_side: Side) -> RangedCondition | None:
    """Split a resolved condition into ranges and the rest, for a given build side, whose rows are sorted.

    ``None`` if no conjunct compares the sides by order or equality.
    """
    if condition is None:
        return None
    parts = conjuncts(condition)
    terms_by_point: dict[object, list[_Term]] = {}
    for number, part in enumerate(parts):
        for limit in _limits(part, build_side):
            terms_by_point.setdefault(limit.build.structure, []).append(_Term(number, limit))
    axes: list[tuple[Axis, set[int]]] = []
    for terms in terms_by_point.values():
        axis = _axis(terms)
        if axis is not None:
            axes.append((axis, {term.number for term in terms if not term.limit.tested}))
    if not axes:
        return None
    axes.sort(key=lambda item: not item[0].closed)
    best = axes[:1] if axes[0][0].closed else axes[:MOST_AXES]
    if axes[0][0].closed and len(axes) > 1 and axes[1][0].closed:
        best = axes[:MOST_AXES]
    numbers_in_axes = {number for _, numbers in best for number in numbers}
    rest = [part for number, part in enumerate(parts) if number not in numbers_in_axes]
    return RangedCondition(tuple(axis for axis, _ in best), all_of(rest))


def all_of(parts: Iterable[Expression]) -> Expression | None:
    """Conjunction of resolved conditions; ``None`` of an empty list."""
    whole: Expression | None = None
    for part in parts:
        whole = part if whole is None else Call(function=Function.AND, arguments=(whole, part), type=pa.bool_())
    return whole


@dataclass(frozen=True)
class _Term:
    """A bound with the number of its conjunct."""

    number: int
    limit: _Limit


@dataclass(frozen=True)
class _Limit:
    """A bound of an axis, with the widest difference of its type, and whether the comparison must be tested as well."""

    build: Expression
    bound: Bound
    widest: int | None = None
    tested: bool = False


def _limits(part: Expression, build_side: Side) -> list[_Limit]:
    """Bounds that a conjunct sets: one for a comparison, one or two for a difference, else none."""
    if not isinstance(part, Call) or part.function not in _COMPARISONS:
        return []
    left, right = part.arguments
    comparison = _COMPARISONS[part.function]
    across = _across(left, right, build_side)
    if across is not None:
        build, probe, turned = across
        return [_Limit(build, Bound(comparison.flipped if turned else comparison, probe))]
    if len(left.sides()) < len(right.sides()):
        left, right, comparison = right, left, comparison.flipped
    return _within(left, right, comparison, build_side)


def _across(left: Expression, right: Expression, build_side: Side) -> tuple[Expression, Expression, bool] | None:
    """Build-side expression, probe-side expression, and whether their order was reversed."""
    sides = left.sides(), right.sides()
    if sides == (frozenset({build_side}), frozenset({build_side.other})):
        return left, right, False
    if sides == (frozenset({build_side.other}), frozenset({build_side})):
        return right, left, True
    return None


def _within(distance: Expression, most: Expression, comparison: Comparison, build_side: Side) -> list[_Limit]:
    """``abs(a - b) <= c``, or without ``abs``: ``b`` is between ``a - c`` and ``a + c``.

    The range is exact for integers, short decimals and dates. Differences of floats are rounded, so their range is a
    little wider, and the comparison is tested as well.
    """
    distance = _unwidened(distance)
    absolute = isinstance(distance, Call) and distance.function is Function.ABS
    difference = _unwidened(distance.children[0]) if absolute else distance
    if not isinstance(difference, Call) or difference.function not in (Function.SUBTRACT, Function.DATE_DIFF):
        return []
    left, right = difference.arguments
    across = _across(left, right, build_side)
    constant = _constant(most)
    if across is None or difference.type is None:
        return []
    build, probe, turned = across
    if constant is None:
        return _within_column(difference, across, most, comparison, absolute=absolute)
    kinds = _BOUNDED[comparison]
    if absolute:
        kinds = () if comparison not in (Comparison.LESS, Comparison.AT_MOST) else kinds
    reads: list[_Limit] = []
    for upper, strict in kinds:
        reach = _reach(difference, constant, upper=upper, strict=strict)
        if reach is None:
            return []
        limits = [(upper, reach)] if not absolute else [(True, reach), (False, -reach)]
        for at_most, value in limits:
            # The difference is build - probe, or probe - build where it is turned.
            if turned == at_most:
                bound = Bound(Comparison.AT_LEAST, probe, -value if turned else value)
            else:
                bound = Bound(Comparison.AT_MOST, probe, -value if turned else value)
            reads.append(_Limit(build, bound, _widest(difference), isinstance(value, float)))
    return reads


def _within_column(
    difference: Call,
    across: tuple[Expression, Expression, bool],
    most: Expression,
    comparison: Comparison,
    *,
    absolute: bool,
) -> list[_Limit]:
    """``abs(a - b) <= c`` of integers or dates, where ``c`` is an integer of the probe side."""
    build, probe, turned = across
    if comparison not in (Comparison.LESS, Comparison.AT_MOST) or most.sides() != probe.sides():
        return []
    if most.type is None or not pat.is_signed_integer(most.type):
        return []
    if _reach(difference, Decimal(0), upper=True, strict=False) is None or pat.is_decimal(difference.type):
        return []
    if pat.is_floating(difference.type):
        return []
    offset = -1 if comparison is Comparison.LESS else 0
    ends = [Comparison.AT_LEAST if turned else Comparison.AT_MOST]
    if absolute:
        ends = [Comparison.AT_MOST, Comparison.AT_LEAST]
    return [_Limit(build, Bound(end, probe, offset, most), _widest(difference)) for end in ends]


_BOUNDED = {
    Comparison.LESS: ((True, True),),
    Comparison.AT_MOST: ((True, False),),
    Comparison.EQUAL: ((True, False), (False, False)),
    Comparison.AT_LEAST: ((False, False),),
    Comparison.GREATER: ((False, True),),
}
"""Bounds that a comparison sets: whether it is an upper bound, and whether it is exclusive."""


def _reach(difference: Call, constant: Decimal | float, *, upper: bool, strict: bool) -> int | Decimal | float | None:
    """Largest difference allowed, in units of its type; ``None`` where it has no exact value."""
    types = [argument.type for argument in difference.arguments]
    dtype = difference.type
    assert dtype is not None
    if pat.is_floating(dtype):
        # A difference that is NaN is greater than all else, so no upper bound holds for it.
        return float(constant) if upper and math.isfinite(constant) else None
    if isinstance(constant, float):
        return None
    if difference.function is Function.DATE_DIFF:
        fits, scale = all(t is not None and pat.is_date32(t) for t in types), 0
    elif pat.is_decimal(dtype):
        fits, scale = _exact_difference(types, dtype), dtype.scale
    else:
        fits, scale = (
            pat.is_signed_integer(dtype) and all(t is not None and pat.is_integer(t) for t in types),
            0,
        )
    if not fits:
        return None
    units = constant.scaleb(scale, _EXACT)
    whole = math.floor(units) if upper != strict else math.ceil(units)
    whole += (-1 if upper else 1) if strict else 0
    return whole if scale == 0 and not pat.is_decimal(dtype) else Decimal(whole).scaleb(-scale, _EXACT)


_EXACT = Context(prec=100)


def _exact_difference(types: Sequence[pa.DataType | None], result: pa.DataType) -> bool:
    """Whether the type of the result holds every difference of decimals of these types exactly."""
    if not all(t is not None and pat.is_decimal(t) for t in types):
        return False
    scale = max(t.scale for t in types if t is not None)
    digits = max(t.precision - t.scale for t in types if t is not None) + scale + 1
    return bool(result.scale == scale and result.precision >= digits)


def _widest(difference: Call) -> int | None:
    """Largest difference that the type of whole numbers holds."""
    dtype = difference.type
    return (1 << (dtype.bit_width - 1)) - 1 if dtype is not None and pat.is_signed_integer(dtype) else None


def _unwidened(node: Expression) -> Expression:
    """Drop casts that keep every value of a number."""
    while isinstance(node, Cast) and node.child.type is not None and _keeps(node.child.type, node.type):
        node = node.child
    return node


def _keeps(source: pa.DataType, target: pa.DataType | None) -> bool:
    if target is None:
        return False
    if pat.is_signed_integer(source) and pat.is_signed_integer(target):
        return bool(source.bit_width <= target.bit_width)
    if pat.is_float32(source) and pat.is_float64(target):
        return True
    if pat.is_decimal(source) and pat.is_decimal(target):
        whole = target.precision - target.scale >= source.precision - source.scale
        return bool(whole and target.scale >= source.scale)
    return False


def _constant(node: Expression) -> Decimal | float | None:
    """Give the value of a constant number, which may be cast to a type that holds it."""
    if isinstance(node, Cast):
        value = _constant(node.child)
        if value is None or node.type is None:
            return None
        if pat.is_signed_integer(node.type):
            whole = not isinstance(value, float) and value == int(value)
            return value if whole and abs(int(value)) >> (node.type.bit_width - 1) == 0 else None
        if pat.is_float64(node.type) and isinstance(value, Decimal) and value == int(value):
            return float(value) if abs(value) < 1 << 53 else None
        is_exact = node.child.type is not None and _keeps(node.child.type, node.type)
        return value if is_exact else None
    if not isinstance(node, Literal) or isinstance(node.value, bool):
        return None
    if isinstance(node.value, (int, Decimal)):
        value = Decimal(node.value)
        return value if value.is_finite() else None
    return node.value if isinstance(node.value, float) else None


def _axis(terms: list[_Term]) -> Axis | None:
    limits = [term.limit for term in terms]
    build = limits[0].build
    common = order_type([build.type, *(limit.bound.probe.type for limit in limits)])
    if common is None:
        return None
    offsets = [limit.bound.offset for limit in limits if limit.bound.offset]
    if any(isinstance(offset, float) for offset in offsets):
        if not pat.is_floating(common):
            return None
        common = pa.float64()
    if any(isinstance(offset, Decimal) for offset in offsets) and not _narrow_decimal(common):
        return None
    widest = min((limit.widest for limit in limits if limit.widest is not None), default=None)
    if widest is not None and not (pat.is_signed_integer(common) or pat.is_date32(common)):
        return None
    return Axis(build, tuple(limit.bound for limit in limits), common, widest)


def _narrow_decimal(dtype: pa.DataType) -> bool:
    return bool(pat.is_decimal(dtype) and dtype.precision <= LONG_DIGITS)


def order_type(types: Iterable[pa.DataType | None]) -> pa.DataType | None:
    """Find the type that orders values of some types without loss; ``None`` if there is none.

    Booleans, numbers, dates, timestamps, times, durations, text and bytes have an order; nested types are left out.
    """
    common: pa.DataType | None = None
    for dtype in types:
        if dtype is None:
            return None
        own = plain(dtype)
        if pat.is_nested(own) or pat.is_null(own) or pat.is_interval(own):
            return None
        if pat.is_time(own) or pat.is_duration(own):
            merged = own if common in (None, own) else None
        else:
            try:
                merged = key_type(own, own if common is None else common)
            except KeyTypeError:
                return None
        if merged is None:
            return None
        common = merged
    if common is None:
        return None
    if is_text(common):
        return pa.large_string()
    return pa.large_binary() if is_bytes(common) else common


def shape_of(
    join_type: JoinType, keys: int, condition: Expression | None, build_side: Side, *, as_of: bool = False
) -> Shape:
    """Shape in which a join is computed."""
    if as_of:
        return Shape.AS_OF
    if join_type.null_aware:
        return Shape.NOT_IN
    if keys:
        return Shape.EQUALITY
    return Shape.PRODUCT if extract_ranges(condition, build_side) is None else Shape.RANGE


def better_build_side(condition: Expression | None, legal: tuple[Side, ...]) -> Side | None:
    """Give the only allowed side on which one closed axis covers all comparisons; ``None`` otherwise.

    One axis takes a binary search. Two axes take a wavelet matrix, unless they ascend together.
    """
    single = [
        side
        for side in legal
        if (ranged := extract_ranges(condition, side)) is not None and len(ranged.axes) == 1 and ranged.axes[0].closed
    ]
    return single[0] if len(single) == 1 and len(legal) > 1 else None


def shape_of_node(node: Join) -> Shape:
    """Shape in which a join of a tree is computed."""
    spec = node.spec
    as_of = spec.as_of is not None
    without_keys = spec.join_type in (JoinType.INNER, JoinType.CROSS) and not spec.keys
    if without_keys and _has_one_row(node.side(node.build_side)):
        return Shape.ONE_ROW
    return shape_of(spec.join_type, len(spec.keys), spec.condition, node.build_side, as_of=as_of)


def _has_one_row(relation: Relation) -> bool:
    match relation:
        case PartialAggregate():
            return relation.final and not relation.keys
        case Project():
            return _has_one_row(relation.child)
        case Join():
            return relation.spec.join_type is JoinType.CROSS and all(map(_has_one_row, relation.children))
    return False
