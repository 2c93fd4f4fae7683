"""Decodes the statistics of a column in a row group, and drops untrustworthy ones.

Statistics are not used if they contradict themselves or the column: if there are more nulls than rows, if the least
value exceeds the greatest, if a column of nulls has bounds, or if a number has another width than its type. Those of
floats are never used, since they do not include NaN, which is Spark's greatest number.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Context, Decimal
from typing import Any, Literal

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.parquet.metadata import Leaf, Physical, is_narrow
from gpujoin.backends.parquet.pruning import Statistics

_OLD_MAX, _OLD_MIN, NULLS, _MAX, _MIN = 1, 2, 3, 5, 6
"""Fields of ``Statistics``. The old bounds were compared as signed numbers, for every type."""
_WHOLE = frozenset({Physical.BOOLEAN, Physical.INT32, Physical.INT64})
"""Types whose values are whole numbers, least byte first."""
_EXACT = Context(prec=100)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY = _EPOCH.toordinal()


def decoded(leaf: Leaf, fields: Mapping[int, Any], rows: int) -> Statistics | None:
    """Decode the fields, by number, of the format's ``Statistics`` of a row group with ``rows`` values and nulls.

    Bounds are Python values of the column's type, text as bytes. ``None`` if no statistics can be trusted.
    """
    nulls = fields.get(NULLS)
    if nulls is not None and not 0 <= nulls <= rows:
        return None
    low, high = _raw_bounds(leaf, fields)
    if low is None or high is None:
        return Statistics(None, None, nulls=nulls, rows=rows)
    if nulls == rows:
        return None
    try:
        least, greatest = _value(leaf, low), _value(leaf, high)
    except (ValueError, OverflowError):  # Python's dates end with the year 9999
        return Statistics(None, None, nulls=nulls, rows=rows)
    if least is None or greatest is None:
        return Statistics(None, None, nulls=nulls, rows=rows)
    return None if least > greatest else Statistics(least, greatest, nulls=nulls, rows=rows)


def _raw_bounds(leaf: Leaf, fields: Mapping[int, Any]) -> tuple[bytes | None, bytes | None]:
    low, high = fields.get(_MIN), fields.get(_MAX)
    if leaf.ordered and low is not None and high is not None:
        return low, high
    signed = leaf.physical in _WHOLE and not _unsigned(leaf)
    return (fields.get(_OLD_MIN), fields.get(_OLD_MAX)) if signed else (None, None)


def limits(dtype: pa.DataType | None) -> range | None:
    """Give the range of numbers of a column's logical type; ``None``: all that its physical type stores.

    A decimal's are those without its scale: ``decimal(4, 2)`` has -9999 to 9999.
    """
    if dtype is None:
        return None
    if pat.is_decimal(dtype):
        return range(-(10**dtype.precision) + 1, 10**dtype.precision)
    if not is_narrow(dtype):
        return None
    low = -(1 << dtype.bit_width - 1) if pat.is_signed_integer(dtype) else 0
    return range(low, low + (1 << dtype.bit_width))


def stored_bounds(leaf: Leaf, fields: Mapping[int, Any]) -> tuple[int, int] | None:
    """Give the least and the greatest stored number of a column with :func:`limits`; ``None`` if unknown.

    They are so whether the writer compared signed or unsigned numbers: if one is negative and one is not, the least of
    one order is the greater of the other, and both are dropped.
    """
    low, high = _raw_bounds(leaf, fields)
    if not low or not high or any(leaf.width not in (None, len(raw)) for raw in (low, high)):
        return None
    order: Literal["little", "big"] = "little" if leaf.physical in _WHOLE else "big"
    least, greatest = (int.from_bytes(raw, order, signed=True) for raw in (low, high))
    return (least, greatest) if least <= greatest else None


def _unsigned(leaf: Leaf) -> bool:
    return leaf.arrow is None or pat.is_unsigned_integer(leaf.arrow)


def _value(leaf: Leaf, raw: bytes) -> Any:
    """Decode a bound to a Python value; ``None`` for types whose bounds are not used.

    Raises ``ValueError`` or ``OverflowError`` if it is no value of the type, or has no value in Python.
    """
    dtype = leaf.arrow
    if leaf.width is not None and len(raw) != leaf.width:
        raise ValueError(f"{len(raw)} bytes for a value of {leaf.width}")
    if dtype is None or _unsigned(leaf):
        return None
    if pat.is_string(dtype) or pat.is_binary(dtype):
        return raw
    if pat.is_decimal(dtype):
        whole = int.from_bytes(raw, "little" if leaf.physical in _WHOLE else "big", signed=True)
        if not raw or abs(whole) >= 10**dtype.precision:
            raise ValueError(f"{whole} has more than {dtype.precision} digits")
        return Decimal(whole).scaleb(-dtype.scale, _EXACT)
    if leaf.physical not in _WHOLE:
        return None
    whole = int.from_bytes(raw, "little", signed=True)
    if pat.is_boolean(dtype):
        return bool(whole)
    if pat.is_date32(dtype):
        return dt.date.fromordinal(_EPOCH_DAY + whole)
    if pat.is_timestamp(dtype) and dtype.unit in ("ms", "us"):
        moment = _EPOCH + dt.timedelta(microseconds=whole * (1000 if dtype.unit == "ms" else 1))
        return moment.replace(tzinfo=None) if dtype.tz is None else moment
    if not pat.is_signed_integer(dtype):
        return None
    edge = 1 << (dtype.bit_width - 1)
    if not -edge <= whole < edge:
        raise ValueError(f"{whole} does not fit {dtype}")
    return whole
