"""Dates and timestamps: parts, shifts, and conversion between them, in the proleptic Gregorian calendar."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.expressions.calendar import (
    DAYS,
    MONTHS,
    day_of_month,
    day_of_year,
    days_from_months,
    month_of,
    months_of,
    plus_months,
    weekday,
    year_of,
)
from gpujoin.backends.cpu.expressions.implementation import Run, fail, null_or_raise, of_arrays
from gpujoin.backends.cpu.expressions.vector import Array, Mask, Vector, from_arrow, mask_and
from gpujoin.backends.cpu.expressions.zones import clock, starts_of_day
from gpujoin.functions.dates import DATE_UNITS, DAYS_OF_WEEK, TIME_UNITS, constant_word, interval_micros, shifts_little
from gpujoin.functions.signatures import type_of
from gpujoin.model.expressions import Call, Expression, Function, Literal
from gpujoin.model.zones import ZoneLiteral

_UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400
_DAY_MICROS = _DAY * 10**6
_MONTH_SECONDS = 31 * _DAY
_MOST_YEARS = 999_999_999
"""Java's calendar ends at this year, and begins as many before the year 0."""
_DAY_NAMES, _MONTH_NAMES = (tuple(name[:3] for name in names) for names in (DAYS, MONTHS))
_UTC_NAMES = frozenset({"UTC", "GMT", "Z", "Etc/UTC", "Etc/GMT", "Etc/UCT", "UCT", "Zulu", "Etc/Zulu", "Etc/Universal"})
_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2}):(\d{2})\Z")


def zone_offset(dtype: pa.DataType) -> int | None:
    """Offset from UTC of a timestamp type, in seconds, where it is the same for all times; 0 without a zone.

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
    per_second = _UNITS_PER_SECOND[dtype.unit]
    offset = zone_offset(dtype)
    assert offset is not None, dtype
    return (values + offset * per_second if offset else values), per_second


def _last_day(days: Array) -> Array:
    return days_from_months(months_of(days) + 1) - 1


def _week_of_year(days: Array) -> Array:
    """ISO week: it belongs to the year of its Thursday."""
    days = days.astype(np.int64)
    return (day_of_year(days + 3 - weekday(days)) - 1) // 7 + 1


def _first_day(days: Array, unit: str) -> Array:
    """First day of the week, month, quarter or year of each day, as int64."""
    days = days.astype(np.int64)
    if unit == "week":
        return np.asarray(days - weekday(days))
    months = months_of(days)
    months -= months % {"month": 1, "quarter": 3, "year": 12}[unit]
    return days_from_months(months)


def _trunc(node: Call, operands: list[Vector], _length: int) -> Vector:
    days = operands[0]
    first = _first_day(days.values, DATE_UNITS[constant_word(node.arguments[1])])
    return Vector(pa.date32(), first.astype(np.int32), days.valid)


def _date_trunc(node: Call, operands: list[Vector], _length: int) -> Vector:
    moment = operands[1]
    assert node.type is not None
    values, per_second = local(moment.values, type_of(node.arguments[1]))
    word = constant_word(node.arguments[0])
    micros = TIME_UNITS.get(word)
    if micros is None:
        cut = _first_day(values // _DAY_MICROS, DATE_UNITS[word]) * _DAY_MICROS
    else:
        cut = values - values % micros
    offset = zone_offset(type_of(node.arguments[1])) or 0
    return Vector(node.type, np.asarray(cut - offset * per_second), moment.valid)


def _next_day(node: Call, operands: list[Vector], _length: int) -> Vector:
    days = operands[0].values.astype(np.int64)
    wanted = DAYS_OF_WEEK[constant_word(node.arguments[1])]
    later = days + 1 + (wanted - weekday(days) - 1) % 7
    return Vector(pa.date32(), later.astype(np.int32), operands[0].valid)


def _named(names: tuple[str, ...], position: Callable[[Array], Array]) -> Run:
    """Make a function that names a part of a date."""

    def run(_node: Call, operands: list[Vector], _length: int) -> Vector:
        (days,) = operands
        mask = None if days.valid is None else ~days.valid
        indices = pa.array(position(days.values), pa.int64(), mask=mask)
        return from_arrow(pa.array(names, pa.string()).take(indices))

    return run


def _dates_within(node: Call, days: Array, valid: Mask | None) -> Vector:
    """Dates from day numbers; one that does not fit 32 bits is an error in every mode."""
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
    last = [_last_day(d) == d for d in days]
    whole = (months[0] - months[1]).astype(np.float64)
    rest = (of_month[0] - of_month[1]) * _DAY + seconds[0] - seconds[1]
    between = whole + rest / float(_MONTH_SECONDS)
    if rounded.value:
        # Java's rounding: halves upwards.
        scaled = between * 1e8
        floor = np.floor(scaled)
        between = (floor + (scaled - floor >= 0.5)) / 1e8
    even = (of_month[0] == of_month[1]) | (last[0] & last[1])
    return Vector(pa.float64(), np.where(even, whole, between), mask_and(later.valid, earlier.valid))


def _since_epoch(unit: int) -> Run:
    """Make the number of whole units since 1970, from microseconds."""

    def run(_node: Call, operands: list[Vector], _length: int) -> Vector:
        return Vector(pa.int64(), np.asarray(operands[0].values // unit), operands[0].valid)

    return run


def _unix_timestamp(_node: Call, operands: list[Vector], _length: int) -> Vector:
    (moment,) = operands
    values = np.asarray(moment.values)
    # Rounded towards zero: upwards before 1970.
    seconds = values // 10**6 + ((values < 0) & (values % 10**6 != 0))
    return Vector(pa.int64(), seconds, moment.valid)


def _from_epoch(unit: int) -> Run:
    """Make timestamps of units since 1970; one that does not fit 64 bits is an error in every mode."""

    def run(node: Call, operands: list[Vector], _length: int) -> Vector:
        (count,) = operands
        assert node.type is not None
        values = count.values.astype(np.int64)
        most = ((1 << 63) - 1) // unit
        outside = np.asarray((values > most) | (values < -most))
        if unit > 1 and (outside if count.valid is None else outside & count.valid).any():
            fail(node, "the timestamp overflows")
        with np.errstate(over="ignore"):
            return Vector(node.type, np.asarray(values * unit), count.valid)

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


def known_zone(node: Call) -> bool:
    """Whether the zone of a call's timestamp has one offset for all times."""
    return zone_offset(type_of(node.arguments[0])) is not None


def _timestamp_add(node: Call, operands: list[Vector], _length: int) -> Vector:
    moment, shift = operands
    assert node.type is not None
    with np.errstate(over="ignore"):
        values = np.asarray(moment.values + shift.values)
    valid = mask_and(moment.valid, shift.valid)
    overflows = np.asarray(((moment.values ^ values) & (shift.values ^ values)) < 0)
    if (overflows if valid is None else overflows & valid).any():
        fail(node, "the timestamp overflows")
    return Vector(node.type, values, valid)


def exact_shift(node: Call) -> bool:
    """Whether a shift is one of instants: Spark shifts whole days by the clock of the session's time zone."""
    shift = interval_micros(node.arguments[1])
    return (shift is not None and abs(shift) < _DAY * _UNITS_PER_SECOND["us"]) or known_zone(node)


# Day numbers wrap at 32 bits, as in Java.
FUNCTIONS: dict[Function, Run] = {
    Function.YEAR: of_arrays(year_of),
    Function.QUARTER: of_arrays(lambda days: (month_of(days) - 1) // 3 + 1),
    Function.MONTH: of_arrays(month_of),
    Function.DAY: of_arrays(day_of_month),
    Function.DAY_OF_WEEK: of_arrays(lambda days: (days.astype(np.int64) + 4) % 7 + 1),
    Function.WEEKDAY: of_arrays(weekday),
    Function.DAY_OF_YEAR: of_arrays(day_of_year),
    Function.WEEK_OF_YEAR: of_arrays(_week_of_year),
    Function.DAY_NAME: _named(_DAY_NAMES, weekday),
    Function.MONTH_NAME: _named(_MONTH_NAMES, lambda days: month_of(days) - 1),
    Function.LAST_DAY: of_arrays(_last_day),
    Function.NEXT_DAY: _next_day,
    Function.TRUNC: _trunc,
    Function.DATE_TRUNC: _date_trunc,
    Function.HOUR: _time_part(3600, 24),
    Function.MINUTE: _time_part(60, 60),
    Function.SECOND: _time_part(1, 60),
    Function.DATE_ADD: of_arrays(lambda days, shift: days + shift.astype(np.int32)),
    Function.DATE_SUB: of_arrays(lambda days, shift: days - shift.astype(np.int32)),
    Function.DATE_DIFF: of_arrays(lambda end, start: end - start),
    Function.ADD_MONTHS: _add_months,
    Function.MONTHS_BETWEEN: _months_between,
    Function.MAKE_DATE: _make_date,
    Function.UNIX_DATE: of_arrays(lambda days: days),
    Function.DATE_FROM_UNIX_DATE: of_arrays(lambda days: days),
    Function.UNIX_TIMESTAMP: _unix_timestamp,
    Function.UNIX_SECONDS: _since_epoch(10**6),
    Function.UNIX_MILLIS: _since_epoch(10**3),
    Function.UNIX_MICROS: _since_epoch(1),
    Function.TIMESTAMP_SECONDS: _from_epoch(10**6),
    Function.TIMESTAMP_MILLIS: _from_epoch(10**3),
    Function.TIMESTAMP_MICROS: _from_epoch(1),
    Function.TIMESTAMP_ADD: _timestamp_add,
}


# -- conversions -------------------------------------------------------------------------------------------------


def to_date(vector: Vector, source: pa.DataType) -> Vector:
    """Take the local date of timestamps."""
    values, per_second = local(vector.values, source)
    return Vector(pa.date32(), (values // (per_second * _DAY)).astype(np.int32), vector.valid)


def to_timestamp(vector: Vector, source: pa.DataType, target: pa.DataType) -> tuple[Vector, npt.NDArray[np.bool_]]:
    """Convert dates and timestamps to another timestamp type; also mark values out of range.

    A date becomes its local midnight. Between types with and without a zone the local time is kept.
    """
    per_second = _UNITS_PER_SECOND[target.unit]
    shift_by = 0
    if pat.is_date(source):
        scale: tuple[int, int] = (_DAY * per_second, 1)
        shift_by = -(zone_offset(target) or 0)
    else:
        before = _UNITS_PER_SECOND[source.unit]
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
