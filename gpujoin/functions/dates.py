"""Dates and timestamps: parts, shifts, differences, and conversion, in the proleptic Gregorian calendar."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Callable
from functools import reduce
from operator import sub

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import UnsupportedValueError
from gpujoin.functions import values as v
from gpujoin.functions.calendar import (
    DAYS,
    MONTHS,
    day_of_month,
    day_of_year,
    days_from_months,
    first_day,
    last_day,
    month_of,
    months_of,
    plus_months,
    quarter_of,
    week_of_year,
    weekday,
    year_of,
)
from gpujoin.functions.device import Active, Offer, Operands, of_either, operand_types, strict
from gpujoin.functions.implementation import Run, fail, null_or_raise, of_arrays
from gpujoin.functions.libraries import pl
from gpujoin.functions.lowered import Bounds, Lowered, NotLowered, Rule, bounds_of, polars_type, within
from gpujoin.functions.signatures import (
    BOOLEAN,
    DATE,
    DURATION,
    INSTANT,
    INT,
    NUMBER,
    TEXT,
    TIMESTAMP,
    Parameter,
    first,
    takes,
    to,
    type_of,
    types_of,
)
from gpujoin.functions.spec import FunctionSpec, Raises, SparkOnly
from gpujoin.functions.values import Value
from gpujoin.functions.vector import Array, Mask, Vector, from_arrow, mask_and
from gpujoin.functions.zones import clock, starts_of_day
from gpujoin.model.expressions import Call, Expression, Function, Literal
from gpujoin.model.types import MICROS, UNITS_PER_SECOND, is_numeric, is_text, is_whole
from gpujoin.model.zones import ZoneLiteral

DATE_UNITS = {
    "WEEK": "week",
    **dict.fromkeys(("MON", "MONTH", "MM"), "month"),
    "QUARTER": "quarter",
    **dict.fromkeys(("YEAR", "YYYY", "YY"), "year"),
}
"""Units of days that ``trunc`` and ``date_trunc`` cut to, by their names in capitals."""
TIME_UNITS = {
    "MICROSECOND": 1,
    "MILLISECOND": 10**3,
    "SECOND": 10**6,
    "MINUTE": 60 * 10**6,
    "HOUR": 3600 * 10**6,
    **dict.fromkeys(("DAY", "DD"), 86_400 * 10**6),
}
"""Microseconds of the other units that ``date_trunc`` cuts to."""
DIFFERENCE_UNITS = {
    **{word: TIME_UNITS[word] for word in ("MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR", "DAY")},
    "WEEK": 7 * TIME_UNITS["DAY"],
}
"""Microseconds of the units of ``timestampdiff`` that have one length."""
DIFFERENCE_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
"""Months of its other units."""
DAYS_OF_WEEK = {
    name[:length]: day
    for day, name in enumerate(("MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY", "SUNDAY"))
    for length in (2, 3, len(name))
}
"""Days of the week, Monday is 0, by their names in capitals."""
_MOST_MONTHS = 12 * 10_000
"""Constant shifts up to here leave 32 bits only from dates that are millions of years away."""

_PART = takes(DATE, gives=pa.int32())
_TIME = takes(TIMESTAMP, gives=pa.int32())
_SHIFT = takes(DATE, INT, gives=pa.date32())
_MICROS = Parameter(lambda t: pat.is_timestamp(t) and t.unit == "us", TIMESTAMP.convert)
_TIMESTAMP_SHIFT = takes(_MICROS, DURATION, gives=first)
_SECONDS = Parameter(
    lambda t: pat.is_decimal128(t) and t.scale == 6 and t.precision <= 16, to(pa.decimal128(16, 6), is_numeric, is_text)
)
WHOLE = Parameter(is_whole, NUMBER.convert)
_DATE_ONLY = Parameter(pat.is_date, to(pa.date32(), pat.is_date))
UTC = pa.timestamp("us", "UTC")


def constant_word(node: Expression) -> str:
    """A constant text in capitals; empty for other expressions, and for text that is not ASCII."""
    if not isinstance(node, Literal) or not isinstance(node.value, str) or not node.value.isascii():
        return ""
    return node.value.upper()


def shifts_little(node: Call) -> bool:
    """Whether a date is shifted by a constant number of months that no usual date overflows."""
    months = node.arguments[1]
    return isinstance(months, Literal) and abs(months.value or 0) <= _MOST_MONTHS


def _names_a_day(node: Call) -> bool:
    return constant_word(node.arguments[1]) in DAYS_OF_WEEK


def _fits_micros(node: Call) -> bool:
    return types_of(node)[0].bit_width <= 32


SPARK_ONLY = (SparkOnly(("YearOfWeek",)),)


def date_arithmetic(node: Call) -> Expression | None:
    """Translate sums of dates and days, and of timestamps and intervals; ``None`` for other calls."""
    if node.function not in (Function.ADD, Function.SUBTRACT):
        return None
    moment, shift = node.arguments
    if node.function is Function.ADD and _is_moment(type_of(shift)):
        moment, shift = shift, moment
    if pat.is_timestamp(type_of(moment)):
        return _shifted_timestamp(node, moment, shift)
    if not pat.is_date(type_of(moment)) or not (is_whole(type_of(shift)) or pat.is_null(type_of(shift))):
        return None
    function = Function.DATE_ADD if node.function is Function.ADD else Function.DATE_SUB
    return _SHIFT.resolve(dataclasses.replace(node, function=function, arguments=(moment, shift)))


def _is_moment(dtype: pa.DataType) -> bool:
    return bool(pat.is_date(dtype) or pat.is_timestamp(dtype))


def interval_micros(node: Expression) -> int | None:
    """Microseconds of a constant interval; ``None`` for anything else."""
    if not isinstance(node, Literal) or node.value is None or not pat.is_duration(type_of(node)):
        return None
    return int(node.value if isinstance(node.value, int) else node.value // dt.timedelta(microseconds=1))


def _shifted_timestamp(node: Call, moment: Expression, shift: Expression) -> Expression | None:
    """A timestamp plus an interval, or minus a constant one."""
    if not pat.is_duration(type_of(shift)):
        return None
    if node.function is Function.SUBTRACT:
        if not isinstance(shift, Literal) or shift.value is None:
            return None
        shift = dataclasses.replace(shift, value=-shift.value)
    return _TIMESTAMP_SHIFT.resolve(
        dataclasses.replace(node, function=Function.TIMESTAMP_ADD, arguments=(moment, shift))
    )


# -- arrays of either module ------------------------------------------------------------------------------------------
# Day numbers wrap at 32 bits, as in Java.


def _day_of_week(days: Array) -> Array:
    return (days.astype("int64") + 4) % 7 + 1


def _next_weekday(days: Array, node: Call) -> Array:
    days = days.astype("int64")
    return days + 1 + (DAYS_OF_WEEK[constant_word(node.arguments[1])] - weekday(days) - 1) % 7


def _later(days: Array, shift: Array) -> Array:
    return days + shift.astype("int32")


def _earlier(days: Array, shift: Array) -> Array:
    return days - shift.astype("int32")


def _unchanged(values: Array) -> Array:
    return values


def _in_units(unit: int) -> Callable[[Array], Array]:
    """Count whole units since 1970 in microseconds, rounded downwards."""
    return lambda micros: micros // unit


def _in_seconds(micros: Array) -> Array:
    """Count whole seconds since 1970, rounded towards zero."""
    return micros // 10**6 + ((micros < 0) & (micros % 10**6 != 0))


# -- NumPy and Arrow --------------------------------------------------------------------------------------------------


_DAY_MICROS = v.DAY_SECONDS * MICROS
_MONTH_SECONDS = 31 * v.DAY_SECONDS
_MOST_YEARS = 999_999_999
"""Java's calendar ends at this year, and begins as many before the year 0."""
_DAY_NAMES, _MONTH_NAMES = (tuple(name[:3] for name in names) for names in (DAYS, MONTHS))
_UTC_NAMES = frozenset({"UTC", "GMT", "Z", "Etc/UTC", "Etc/GMT", "Etc/UCT", "UCT", "Zulu", "Etc/Zulu", "Etc/Universal"})
_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2}):(\d{2})\Z", re.ASCII)


def zone_offset(dtype: pa.DataType) -> int | None:
    """Offset from UTC of a timestamp type, in seconds: 0 without a zone, ``None`` if the zone's offset varies.

    ``None`` for zones whose offset changes: the rules of the JVM and of this machine may differ, so nothing that
    needs them is computed here.
    """
    if dtype.tz is None or dtype.tz in _UTC_NAMES:
        return 0
    match = _OFFSET.match(dtype.tz)
    if match is None or int(match[2]) > 18 or int(match[3]) > 59:
        return None
    seconds = int(match[2]) * 3600 + int(match[3]) * 60
    return -seconds if match[1] == "-" else seconds


def local(values: Array, dtype: pa.DataType) -> tuple[Array, int]:
    """Shift timestamps to local time; also give the units per second."""
    per_second = UNITS_PER_SECOND[dtype.unit]
    offset = zone_offset(dtype)
    assert offset is not None, dtype
    return (values + offset * per_second if offset else values), per_second


def _trunc(node: Call, operands: list[Vector], _length: int) -> Vector:
    days = operands[0]
    first = first_day(days.values, DATE_UNITS[constant_word(node.arguments[1])])
    return Vector(pa.date32(), first.astype(np.int32), days.valid)


def _date_trunc(node: Call, operands: list[Vector], _length: int) -> Vector:
    moment = operands[1]
    values, per_second = local(moment.values, type_of(node.arguments[1]))
    word = constant_word(node.arguments[0])
    micros = TIME_UNITS.get(word)
    if micros is None:
        cut = first_day(values // _DAY_MICROS, DATE_UNITS[word]) * _DAY_MICROS
    else:
        cut = values - values % micros
    offset = zone_offset(type_of(node.arguments[1])) or 0
    return Vector(type_of(node), np.asarray(cut - offset * per_second), moment.valid)


def _next_day(node: Call, operands: list[Vector], _length: int) -> Vector:
    return Vector(pa.date32(), _next_weekday(operands[0].values, node).astype(np.int32), operands[0].valid)


def _named(names: tuple[str, ...], position: Callable[[Array], Array]) -> Run:
    """Make a function that names a part of a date."""

    def run(_node: Call, operands: list[Vector], _length: int) -> Vector:
        (days,) = operands
        mask = None if days.valid is None else ~days.valid
        indices = pa.array(position(days.values), pa.int64(), mask=mask)
        return from_arrow(pa.array(names, pa.string()).take(indices))

    return run


def _dates_within(node: Call, days: Array, valid: Mask | None) -> Vector:
    """Make dates of day numbers. Overflow of 32 bits is an error in every mode."""
    outside = np.asarray(days != days.astype(np.int32))
    if (outside if valid is None else outside & valid).any():
        fail(node, "the date does not fit 32 bits")
    return Vector(pa.date32(), days.astype(np.int32), valid)


def _add_months(node: Call, operands: list[Vector], _length: int) -> Vector:
    """Keep the day of the month, or take the last one of a shorter month."""
    days, shift = operands
    shifted = plus_months(days.values, shift.values.astype(np.int64))
    return _dates_within(node, shifted, mask_and(days.valid, shift.valid))


def _make_date(node: Call, operands: list[Vector], _length: int) -> Vector:
    year, month, day = (operand.values.astype(np.int64) for operand in operands)
    valid = mask_and(mask_and(operands[0].valid, operands[1].valid), operands[2].valid)
    bad = np.asarray((np.abs(year) > _MOST_YEARS) | (month < 1) | (month > 12) | (day < 1))
    months = np.where(bad, 0, (year - 1970) * 12 + month - 1)
    first = days_from_months(months)
    bad |= np.asarray(day > days_from_months(months + 1) - first)
    valid = null_or_raise(node, bad, valid, "there is no such date")
    return _dates_within(node, np.where(bad, 0, first + day - 1), valid)


def _days_and_seconds(moment: Vector, node: Call, operand: Expression) -> tuple[Array, Array]:
    """Local dates, and the whole seconds that have passed since they began."""
    zone = node.arguments[3] if len(node.arguments) > 3 else None
    if not isinstance(zone, ZoneLiteral):
        days, micros = np.divmod(local(moment.values, type_of(operand))[0], _DAY_MICROS)
        return days, micros // 10**6
    days = clock(moment.values, moment.valid, zone.rules) // _DAY_MICROS
    begun = starts_of_day(days * _DAY_MICROS, moment.valid, zone.rules)
    return days, (moment.values - begun) // 10**6


def _months_between(node: Call, operands: list[Vector], _length: int) -> Vector:
    """Whole months between equal days of the month, or between last days; else with 31 days to a month."""
    later, earlier = operands[:2]
    rounded = node.arguments[2]
    assert isinstance(rounded, Literal)
    days, seconds = zip(
        *(_days_and_seconds(m, node, a) for m, a in zip((later, earlier), node.arguments, strict=False)), strict=True
    )
    months = [months_of(d) for d in days]
    of_month = [day_of_month(d) for d in days]
    last = [last_day(d) == d for d in days]
    whole = (months[0] - months[1]).astype(np.float64)
    rest = (of_month[0] - of_month[1]) * v.DAY_SECONDS + seconds[0] - seconds[1]
    between = whole + rest / float(_MONTH_SECONDS)
    if rounded.value:
        # Java's rounding: halves upwards.
        scaled = between * 1e8
        floor = np.floor(scaled)
        between = (floor + (scaled - floor >= 0.5)) / 1e8
    even = (of_month[0] == of_month[1]) | (last[0] & last[1])
    return Vector(pa.float64(), np.where(even, whole, between), mask_and(later.valid, earlier.valid))


def _from_epoch(unit: int) -> Run:
    """Make timestamps of units since 1970. Overflow of 64 bits is an error in every mode."""

    def run(node: Call, operands: list[Vector], _length: int) -> Vector:
        (count,) = operands
        values = count.values.astype(np.int64)
        most = ((1 << 63) - 1) // unit
        outside = np.asarray((values > most) | (values < -most))
        if unit > 1 and (outside if count.valid is None else outside & count.valid).any():
            fail(node, "the timestamp overflows")
        with np.errstate(over="ignore"):
            return Vector(type_of(node), np.asarray(values * unit), count.valid)

    return run


def exact_months(node: Call) -> bool:
    """Whether a shift by months is by a column, or by a constant that no usual date overflows."""
    months = node.arguments[1]
    return not isinstance(months, Literal) or (months.value is not None and shifts_little(node))


def exact_trunc(node: Call) -> bool:
    """Whether the unit of a ``trunc`` is a constant that is known."""
    return constant_word(node.arguments[1]) in DATE_UNITS


def exact_date_trunc(node: Call) -> bool:
    """Whether the unit of a ``date_trunc`` is a constant that is known, and the zone has one offset."""
    word = constant_word(node.arguments[0])
    return (word in DATE_UNITS or word in TIME_UNITS) and zone_offset(type_of(node.arguments[1])) is not None


def exact_next_day(node: Call) -> bool:
    """Whether the day of the week is a constant that is known."""
    return constant_word(node.arguments[1]) in DAYS_OF_WEEK


def exact_months_between(node: Call) -> bool:
    """Whether both zones have one offset, or their rules are given, and whether to round is a constant."""
    rounded = node.arguments[2]
    if len(node.arguments) > 3 and not isinstance(node.arguments[3], ZoneLiteral):
        return False
    zones = [zone_offset(type_of(a)) for a in node.arguments[:2]]
    return None not in zones and isinstance(rounded, Literal) and rounded.value is not None


def _time_part(seconds: int, modulus: int) -> Run:
    """Make a part of the time of day, in the zone of the argument's type."""

    def run(node: Call, operands: list[Vector], _length: int) -> Vector:
        values, per_second = local(operands[0].values, type_of(node.arguments[0]))
        part = values // (per_second * seconds) % modulus
        return Vector(pa.int32(), part.astype(np.int32), operands[0].valid)

    return run


def has_fixed_offset(node: Call) -> bool:
    """Whether the zone of a call's timestamp has one offset for all times."""
    return zone_offset(type_of(node.arguments[0])) is not None


def _timestamp_add(node: Call, operands: list[Vector], _length: int) -> Vector:
    moment, shift = operands
    with np.errstate(over="ignore"):
        values = np.asarray(moment.values + shift.values)
    valid = mask_and(moment.valid, shift.valid)
    overflows = np.asarray(((moment.values ^ values) & (shift.values ^ values)) < 0)
    if (overflows if valid is None else overflows & valid).any():
        fail(node, "the timestamp overflows")
    return Vector(type_of(node), values, valid)


def exact_shift(node: Call) -> bool:
    """Whether a shift is one of instants: Spark shifts whole days by the clock of the session's time zone."""
    shift = interval_micros(node.arguments[1])
    return (shift is not None and abs(shift) < v.DAY_SECONDS * MICROS) or has_fixed_offset(node)


# -- conversions -------------------------------------------------------------------------------------------------


def to_date(vector: Vector, source: pa.DataType) -> Vector:
    """Take the local date of timestamps."""
    values, per_second = local(vector.values, source)
    return Vector(pa.date32(), (values // (per_second * v.DAY_SECONDS)).astype(np.int32), vector.valid)


def to_timestamp(vector: Vector, source: pa.DataType, target: pa.DataType) -> tuple[Vector, npt.NDArray[np.bool_]]:
    """Convert dates and timestamps to another timestamp type; also mark values out of range.

    A date becomes its local midnight. Between types with and without a zone the local time is kept.
    """
    per_second = UNITS_PER_SECOND[target.unit]
    shift_by = 0
    if pat.is_date(source):
        scale: tuple[int, int] = (v.DAY_SECONDS * per_second, 1)
        shift_by = -(zone_offset(target) or 0)
    else:
        before = UNITS_PER_SECOND[source.unit]
        scale = (per_second // before, 1) if per_second >= before else (1, before // per_second)
        if (source.tz is None) != (target.tz is None):
            shift_by = (zone_offset(source) or 0) - (zone_offset(target) or 0)
    values = vector.values.astype(np.int64)
    limit = ((1 << 63) - 1 - abs(shift_by) * per_second) // scale[0]
    bad = np.asarray((values > limit) | (values < -limit))
    with np.errstate(all="ignore"):
        values = values * scale[0] // scale[1] + shift_by * per_second
    return Vector(target, values, vector.valid), bad


def needs_zone(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether converting between two types depends on a zone."""
    if pat.is_timestamp(source) and pat.is_timestamp(target):
        return (source.tz is None) != (target.tz is None)
    return True


_MOST_DAYS = ((1 << 63) - 1) // _DAY_MICROS - 1


def _within(node: Call, days: Array, micros: Array, valid: Mask | None) -> Vector:
    """Make timestamps of days and microseconds of the day. Overflow of 64 bits is an error in every mode."""
    outside = np.abs(days) > _MOST_DAYS
    if outside.any() and (outside if valid is None else outside & valid).any():
        fail(node, "the timestamp overflows")
    with np.errstate(over="ignore"):
        return Vector(type_of(node), days * _DAY_MICROS + micros, valid)


def _add_months_to_timestamp(node: Call, operands: list[Vector], _length: int) -> Vector:
    """Keep the time of day, and the day of the month or the last one of a shorter month."""
    moment, shift = operands
    days, micros = np.divmod(moment.values, _DAY_MICROS)
    shifted = plus_months(days, shift.values.astype(np.int64))
    return _within(node, shifted, micros, mask_and(moment.valid, shift.valid))


def _timestamp_difference(node: Call, operands: list[Vector], _length: int) -> Vector:
    """Whole units from the first timestamp to the second, rounded towards zero."""
    _, start, end = operands
    valid = mask_and(start.valid, end.valid)
    unit = constant_word(node.arguments[0])
    if unit in DIFFERENCE_MONTHS:
        whole = _whole_months_between(np.asarray(start.values), np.asarray(end.values))
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


def _whole_months_between(start: Array, end: Array) -> Array:
    """Whole months as Java counts them: the last day is complete or left out, then days of the month are compared."""
    (start_days, start_micros), (end_days, end_micros) = np.divmod(start, _DAY_MICROS), np.divmod(end, _DAY_MICROS)
    early = (end_days > start_days) & (end_micros < start_micros)
    late = (end_days < start_days) & (end_micros > start_micros)
    end_days = end_days - early + late
    months = months_of(end_days) - months_of(start_days)
    return _towards_zero(months * 32 + day_of_month(end_days) - day_of_month(start_days), 32)


def _make_timestamp(node: Call, operands: list[Vector], _length: int) -> Vector:
    """A clock's time from year, month, day, hour, minute, and seconds with six digits; 60 seconds are a minute."""
    year, month, day, hour, minute, second = (o.values.astype(np.int64) for o in operands)
    valid = reduce(mask_and, (o.valid for o in operands))
    wide = np.abs(second) >= 1 << 31
    if wide.any() and (wide if valid is None else wide & valid).any():
        raise UnsupportedValueError("seconds of ten digits and more are left to Spark")
    bad_day = (np.abs(year) > _MOST_YEARS) | (month < 1) | (month > 12) | (day < 1)
    # Each operand may be one value for all rows.
    bad = bad_day | (hour < 0) | (hour > 23) | (minute < 0) | (minute > 59) | (second < 0) | (second > 60 * MICROS)
    months = np.where(bad_day, 0, (year - 1970) * 12 + month - 1)
    first = days_from_months(months)
    bad = bad | (day > days_from_months(months + 1) - first)
    valid = null_or_raise(node, bad, valid, "there is no such time")
    micros = (hour * 60 + minute) * 60 * MICROS + second
    return _within(node, np.where(bad, 0, first + day - 1), np.where(bad, 0, micros), valid)


def _second_with_fraction(_node: Call, operands: list[Vector], _length: int) -> Vector:
    moment = operands[0]
    return Vector(pa.decimal128(8, 6), np.asarray(moment.values % (60 * MICROS)), moment.valid)


def exact_difference(node: Call) -> bool:
    """Whether the unit is a constant that is known."""
    unit = constant_word(node.arguments[0])
    return unit in DIFFERENCE_UNITS or unit in DIFFERENCE_MONTHS


# -- Polars -----------------------------------------------------------------------------------------------------------


_CALENDAR: Bounds = (-719162, 2932896)
"""Days of the years 1 to 9999: Polars computes all parts of these dates."""


def _lower_date(compute: Callable[[pl.Expr], pl.Expr], dtype: pa.DataType, bounds: Callable[[Bounds], Bounds]) -> Rule:
    """Make the rule of a function of a date, which ``compute`` gives exactly in the years 1 to 9999."""

    def rule(_node: Call, values: list[Lowered]) -> Lowered:
        (date,) = values
        if not within(bounds_of(date), _CALENDAR):
            raise NotLowered("a date outside the years 1 to 9999")
        return Lowered(compute(date.expr).cast(polars_type(dtype)), dtype, bounds(bounds_of(date)))

    return rule


def _lower_part(compute: Callable[[pl.Expr], pl.Expr], least: int, most: int) -> Rule:
    return _lower_date(compute, pa.int32(), lambda _: (least, most))


def _lower_shift(sign: int) -> Rule:
    def rule(_node: Call, values: list[Lowered]) -> Lowered:
        date, days = values
        low, high = sorted(sign * bound for bound in bounds_of(days))
        bounds = (bounds_of(date)[0] + low, bounds_of(date)[1] + high)
        if not within(bounds, _CALENDAR):
            raise NotLowered("a date outside the years 1 to 9999")
        shift = days.expr.cast(pl.Int32)
        shifted = date.expr.cast(pl.Int32) + (shift if sign > 0 else -shift)
        return Lowered(shifted.cast(pl.Date), pa.date32(), bounds)

    return rule


def _lower_difference(_node: Call, values: list[Lowered]) -> Lowered:
    end, start = values
    bounds = (bounds_of(end)[0] - bounds_of(start)[1], bounds_of(end)[1] - bounds_of(start)[0])
    if not within(bounds, (-(1 << 31), (1 << 31) - 1)):
        raise NotLowered("a difference that may overflow")
    return Lowered(end.expr.cast(pl.Int32) - start.expr.cast(pl.Int32), pa.int32(), bounds)


# -- device -----------------------------------------------------------------------------------------------------------


_ZONES_OF_UTC = (None, "UTC", "Etc/UTC", "Z", "+00:00")


def _device_time_part(divisor: int, modulus: int) -> Offer:
    return strict(lambda _, time: v.second_of_day(time) // divisor % modulus, _zone_free)


def _is_local(dtype: pa.DataType) -> bool:
    return bool(pat.is_timestamp(dtype) and dtype.tz in _ZONES_OF_UTC and dtype.unit == "us")


def _zone_free(node: Call) -> bool:
    return all(pat.is_timestamp(t) and t.tz in _ZONES_OF_UTC for t in operand_types(node))


def _device_trunc(operands: Operands, node: Call, active: Active) -> Value:
    date = operands.fixed(node.arguments[0], active)
    first = first_day(date.data.astype("int64"), DATE_UNITS[constant_word(node.arguments[1])])
    return Value(pa.date32(), first.astype("int32"), date.valid)


def _device_date_trunc(operands: Operands, node: Call, active: Active) -> Value:
    moment, word = operands.fixed(node.arguments[1], active), constant_word(node.arguments[0])
    micros = TIME_UNITS.get(word)
    if micros is not None:
        return Value(type_of(node), moment.data - moment.data % micros, moment.valid)
    first = first_day(moment.data // _DAY_MICROS, DATE_UNITS[word])
    return Value(type_of(node), first * _DAY_MICROS, moment.valid)


def _device_next_day(operands: Operands, node: Call, active: Active) -> Value:
    date = operands.fixed(node.arguments[0], active)
    return Value(pa.date32(), _next_weekday(date.data, node).astype("int32"), date.valid)


def _device_add_months(operands: Operands, node: Call, active: Active) -> Value:
    date, shift, valid = operands.pair(node, active)
    days = plus_months(date.data, shift.data.astype("int64"))
    narrow = days.astype("int32")
    operands.fail_if(mask_and(mask_and(narrow != days, valid), active), f"{node}: the date does not fit 32 bits")
    return Value(pa.date32(), narrow, valid)


def _device_from_epoch(unit: int) -> Offer:
    """Make timestamps of seconds, or other units, since 1970; raises in every mode if one does not fit 64 bits."""

    def evaluate(operands: Operands, node: Call, active: Active) -> Value:
        count = operands.fixed(node.arguments[0], active)
        number, most = count.data.astype("int64"), ((1 << 63) - 1) // unit
        if unit > 1:
            outside = (number > most) | (number < -most)
            operands.fail_if(mask_and(mask_and(outside, count.valid), active), f"{node}: the timestamp overflows")
        return Value(type_of(node), number * unit, count.valid)

    return Offer(evaluate)


TABLE = (
    FunctionSpec(
        Function.YEAR, ("Year",), _PART,
        numpy=of_arrays(year_of), polars=_lower_part(lambda date: date.dt.year(), 1, 9999),
        device=of_either(year_of),
    ),
    FunctionSpec(
        Function.QUARTER, ("Quarter",), _PART,
        numpy=of_arrays(quarter_of),
        polars=_lower_part(lambda date: date.dt.quarter(), 1, 4),
        device=of_either(quarter_of),
    ),
    FunctionSpec(
        Function.MONTH, ("Month",), _PART,
        numpy=of_arrays(month_of), polars=_lower_part(lambda date: date.dt.month(), 1, 12),
        device=of_either(month_of),
    ),
    FunctionSpec(
        Function.DAY, ("DayOfMonth",), _PART,
        numpy=of_arrays(day_of_month), polars=_lower_part(lambda date: date.dt.day(), 1, 31),
        device=of_either(day_of_month),
    ),
    FunctionSpec(
        Function.DAY_OF_WEEK, ("DayOfWeek",), _PART,
        numpy=of_arrays(_day_of_week),
        polars=_lower_part(lambda date: date.dt.weekday() % 7 + 1, 1, 7),
        device=of_either(_day_of_week),
    ),
    FunctionSpec(
        Function.WEEKDAY, ("WeekDay",), _PART,
        numpy=of_arrays(weekday), polars=_lower_part(lambda date: date.dt.weekday() - 1, 0, 6),
        device=of_either(weekday),
    ),
    FunctionSpec(
        Function.DAY_OF_YEAR, ("DayOfYear",), _PART,
        numpy=of_arrays(day_of_year), polars=_lower_part(lambda date: date.dt.ordinal_day(), 1, 366),
        device=of_either(day_of_year),
    ),
    FunctionSpec(
        Function.WEEK_OF_YEAR, ("WeekOfYear",), _PART,
        numpy=of_arrays(week_of_year), device=of_either(week_of_year),
    ),
    FunctionSpec(Function.DAY_NAME, ("DayName",), takes(DATE, gives=pa.string()), numpy=_named(_DAY_NAMES, weekday)),
    FunctionSpec(
        Function.MONTH_NAME, ("MonthName",), takes(DATE, gives=pa.string()),
        numpy=_named(_MONTH_NAMES, lambda days: month_of(days) - 1),
    ),
    FunctionSpec(
        Function.LAST_DAY, ("LastDay",), takes(DATE, gives=pa.date32()),
        numpy=of_arrays(last_day),
        polars=_lower_date(
            lambda date: date.dt.month_end(), pa.date32(), lambda days: (days[0], min(days[1] + 30, _CALENDAR[1]))
        ),
        device=of_either(last_day),
    ),
    FunctionSpec(
        Function.NEXT_DAY, ("NextDay",), takes(DATE, TEXT, gives=pa.date32()),
        raises=Raises.ANSI, safe=_names_a_day,
        exact=exact_next_day, numpy=_next_day,
        device=Offer(_device_next_day),
    ),
    FunctionSpec(
        Function.TRUNC, ("TruncDate",), takes(DATE, TEXT, gives=pa.date32()),
        exact=exact_trunc, numpy=_trunc,
        device=Offer(_device_trunc),
    ),
    FunctionSpec(
        Function.DATE_TRUNC, ("TruncTimestamp",), takes(TEXT, INSTANT, gives=lambda types: types[1]),
        zoned=True,
        exact=exact_date_trunc, numpy=_date_trunc,
        device=Offer(_device_date_trunc, lambda node: _is_local(operand_types(node)[1])),
    ),
    FunctionSpec(
        Function.HOUR, ("Hour",), _TIME,
        zoned=True,
        exact=has_fixed_offset, numpy=_time_part(3600, 24), device=_device_time_part(3600, 24),
    ),
    FunctionSpec(
        Function.MINUTE, ("Minute",), _TIME,
        zoned=True,
        exact=has_fixed_offset, numpy=_time_part(60, 60), device=_device_time_part(60, 60),
    ),
    FunctionSpec(
        Function.SECOND, ("Second",), _TIME,
        zoned=True,
        exact=has_fixed_offset, numpy=_time_part(1, 60), device=_device_time_part(1, 60),
    ),
    FunctionSpec(
        Function.DATE_ADD, ("DateAdd",), _SHIFT,
        numpy=of_arrays(_later), polars=_lower_shift(1), device=of_either(_later),
    ),
    FunctionSpec(
        Function.DATE_SUB, ("DateSub",), _SHIFT,
        numpy=of_arrays(_earlier), polars=_lower_shift(-1), device=of_either(_earlier),
    ),
    FunctionSpec(
        Function.DATE_DIFF, ("DateDiff",), takes(DATE, DATE, gives=pa.int32()),
        zoned=True,
        numpy=of_arrays(sub), polars=_lower_difference, device=of_either(sub),
    ),
    FunctionSpec(
        Function.ADD_MONTHS, ("AddMonths", "DateAddYMInterval"), takes(DATE, INT, gives=pa.date32()),
        raises=Raises.VARIABLE, safe=shifts_little,
        exact=exact_months, numpy=_add_months, device=Offer(_device_add_months),
    ),
    FunctionSpec(
        Function.MONTHS_BETWEEN, ("MonthsBetween",), takes(INSTANT, INSTANT, BOOLEAN, TEXT, gives=pa.float64(),
        optional=1),
        zoned=True,
        exact=exact_months_between, numpy=_months_between,
    ),
    FunctionSpec(
        Function.MAKE_DATE, ("MakeDate",), takes(INT, INT, INT, gives=pa.date32()),
        raises=Raises.ALWAYS,
        numpy=_make_date,
    ),
    FunctionSpec(
        Function.UNIX_DATE, ("UnixDate",), takes(_DATE_ONLY, gives=pa.int32()),
        numpy=of_arrays(_unchanged), device=of_either(_unchanged),
    ),
    FunctionSpec(
        Function.DATE_FROM_UNIX_DATE, ("DateFromUnixDate",), takes(INT, gives=pa.date32()),
        numpy=of_arrays(_unchanged), device=of_either(_unchanged),
    ),
    FunctionSpec(
        Function.UNIX_TIMESTAMP, ("UnixTimestamp", "ToUnixTimestamp"), takes(INSTANT, gives=pa.int64()),
        numpy=of_arrays(_in_seconds), device=of_either(_in_seconds),
    ),
    FunctionSpec(
        Function.UNIX_SECONDS, ("UnixSeconds",), takes(INSTANT, gives=pa.int64()),
        numpy=of_arrays(_in_units(10**6)), device=of_either(_in_units(10**6)),
    ),
    FunctionSpec(
        Function.UNIX_MILLIS, ("UnixMillis",), takes(INSTANT, gives=pa.int64()),
        numpy=of_arrays(_in_units(10**3)), device=of_either(_in_units(10**3)),
    ),
    FunctionSpec(
        Function.UNIX_MICROS, ("UnixMicros",), takes(INSTANT, gives=pa.int64()),
        numpy=of_arrays(_in_units(1)), device=of_either(_in_units(1)),
    ),
    FunctionSpec(
        Function.TIMESTAMP_SECONDS, ("SecondsToTimestamp",), takes(WHOLE, gives=UTC),
        raises=Raises.ALWAYS, safe=_fits_micros,
        numpy=_from_epoch(MICROS), device=_device_from_epoch(MICROS),
    ),
    FunctionSpec(
        Function.TIMESTAMP_MILLIS, ("MillisToTimestamp",), takes(WHOLE, gives=UTC),
        raises=Raises.ALWAYS, safe=_fits_micros,
        numpy=_from_epoch(10**3), device=_device_from_epoch(1_000),
    ),
    FunctionSpec(
        Function.TIMESTAMP_MICROS, ("MicrosToTimestamp",), takes(WHOLE, gives=UTC),
        numpy=_from_epoch(1), device=_device_from_epoch(1),
    ),
    FunctionSpec(
        Function.TIMESTAMP_ADD_MONTHS, ("TimestampAddYMInterval",), takes(_MICROS, INT, gives=first),
        raises=Raises.VARIABLE, safe=shifts_little,
        exact=exact_months, numpy=_add_months_to_timestamp,
    ),
    FunctionSpec(
        Function.TIMESTAMP_DIFF, ("TimestampDiff",), takes(TEXT, INSTANT, INSTANT, gives=pa.int64()),
        zoned=True,
        exact=exact_difference, partial=True, numpy=_timestamp_difference,
    ),
    FunctionSpec(
        Function.MAKE_TIMESTAMP, ("MakeTimestamp",), takes(INT, INT, INT, INT, INT, _SECONDS, gives=UTC),
        raises=Raises.ALWAYS,
        partial=True, numpy=_make_timestamp,
    ),
    FunctionSpec(
        Function.SECOND_WITH_FRACTION, ("SecondWithFraction",), takes(_MICROS, gives=pa.decimal128(8, 6)),
        zoned=True,
        numpy=_second_with_fraction,
    ),
    FunctionSpec(
        Function.TIMESTAMP_ADD, ("TimestampAddInterval", "TimeAdd"), _TIMESTAMP_SHIFT,
        raises=Raises.VARIABLE, zoned=True,
        exact=exact_shift, numpy=_timestamp_add,
    ),
)  # fmt: skip
