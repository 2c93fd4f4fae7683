"""Dates and timestamps: parts, shifts, and conversion between them, in the proleptic Gregorian calendar."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.expressions.implementation import Run, fail, of_arrays
from gpujoin.backends.cpu.expressions.vector import Array, Vector, mask_and
from gpujoin.functions.dates import interval_micros
from gpujoin.functions.signatures import type_of
from gpujoin.model.expressions import Call, Function

_UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400
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


def _days_in(days: Array) -> Array:
    return days.astype("datetime64[D]")


def _year(days: Array) -> Array:
    return _days_in(days).astype("datetime64[Y]").astype(np.int64) + 1970


def _month(days: Array) -> Array:
    return _days_in(days).astype("datetime64[M]").astype(np.int64) % 12 + 1


def _day(days: Array) -> Array:
    return (_days_in(days) - _days_in(days).astype("datetime64[M]")).astype(np.int64) + 1


def _day_of_year(days: Array) -> Array:
    return (_days_in(days) - _days_in(days).astype("datetime64[Y]")).astype(np.int64) + 1


def _last_day(days: Array) -> Array:
    next_month = _days_in(days).astype("datetime64[M]") + 1
    return next_month.astype("datetime64[D]").astype(np.int64) - 1


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
    Function.YEAR: of_arrays(_year),
    Function.QUARTER: of_arrays(lambda days: (_month(days) - 1) // 3 + 1),
    Function.MONTH: of_arrays(_month),
    Function.DAY: of_arrays(_day),
    Function.DAY_OF_WEEK: of_arrays(lambda days: (days.astype(np.int64) + 4) % 7 + 1),
    Function.WEEKDAY: of_arrays(lambda days: (days.astype(np.int64) + 3) % 7),
    Function.DAY_OF_YEAR: of_arrays(_day_of_year),
    Function.LAST_DAY: of_arrays(_last_day),
    Function.HOUR: _time_part(3600, 24),
    Function.MINUTE: _time_part(60, 60),
    Function.SECOND: _time_part(1, 60),
    Function.DATE_ADD: of_arrays(lambda days, shift: days + shift.astype(np.int32)),
    Function.DATE_SUB: of_arrays(lambda days, shift: days - shift.astype(np.int32)),
    Function.DATE_DIFF: of_arrays(lambda end, start: end - start),
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
