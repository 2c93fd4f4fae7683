"""Sums over frames.

Those of integers and decimals are differences of running ones: the sum over places 2 and 3 is the sum of the first four
values less that of the first two. This is exact also where sums wrap. It would not be for floats, whose digits get
lost, and where infinity less infinity is NaN. Those are added one after the other, as Spark does: along the partition
if frames begin there, and by the places of a frame if it is short. In longer frames the sums of blocks of 1, 2, 4, …
places are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpujoin.backends.ordered.ops import Array
from gpujoin.backends.ordered.reductions import all_true
from gpujoin.backends.ordered.windows.results import Numbers
from gpujoin.backends.ordered.windows.rows import RowOps, SortedRows
from gpujoin.backends.ordered.windows.spans import Span, running
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.aggregates import AggregateCall
from gpujoin.model.expressions import EvalMode

LARGEST = (1 << 63) - 1
_ADDED_IN_ORDER = 32
"""Longest frames whose floats are added place by place: each place costs one addition of whole columns, while sums of
blocks cost two for each doubling of the length."""
_LIMB = 32
_MASK = (1 << _LIMB) - 1
_LIMB_RANGE = 1 << (_LIMB - 1)


def of_integers(ops: RowOps, call: AggregateCall, numbers: Array, span: Span, *, may_wrap: bool) -> Array:
    """Sums of integers, which wrap around. Raises ``ExpressionEvaluationError`` in ANSI mode if one might overflow."""
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


def of_words(ops: RowOps, numbers: Array, span: Span, precision: int) -> Numbers:
    """Sums of unscaled decimals that fit 64 bits; null where they have more digits than their type."""
    sums = span.total(running(ops, numbers))
    limit = 10**precision
    return Numbers(sums, (sums < limit) & (sums > -limit) if limit <= LARGEST else None)


def of_limbs(ops: RowOps, limbs: Sequence[Array], span: Span, precision: int) -> Numbers:
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


def of_doubles(numbers: Array, span: Span, rows: SortedRows) -> Array:
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
    """Combine the values of each frame, in blocks of 1, 2, 4, … places, with what is in ``result``.

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
