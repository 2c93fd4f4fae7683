"""Spark's common types: what two operands of different types are converted to before an operation.

The rules are those of Spark's two type coercion rule sets, with ANSI mode and without; ``None`` means that there is
no common type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.model.expressions import EvalMode
from gpujoin.model.types import MAX_PRECISION, is_bytes, is_float, is_numeric, is_text, is_whole

DECIMAL_OF_INTEGER = {8: (3, 0), 16: (5, 0), 32: (10, 0), 64: (20, 0)}
"""Precision and scale that hold every integer of a width."""

LEAST_SCALE = 6
"""Digits after the point that Spark keeps of the result of an operation on decimals, as far as they go."""
_NUMERIC_PRECEDENCE = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())

Widener = Callable[[pa.DataType, pa.DataType, EvalMode], pa.DataType | None]


def is_atomic(dtype: pa.DataType) -> bool:
    """Whether a type is neither nested nor the null type."""
    return not (pat.is_nested(dtype) or pat.is_null(dtype))


def decimal_for(dtype: pa.DataType) -> pa.DataType:
    """Find the decimal that an integer or decimal type becomes next to a decimal."""
    return dtype if pat.is_decimal(dtype) else pa.decimal128(*DECIMAL_OF_INTEGER[dtype.bit_width])


def bounded_decimal(precision: int, scale: int) -> pa.DataType:
    """Make a decimal type, cut to 38 digits by dropping digits after the point first."""
    if precision <= MAX_PRECISION:
        return pa.decimal128(precision, scale)
    return pa.decimal128(MAX_PRECISION, max(0, scale - (precision - MAX_PRECISION)))


def wider_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Find the decimal in which two decimals are compared: room for both, as far as 38 digits go."""
    scale = max(left.scale, right.scale)
    whole = max(left.precision - left.scale, right.precision - right.scale)
    return bounded_decimal(whole + scale, scale)


def adjusted_decimal(precision: int, scale: int) -> pa.DataType:
    """Fit the exact type of an arithmetic result into 38 digits, keeping at least 6 digits after the point."""
    if precision <= MAX_PRECISION:
        return pa.decimal128(precision, scale)
    digits = max(MAX_PRECISION - (precision - scale), min(scale, LEAST_SCALE))
    return pa.decimal128(MAX_PRECISION, digits)


def tightest(left: pa.DataType, right: pa.DataType, mode: EvalMode) -> pa.DataType | None:
    """Find the common type that loses nothing, decimals of different shape excepted."""
    if left == right or pat.is_null(right):
        return left
    if pat.is_null(left):
        return right
    if left in _NUMERIC_PRECEDENCE and right in _NUMERIC_PRECEDENCE:
        widest = max(left, right, key=_NUMERIC_PRECEDENCE.index)
        return pa.float64() if mode is EvalMode.ANSI and pat.is_float32(widest) else widest
    for whole, decimal in ((left, right), (right, left)):
        if is_whole(whole) and pat.is_decimal(decimal):
            digits = DECIMAL_OF_INTEGER[whole.bit_width][0]
            return decimal if decimal.precision - decimal.scale >= digits else None
    instants = _instants(left, right)
    return instants if instants is not None else _nested(left, right, mode, tightest)


def _instants(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Dates meet timestamps in the timestamp; timestamps meet in the one with a zone, in the finer unit."""
    if pat.is_date(left) and pat.is_timestamp(right):
        return right
    if pat.is_timestamp(left) and pat.is_date(right):
        return left
    if pat.is_timestamp(left) and pat.is_timestamp(right):
        unit = max(left.unit, right.unit, key=("s", "ms", "us", "ns").index)
        return pa.timestamp(unit, left.tz if left.tz is not None else right.tz)
    return None


def _nested(left: pa.DataType, right: pa.DataType, mode: EvalMode, widen: Widener) -> pa.DataType | None:
    """Widen structs, lists and maps part by part; a part may be null where one of either may be.

    Fields are paired by position, and their names may differ in case; those of the first type count.
    """
    if left.id != right.id or left.num_fields != right.num_fields or not pat.is_nested(left):
        return None
    fields = []
    for own, other in ((left.field(i), right.field(i)) for i in range(left.num_fields)):
        named = not pat.is_struct(left) or own.name.lower() == other.name.lower()
        common = widen(own.type, other.type, mode) if named else None
        if common is None:
            return None
        fields.append(pa.field(own.name, common, own.nullable or other.nullable))
    if pat.is_struct(left):
        return pa.struct(fields)
    if pat.is_map(left):
        return pa.map_(*_entry(fields[0]))
    return pa.list_(fields[0]) if pat.is_list(left) else None


def _entry(entries: pa.Field) -> tuple[pa.Field, pa.Field]:
    """The fields of a map's keys and values, of that of its entries."""
    key, value = entries.type
    return key.with_nullable(False), value


def _wider_number(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if not (is_numeric(left) and is_numeric(right) and (pat.is_decimal(left) or pat.is_decimal(right))):
        return None
    if is_float(left) or is_float(right):
        return pa.float64()
    return wider_decimal(decimal_for(left), decimal_for(right))


def string_promotion(text: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Type that text is cast to next to another type in ANSI mode: a 64-bit number, or the other type itself."""
    if is_whole(other):
        return pa.int64()
    if is_float(other) or pat.is_decimal(other):
        return pa.float64()
    if pat.is_null(other):
        return text
    return other if is_atomic(other) and not _is_interval(other) else None


def _is_interval(dtype: pa.DataType) -> bool:
    return pat.is_duration(dtype) or pat.is_interval(dtype)


def wider_without_text(left: pa.DataType, right: pa.DataType, mode: EvalMode) -> pa.DataType | None:
    """Find a common type that may lose precision, without turning anything into text (or, in ANSI mode, text)."""
    if mode is EvalMode.ANSI:
        return wider(left, right, mode)
    return tightest(left, right, mode) or _wider_number(left, right) or _nested(left, right, mode, wider_without_text)


def wider(left: pa.DataType, right: pa.DataType, mode: EvalMode) -> pa.DataType | None:
    """Find a common type that may lose precision; text meets other types in text, in ANSI mode in the other type."""
    common = tightest(left, right, mode) or _wider_number(left, right)
    if common is not None:
        return common
    if is_text(left) != is_text(right):
        text, other = (left, right) if is_text(left) else (right, left)
        if mode is EvalMode.ANSI:
            return string_promotion(text, other)
        return text if is_atomic(other) and not (is_bytes(other) or pat.is_boolean(other)) else None
    return _nested(left, right, mode, wider)


def wider_of(types: Sequence[pa.DataType], mode: EvalMode, widen: Widener = wider) -> pa.DataType | None:
    """Find the common type of several operands."""
    if mode is not EvalMode.ANSI:
        types = sorted(types, key=lambda t: not is_text(t))

    def step(so_far: pa.DataType | None, dtype: pa.DataType) -> pa.DataType | None:
        return None if so_far is None else widen(so_far, dtype, mode)

    return reduce(step, types, pa.null())


def compared(left: pa.DataType, right: pa.DataType, mode: EvalMode) -> pa.DataType | None:
    """Find the type in which a comparison operator compares two operands."""
    if is_text(left) != is_text(right) and is_atomic(left) and is_atomic(right):
        text, other = (left, right) if is_text(left) else (right, left)
        if mode is EvalMode.ANSI:
            return string_promotion(text, other)
        if pat.is_decimal(other):
            return pa.float64()
        return None if _is_interval(other) else other
    return tightest(left, right, mode) or _wider_number(left, right)
