"""States of aggregate functions in Polars: how they are reduced from rows, merged, and converted to Spark's buffers.

A state has a row for each group. Sums of integers and decimals are kept in 128 bits. Decimals of many digits are summed
in two parts, ``high`` × 10**18 + ``sum``, so that nothing overflows before it is asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.pipeline.columns import INT64, Column, magnitude, polars_type, within
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.aggregates import CENTRAL_MOMENTS, HIGHER_MOMENTS, AggregateCall, AggregateFunction
from gpujoin.model.expressions import EvalMode
from gpujoin.model.types import is_float, is_text

_LIMB = 10**18
_LIMB_DIGITS = 18
_SAFE_DIGITS = 26
"""Most digits of decimals that are summed in 128 bits: the sum of 2**40 rows fits."""
_SUMMABLE = 1 << 126


def one_width(expression: pl.Expr, dtype: pa.DataType) -> pl.Expr:
    """Cast values to the form that is the same in all pieces: text as bytes, decimals in 128 bits."""
    if is_text(dtype):
        return expression.cast(pl.Binary)
    if not pat.is_decimal(dtype):
        return expression
    return expression.cast(polars_type(dtype, wide=dtype.precision > _LIMB_DIGITS))


class State(ABC):
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


class _Count(State):
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


class ExactSum(State):
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


class _FloatSum(State):
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


class _Combined(State):
    """One value, combined from the values of a group as it is from those of its parts."""

    @abstractmethod
    def _combine(self, value: pl.Expr) -> pl.Expr:
        """Combine the values of a group."""

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del arguments, rows
        return [self._combine(one_width(self.value, self.call.dtype)).alias(self.name("v"))]

    def merge(self) -> list[pl.Expr]:
        return [self._combine(self.column("v"))]

    def nothing(self) -> list[pl.Expr]:
        return [_null(self.call.dtype).alias(self.name("v"))]

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        return [state[self.name("v")]]


class _Extreme(_Combined):
    def _combine(self, value: pl.Expr) -> pl.Expr:
        return _extreme(value, self.call.dtype, least=self.call.function is AggregateFunction.MIN)


class _Bitwise(_Combined):
    """``bit_and``, ``bit_or``, ``bit_xor``."""

    def _combine(self, value: pl.Expr) -> pl.Expr:
        match self.call.function:
            case AggregateFunction.BIT_AND:
                return value.bitwise_and()
            case AggregateFunction.BIT_OR:
                return value.bitwise_or()
            case _:
                return value.bitwise_xor()


class _ExtremeBy(State):
    """``min_by`` and ``max_by``: a value, and the least or greatest ordering of the group."""

    def _picked(self, value: pl.Expr, ordering: pl.Expr) -> list[pl.Expr]:
        least = self.call.function is AggregateFunction.MIN_BY
        best = _extreme(ordering, self.call.ordering_type, least=least)
        return [value.filter(ordering == best).last().alias(self.name("v")), best.alias(self.name("o"))]

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del arguments, rows
        value = one_width(self.value, self.call.dtype)
        return self._picked(value, one_width(self.column("x1"), self.call.ordering_type))

    def merge(self) -> list[pl.Expr]:
        return self._picked(self.column("v"), self.column("o"))

    def nothing(self) -> list[pl.Expr]:
        return [_null(self.call.dtype).alias(self.name("v")), _null(self.call.ordering_type).alias(self.name("o"))]

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        return [state[self.name("v")], state[self.name("o")]]


class _Values(State):
    """The values of a group as a list."""

    def _taken(self, values: pl.Expr) -> pl.Expr:
        return values

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del arguments, rows
        values = one_width(self.value, self.call.dtype).drop_nulls()
        return [self._taken(values).implode().alias(self.name("v"))]

    def merge(self) -> list[pl.Expr]:
        return [self._taken(self.column("v").explode().drop_nulls()).implode().alias(self.name("v"))]

    def nothing(self) -> list[pl.Expr]:
        kind = pl.select(_null(self.call.dtype)).to_series().dtype
        return [pl.lit(pl.Series([[]], dtype=pl.List(kind))).alias(self.name("v"))]


class Collected(_Values):
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


class _Deviations(State):
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


class _Edge(State):
    """``first`` and ``last``: the group's first or last row that counts."""

    def _pick(self, value: pl.Expr) -> pl.Expr:
        return value.first() if self.call.function is AggregateFunction.FIRST else value.last()

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del arguments, rows
        value = one_width(self.value, self.call.dtype)
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


def state_of(call: AggregateCall, prefix: str) -> State:
    """Make the state of a call; the prefix distinguishes its columns from those of other calls."""
    match call.function:
        case AggregateFunction.COUNT:
            return _Count(call, prefix)
        case AggregateFunction.SUM if not is_float(call.dtype):
            return ExactSum(call, prefix)
        case AggregateFunction.AVG if pat.is_decimal(call.dtype):
            return ExactSum(call, prefix)
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
            return Collected(call, prefix)
        case AggregateFunction.COVAR_POP | AggregateFunction.COVAR_SAMP | AggregateFunction.CORR:
            return _Comoments(call, prefix)
        case _:
            assert call.function in CENTRAL_MOMENTS | HIGHER_MOMENTS
            return _Moments(call, prefix)
