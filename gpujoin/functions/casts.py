"""Casts: which Spark allows at all, and which succeed whatever the value."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.comparison import is_alike
from gpujoin.model.expressions import EvalMode
from gpujoin.model.types import is_bytes, is_float, is_numeric, is_text, is_whole


def can_cast(source: pa.DataType, target: pa.DataType, mode: EvalMode) -> bool:
    """Whether Spark accepts a cast between two types, as expressions see them. Single values may still fail."""
    if pat.is_null(source) or is_alike(source, target):
        return True
    if pat.is_struct(source) and pat.is_struct(target):
        return source.num_fields == target.num_fields and all(
            can_cast(source_field.type, target_field.type, mode)
            for source_field, target_field in zip(source, target, strict=True)
        )
    legacy = mode is EvalMode.LEGACY
    if is_text(target):
        return True
    if is_text(source):
        return not pat.is_nested(target)
    if is_bytes(target):
        return is_bytes(source) or (pat.is_signed_integer(source))
    if is_numeric(target):
        return is_numeric(source) or pat.is_boolean(source) or _zoned(source) or (legacy and _instant(source))
    if pat.is_boolean(target):
        return is_numeric(source) or (legacy and _instant(source))
    if pat.is_date(target):
        return pat.is_date(source) or pat.is_timestamp(source)
    if pat.is_timestamp(target):
        if pat.is_timestamp(source) or pat.is_date(source):
            return True
        return _zoned(target) and (is_numeric(source) or (legacy and pat.is_boolean(source)))
    return False


def _zoned(dtype: pa.DataType) -> bool:
    return pat.is_timestamp(dtype) and dtype.tz is not None


def _instant(dtype: pa.DataType) -> bool:
    return pat.is_date(dtype) or _zoned(dtype)


def is_lossless(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast succeeds for every value, so that it never fails in any mode.

    Dates and timestamps beyond the year 290,000, where a change of unit overflows, do not count.
    """
    if pat.is_null(source) or is_text(target) or is_alike(source, target):
        return True
    if pat.is_duration(source) or pat.is_duration(target):
        return True
    if is_whole(source) and is_whole(target):
        return bool(source.bit_width <= target.bit_width)
    if pat.is_decimal(target):
        kept = not pat.is_decimal(source) or source.scale <= target.scale
        digits = _whole_digits(source)
        return kept and digits is not None and target.precision - target.scale >= digits
    if is_float(target):
        return is_numeric(source) or _zoned(source)
    if _zoned(source) and pat.is_int64(target):
        return True
    return all(pat.is_date(t) or pat.is_timestamp(t) for t in (source, target))


def _whole_digits(dtype: pa.DataType) -> int | None:
    """Most digits before the point of an integer or decimal."""
    if is_whole(dtype):
        return _INTEGER_DIGITS[dtype.bit_width]
    return int(dtype.precision - dtype.scale) if pat.is_decimal(dtype) else None


_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
