"""Computes window functions over frames, by :mod:`gpujoin.backends.ordered.windows`. Rows keep their order.

Results are in the window's order, in which place ``p`` has row ``permutation[p]``. Numbers are moved to their rows, and
places become the numbers of the rows from which values are gathered. Of ``lag(v)`` over rows ordered by ``t``::

    row   t   v      permutation   place of lag   row of lag   moved   lag(v)
      0  30   c                1           none         none       2        b
      1  10   a                2              0            1    none     null
      2  20   b                0              1            2       1        a
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Generic

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.arrays import Array, ArrayOps, owners_of
from gpujoin.backends.cudf.pipeline.aggregate import FrameAggregation
from gpujoin.backends.cudf.pipeline.columns import Columns, Frame
from gpujoin.backends.cudf.pipeline.compute import computed as columns_of
from gpujoin.backends.cudf.pipeline.compute import inputs_of, nothing, rows_at, valid_of, values_of
from gpujoin.backends.cudf.pipeline.offers import carried
from gpujoin.backends.cudf.pipeline.ordercodes import is_ranked, ranks
from gpujoin.backends.cudf.pipeline.states import doubled
from gpujoin.backends.ordered.reductions import all_true
from gpujoin.backends.ordered.windows.calls import BY_PLACE, Numbers, Result, computed, is_framed
from gpujoin.backends.ordered.windows.rows import SIGN, Codes, RowOps, SortedRows, codes_of, sort_rows
from gpujoin.backends.ordered.windows.spans import Members, Presence, RangeKey, Span
from gpujoin.errors import DeviceValueError
from gpujoin.functions import words
from gpujoin.functions.values import Value, ordered
from gpujoin.functions.vector import mask_and
from gpujoin.functions.words import Words, of_words, words_of
from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.expressions import Expression
from gpujoin.model.relations import ExchangeSource, Output, PartialAggregate, Window, column
from gpujoin.model.types import logical
from gpujoin.model.windows import Frame as WindowFrame
from gpujoin.model.windows import FramedAggregate, WindowCall

_OF_PARTITIONS = BY_PLACE | {AggregateFunction.MIN, AggregateFunction.MAX}
"""Functions that are not aggregated over whole partitions: of equal values Spark takes the first, 0.0 or −0.0, while an
aggregation takes either."""
_FRAMED_ROWS = 1 << 24
"""Rows of frames that are aggregated at a time: some hundred megabytes for each argument."""
_MOST_ADDITIONS = 4096
"""Longest partitions along which doubles are added one after the other, of all partitions at a time. Each addition
launches some six kernels, of 5 µs or more: that is 0.1 s."""


def window(columns: Columns[Frame], node: Window, frame: Frame) -> Frame:
    """Compute window functions: the frame's columns, and those of the calls.

    Raises ``ExpressionEvaluationError`` where Spark may, and ``DeviceValueError`` where doubles would have to be added
    one after the other along a partition of too many rows.
    """
    keys = [key.expression for key in node.order]
    expressions = [expression for call in node.calls for expression in _inputs(call)]
    order, inputs = columns_of(columns, frame, keys), columns_of(columns, frame, expressions)
    if not columns.backend.frame_rows(frame):
        return columns.hstack([frame, nothing(columns, [field.type for call in node.calls for field in call.outputs])])
    with np.errstate(over="ignore", invalid="ignore"):
        return columns.hstack([frame, *_FrameWindow(columns, node, frame, order).results(inputs)])


def _inputs(call: WindowCall | FramedAggregate) -> Sequence[Expression]:
    return inputs_of(call.call) if isinstance(call, FramedAggregate) else call.expressions()


def row_ops(ops: ArrayOps) -> RowOps:
    """Array operations of the device for windows."""
    xp = ops.xp

    def running_least(values: Array) -> Array:
        step = 1
        while step < values.shape[0]:
            values = xp.concatenate([values[:step], xp.minimum(values[step:], values[:-step])])
            step *= 2
        return values

    return RowOps(xp, xp.sort, partial(owners_of, ops), running_least, _running_sum)


def _running_sum(numbers: Array, rows: SortedRows) -> Array:
    """Add along all partitions at a time. The largest come first, so that those with a row at a place are a prefix."""
    if rows.longest > _MOST_ADDITIONS:
        raise DeviceValueError(f"doubles are added along {rows.longest} rows of a partition")
    xp = rows.ops.xp
    by_size = xp.argsort(-rows.sizes)
    starts, sizes = rows.starts[by_size], -rows.sizes[by_size]
    counts = xp.searchsorted(sizes, -xp.arange(1, rows.longest, dtype="int64"), side="left").tolist()
    sums = numbers.copy()
    for place, count in enumerate(counts, 1):
        at = starts[:count] + place
        sums[at] += sums[at - 1]
    return sums


@dataclass(frozen=True)
class _Argument(Generic[Frame]):
    """A column in the window's order; see :class:`gpujoin.backends.ordered.windows.calls.Argument`."""

    columns: Columns[Frame]
    frame: Frame
    at: int
    rows: SortedRows
    mask: Array | None
    """Rows of the frame that a filter does not leave out; ``None``: all."""

    @cached_property
    def presence(self) -> Presence:
        valid = mask_and(valid_of(self.columns, self.frame, self.at), self.mask)
        return Presence(self.rows.ops, None if valid is None else self.rows.in_order(valid))

    @cached_property
    def _value(self) -> Value:
        value = values_of(self.columns, self.frame, self.at)
        low = None if value.low is None else self.rows.in_order(value.low)
        return Value(value.dtype, self.rows.in_order(value.data), self.presence.mask, low)

    def _filled(self, data: Array) -> Array:
        mask = self.presence.mask
        return data if mask is None else self.rows.ops.xp.where(mask, data, data.dtype.type(0))

    def largest(self) -> int:
        value = self._value
        if value.low is not None and not all_true(
            self._filled(value.data) == self._filled(value.low).view("int64") >> 63
        ):
            return 1 << 127
        numbers = self.integers()
        return max(-int(numbers.min()), int(numbers.max()))

    def integers(self) -> Array:
        value = self._value
        return self._filled(value.data.astype("int64") if value.low is None else value.low.view("int64"))

    def limbs(self) -> tuple[Array, Array, Array, Array]:
        first, second, third, fourth = map(self._filled, words.limbs(words_of(self._value)))
        return first, second, third, fourth

    def doubles(self) -> Array:
        xp, numbers = self.rows.ops.xp, self._filled(doubled(self.rows.ops.xp, self._value))
        return xp.where(numbers == 0, 0.0, numbers)

    def codes(self, *, descending: bool) -> Codes:
        ops, code = self.rows.ops, self.rows.in_order(code_words(self.columns, self.frame, self.at))
        return codes_of(ops, code, self.presence.mask, descending=descending, nulls_first=False)


def code_words(columns: Columns[Frame], frame: Frame, at: int) -> Array:
    """Convert a column to unsigned integers of 64 bits in its order; those of nulls mean nothing."""
    if is_ranked(columns.types(frame)[at]):
        return ranks(columns, columns.select(frame, (at,))).view("uint64")
    return _words(columns, values_of(columns, frame, at))


def _words(columns: Columns[Frame], value: Value) -> Array:
    (word,) = ordered(columns.ops.xp, value)
    signed = word.astype("int64").view("uint64")
    return signed ^ signed.dtype.type(SIGN)


class _FrameWindow(Generic[Frame]):
    """The rows of a frame in a window's order."""

    def __init__(self, columns: Columns[Frame], node: Window, frame: Frame, order: Frame) -> None:
        self._columns, self._node = columns, node
        self._count = columns.backend.frame_rows(frame)
        ops = row_ops(columns.ops)
        partition = [self._codes(ops, frame, at) for at in dict.fromkeys(node.partition)]
        keys = [
            self._codes(ops, order, at, descending=key.descending, nulls_first=key.nulls_first)
            for at, key in enumerate(node.order)
        ]
        self._rows = sort_rows(ops, partition, keys, self._count)
        self._order = order
        self._span = cache(
            lambda frame: Span.from_frame(frame, self._rows, self._range_key if frame.has_distance else None)
        )

    def _codes(
        self, ops: RowOps, frame: Frame, at: int, *, descending: bool = False, nulls_first: bool = True
    ) -> Codes:
        code, present = code_words(self._columns, frame, at), valid_of(self._columns, frame, at)
        return codes_of(ops, code, present, descending=descending, nulls_first=nulls_first)

    @cached_property
    def _range_key(self) -> RangeKey:
        key = self._node.order[0]
        value = values_of(self._columns, self._order, 0)
        present = None if value.valid is None else self._rows.in_order(value.valid)
        return RangeKey(
            self._rows.in_order(value.data), Presence(self._rows.ops, present),
            lambda data: _words(self._columns, Value(value.dtype, data)), str(value.dtype),
            descending=key.descending, nulls_first=key.nulls_first,
        )  # fmt: skip

    @cached_property
    def _place(self) -> Array | None:
        """Place of each row; ``None``: rows are in order."""
        if self._rows.permutation is None:
            return None
        place = self._columns.ops.xp.empty(self._count, dtype="int64")
        place[self._rows.permutation] = self._rows.places
        return place

    def _moved(self, values: Array) -> Array:
        """Values in the window's order, moved to their rows."""
        return values if self._place is None else values[self._place]

    def results(self, inputs: Frame) -> list[Frame]:
        """The columns of all calls, given those of their arguments."""
        start = 0
        results: list[list[Frame]] = []
        aggregated: dict[WindowFrame, list[_Aggregated]] = {}
        for number, call in enumerate(self._node.calls):
            at = range(start, start + len(_inputs(call)))
            start = at.stop
            if is_framed(call, _OF_PARTITIONS):
                results.append(self._computed(call, inputs, at))
                continue
            assert isinstance(call, FramedAggregate)
            results.append([])
            aggregated.setdefault(call.frame, []).append(_Aggregated(number, call, at))
        for frame, calls in aggregated.items():
            inputs_of_frame = self._columns.select(inputs, [position for each in calls for position in each.at])
            aggregates = (
                self._of_partitions(calls, inputs_of_frame)
                if frame.is_partition
                else self._of_frames(calls, inputs_of_frame)
            )
            first = 0
            for each in calls:
                width = len(each.call.outputs)
                results[each.number].append(self._columns.select(aggregates, range(first, first + width)))
                first += width
        return [frame for each in results for frame in each]

    def _computed(self, call: WindowCall | FramedAggregate, inputs: Frame, at: range) -> list[Frame]:
        mask: Array | None = None
        if isinstance(call, FramedAggregate) and call.call.filter is not None:
            passed, at = values_of(self._columns, inputs, at[-1]), at[:-1]
            mask = passed.data if passed.valid is None else passed.data & passed.valid
        arguments = [_Argument(self._columns, inputs, position, self._rows, mask) for position in at]
        condition = None if mask is None else self._rows.in_order(mask)
        results = computed(call, arguments, condition, self._rows, self._span)
        return [
            self._column(call, result, field.type, inputs, at)
            for result, field in zip(results, call.outputs, strict=True)
        ]

    def _column(
        self, call: WindowCall | FramedAggregate, result: Result, dtype: pa.DataType, inputs: Frame, at: range
    ) -> Frame:
        columns, xp = self._columns, self._columns.ops.xp
        if isinstance(result, Numbers):
            value = self._number(result, logical(dtype))
            return columns.frame([value], (carried(dtype),), self._count)
        places = xp.where(result.valid, result.at, 0)
        index = self._rows.numbers_at(places)
        index, valid = self._moved(index), self._moved(result.valid)
        value_column = columns.select(inputs, (at[0],))
        if not isinstance(call, WindowCall) or call.default is None:
            return rows_at(columns, value_column, xp.where(valid, index, -1), missing=True)
        either = columns.concat([value_column, columns.select(inputs, (at[1],))])
        row = xp.arange(self._count, 2 * self._count, dtype="int64")
        return rows_at(columns, either, xp.where(valid, index, row))

    def _number(self, result: Numbers, dtype: pa.DataType) -> Value:
        data, valid = self._moved(result.data), None if result.valid is None else self._moved(result.valid)
        if not pat.is_decimal(dtype):
            return Value(dtype, data, valid)
        unscaled = words.widened(data) if result.low is None else Words(data, self._moved(result.low))
        return of_words(unscaled, dtype, valid)

    # -- aggregates by the rows of their frames ------------------------------------------------------------

    def _of_partitions(self, calls: Sequence[_Aggregated], inputs: Frame) -> Frame:
        """Aggregates of whole partitions."""
        partition = self._moved(self._rows.partition)
        return rows_at(self._columns, self._aggregated(calls, inputs, partition), partition)

    def _of_frames(self, calls: Sequence[_Aggregated], inputs: Frame) -> Frame:
        """Aggregates of short frames: the rows of each frame are a group, some frames at a time."""
        columns, span = self._columns, self._span(calls[0].call.frame)
        step = max(1, _FRAMED_ROWS // max(1, int(span.sizes.max())))
        empty = self._aggregated(calls, inputs, None)
        parts: list[Frame] = []
        for start in range(0, self._count, step):
            rows = Members.from_sizes(self._rows.ops, span.lows[start : start + step], span.sizes[start : start + step])
            index = self._rows.numbers_at(rows.places)
            results = [self._aggregated(calls, rows_at(columns, inputs, index), rows.groups)] if index.shape[0] else []
            parts.append(rows_at(columns, columns.concat([*results, empty]), rows.number))
        place = self._rows.places if self._place is None else self._place
        return rows_at(columns, columns.concat(parts), place)

    def _aggregated(self, calls: Sequence[_Aggregated], inputs: Frame, groups: Array | None) -> Frame:
        """Aggregate rows by the number of their group, to a frame with a row for each; ``None``: no rows."""
        columns = self._columns
        types = [expression.type for each in calls for expression in _inputs(each.call)]
        source = ExchangeSource(0, pa.schema([*((f"c{i}", t) for i, t in enumerate(types)), ("group", pa.int64())]))
        refs = [column(source.schema, i) for i in range(len(source.schema))]
        key, arguments = refs.pop(), iter(refs)
        renamed = tuple(
            dataclasses.replace(each.call.mapped(lambda _: next(arguments)).call, name=f"a{each.number}")
            for each in calls
        )
        keys = () if groups is None else (Output("group", key),)
        aggregation = FrameAggregation(columns, PartialAggregate(source, keys, renamed, final=True), nullcontext)
        if groups is None:
            return aggregation.finish(aggregation.nothing())
        numbers = columns.frame([Value(pa.int64(), groups)], (pa.int64(),), groups.shape[0])
        states = aggregation.reduce(columns.hstack([inputs, numbers]))
        state = aggregation.finish(states[0] if len(states) == 1 else aggregation.merge(states))
        index = columns.ops.xp.argsort(values_of(columns, state, 0).data)
        return rows_at(columns, columns.select(state, range(1, len(columns.types(state)))), index)


@dataclass(frozen=True)
class _Aggregated:
    """A call that is aggregated by the rows of its frame."""

    number: int
    """Its number among the window's calls."""
    call: FramedAggregate
    at: range
    """Columns of its arguments, and of its filter if there is one."""
