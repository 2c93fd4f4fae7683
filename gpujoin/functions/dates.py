"""Parts, shifts and differences of dates and timestamps, in the proleptic Gregorian calendar."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.signatures import DATE, INT, TIMESTAMP, takes, type_of
from gpujoin.functions.spec import NOT_FUSED, FunctionSpec, SparkOnly
from gpujoin.model.expressions import Call, Expression, Function
from gpujoin.model.types import is_whole

_PART = takes(DATE, gives=pa.int32())
_TIME = takes(TIMESTAMP, gives=pa.int32())
_SHIFT = takes(DATE, INT, gives=pa.date32())
_F = Function

TABLE = (
    FunctionSpec(_F.YEAR, ("Year",), _PART),
    FunctionSpec(_F.QUARTER, ("Quarter",), _PART),
    FunctionSpec(_F.MONTH, ("Month",), _PART),
    FunctionSpec(_F.DAY, ("DayOfMonth",), _PART),
    FunctionSpec(_F.DAY_OF_WEEK, ("DayOfWeek",), _PART),
    FunctionSpec(_F.WEEKDAY, ("WeekDay",), _PART),
    FunctionSpec(_F.DAY_OF_YEAR, ("DayOfYear",), _PART),
    FunctionSpec(_F.LAST_DAY, ("LastDay",), takes(DATE, gives=pa.date32())),
    FunctionSpec(_F.HOUR, ("Hour",), _TIME, zoned=True, lacks=NOT_FUSED),
    FunctionSpec(_F.MINUTE, ("Minute",), _TIME, zoned=True, lacks=NOT_FUSED),
    FunctionSpec(_F.SECOND, ("Second",), _TIME, zoned=True, lacks=NOT_FUSED),
    FunctionSpec(_F.DATE_ADD, ("DateAdd",), _SHIFT),
    FunctionSpec(_F.DATE_SUB, ("DateSub",), _SHIFT),
    FunctionSpec(_F.DATE_DIFF, ("DateDiff",), takes(DATE, DATE, gives=pa.int32()), zoned=True),
)

SPARK_ONLY = (
    SparkOnly(("WeekOfYear", "AddMonths")),
    SparkOnly(("UnixDate", "UnixSeconds", "UnixMillis", "UnixMicros")),
    SparkOnly(
        (
            "ExtractANSIIntervalDays",
            "DateAddYMInterval",
            "TimeAdd",
            "TimestampAddInterval",
            "TimestampAddYMInterval",
        ),
        "intervals are not computed with",
    ),
)


def date_arithmetic(node: Call) -> Expression | None:
    """Translate ``date + days`` and ``date - days`` to ``date_add`` and ``date_sub``; ``None`` for other calls."""
    date, days = node.arguments
    if node.function is Function.ADD and pat.is_date(type_of(days)):
        date, days = days, date
    if node.function not in (Function.ADD, Function.SUBTRACT) or not pat.is_date(type_of(date)):
        return None
    if not (is_whole(type_of(days)) or pat.is_null(type_of(days))):
        return None
    function = Function.DATE_ADD if node.function is Function.ADD else Function.DATE_SUB
    return _SHIFT.resolve(dataclasses.replace(node, function=function, arguments=(date, days)))
