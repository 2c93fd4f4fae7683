"""States of aggregate functions on a device: how they are reduced from rows, merged, and converted to Spark's buffers.

A state has a row for each group. It is made by *reducing* rows, and merged by reducing rows of states; each function
says which reductions it needs. Sums of integers and decimals are kept as two or four parts of 32 bits, each summed in
64 bits. So no part overflows within 2**31 rows, and only a result that does not fit its type is an overflow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.pipeline.columns import Columns, Frame, Reduce, Reduced, Reduction
from gpujoin.backends.cudf.pipeline.compute import rows_at, sortable, valid_of, values_of
from gpujoin.backends.cudf.pipeline.offers import carried
from gpujoin.backends.ordered.reductions import any_true
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.functions import words
from gpujoin.functions.values import Value
from gpujoin.functions.vector import INT64_MAX, mask_and
from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.expressions import EvalMode
from gpujoin.model.types import is_bytes, is_float, is_text, is_wide_decimal

_INT64_MIN = -(1 << 63)
_INFINITIES = {32: 0x7F800000, 64: 0x7FF0000000000000}
"""Bits of infinity by the width of a float."""
_HALF_MIN, _HALF_MAX = -(1 << 31), (1 << 31) - 1
_HALF_BITS = 32
_LOW_HALF = (1 << _HALF_BITS) - 1


@dataclass
class Reducer(Generic[Frame]):
    """Collects reductions of a frame's rows by group, and computes them together."""

    columns: Columns[Frame]
    """Operations on columns of the device's library."""
    frame: Frame
    """Rows of arguments, or of states."""
    ids: Array | None
    """Group of each row, for functions that need a second pass."""
    reduce: Callable[[Sequence[Reduction]], list[Reduced]]
    """Computes reductions; all return the groups in the same order."""
    reductions: list[Reduction] = field(default_factory=list)
    results: list[Reduced] = field(default_factory=list)

    @property
    def xp(self) -> Any:
        """The array module."""
        return self.columns.ops.xp

    @property
    def rows(self) -> int:
        """Rows of the frame."""
        return self.columns.backend.frame_rows(self.frame)

    def ask(self, kind: Reduce, data: Array, valid: Array | None = None) -> int:
        """Request a reduction; returns its number."""
        self.reductions.append(Reduction(kind, data, valid))
        return len(self.reductions) - 1

    def run(self) -> None:
        """Compute the reductions that were requested."""
        self.results = self.reduce(self.reductions)

    def of(self, number: int) -> Array:
        """Result of a reduction, zero where no row counted."""
        reduced = self.results[number]
        if reduced.valid is None:
            return reduced.data
        return self.xp.where(reduced.valid, reduced.data, 0).astype(reduced.data.dtype)

    def has(self, number: int) -> Array | None:
        """Mask of the groups in which a row counted; ``None``: all."""
        return self.results[number].valid

    def value(self, at: int) -> Value:
        """View a column of the frame as arrays."""
        return values_of(self.columns, self.frame, at)

    def valid(self, at: int) -> Array | None:
        """Mask of the rows at which a column is not null."""
        return valid_of(self.columns, self.frame, at)


class State(ABC, Generic[Frame]):
    """The state columns of one call of an aggregate function."""

    two_passes = False
    """Whether a second pass computes deviations from the group's mean."""

    def __init__(self, call: AggregateCall) -> None:
        self.call = call

    @property
    @abstractmethod
    def types(self) -> tuple[pa.DataType, ...]:
        """Types of the state columns."""

    @abstractmethod
    def reduce(self, rows: Reducer[Frame], at: Sequence[int], mask: Array | None) -> Callable[[], Frame]:
        """Request the reductions of the columns ``at``, of the rows for which the mask is true.

        The result gives the state, once the reductions are computed.
        """

    @abstractmethod
    def merge(self, rows: Reducer[Frame], at: Sequence[int]) -> Callable[[], Frame]:
        """Request the reductions that merge rows of states, as :meth:`reduce` does for rows."""

    def nothing(self, columns: Columns[Frame]) -> Frame:
        """State of an aggregation without keys over no rows: one row, of zeros unless said otherwise."""
        return _zeros(columns, self.types)

    def finish(self, columns: Columns[Frame], frame: Frame, at: Sequence[int]) -> Frame:
        """Columns of Spark's buffer: those of the state unless said otherwise."""
        return columns.select(frame, at)


def _whole(data: Array) -> Value:
    return Value(pa.int64(), data.astype("int64"))


def _real(data: Array) -> Value:
    return Value(pa.float64(), data)


def _framed(columns: Columns[Frame], values: Sequence[Value], rows: int) -> Frame:
    return columns.frame(values, [carried(value.dtype) for value in values], rows)


def _zeros(columns: Columns[Frame], types: Sequence[pa.DataType]) -> Frame:
    xp = columns.ops.xp
    values = [Value(t, xp.zeros(1, dtype="float64" if is_float(t) else "int64")) for t in types]
    return columns.frame(values, types, 1)


class CountState(State[Frame]):
    """``count``."""

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return (pa.int64(),)

    def reduce(self, rows: Reducer[Frame], at: Sequence[int], mask: Array | None) -> Callable[[], Frame]:
        valid = mask
        for position in at:
            valid = mask_and(valid, rows.valid(position))
        return self._counted(rows, Reduce.COUNT, rows.xp.zeros(rows.rows, dtype="int64"), valid)

    def merge(self, rows: Reducer[Frame], at: Sequence[int]) -> Callable[[], Frame]:
        return self._counted(rows, Reduce.SUM, rows.value(at[0]).data, None)

    @staticmethod
    def _counted(rows: Reducer[Frame], kind: Reduce, data: Array, valid: Array | None) -> Callable[[], Frame]:
        number = rows.ask(kind, data, valid)

        def state() -> Frame:
            count = rows.of(number)
            return _framed(rows.columns, [_whole(count)], len(count))

        return state


class ExactSumState(State[Frame]):
    """Sums and averages of integers and decimals: parts of the sum, and the number of values."""

    @property
    def _parts(self) -> int:
        return words.LIMBS if is_wide_decimal(self.call.dtype) else 2

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return (pa.int64(),) * (self._parts + 1)

    def reduce(self, rows: Reducer[Frame], at: Sequence[int], mask: Array | None) -> Callable[[], Frame]:
        value = rows.value(at[0])
        valid = mask_and(mask, value.valid)
        count = rows.ask(Reduce.COUNT, rows.xp.zeros(rows.rows, dtype="int64"), valid)
        if value.low is None and _sum_fits(rows.xp, value.data, valid, rows.rows):
            total = rows.ask(Reduce.SUM, value.data.astype("int64"), valid)

            def state() -> Frame:
                totals = rows.of(total)
                return self._framed(rows, (totals & _LOW_HALF, totals >> _HALF_BITS), rows.of(count))

            return state
        limbs = words.limbs(words.words_of(value))
        if self._parts == 2:
            data = value.data.astype("int64")
            limbs = (data & _LOW_HALF, data >> _HALF_BITS)
        return self._summed(rows, limbs, valid, count)

    def merge(self, rows: Reducer[Frame], at: Sequence[int]) -> Callable[[], Frame]:
        *parts, counts = (rows.value(position).data for position in at)
        return self._summed(rows, tuple(parts), None, rows.ask(Reduce.SUM, counts))

    def _summed(
        self, rows: Reducer[Frame], parts: tuple[Array, ...], valid: Array | None, count: int
    ) -> Callable[[], Frame]:
        numbers = [rows.ask(Reduce.SUM, part, valid) for part in parts]

        def state() -> Frame:
            return self._framed(rows, words.carried(tuple(map(rows.of, numbers))), rows.of(count))

        return state

    def _framed(self, rows: Reducer[Frame], parts: tuple[Array, ...], count: Array) -> Frame:
        """Make a state; a sum in two parts is extended to four."""
        if len(parts) < self._parts:
            top = parts[1]
            parts = (parts[0], top & _LOW_HALF, (top >> 63) & _LOW_HALF, top >> 63)
        return _framed(rows.columns, [*map(_whole, parts), _whole(count)], len(count))

    def finish(self, columns: Columns[Frame], frame: Frame, at: Sequence[int]) -> Frame:
        *parts, count = (values_of(columns, frame, position).data for position in at)
        rows, xp = len(count), columns.ops.xp
        dtype = self.call.buffer[0].type
        if not pat.is_decimal(dtype):
            top = parts[1]
            over = (top < _HALF_MIN) | (top > _HALF_MAX)
            if self.call.mode is EvalMode.ANSI and any_true(over):
                raise ExpressionEvaluationError(
                    f"{self.call}: the sum overflows int64; cast to a decimal, or set spark.sql.ansi.enabled to false"
                )
            total = (top << _HALF_BITS) | parts[0]
            return _framed(columns, [Value(pa.int64(), total, count > 0)], rows)
        unscaled, over = words.of_limbs(tuple(parts))
        over = over | words.outside(xp, unscaled, dtype.precision)
        total_value = words.of_words(unscaled, dtype, ~over)
        if self.call.function is AggregateFunction.AVG:
            return _framed(columns, [total_value, _whole(count)], rows)
        return _framed(columns, [total_value, Value(pa.bool_(), count == 0)], rows)


def _sum_fits(xp: Any, data: Array, valid: Array | None, rows: int) -> bool:
    """Whether every sum of these values fits 64 bits."""
    if data.shape[0] == 0 or data.dtype.itemsize <= 4:
        return True
    present = data if valid is None else xp.where(valid, data, 0)
    low, high = int(present.min()), int(present.max())
    return max(-low, high) * rows <= INT64_MAX


class FloatSumState(State[Frame]):
    """Sums and averages of floats, in doubles as in Spark."""

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return (pa.float64(), pa.int64())

    def reduce(self, rows: Reducer[Frame], at: Sequence[int], mask: Array | None) -> Callable[[], Frame]:
        value = rows.value(at[0])
        valid = mask_and(mask, value.valid)
        total = rows.ask(Reduce.SUM, doubled(rows.xp, value), valid)
        count = rows.ask(Reduce.COUNT, rows.xp.zeros(rows.rows, dtype="int64"), valid)
        return self._deferred_state(rows, total, count)

    def merge(self, rows: Reducer[Frame], at: Sequence[int]) -> Callable[[], Frame]:
        total, count = (rows.ask(Reduce.SUM, rows.value(position).data) for position in at)
        return self._deferred_state(rows, total, count)

    @staticmethod
    def _deferred_state(rows: Reducer[Frame], total: int, count: int) -> Callable[[], Frame]:
        def state() -> Frame:
            counts = rows.of(count)
            return _framed(rows.columns, [_real(rows.of(total)), _whole(counts)], len(counts))

        return state

    def finish(self, columns: Columns[Frame], frame: Frame, at: Sequence[int]) -> Frame:
        total, count = (values_of(columns, frame, position) for position in at)
        rows = len(count.data)
        if self.call.function is AggregateFunction.AVG:
            return _framed(columns, [total, count], rows)
        return _framed(columns, [total.with_valid(count.data > 0)], rows)


def doubled(xp: Any, value: Value) -> Array:
    """Convert values to doubles, as Spark casts them."""
    from gpujoin.functions.values import widened

    if pat.is_float32(value.dtype):
        return widened(xp, value.data)
    return value.data.astype("float64")


class PickState(State[Frame]):
    """Functions that pick one of the values: ``min``, ``max``, ``first`` and ``last``.

    A row is picked, by the least or greatest number of all rows: the rank of its value, or its position. The value is
    gathered from that row, so values of every type are supported.
    """

    def reduce(self, rows: Reducer[Frame], at: Sequence[int], mask: Array | None) -> Callable[[], Frame]:
        return self._picked(rows, at[0], self._counting(rows, at[0], mask))

    def merge(self, rows: Reducer[Frame], at: Sequence[int]) -> Callable[[], Frame]:
        return self._picked(rows, at[0], self._set(rows, at))

    def _counting(self, rows: Reducer[Frame], at: int, mask: Array | None) -> Array | None:
        return mask_and(mask, rows.valid(at))

    def _set(self, rows: Reducer[Frame], at: Sequence[int]) -> Array | None:
        return rows.valid(at[0])

    @abstractmethod
    def _picked(self, rows: Reducer[Frame], at: int, valid: Array | None) -> Callable[[], Frame]: ...

    def _gathered(self, rows: Reducer[Frame], at: int, index: Array, has: Array | None) -> Frame:
        """Gather the values of the picked rows; null where a group has none."""
        rows_of_groups = index if has is None else rows.xp.where(has, index, -1)
        return rows_at(rows.columns, rows.columns.select(rows.frame, (at,)), rows_of_groups, missing=has is not None)

    def _null(self, columns: Columns[Frame], dtype: pa.DataType) -> Frame:
        """Frame of a single null."""
        xp, kind = columns.ops.xp, carried(dtype)
        if is_text(dtype) or is_bytes(dtype):
            text = columns.source(columns.frame([], [], 1)).text(None)
            return columns.relabelled(columns.frame([text], (pa.string(),), 1), (kind,))
        low = xp.zeros(1, dtype="uint64") if is_wide_decimal(dtype) else None
        data = xp.zeros(1, dtype=_array_name(dtype))
        return columns.frame([Value(dtype, data, xp.zeros(1, dtype=bool), low)], (kind,), 1)


def _array_name(dtype: pa.DataType) -> str:
    if pat.is_boolean(dtype):
        return "bool"
    if pat.is_floating(dtype):
        return f"float{dtype.bit_width}"
    return "int64" if pat.is_decimal(dtype) else f"int{dtype.bit_width}"


class ExtremeState(PickState[Frame]):
    """``min`` and ``max``."""

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return (carried(self.call.dtype),)

    @property
    def _kind(self) -> Reduce:
        return Reduce.MIN if self.call.function is AggregateFunction.MIN else Reduce.MAX

    def _picked(self, rows: Reducer[Frame], at: int, valid: Array | None) -> Callable[[], Frame]:
        dtype = self.call.dtype
        if not (is_text(dtype) or is_bytes(dtype) or is_wide_decimal(dtype)):
            return self._by_value(rows, at, valid)
        order, place = _in_order(rows, at, descending=False)
        number = rows.ask(self._kind, place, valid)

        def state() -> Frame:
            if rows.rows == 0:
                return self._gathered(rows, at, rows.of(number), None)
            return self._gathered(rows, at, order[rows.of(number)], rows.has(number))

        return state

    def _by_value(self, rows: Reducer[Frame], at: int, valid: Array | None) -> Callable[[], Frame]:
        value = rows.value(at)
        dtype = self.call.dtype
        words = _float_words(rows.xp, value.data) if is_float(dtype) else value.data.astype("int64")
        number = rows.ask(self._kind, words, valid)

        def state() -> Frame:
            best_words = rows.of(number)
            data = _floats(rows.xp, best_words, dtype) if is_float(dtype) else best_words.astype(_array_name(dtype))
            best = Value(dtype, data, rows.has(number))
            return _framed(rows.columns, [best], len(best_words))

        return state

    def nothing(self, columns: Columns[Frame]) -> Frame:
        return self._null(columns, self.call.dtype)


def _float_words(xp: Any, data: Array) -> Array:
    """Convert floats to int64 words in Spark's order. −0.0 is just below 0.0, so that its sign is kept."""
    width = 8 * data.dtype.itemsize
    bits = data.view(f"int{width}")
    magnitude = bits & bits.dtype.type((1 << (width - 1)) - 1)
    words = xp.where(bits < 0, ~magnitude, magnitude)
    infinity = _INFINITIES[width]
    return xp.where(magnitude > infinity, infinity + 1, words).astype("int64")


def _floats(xp: Any, words: Array, dtype: pa.DataType) -> Array:
    """Convert words of :func:`_float_words` back to floats; all NaNs become one."""
    single = pat.is_float32(dtype)
    kind, sign, nan = ("int32", -(1 << 31), 0x7FC00000) if single else ("int64", _INT64_MIN, 0x7FF8000000000000)
    bits = xp.where(words < 0, ~words | sign, words)
    infinity = _INFINITIES[32 if single else 64]
    return xp.where(words > infinity, nan, bits).astype(kind).view("float32" if single else "float64")


class EndState(PickState[Frame]):
    """``first`` and ``last``: the value, and whether a row counted."""

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return (carried(self.call.dtype), pa.bool_())

    def _counting(self, rows: Reducer[Frame], at: int, mask: Array | None) -> Array | None:
        return mask_and(mask, rows.valid(at)) if self.call.ignore_nulls else mask

    def _set(self, rows: Reducer[Frame], at: Sequence[int]) -> Array | None:
        return rows.value(at[1]).data

    def _picked(self, rows: Reducer[Frame], at: int, valid: Array | None) -> Callable[[], Frame]:
        kind = Reduce.MIN if self.call.function is AggregateFunction.FIRST else Reduce.MAX
        number = rows.ask(kind, rows.xp.arange(rows.rows, dtype="int64"), valid)

        def state() -> Frame:
            index, has = rows.of(number), rows.has(number)
            present = rows.xp.ones(len(index), dtype=bool) if has is None else has
            flag = _framed(rows.columns, [Value(pa.bool_(), present)], len(index))
            return rows.columns.hstack([self._gathered(rows, at, index, has), flag])

        return state

    def nothing(self, columns: Columns[Frame]) -> Frame:
        flag = Value(pa.bool_(), columns.ops.xp.zeros(1, dtype=bool))
        return columns.hstack([self._null(columns, self.call.dtype), _framed(columns, [flag], 1)])


class ExtremeByState(PickState[Frame]):
    """``min_by`` and ``max_by``: value and ordering of the row with the least or greatest one, the last of several."""

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return carried(self.call.dtype), carried(self.call.ordering_type)

    def _counting(self, rows: Reducer[Frame], at: int, mask: Array | None) -> Array | None:
        return mask_and(mask, rows.valid(at + 1))

    def _set(self, rows: Reducer[Frame], at: Sequence[int]) -> Array | None:
        return rows.valid(at[1])

    def _picked(self, rows: Reducer[Frame], at: int, valid: Array | None) -> Callable[[], Frame]:
        order, place = _in_order(rows, at + 1, descending=self.call.function is AggregateFunction.MIN_BY)
        number = rows.ask(Reduce.MAX, place, valid)

        def state() -> Frame:
            index, has = order[rows.of(number)], rows.has(number)
            return rows.columns.hstack([self._gathered(rows, position, index, has) for position in (at, at + 1)])

        return state

    def nothing(self, columns: Columns[Frame]) -> Frame:
        kinds = (self.call.dtype, self.call.ordering_type)
        return columns.hstack([self._null(columns, dtype) for dtype in kinds])


def _in_order(rows: Reducer[Frame], at: int, *, descending: bool) -> tuple[Array, Array]:
    """Rows in the order of a column, equal ones as they come, and the place of each row in it."""
    columns = rows.columns
    order = columns.order(sortable(columns, columns.select(rows.frame, (at,))), (descending,), (True,))
    place = rows.xp.empty(rows.rows, dtype="int64")
    place[order] = rows.xp.arange(rows.rows, dtype="int64")
    return order, place
