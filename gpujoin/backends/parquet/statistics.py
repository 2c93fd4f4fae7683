"""Decodes the statistics of a column in a row group, and drops those that cannot be trusted.

Statistics are not used if they contradict themselves or the column: if there are more nulls than rows, if the least
value exceeds the greatest, if a column of nulls has bounds, or if a number has another width than its type. Those of
floats are never used, since they do not include NaN, which is Spark's greatest number.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Context, Decimal
from typing import Any

import pyarrow.types as pat

from gpujoin.backends.parquet.metadata import Leaf, Physical
from gpujoin.backends.parquet.pruning import Statistics

_OLD_MAX, _OLD_MIN, _NULLS, _MAX, _MIN = 1, 2, 3, 5, 6
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
    nulls = fields.get(_NULLS)
    if nulls is not None and not 0 <= nulls <= rows:
        return None
    low, high = fields.get(_MIN), fields.get(_MAX)
    if not leaf.ordered or low is None or high is None:
        signed = leaf.physical in _WHOLE and not _unsigned(leaf)
        low, high = (fields.get(_OLD_MIN), fields.get(_OLD_MAX)) if signed else (None, None)
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
