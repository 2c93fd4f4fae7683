"""Tolerances that may fail, such as ``r.n >= l.n - 5`` in ANSI mode: of which rows they are computed.

Spark computes ``l.n - 5`` of a row of ``l`` for its matches by key, and fails where it has no value. Here it is
computed for the one match that is found. Where Spark compares with ``l.n - 5`` before it compares with ``l.n``, a row
whose ``l.n - 5`` has no value fails with any match by key; so such a row is searched with no bound at all.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from gpujoin.model.spec import Direction
from gpujoin.spark.catalyst.nodes import Node, read_expression
from gpujoin.spark.query.nearest.conditions import WHOLE_RANGES
from gpujoin.spark.query.nearest.terms import Nearest


def failing_as_spark(nearest: Nearest, gateway: Any) -> Nearest:
    """Let rows whose tolerance is tested first, and has no value, find any match.

    Parameters
    ----------
    nearest : Nearest
        With at most one tolerance that may fail.
    gateway : py4j JVM view
        ``spark._jvm``.
    """
    shift = next((one.shift for one in nearest.limits if one.shift is not None and one.first), None)
    if shift is None:
        return nearest
    expressions = gateway.org.apache.spark.sql.catalyst.expressions
    types = gateway.org.apache.spark.sql.types.DataTypes
    kinds = {"integer": types.IntegerType, "long": types.LongType}

    def literal(value: int, kind: str) -> Any:
        # A number that fits into 32 bits comes to the JVM as an integer.
        found = expressions.Literal(value, kinds["integer" if -(1 << 31) <= value < 1 << 31 else "long"])
        nothing = getattr(getattr(gateway.scala, "None$"), "MODULE$")
        return expressions.Cast(found, kinds[kind], nothing, expressions.EvalMode.LEGACY())

    kind = str(shift.attribute.fields["dataType"])
    least, most = WHOLE_RANGES[kind]
    if shift.by < 0:
        fails = expressions.LessThan(shift.attribute.jvm, literal(least - shift.by, kind))
    else:
        fails = expressions.GreaterThan(shift.attribute.jvm, literal(most - shift.by, kind))
    wanted = _kind_of(nearest.bound)
    backward = nearest.direction is Direction.BACKWARD
    anything = literal(WHOLE_RANGES[wanted][1 if backward else 0], wanted)
    bound = nearest.bound.jvm
    if not nearest.exact:
        # Never at the end of its type: that is among what fails.
        step = expressions.Subtract if backward else expressions.Add
        bound = step(bound, literal(1, wanted))
    guarded = read_expression(nearest.bound.reading, expressions.If(fails, anything, bound))
    return dataclasses.replace(nearest, bound=guarded, exact=True)


def _kind_of(bound: Node) -> str:
    return str(bound.data_type.jsonValue())
