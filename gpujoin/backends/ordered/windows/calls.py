"""Computes the calls of a window for all rows.

Aggregates of a row are over the places of its frame, from ``lows`` to before ``highs``. Counts, and exact sums of
integers and decimals, are differences of running ones. Least and greatest values are found by codes, and
taken from their places.

The sum over places 2 and 3 is the sum of the first four
values less that of the first two. This is exact also where sums wrap. It would not be for floats, whose digits get
lost, and where infinity less infinity is NaN. Those are added one after the other, as Spark does: along the partition
if frames begin there, and by the places of a frame if it is short. In longer frames the sums of blocks of 1, 2, 4, …
places are added.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from gpujoin.backends.ordered.ops import Array
from gpujoin.backends.ordered.reductions import all_true
from gpujoin.backends.ordered.windows.rows import Codes, RowOps, SortedRows, dense
from gpujoin.backends.ordered.windows.spans import Presence, Span, running
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.expressions import EvalMode
from gpujoin.model.types import is_float, is_whole
from gpujoin.model.windows import SLIDING, AnyWindowCall, Frame, FramedAggregate, WindowCall, WindowFunction


@dataclass(frozen=True, eq=False)
class Numbers:
    """A number for each row."""

    data: Array
    """Values; of decimals the unscaled ones, or the high 64 bits of these."""
    valid: Array | None = None
    """False where null; ``None``: nowhere."""
    low: Array | None = None
    """Low 64 bits of decimals, as uint64; ``None``: ``data`` is the whole number."""


@dataclass(frozen=True, eq=False)
class Places:
    """A place for each row, from which the value of the call's argument is taken."""

    at: Array
    """Places; they mean nothing where not valid."""
    valid: Array
    """False where there is no such place."""


Result: TypeAlias = Numbers | Places


LARGEST = (1 << 63) - 1
_ADDED_IN_ORDER = 32
"""Longest frames whose floats are added place by place: each place costs one addition of whole columns, while sums of
blocks cost two for each doubling of the length."""
_LIMB = 32
_MASK = (1 << _LIMB) - 1
_LIMB_RANGE = 1 << (_LIMB - 1)


def sum_integers(ops: RowOps, call: AggregateCall, numbers: Array, span: Span, *, may_wrap: bool) -> Array:
    """Sum integers, which wrap around. Raises ``ExpressionEvaluationError`` in ANSI mode if a sum might overflow."""
    if not may_wrap or call.mode is not EvalMode.ANSI:
        return span.total(running(ops, numbers))
    # Spark adds the values of a frame one after the other, and fails where that overflows on the way. The largest sum
    # on the way is one of those over the frame's first places; where frames are not running ones, that of all absolute
    # values is more than any.
    xp = ops.xp
    limbs = [numbers & _MASK, numbers >> _LIMB]
    low, high = _limb_sums(ops, limbs, span)
    if span.from_start:
        ends = xp.arange(1, numbers.shape[0] + 1, dtype="int64")
        starts = Span(span.lows, ends, from_start=True, longest=None)
        largest = xp.concatenate([high, _limb_sums(ops, limbs, starts)[1]])
    else:
        largest = span.total(running(ops, xp.abs(numbers >> _LIMB) + 1))
    if not all_true((largest >= -_LIMB_RANGE) & (largest < _LIMB_RANGE)):
        raise ExpressionEvaluationError(
            f"{call}: a sum overflows int64; cast to a decimal, or set spark.sql.ansi.enabled to false"
        )
    return (high << _LIMB) | low


def _limb_sums(ops: RowOps, limbs: Sequence[Array], span: Span) -> list[Array]:
    """Sums over frames of integers in limbs of 32 bits, the lowest first; the last one is signed, and may be longer."""
    sums: list[Array] = []
    carry: Array | None = None
    for number, limb in enumerate(limbs):
        total = span.total(running(ops, limb))
        if carry is not None:
            total = total + carry
        if number == len(limbs) - 1:
            return [*sums, total]
        carry = total >> _LIMB
        sums.append(total & _MASK)
    raise AssertionError("no limbs")


def sum_words(ops: RowOps, numbers: Array, span: Span, precision: int) -> Numbers:
    """Sum unscaled decimals of 64 bits; null where the sum has more digits than its type."""
    sums = span.total(running(ops, numbers))
    limit = 10**precision
    return Numbers(sums, (sums < limit) & (sums > -limit) if limit <= LARGEST else None)


def sum_limbs(ops: RowOps, limbs: Sequence[Array], span: Span, precision: int) -> Numbers:
    """Exact sums of unscaled decimals in four parts; null where they have more digits than their type."""
    limit = 10**precision
    first, second, third, fourth = _limb_sums(ops, limbs, span)
    low, high = ((second << _LIMB) | first).view("uint64"), (fourth << _LIMB) | third
    fits = (fourth >= -_LIMB_RANGE) & (fourth < _LIMB_RANGE)
    return Numbers(high, fits & _is_less(low, high, limit) & ~_is_less(low, high, 1 - limit), low)


def _is_less(low: Array, high: Array, limit: int) -> Array:
    """Whether integers of 128 bits, in two halves, are less than a constant."""
    limit_high, limit_low = limit >> 64, low.dtype.type(limit & ((1 << 64) - 1))
    return (high < limit_high) | ((high == limit_high) & (low < limit_low))


def sum_doubles(numbers: Array, span: Span, rows: SortedRows) -> Array:
    """Sums of doubles."""
    xp = rows.ops.xp
    if span.from_start:
        return xp.where(span.sizes > 0, rows.ops.running_sum(numbers, rows)[span.last], 0.0)
    sums = xp.zeros(rows.rows, dtype="float64")
    if span.longest is not None and span.longest <= _ADDED_IN_ORDER:
        padded = xp.concatenate([numbers, xp.zeros(1, dtype="float64")])
        for distance in range(span.longest):
            places = span.lows + distance
            sums += padded[xp.where(places < span.highs, places, rows.rows)]
        return sums
    return over_blocks(xp, numbers, span, sums, xp.add)


def over_blocks(
    xp: Any, values: Array, span: Span, result: Array, combine: Callable[[Array, Array], Array]
) -> Array:  # fmt: skip
    """Combine the values of each frame, in blocks of 1, 2, 4, … places, into ``result``.

    A frame of 6 places from 3 on, 6 being 110 in binary, is the block of 2 from place 3 and that of 4 from place 5.
    """
    places, size, sizes = span.lows.copy(), 1, span.sizes
    longest = int(sizes.max())
    blocks = values
    while size <= longest:
        taking = xp.flatnonzero(sizes & size)
        at = places[taking]
        result[taking] = combine(result[taking], blocks[at])
        places[taking] += size
        if 2 * size <= longest:
            blocks = combine(blocks[:-size], blocks[size:])
        size *= 2
    return result


BY_PLACE = frozenset({AggregateFunction.COUNT, AggregateFunction.FIRST, AggregateFunction.LAST})
"""Aggregate functions that are found by place, also over whole partitions."""
_NONE = (1 << 63) - 1


class Argument(Protocol):
    """An argument of a call, in the window's order; null where a filter leaves a row out."""

    @property
    def presence(self) -> Presence:
        """Which values are not null."""

    def largest(self) -> int:
        """Magnitude that no integer, or unscaled decimal, exceeds."""

    def integers(self) -> Array:
        """Integers, or unscaled decimals, that fit 64 bits, as int64; 0 for null."""

    def limbs(self) -> tuple[Array, Array, Array, Array]:
        """Unscaled decimals in parts of 32 bits as int64, lowest first; only the last has a sign. 0 for null."""

    def doubles(self) -> Array:
        """Numbers as doubles, as Spark casts them; 0.0 for null and for −0.0."""

    def codes(self, *, descending: bool) -> Codes:
        """Codes in the order of the values; those of nulls mean nothing."""


def is_framed(call: AnyWindowCall, of_partitions: Collection[AggregateFunction] = BY_PLACE) -> bool:
    """Whether :func:`computed` is to compute a call; others are aggregated by the rows of their frames.

    ``of_partitions``: the functions that a backend does not aggregate over whole partitions.
    """
    if isinstance(call, WindowCall):
        return True
    return call.call.function in (of_partitions if call.frame.is_partition else SLIDING)


def computed(
    call: AnyWindowCall, arguments: Sequence[Argument], condition: Array | None, rows: SortedRows,
    span_of: Callable[[Frame], Span],
) -> list[Result]:  # fmt: skip
    """Compute a call: a result for each of its output columns.

    ``condition`` is true where the call's filter is; ``None``: it has none.
    """
    if isinstance(call, FramedAggregate):
        return _framed(call.call, arguments, condition, span_of(call.frame), rows)
    match call.function:
        case WindowFunction.LAG | WindowFunction.LEAD:
            return [_offset(call, arguments[0].presence, rows)]
        case WindowFunction.NTH_VALUE:
            return [_nth(arguments[0].presence, call.count, span_of(call.frame), ignore_nulls=call.ignore_nulls)]
        case _:
            return [Numbers(_rank(call, rows))]


# -- ranks and other rows --------------------------------------------------------------------------------------


def _rank(call: WindowCall, rows: SortedRows) -> Array:
    xp = rows.ops.xp
    match call.function:
        case WindowFunction.ROW_NUMBER:
            numbers = rows.places - rows.first + 1
        case WindowFunction.RANK:
            numbers = rows.first_peer - rows.first + 1
        case WindowFunction.DENSE_RANK:
            numbers = rows.peers - rows.peers[rows.first] + 1
        case WindowFunction.PERCENT_RANK:
            return (rows.first_peer - rows.first) / xp.maximum(rows.sizes - 1, 1)[rows.partition]
        case WindowFunction.CUME_DIST:
            return (rows.peer_end - rows.first) / rows.sizes[rows.partition]
        case _:
            assert call.function is WindowFunction.NTILE, call
            numbers = _tile(rows, call.count)
    return numbers.astype("int32")


def _tile(rows: SortedRows, parts: int) -> Array:
    """Number the parts of partitions: the first ones have a row more if the rows cannot be divided evenly."""
    xp = rows.ops.xp
    sizes = rows.sizes[rows.partition]
    places, least, larger = rows.places - rows.first, sizes // parts, sizes % parts
    of_larger = larger * (least + 1)
    return xp.where(
        places < of_larger, places // (least + 1), larger + (places - of_larger) // xp.maximum(least, 1)
    ) + 1  # fmt: skip


def _offset(call: WindowCall, presence: Presence, rows: SortedRows) -> Places:
    """Other rows of the partition."""
    distance = call.count if call.function is WindowFunction.LEAD else -call.count
    if not call.ignore_nulls or presence.mask is None:
        places = rows.places + distance
        return Places(places, (places >= rows.first) & (places < rows.end))
    before = presence.before
    # Of the values that are not null: the first one after the row, or the last one before it, and so on.
    number = before[rows.places + 1] + (distance - 1) if distance > 0 else before[rows.places] + distance
    valid = (number >= before[rows.first]) & (number < before[rows.end])
    return Places(presence.nth(number, valid), valid)


def _nth(presence: Presence, number: int, span: Span, *, ignore_nulls: bool) -> Places:
    """Give value number ``number`` of each frame, counting nulls or not."""
    if not ignore_nulls or presence.mask is None:
        places = span.lows + (number - 1)
        return Places(places, places < span.highs)
    before = presence.before[span.lows] + (number - 1)
    valid = before < presence.before[span.highs]
    return Places(presence.nth(before, valid), valid)


def _last(presence: Presence, span: Span, *, ignore_nulls: bool) -> Places:
    if not ignore_nulls or presence.mask is None:
        return Places(span.last, span.sizes > 0)
    before = presence.before[span.highs] - 1
    valid = before >= presence.before[span.lows]
    return Places(presence.nth(before, valid), valid)


# -- aggregates ------------------------------------------------------------------------------------------------


def _framed(
    call: AggregateCall, arguments: Sequence[Argument], condition: Array | None, span: Span, rows: SortedRows
) -> list[Result]:
    """Spark's buffer of an aggregate over frames."""
    match call.function:
        case AggregateFunction.COUNT:
            return [Numbers(_count(arguments, condition, span, rows))]
        case AggregateFunction.FIRST | AggregateFunction.LAST:
            presence, ignore = arguments[0].presence, call.ignore_nulls
            first = call.function is AggregateFunction.FIRST
            value = (
                _nth(presence, 1, span, ignore_nulls=ignore) if first else _last(presence, span, ignore_nulls=ignore)
            )
            return [value, Numbers((presence.counts(span) if ignore else span.sizes) > 0)]
        case AggregateFunction.MIN | AggregateFunction.MAX:
            return [_extreme(arguments[0], span, rows, least=call.function is AggregateFunction.MIN)]
        case _:
            return _sum(call, arguments[0], span, rows)


def _count(arguments: Sequence[Argument], condition: Array | None, span: Span, rows: SortedRows) -> Array:
    counted = condition
    for argument in arguments:
        mask = argument.presence.mask
        if mask is not None:
            counted = mask if counted is None else counted & mask
    if counted is None:
        return span.sizes
    return span.total(running(rows.ops, counted))


def _sum(call: AggregateCall, argument: Argument, span: Span, rows: SortedRows) -> list[Result]:
    ops, counts, result = rows.ops, argument.presence.counts(span), call.buffer[0].type
    average = call.function is AggregateFunction.AVG
    if is_float(result):
        total = sum_doubles(argument.doubles(), span, rows)
        return [Numbers(total), Numbers(counts)] if average else [Numbers(total, counts > 0)]
    may_wrap = argument.largest() * rows.rows > LARGEST
    if is_whole(result):
        return [Numbers(sum_integers(ops, call, argument.integers(), span, may_wrap=may_wrap), counts > 0)]
    if may_wrap:
        unscaled = sum_limbs(ops, argument.limbs(), span, result.precision)
    else:
        unscaled = sum_words(ops, argument.integers(), span, result.precision)
    return [unscaled, Numbers(counts if average else counts == 0)]


def _extreme(argument: Argument, span: Span, rows: SortedRows, *, least: bool) -> Places:
    """Find the places of least or greatest values by whole numbers of the same order.

    Of equal values the first is taken, as in Spark: a sum of zeros may be −0.0.
    """
    xp, present = rows.ops.xp, argument.presence.mask
    row_bits = rows.rows.bit_length()
    codes = dense(rows.ops, argument.codes(descending=not least), 62 - row_bits)
    if span.from_start:
        best = _running_least(codes, present, rows)
        best = xp.where(span.sizes > 0, best[span.last], _NONE)
    else:
        # The place breaks ties. A null is greater than all values, and comes out of frames without any.
        numbers = (codes.values.astype("int64") << row_bits) | rows.places
        if present is not None:
            numbers = xp.where(present, numbers, _NONE)
        best = over_blocks(xp, numbers, span, xp.full(rows.rows, _NONE, dtype="int64"), xp.minimum)
    return Places(best & ((1 << row_bits) - 1), best != _NONE)


def _running_least(codes: Codes, present: Array | None, rows: SortedRows) -> Array:
    """The place of the least code from the start of a row's partition on; the greatest integer if all are null."""
    xp = rows.ops.xp
    # Later partitions have lesser codes, so that none is less than all before it in another partition.
    top = (1 << codes.bits) + 1
    own = codes.values.astype("int64")
    if present is not None:
        own = xp.where(present, own, top - 1)
    least = rows.ops.running_least(own + (int(rows.starts.shape[0]) - 1 - rows.partition) * top)
    changed = rows.begins_partition.copy()
    changed[1:] |= least[1:] < least[:-1]
    best = -rows.ops.running_least(-xp.where(changed, rows.places, 0))
    if present is None:
        return best
    return xp.where(present[best], best, _NONE)
