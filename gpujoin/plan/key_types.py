"""Finds the type in which the two sides of a join key are compared."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import KeyTypeError
from gpujoin.model.sqltext import show_type
from gpujoin.model.types import decimal_of, is_bytes, is_float, is_text, plain

_UNIT_ORDER = {"s": 0, "ms": 1, "us": 2, "ns": 3}
_WIDEST_DECIMAL = 76


def key_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Find the type to which both sides of a key are converted, without loss, before they are compared.

    Integers meet in the wider integer, integers and decimals in a decimal wide enough for both (up to 76 digits),
    integers and floats in double as in ANSI mode, timestamps in the finer unit. Text meets text and bytes meet bytes,
    whatever their layout. A null column meets anything. Structs meet field by field, by position. Dictionary and
    run-end encoded columns count as their values; the result has no such layouts, nor views, at any depth. Raises
    ``KeyTypeError``, naming both types, if they cannot be compared, or cannot be joined on at all.
    """
    common = _common(plain(left), plain(right))
    if common is None:
        raise KeyTypeError(_refusal(left, right))
    return common


def _common(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    left, right = plain(left), plain(right)
    if pat.is_null(left):
        return _common(right, right) if not pat.is_null(right) else left
    if pat.is_null(right):
        return _common(left, left)
    for family in (_bool, _number, _decimal, _date, _timestamp, _text, _bytes, _struct):
        common = family(left, right)
        if common is not None:
            return common
    return None


def _bool(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    return left if pat.is_boolean(left) and pat.is_boolean(right) else None


def _number(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    whole = pat.is_integer(left), pat.is_integer(right)
    real = is_float(left), is_float(right)
    if not all(a or b for a, b in zip(whole, real, strict=True)):
        return None
    if left == right:
        return left
    if any(real):
        return pa.float64()
    return _integers(left, right)


def _integers(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pat.is_signed_integer(left) == pat.is_signed_integer(right):
        return left if left.bit_width >= right.bit_width else right
    signed, unsigned = (left, right) if pat.is_signed_integer(left) else (right, left)
    if unsigned.bit_width == 64:
        return pa.decimal128(20, 0)
    wider = {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}[unsigned.bit_width]
    return wider if wider.bit_width > signed.bit_width else signed


_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}


def _digits(dtype: pa.DataType) -> tuple[int, int] | None:
    """Digits before and after the decimal point."""
    if pat.is_decimal(dtype):
        return dtype.precision - dtype.scale, dtype.scale
    if pat.is_integer(dtype):
        return _INTEGER_DIGITS[dtype.bit_width], 0
    return None


def _decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    left_digits, right_digits = _digits(left), _digits(right)
    if left_digits is None or right_digits is None:
        return None
    whole, scale = max(left_digits[0], right_digits[0]), max(left_digits[1], right_digits[1])
    if whole + scale > _WIDEST_DECIMAL:
        return None
    return decimal_of(whole + scale, scale)


def _date(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    return pa.date32() if pat.is_date(left) and pat.is_date(right) else None


def _timestamp(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if not (pat.is_timestamp(left) and pat.is_timestamp(right)) or (left.tz is None) != (right.tz is None):
        return None
    finer = max(left.unit, right.unit, key=_UNIT_ORDER.__getitem__)
    return pa.timestamp(finer, left.tz)


def _text(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if not (is_text(left) and is_text(right)):
        return None
    return left if left == right and not pat.is_string_view(left) else pa.large_string()


def _bytes(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if not (is_bytes(left) and is_bytes(right)):
        return None
    return left if left == right and not pat.is_binary_view(left) else pa.large_binary()


def _struct(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if not (pat.is_struct(left) and pat.is_struct(right)) or left.num_fields != right.num_fields:
        return None
    fields = []
    for left_field, right_field in zip(left, right, strict=True):
        common = _common(left_field.type, right_field.type)
        if common is None:
            return None
        fields.append(pa.field(left_field.name, common, left_field.nullable or right_field.nullable))
    return pa.struct(fields)


def _refusal(left: pa.DataType, right: pa.DataType) -> str:
    for side in (left, right):
        if _common(side, side) is None:
            return (
                f"a key of type {show_type(side)} cannot be joined on; join on a boolean, number, date, timestamp, "
                f"string, binary or struct of these"
            )
    left_plain, right_plain = plain(left), plain(right)
    shown_left, shown_right = show_type(left), show_type(right)
    if pat.is_timestamp(left_plain) and pat.is_timestamp(right_plain):
        return f"keys of type {shown_left} and {shown_right}: one has a time zone, the other has none; cast one of them"
    return f"keys of type {shown_left} and {shown_right} cannot be compared; cast one side to the type of the other"
