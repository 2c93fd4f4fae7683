"""Casts of numbers to integers and Booleans, and of Booleans to numbers; decimals as doubles.

As in Java, what does not fit an integer wraps, but for floats, which become the nearest limit of 32 or 64 bits first.
In ANSI mode it is an error, and null in try mode.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.expressions import values as v
from gpujoin.backends.cudf.expressions.evaluator import Evaluator
from gpujoin.backends.cudf.expressions.operands import Active
from gpujoin.backends.cudf.expressions.values import NARROW_DIGITS, Value
from gpujoin.backends.cudf.pipeline import quotients, words
from gpujoin.backends.cudf.pipeline.words import words_of
from gpujoin.model.expressions import Cast, EvalMode
from gpujoin.model.types import is_float, is_whole, logical

_EXACT_DIGITS = 15
"""Most digits of decimals that are converted to doubles by dividing two exact doubles, which rounds once."""


def is_number_cast(node: Cast) -> bool:
    """Whether a cast is one of those above."""
    source, target = node.child.type, node.type
    if source is None or target is None or source == target:
        return False
    source, target = logical(source), logical(target)
    if pat.is_boolean(source):
        return is_whole(target) or is_float(target)
    number = is_whole(source) or is_float(source) or bool(pat.is_decimal128(source) and source.scale >= 0)
    return number and (is_whole(target) or pat.is_boolean(target))


def number_cast(run: Evaluator, node: Cast, value: Value, active: Active) -> Value:
    """Compute such a cast of a value."""
    target = logical(node.type)
    node = replace(node, type=target)
    if pat.is_boolean(value.dtype):
        return Value(target, value.data.astype(v.numpy_name(target)), value.valid)
    if pat.is_boolean(target):
        return Value(target, _is_not_zero(run.xp, value), value.valid)
    if pat.is_decimal(value.dtype) and _by_double(node, value.dtype, target):
        value = double_of(run.xp, value)
    if is_float(value.dtype):
        whole, bad = _of_float(run.xp, value, max(target.bit_width, 32))
    elif pat.is_decimal(value.dtype):
        whole, bad = _truncated(run.xp, value)
    else:
        whole, bad = value.data, None
    narrow = whole.astype(v.numpy_name(target))
    if narrow.dtype.itemsize < whole.dtype.itemsize:
        lost = narrow != whole
        bad = lost if bad is None else bad | lost
    return run.checked(node, narrow, value.valid, bad, active)


def double_of(xp: Any, value: Value) -> Value:
    """Nearest doubles of decimals."""
    scale = value.dtype.scale
    if value.dtype.precision <= _EXACT_DIGITS:
        return Value(pa.float64(), value.data.astype("float64") / 10.0**scale, value.valid)
    unscaled = words_of(value)
    size = quotients.nearest_double(xp, words.magnitude(xp, unscaled), scale)
    return Value(pa.float64(), xp.where(unscaled.high < 0, -size, size), value.valid)


def _by_double(node: Cast, source: pa.DataType, target: pa.DataType) -> bool:
    """Whether Spark converts by the nearest double: in checked casts of a wide decimal to less than 64 bits."""
    return source.precision > NARROW_DIGITS and node.mode is not EvalMode.LEGACY and target.bit_width < 64


def _is_not_zero(xp: Any, value: Value) -> Array:
    if value.low is not None:
        return (value.data != 0) | (value.low != 0)
    return v.ordered(xp, value)[0] != 0  # by bits, which no kernel flushes to zero


def _of_float(xp: Any, value: Value, bits: int) -> tuple[Array, Array]:
    """Truncate floats to integers of 32 or 64 bits, and tell which do not fit; NaN, which does not, becomes 0."""
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
