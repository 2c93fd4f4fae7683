"""Spark's casts, one value at a time, over the cells of `gpujoin.testing`."""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.expressions import EvalMode
from gpujoin.model.types import is_bytes, is_text
from gpujoin.testing import Cell
from tests.cells import EXACT
from tests.oracle.civil import (
    MICROS_PER_DAY,
    format_date,
    format_timestamp,
    parse_date,
    parse_timestamp,
    to_utc,
    zone_offset,
)

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_WHITESPACE = "".join(map(chr, range(33)))
_TRUE, _FALSE = {"t", "true", "y", "yes", "1"}, {"f", "false", "n", "no", "0"}
_SPECIAL_FLOATS = {
    "nan": math.nan, "inf": math.inf, "+inf": math.inf, "infinity": math.inf, "+infinity": math.inf,
    "-inf": -math.inf, "-infinity": -math.inf,
}  # fmt: skip


class NoValue(Exception):  # noqa: N818
    """The value has no counterpart in the wanted type; what becomes of it depends on the mode."""


def failed(mode: EvalMode, what: str) -> None:
    """Answer a value without a result: an error in ANSI mode, else null.

    Raises
    ------
    ExpressionEvaluationError
        In ANSI mode.
    """
    if mode is EvalMode.ANSI:
        raise ExpressionEvaluationError(what)


def caster(source: pa.DataType, target: pa.DataType, mode: EvalMode) -> Callable[[Cell], Cell]:
    """Give the function that casts one cell.

    Parameters
    ----------
    source, target : pyarrow.DataType
        Types without dictionary encoding.
    mode : EvalMode
        What becomes of a value that has no counterpart.

    Raises
    ------
    NotImplementedError
        If the pair of types is not covered.
    """
    convert = _conversion(source, target, mode)

    def cast(value: Cell) -> Cell:
        if value is None:
            return None
        try:
            return convert(value)
        except NoValue:
            return failed(mode, f"{value!r} of type {source} cannot be cast to {target}")

    return cast


def _conversion(source: pa.DataType, target: pa.DataType, mode: EvalMode) -> Callable[[Cell], Cell]:
    if source.equals(target) or pat.is_null(source):
        return lambda value: value
    for test, make in _TARGETS:
        if test(target):
            return make(source, target, mode)
    raise _uncovered(source, target)


def _uncovered(source: pa.DataType, target: pa.DataType) -> NotImplementedError:
    return NotImplementedError(f"the oracle has no cast from {source} to {target}")


def wrap(value: int, bits: int) -> int:
    """Keep the low bits of an integer, two's complement."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def fits(value: int, bits: int) -> bool:
    """Whether an integer fits in so many signed bits."""
    return -(1 << (bits - 1)) <= value < 1 << (bits - 1)


def to_scale(value: Decimal, dtype: pa.DataType) -> Decimal:
    """Round half up to the scale of a decimal type.

    Raises
    ------
    NoValue
        If the result has more digits than the type's precision.
    """
    if value.adjusted() > 2 * dtype.precision:  # more digits than the exact context has
        raise NoValue
    rounded = value.quantize(Decimal(1).scaleb(-dtype.scale), context=EXACT)
    if rounded.scaleb(dtype.scale, context=EXACT).copy_abs() >= 10**dtype.precision:
        raise NoValue
    return rounded


def single(value: float) -> float:
    """Round a double to single precision."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.float32(value))


def _to_integer(source: pa.DataType, target: pa.DataType, mode: EvalMode) -> Callable[[Cell], Cell]:
    bits = target.bit_width
    strict = mode is not EvalMode.LEGACY

    def checked(value: int) -> int:
        if strict and not fits(value, bits):
            raise NoValue
        return wrap(value, bits)

    if pat.is_boolean(source):
        return int
    if pat.is_integer(source):
        return checked
    if pat.is_floating(source):
        return lambda value: _integer_of_float(value, bits, strict=strict)
    if pat.is_decimal(source):
        return lambda value: checked(int(value.to_integral_value(decimal.ROUND_DOWN, context=EXACT)))
    if pat.is_timestamp(source):
        return lambda value: checked(value // _PER_SECOND[source.unit])
    if is_text(source):
        return lambda text: _integer_of_text(text, bits, strict=strict)
    raise _uncovered(source, target)


def _integer_of_float(value: float, bits: int, *, strict: bool) -> int:
    if strict:
        if not math.isfinite(value) or not (fits(math.floor(value), bits) and fits(math.ceil(value), bits)):
            raise NoValue
        return math.trunc(value)
    # Java saturates at 32 or 64 bits and makes NaN 0; narrower integers wrap from there.
    if math.isnan(value):
        return 0
    width = max(bits, 32)
    low, high = -(1 << (width - 1)), (1 << (width - 1)) - 1
    whole = (high if value > 0 else low) if math.isinf(value) else min(max(math.trunc(value), low), high)
    return wrap(whole, bits)


def _integer_of_text(text: str, bits: int, *, strict: bool) -> int:
    pattern = r"[+-]?\d+" if strict else r"[+-]?(?:\d+(?:\.\d*)?|\.\d*)"
    text = text.strip(_WHITESPACE)
    if not re.fullmatch(pattern, text, re.ASCII):
        raise NoValue
    digits = text.split(".")[0]
    whole = int(digits) if digits.lstrip("+-") else 0
    if not fits(whole, bits):
        raise NoValue
    return whole


def _to_float(source: pa.DataType, target: pa.DataType, _mode: EvalMode) -> Callable[[Cell], Cell]:
    rounded = single if pat.is_float32(target) else float

    def of_text(text: str) -> float:
        text = text.strip(_WHITESPACE)
        if text.lower() in _SPECIAL_FLOATS:
            return _SPECIAL_FLOATS[text.lower()]
        if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?", text, re.ASCII):
            raise NoValue
        return rounded(float(text.rstrip("fFdD")))

    if pat.is_boolean(source) or pat.is_integer(source) or pat.is_floating(source) or pat.is_decimal(source):
        return lambda value: rounded(float(value))
    if pat.is_timestamp(source):
        return lambda value: rounded(value / _PER_SECOND[source.unit])
    if is_text(source):
        return of_text
    raise _uncovered(source, target)


def _to_decimal(source: pa.DataType, target: pa.DataType, _mode: EvalMode) -> Callable[[Cell], Cell]:
    def of_float(value: float) -> Decimal:
        if not math.isfinite(value):
            raise NoValue
        return to_scale(Decimal(repr(value)), target)

    def of_text(text: str) -> Decimal:
        text = text.strip(_WHITESPACE)
        if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII):
            raise NoValue
        return to_scale(Decimal(text), target)

    if pat.is_boolean(source) or pat.is_integer(source):
        return lambda value: to_scale(Decimal(int(value)), target)
    if pat.is_decimal(source):
        return lambda value: to_scale(value, target)
    if pat.is_floating(source):
        return of_float
    if is_text(source):
        return of_text
    raise _uncovered(source, target)


def _to_boolean(source: pa.DataType, target: pa.DataType, _mode: EvalMode) -> Callable[[Cell], Cell]:
    def of_text(text: str) -> bool:
        text = text.strip(_WHITESPACE).lower()
        if text in _TRUE:
            return True
        if text in _FALSE:
            return False
        raise NoValue

    if pat.is_integer(source) or pat.is_floating(source) or pat.is_decimal(source):
        return lambda value: value != 0
    if is_text(source):
        return of_text
    raise _uncovered(source, target)


def _to_text(source: pa.DataType, target: pa.DataType, mode: EvalMode) -> Callable[[Cell], Cell]:
    if is_text(source):
        return lambda value: value
    if is_bytes(source):
        return lambda value: value.decode("utf-8", errors="replace")
    if pat.is_boolean(source):
        return lambda value: "true" if value else "false"
    if pat.is_integer(source):
        return str
    if pat.is_float64(source):
        return java_double
    if pat.is_decimal(source):
        return str if mode is EvalMode.LEGACY else lambda value: format(value, "f")
    if pat.is_date(source):
        return lambda value: format_date(_days(value, source))
    if pat.is_timestamp(source):
        return lambda value: format_timestamp(local_micros(value, source))
    raise _uncovered(source, target)


def _to_bytes(source: pa.DataType, target: pa.DataType, _mode: EvalMode) -> Callable[[Cell], Cell]:
    if is_bytes(source):
        return lambda value: value
    if is_text(source):
        return lambda value: value.encode()
    raise _uncovered(source, target)


def _to_date(source: pa.DataType, target: pa.DataType, _mode: EvalMode) -> Callable[[Cell], Cell]:
    def of_text(text: str) -> int:
        days = parse_date(text)
        if days is None:
            raise NoValue
        return days

    if pat.is_date(source):
        days_of: Callable[[Cell], int] = lambda value: _days(value, source)  # noqa: E731
    elif pat.is_timestamp(source):
        days_of = lambda value: local_micros(value, source) // MICROS_PER_DAY  # noqa: E731
    elif is_text(source):
        days_of = of_text
    else:
        raise _uncovered(source, target)
    return lambda value: days_of(value) * (86_400_000 if pat.is_date64(target) else 1)


def _to_timestamp(source: pa.DataType, target: pa.DataType, _mode: EvalMode) -> Callable[[Cell], Cell]:
    scale = _PER_SECOND[target.unit]

    def of_local(micros: int) -> int:
        return to_utc(micros, target.tz) * scale // 1_000_000

    def of_text(text: str) -> int:
        micros = parse_timestamp(text)
        if micros is None:
            raise NoValue
        return of_local(micros)

    if pat.is_timestamp(source):
        if (source.tz is None) == (target.tz is None):
            return lambda value: value * scale // _PER_SECOND[source.unit]
        return lambda value: of_local(local_micros(value, source))
    if pat.is_date(source):
        return lambda value: of_local(_days(value, source) * MICROS_PER_DAY)
    if pat.is_integer(source) and target.tz is not None:
        return lambda value: value * scale
    if is_text(source):
        return of_text
    raise _uncovered(source, target)


def _days(value: int, dtype: pa.DataType) -> int:
    return value // 86_400_000 if pat.is_date64(dtype) else value


def local_micros(value: int, dtype: pa.DataType) -> int:
    """Local time, in microseconds, of a date or timestamp cell; a timestamp's zone is that of its type."""
    if pat.is_date(dtype):
        return _days(value, dtype) * MICROS_PER_DAY
    micros = value * 1_000_000 // _PER_SECOND[dtype.unit]
    return micros + zone_offset(micros, dtype.tz)


def java_double(value: float) -> str:
    """Write a double as ``Double.toString`` does."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    # Two digits at least, of which the nearest are taken: 4.9E-324, not 5E-324.
    shortened = f"{value:.1e}"
    sign, digits, exponent = Decimal(shortened if float(shortened) == value else repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    point = len(text) + exponent
    mark = "-" if sign else ""
    if -3 < point <= 7:
        padded = text.ljust(point, "0") if point > 0 else text
        whole, fraction = (padded[:point], padded[point:]) if point > 0 else ("0", "0" * -point + text)
        return f"{mark}{whole}.{fraction or '0'}"
    return f"{mark}{text[0]}.{text[1:] or '0'}E{point - 1}"


_Make = Callable[[pa.DataType, pa.DataType, EvalMode], Callable[[Cell], Cell]]
_TARGETS: tuple[tuple[Callable[[pa.DataType], bool], _Make], ...] = (
    (pat.is_boolean, _to_boolean),
    (pat.is_integer, _to_integer),
    (pat.is_floating, _to_float),
    (pat.is_decimal, _to_decimal),
    (is_text, _to_text),
    (is_bytes, _to_bytes),
    (pat.is_date, _to_date),
    (pat.is_timestamp, _to_timestamp),
)
