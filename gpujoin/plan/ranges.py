"""Which conjuncts of a condition are searched by order, and in what shape a join is thereby computed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import KeyTypeError
from gpujoin.model.expressions import Call, Cast, Expression, Function, Literal, conjuncts
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.types import is_bytes, is_text, plain
from gpujoin.plan.key_types import key_type

MOST_AXES = 2
"""So many build-side expressions are searched at once; comparisons with others are tested pair by pair."""

LEAST_SPREAD = 16
"""With equality keys a range is searched only where a row meets at least so many rows of equal key on average; fewer
are compared faster one by one: `benchmarks/engine/README.md`, "ranges within keys"."""


class Shape(Enum):
    """How the matches of a row are found; values are for people, with the cost in rows n and pairs found m."""

    EQUALITY = "equality: n + m"
    RANGE = "range: n log n + m"
    NOT_IN = "not in: n for each pair of null patterns"
    AS_OF = "as-of: n log n"
    PRODUCT = "product: quadratic, n × n pairs are looked at"

    @property
    def quadratic(self) -> bool:
        """Whether the cost grows with the product of the sides."""
        return self is Shape.PRODUCT


class Comparison(Enum):
    """How the build side's value relates to the probe side's."""

    LESS = "<"
    AT_MOST = "<="
    EQUAL = "="
    AT_LEAST = ">="
    GREATER = ">"

    @property
    def flipped(self) -> Comparison:
        """The same with the operands exchanged."""
        return _FLIPPED[self]


_FLIPPED = {
    Comparison.LESS: Comparison.GREATER,
    Comparison.AT_MOST: Comparison.AT_LEAST,
    Comparison.EQUAL: Comparison.EQUAL,
    Comparison.AT_LEAST: Comparison.AT_MOST,
    Comparison.GREATER: Comparison.LESS,
}
_COMPARISONS = {
    Function.LT: Comparison.LESS,
    Function.LE: Comparison.AT_MOST,
    Function.EQ: Comparison.EQUAL,
    Function.GE: Comparison.AT_LEAST,
    Function.GT: Comparison.GREATER,
}


@dataclass(frozen=True)
class Bound:
    """One comparison of an axis with a probe-side expression.

    Attributes
    ----------
    comparison : Comparison
        How the axis relates to the expression.
    probe : Expression
        Reads the probe side alone.
    offset : int
        Added to the expression's value; only of integers.
    """

    comparison: Comparison
    probe: Expression
    offset: int = 0


@dataclass(frozen=True)
class Axis:
    """A build-side expression by whose order rows are searched.

    Attributes
    ----------
    build : Expression
        Reads the build side alone.
    bounds : tuple of Bound
        All that it is compared with.
    type : pyarrow.DataType
        In which values of both sides are ordered; each converts to it without loss.
    widest : int or None
        Where a distance is compared: the largest that its type holds; of pairs farther apart the distance has no value.
    """

    build: Expression
    bounds: tuple[Bound, ...]
    type: pa.DataType
    widest: int | None = None

    @property
    def closed(self) -> bool:
        """Whether it is bounded from below and from above."""
        kinds = {bound.comparison for bound in self.bounds}
        return Comparison.EQUAL in kinds or (
            bool(kinds & {Comparison.LESS, Comparison.AT_MOST})
            and bool(kinds & {Comparison.AT_LEAST, Comparison.GREATER})
        )


@dataclass(frozen=True)
class RangeSplit:
    """A condition, split.

    Attributes
    ----------
    axes : tuple of Axis
        At most :data:`MOST_AXES`.
    residual : Expression or None
        The other conjuncts.
    """

    axes: tuple[Axis, ...]
    residual: Expression | None


def split_ranges(condition: Expression | None, build_side: Side) -> RangeSplit | None:
    """Split a resolved condition into ranges and the rest, for a given build side.

    Parameters
    ----------
    condition : Expression or None
        Resolved.
    build_side : Side
        The side whose rows are sorted.

    Returns
    -------
    RangeSplit or None
        ``None`` if no conjunct compares the sides by order or equality.
    """
    if condition is None:
        return None
    parts = conjuncts(condition)
    found: dict[object, list[_Term]] = {}
    for number, part in enumerate(parts):
        for build, bound, widest in _read(part, build_side):
            found.setdefault(build.signature(), []).append(_Term(number, build, bound, widest))
    axes: list[tuple[Axis, set[int]]] = []
    for terms in found.values():
        axis = _axis(terms)
        if axis is not None:
            axes.append((axis, {term.number for term in terms}))
    if not axes:
        return None
    axes.sort(key=lambda item: not item[0].closed)
    chosen = axes[:1] if axes[0][0].closed else axes[:MOST_AXES]
    if axes[0][0].closed and len(axes) > 1 and axes[1][0].closed:
        chosen = axes[:MOST_AXES]
    used = {number for _, numbers in chosen for number in numbers}
    rest = [part for number, part in enumerate(parts) if number not in used]
    return RangeSplit(tuple(axis for axis, _ in chosen), all_of(rest))


def all_of(parts: Iterable[Expression]) -> Expression | None:
    """Conjunction of resolved conditions; ``None`` of none."""
    whole: Expression | None = None
    for part in parts:
        whole = (
            part if whole is None else Call(function=Function.AND, arguments=(whole, part), type=pa.bool_())
        )
    return whole


@dataclass(frozen=True)
class _Term:
    """A bound with the number of its conjunct."""

    number: int
    build: Expression
    bound: Bound
    widest: int | None


def _read(part: Expression, build_side: Side) -> list[tuple[Expression, Bound, int | None]]:
    """A conjunct as axis, bound, and widest distance: one bound of a comparison, two of a distance, else none."""
    if not isinstance(part, Call) or part.function not in _COMPARISONS:
        return []
    one, two = part.arguments
    comparison = _COMPARISONS[part.function]
    across = _across(one, two, build_side)
    if across is not None:
        build, probe, turned = across
        return [(build, Bound(comparison.flipped if turned else comparison, probe), None)]
    if _whole_number(one) is not None:
        one, two, comparison = two, one, comparison.flipped
    return _within(one, two, comparison, build_side)


def _across(one: Expression, two: Expression, build_side: Side) -> tuple[Expression, Expression, bool] | None:
    """Build-side expression, probe-side expression, and whether they were the other way round."""
    sides = one.sides(), two.sides()
    if sides == (frozenset({build_side}), frozenset({build_side.other})):
        return one, two, False
    if sides == (frozenset({build_side.other}), frozenset({build_side})):
        return two, one, True
    return None


def _within(
    distance: Expression, most: Expression, comparison: Comparison, build_side: Side
) -> list[tuple[Expression, Bound, int | None]]:
    """``abs(a - b) <= constant`` of integers: ``b`` is between ``a - constant`` and ``a + constant``."""
    if not isinstance(distance, Call) or distance.function is not Function.ABS:
        return []
    (difference,) = distance.arguments
    if not isinstance(difference, Call) or difference.function is not Function.SUBTRACT:
        return []
    dtype = difference.type
    constant = _whole_number(most)
    if dtype is None or not pat.is_signed_integer(dtype) or constant is None:
        return []
    if comparison not in (Comparison.LESS, Comparison.AT_MOST):
        return []
    one, two = difference.arguments
    across = _across(one, two, build_side)
    if across is None or not all(
        argument.type is not None and pat.is_integer(argument.type) for argument in difference.arguments
    ):
        return []
    build, probe, _ = across
    reach = constant - (comparison is Comparison.LESS)
    widest = (1 << (dtype.bit_width - 1)) - 1
    return [
        (build, Bound(Comparison.AT_LEAST, probe, -reach), widest),
        (build, Bound(Comparison.AT_MOST, probe, reach), widest),
    ]


def _whole_number(node: Expression) -> int | None:
    """The value of an integer constant, or of one that is cast to an integer type that holds it."""
    if isinstance(node, Cast) and node.type is not None and pat.is_signed_integer(node.type):
        value = _whole_number(node.child)
        return value if value is not None and abs(value) >> (node.type.bit_width - 1) == 0 else None
    if isinstance(node, Literal) and type(node.value) is int:
        return node.value
    return None


def _axis(terms: list[_Term]) -> Axis | None:
    build = terms[0].build
    common = order_type([build.type, *(term.bound.probe.type for term in terms)])
    if common is None or (
        any(term.widest is not None for term in terms) and not pat.is_signed_integer(common)
    ):
        return None
    widest = min((term.widest for term in terms if term.widest is not None), default=None)
    return Axis(build, tuple(term.bound for term in terms), common, widest)


def order_type(types: Iterable[pa.DataType | None]) -> pa.DataType | None:
    """Find the type in which values of some types are ordered without loss; ``None`` if there is none.

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
    """Say in which shape a join is computed."""
    if as_of:
        return Shape.AS_OF
    if join_type is JoinType.NULL_AWARE_ANTI:
        return Shape.NOT_IN
    if keys:
        return Shape.EQUALITY
    return Shape.PRODUCT if split_ranges(condition, build_side) is None else Shape.RANGE


def better_build_side(condition: Expression | None, legal: tuple[Side, ...]) -> Side | None:
    """The only side on which one closed axis serves all comparisons, if that is so of one legal side alone.

    One axis is one binary search; two take a wavelet matrix, unless they ascend together.
    """
    single = [
        side
        for side in legal
        if (split := split_ranges(condition, side)) is not None
        and len(split.axes) == 1
        and split.axes[0].closed
    ]
    return single[0] if len(single) == 1 and len(legal) > 1 else None
