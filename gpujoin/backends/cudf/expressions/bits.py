"""Operators over the bits of integers on the device."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.expressions.offer import Offer, accepted, strict
from gpujoin.backends.cudf.expressions.operands import Active, Operands
from gpujoin.backends.cudf.expressions.values import Value, mask_and
from gpujoin.model.expressions import Call, Function


def _places(value: Value, count: Value) -> Array:
    """Number of places to shift by: the lowest five or six bits of a count, in the value's type."""
    return (count.data & (value.data.dtype.itemsize * 8 - 1)).astype(value.data.dtype)


def _unsigned(array: Array) -> Array:
    return array.view(f"uint{array.dtype.itemsize * 8}")


def _shift_left(_: Any, value: Value, count: Value) -> Array:
    return (_unsigned(value.data) << _unsigned(_places(value, count))).view(value.data.dtype)


def _shift_right_unsigned(_: Any, value: Value, count: Value) -> Array:
    return (_unsigned(value.data) >> _unsigned(_places(value, count))).view(value.data.dtype)


def _bit_count(_: Any, value: Value) -> Array:
    """Number of ones among 64 bits, as sums of neighbouring bits, of pairs, of fours; a product adds the bytes."""
    if pat.is_boolean(value.dtype):
        return value.data
    bits = value.data.astype("int64").view("uint64")
    word = bits.dtype.type
    bits = bits - ((bits >> word(1)) & word(0x5555555555555555))
    bits = (bits & word(0x3333333333333333)) + ((bits >> word(2)) & word(0x3333333333333333))
    bits = (bits + (bits >> word(4))) & word(0x0F0F0F0F0F0F0F0F)
    return (bits * word(0x0101010101010101)) >> word(56)


def _bit_get(operands: Operands, node: Call, active: Active) -> Value:
    """One bit of an integer; in every mode an error where it has none of that number."""
    value = operands.fixed(node.arguments[0], active)
    position = operands.fixed(node.arguments[1], mask_and(active, value.valid))
    valid = mask_and(value.valid, position.valid)
    width = value.data.dtype.itemsize * 8
    outside = (position.data < 0) | (position.data >= width)
    operands.fail_if(mask_and(mask_and(outside, valid), active), f"{node}: integers of {width} bits have no such bit")
    places = operands.xp.clip(position.data, 0, width - 1).astype("int64")
    bit = (value.data.astype("int64") >> places) & 1
    return Value(pa.int8(), bit.astype("int8"), valid)


FUNCTIONS: dict[Function, Offer] = {
    Function.BIT_AND: strict(lambda _, left, right: left.data & right.data),
    Function.BIT_OR: strict(lambda _, left, right: left.data | right.data),
    Function.BIT_XOR: strict(lambda _, left, right: left.data ^ right.data),
    Function.BIT_NOT: strict(lambda _, value: ~value.data),
    Function.SHIFT_LEFT: strict(_shift_left),
    Function.SHIFT_RIGHT: strict(lambda _, value, count: value.data >> _places(value, count)),
    Function.SHIFT_RIGHT_UNSIGNED: strict(_shift_right_unsigned),
    Function.BIT_GET: Offer(accepted, _bit_get),
    Function.BIT_COUNT: strict(_bit_count),
}
