"""Translates parts, shifts and differences of dates to Polars expressions, for the years that Polars supports."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pyarrow as pa

from gpujoin.backends.cpu.pipeline.columns import Bounds, polars_type, within
from gpujoin.backends.cpu.pipeline.lowering.lowered import Lowered, NotLowered, Rule, known
from gpujoin.model.expressions import Call, Function

_CALENDAR: Bounds = (-719162, 2932896)
"""Days of the years 1 to 9999, in which Polars computes all parts of a date."""


def _of_date(compute: Callable[[pl.Expr], pl.Expr], dtype: pa.DataType, bounds: Callable[[Bounds], Bounds]) -> Rule:
    """Make the rule of a function of a date, which ``compute`` gives exactly in the years 1 to 9999."""

    def rule(_node: Call, values: list[Lowered]) -> Lowered:
        (date,) = values
        if not within(known(date), _CALENDAR):
            raise NotLowered("a date outside the years 1 to 9999")
        return Lowered(compute(date.expr).cast(polars_type(dtype)), dtype, bounds(known(date)))

    return rule


def _part(compute: Callable[[pl.Expr], pl.Expr], least: int, most: int) -> Rule:
    return _of_date(compute, pa.int32(), lambda _: (least, most))


def _shift(sign: int) -> Rule:
    def rule(_node: Call, values: list[Lowered]) -> Lowered:
        date, days = values
        low, high = sorted(sign * bound for bound in known(days))
        bounds = (known(date)[0] + low, known(date)[1] + high)
        if not within(bounds, _CALENDAR):
            raise NotLowered("a date outside the years 1 to 9999")
        shift = days.expr.cast(pl.Int32)
        shifted = date.expr.cast(pl.Int32) + (shift if sign > 0 else -shift)
        return Lowered(shifted.cast(pl.Date), pa.date32(), bounds)

    return rule


def _difference(_node: Call, values: list[Lowered]) -> Lowered:
    end, start = values
    bounds = (known(end)[0] - known(start)[1], known(end)[1] - known(start)[0])
    if not within(bounds, (-(1 << 31), (1 << 31) - 1)):
        raise NotLowered("a difference that may overflow")
    return Lowered(end.expr.cast(pl.Int32) - start.expr.cast(pl.Int32), pa.int32(), bounds)


FUNCTIONS: dict[Function, Rule] = {
    Function.YEAR: _part(lambda date: date.dt.year(), 1, 9999),
    Function.QUARTER: _part(lambda date: date.dt.quarter(), 1, 4),
    Function.MONTH: _part(lambda date: date.dt.month(), 1, 12),
    Function.DAY: _part(lambda date: date.dt.day(), 1, 31),
    Function.DAY_OF_WEEK: _part(lambda date: date.dt.weekday() % 7 + 1, 1, 7),
    Function.WEEKDAY: _part(lambda date: date.dt.weekday() - 1, 0, 6),
    Function.DAY_OF_YEAR: _part(lambda date: date.dt.ordinal_day(), 1, 366),
    Function.LAST_DAY: _of_date(
        lambda date: date.dt.month_end(), pa.date32(), lambda days: (days[0], min(days[1] + 30, _CALENDAR[1]))
    ),
    Function.DATE_ADD: _shift(1),
    Function.DATE_SUB: _shift(-1),
    Function.DATE_DIFF: _difference,
}
