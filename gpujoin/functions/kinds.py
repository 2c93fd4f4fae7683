"""Kinds of types: comparable ones, those written as bytes, and casts that never fail."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.signatures import Types
from gpujoin.model.expressions import EvalMode
from gpujoin.model.types import is_bytes, is_float, is_list, is_numeric, is_text, is_whole, logical


def comparable(dtype: pa.DataType) -> bool:
    """Whether comparisons of a type are supported."""
    if pat.is_struct(dtype):
        return all(comparable(f.type) for f in dtype)
    return (
        pat.is_boolean(dtype)
        or (is_numeric(dtype) and not pat.is_decimal256(dtype))
        or is_text(dtype)
        or is_bytes(dtype)
        or (pat.is_temporal(dtype) and not pat.is_interval(dtype))
    )


def is_written(dtype: pa.DataType, *, compared: bool = False) -> bool:
    """Whether values of a type, nested or not, are written as bytes; ``compared``: as bytes of the same order."""
    dtype = logical(dtype)
    if pat.is_map(dtype):
        return not compared and all(is_written(part) for part in (dtype.key_type, dtype.item_type))
    if pat.is_struct(dtype) or is_list(dtype):
        return all(is_written(dtype.field(i).type, compared=compared) for i in range(dtype.num_fields))
    return comparable(dtype) or pat.is_null(dtype)


def has_floats(dtype: pa.DataType) -> bool:
    """Whether there is a floating-point number anywhere in values of a type."""
    if pat.is_nested(dtype):
        return any(has_floats(dtype.field(i).type) for i in range(dtype.num_fields))
    return is_float(dtype)


def is_alike(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether types are equal, apart from names of fields and from nullability."""
    if not pat.is_nested(left) or not pat.is_nested(right):
        return left == right
    return (
        left.id == right.id
        and left.num_fields == right.num_fields
        and all(is_alike(left.field(i).type, right.field(i).type) for i in range(left.num_fields))
    )


def has_lists(dtype: pa.DataType) -> bool:
    """Whether there is a list anywhere in values of a type, which are compared by their bytes then."""
    return pat.is_nested(dtype) and (
        not pat.is_struct(dtype) or any(has_lists(dtype.field(i).type) for i in range(dtype.num_fields))
    )


def fits_as_bytes(types: Types) -> bool:
    """Whether values of types are compared by their bytes."""
    first = types[0]
    return has_lists(first) and is_written(first, compared=True) and all(is_alike(first, dtype) for dtype in types)


def alike(types: Types) -> bool:
    """Whether types differ only in ways that a comparison allows: digits of decimals, time unit, names of fields."""
    return all(_alike(types[0], t) for t in types)


def _alike(left: pa.DataType, right: pa.DataType) -> bool:
    if pat.is_decimal(left) and pat.is_decimal(right):
        return True
    if pat.is_timestamp(left) and pat.is_timestamp(right):
        return (left.tz is None) == (right.tz is None)
    if pat.is_struct(left) and pat.is_struct(right):
        return left.num_fields == right.num_fields and all(
            _alike(a.type, b.type) for a, b in zip(left, right, strict=True)
        )
    return left == right


# -- casts ------------------------------------------------------------------------------------------------------------


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
        keeps_scale = not pat.is_decimal(source) or source.scale <= target.scale
        digits = _whole_digits(source)
        return keeps_scale and digits is not None and target.precision - target.scale >= digits
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
