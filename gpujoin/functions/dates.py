"""Parts, shifts and differences of dates and timestamps, in the proleptic Gregorian calendar."""

from __future__ import annotations

import dataclasses
import datetime as dt

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.signatures import (
    BOOLEAN,
    DATE,
    DURATION,
    INT,
    NUMBER,
    TEXT,
    TIMESTAMP,
    Parameter,
    first,
    kept,
    takes,
    to,
    type_of,
    types_of,
)
from gpujoin.functions.spec import NOT_FUSED, ON_CPU, FunctionSpec, Raises, SparkOnly
from gpujoin.model.expressions import Call, Expression, Function, Literal
from gpujoin.model.types import is_numeric, is_text, is_whole

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


def _is_instant(dtype: pa.DataType) -> bool:
    return bool(pat.is_timestamp(dtype) and dtype.unit == "us" and dtype.tz is not None)


_INSTANT = Parameter(_is_instant, kept(_is_instant, lambda _source, _mode: None))
_TEXT_ONLY = Parameter(is_text, to(pa.string(), is_text))
_SECONDS = Parameter(
    lambda t: pat.is_decimal128(t) and t.scale == 6 and t.precision <= 16,
    to(pa.decimal128(16, 6), is_numeric, is_text),
)
_WHOLE = Parameter(is_whole, NUMBER.convert)
_DATE_ONLY = Parameter(pat.is_date, to(pa.date32(), pat.is_date))
_UTC = pa.timestamp("us", "UTC")


def constant_word(node: Expression) -> str:
    """A constant text in capitals; empty if it is no constant, or not ASCII."""
    if not isinstance(node, Literal) or not isinstance(node.value, str) or not node.value.isascii():
        return ""
    return node.value.upper()


def shifts_little(node: Call) -> bool:
    """Whether a date is shifted by a constant number of months that no usual date overflows."""
    months = node.arguments[1]
    return isinstance(months, Literal) and abs(months.value or 0) <= _MOST_MONTHS


def _names_a_day(node: Call) -> bool:
    return constant_word(node.arguments[1]) in DAYS_OF_WEEK


def _writes_constantly(node: Call) -> bool:
    """Whether the pattern is a constant; evaluators take known ones alone."""
    return isinstance(node.arguments[1], Literal)


def _fits_micros(node: Call) -> bool:
    return types_of(node)[0].bit_width <= 32


_F = Function

TABLE = (
    FunctionSpec(_F.YEAR, ("Year",), _PART),
    FunctionSpec(_F.QUARTER, ("Quarter",), _PART),
    FunctionSpec(_F.MONTH, ("Month",), _PART),
    FunctionSpec(_F.DAY, ("DayOfMonth",), _PART),
    FunctionSpec(_F.DAY_OF_WEEK, ("DayOfWeek",), _PART),
    FunctionSpec(_F.WEEKDAY, ("WeekDay",), _PART),
    FunctionSpec(_F.DAY_OF_YEAR, ("DayOfYear",), _PART),
    FunctionSpec(_F.WEEK_OF_YEAR, ("WeekOfYear",), _PART, lacks=NOT_FUSED),
    FunctionSpec(_F.DAY_NAME, ("DayName",), takes(DATE, gives=pa.string()), lacks=ON_CPU),
    FunctionSpec(_F.MONTH_NAME, ("MonthName",), takes(DATE, gives=pa.string()), lacks=ON_CPU),
    FunctionSpec(_F.LAST_DAY, ("LastDay",), takes(DATE, gives=pa.date32())),
    FunctionSpec(
        _F.NEXT_DAY, ("NextDay",), takes(DATE, TEXT, gives=pa.date32()),
        raises=Raises.ANSI, safe=_names_a_day, lacks=NOT_FUSED,
    ),
    FunctionSpec(
        _F.TRUNC, ("TruncDate",), takes(DATE, TEXT, gives=pa.date32()),
        lacks=NOT_FUSED,
    ),
    FunctionSpec(
        _F.DATE_TRUNC, ("TruncTimestamp",), takes(TEXT, _INSTANT, gives=lambda types: types[1]),
        zoned=True, lacks=NOT_FUSED,
    ),
    FunctionSpec(
        _F.DATE_FORMAT, ("DateFormatClass",), takes(_INSTANT, TEXT, gives=pa.string()),
        raises=Raises.VARIABLE, safe=_writes_constantly, zoned=True, lacks=ON_CPU,
    ),
    FunctionSpec(
        _F.FROM_UNIXTIME, ("FromUnixTime",), takes(_WHOLE, TEXT, gives=pa.string()),
        raises=Raises.VARIABLE, safe=_writes_constantly, lacks=ON_CPU,
    ),
    FunctionSpec(_F.HOUR, ("Hour",), _TIME, zoned=True, lacks=NOT_FUSED),
    FunctionSpec(_F.MINUTE, ("Minute",), _TIME, zoned=True, lacks=NOT_FUSED),
    FunctionSpec(_F.SECOND, ("Second",), _TIME, zoned=True, lacks=NOT_FUSED),
    FunctionSpec(_F.DATE_ADD, ("DateAdd",), _SHIFT),
    FunctionSpec(_F.DATE_SUB, ("DateSub",), _SHIFT),
    FunctionSpec(_F.DATE_DIFF, ("DateDiff",), takes(DATE, DATE, gives=pa.int32()), zoned=True),
    FunctionSpec(
        _F.ADD_MONTHS, ("AddMonths", "DateAddYMInterval"), takes(DATE, INT, gives=pa.date32()),
        raises=Raises.VARIABLE, safe=shifts_little, lacks=NOT_FUSED,
    ),
    FunctionSpec(
        _F.MONTHS_BETWEEN, ("MonthsBetween",),
        takes(_INSTANT, _INSTANT, BOOLEAN, TEXT, gives=pa.float64(), optional=1),
        zoned=True, lacks=ON_CPU,
    ),
    FunctionSpec(
        _F.MAKE_DATE, ("MakeDate",), takes(INT, INT, INT, gives=pa.date32()),
        raises=Raises.ALWAYS, lacks=ON_CPU,
    ),
    FunctionSpec(_F.UNIX_DATE, ("UnixDate",), takes(_DATE_ONLY, gives=pa.int32()), lacks=NOT_FUSED),
    FunctionSpec(
        _F.DATE_FROM_UNIX_DATE, ("DateFromUnixDate",), takes(INT, gives=pa.date32()),
        lacks=NOT_FUSED,
    ),
    FunctionSpec(
        _F.UNIX_TIMESTAMP, ("UnixTimestamp", "ToUnixTimestamp"), takes(_INSTANT, gives=pa.int64()),
        lacks=NOT_FUSED,
    ),
    FunctionSpec(_F.UNIX_SECONDS, ("UnixSeconds",), takes(_INSTANT, gives=pa.int64()), lacks=NOT_FUSED),
    FunctionSpec(_F.UNIX_MILLIS, ("UnixMillis",), takes(_INSTANT, gives=pa.int64()), lacks=NOT_FUSED),
    FunctionSpec(_F.UNIX_MICROS, ("UnixMicros",), takes(_INSTANT, gives=pa.int64()), lacks=NOT_FUSED),
    FunctionSpec(
        _F.TIMESTAMP_SECONDS, ("SecondsToTimestamp",), takes(_WHOLE, gives=_UTC),
        raises=Raises.ALWAYS, safe=_fits_micros, lacks=NOT_FUSED,
    ),
    FunctionSpec(
        _F.TIMESTAMP_MILLIS, ("MillisToTimestamp",), takes(_WHOLE, gives=_UTC),
        raises=Raises.ALWAYS, safe=_fits_micros, lacks=NOT_FUSED,
    ),
    FunctionSpec(
        _F.TIMESTAMP_MICROS, ("MicrosToTimestamp",), takes(_WHOLE, gives=_UTC), lacks=NOT_FUSED
    ),
    FunctionSpec(
        _F.TIMESTAMP_ADD_MONTHS, ("TimestampAddYMInterval",), takes(_MICROS, INT, gives=first),
        raises=Raises.VARIABLE, safe=shifts_little, lacks=ON_CPU,
    ),
    FunctionSpec(
        _F.TIMESTAMP_DIFF, ("TimestampDiff",), takes(TEXT, _INSTANT, _INSTANT, gives=pa.int64()),
        zoned=True, lacks=ON_CPU,
    ),
    FunctionSpec(
        _F.MAKE_TIMESTAMP, ("MakeTimestamp",),
        takes(INT, INT, INT, INT, INT, _SECONDS, gives=_UTC),
        raises=Raises.ALWAYS, lacks=ON_CPU,
    ),
    FunctionSpec(
        _F.SECOND_WITH_FRACTION, ("SecondWithFraction",), takes(_MICROS, gives=pa.decimal128(8, 6)),
        zoned=True, lacks=ON_CPU,
    ),
    FunctionSpec(
        _F.PARSE_TIMESTAMP, ("GetTimestamp",), takes(_TEXT_ONLY, TEXT, gives=_UTC),
        raises=Raises.ANSI, lacks=ON_CPU,
    ),
    FunctionSpec(_F.CAST_TIMESTAMP, (), takes(_TEXT_ONLY, TEXT, gives=_UTC), raises=Raises.ANSI, lacks=ON_CPU),
    FunctionSpec(
        _F.FROM_UTC_TIMESTAMP, ("FromUTCTimestamp",), takes(_INSTANT, TEXT, gives=first), lacks=ON_CPU,
    ),
    FunctionSpec(
        _F.TO_UTC_TIMESTAMP, ("ToUTCTimestamp",), takes(_INSTANT, TEXT, _INSTANT, gives=first, optional=1),
        lacks=ON_CPU,
    ),
    FunctionSpec(_F.START_OF_DAY, (), takes(_INSTANT, TEXT, _INSTANT, gives=first, optional=1), lacks=ON_CPU),
    FunctionSpec(
        _F.TIMESTAMP_ADD, ("TimestampAddInterval", "TimeAdd"), _TIMESTAMP_SHIFT,
        raises=Raises.VARIABLE, zoned=True, lacks=ON_CPU,
    ),
)  # fmt: skip

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
