"""Casts by Spark's rules. The node's mode decides if malformed and overflowing values wrap, become null, or raise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.errors import UnsupportedValueError
from gpujoin.functions import dates, decimals, parse, quotients, words
from gpujoin.functions import values as v
from gpujoin.functions.dates import local
from gpujoin.functions.device import Active, Operands, is_fixed
from gpujoin.functions.device_decimals import dropped, fitted, scaled
from gpujoin.functions.implementation import null_or_raise
from gpujoin.functions.kinds import is_alike, is_lossless
from gpujoin.functions.libraries import pl
from gpujoin.functions.lowered import (
    Lowered,
    NotLowered,
    bounds_of,
    magnitude,
    polars_type,
    rescaled,
    same_kind,
    type_bounds,
    within,
)
from gpujoin.functions.rounding import MOST_DIGITS, round_double
from gpujoin.functions.signatures import type_of
from gpujoin.functions.timetexts import cast_texts
from gpujoin.functions.utf8 import check_utf8
from gpujoin.functions.values import Value
from gpujoin.functions.vector import (
    Array,
    Mask,
    Vector,
    as_numpy_bool,
    from_arrow,
    mask_and,
    mask_and_not,
    nulls,
    numpy_type,
    per_distinct,
    to_arrow,
)
from gpujoin.functions.words import of_words, words_of
from gpujoin.model.expressions import Cast, ColumnRef, EvalMode, Literal
from gpujoin.model.layouts import in_type
from gpujoin.model.types import LONG_DIGITS, MICROS, is_bytes, is_float, is_text, is_whole, logical

_DOUBLE_DIGITS = 15


def can_cast(node: Cast) -> bool:
    """Whether a cast is computed exactly as in Spark, for all values."""
    assert node.child.type is not None
    return _supported(node, logical(node.child.type), logical(node.to))


def _supported(node: Cast, source: pa.DataType, target: pa.DataType) -> bool:
    if pat.is_null(source) or is_alike(source, target):
        return True
    if pat.is_duration(source) or pat.is_duration(target):
        return {source, target} == {pa.int64(), pa.duration("us")}
    if pat.is_struct(source) and pat.is_struct(target):
        return source.num_fields == target.num_fields and all(
            _supported(node, a.type, b.type) for a, b in zip(source, target, strict=True)
        )
    if is_text(source):
        return _from_text_supported(node, target)
    if is_text(target):
        zoned = pat.is_timestamp(source) and dates.zone_offset(source) is not None
        return _simple(source) and not is_float(source) and (not pat.is_timestamp(source) or zoned)
    if pat.is_timestamp(source) or pat.is_timestamp(target):
        return _instants_supported(source, target)
    if pat.is_date(source) or pat.is_date(target):
        return False
    if pat.is_decimal(target):
        return target.precision <= MOST_DIGITS if is_float(source) else _simple(source)
    if pat.is_decimal(source):
        return not pat.is_float32(target) and _simple(target) and _rounding_known(node, source, target)
    return _number_or_bool(source) and _number_or_bool(target)


def _rounding_known(node: Cast, source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast of a decimal to an integer is known to be that of Spark.

    A checked cast to less than 64 bits goes by the nearest double if Spark holds the value as a ``BigDecimal``. That
    is known of a column; the outcome is the same for decimals of few digits, and for whole ones.
    """
    if not pat.is_integer(target) or target.bit_width == 64 or node.mode is EvalMode.LEGACY:
        return True
    return source.precision <= _DOUBLE_DIGITS or source.scale == 0 or isinstance(node.child, ColumnRef)


def _number_or_bool(dtype: pa.DataType) -> bool:
    return pat.is_boolean(dtype) or pat.is_integer(dtype) or pat.is_floating(dtype)


def _simple(dtype: pa.DataType) -> bool:
    return _number_or_bool(dtype) or pat.is_decimal128(dtype) or pat.is_date(dtype) or pat.is_timestamp(dtype)


def _from_text_supported(node: Cast, target: pa.DataType) -> bool:
    if pat.is_timestamp(target):
        if dates.zone_offset(target) is None or target.unit != "us":
            return False
        return not isinstance(node.child, Literal) or node.child.value is None or _is_time(node.child.value, target)
    return is_bytes(target) or (_simple(target) and not pat.is_float32(target) and not pat.is_float16(target))


def _is_time(text: str, target: pa.DataType) -> bool:
    try:
        return parse.timestamp(text, zoned=target.tz is not None) is not None
    except UnsupportedValueError:
        return False


def _instants_supported(source: pa.DataType, target: pa.DataType) -> bool:
    has_offsets = all(not pat.is_timestamp(t) or dates.zone_offset(t) is not None for t in (source, target))
    if all(pat.is_timestamp(t) or pat.is_date(t) for t in (source, target)):
        return has_offsets or not dates.needs_zone(source, target)
    number = target if pat.is_timestamp(source) else source
    instant = source if pat.is_timestamp(source) else target
    if instant.tz is None or instant.unit != "us":
        return False
    return is_whole(number) or (pat.is_float64(target) or pat.is_boolean(target))


def cast(node: Cast, vector: Vector) -> Vector:
    """Convert a column to the type of a cast.

    Raises ``ExpressionEvaluationError`` in ANSI mode, if a value is malformed or does not fit; ``InvalidTextError``
    if text that is to be parsed is no UTF-8.
    """
    assert node.child.type is not None
    source, target = logical(node.child.type), logical(node.to)
    node = dataclasses.replace(node, to=target, type=target)
    with np.errstate(all="ignore"):
        return _cast(node, vector, source, target)


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One conversion of values, as a cast or a part of one."""

    node: Cast
    vector: Vector
    source: pa.DataType
    target: pa.DataType


def _cast(node: Cast, vector: Vector, source: pa.DataType, target: pa.DataType) -> Vector:
    if source == target:
        return vector
    if pat.is_null(source):
        return nulls(target)
    if is_alike(source, target):
        return Vector(target, in_type(vector.values, target))
    if pat.is_struct(target):
        return _cast_struct(node, vector, source, target)
    if is_text(source) and not is_bytes(target):
        check_utf8(vector.values, node)
    for reads, writes, convert in _CONVERSIONS:
        if reads(source) and writes(target):
            return convert(_Step(node, vector, source, target))
    raise NotImplementedError(f"cast from {source} to {target}")


def _cast_struct(node: Cast, vector: Vector, source: pa.DataType, target: pa.DataType) -> Vector:
    columns = []
    for i, (source_field, target_field) in enumerate(zip(source, target, strict=True)):
        child = from_arrow(pc.struct_field(vector.values, [i]))
        inner = dataclasses.replace(node, to=target_field.type, type=target_field.type)
        converted = _cast(inner, child, source_field.type, target_field.type)
        columns.append(to_arrow(converted, target_field.type, len(vector.values)))
    valid = vector.mask()
    mask = None if valid is None else pa.array(~valid)
    return Vector(target, pa.StructArray.from_arrays(columns, fields=list(target), mask=mask))


def _relabelled(step: _Step) -> Vector:
    """Microseconds as an interval, and back."""
    return Vector(step.target, step.vector.values, step.vector.valid)


# -- from text ---------------------------------------------------------------------------------------------------


def _parsed(node: Cast, vector: Vector, parser: Callable[[str], Any], dtype: pa.DataType) -> Vector:
    """Parse distinct texts; a text for which the parser returns ``None`` is malformed."""
    parsed = from_arrow(per_distinct(vector.values, parser, dtype))
    present = vector.mask()
    well_formed = parsed.mask()
    if well_formed is None:
        return parsed
    valid = null_or_raise(node, ~well_formed, present, f"a text is not a valid {node.to}")
    if valid is None:
        return parsed.with_valid(None)
    return parsed.with_valid(valid & well_formed)


def _text_to_whole(step: _Step) -> Vector:
    legacy = step.node.mode is EvalMode.LEGACY
    return _parsed(
        step.node, step.vector, lambda t: parse.whole(t, step.target.bit_width, fraction=legacy), step.target
    )


def _text_to_double(step: _Step) -> Vector:
    return _parsed(step.node, step.vector, parse.double, step.target)


def _text_to_decimal(step: _Step) -> Vector:
    encoded = step.vector.values.dictionary_encode()
    unscaled = [parse.decimal(t, step.target.precision, step.target.scale) for t in encoded.dictionary.to_pylist()]
    wide = np.array([0 if u is None else u for u in unscaled] or [0], object)
    well_formed = np.array([u is not None for u in unscaled] or [False], np.bool_)
    codes = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    present = step.vector.mask()
    valid = null_or_raise(step.node, ~well_formed[codes], present, f"a text is not a valid {step.node.to}")
    return Vector(step.target, decimals.narrow(wide[codes]), valid)


def _text_to_date(step: _Step) -> Vector:
    days = _parsed(step.node, step.vector, parse.date, pa.int32())
    return Vector(step.target, days.values, days.valid)


def _text_to_timestamp(step: _Step) -> Vector:
    ahead = (dates.zone_offset(step.target) or 0) * MICROS
    zoned = step.target.tz is not None
    return cast_texts(step.node, step.vector.values, zoned=zoned, to_instants=lambda local: local - ahead)


def _text_to_bool(step: _Step) -> Vector:
    words = pc.ascii_lower(pc.ascii_trim(step.vector.values, parse.BLANK))
    true = as_numpy_bool(pc.is_in(words, pa.array(parse.TRUE_WORDS, words.type)))
    false = as_numpy_bool(pc.is_in(words, pa.array(parse.FALSE_WORDS, words.type)))
    valid = null_or_raise(step.node, ~(true | false), step.vector.mask(), "a text is neither true nor false")
    return Vector(step.target, true, valid)


def _text_to_bytes(step: _Step) -> Vector:
    wide = pat.is_large_string(step.vector.values.type)
    return Vector(step.target, step.vector.values.cast(pa.large_binary() if wide else pa.binary()))


# -- numbers -----------------------------------------------------------------------------------------------------


def _to_text(step: _Step) -> Vector:
    return to_text(step.vector, step.source, plain=step.node.mode is not EvalMode.LEGACY)


def _to_bool(step: _Step) -> Vector:
    return Vector(step.target, np.asarray(step.vector.values != 0, np.bool_), step.vector.valid)


def _to_float(step: _Step) -> Vector:
    if pat.is_decimal(step.source):
        return Vector(step.target, decimals.to_double(step.vector), step.vector.valid)
    return Vector(step.target, step.vector.values.astype(numpy_type(step.target)), step.vector.valid)


def _to_decimal(step: _Step) -> Vector:
    if pat.is_decimal(step.source):
        return decimals.to_decimal(step.node, step.vector)
    if is_float(step.source):
        return _float_to_decimal(step)
    return decimals.from_whole(step.node, step.vector.values, step.vector.valid)


def _float_to_decimal(step: _Step) -> Vector:
    """Round the decimals that floats are printed as. NaN and the infinities become null, without an error."""
    printed = round_double(step.vector.values.astype(np.float64), step.target.scale)
    finite = np.isfinite(printed)
    fits = finite & (np.abs(printed) < 10.0 ** (step.target.precision - step.target.scale))
    # Of at most 15 digits, so that the product is nearer to the unscaled integer than to any other.
    unscaled = np.rint(np.where(fits, printed, 0.0) * 10.0**step.target.scale).astype(np.int64)
    present = mask_and_not(step.vector.mask(), ~finite)
    valid = null_or_raise(step.node, finite & ~fits, present, f"a value does not fit {step.target}")
    return Vector(step.target, unscaled, valid)


def _to_whole(step: _Step) -> Vector:
    if is_float(step.source):
        return _float_to_whole(step.node, step.vector, step.target)
    values: Array = step.vector.values
    valid = step.vector.valid
    if pat.is_decimal(step.source):
        if _by_double(step.node, step.source, step.target):
            near = Vector(pa.float64(), decimals.to_double(step.vector), valid)
            return _float_to_whole(step.node, near, step.target)
        values, valid = decimals.to_whole(step.node, step.vector)
    return _narrowed(step.node, values, valid, step.target)


def _by_double(node: Cast, source: pa.DataType, target: pa.DataType) -> bool:
    """Whether Spark converts by the nearest double: in checked casts of a wide decimal to less than 64 bits."""
    return source.precision > LONG_DIGITS and node.mode is not EvalMode.LEGACY and target.bit_width < 64


def _narrowed(node: Cast, values: Array, valid: Mask | None, target: pa.DataType) -> Vector:
    kind = numpy_type(target)
    result = values.astype(kind)
    if values.dtype.itemsize > kind.itemsize and node.mode is not EvalMode.LEGACY:
        valid = null_or_raise(node, result != values, valid, f"a value does not fit {target}")
    return Vector(target, result, valid)


def _float_to_whole(node: Cast, vector: Vector, target: pa.DataType) -> Vector:
    values, valid = vector.values, vector.valid
    bits = max(target.bit_width, 32)
    if node.mode is not EvalMode.LEGACY:
        # As doubles, so that 2^63 passes as int64.
        high, low = float((1 << (bits - 1)) - 1), float(-(1 << (bits - 1)))
        near = values.astype(np.float64)
        fits = (np.floor(near) <= high) & (np.ceil(near) >= low)
        valid = null_or_raise(node, ~fits, valid, f"a value does not fit {target}")
    whole = v.truncated(np, values)
    if bits == 32:
        limits = np.iinfo(np.int32)
        whole = np.clip(whole, limits.min, limits.max).astype(np.int32)
    return _narrowed(node, whole, valid, target)


# -- dates and timestamps ----------------------------------------------------------------------------------------


def _to_date(step: _Step) -> Vector:
    return dates.to_date(step.vector, step.source)


def _to_timestamp(step: _Step) -> Vector:
    if pat.is_timestamp(step.source) or pat.is_date(step.source):
        converted, bad = dates.to_timestamp(step.vector, step.source, step.target)
        if bad.any() and (bad if step.vector.valid is None else bad & step.vector.valid).any():
            # Spark's own conversion raises in every mode.
            ansi = dataclasses.replace(step.node, mode=EvalMode.ANSI)
            null_or_raise(ansi, bad, step.vector.valid, f"a value is out of the range of {step.target}")
        return converted
    values = step.vector.values.astype(np.int64)
    if pat.is_boolean(step.source):
        return Vector(step.target, values, step.vector.valid)
    limit = ((1 << 63) - 1) // MICROS
    micros = np.clip(values, -limit - 1, limit) * MICROS
    micros = np.where(values > limit, (1 << 63) - 1, np.where(values < -limit, -(1 << 63), micros))
    return Vector(step.target, micros, step.vector.valid)


def _timestamp_to_number(step: _Step) -> Vector:
    if pat.is_boolean(step.target):
        return _to_bool(step)
    if is_float(step.target):
        return Vector(step.target, step.vector.values / float(MICROS), step.vector.valid)
    node = step.node
    if node.mode is EvalMode.LEGACY:
        # Unlike other integers, seconds that do not fit become null instead of wrapping.
        node = dataclasses.replace(node, mode=EvalMode.TRY)
    return _narrowed(node, step.vector.values // MICROS, step.vector.valid, step.target)


_Predicate = Callable[[pa.DataType], bool]


def _any(_: pa.DataType) -> bool:
    return True


# The first matching row applies.
_CONVERSIONS: tuple[tuple[_Predicate, _Predicate, Callable[[_Step], Vector]], ...] = (
    (pat.is_duration, _any, _relabelled),
    (_any, pat.is_duration, _relabelled),
    (is_text, pat.is_integer, _text_to_whole),
    (is_text, pat.is_float64, _text_to_double),
    (is_text, pat.is_decimal, _text_to_decimal),
    (is_text, pat.is_date, _text_to_date),
    (is_text, pat.is_timestamp, _text_to_timestamp),
    (is_text, pat.is_boolean, _text_to_bool),
    (is_text, is_bytes, _text_to_bytes),
    (_any, is_text, _to_text),
    (_any, pat.is_timestamp, _to_timestamp),
    (pat.is_timestamp, pat.is_date, _to_date),
    (pat.is_timestamp, _any, _timestamp_to_number),
    (_any, pat.is_boolean, _to_bool),
    (_any, is_float, _to_float),
    (_any, pat.is_decimal, _to_decimal),
    (_any, pat.is_integer, _to_whole),
)


# -- texts ------------------------------------------------------------------------------------------------------------


_FIRST_DAY = -719_528
"""0000-01-01."""
_LAST_DAY = 2_932_896
"""9999-12-31."""


def to_text(vector: Vector, source: pa.DataType, *, plain: bool) -> Vector:
    """Print booleans, integers, decimals, dates or timestamps.

    ``source`` is their type, with the zone to print timestamps in; ``plain`` prints small decimals without an
    exponent.
    """
    values = np.asarray(vector.values)
    length = len(values)
    if pat.is_boolean(source):
        text = pc.if_else(pa.array(values), "true", "false")
    elif pat.is_decimal(source):
        text = _decimals(values, source.scale, plain=plain)
    elif pat.is_date(source):
        text = _dates(values)
    elif pat.is_timestamp(source):
        text = _timestamps(values, source)
    else:
        text = to_arrow(Vector(source, values), source, length).cast(pa.string())
    if vector.valid is not None:
        text = pc.if_else(pa.array(vector.valid), text, pa.scalar(None, text.type))
    return Vector(pa.string(), text, constant=vector.constant)


def _decimals(values: Array, scale: int, *, plain: bool) -> pa.Array:
    distinct, codes = np.unique(values, return_inverse=True)
    printed = pa.array([_decimal(int(v), scale, plain=plain) for v in distinct], pa.string())
    return printed.take(pa.array(codes.reshape(-1)))


def _decimal(unscaled: int, scale: int, *, plain: bool) -> str:
    """Print one decimal as Java does: with an exponent if more than five zeros would follow the point."""
    digits = str(abs(unscaled))
    sign = "-" if unscaled < 0 else ""
    exponent = len(digits) - 1 - scale
    if not plain and exponent < -6:
        fraction = "." + digits[1:] if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{fraction}E{exponent}"
    if scale == 0:
        return sign + digits
    digits = digits.rjust(scale + 1, "0")
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}"


def _dates(days: Array) -> pa.Array:
    usual = (days >= _FIRST_DAY) & (days <= _LAST_DAY)
    if usual.all():
        return pa.array(np.datetime_as_string(days.astype("datetime64[D]")).astype(object), pa.string())
    return per_distinct(pa.array(days, pa.int32()), _date, pa.string())


def _date(days: Any) -> str:
    """Print a date of any year: four digits at least, and a sign outside 0000 to 9999."""
    year = int(np.int64(days).astype("datetime64[D]").astype("datetime64[Y]").astype(np.int64)) + 1970
    month_day = np.datetime_as_string(np.int64(days).astype("datetime64[D]"))[-5:]
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    return f"{sign}{abs(year):04d}-{month_day}"


def _timestamps(values: Array, source: pa.DataType) -> pa.Array:
    shifted, per_second = local(values, source)
    seconds, rest = np.divmod(shifted, per_second)
    days, second_of_day = np.divmod(seconds, 86_400)
    micros = rest * (1_000_000 // per_second) if per_second <= 1_000_000 else rest // (per_second // 1_000_000)
    clock = np.datetime_as_string(second_of_day.astype("datetime64[s]"))
    times = pc.utf8_slice_codeunits(pa.array(clock.astype(object), pa.string()), 11)
    fraction = pc.utf8_lpad(pa.array(micros.astype(np.int64)).cast(pa.string()), 6, "0")
    tail = pc.utf8_rtrim(fraction, "0")
    point = pc.if_else(pc.equal(tail, ""), "", ".")
    return pc.binary_join_element_wise(
        pc.binary_join_element_wise(_dates(days), times, " "), pc.binary_join_element_wise(point, tail, ""), ""
    )


# -- Polars -----------------------------------------------------------------------------------------------------------


_EXACT_DOUBLE = 1 << 53
_EXACT_POWER = 22
_LONG_AND_INTERVAL = {pa.int64(), pa.duration("us")}
"""An interval is a number of microseconds."""


def lower_cast(value: Lowered, target: pa.DataType) -> Lowered:
    """Convert values to another type."""
    source = value.dtype
    if same_kind(source, target) and not pat.is_decimal(target):
        return Lowered(value.expr, target, value.bounds, value.wide)
    if pat.is_decimal(target) and (pat.is_decimal(source) or is_whole(source)):
        return _lower_to_decimal(value, target)
    if {source, target} == _LONG_AND_INTERVAL:
        return Lowered(value.expr.cast(polars_type(target)), target, type_bounds(target))
    if is_whole(source) and is_whole(target):
        limits = type_bounds(target)
        assert limits is not None
        if not within(bounds_of(value), limits):
            raise NotLowered(f"values beyond {target}")
        return Lowered(value.expr.cast(polars_type(target)), target, value.bounds)
    if pat.is_float64(target) and (is_whole(source) or pat.is_float32(source)):
        return Lowered(value.expr.cast(pl.Float64), target)
    if pat.is_float64(target) and pat.is_decimal(source):
        # Both are exact doubles, so the division rounds once. The divisor is a column, since Polars multiplies by the
        # reciprocal of a constant.
        if magnitude(bounds_of(value)) >= _EXACT_DOUBLE or source.scale > _EXACT_POWER:
            raise NotLowered("a decimal that is no exact double")
        number = value.expr.cast(pl.Float64)
        return Lowered(number / (number * 0.0 + float(10**source.scale)), target)
    raise NotLowered(f"a cast of {source} to {target}")


def _lower_to_decimal(value: Lowered, target: pa.DataType) -> Lowered:
    if is_whole(value.dtype):
        value = Lowered(value.expr.cast(pl.Int64), pa.decimal128(20, 0), value.bounds)
    value = rescaled(value, target.scale)
    limits = type_bounds(target)
    assert limits is not None
    if not within(bounds_of(value), limits):
        raise NotLowered(f"values beyond {target}")
    return Lowered(value.expr, target, value.bounds, value.wide)


# -- device -----------------------------------------------------------------------------------------------------------


_PRINTED_DIGITS = 14
"""Most digits of a decimal cast from a double: halves of its last place have one more, and doubles are exact to 15."""
_EXACT_DIGITS = 15
"""Most digits of a decimal cast to a double: a quotient of two exact doubles then, which is rounded once."""


def is_constant_cast(node: Cast) -> bool:
    """Whether a cast is that of a null constant, or of a constant integer that fits a decimal."""
    if not isinstance(node.child, Literal) or node.type is None:
        return False
    value, target = node.child.value, node.type
    if value is None:
        return is_fixed(target)
    return bool(
        pat.is_decimal128(target) and isinstance(value, int) and not isinstance(value, bool)
        and target.scale >= 0 and abs(value) < 10 ** (target.precision - target.scale)
    )  # fmt: skip


def fits_device(node: Cast) -> bool:
    """Whether the device computes a cast exactly as Spark does."""
    source, target = logical(type_of(node.child)), logical(type_of(node))
    if type_of(node.child) == type_of(node):
        return is_fixed(source)
    if pat.is_boolean(source):
        return is_whole(target) or is_float(target)
    exact = pat.is_decimal128(source) and source.scale >= 0
    if is_whole(target) or pat.is_boolean(target):
        return is_whole(source) or is_float(source) or exact or is_widening(source, target)
    if pat.is_decimal128(target):
        printed = pat.is_float64(source) and target.precision <= _PRINTED_DIGITS
        return target.scale >= 0 and (is_whole(source) or exact or printed)
    if exact and pat.is_float64(target):
        return True
    days = pat.is_timestamp(source) and source.tz is None and pat.is_date32(target)
    return days or is_widening(source, target)


def is_widening(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether each integer or float is made the nearest value of a type, which none exceeds."""
    if pat.is_integer(source):
        unsigned = pat.is_unsigned_integer(source)
        if pat.is_signed_integer(target):
            return bool(source.bit_width + unsigned <= target.bit_width)
        return is_float(target) and not unsigned
    return bool(pat.is_float32(source) and pat.is_float64(target))


def device_cast(operands: Operands, node: Cast, active: Active) -> Value:
    """Compute a cast on the device.

    As in Java, what does not fit an integer wraps, but for floats, which become the nearest limit of 32 or 64 bits
    first. In ANSI mode it is an error, and null in try mode.
    """
    target = logical(type_of(node))
    if isinstance(node.child, Literal) and is_constant_cast(node):
        number = node.child.value
        return v.constant(operands.xp, None if number is None else Decimal(number), target)
    value = operands.fixed(node.child, active)
    source = value.dtype
    if source == target:
        return value
    if pat.is_decimal(target):
        return (
            _device_of_double(operands, node, value, active)
            if is_float(source)
            else _device_to_decimal(operands, node, value, active)
        )
    if pat.is_boolean(target) or (is_whole(target) and not pat.is_unsigned_integer(source)):
        return _device_to_whole(operands, dataclasses.replace(node, type=target), value, active)
    if pat.is_decimal(source):
        return double_of(operands.xp, value)
    if pat.is_timestamp(source):
        return Value(target, v.day_of_timestamp(value).astype("int32"), value.valid)
    if pat.is_float32(source):
        return Value(target, v.widened(operands.xp, value.data), value.valid)
    return Value(target, value.data.astype(v.numpy_name(target)), value.valid)


def _device_to_whole(operands: Operands, node: Cast, value: Value, active: Active) -> Value:
    """Cast numbers and booleans to integers and booleans."""
    target = type_of(node)
    if pat.is_boolean(value.dtype):
        return Value(target, value.data.astype(v.numpy_name(target)), value.valid)
    if pat.is_boolean(target):
        return Value(target, _is_not_zero(operands.xp, value), value.valid)
    if pat.is_decimal(value.dtype) and _by_double(node, value.dtype, target):
        value = double_of(operands.xp, value)
    if is_float(value.dtype):
        whole, bad = _of_float(operands.xp, value, max(target.bit_width, 32))
    elif pat.is_decimal(value.dtype):
        whole, bad = _truncated(operands.xp, value)
    else:
        whole, bad = value.data, None
    narrow = whole.astype(v.numpy_name(target))
    if narrow.dtype.itemsize < whole.dtype.itemsize:
        overflow = narrow != whole
        bad = overflow if bad is None else bad | overflow
    return operands.checked(node, narrow, value.valid, bad, active)


def double_of(xp: Any, value: Value) -> Value:
    """Nearest doubles of decimals."""
    scale = value.dtype.scale
    if value.dtype.precision <= _EXACT_DIGITS:
        return Value(pa.float64(), value.data.astype("float64") / 10.0**scale, value.valid)
    unscaled = words_of(value)
    size = quotients.nearest_double(xp, words.magnitude(xp, unscaled), scale)
    return Value(pa.float64(), xp.where(unscaled.high < 0, -size, size), value.valid)


def _is_not_zero(xp: Any, value: Value) -> Array:
    if value.low is not None:
        return (value.data != 0) | (value.low != 0)
    return v.ordered(xp, value)[0] != 0  # by bits, which no kernel flushes to zero


def _of_float(xp: Any, value: Value, bits: int) -> tuple[Array, Array]:
    """Truncate floats to integers of 32 or 64 bits; NaN becomes 0. Also the mask of floats that do not fit, as NaN."""
    near = v.widened(xp, value.data) if pat.is_float32(value.dtype) else value.data
    high, low = float((1 << (bits - 1)) - 1), float(-(1 << (bits - 1)))
    bad = ~((xp.floor(near) <= high) & (xp.ceil(near) >= low))
    whole = v.truncated(xp, near)
    if bits == 32:
        whole = xp.clip(whole, -(1 << 31), (1 << 31) - 1).astype("int32")
    return whole, bad


def _truncated(xp: Any, value: Value) -> tuple[Array, Array]:
    """Drop the places after the point; also which results do not fit 64 bits, and wrap around."""
    unscaled = words_of(value)
    if value.dtype.scale:
        front, _ = quotients.split(xp, words.magnitude(xp, unscaled), value.dtype.precision, value.dtype.scale)
        unscaled = words.signed(xp, front, unscaled.high < 0)
    whole = unscaled.low.view("int64")
    return whole, unscaled.high != whole >> 63


def _is_certain(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast of integers or decimals to a decimal succeeds for every value. Rounding may need a digit more."""
    if is_lossless(source, target):
        return True
    return bool(
        pat.is_decimal(source) and source.scale > target.scale
        and target.precision - target.scale > source.precision - source.scale
    )  # fmt: skip


def _device_to_decimal(operands: Operands, node: Cast, value: Value, active: Active) -> Value:
    """Cast integers and decimals to decimals, rounding half up."""
    target = logical(node.type)
    digits, scale = (value.dtype.precision, value.dtype.scale) if pat.is_decimal(value.dtype) else (19, 0)
    unscaled, places = words_of(value), scale - target.scale
    if _is_certain(value.dtype, target):
        if places <= 0:
            return of_words(scaled(operands.xp, unscaled, -places), target, value.valid)
        return of_words(dropped(operands.xp, unscaled, digits, places), target, value.valid)
    if places <= 0:
        result, overflow = words.multiply(operands.xp, unscaled, words.constant(operands.xp, 10**-places))
    else:
        result, overflow = dropped(operands.xp, unscaled, digits, places), operands.xp.zeros(1, dtype=bool)
    return fitted(operands, node, result, overflow, value.valid, active)


def _device_of_double(operands: Operands, node: Cast, value: Value, active: Active) -> Value:
    """Round doubles half up, as the decimals that are printed of them. NaN and the infinities are null.

    The decimal half way between two results has at most 15 digits, so no other one as short is near enough to be
    printed of the same double. So a double is rounded up if it is not less than the double of that decimal, which
    is a quotient of two exact doubles::

        2.675 to two places   267.5 is half way, and 535 / 200 is the same double: rounded up to 2.68,
                              although the double is 2.67499999999999982 exactly
    """
    xp, target = operands.xp, logical(node.type)
    unit, bound = 10.0**target.scale, 10.0 ** (target.precision - target.scale)
    size = xp.abs(value.data)
    finite = size < float("inf")
    size = xp.where(finite, xp.minimum(size, bound + 1.0), 0.0)
    below = xp.floor(size * unit) - 1.0  # the product is off by less than one
    rounded = below
    for step in range(3):
        rounded = rounded + (size >= (2.0 * (below + float(step)) + 1.0) / (2.0 * unit))
    unscaled = xp.where(value.data < 0, -rounded, rounded).astype("int64")
    none = xp.zeros(1, dtype=bool)
    return fitted(operands, node, words.widened(unscaled), none, mask_and(value.valid, finite), active)
