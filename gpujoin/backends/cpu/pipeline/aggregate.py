"""Aggregates with Polars into states that can be merged exactly.

A *state* is a frame with one row per group: the keys, then the columns of each call's :class:`_State`. Sums of integers
and decimals are kept in 128 bits. Decimals of many digits are summed in two parts, ``high`` × 10**18 + ``sum``, so that
nothing overflows before it is asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.pipeline.columns import INT64, Column, as_text, magnitude, polars_type, within
from gpujoin.backends.cpu.pipeline.lowering import Extent
from gpujoin.backends.cpu.pipeline.piece import Piece, float_key, fresh, to_batches
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.aggregates import CENTRAL_MOMENTS, HIGHER_MOMENTS, AggregateCall, AggregateFunction
from gpujoin.model.expressions import Case, EvalMode, Expression, Literal
from gpujoin.model.pipeline import FAN_OUT, PipelineMetrics
from gpujoin.model.relations import PartialAggregate
from gpujoin.model.types import is_float, is_text, logical

_LIMB = 10**18
_LIMB_DIGITS = 18
_SAFE_DIGITS = 26
"""Most digits of decimals that are summed in 128 bits: the sum of 2**40 rows fits."""
_SUMMABLE = 1 << 126
_HASH_SEED = 0x5EED
"""Seed of the first division of states on disk; each further division takes the next one."""
_WORD = 1 << 64
_DIGITS = pl.Decimal(38, 0)
_LOW = "_low"
"""Suffix of the column with the low half of a 128-bit integer on disk: Arrow has no such integers."""


class PolarsAggregation:
    """Aggregation in Polars; see :class:`gpujoin.model.pipeline.AggregateState`."""

    merged_rows = 1 << 17

    def __init__(self, node: PartialAggregate, extent: Extent, metrics: PipelineMetrics) -> None:
        self._node = node
        self._extent = extent
        self._metrics = metrics
        self._keys = [f"k{i}" for i in range(len(node.keys))]
        self._states = [_state_of(call, f"a{i}") for i, call in enumerate(node.aggregates)]

    def nothing(self) -> pl.DataFrame:
        return pl.select([expr for state in self._states for expr in state.nothing()])

    def size(self, state: pl.DataFrame) -> tuple[int, int]:
        return state.height, int(state.estimated_size())

    def divide(self, state: pl.DataFrame, division: int) -> list[pa.Table]:
        """Divide a state by the hash of its keys. Text and bytes are copied: views would refer to data of all rows."""
        numbers = (state.select(self._keys).hash_rows(seed=_HASH_SEED + division) % FAN_OUT).alias("part")
        stored = _for_spill(state)
        parts = stored.with_columns(numbers).partition_by("part", as_dict=True, include_key=False)
        oldest = pl.CompatLevel.oldest()
        return [parts.get((i,), stored.clear()).to_arrow(compat_level=oldest) for i in range(FAN_OUT)]

    def restore(self, batch: pa.RecordBatch) -> pl.DataFrame:
        return _from_spill(batch)

    def reduce(self, piece: Piece) -> list[pl.DataFrame]:
        expressions = [key.expression for key in self._node.keys]
        for call in self._node.aggregates:
            expressions += _guarded(call)
        taken = piece.compute(expressions, extent=self._extent)
        if not all(column.bounds.measured for column in taken.columns) and any(
            isinstance(state, _ExactSum) for state in self._states
        ):
            taken = taken.collect()
        columns = iter(taken.columns)
        keys = [_key(next(columns)).alias(name) for name in self._keys]
        prepared: list[pl.Expr] = []
        added: list[pl.Expr] = []
        for state in self._states:
            arguments = [next(columns) for _ in state.call.arguments]
            mask = None if state.call.filter is None else pl.col(next(columns).name).fill_null(value=False)
            for i, argument in enumerate(arguments):
                prepared.append(pl.col(argument.name).alias(f"{state.prefix}_x{i}"))
            if mask is not None:
                prepared.append(mask.alias(f"{state.prefix}_m"))
            added += state.reduce(arguments, taken.rows)
        if not keys:
            rows = [pl.first().is_null().alias("row")] if not prepared else []
            frame = taken.frame.select(prepared or rows).select(added)
            return [taken.run(self._normalised(frame))]
        frame = taken.frame.select([*keys, *prepared]).group_by(self._keys).agg(added)
        return [taken.run(self._normalised(frame))]

    def _normalised(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Bring the columns of a state into their normal form, by :meth:`_State.normalise` of each call."""
        casts = [expr for state in self._states for expr in state.normalise()]
        return frame.with_columns(casts) if casts else frame

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        whole = pl.concat(states).lazy()
        merged = [expr for state in self._states for expr in state.merge()]
        if not self._keys:
            return self._normalised(whole.select(merged)).collect()
        return self._normalised(whole.group_by(self._keys).agg(merged)).collect()

    def finish(self, state: pl.DataFrame) -> Piece | pa.Table:
        """Convert a state to the keys and Spark's aggregation buffers: a table if there are lists."""
        out = [state[name] for name in self._keys]
        for each in self._states:
            out += each.finish(state)
        fields = zip(out, (logical(field.type) for field in self._node.schema), strict=True)
        if not any(isinstance(each, _Collected) for each in self._states):
            return self._piece(list(fields))
        columns = [
            self._lists(series, dtype) if pat.is_list(dtype) else self._arrow(series, dtype) for series, dtype in fields
        ]
        return pa.Table.from_arrays(columns, schema=self._node.schema)

    def _piece(self, fields: Sequence[tuple[pl.Series, pa.DataType]]) -> Piece:
        given = [(as_text(series) if is_text(dtype) else series).alias(fresh()) for series, dtype in fields]
        return Piece.of_frame(pl.DataFrame(given), [dtype for _, dtype in fields], self._metrics)

    def _arrow(self, series: pl.Series, dtype: pa.DataType) -> pa.ChunkedArray:
        schema = pa.schema([("v", dtype)])
        return pa.Table.from_batches(to_batches(self._piece([(series, dtype)]), schema, _WORD), schema).column(0)

    def _lists(self, series: pl.Series, dtype: pa.DataType) -> pa.Array:
        ends = np.cumsum(series.list.len().to_numpy(), dtype=np.int64)
        offsets = np.concatenate([np.zeros(1, np.int64), ends])
        if offsets[-1] > np.iinfo(np.int32).max:
            raise MemoryError(f"{offsets[-1]} values in lists of one Arrow column")
        values = self._arrow(series.explode().drop_nulls(), dtype.value_type).combine_chunks()
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=dtype)


def _for_spill(state: pl.DataFrame) -> pl.DataFrame:
    """Replace 128-bit integers by a high half of the same name, rounded down, and a low half that is not negative.

    In lists they become decimals: those are values, of up to 38 digits, and no sums.
    """
    halves = []
    for name, dtype in state.schema.items():
        if dtype == pl.Int128:
            high = pl.col(name) // pl.lit(_WORD, pl.Int128)
            low = pl.col(name) - high * pl.lit(_WORD, pl.Int128)
            halves += [high.cast(pl.Int64).alias(name), low.cast(pl.UInt64).alias(name + _LOW)]
        elif dtype == pl.List(pl.Int128):
            halves.append(pl.col(name).cast(pl.List(_DIGITS)))
    return state.with_columns(halves)


def _from_spill(batch: pa.RecordBatch) -> pl.DataFrame:
    """Undo :func:`_for_spill`."""
    frame = pl.DataFrame(batch)
    names = [name for name in frame.columns if not name.endswith(_LOW)]
    whole = []
    for name in names:
        if name + _LOW in frame.columns:
            high, low = pl.col(name).cast(pl.Int128), pl.col(name + _LOW).cast(pl.Int128)
            whole.append((high * pl.lit(_WORD, pl.Int128) + low).alias(name))
        elif frame.schema[name] == pl.List(_DIGITS):
            whole.append(pl.col(name).cast(pl.List(pl.Int128)))
    return frame.with_columns(whole).select(names)


def _guarded(call: AggregateCall) -> list[Expression]:
    """Arguments, then the filter. Arguments are evaluated, and may raise, only where the filter is true."""
    if call.filter is None:
        return list(call.arguments)
    guarded: list[Expression] = [
        Case(
            conditions=(call.filter,), values=(argument,), otherwise=Literal(value=None, type=argument.type),
            type=argument.type,
        )
        for argument in call.arguments
    ]  # fmt: skip
    return [*guarded, call.filter]


def _key(column: Column) -> pl.Expr:
    expression = pl.col(column.name)
    if is_float(column.dtype):
        return float_key(expression, column.dtype)
    return _one_width(expression, column.dtype)


def _one_width(expression: pl.Expr, dtype: pa.DataType) -> pl.Expr:
    """Cast values to the form that is the same in all pieces: text as bytes, decimals in 128 bits."""
    if is_text(dtype):
        return expression.cast(pl.Binary)
    if not pat.is_decimal(dtype):
        return expression
    return expression.cast(polars_type(dtype, wide=dtype.precision > _LIMB_DIGITS))


class _State(ABC):
    """The state columns of one call: how they are computed from rows, merged, and converted to Spark's buffer."""

    def __init__(self, call: AggregateCall, prefix: str) -> None:
        self.call = call
        self.prefix = prefix

    def name(self, part: str) -> str:
        return f"{self.prefix}_{part}"

    def column(self, part: str) -> pl.Expr:
        return pl.col(self.name(part))

    @property
    def value(self) -> pl.Expr:
        """The argument; null in rows that the filter excludes."""
        return pl.col(f"{self.prefix}_x0")

    @abstractmethod
    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        """State columns, computed from a group's rows."""

    @abstractmethod
    def merge(self) -> list[pl.Expr]:
        """State columns, merged from those of several states."""

    @abstractmethod
    def nothing(self) -> list[pl.Expr]:
        """State columns of an aggregation over no rows."""

    def normalise(self) -> list[pl.Expr]:
        """Replacements for state columns, applied after each step; none unless overridden."""
        return []

    @abstractmethod
    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        """Columns of Spark's buffer."""


class _Count(_State):
    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del rows
        if arguments:
            present = [pl.col(f"{self.prefix}_x{i}").is_not_null() for i in range(len(arguments))]
            counted = pl.all_horizontal(present).sum()
        elif self.call.filter is not None:
            counted = self.column("m").sum()
        else:
            counted = pl.len()
        return [counted.cast(pl.Int64).alias(self.name("n"))]

    def merge(self) -> list[pl.Expr]:
        return [self.column("n").sum()]

    def nothing(self) -> list[pl.Expr]:
        return [pl.lit(0, pl.Int64).alias(self.name("n"))]

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        return [state[self.name("n")]]


class _ExactSum(_State):
    """Sums and averages of integers and decimals: the sum and the number of values."""

    def __init__(self, call: AggregateCall, prefix: str) -> None:
        super().__init__(call, prefix)
        self._split = pat.is_decimal(call.dtype) and call.dtype.precision > _SAFE_DIGITS

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        bounds = arguments[0].bounds.get()
        assert bounds is not None
        largest = magnitude(bounds) * max(rows, 1)
        count = self.value.count().cast(pl.Int64).alias(self.name("n"))
        if largest <= INT64[1] and not arguments[0].wide:
            total = self.value.cast(pl.Int64).sum()
        elif largest < _SUMMABLE:
            total = self.value.cast(pl.Int128).sum()
        else:
            assert self._split
            value = self.value.cast(pl.Int128)
            high = value // _LIMB
            return [
                high.sum().alias(self.name("h")), (value - high * _LIMB).sum().alias(self.name("s")), count,
            ]  # fmt: skip
        sums = [total.cast(pl.Int128).alias(self.name("s"))]
        if self._split:
            sums.insert(0, pl.lit(0, pl.Int128).alias(self.name("h")))
        return [*sums, count]

    def merge(self) -> list[pl.Expr]:
        parts = ("h", "s", "n") if self._split else ("s", "n")
        return [self.column(part).sum() for part in parts]

    def nothing(self) -> list[pl.Expr]:
        parts = {"h": pl.Int128, "s": pl.Int128, "n": pl.Int64} if self._split else {"s": pl.Int128, "n": pl.Int64}
        return [pl.lit(0, kind).alias(self.name(part)) for part, kind in parts.items()]

    def normalise(self) -> list[pl.Expr]:
        if not self._split:
            return []
        # The low limb keeps its digits; what is above them goes to the high limb.
        carried = self.column("s") // _LIMB
        return [
            (self.column("h") + carried).alias(self.name("h")),
            (self.column("s") - carried * _LIMB).alias(self.name("s")),
        ]

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        count, total = state[self.name("n")], state[self.name("s")]
        dtype = self.call.buffer[0].type
        if not pat.is_decimal(dtype):
            return [pl.select(pl.when(count > 0).then(self._integers(total))).to_series()]
        limit = 10**dtype.precision
        if self._split:
            high = state[self.name("h")]
            most = limit // _LIMB
            fits = (high < most) & (high >= -most)
            total = pl.select(pl.when(fits).then(high).otherwise(0) * _LIMB + total).to_series()
            fits &= (total < limit) & (total > -limit)
        else:
            fits = (total < limit) & (total > -limit) if limit < _SUMMABLE else total.is_not_null()
        total = pl.select(pl.when(fits).then(total)).to_series()
        if self.call.function is AggregateFunction.AVG:
            return [total, count]
        return [total, count == 0]

    def _integers(self, total: pl.Series) -> pl.Series:
        bounds = (int(total.min() or 0), int(total.max() or 0))  # type: ignore[arg-type]
        if within(bounds, INT64):
            return total.cast(pl.Int64)
        if self.call.mode is EvalMode.ANSI:
            raise ExpressionEvaluationError(
                f"{self.call}: the sum overflows int64; cast to a decimal, or set spark.sql.ansi.enabled to false"
            )
        wrapped = [(v + (1 << 63)) % (1 << 64) - (1 << 63) for v in total.to_list()]
        return pl.Series(wrapped, dtype=pl.Int64)


class _FloatSum(_State):
    """Sums of floats, and averages of floats and integers, in doubles as in Spark."""

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del arguments, rows
        value = self.value.cast(pl.Float64)
        return [
            value.sum().alias(self.name("s")),
            value.count().cast(pl.Int64).alias(self.name("n")),
        ]

    def merge(self) -> list[pl.Expr]:
        return [self.column("s").sum(), self.column("n").sum()]

    def nothing(self) -> list[pl.Expr]:
        return [pl.lit(0.0, pl.Float64).alias(self.name("s")), pl.lit(0, pl.Int64).alias(self.name("n"))]

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        total, count = state[self.name("s")], state[self.name("n")]
        if self.call.function is AggregateFunction.AVG:
            return [total, count]
        return [pl.select(pl.when(count > 0).then(total)).to_series()]


def _extreme(value: pl.Expr, dtype: pa.DataType, *, least: bool) -> pl.Expr:
    """Least or greatest value. NaN is the greatest, so the least is a number if there is one."""
    if least:
        return value.min()
    return value.nan_max() if is_float(dtype) else value.max()


class _Extreme(_State):
    def _best(self, value: pl.Expr) -> pl.Expr:
        return _extreme(value, self.call.dtype, least=self.call.function is AggregateFunction.MIN)

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del arguments, rows
        value = _one_width(self.value, self.call.dtype)
        return [self._best(value).alias(self.name("v"))]

    def merge(self) -> list[pl.Expr]:
        return [self._best(self.column("v"))]

    def nothing(self) -> list[pl.Expr]:
        return [_null(self.call.dtype).alias(self.name("v"))]

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        return [state[self.name("v")]]


class _ExtremeBy(_State):
    """``min_by`` and ``max_by``: a value, and the least or greatest ordering of the group."""

    def _picked(self, value: pl.Expr, ordering: pl.Expr) -> list[pl.Expr]:
        least = self.call.function is AggregateFunction.MIN_BY
        best = _extreme(ordering, self.call.ordering_type, least=least)
        return [value.filter(ordering == best).last().alias(self.name("v")), best.alias(self.name("o"))]

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del arguments, rows
        value = _one_width(self.value, self.call.dtype)
        return self._picked(value, _one_width(self.column("x1"), self.call.ordering_type))

    def merge(self) -> list[pl.Expr]:
        return self._picked(self.column("v"), self.column("o"))

    def nothing(self) -> list[pl.Expr]:
        return [_null(self.call.dtype).alias(self.name("v")), _null(self.call.ordering_type).alias(self.name("o"))]

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        return [state[self.name("v")], state[self.name("o")]]


class _Bitwise(_State):
    """``bit_and``, ``bit_or``, ``bit_xor``."""

    def _combined(self, value: pl.Expr) -> pl.Expr:
        match self.call.function:
            case AggregateFunction.BIT_AND:
                return value.bitwise_and()
            case AggregateFunction.BIT_OR:
                return value.bitwise_or()
            case _:
                return value.bitwise_xor()

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del arguments, rows
        return [self._combined(self.value).alias(self.name("v"))]

    def merge(self) -> list[pl.Expr]:
        return [self._combined(self.column("v"))]

    def nothing(self) -> list[pl.Expr]:
        return [_null(self.call.dtype).alias(self.name("v"))]

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        return [state[self.name("v")]]


class _Values(_State):
    """The values of a group as a list."""

    def _taken(self, values: pl.Expr) -> pl.Expr:
        return values

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del arguments, rows
        values = _one_width(self.value, self.call.dtype).drop_nulls()
        return [self._taken(values).implode().alias(self.name("v"))]

    def merge(self) -> list[pl.Expr]:
        return [self._taken(self.column("v").explode().drop_nulls()).implode().alias(self.name("v"))]

    def nothing(self) -> list[pl.Expr]:
        kind = pl.select(_null(self.call.dtype)).to_series().dtype
        return [pl.lit(pl.Series([[]], dtype=pl.List(kind))).alias(self.name("v"))]


class _Collected(_Values):
    """``collect_list`` and ``collect_set``."""

    def _taken(self, values: pl.Expr) -> pl.Expr:
        return values if self.call.function is AggregateFunction.COLLECT_LIST else values.unique(maintain_order=True)

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        return [state[self.name("v")]]


class _Percentile(_Values):
    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        """Interpolate as Spark's `Percentile` does, in the same steps."""
        assert self.call.percentage is not None
        ordered = self.column("v").list.sort()
        position = (self.column("v").list.len().cast(pl.Int64) - 1).cast(pl.Float64) * self.call.percentage
        lower, higher = position.floor(), position.ceil()
        places = (place.cast(pl.Int64) for place in (lower, higher))
        below, above = (ordered.list.get(place, null_on_oob=True) for place in places)
        low, high = below.cast(pl.Float64), above.cast(pl.Float64)
        between = low + (position - lower) * (high - low)
        return [state.select(pl.when(below == above).then(low).otherwise(between)).to_series()]


def _first(value: pl.Expr) -> pl.Expr:
    return value.filter(value.is_not_null()).first()


def _mean_of_means(n: pl.Expr, avg: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Mean of a group from those of its parts, and how far each part's is from it; of equal ones exactly 0."""
    base = avg.filter(n > 0).first()
    offset = pl.when(n > 0).then(avg - base).otherwise(0.0)
    shift = (n * offset).sum() / n.sum()
    mean = (base + shift).fill_null(0.0)
    return mean, pl.when(n > 0).then(offset - shift).otherwise(0.0)


class _Deviations(_State):
    """Sums over deviations from means; of the state columns a call has as many as its buffer, the first ones."""

    _parts: ClassVar[tuple[str, ...]]

    @property
    def _own(self) -> tuple[str, ...]:
        return self._parts[: len(self.call.buffer)]

    def _named(self, values: Sequence[pl.Expr]) -> list[pl.Expr]:
        return [value.alias(self.name(part)) for value, part in zip(values, self._own, strict=False)]

    def nothing(self) -> list[pl.Expr]:
        return self._named([pl.lit(0.0, pl.Float64)] * len(self._own))

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        return [state[self.name(part)] for part in self._own]


class _Moments(_Deviations):
    """Count, mean, and sums of powers of deviations from the mean.

    Deviations are of values from which the group's first one is subtracted, so that those of a constant are exactly 0,
    as Spark finds them. The sums of a group about its mean follow from those of its parts about theirs: see
    P. Pébay, "Formulas for robust, one-pass parallel computation of covariances and arbitrary-order statistical
    moments", SAND2008-6212.
    """

    _parts = ("n", "avg", "m2", "m3", "m4")

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del arguments, rows
        first = _first(self.value)
        shifted = self.value - first
        deviation = shifted - shifted.mean()
        count = self.value.count().cast(pl.Float64)
        mean = (first + shifted.mean()).fill_null(0.0)
        return self._named([count, mean, *(deviation.pow(power).sum() for power in (2, 3, 4))])

    def merge(self) -> list[pl.Expr]:
        n = self.column("n")
        mean, d = _mean_of_means(n, self.column("avg"))
        m2, m3, m4 = (self.column(part) for part in self._parts[2:])
        return self._named(
            [
                n.sum(), mean, (m2 + n * d**2).sum(), (m3 + 3 * d * m2 + n * d**3).sum(),
                (m4 + 4 * d * m3 + 6 * d**2 * m2 + n * d**4).sum(),
            ]
        )  # fmt: skip


class _Comoments(_Deviations):
    """Count of pairs, both means, and sums of products of deviations; see :class:`_Moments`."""

    _parts = ("n", "x", "y", "xy", "xx", "yy")

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del arguments, rows
        whole = self.value.is_not_null() & self.column("x1").is_not_null()
        means, deviations = [], []
        for value in (self.value, self.column("x1")):
            paired = pl.when(whole).then(value)
            first = _first(paired)
            shifted = paired - first
            means.append((first + shifted.mean()).fill_null(0.0))
            deviations.append(shifted - shifted.mean())
        x, y = deviations
        return self._named([whole.sum().cast(pl.Float64), *means, (x * y).sum(), (x * x).sum(), (y * y).sum()])

    def merge(self) -> list[pl.Expr]:
        n, xy, xx, yy = (self.column(part) for part in ("n", "xy", "xx", "yy"))
        x_mean, x = _mean_of_means(n, self.column("x"))
        y_mean, y = _mean_of_means(n, self.column("y"))
        sums = [(xy + n * x * y).sum(), (xx + n * x * x).sum(), (yy + n * y * y).sum()]
        return self._named([n.sum(), x_mean, y_mean, *sums])


class _Edge(_State):
    """``first`` and ``last``: the group's first or last row that counts."""

    def _pick(self, value: pl.Expr) -> pl.Expr:
        return value.first() if self.call.function is AggregateFunction.FIRST else value.last()

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del arguments, rows
        value = _one_width(self.value, self.call.dtype)
        taking = self._taking(value)
        if taking is None:
            return [self._pick(value).alias(self.name("v")), (pl.len() > 0).alias(self.name("set"))]
        return [self._pick(value.filter(taking)).alias(self.name("v")), taking.any().alias(self.name("set"))]

    def _taking(self, value: pl.Expr) -> pl.Expr | None:
        """Mask of the rows that count; ``None`` if all do."""
        mask = None if self.call.filter is None else self.column("m")
        if self.call.ignore_nulls:
            return value.is_not_null()  # null where the filter leaves a row out
        return mask

    def merge(self) -> list[pl.Expr]:
        taken = self._pick(self.column("v").filter(self.column("set")))
        return [taken, self.column("set").any()]

    def nothing(self) -> list[pl.Expr]:
        return [_null(self.call.dtype).alias(self.name("v")), pl.lit(value=False).alias(self.name("set"))]

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        return [state[self.name("v")], state[self.name("set")]]


def _null(dtype: pa.DataType) -> pl.Expr:
    wide = is_text(dtype) or (pat.is_decimal(dtype) and dtype.precision > _LIMB_DIGITS)
    return pl.lit(None, polars_type(dtype, wide=wide))


def _state_of(call: AggregateCall, prefix: str) -> _State:
    match call.function:
        case AggregateFunction.COUNT:
            return _Count(call, prefix)
        case AggregateFunction.SUM if not is_float(call.dtype):
            return _ExactSum(call, prefix)
        case AggregateFunction.AVG if pat.is_decimal(call.dtype):
            return _ExactSum(call, prefix)
        case AggregateFunction.SUM | AggregateFunction.AVG:
            return _FloatSum(call, prefix)
        case AggregateFunction.MIN | AggregateFunction.MAX:
            return _Extreme(call, prefix)
        case AggregateFunction.FIRST | AggregateFunction.LAST:
            return _Edge(call, prefix)
        case AggregateFunction.MIN_BY | AggregateFunction.MAX_BY:
            return _ExtremeBy(call, prefix)
        case AggregateFunction.BIT_AND | AggregateFunction.BIT_OR | AggregateFunction.BIT_XOR:
            return _Bitwise(call, prefix)
        case AggregateFunction.PERCENTILE:
            return _Percentile(call, prefix)
        case AggregateFunction.COLLECT_LIST | AggregateFunction.COLLECT_SET:
            return _Collected(call, prefix)
        case AggregateFunction.COVAR_POP | AggregateFunction.COVAR_SAMP | AggregateFunction.CORR:
            return _Comoments(call, prefix)
        case _:
            assert call.function in CENTRAL_MOMENTS | HIGHER_MOMENTS
            return _Moments(call, prefix)
