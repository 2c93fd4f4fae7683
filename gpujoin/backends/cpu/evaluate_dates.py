"""Dates and timestamps: parts, shifts, and conversion between them, in the proleptic Gregorian calendar."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.evaluate_vector import Array, Vector, both
from gpujoin.model.expressions import Call, Function

_UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400
_UTC_NAMES = frozenset(
    {"UTC", "GMT", "Z", "Etc/UTC", "Etc/GMT", "Etc/UCT", "UCT", "Zulu", "Etc/Zulu", "Etc/Universal"}
)
_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2}):(\d{2})\Z")


def zone_offset(dtype: pa.DataType) -> int | None:
    """Find the fixed offset from UTC, in seconds, of a timestamp type.

    Returns
    -------
    int or None
        0 without a zone; ``None`` for zones whose offset changes. Their rules differ between the JVM's data and
        this machine's, so nothing that needs them is computed here.
    """
    if dtype.tz is None or dtype.tz in _UTC_NAMES:
        return 0
    found = _OFFSET.match(dtype.tz)
    if found is None or int(found[2]) > 18 or int(found[3]) > 59:
        return None
    seconds = int(found[2]) * 3600 + int(found[3]) * 60
    return -seconds if found[1] == "-" else seconds


def local(values: Array, dtype: pa.DataType) -> tuple[Array, int]:
    """Shift timestamps to local time; also give the units per second."""
    per_second = _UNITS_PER_SECOND[dtype.unit]
    offset = zone_offset(dtype)
    assert offset is not None, dtype
    return (values + offset * per_second if offset else values), per_second


def date_part(node: Call, vector: Vector) -> Vector:
    """Compute a part of a date as int32."""
    return Vector(pa.int32(), _part(node.function, vector.values).astype(np.int32), vector.valid)


def _part(function: Function, days: npt.NDArray[np.int32]) -> Array:
    if function is Function.DAY_OF_WEEK:
        return np.asarray((days.astype(np.int64) + 4) % 7 + 1)
    dates = days.astype("datetime64[D]")
    if function is Function.YEAR:
        return dates.astype("datetime64[Y]").astype(np.int64) + 1970
    if function is Function.DAY_OF_YEAR:
        return (dates - dates.astype("datetime64[Y]")).astype(np.int64) + 1
    months = dates.astype("datetime64[M]")
    if function is Function.DAY:
        return (dates - months).astype(np.int64) + 1
    month = months.astype(np.int64) % 12
    return month // 3 + 1 if function is Function.QUARTER else month + 1


_SECONDS_IN = {Function.HOUR: (3600, 24), Function.MINUTE: (60, 60), Function.SECOND: (1, 60)}


def time_part(node: Call, vector: Vector) -> Vector:
    """Compute hour, minute or second of a timestamp as int32, in the zone of the argument's type."""
    dtype = node.arguments[0].type
    assert dtype is not None
    values, per_second = local(vector.values, dtype)
    seconds, modulus = _SECONDS_IN[node.function]
    part = values // (per_second * seconds) % modulus
    return Vector(pa.int32(), part.astype(np.int32), vector.valid)


def shift(node: Call, date: Vector, days: Vector) -> Vector:
    """Compute ``date_add`` or ``date_sub``; day numbers wrap at 32 bits, as in Java."""
    step = days.values.astype(np.int32)
    with np.errstate(all="ignore"):
        values = date.values + step if node.function is Function.DATE_ADD else date.values - step
    return Vector(pa.date32(), values, both(date.mask(), days.mask()))


def difference(end: Vector, start: Vector) -> Vector:
    """Count the days from ``start`` to ``end``."""
    with np.errstate(all="ignore"):
        return Vector(pa.int32(), end.values - start.values, both(end.mask(), start.mask()))


def to_date(vector: Vector, source: pa.DataType) -> Vector:
    """Take the local date of timestamps."""
    values, per_second = local(vector.values, source)
    return Vector(pa.date32(), (values // (per_second * _DAY)).astype(np.int32), vector.valid)


def to_timestamp(
    vector: Vector, source: pa.DataType, target: pa.DataType
) -> tuple[Vector, npt.NDArray[np.bool_]]:
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
    """Tell whether converting between two types depends on a zone."""
    if pat.is_timestamp(source) and pat.is_timestamp(target):
        return (source.tz is None) != (target.tz is None)
    return True
