"""Plans a join of two streams: late rows, evictions of state, and the tests of each step.

A row stays in the state of its side until no row that may still come can match it. The condition and the watermark
say when. An example with a watermark W on both sides, and ``r.u >= l.t AND r.u <= l.t + 5 s``::

    l.t <= W - 5001 ms   goes: a right row that comes has u > W, and l.t >= u - 5 s
    r.u <= W - 1 ms      goes: a left row that comes has t > W, and r.u >= t

These are Spark's rules, to the letter, also where others would do: an eviction earlier or later would give other rows,
or the same rows in another batch. Spark counts watermarks and thresholds in milliseconds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.comparison import MIRRORED
from gpujoin.functions.dates import interval_micros
from gpujoin.model.expressions import Call, Cast, ColumnRef, Expression, Function, Literal, conjuncts
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, NullEquality
from gpujoin.model.types import is_numeric
from gpujoin.plan.ranges import all_of
from gpujoin.streams.join import StreamJoin, TimeColumn

MILLISECOND = 1000
_SECOND = 1_000_000.0
_LIMIT = 1 << 63


def _wrapped(number: int) -> int:
    """A number as a long that has wrapped around."""
    return (number + _LIMIT) % (2 * _LIMIT) - _LIMIT


class EvictedBy(Enum):
    """What the event time of a row in the state is read from."""

    KEY = "an equality key"
    """Rows of both sides go, even if only one has a watermark: their keys are equal."""
    VALUE = "the side's event time"


@dataclass(frozen=True, slots=True)
class WatermarkBound:
    """A bound of one side's event times that follows from one comparison and the watermark of the other side."""

    counted: bool
    """Whether the bound moves with the watermark."""
    offset: float
    """Microseconds added to it."""
    inclusive: bool
    """Whether a row at the bound itself may still match."""

    def threshold_ms(self, watermark_ms: int) -> int:
        """Last millisecond whose rows may go. Computed in doubles and cut towards zero, as Spark does.

        No number is 0, and numbers beyond 64 bits are the last within, as where Java makes longs of doubles.
        """
        micros = self.offset + (float(watermark_ms) * 1000.0 if self.counted else 0.0)
        within = 0.0 if math.isnan(micros) else min(max(micros / 1000.0, -float(_LIMIT)), float(_LIMIT))
        return _wrapped(min(int(within), _LIMIT - 1) - int(self.inclusive))


@dataclass(frozen=True, slots=True)
class Eviction:
    """When a row of one side's state goes."""

    by: EvictedBy
    """Whether the time is a key or the side's event time."""
    time: TimeColumn
    """Column of the side that holds the time. Rows whose time is null never go."""
    bounds: tuple[WatermarkBound, ...]
    """Bounds, of which the lowest counts."""

    def threshold(self, watermark_ms: int) -> int:
        """Time in microseconds; rows at or before it go. Wraps where Spark's product of longs does."""
        return _wrapped(min(bound.threshold_ms(watermark_ms) for bound in self.bounds) * MILLISECOND)


@dataclass(frozen=True, slots=True)
class TimeBand:
    """Distances in time at which two rows can match."""

    low: int | None
    high: int | None
    """Least and greatest difference of the right row's time and the left row's, in microseconds; ``None``: any."""
    null_matches_null: bool = False
    """Whether rows without a time can match each other."""

    def excludes(self, side: Side, own: tuple[int, int] | None, other: tuple[int, int] | None) -> bool:
        """Whether no row of one side matches any of the other, given the least and the greatest time of both.

        ``own`` are those of the rows of ``side``, of which all have a time; ``None``: none has. ``other`` are those of
        the rows of the other side that have one; ``None``: none has.
        """
        if own is None:
            return not self.null_matches_null
        if other is None:
            return True
        left, right = (own, other) if side is Side.LEFT else (other, own)
        too_early = self.low is not None and right[1] - left[0] < self.low
        too_late = self.high is not None and right[0] - left[1] > self.high
        return too_early or too_late


@dataclass(frozen=True)
class StreamPlan:
    """Everything about a join of streams that does not depend on its rows."""

    join: StreamJoin
    """The join."""
    spec: JoinSpec
    """The join of rows that pass the filters of their side."""
    filters: Mapping[Side, Expression | None]
    """Conjuncts that read one side alone: rows that fail them match nothing and are not kept."""
    late: Mapping[Side, TimeColumn | None]
    """Event time by which rows of a side are late; ``None``: none are."""
    evictions: Mapping[Side, Eviction | None]
    """When rows of a side's state go; ``None``: they are kept for ever."""
    times: Mapping[Side, TimeColumn | None]
    """Time by which the state of a side is ordered."""
    band: TimeBand | None
    """Distances of ``times`` at which rows match; ``None``: any."""

    def threshold(self, side: Side, watermark_ms: int) -> int | None:
        """Time in microseconds at or before which rows of a side go; ``None``: all are kept."""
        eviction = self.evictions[side]
        return None if eviction is None else eviction.threshold(watermark_ms)

    def padded(self, side: Side) -> bool:
        """Whether rows of a side without a match are returned, padded with nulls."""
        return self.spec.join_type.preserves(side)

    def marks(self, side: Side) -> bool:
        """Whether the matched rows of a side are marked."""
        return self.padded(side) or (self.ends_at_match and side is Side.LEFT)

    @property
    def ends_at_match(self) -> bool:
        """Whether a left row is returned at its first match, and not kept."""
        return self.spec.join_type is JoinType.LEFT_SEMI


def plan_stream_join(join: StreamJoin) -> StreamPlan:
    """Plan a join of two streams, whose condition is resolved."""
    filters, condition = _split(join.spec.condition)
    keys = join.spec.keys
    if join.spec.join_type is JoinType.FULL:
        # Below other joins Spark filters null keys out; the operator itself compares keys as bytes.
        keys = tuple(dataclasses.replace(key, nulls=NullEquality.EQUAL) for key in keys)
    spec = dataclasses.replace(join.spec, condition=condition, keys=keys)
    late = {side: _event_time(join, side) for side in Side}
    evictions = {side: _eviction(join, side) for side in Side}
    times: dict[Side, TimeColumn | None] = {}
    for side in Side:
        eviction = evictions[side]
        times[side] = late[side] if eviction is None else eviction.time
    plan = StreamPlan(join, spec, filters, late, evictions, times, None)
    return dataclasses.replace(plan, band=_band(plan))


def _event_time(join: StreamJoin, side: Side) -> TimeColumn | None:
    """Give the event time of a side that counts, its first."""
    columns = join.times(side)
    return TimeColumn.from_schema(join.schema(side), columns[0]) if columns else None


def _split(condition: Expression | None) -> tuple[dict[Side, Expression | None], Expression | None]:
    """Split a condition into conjuncts of one side each, and of both."""
    parts = [] if condition is None else conjuncts(condition)
    filters = {side: all_of(part for part in parts if part.sides() <= {side}) for side in Side}
    return filters, all_of(part for part in parts if len(part.sides()) == 2)


# -- eviction ----------------------------------------------------------------------------------------------------


def _eviction(join: StreamJoin, side: Side) -> Eviction | None:
    """When rows of one side go: by a key that is an event time on either side, else by the side's own event time."""
    number = _key_in_time(join)
    if number is not None:
        column = TimeColumn.from_schema(join.schema(side), join.spec.keys[number].of(side))
        return Eviction(EvictedBy.KEY, column, (WatermarkBound(True, 0.0, False),))
    time = _event_time(join, side)
    if time is None or not join.times(side.other) or join.spec.condition is None:
        return None
    bounds = tuple(bound for part in conjuncts(join.spec.condition) if (bound := _bound(join, side, part)) is not None)
    return Eviction(EvictedBy.VALUE, time, bounds) if bounds else None


def _key_in_time(join: StreamJoin) -> int | None:
    """Give the first key that is an event time on the left, else on the right."""
    for side in Side:
        for number, key in enumerate(join.spec.keys):
            if key.of(side) in join.times(side):
                return number
    return None


class _UnsolvedError(Exception):
    """A comparison has a form that says nothing of the state."""


@dataclass(frozen=True, slots=True)
class _Term:
    """A summand: a column, or a number of microseconds."""

    negated: bool
    column: ColumnRef | None
    micros: float = 0.0

    def is_of(self, side: Side) -> bool:
        """Whether it is a column of a side."""
        return self.column is not None and self.column.side is side


def _bound(join: StreamJoin, side: Side, part: Expression) -> WatermarkBound | None:
    """The bound that a conjunct ``… < own time + …`` sets for the own side, from the other side's watermark."""
    if not isinstance(part, Call) or part.function not in MIRRORED:
        return None
    less, greater = part.arguments
    if part.function in (Function.GT, Function.GE):
        less, greater = greater, less
    try:
        counted, offset = _solved(join, side, less, greater)
    except _UnsolvedError:
        return None
    return WatermarkBound(counted, offset, part.function in (Function.LE, Function.GE))


def _solved(join: StreamJoin, side: Side, less: Expression, greater: Expression) -> tuple[bool, float]:
    """Solve ``less < greater`` for the own column: ``other time + offset < own column``.

    Raises
    ------
    _UnsolvedError
        If it bounds the own column from above, or reads anything else than one column of each side and constants.
    """
    columns = {(c.side, c.index) for c in (*less.columns(), *greater.columns())}
    if any(sum(at is each for at, _ in columns) > 1 for each in Side):
        raise _UnsolvedError
    if any(index == computed for at, index in columns for computed, _ in join.computed(at)):
        raise _UnsolvedError
    terms = [*_terms(less, negated=False), *_terms(greater, negated=True)]
    own = [term for term in terms if term.is_of(side)]
    rest = [term for term in terms if not term.is_of(side)]
    if len(own) != 1 or not own[0].negated or not rest:
        raise _UnsolvedError
    counted, offset = False, 0.0
    for term in rest:
        if term.column is not None:
            if term.negated or term.column.index not in join.times(side.other) or counted:
                raise _UnsolvedError
            counted = True
        else:
            offset += -term.micros if term.negated else term.micros
    return counted, offset


def _terms(node: Expression, *, negated: bool) -> list[_Term]:
    """Summands of an expression, in microseconds; numbers count as seconds."""
    match node:
        case Call(function=Function.ADD | Function.TIMESTAMP_ADD):
            first, second = node.arguments
            return [*_terms(first, negated=negated), *_terms(second, negated=negated)]
        case Call(function=Function.SUBTRACT):
            first, second = node.arguments
            return [*_terms(first, negated=negated), *_terms(second, negated=not negated)]
        case Call(function=Function.NEGATE):
            return _terms(node.arguments[0], negated=not negated)
        case Cast(type=target) if target is not None and (is_numeric(target) or _is_zoned(target)):
            return _terms(node.child, negated=negated)
        case ColumnRef():
            return [_Term(negated, node)]
        case Literal():
            return [_constant(node, negated=negated)]
    raise _UnsolvedError


def _constant(node: Literal, *, negated: bool) -> _Term:
    value, dtype = node.value, node.type
    if value is None or dtype is None:
        raise _UnsolvedError
    interval = interval_micros(node)
    if interval is not None:
        return _Term(negated, None, float(interval))
    if is_numeric(dtype):
        return _Term(negated, None, float(value) * _SECOND)
    # A constant time is none that Spark's helper can compute with.
    raise _UnsolvedError


def _is_zoned(dtype: pa.DataType) -> bool:
    return bool(pat.is_timestamp(dtype) and dtype.tz is not None)


# -- bands -------------------------------------------------------------------------------------------------------


def _band(plan: StreamPlan) -> TimeBand | None:
    """Distances in time at which rows match, from equal keys and from comparisons of times shifted by constants."""
    left, right = plan.times[Side.LEFT], plan.times[Side.RIGHT]
    if left is None or right is None:
        return None
    for key in plan.spec.keys:
        if (key.left, key.right, left.field) == (left.column, right.column, right.field):
            return TimeBand(0, 0, null_matches_null=key.nulls is NullEquality.EQUAL)
    parts = [] if plan.spec.condition is None else conjuncts(plan.spec.condition)
    limits = [limit for part in parts if (limit := _distance(part, left, right)) is not None]
    low = max((low for low, _ in limits if low is not None), default=None)
    high = min((high for _, high in limits if high is not None), default=None)
    return None if low is None and high is None else TimeBand(low, high)


def _distance(part: Expression, left: TimeColumn, right: TimeColumn) -> tuple[int | None, int | None] | None:
    """Least and greatest difference of the right time and the left that a comparison allows."""
    if not isinstance(part, Call) or part.function not in (*MIRRORED, Function.EQ):
        return None
    less, greater = (_moment(argument) for argument in part.arguments)
    if part.function in (Function.GT, Function.GE):
        less, greater = greater, less
    if less is None or greater is None or {less[0].side, greater[0].side} != set(Side):
        return None
    for column, _ in (less, greater):
        time = left if column.side is Side.LEFT else right
        if time.field is not None or column.index != time.column:
            return None
    # less + a <= greater + b, strictly or not.
    gap = less[1] - greater[1] + (part.function in (Function.LT, Function.GT))
    low, high = (gap, None) if less[0].side is Side.LEFT else (None, -gap)
    if part.function is Function.EQ:
        exact = gap if less[0].side is Side.LEFT else -gap
        return exact, exact
    return low, high


def _moment(node: Expression) -> tuple[ColumnRef, int] | None:
    """A column, and the microseconds added to it."""
    if isinstance(node, ColumnRef):
        return node, 0
    if not isinstance(node, Call) or node.function is not Function.TIMESTAMP_ADD:
        return None
    moment, shift = _moment(node.arguments[0]), interval_micros(node.arguments[1])
    return None if moment is None or shift is None else (moment[0], moment[1] + shift)
