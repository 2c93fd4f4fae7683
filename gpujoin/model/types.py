"""Questions about Arrow types that several rooms ask."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
import pyarrow.types as pat

MAX_PRECISION = 38
"""Most digits of a decimal in Spark."""
LONG_DIGITS = 18
"""Most digits of a decimal that Spark computes as a 64-bit integer."""
UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Units of Arrow's timestamps and durations."""
MICROS = UNITS_PER_SECOND["us"]
"""Microseconds in a second; they are the unit of Spark's timestamps."""


def plain(dtype: pa.DataType) -> pa.DataType:
    """Strip dictionary and run-end encoding and extension types, down to the type of the values."""
    while True:
        if pat.is_dictionary(dtype) or pat.is_run_end_encoded(dtype):
            dtype = dtype.value_type
        elif isinstance(dtype, pa.BaseExtensionType):
            dtype = dtype.storage_type
        else:
            return dtype


@lru_cache(maxsize=4096)
def logical(dtype: pa.DataType) -> pa.DataType:
    """Reduce a column's type to the one its values have in an expression, whatever their layout.

    Text becomes ``string``, bytes ``binary``, any date ``date32``, any decimal of up to 38 digits ``decimal128``;
    structs likewise, field by field. Other types are returned as :func:`plain` gives them.
    """
    dtype = plain(dtype)
    if is_text(dtype):
        return pa.string()
    if is_bytes(dtype):
        return pa.binary()
    if pat.is_date(dtype):
        return pa.date32()
    if pat.is_decimal(dtype):
        return decimal_of(dtype.precision, dtype.scale)
    if pat.is_struct(dtype):
        return pa.struct([f.with_type(logical(f.type)) for f in dtype])
    return dtype


def is_text(dtype: pa.DataType) -> bool:
    """Whether a type holds UTF-8 text, in any layout."""
    return pat.is_string(dtype) or pat.is_large_string(dtype) or pat.is_string_view(dtype)


def is_bytes(dtype: pa.DataType) -> bool:
    """Whether a type holds byte strings, in any layout."""
    return (
        pat.is_binary(dtype)
        or pat.is_large_binary(dtype)
        or pat.is_binary_view(dtype)
        or pat.is_fixed_size_binary(dtype)
    )


def is_list(dtype: pa.DataType) -> bool:
    """Whether values of a type are lists."""
    return bool(pat.is_list(dtype) or pat.is_large_list(dtype))


def is_float(dtype: pa.DataType) -> bool:
    """Whether a type is float or double."""
    return pat.is_float32(dtype) or pat.is_float64(dtype)


def is_whole(dtype: pa.DataType) -> bool:
    """Whether a type is one of Spark's integers: signed, 8 to 64 bits."""
    return pat.is_signed_integer(dtype)


def is_wide_decimal(dtype: pa.DataType) -> bool:
    """Whether a type is a decimal whose values may exceed 64 bits."""
    return pat.is_decimal(dtype) and dtype.precision > LONG_DIGITS


def is_numeric(dtype: pa.DataType) -> bool:
    """Whether a type is one of Spark's numbers."""
    return is_whole(dtype) or is_float(dtype) or pat.is_decimal(dtype)


def decimal_of(precision: int, scale: int) -> pa.DataType:
    """Make the decimal type of a precision: 128 bits wide up to 38 digits, else 256."""
    return pa.decimal128(precision, scale) if precision <= MAX_PRECISION else pa.decimal256(precision, scale)


def wide_offsets(dtype: pa.DataType) -> pa.DataType:
    """The same type with 64-bit offsets throughout, where Arrow has such a type; maps keep theirs."""
    if pat.is_string(dtype):
        return pa.large_string()
    if pat.is_binary(dtype):
        return pa.large_binary()
    if pat.is_list(dtype):
        return pa.large_list(_wide_field(dtype.value_field))
    if pat.is_large_list(dtype):
        return pa.large_list(_wide_field(dtype.value_field))
    if pat.is_fixed_size_list(dtype):
        return pa.list_(_wide_field(dtype.value_field), dtype.list_size)
    if pat.is_struct(dtype):
        return pa.struct([_wide_field(field) for field in dtype])
    return dtype


def _wide_field(field: pa.Field) -> pa.Field:
    return field.with_type(wide_offsets(field.type))
