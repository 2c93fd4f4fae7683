"""How Spark compares two values, over the cells of `gpujoin.testing`."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import ConditionError
from gpujoin.model.types import is_bytes, is_text, plain
from gpujoin.testing import Cell

_UNITS = ("s", "ms", "us", "ns")


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Type in which two values are compared.

    Raises
    ------
    ConditionError
        If there is none.
    """
    left, right = plain(left), plain(right)
    if left.equals(right) or pat.is_null(right):
        return left
    if pat.is_null(left):
        return right
    both: Callable[[Callable[[pa.DataType], bool]], bool] = lambda test: test(left) and test(right)  # noqa: E731
    if both(_is_number):
        return _common_number(left, right)
    if both(is_text):
        return pa.large_string()
    if both(is_bytes):
        return pa.large_binary()
    if both(pat.is_date):
        return pa.date32()
    if both(pat.is_timestamp):
        return pa.timestamp(max(left.unit, right.unit, key=_UNITS.index), left.tz or right.tz)
    if both(pat.is_struct) and left.num_fields == right.num_fields:
        pairs = zip(left, right, strict=True)
        return pa.struct([pa.field(a.name, common_type(a.type, b.type)) for a, b in pairs])
    if pat.is_date(left) and pat.is_timestamp(right):
        return right
    if pat.is_timestamp(left) and pat.is_date(right):
        return left
    raise ConditionError(f"values of type {left} and {right} cannot be compared")


def _is_number(dtype: pa.DataType) -> bool:
    return pat.is_integer(dtype) or pat.is_floating(dtype) or pat.is_decimal(dtype)


def _common_number(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pat.is_floating(left) or pat.is_floating(right):
        return pa.float64()
    if pat.is_integer(left) and pat.is_integer(right):
        return pa.int64() if max(left.bit_width, right.bit_width) == 64 else pa.int32()
    # Python compares decimals of every scale, and with integers, exactly: any wide type will do.
    return pa.decimal256(76, max(_scale(left), _scale(right)))


def _scale(dtype: pa.DataType) -> int:
    return dtype.scale if pat.is_decimal(dtype) else 0


def aligner(source: pa.DataType, target: pa.DataType) -> Callable[[Cell], Cell]:
    """Give the function that brings a cell, unchanged in meaning, from its type to a common type."""
    source = plain(source)
    if source.equals(target) or pat.is_null(source):
        return lambda value: value
    if pat.is_struct(target):
        inner = [aligner(a.type, b.type) for a, b in zip(source, target, strict=True)]
        return lambda value: None if value is None else tuple(f(v) for f, v in zip(inner, value, strict=True))
    if pat.is_integer(target) and pat.is_integer(source):
        return lambda value: value
    if pat.is_decimal(target) and (pat.is_integer(source) or pat.is_decimal(source)):
        return lambda value: None if value is None else Decimal(value)
    if is_bytes(target) or is_text(target):
        return lambda value: value
    if pat.is_floating(target):
        return lambda value: None if value is None else float(value)
    assert pat.is_timestamp(target), f"no cell of type {source} is one of type {target}"
    first, second = _UNITS.index(source.unit) if pat.is_timestamp(source) else None, _UNITS.index(target.unit)
    factor = 86_400 * 1000**second if first is None else 1000 ** (second - first)
    return lambda value: None if value is None else value * factor
