"""Counts, sums and averages. Sums of integers and decimals are kept in 128 bits.

Decimals of many digits are summed in two parts, ``high`` × 10**18 + ``sum``, so that nothing overflows before it is
asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import polars as pl
import pyarrow.types as pat

from gpujoin.backends.cpu.pipeline.states.base import State
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.functions.lowered import INT64, Column, magnitude, within
from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.expressions import EvalMode

_LIMB = 10**18
_SAFE_DIGITS = 26
"""Most digits of decimals that are summed in 128 bits: the sum of 2**40 rows fits."""
_SUMMABLE = 1 << 126


class Count(State):
    """``count``."""

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


class TrySum(State):
    """``try_sum`` of integers: the sums of those above and below zero, and the number of values.

    Spark adds the rows as they come, and gives null once a sum on the way leaves 64 bits. In no order does one if
    neither of these sums does; in every order the last one does if their total does.
    """

    _parts: ClassVar = {"p": pl.Int128, "m": pl.Int128, "n": pl.Int64}

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del arguments, rows
        value = self.value.cast(pl.Int128)
        above, below = value.filter(self.value > 0).sum(), value.filter(self.value < 0).sum()
        count = self.value.count().cast(pl.Int64)
        return [each.alias(self.name(part)) for part, each in zip(self._parts, (above, below, count), strict=True)]

    def merge(self) -> list[pl.Expr]:
        return [self.column(part).sum() for part in self._parts]

    def nothing(self) -> list[pl.Expr]:
        return [pl.lit(0, kind).alias(self.name(part)) for part, kind in self._parts.items()]

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        above, below, count = (state[self.name(part)] for part in self._parts)
        total = above + below
        fits = (total >= INT64[0]) & (total <= INT64[1])
        if (fits & ((above > INT64[1]) | (below < INT64[0]))).any():
            raise ExpressionEvaluationError(f"{self.call}: whether it overflows depends on the order of rows")
        result = pl.select(pl.when(fits & (count > 0)).then(total).cast(pl.Int64)).to_series()
        return [result, count == 0]


class FloatSum(State):
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
