"""Functions of dates and timestamps, one row at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa

from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.expressions import Call, Function
from gpujoin.testing import Cell
from tests.oracle.casting import failed, local_micros, wrap
from tests.oracle.civil import MICROS_PER_DAY, civil, day_number, parse_timestamp, start_of_day, to_utc, zone_offset
from tests.oracle.compiled import Compiled, Handler, like_first, strict

_INT = pa.int32()


def _of_day(compute: Callable[[int], Cell], dtype: pa.DataType = _INT) -> Handler:
    """From the number of the day, of which 0 is Thursday, 1970-01-01."""

    def handler(node: Call, operands: list[Compiled]) -> Compiled:
        source = operands[0].type
        return strict(dtype, lambda value: compute(local_micros(value, source) // MICROS_PER_DAY))(node, operands)

    return handler


def _date_part(part: Callable[[int, int, int], int]) -> Handler:
    """From year, month and day."""
    return _of_day(lambda day: part(*civil(day)))


def _time_part(unit: int, modulus: int) -> Handler:
    def handler(node: Call, operands: list[Compiled]) -> Compiled:
        dtype = operands[0].type
        return strict(pa.int32(), lambda value: local_micros(value, dtype) // unit % modulus)(node, operands)

    return handler


def _last_day(day: int) -> int:
    year, month, _ = civil(day)
    return _number(year + month // 12, month % 12 + 1, 1) - 1


def _number(year: int, month: int, day: int) -> int:
    number = day_number(year, month, day)
    assert number is not None
    return number


def _date_shift(sign: int) -> Handler:
    def handler(node: Call, operands: list[Compiled]) -> Compiled:
        dtype = operands[0].type
        return strict(pa.date32(), lambda value, n: local_micros(value, dtype) // MICROS_PER_DAY + sign * n)(
            node, operands
        )

    return handler


def _date_diff(node: Call, operands: list[Compiled]) -> Compiled:
    end, start = operands[0].type, operands[1].type
    return strict(
        pa.int32(),
        lambda e, s: local_micros(e, end) // MICROS_PER_DAY - local_micros(s, start) // MICROS_PER_DAY,
    )(node, operands)


def _timestamp_add(moment: int, shift: int) -> int:
    micros = moment + shift
    if not -(1 << 63) <= micros < 1 << 63:
        raise OverflowError(micros)
    return micros


_MONTH = 2_678_400
"""Seconds of 31 days."""
_DAY_NAMES = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def _week_of_year(day: int) -> int:
    """Number of Thursdays that the year of this week's Thursday has had with it."""
    thursday = day - (day + 3) % 7 + 3
    return (thursday - _number(civil(thursday)[0], 1, 1)) // 7 + 1


def _date32(day: int) -> int:
    if not -(1 << 31) <= day < 1 << 31:
        raise ExpressionEvaluationError(f"day {day} does not fit 32 bits")
    return day


def _plus_months(day: int, months: int) -> int:
    year, month, of_month = civil(day)
    years, month = divmod(year * 12 + month - 1 + months, 12)
    fitting = next(n for n in range(of_month, 0, -1) if day_number(years, month + 1, n) is not None)
    return _date32(_number(years, month + 1, fitting))


def _add_months(node: Call, operands: list[Compiled]) -> Compiled:
    dtype = operands[0].type
    return strict(pa.date32(), lambda value, n: _plus_months(local_micros(value, dtype) // MICROS_PER_DAY, n))(
        node, operands
    )


def _make_date(node: Call, operands: list[Compiled]) -> Compiled:
    def make(year: int, month: int, day: int) -> Cell:
        number = None if abs(year) > 999_999_999 else day_number(year, month, day)
        return failed(node.mode, f"no date {year}-{month}-{day}") if number is None else _date32(number)

    return strict(pa.date32(), make)(node, operands)


def _clock_time(day: int, micros: int) -> int:
    if not -(1 << 63) <= day * MICROS_PER_DAY + micros < 1 << 63:
        raise OverflowError(day)
    return day * MICROS_PER_DAY + micros


def _timestamp_add_months(micros: int, months: int) -> int:
    day, rest = divmod(micros, MICROS_PER_DAY)
    shifted = _plus_months(day, months)
    assert isinstance(shifted, int)
    return _clock_time(shifted, rest)


_DIFFERENCE_UNITS = {
    "MICROSECOND": 1, "MILLISECOND": 10**3, "SECOND": 10**6, "MINUTE": 60 * 10**6, "HOUR": 3600 * 10**6,
    "DAY": MICROS_PER_DAY, "WEEK": 7 * MICROS_PER_DAY,
}  # fmt: skip
_DIFFERENCE_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}


def _timestamp_diff(unit: str, start: int, end: int) -> int:
    sign = 1 if end >= start else -1
    first, last = sorted((start, end))
    if unit.upper() in _DIFFERENCE_UNITS:
        return sign * ((last - first) // _DIFFERENCE_UNITS[unit.upper()])
    (day, time), (other, other_time) = divmod(start, MICROS_PER_DAY), divmod(end, MICROS_PER_DAY)
    if other > day and other_time < time:
        other -= 1
    elif other < day and other_time > time:
        other += 1
    (y1, m1, d1), (y2, m2, d2) = civil(day), civil(other)
    months = int((32 * (12 * (y2 - y1) + m2 - m1) + d2 - d1) / 32)
    return int(months / _DIFFERENCE_MONTHS[unit.upper()])


def _make_timestamp(node: Call, operands: list[Compiled]) -> Compiled:
    def make(year: int, month: int, day: int, hour: int, minute: int, second: Decimal) -> Cell:
        number = None if abs(year) > 999_999_999 else day_number(year, month, day)
        if number is None or not (0 <= hour < 24 and 0 <= minute < 60 and 0 <= second <= 60):
            return failed(node.mode, f"no time {year}-{month}-{day} {hour}:{minute}:{second}")
        return _clock_time(number, (hour * 60 + minute) * 60_000_000 + int(second * 10**6))

    return strict(pa.timestamp("us", "UTC"), make)(node, operands)


def _parse_timestamp(node: Call, operands: list[Compiled]) -> Compiled:
    def parse(text: str, pattern: str) -> Cell:
        fields = {"yyyy": r"(?P<y>\d{4})", "MM": r"(?P<m>\d\d)", "dd": r"(?P<d>\d\d)", "HH": r"(?P<H>\d\d)",
                  "mm": r"(?P<M>\d\d)", "ss": r"(?P<S>\d\d)"}  # fmt: skip
        regex = re.escape(pattern.replace("'", ""))
        for name, group in fields.items():
            regex = regex.replace(name, group)
        match = re.fullmatch(regex, text, re.ASCII)
        number = {name: int(value) for name, value in match.groupdict().items()} if match else {}
        day = day_number(number["y"], number.get("m", 1), number.get("d", 1)) if match else None
        hour, minute, second = (number.get(name, 0) for name in "HMS")
        if day is None or hour > 23 or minute > 59 or second > 59:
            return failed(node.mode, f"{text!r} is not of the form {pattern}")
        return _clock_time(day, ((hour * 60 + minute) * 60 + second) * 1_000_000)

    return strict(pa.timestamp("us", "UTC"), parse)(node, operands)


def _cast_timestamp(node: Call, operands: list[Compiled]) -> Compiled:
    def parse(text: str, zone: str) -> Cell:
        local = parse_timestamp(text)
        return failed(node.mode, f"{text!r} is no timestamp") if local is None else to_utc(local, zone)

    return strict(pa.timestamp("us", "UTC"), parse)(node, operands)


def _second_with_fraction(node: Call, operands: list[Compiled]) -> Compiled:
    dtype = operands[0].type
    return strict(pa.decimal128(8, 6), lambda value: Decimal(local_micros(value, dtype) % 60_000_000).scaleb(-6))(
        node, operands
    )


def _months_between(node: Call, operands: list[Compiled]) -> Compiled:
    later, earlier = operands[0].type, operands[1].type

    def split(micros: int, dtype: pa.DataType, zone: str | None) -> tuple[int, int]:
        """The local day, and the microseconds since it began."""
        if zone is None:
            return divmod(local_micros(micros, dtype), MICROS_PER_DAY)
        day = (micros + zone_offset(micros, zone)) // MICROS_PER_DAY
        return day, micros - start_of_day(day * MICROS_PER_DAY, zone)

    def between(a: int, b: int, rounded: bool, zone: str | None = None) -> float:
        (day, time), (other, other_time) = (split(*moment, zone) for moment in ((a, later), (b, earlier)))
        (y1, m1, d1), (y2, m2, d2) = civil(day), civil(other)
        months = float(12 * (y1 - y2) + m1 - m2)
        if d1 == d2 or (_last_day(day) == day and _last_day(other) == other):
            return months
        seconds = (d1 - d2) * 86_400 + time // 1_000_000 - other_time // 1_000_000
        exact = months + seconds / _MONTH
        return math.floor(Fraction(exact * 1e8) + Fraction(1, 2)) / 1e8 if rounded else exact

    return strict(pa.float64(), between)(node, operands)


def _made(make: Callable[[int, str], int]) -> Handler:
    """From what a clock shows to the instant, at the offset of another one if the clock shows it then."""

    def made(shown: int, zone: str, near: int | None = None) -> int:
        if near is not None:
            kept = shown - zone_offset(near, zone)
            if kept + zone_offset(kept, zone) == shown:
                return kept
        return make(shown, zone)

    return like_first(made)


def _cut(unit: str, day: int) -> int:
    year, month, _ = civil(day)
    match unit.upper():
        case "WEEK":
            return day - (day + 3) % 7
        case "MON" | "MONTH" | "MM":
            return _number(year, month, 1)
        case "QUARTER":
            return _number(year, month - (month - 1) % 3, 1)
        case "YEAR" | "YYYY" | "YY":
            return _number(year, 1, 1)
    raise NotImplementedError(f"the oracle has no unit {unit}")


def _trunc(node: Call, operands: list[Compiled]) -> Compiled:
    dtype = operands[0].type
    return strict(pa.date32(), lambda value, unit: _cut(unit, local_micros(value, dtype) // MICROS_PER_DAY))(
        node, operands
    )


_MICROS = {
    "MICROSECOND": 1, "MILLISECOND": 10**3, "SECOND": 10**6, "MINUTE": 60 * 10**6, "HOUR": 3600 * 10**6,
    "DAY": MICROS_PER_DAY, "DD": MICROS_PER_DAY,
}  # fmt: skip


def _date_trunc(node: Call, operands: list[Compiled]) -> Compiled:
    dtype = operands[1].type

    def cut(unit: str, value: int) -> int:
        clock = local_micros(value, dtype)
        micros = _MICROS.get(unit.upper())
        start = clock // micros * micros if micros else _cut(unit, clock // MICROS_PER_DAY) * MICROS_PER_DAY
        return to_utc(start, dtype.tz)

    return strict(dtype, cut)(node, operands)


def _date_format(node: Call, operands: list[Compiled]) -> Compiled:
    dtype = operands[0].type

    def written(value: int, pattern: str) -> str:
        moment = local_micros(value, dtype) if pa.types.is_timestamp(dtype) else wrap(value * 10**6, 64)
        day, micros = divmod(moment, MICROS_PER_DAY)
        year, month, of_month = civil(day)
        text = f"{abs(year):04d}"
        text = f"-{text}" if year < 0 else f"+{text}" if year > 9999 else text
        for field, number in (
            ("MM", month), ("dd", of_month), ("HH", micros // 3_600_000_000), ("mm", micros // 60_000_000 % 60),
            ("ss", micros // 1_000_000 % 60),
        ):  # fmt: skip
            pattern = pattern.replace(field, f"{number:02d}")
        pattern = pattern.replace("SSSSSS", f"{micros % 1_000_000:06d}").replace("SSS", f"{micros % 1_000_000:06d}"[:3])
        return pattern.replace("yyyy", text).replace("'", "")

    return strict(pa.string(), written)(node, operands)


def _next_day(node: Call, operands: list[Compiled]) -> Compiled:
    dtype = operands[0].type

    def following(value: int, name: str) -> int:
        day = local_micros(value, dtype) // MICROS_PER_DAY
        wanted = [n.upper()[:2] for n in _DAY_NAMES].index(name.upper()[:2])
        return next(d for d in range(day + 1, day + 8) if (d + 3) % 7 == wanted)

    return strict(pa.date32(), following)(node, operands)


def _from_epoch(unit: int) -> Handler:
    def instant(value: int) -> int:
        if not -(1 << 63) <= value * unit < 1 << 63:
            raise ExpressionEvaluationError(f"{value} overflows")
        return value * unit

    return strict(pa.timestamp("us", "UTC"), instant)


FUNCTIONS: dict[Function, Handler] = {
    Function.YEAR: _date_part(lambda year, _month, _day: year),
    Function.QUARTER: _date_part(lambda _year, month, _day: (month - 1) // 3 + 1),
    Function.MONTH: _date_part(lambda _year, month, _day: month),
    Function.DAY: _date_part(lambda _year, _month, day: day),
    Function.DAY_OF_WEEK: _of_day(lambda day: (day + 4) % 7 + 1),
    Function.WEEKDAY: _of_day(lambda day: (day + 3) % 7),
    Function.LAST_DAY: _of_day(_last_day, pa.date32()),
    Function.DAY_OF_YEAR: _date_part(lambda y, m, d: _number(y, m, d) - _number(y, 1, 1) + 1),
    Function.WEEK_OF_YEAR: _of_day(_week_of_year),
    Function.DAY_NAME: _of_day(lambda day: _DAY_NAMES[(day + 3) % 7], pa.string()),
    Function.MONTH_NAME: _of_day(lambda day: _MONTH_NAMES[civil(day)[1] - 1], pa.string()),
    Function.NEXT_DAY: _next_day,
    Function.DATE_FORMAT: _date_format,
    Function.FROM_UNIXTIME: _date_format,
    Function.TRUNC: _trunc,
    Function.DATE_TRUNC: _date_trunc,
    Function.ADD_MONTHS: _add_months,
    Function.MONTHS_BETWEEN: _months_between,
    Function.MAKE_DATE: _make_date,
    Function.UNIX_DATE: _of_day(lambda day: day),
    Function.DATE_FROM_UNIX_DATE: strict(pa.date32(), lambda day: day),
    Function.UNIX_TIMESTAMP: strict(pa.int64(), lambda micros: abs(micros) // 10**6 * (1 if micros > 0 else -1)),
    Function.UNIX_SECONDS: strict(pa.int64(), lambda micros: micros // 10**6),
    Function.UNIX_MILLIS: strict(pa.int64(), lambda micros: micros // 10**3),
    Function.UNIX_MICROS: strict(pa.int64(), lambda micros: micros),
    Function.TIMESTAMP_SECONDS: _from_epoch(10**6),
    Function.TIMESTAMP_MILLIS: _from_epoch(10**3),
    Function.TIMESTAMP_MICROS: _from_epoch(1),
    Function.HOUR: _time_part(3_600_000_000, 24),
    Function.MINUTE: _time_part(60_000_000, 60),
    Function.SECOND: _time_part(1_000_000, 60),
    Function.DATE_ADD: _date_shift(1),
    Function.DATE_SUB: _date_shift(-1),
    Function.DATE_DIFF: _date_diff,
    Function.TIMESTAMP_ADD_MONTHS: like_first(_timestamp_add_months),
    Function.TIMESTAMP_DIFF: strict(pa.int64(), _timestamp_diff),
    Function.MAKE_TIMESTAMP: _make_timestamp,
    Function.SECOND_WITH_FRACTION: _second_with_fraction,
    Function.PARSE_TIMESTAMP: _parse_timestamp,
    Function.CAST_TIMESTAMP: _cast_timestamp,
    Function.FROM_UTC_TIMESTAMP: like_first(lambda micros, zone: micros + zone_offset(micros, zone)),
    Function.TO_UTC_TIMESTAMP: _made(to_utc),
    Function.START_OF_DAY: _made(start_of_day),
    Function.TIMESTAMP_ADD: like_first(_timestamp_add),
}
