"""Formats values as text, as Spark prints them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.backends.cpu.expressions.dates import local
from gpujoin.backends.cpu.expressions.vector import Array, Vector, per_distinct, to_arrow

_FIRST_DAY = -719_528
"""0000-01-01."""
_LAST_DAY = 2_932_896
"""9999-12-31."""


def to_text(vector: Vector, source: pa.DataType, *, plain: bool) -> Vector:
    """Print booleans, integers, decimals, dates or timestamps.

    ``source`` is their type, with the zone to print timestamps in; ``plain`` prints small decimals without an
    exponent.
    """
    values = np.asarray(vector.values)
    length = len(values)
    if pat.is_boolean(source):
        text = pc.if_else(pa.array(values), "true", "false")
    elif pat.is_decimal(source):
        text = _decimals(values, source.scale, plain=plain)
    elif pat.is_date(source):
        text = _dates(values)
    elif pat.is_timestamp(source):
        text = _timestamps(values, source)
    else:
        text = to_arrow(Vector(source, values), source, length).cast(pa.string())
    if vector.valid is not None:
        text = pc.if_else(pa.array(vector.valid), text, pa.scalar(None, text.type))
    return Vector(pa.string(), text, constant=vector.constant)


def _decimals(values: Array, scale: int, *, plain: bool) -> pa.Array:
    distinct, codes = np.unique(values, return_inverse=True)
    printed = pa.array([_decimal(int(v), scale, plain=plain) for v in distinct], pa.string())
    return printed.take(pa.array(codes.reshape(-1)))


def _decimal(unscaled: int, scale: int, *, plain: bool) -> str:
    """Print one decimal as Java does: with an exponent if more than five zeros would follow the point."""
    digits = str(abs(unscaled))
    sign = "-" if unscaled < 0 else ""
    exponent = len(digits) - 1 - scale
    if not plain and exponent < -6:
        fraction = "." + digits[1:] if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{fraction}E{exponent}"
    if scale == 0:
        return sign + digits
    digits = digits.rjust(scale + 1, "0")
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}"


def _dates(days: Array) -> pa.Array:
    usual = (days >= _FIRST_DAY) & (days <= _LAST_DAY)
    if usual.all():
        return pa.array(np.datetime_as_string(days.astype("datetime64[D]")).astype(object), pa.string())
    return per_distinct(pa.array(days, pa.int32()), _date, pa.string())


def _date(days: Any) -> str:
    """Print a date of any year: four digits at least, and a sign outside 0000 to 9999."""
    year = int(np.int64(days).astype("datetime64[D]").astype("datetime64[Y]").astype(np.int64)) + 1970
    month_day = np.datetime_as_string(np.int64(days).astype("datetime64[D]"))[-5:]
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    return f"{sign}{abs(year):04d}-{month_day}"


def _timestamps(values: Array, source: pa.DataType) -> pa.Array:
    shifted, per_second = local(values, source)
    seconds, rest = np.divmod(shifted, per_second)
    days, second_of_day = np.divmod(seconds, 86_400)
    micros = rest * (1_000_000 // per_second) if per_second <= 1_000_000 else rest // (per_second // 1_000_000)
    clock = np.datetime_as_string(second_of_day.astype("datetime64[s]"))
    times = pc.utf8_slice_codeunits(pa.array(clock.astype(object), pa.string()), 11)
    fraction = pc.utf8_lpad(pa.array(micros.astype(np.int64)).cast(pa.string()), 6, "0")
    tail = pc.utf8_rtrim(fraction, "0")
    point = pc.if_else(pc.equal(tail, ""), "", ".")
    return pc.binary_join_element_wise(
        pc.binary_join_element_wise(_dates(days), times, " "),
        pc.binary_join_element_wise(point, tail, ""),
        "",
    )
