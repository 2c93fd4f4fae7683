"""Timestamps made of parts, shifted by months, and their differences, by a clock in UTC."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pyarrow as pa

from gpujoin.backends.cpu.expressions.calendar import (
    day_of_month,
    days_from_months,
    months_of,
    plus_months,
)
from gpujoin.backends.cpu.expressions.implementation import Run, fail, null_or_raise
from gpujoin.backends.cpu.expressions.vector import Array, Mask, Vector, mask_and
from gpujoin.errors import UnsupportedValueError
from gpujoin.functions.dates import DIFFERENCE_MONTHS, DIFFERENCE_UNITS, constant_word
from gpujoin.model.expressions import Call, Function

_SECOND = 10**6
_DAY = 86_400 * _SECOND
_MOST_DAYS = ((1 << 63) - 1) // _DAY - 1
_MOST_YEARS = 999_999_999
"""Java's calendar ends at this year, and begins as many before the year 0."""


def _within(node: Call, days: Array, micros: Array, valid: Mask | None) -> Vector:
    """Timestamps from days and microseconds of the day; one that does not fit 64 bits is an error in every mode."""
    assert node.type is not None
    outside = np.abs(days) > _MOST_DAYS
    if outside.any() and (outside if valid is None else outside & valid).any():
        fail(node, "the timestamp overflows")
    with np.errstate(over="ignore"):
        return Vector(node.type, days * _DAY + micros, valid)


def _add_months(node: Call, operands: list[Vector], _length: int) -> Vector:
    """Keep the time of day, and the day of the month or the last one of a shorter month."""
    moment, shift = operands
    days, micros = np.divmod(moment.values, _DAY)
    shifted = plus_months(days, shift.values.astype(np.int64))
    return _within(node, shifted, micros, mask_and(moment.valid, shift.valid))


def _difference(node: Call, operands: list[Vector], _length: int) -> Vector:
    """Whole units from the first timestamp to the second, rounded towards zero."""
    _, start, end = operands
    valid = mask_and(start.valid, end.valid)
    unit = constant_word(node.arguments[0])
    if unit in DIFFERENCE_MONTHS:
        whole = _months_between(np.asarray(start.values), np.asarray(end.values))
        return Vector(pa.int64(), _towards_zero(whole, DIFFERENCE_MONTHS[unit]), valid)
    with np.errstate(over="ignore"):
        micros = np.asarray(end.values - start.values)
    overflows = ((end.values ^ start.values) & (end.values ^ micros)) < 0
    if overflows.any() and (overflows if valid is None else overflows & valid).any():
        raise UnsupportedValueError("a difference of timestamps beyond 64 bits is left to Spark")
    return Vector(pa.int64(), _towards_zero(micros, DIFFERENCE_UNITS[unit]), valid)


def _towards_zero(values: Array, unit: int) -> Array:
    quotient = values // unit
    return np.asarray(quotient + ((values < 0) & (quotient * unit != values)))


def _months_between(start: Array, end: Array) -> Array:
    """Whole months as Java counts them: the last day is complete or left out, then days of the month are compared."""
    (start_days, start_micros), (end_days, end_micros) = np.divmod(start, _DAY), np.divmod(end, _DAY)
    early = (end_days > start_days) & (end_micros < start_micros)
    late = (end_days < start_days) & (end_micros > start_micros)
    end_days = end_days - early + late
    months = months_of(end_days) - months_of(start_days)
    return _towards_zero(months * 32 + day_of_month(end_days) - day_of_month(start_days), 32)


def _make(node: Call, operands: list[Vector], _length: int) -> Vector:
    """A clock's time from year, month, day, hour, minute, and seconds with six digits; 60 seconds are a minute."""
    year, month, day, hour, minute, second = (o.values.astype(np.int64) for o in operands)
    valid = reduce(mask_and, (o.valid for o in operands))
    wide = np.abs(second) >= 1 << 31
    if wide.any() and (wide if valid is None else wide & valid).any():
        raise UnsupportedValueError("seconds of ten digits and more are left to Spark")
    bad_day = (np.abs(year) > _MOST_YEARS) | (month < 1) | (month > 12) | (day < 1)
    # Each operand may be one value for all rows.
    bad = bad_day | (hour < 0) | (hour > 23) | (minute < 0) | (minute > 59) | (second < 0) | (second > 60 * _SECOND)
    months = np.where(bad_day, 0, (year - 1970) * 12 + month - 1)
    first = days_from_months(months)
    bad = bad | (day > days_from_months(months + 1) - first)
    valid = null_or_raise(node, bad, valid, "there is no such time")
    micros = (hour * 60 + minute) * 60 * _SECOND + second
    return _within(node, np.where(bad, 0, first + day - 1), np.where(bad, 0, micros), valid)


def _second_with_fraction(_node: Call, operands: list[Vector], _length: int) -> Vector:
    moment = operands[0]
    return Vector(pa.decimal128(8, 6), np.asarray(moment.values % (60 * _SECOND)), moment.valid)


def exact_difference(node: Call) -> bool:
    """Whether the unit is a constant that is known."""
    unit = constant_word(node.arguments[0])
    return unit in DIFFERENCE_UNITS or unit in DIFFERENCE_MONTHS


FUNCTIONS: dict[Function, Run] = {
    Function.TIMESTAMP_ADD_MONTHS: _add_months,
    Function.TIMESTAMP_DIFF: _difference,
    Function.MAKE_TIMESTAMP: _make,
    Function.SECOND_WITH_FRACTION: _second_with_fraction,
}
