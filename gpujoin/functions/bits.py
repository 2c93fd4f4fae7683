"""Operators over the bits of integers."""

from __future__ import annotations

from operator import and_, invert, or_, xor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.device import Active, Offer, Operands, of_either, strict
from gpujoin.functions.implementation import fail, of_arrays
from gpujoin.functions.signatures import INT, LONG, Parameter, Signature, first, keep, over, takes, type_of, types_of
from gpujoin.functions.spec import FunctionSpec, Raises
from gpujoin.functions.values import Value
from gpujoin.functions.vector import Array, Vector, mask_and
from gpujoin.functions.widening import tightest
from gpujoin.model.expressions import Call, EvalMode, Function, Literal
from gpujoin.model.types import is_whole


def _bitwise(node: Call) -> Call | None:
    left, right = (type_of(a) for a in node.arguments)
    if not all(is_whole(t) or pat.is_null(t) for t in (left, right)) or left == right == pa.null():
        return None
    return over(node, tightest(left, right, node.mode))


def _alike_integers(node: Call) -> bool:
    left, right = types_of(node)
    return is_whole(left) and left == right


def _same_integer(source: pa.DataType, _mode: EvalMode) -> pa.DataType | None:
    return pa.int32() if pat.is_null(source) else source if is_whole(source) else None


def _is_shifted(dtype: pa.DataType) -> bool:
    return bool(pat.is_int32(dtype) or pat.is_int64(dtype))


def _is_counted(dtype: pa.DataType) -> bool:
    return is_whole(dtype) or bool(pat.is_boolean(dtype))


_PAIR = Signature(_bitwise, _alike_integers)
_INTEGER = Parameter(is_whole, _same_integer)
_SHIFT = takes(Parameter(_is_shifted, keep(pat.is_int64, INT.convert)), INT, gives=first)
_COUNTED = Parameter(_is_counted, lambda source, mode: source if _is_counted(source) else _same_integer(source, mode))


def _is_low_bit(node: Call) -> bool:
    """Whether the position is a constant that all integers have a bit at."""
    position = node.arguments[1]
    return isinstance(position, Literal) and (position.value is None or 0 <= position.value < 8)


# -- arrays of either module ------------------------------------------------------------------------------------------


def _places(values: Array, count: Array) -> Array:
    """Number of places to shift by: the lowest five or six bits of a count, in the type of the values."""
    return (count & (values.dtype.itemsize * 8 - 1)).astype(values.dtype)


def _unsigned(values: Array) -> Array:
    return values.view(f"uint{values.dtype.itemsize * 8}")


def _shift_left(values: Array, count: Array) -> Array:
    return (_unsigned(values) << _unsigned(_places(values, count))).view(values.dtype)


def _shift_right(values: Array, count: Array) -> Array:
    return values >> _places(values, count)


def _shift_right_unsigned(values: Array, count: Array) -> Array:
    return (_unsigned(values) >> _unsigned(_places(values, count))).view(values.dtype)


_BITMAP = 1 << 15
"""Bits of a bitmap of Spark's ``bitmap_construct_agg``."""


def _bitmap_number(values: Array) -> Array:
    """Divide, rounding upwards."""
    whole = values // _BITMAP
    return whole + (whole * _BITMAP != values)


def _bitmap_position(values: Array) -> Array:
    """Count positive numbers from 1, and the size of others from 0."""
    positive = values > 0
    return (values * (2 * positive - 1) - positive) % _BITMAP


# -- NumPy and Arrow --------------------------------------------------------------------------------------------------


def _bit_get(node: Call, operands: list[Vector], length: int) -> Vector:
    """Bit of an integer at a position. A position beyond its width is an error in every mode."""
    values, positions = operands
    valid = mask_and(values.valid, positions.valid)
    outside = np.asarray((positions.values < 0) | (positions.values >= values.dtype.bit_width))
    if (outside if valid is None else outside & valid).any():
        fail(node, f"integers of {values.dtype.bit_width} bits have no such bit")
    return of_arrays(lambda v, n: (v.astype(np.int64) >> np.clip(n, 0, 63)) & 1)(node, operands, length)


def _bit_count(values: Array) -> Array:
    if values.dtype == np.bool_:
        return values.astype(np.int32)
    return np.asarray(np.bitwise_count(values.astype(np.int64).view(np.uint64)))


# -- device -----------------------------------------------------------------------------------------------------------


def _device_bit_count(_: Any, value: Value) -> Array:
    """Number of ones among 64 bits, as sums of neighbouring bits, of pairs, of fours; a product adds the bytes."""
    if pat.is_boolean(value.dtype):
        return value.data
    bits = value.data.astype("int64").view("uint64")
    word = bits.dtype.type
    bits = bits - ((bits >> word(1)) & word(0x5555555555555555))
    bits = (bits & word(0x3333333333333333)) + ((bits >> word(2)) & word(0x3333333333333333))
    bits = (bits + (bits >> word(4))) & word(0x0F0F0F0F0F0F0F0F)
    return (bits * word(0x0101010101010101)) >> word(56)


def _device_bit_get(operands: Operands, node: Call, active: Active) -> Value:
    """Bit of an integer at a position. A position beyond its width is an error in every mode."""
    value = operands.fixed(node.arguments[0], active)
    position = operands.fixed(node.arguments[1], mask_and(active, value.valid))
    valid = mask_and(value.valid, position.valid)
    width = value.data.dtype.itemsize * 8
    outside = (position.data < 0) | (position.data >= width)
    operands.fail_if(mask_and(mask_and(outside, valid), active), f"{node}: integers of {width} bits have no such bit")
    places = operands.xp.clip(position.data, 0, width - 1).astype("int64")
    bit = (value.data.astype("int64") >> places) & 1
    return Value(pa.int8(), bit.astype("int8"), valid)


TABLE = (
    FunctionSpec(
        Function.BITMAP_BUCKET_NUMBER, (), takes(LONG, gives=pa.int64()),
        numpy=of_arrays(_bitmap_number), device=of_either(_bitmap_number),
    ),
    FunctionSpec(
        Function.BITMAP_BIT_POSITION, (), takes(LONG, gives=pa.int64()),
        numpy=of_arrays(_bitmap_position), device=of_either(_bitmap_position),
    ),
    FunctionSpec(Function.BIT_AND, ("BitwiseAnd",), _PAIR, numpy=of_arrays(and_), device=of_either(and_)),
    FunctionSpec(Function.BIT_OR, ("BitwiseOr",), _PAIR, numpy=of_arrays(or_), device=of_either(or_)),
    FunctionSpec(Function.BIT_XOR, ("BitwiseXor",), _PAIR, numpy=of_arrays(xor), device=of_either(xor)),
    FunctionSpec(
        Function.BIT_NOT, ("BitwiseNot",), takes(_INTEGER, gives=first),
        numpy=of_arrays(invert), device=of_either(invert),
    ),
    FunctionSpec(
        Function.SHIFT_LEFT, ("ShiftLeft",), _SHIFT, numpy=of_arrays(_shift_left), device=of_either(_shift_left),
    ),
    FunctionSpec(
        Function.SHIFT_RIGHT, ("ShiftRight",), _SHIFT,
        numpy=of_arrays(_shift_right), device=of_either(_shift_right),
    ),
    FunctionSpec(
        Function.SHIFT_RIGHT_UNSIGNED, ("ShiftRightUnsigned",), _SHIFT,
        numpy=of_arrays(_shift_right_unsigned), device=of_either(_shift_right_unsigned),
    ),
    FunctionSpec(
        Function.BIT_GET, ("BitwiseGet",), takes(_INTEGER, INT, gives=pa.int8()),
        raises=Raises.ALWAYS, safe=_is_low_bit,
        numpy=_bit_get, device=Offer(_device_bit_get),
    ),
    FunctionSpec(
        Function.BIT_COUNT, ("BitwiseCount",), takes(_COUNTED, gives=pa.int32()),
        numpy=of_arrays(_bit_count), device=strict(_device_bit_count),
    ),
)  # fmt: skip
