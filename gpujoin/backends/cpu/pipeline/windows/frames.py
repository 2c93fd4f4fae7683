"""Aggregates over frames: for each row, of the places from ``lows`` to before ``highs``.

Counts, and exact sums of integers and decimals, are differences of running ones: the sum over places 2 and 3 is the
sum of the first four values less that of the first two. This is exact also where sums wrap. It would not be for floats,
whose digits get lost, and where infinity less infinity is NaN. Those are added one after the other, as Spark does:
along the partition if frames begin there, and by the places of a frame if it is short. In longer frames the sums of
blocks of 1, 2, 4, … places are added. Least and greatest values are found in blocks, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.pipeline.columns import Column, arrow_of, magnitude, series_of
from gpujoin.backends.cpu.pipeline.windows.distances import RangeKey, ranged
from gpujoin.backends.cpu.pipeline.windows.ordering import Codes, Integers, Mask, SortedRows, codes_of
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.expressions import EvalMode
from gpujoin.model.windows import Frame, FrameType

Floats: TypeAlias = npt.NDArray[np.float64]
Number = TypeVar("Number", np.float64, np.int64)

_ADDED_IN_ORDER = 32
"""Longest frames whose floats are added place by place: each place costs one addition of whole columns, while sums of
blocks cost two for each doubling of the length."""
_LIMB = 32
_MASK = np.int64((1 << _LIMB) - 1)
_LIMB_RANGE = 1 << (_LIMB - 1)


@dataclass(frozen=True)
class Span:
    """The places that the frame of each row has."""

    lows: Integers
    highs: Integers
    """From ``lows`` to before ``highs``; ``highs`` is not less."""
    from_start: bool
    """Whether frames begin with their partition."""
    longest: int | None
    """Most places of a frame, where the frame says so."""

    @classmethod
    def of(cls, frame: Frame, rows: SortedRows, key: RangeKey | None = None) -> Span:
        """Find the places of a frame; the order key is read for distances of it."""
        if frame.has_distance:
            assert key is not None
            lows, highs = ranged(frame, rows, key)
            return cls(lows, np.maximum(highs, lows), frame.start is None, None)
        by_range = frame.type is FrameType.RANGE
        start, end = (None if bound is None else int(bound) for bound in (frame.start, frame.end))
        lows, highs = rows.first, rows.end
        if start is not None:
            lows = rows.first_peer if by_range else np.clip(rows.places + start, rows.first, rows.end)
        if end is not None:
            highs = rows.peer_end if by_range else np.clip(rows.places + end + 1, rows.first, rows.end)
            highs = np.maximum(highs, lows)
        longest = None
        if not by_range and start is not None and end is not None:
            longest = max(0, end - start + 1)
        return cls(lows, highs, start is None, longest)

    @cached_property
    def sizes(self) -> Integers:
        """Places of each frame."""
        return self.highs - self.lows

    @property
    def last(self) -> Integers:
        """Last place of each frame; that of an empty one means nothing."""
        return np.maximum(self.highs - 1, 0)


@dataclass(frozen=True)
class Values:
    """A column in the order of the window."""

    series: pl.Series
    column: Column
    present: Mask | None
    """Which are not null; ``None``: all."""

    @classmethod
    def of(cls, series: pl.Series, column: Column) -> Values:
        """Take a column."""
        return cls(series, column, None if series.null_count() == 0 else series.is_not_null().to_numpy())

    @cached_property
    def present_before(self) -> Integers:
        """How many values are not null before each place, and at the end."""
        assert self.present is not None
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.present)])

    @cached_property
    def present_places(self) -> Integers:
        """Places of the values that are not null."""
        assert self.present is not None
        return np.flatnonzero(self.present)

    def counts(self, span: Span) -> Integers:
        """How many values of each frame are not null."""
        if self.present is None:
            return span.sizes
        return self.present_before[span.highs] - self.present_before[span.lows]

    def taken(self, places: Integers, valid: Mask) -> pl.Series:
        """The values at places; null where those are not valid."""
        if valid.all():
            return self.series.gather(places)
        chosen = pl.Series(np.where(valid, places, 0))
        return pl.select(pl.when(pl.Series(valid)).then(self.series.gather(chosen))).to_series()


def framed(
    call: AggregateCall, values: Values | None, counted: Mask | None, span: Span, rows: SortedRows
) -> list[pl.Series]:
    """Compute Spark's buffer of an aggregate over frames.

    ``values`` are those of the argument; null where a filter leaves a row out. ``counted`` says which rows a ``count``
    counts; ``None``: all.
    """
    match call.function:
        case AggregateFunction.COUNT:
            if counted is None:
                return [pl.Series(span.sizes)]
            before = np.concatenate([np.zeros(1, np.int64), np.cumsum(counted)])
            return [pl.Series(before[span.highs] - before[span.lows])]
        case AggregateFunction.FIRST | AggregateFunction.LAST:
            assert values is not None
            return _edge(call, values, span)
        case AggregateFunction.MIN | AggregateFunction.MAX:
            assert values is not None
            return [_extreme(values, span, rows, least=call.function is AggregateFunction.MIN)]
        case _:
            assert values is not None
            return _sum(call, values, span, rows)


def nth(values: Values, number: int, span: Span, *, ignore_nulls: bool) -> pl.Series:
    """Value number ``number`` of each frame, or of those that are not null."""
    if not ignore_nulls or values.present is None:
        places = span.lows + (number - 1)
        return values.taken(places, places < span.highs)
    before = values.present_before[span.lows] + (number - 1)
    valid = before < values.present_before[span.highs]
    return values.taken(_at(values.present_places, before, valid), valid)


def _edge(call: AggregateCall, values: Values, span: Span) -> list[pl.Series]:
    if call.function is AggregateFunction.FIRST:
        value = nth(values, 1, span, ignore_nulls=call.ignore_nulls)
    elif not call.ignore_nulls or values.present is None:
        value = values.taken(span.last, span.sizes > 0)
    else:
        before = values.present_before[span.highs] - 1
        valid = before >= values.present_before[span.lows]
        value = values.taken(_at(values.present_places, before, valid), valid)
    return [value, pl.Series((values.counts(span) if call.ignore_nulls else span.sizes) > 0)]


def _at(places: Integers, numbers: Integers, valid: Mask) -> Integers:
    """Elements by number, where those are valid."""
    if len(places) == 0:
        return np.zeros(len(numbers), np.int64)
    return places[np.where(valid, numbers, 0)]


# -- sums ------------------------------------------------------------------------------------------------------


def _sum(call: AggregateCall, values: Values, span: Span, rows: SortedRows) -> list[pl.Series]:
    counts = values.counts(span)
    result = call.buffer[0].type
    if pat.is_decimal(result):
        total = _decimal_sum(values, span, result)
        return [total, pl.Series(counts if call.function is AggregateFunction.AVG else counts == 0)]
    if pat.is_int64(result):
        return [_where(counts > 0, _integer_sum(call, values, span))]
    numbers = values.series.cast(pl.Float64).fill_null(0.0).to_numpy() + 0.0  # −0.0 + 0.0 is 0.0, as in Spark's sum
    total = pl.Series(_float_sum(numbers, span, rows))
    return [total, pl.Series(counts)] if call.function is AggregateFunction.AVG else [_where(counts > 0, total)]


def _where(valid: Mask, series: pl.Series) -> pl.Series:
    return series if valid.all() else pl.select(pl.when(pl.Series(valid)).then(series)).to_series()


def _running(values: Integers) -> Integers:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])


def _may_wrap(values: Values) -> bool:
    bounds = values.column.bounds.get()
    assert bounds is not None
    return magnitude(bounds) * max(1, len(values.series)) >= 1 << 63


def _integer_sum(call: AggregateCall, values: Values, span: Span) -> pl.Series:
    numbers = values.series.cast(pl.Int64).fill_null(0).to_numpy()
    if not _may_wrap(values) or call.mode is not EvalMode.ANSI:
        before = _running(numbers)
        return pl.Series(before[span.highs] - before[span.lows])
    # Spark adds the values of a frame one after the other, and fails where that overflows on the way. The largest sum
    # on the way is one of those over the frame's first places; where frames are not running ones, that of all absolute
    # values is more than any.
    limbs = [numbers & _MASK, numbers >> _LIMB]
    low, high = _limb_sums(limbs, span)
    largest = high
    if not span.from_start:
        absolute = np.abs(numbers >> _LIMB) + 1
        before = _running(absolute)
        largest = before[span.highs] - before[span.lows]
    elif len(numbers):
        starts = Span(span.lows, np.arange(1, len(numbers) + 1), from_start=True, longest=None)
        largest = np.concatenate([high, _limb_sums(limbs, starts)[1]])
    if len(numbers) and not ((largest >= -_LIMB_RANGE) & (largest < _LIMB_RANGE)).all():
        raise ExpressionEvaluationError(
            f"{call}: a sum overflows int64; cast to a decimal, or set spark.sql.ansi.enabled to false"
        )
    return pl.Series((high << _LIMB) | low)


def _limb_sums(limbs: list[Integers], span: Span) -> list[Integers]:
    """Sums over frames of integers in limbs of 32 bits, the lowest first; the last one is signed, and may be longer."""
    sums: list[Integers] = []
    carry: Integers | None = None
    for number, limb in enumerate(limbs):
        before = _running(limb)
        total = before[span.highs] - before[span.lows]
        if carry is not None:
            total += carry
        if number == len(limbs) - 1:
            return [*sums, total]
        carry = total >> _LIMB
        sums.append(total & _MASK)
    raise AssertionError("no limbs")


def _decimal_sum(values: Values, span: Span, result: pa.DataType) -> pl.Series:
    """Exact sums; null where they have more digits than their type."""
    limit = 10**result.precision
    if not _may_wrap(values):
        before = _running(values.series.fill_null(0).cast(pl.Int64).to_numpy())
        sums = before[span.highs] - before[span.lows]
        series = pl.Series(sums)
        if limit < 1 << 63:
            series = _where((sums < limit) & (sums > -limit), series)
        return series
    digits = pa.decimal128(38, 0)
    array = arrow_of(values.series.fill_null(0), digits)
    words = np.frombuffer(array.buffers()[1], np.int64)[2 * array.offset :][: 2 * len(array)].reshape(-1, 2)
    low, high = words[:, 0], words[:, 1]
    limbs = [low & _MASK, (low >> _LIMB) & _MASK, high & _MASK, high >> _LIMB]
    first, second, third, fourth = _limb_sums(limbs, span)
    fits = (fourth >= -_LIMB_RANGE) & (fourth < _LIMB_RANGE)
    low, high = (second << _LIMB) | first, (fourth << _LIMB) | third
    fits &= _is_less(low, high, limit) & ~_is_less(low, high, 1 - limit)
    data = np.ascontiguousarray(np.stack([low, high], axis=1))
    sums_array = pa.Array.from_buffers(digits, len(low), [None, pa.py_buffer(data)])
    series, _ = series_of(sums_array, digits)
    return _where(fits, series)


def _is_less(low: Integers, high: Integers, limit: int) -> Mask:
    """Whether integers of 128 bits, in two halves, are less than a constant."""
    limit_high, limit_low = limit >> 64, limit & ((1 << 64) - 1)
    return (high < limit_high) | ((high == limit_high) & (low.view(np.uint64) < np.uint64(limit_low)))


def _float_sum(numbers: Floats, span: Span, rows: SortedRows) -> Floats:
    if span.from_start:
        frame = pl.DataFrame({"v": numbers, "p": pl.Series(rows.partition).set_sorted()})
        along = frame.select(pl.col("v").cum_sum().over("p")).to_series().to_numpy()
        return np.where(span.sizes > 0, along[span.last], 0.0)
    sums = np.zeros(len(numbers))
    if span.longest is not None and span.longest <= _ADDED_IN_ORDER:
        padded = np.append(numbers, 0.0)
        for distance in range(span.longest):
            places = span.lows + distance
            sums += padded[np.where(places < span.highs, places, len(numbers))]
        return sums
    return _over_blocks(numbers, span, sums, np.add)


# -- least and greatest values ---------------------------------------------------------------------------------


def _extreme(values: Values, span: Span, rows: SortedRows, *, least: bool) -> pl.Series:
    """Least or greatest values, found as those of whole numbers that have their order, and name their places.

    Of equal values the first is taken, as in Spark: a sum of zeros may be −0.0.
    """
    count = len(values.series)
    codes = _dense(codes_of(values.series, values.column.dtype, descending=not least, nulls_first=False), count)
    places = rows.places
    row_bits = max(1, count.bit_length())
    # The place breaks ties. A null is greater than all values, and comes out of frames without any.
    numbers = (codes.values.astype(np.int64) << row_bits) | places
    none = np.iinfo(np.int64).max
    if values.present is not None:
        numbers = np.where(values.present, numbers, none)
    if span.from_start:
        best = _running_least(codes, values, rows)
        best = np.where(span.sizes > 0, best[span.last], none)
    else:
        best = _over_blocks(numbers, span, np.full(count, none), np.minimum)
    valid = best != none
    return values.taken(best & np.int64((1 << row_bits) - 1), valid)


def _dense(codes: Codes, count: int) -> Codes:
    """The same with as few bits as there are different values, where a place has to fit in as well."""
    if codes.bits + max(1, count.bit_length()) < 63:
        return codes
    different, numbers = np.unique(codes.values, return_inverse=True)
    return Codes(numbers.astype(np.uint64), max(1, (len(different) - 1).bit_length()))


def _running_least(codes: Codes, values: Values, rows: SortedRows) -> Integers:
    """The place of the least code from the start of a row's partition on; the greatest integer if all are null."""
    count = rows.rows
    none = np.iinfo(np.int64).max
    codes = _dense(codes, count)
    # Later partitions have lesser codes, so that none is less than all before it in another partition.
    top = np.int64((1 << codes.bits) + 1)
    partitions = np.int64(len(rows.starts)) - 1 - rows.partition
    own = codes.values.astype(np.int64)
    if values.present is not None:
        own = np.where(values.present, own, top - 1)
    least = np.minimum.accumulate(own + partitions * top)
    changed = rows.begins_partition.copy()
    changed[1:] |= least[1:] < least[:-1]
    best = np.maximum.accumulate(np.where(changed, rows.places, 0))
    if values.present is None:
        return best
    return np.where(values.present[best], best, none)


def _over_blocks(
    values: npt.NDArray[Number], span: Span, result: npt.NDArray[Number],
    combine: Callable[[npt.NDArray[Number], npt.NDArray[Number]], npt.NDArray[Number]],
) -> npt.NDArray[Number]:  # fmt: skip
    """Combine the values of each frame, in blocks of 1, 2, 4, … places.

    A frame of 6 places from 3 on, 6 being 110 in binary, is the block of 2 from place 3 and that of 4 from place 5.
    """
    places, size = span.lows.copy(), 1
    sizes = span.sizes
    longest = int(sizes.max(initial=0))
    blocks = values
    while size <= longest:
        taking = np.flatnonzero(sizes & size)
        at = places[taking]
        result[taking] = combine(result[taking], blocks[at])
        places[taking] += size
        if 2 * size <= longest:
            blocks = combine(blocks[:-size], blocks[size:])
        size *= 2
    return result
