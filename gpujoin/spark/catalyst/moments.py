"""Distances in time as whole microseconds, which is what Spark's intervals of days to seconds hold.

Spark subtracts timestamps by what a clock in the session's time zone shows, and dates as midnights. So does this: each
operand becomes microseconds since 1970 of that clock, computed by Spark, and the difference is one of integers.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import types as t

from gpujoin.model.expressions import EvalMode, Literal
from gpujoin.spark.catalyst.nodes import Node, read_expression

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


def constant(node: Node) -> Literal | None:
    """Give a constant interval in microseconds; ``None`` if it is none."""
    if node.name != "Literal" or not isinstance(node.data_type, t.DayTimeIntervalType):
        return None
    value = node.fields["@value"]
    return Literal(value=None if value is None else int(value), type=MICROSECONDS)


def clock(operand: Node, difference: Node, gateway: Any) -> Node:
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
