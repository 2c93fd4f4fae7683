"""Translates intervals of days to seconds: Arrow durations, computed with as whole microseconds.

An overflow of 64 bits is an error in every mode, as in Spark. ``t2 - t1 + interval 1 day``, for example::

    duration(unix_micros(t2) - unix_micros(t1) + 86400000000)

A distance in time is a whole number of microseconds, which is what Spark's intervals of days to seconds hold. Spark
subtracts timestamps by what a clock in the session's time zone shows, and dates as midnights. So does this: each
operand becomes microseconds since 1970 of that clock, computed by Spark, and the difference is one of integers.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t

from gpujoin.functions.dates import TIME_UNITS
from gpujoin.functions.signatures import type_of
from gpujoin.model.expressions import Call, Case, Cast, EvalMode, Expression, Function, Literal
from gpujoin.spark.catalyst import zones
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError, Reader, Translation, read_expression
from gpujoin.spark.catalyst.traits import arrow_of

INTERVAL = pa.duration("us")
_MICROS = pa.int64()
_EXACT = pa.decimal128(19, 0)
"""Microseconds of which the sums are exact, be they more than 64 bits hold."""


def is_interval(node: Node) -> bool:
    """Tell whether an expression is an interval of days to seconds."""
    return isinstance(node.data_type, t.DayTimeIntervalType)


def translation_of(node: Node) -> Translation | None:
    """Give how a node is translated, if it makes or reads such an interval in a way of its own.

    Raises ``NotTranslatableError`` if it is a cast of one to or from another type.
    """
    if node.name == "Cast" and is_interval(node) != is_interval(node.children[0]):
        raise NotTranslatableError(f"{node}: casts of intervals are not computed here")
    if node.name in _PARTS or node.name in _CONSTRUCTORS or is_interval(node):
        return _PARTS.get(node.name) or _CONSTRUCTORS.get(node.name) or _COMPUTED.get(node.name)
    return None


def micros_of(interval: Expression) -> Expression:
    """Give the microseconds of an interval."""
    if isinstance(interval, Cast) and type_of(interval.child) == _MICROS:
        return interval.child
    return Cast(child=interval, to=_MICROS, type=_MICROS)


def interval_of(micros: Expression) -> Expression:
    """Give the interval of a number of microseconds."""
    return Cast(child=micros, to=INTERVAL, type=INTERVAL)


def summand(function: Node, interval: Expression) -> Expression:
    """Give the microseconds of intervals to sum, for averages as decimals, whose sums are exact.

    Raises ``NotTranslatableError`` if the aggregate function gives null where Spark's sum overflows.
    """
    if function.eval_mode is EvalMode.TRY:
        raise NotTranslatableError(f"{function} is not computed here")
    micros = micros_of(interval)
    if function.name == "Sum":
        return micros
    return Cast(child=micros, to=_EXACT, type=_EXACT)


def mean_of(total: Expression, count: Expression) -> Expression:
    """Give an average interval: halves go away from zero, as where Spark divides intervals; of no value it is null."""
    micros = Cast(child=total, to=_MICROS, mode=EvalMode.ANSI, type=_MICROS)
    quotient, rest = (_call(function, micros, count) for function in (Function.INTEGRAL_DIVIDE, Function.REMAINDER))
    twice = _call(Function.MULTIPLY, _call(Function.ABS, rest), _number(2))
    upward = Call(function=Function.GE, arguments=(twice, count), type=pa.bool_())
    negative = Call(function=Function.LT, arguments=(micros, _number(0)), type=pa.bool_())
    step = Case(conditions=(negative,), values=(_number(-1),), otherwise=_number(1), type=_MICROS)
    none = Call(function=Function.EQ, arguments=(count, _number(0)), type=pa.bool_())
    nothing = Literal(value=None, type=_MICROS)
    values = (nothing, _call(Function.ADD, quotient, step))
    return interval_of(Case(conditions=(none, upward), values=values, otherwise=quotient, type=_MICROS))


def _number(value: int) -> Literal:
    return Literal(value=value, type=_MICROS)


def _call(function: Function, *operands: Expression, mode: EvalMode = EvalMode.ANSI) -> Call:
    return Call(function=function, arguments=operands, mode=mode, type=_MICROS)


def _long(value: Expression) -> Expression:
    return value if type_of(value) == _MICROS else Cast(child=value, to=_MICROS, type=_MICROS)


# -- made ----------------------------------------------------------------------------------------------------------


def _between_timestamps(reader: Reader, node: Node) -> Expression:
    """Translate a difference of timestamps: of local times in the session's zone."""
    zoned = isinstance(node.children[0].data_type, t.TimestampType)
    zone = reader.zone(node) if zoned else None
    moments = [reader(child) for child in node.children]
    if zone is not None:
        moments = [zones.clock(instant, zone) for instant in moments]
    end, start = (_call(Function.UNIX_MICROS, _as_instant(instant)) for instant in moments)
    return interval_of(_call(Function.SUBTRACT, end, start))


def _as_instant(moment: Expression) -> Expression:
    if type_of(moment) == zones.INSTANT:
        return moment
    return Cast(child=moment, to=zones.INSTANT, type=zones.INSTANT)


def _between_dates(reader: Reader, node: Node) -> Expression:
    days = [Call(function=Function.UNIX_DATE, arguments=(reader(child),), type=pa.int32()) for child in node.children]
    difference = Call(function=Function.SUBTRACT, arguments=tuple(days), mode=EvalMode.ANSI, type=pa.int32())
    return interval_of(_call(Function.MULTIPLY, _long(difference), _number(TIME_UNITS["DAY"])))


def _make_interval(reader: Reader, node: Node) -> Expression:
    """Translate ``make_dt_interval``."""
    *numbers, seconds = map(reader, node.children)
    total: Expression = _call(Function.UNSCALED_VALUE, seconds)
    for number, unit in zip(numbers[::-1], ("MINUTE", "HOUR", "DAY"), strict=True):
        part = _call(Function.MULTIPLY, _long(number), _number(TIME_UNITS[unit]))
        total = _call(Function.ADD, total, part)
    return interval_of(total)


# -- computed ------------------------------------------------------------------------------------------------------


def _literal(_reader: Reader, node: Node) -> Expression:
    constant = constant_interval(node)
    assert constant is not None
    return interval_of(constant)


def _of_two(function: Function) -> Translation:
    def translate(reader: Reader, node: Node) -> Expression:
        if node.eval_mode is EvalMode.TRY or not all(map(is_interval, node.children)):
            raise NotTranslatableError(f"{node} is not computed here")
        return interval_of(_call(function, *(micros_of(reader(child)) for child in node.children)))

    return translate


def _negate(reader: Reader, node: Node) -> Expression:
    return interval_of(_call(Function.NEGATE, micros_of(reader(node.children[0]))))


def _absolute(reader: Reader, node: Node) -> Expression:
    return interval_of(_call(Function.ABS, micros_of(reader(node.children[0])), mode=node.eval_mode))


def _multiply(reader: Reader, node: Node) -> Expression:
    interval, number = node.children
    if not isinstance(number.data_type, t.IntegralType):
        raise NotTranslatableError(f"{node} is not computed here: the number is not whole")
    return interval_of(_call(Function.MULTIPLY, micros_of(reader(interval)), _long(reader(number))))


def _cast(reader: Reader, node: Node) -> Expression:
    if not keeps_all(node):
        raise NotTranslatableError(f"{node}: casts of intervals are not computed here")
    return reader(node.children[0])


# -- parts ---------------------------------------------------------------------------------------------------------


def _part(within: str | None, unit: str) -> Translation:
    """Translate a whole number of units, of what is left of larger ones."""

    def translate(reader: Reader, node: Node) -> Expression:
        micros = micros_of(reader(node.children[0]))
        if within is not None:
            micros = _call(Function.REMAINDER, micros, _number(TIME_UNITS[within]))
        whole = _call(Function.INTEGRAL_DIVIDE, micros, _number(TIME_UNITS[unit]))
        dtype = arrow_of(node.data_type)
        return Cast(child=whole, to=dtype, type=dtype)

    return translate


def _seconds(reader: Reader, node: Node) -> Expression:
    micros = _call(Function.REMAINDER, micros_of(reader(node.children[0])), _number(TIME_UNITS["MINUTE"]))
    digits, wide = pa.decimal128(8, 0), pa.decimal128(15, 6)
    unit = Literal(value=Decimal("0.000001"), type=pa.decimal128(6, 6))
    whole = Cast(child=micros, to=digits, type=digits)
    seconds = Call(function=Function.MULTIPLY, arguments=(whole, unit), type=wide)
    dtype = arrow_of(node.data_type)
    return Cast(child=seconds, to=dtype, type=dtype)


_CONSTRUCTORS: dict[str, Translation] = {
    "SubtractTimestamps": _between_timestamps,
    "SubtractDates": _between_dates,
    "MakeDTInterval": _make_interval,
}
_COMPUTED: dict[str, Translation] = {
    "Literal": _literal,
    "Add": _of_two(Function.ADD),
    "Subtract": _of_two(Function.SUBTRACT),
    "UnaryMinus": _negate,
    "Abs": _absolute,
    "MultiplyDTInterval": _multiply,
    "Cast": _cast,
}
"""Classes that are something else where they give no interval."""
_PARTS: dict[str, Translation] = {
    "ExtractANSIIntervalDays": _part(None, "DAY"),
    "ExtractANSIIntervalHours": _part("DAY", "HOUR"),
    "ExtractANSIIntervalMinutes": _part("HOUR", "MINUTE"),
    "ExtractANSIIntervalSeconds": _seconds,
}
TRANSLATED = frozenset(_CONSTRUCTORS) | frozenset(_PARTS) | {"MultiplyDTInterval"}
"""Classes that are translated here alone."""


DIFFERENCES = frozenset({"SubtractTimestamps", "SubtractDates"})
"""Classes of differences in time."""
MICROSECONDS = pa.int64()


def is_distance(node: Node) -> bool:
    """Tell whether an expression is a difference in time, or its absolute value, as an interval of days to seconds."""
    inner = node
    while inner.name in ("Abs", "Cast"):
        inner = inner.children[0]
    return inner.name in DIFFERENCES and isinstance(node.data_type, t.DayTimeIntervalType)


def keeps_all(cast: Node) -> bool:
    """Tell whether a cast between intervals leaves nothing out: hours become seconds, but seconds not hours."""
    source, target = cast.children[0].data_type, cast.data_type
    if not isinstance(source, t.DayTimeIntervalType) or not isinstance(target, t.DayTimeIntervalType):
        return False
    return source.startField >= target.startField and source.endField <= target.endField


def constant_interval(node: Node) -> Literal | None:
    """Give a constant interval in microseconds; ``None`` if it is none."""
    if node.name != "Literal" or not isinstance(node.data_type, t.DayTimeIntervalType):
        return None
    value = node.fields["@value"]
    return Literal(value=None if value is None else int(value), type=MICROSECONDS)


def clock_microseconds(operand: Node, difference: Node, gateway: Any) -> Node:
    """Make the expression that gives a date or timestamp, an operand of a difference, in microseconds.

    The difference says the time zone.
    """
    expressions = gateway.org.apache.spark.sql.catalyst.expressions
    types = gateway.org.apache.spark.sql.types.DataTypes
    legacy = expressions.EvalMode.LEGACY()
    utc = gateway.scala.Some("UTC")
    zone = difference.jvm.timeZoneId() if difference.name == "SubtractTimestamps" else utc
    value = operand.jvm
    if not isinstance(operand.data_type, t.TimestampNTZType):
        value = expressions.Cast(value, types.TimestampNTZType, zone, legacy)
    value = expressions.Cast(value, types.TimestampType, utc, legacy)
    return read_expression(operand.reading, expressions.UnixMicros(value))


EXACT = EvalMode.ANSI
"""A difference of more than 292,000 years is an error in Spark in any mode."""
