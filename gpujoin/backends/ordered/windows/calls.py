"""Computes the calls of a window for all rows.

Aggregates of a row are over the places of its frame, from ``lows`` to before ``highs``. Counts, and exact sums of
integers and decimals, are differences of running ones (:mod:`.sums`). Least and greatest values are found by codes, and
taken from their places.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from gpujoin.backends.ordered.ops import Array
from gpujoin.backends.ordered.windows import sums
from gpujoin.backends.ordered.windows.results import Numbers, Places, Result
from gpujoin.backends.ordered.windows.rows import Codes, SortedRows, dense
from gpujoin.backends.ordered.windows.spans import Presence, Span, running
from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.types import is_float, is_whole
from gpujoin.model.windows import SLIDING, AnyWindowCall, Frame, FramedAggregate, WindowCall, WindowFunction

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
    """Value number ``number`` of each frame, or of those that are not null."""
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
        total = sums.of_doubles(argument.doubles(), span, rows)
        return [Numbers(total), Numbers(counts)] if average else [Numbers(total, counts > 0)]
    may_wrap = argument.largest() * rows.rows > sums.LARGEST
    if is_whole(result):
        return [Numbers(sums.of_integers(ops, call, argument.integers(), span, may_wrap=may_wrap), counts > 0)]
    if may_wrap:
        unscaled = sums.of_limbs(ops, argument.limbs(), span, result.precision)
    else:
        unscaled = sums.of_words(ops, argument.integers(), span, result.precision)
    return [unscaled, Numbers(counts if average else counts == 0)]


def _extreme(argument: Argument, span: Span, rows: SortedRows, *, least: bool) -> Places:
    """Least or greatest values, found as those of whole numbers that have their order, and name their places.

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
        best = sums.over_blocks(xp, numbers, span, xp.full(rows.rows, _NONE, dtype="int64"), xp.minimum)
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
