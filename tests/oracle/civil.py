"""The proleptic Gregorian calendar over all of Spark's range, where ``datetime`` ends at the year 9999."""

from __future__ import annotations

import datetime as dt
import re
import zoneinfo

MICROS_PER_DAY = 86_400_000_000
_EPOCH = dt.date(1970, 1, 1).toordinal()
_CYCLE = 146_097
"""Days in 400 years, after which the calendar repeats."""

_DATE = re.compile(r"([+-]?\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIME = re.compile(
    r"([+-]?\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{0,9}))?)?)?(.*))?)?",
    re.DOTALL,
)


def civil(days: int) -> tuple[int, int, int]:
    """Year, month and day of a day number counted from 1970-01-01.

    The day is shifted by whole 400-year cycles into the range of :class:`datetime.date` and back.
    """
    cycles, day = divmod(days + _EPOCH - 1, _CYCLE)
    date = dt.date.fromordinal(day + 1)
    return date.year + 400 * cycles, date.month, date.day


def day_number(year: int, month: int, day: int) -> int | None:
    """Day number from 1970-01-01 of a date, or ``None`` where there is no such date."""
    cycles, short = divmod(year - 1, 400)
    try:
        date = dt.date(short + 1, month, day)
    except ValueError:
        return None
    return date.toordinal() + _CYCLE * cycles - _EPOCH


def zone_offset(micros: int, zone: str | None) -> int:
    """Microseconds to add to a UTC instant for local time; 0 without a zone."""
    if zone is None or zone in ("UTC", "Etc/UTC", "Z", "+00:00"):
        return 0
    fixed = re.fullmatch(r"([+-])(\d\d):(\d\d)", zone)
    if fixed:
        size = (int(fixed[2]) * 60 + int(fixed[3])) * 60_000_000
        return -size if fixed[1] == "-" else size
    instant = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)
    offset = instant.astimezone(zoneinfo.ZoneInfo(zone)).utcoffset()
    assert offset is not None
    return offset // dt.timedelta(microseconds=1)


def to_utc(local: int, zone: str | None) -> int:
    """The instant of a local time; of two, the earlier, and a skipped time moves forward, as in Java."""
    before = zone_offset(local - MICROS_PER_DAY, zone)
    after = zone_offset(local + MICROS_PER_DAY, zone)
    for offset in (before, after):
        if zone_offset(local - offset, zone) == offset:
            return local - offset
    return local - before


def parse_date(text: str) -> int | None:
    """Day number of a text by Spark's rules for casts, or ``None`` where it is no date."""
    match = _DATE.fullmatch(_trim(text))
    if match is None:
        return None
    return day_number(int(match[1]), int(match[2] or 1), int(match[3] or 1))


def parse_timestamp(text: str) -> int | None:
    """Local microseconds of a text ``year[-month[-day[ hour:minute[:second[.fraction]]]]]``, or ``None``."""
    match = _TIME.fullmatch(_trim(text))
    if match is None or match[8]:
        return None
    days = day_number(int(match[1]), int(match[2] or 1), int(match[3] or 1))
    hour, minute, second = (int(match[i] or 0) for i in (4, 5, 6))
    if days is None or hour > 23 or minute > 59 or second > 59:
        return None
    fraction = int(((match[7] or "") + "000000")[:6])
    return days * MICROS_PER_DAY + ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction


def format_date(days: int) -> str:
    """A day number as text, as a cast to string gives it."""
    year, month, day = civil(days)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{month:02d}-{day:02d}"


def format_timestamp(local: int) -> str:
    """Local microseconds as text, as a cast to string gives them: no trailing zeros in the fraction."""
    days, rest = divmod(local, MICROS_PER_DAY)
    seconds, fraction = divmod(rest, 1_000_000)
    text = f"{format_date(days)} {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{fraction:06d}".rstrip("0") if fraction else text


def _trim(text: str) -> str:
    return text.strip("".join(map(chr, range(33))))


def start_of_day(midnight: int, zone: str) -> int:
    """The first instant of a day, given by its midnight: the end of a gap that midnight is in."""
    begin = to_utc(midnight, zone)
    while begin + zone_offset(begin, zone) > midnight and _same_day(begin - 1_000_000, midnight, zone):
        begin -= 1_000_000
    return begin


def _same_day(micros: int, midnight: int, zone: str) -> bool:
    return (micros + zone_offset(micros, zone)) // MICROS_PER_DAY == midnight // MICROS_PER_DAY
