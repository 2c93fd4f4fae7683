"""Parts, shifts and differences of dates and timestamps, in the proleptic Gregorian calendar."""

from __future__ import annotations

import dataclasses
import datetime as dt

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.signatures import DATE, DURATION, INT, TIMESTAMP, Parameter, first, takes, type_of
from gpujoin.functions.spec import NOT_FUSED, NOT_ON_GPU, FunctionSpec, Raises, SparkOnly
from gpujoin.model.expressions import Call, Expression, Function, Literal
from gpujoin.model.types import is_whole

_PART = takes(DATE, gives=pa.int32())
_TIME = takes(TIMESTAMP, gives=pa.int32())
_SHIFT = takes(DATE, INT, gives=pa.date32())
_MICROS = Parameter(lambda t: pat.is_timestamp(t) and t.unit == "us", TIMESTAMP.convert)
_TIMESTAMP_SHIFT = takes(_MICROS, DURATION, gives=first)
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
    FunctionSpec(
        _F.TIMESTAMP_ADD, (), _TIMESTAMP_SHIFT, raises=Raises.ALWAYS, zoned=True, lacks=NOT_FUSED | NOT_ON_GPU
    ),
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
