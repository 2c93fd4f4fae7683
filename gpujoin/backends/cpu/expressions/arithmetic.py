"""Integer and floating-point arithmetic as in Java. The node's mode decides what happens on overflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.expressions import decimals
from gpujoin.backends.cpu.expressions.implementation import Run, null_or_raise, of_arrays
from gpujoin.backends.cpu.expressions.vector import INT64_MAX, Array, Mask, Vector, mask_and
from gpujoin.model.expressions import Call, EvalMode, Function
from gpujoin.model.types import is_float

_OVERFLOW = "the integer result overflows"
_ZERO = "division by zero"


def _binary(node: Call, operands: list[Vector], _length: int) -> Vector:
    left, right = operands
    if pat.is_decimal(left.dtype):
        return decimals.arithmetic(node, left, right)
    assert node.type is not None
    valid = mask_and(left.mask(), right.mask())
    with np.errstate(all="ignore"):
        if node.function in _SIMPLE:
            values, valid = _simple(node, left.values, right.values, valid)
        else:
            values, valid = _division(node, left.values, right.values, valid)
    return Vector(node.type, values, valid)


_SIMPLE: dict[Function, Callable[[Any, Any], Any]] = {
    Function.ADD: np.add,
    Function.SUBTRACT: np.subtract,
    Function.MULTIPLY: np.multiply,
}


def _simple(node: Call, left: Array, right: Array, valid: Mask | None) -> tuple[Array, Mask | None]:
    assert node.type is not None
    values = np.asarray(_SIMPLE[node.function](left, right))
    if is_float(node.type) or node.mode is EvalMode.LEGACY:
        return values, valid
    return values, null_or_raise(node, _overflows(node.function, left, right, values), valid, _OVERFLOW)


def _overflows(function: Function, left: Array, right: Array, result: Array) -> Mask:
    if function is Function.ADD:
        return np.asarray(((left ^ result) & (right ^ result)) < 0)
    if function is Function.SUBTRACT:
        return np.asarray(((left ^ right) & (left ^ result)) < 0)
    if result.dtype.itemsize < 8:
        return np.asarray(np.multiply(left, right, dtype=np.int64) != result)
    if decimals.largest(left) * decimals.largest(right) <= INT64_MAX:
        return np.zeros(len(result), np.bool_)
    divisor = np.where(right == 0, 1, right)
    least = np.iinfo(np.int64).min
    return np.asarray(((result // divisor != left) & (right != 0)) | ((right == -1) & (left == least)))


def _division(node: Call, left: Array, right: Array, valid: Mask | None) -> tuple[Array, Mask | None]:
    zero = right == 0
    if zero.any():
        valid = null_or_raise(node, zero, valid, _ZERO)
        right = np.where(zero, np.ones(1, right.dtype), right)
    match node.function:
        case Function.DIVIDE:
            return np.asarray(left / right), valid
        case Function.REMAINDER:
            return _remainder(left, right), valid
        case Function.PMOD:
            kind = left.dtype
            if kind.itemsize < 4:
                # Java adds bytes and shorts as ints.
                left, right = left.astype(np.int32), right.astype(np.int32)
            remainder = _remainder(left, right)
            positive = np.where(remainder < 0, _remainder(remainder + right, right), remainder)
            return positive.astype(kind), valid
        case _:
            least = np.iinfo(np.int64).min
            if node.mode is not EvalMode.LEGACY:
                valid = null_or_raise(node, np.asarray((left == least) & (right == -1)), valid, _OVERFLOW)
            remainder = _remainder(left, right)
            # Dividing the least integer by −1 leaves it as it is, as in Java.
            quotient = (left - remainder) // np.where(right == -1, 1, right)
            return np.where(right == -1, np.negative(left), quotient), valid


def _remainder(left: Array, right: Array) -> Array:
    """Compute Java's remainder: the sign is the dividend's."""
    if left.dtype.kind == "i":
        # C leaves the least integer modulo −1 undefined.
        return np.asarray(
            np.where(right == -1, np.zeros(1, left.dtype), np.fmod(left, np.where(right == -1, 1, right)))
        )
    return np.asarray(np.fmod(left, right))


def _signed(compute: Callable[[Array], Array], of_decimals: Callable[[Call, Vector], Array]) -> Run:
    def run(node: Call, operands: list[Vector], _length: int) -> Vector:
        (vector,) = operands
        assert node.type is not None
        if pat.is_decimal(vector.dtype):
            return Vector(node.type, of_decimals(node, vector), vector.valid)
        return Vector(node.type, compute(vector.values), _without_least(node, vector))

    return run


def _without_least(node: Call, vector: Vector) -> Mask | None:
    if vector.values.dtype.kind != "i" or pat.is_decimal(vector.dtype) or node.mode is EvalMode.LEGACY:
        return vector.valid
    least = np.iinfo(vector.values.dtype).min
    return null_or_raise(node, vector.values == least, vector.valid, _OVERFLOW)


def _floor_or_ceil(node: Call, operands: list[Vector], _length: int) -> Vector:
    """Round to an integer: int64, or a decimal of scale 0."""
    (vector,) = operands
    if pat.is_decimal(vector.dtype):
        return decimals.floor_or_ceil(node, vector)
    if vector.values.dtype.kind == "i":
        return Vector(pa.int64(), vector.values.astype(np.int64), vector.valid)
    rounded = np.floor(vector.values) if node.function is Function.FLOOR else np.ceil(vector.values)
    valid = vector.valid
    if node.mode is not EvalMode.LEGACY:
        edge = float(1 << 63)
        valid = null_or_raise(node, ~((rounded >= -edge) & (rounded < edge)), valid, _OVERFLOW)
    return Vector(pa.int64(), to_int64(rounded), valid)


def to_int64(values: Array) -> Array:
    """Truncate floats to int64 as Java does: NaN to 0, too large to the nearest limit."""
    edge = float(1 << 63)
    low, high = values < -edge, values >= edge
    with np.errstate(all="ignore"):
        inside = np.where(low | high | np.isnan(values), 0, values).astype(np.int64)
    inside[low] = np.iinfo(np.int64).min
    inside[high] = INT64_MAX
    return inside


def _is_nan(_node: Call, operands: list[Vector], _length: int) -> Vector:
    (vector,) = operands
    nan = np.isnan(vector.values)
    return Vector(pa.bool_(), nan if vector.valid is None else nan & vector.valid)


FUNCTIONS: dict[Function, Run] = {
    Function.ADD: _binary,
    Function.SUBTRACT: _binary,
    Function.MULTIPLY: _binary,
    Function.DIVIDE: _binary,
    Function.INTEGRAL_DIVIDE: _binary,
    Function.REMAINDER: _binary,
    Function.PMOD: _binary,
    Function.NEGATE: _signed(np.negative, decimals.negate),
    Function.ABS: _signed(np.abs, decimals.absolute),
    Function.FLOOR: _floor_or_ceil,
    Function.CEIL: _floor_or_ceil,
    Function.SQRT: of_arrays(np.sqrt),
    Function.IS_NAN: _is_nan,
    Function.UNSCALED_VALUE: of_arrays(lambda unscaled: unscaled),
}
