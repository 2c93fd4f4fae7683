"""Comparisons: NaN equals NaN and is greater than all else, −0.0 equals 0.0, text and bytes compare bytewise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.backends.cpu.expressions.decimals import common_scale
from gpujoin.backends.cpu.expressions.implementation import Run
from gpujoin.backends.cpu.expressions.nestedbytes import to_bytes
from gpujoin.backends.cpu.expressions.vector import (
    Array,
    Mask,
    Vector,
    as_numpy_bool,
    choose,
    from_arrow,
    mask_and,
)
from gpujoin.functions.comparison import OPERATORS, has_lists
from gpujoin.model.expressions import Call, Function
from gpujoin.model.types import is_bytes, is_float, is_text

_NUMPY: dict[Function, Callable[[Any, Any], Any]] = {
    Function.EQ: np.equal,
    Function.NE: np.not_equal,
    Function.LT: np.less,
    Function.LE: np.less_equal,
    Function.GT: np.greater,
    Function.GE: np.greater_equal,
}
_ARROW: dict[Function, Callable[[Any, Any], Any]] = {
    Function.EQ: pc.equal,
    Function.NE: pc.not_equal,
    Function.LT: pc.less,
    Function.LE: pc.less_equal,
    Function.GT: pc.greater,
    Function.GE: pc.greater_equal,
}
_UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def compare(function: Function, left: Vector, right: Vector) -> Vector:
    """Compare two columns of one type by ``= != < <= > >=`` or ``<=>``.

    Decimals may differ in scale and timestamps in unit; the comparison is exact. The result is null where an operand
    is, except for ``<=>``.
    """
    if function is Function.EQ_NULL_SAFE:
        return _null_safe(left, right)
    return Vector(pa.bool_(), _values(function, left, right), mask_and(left.mask(), right.mask()))


def _null_safe(left: Vector, right: Vector) -> Vector:
    equal = _values(Function.EQ, left, right)
    left_valid, right_valid = left.mask(), right.mask()
    if left_valid is None and right_valid is None:
        return Vector(pa.bool_(), equal)
    left_valid = np.ones(1, np.bool_) if left_valid is None else left_valid
    right_valid = np.ones(1, np.bool_) if right_valid is None else right_valid
    return Vector(pa.bool_(), (equal & left_valid & right_valid) | ~(left_valid | right_valid))


def _values(function: Function, left: Vector, right: Vector) -> Mask:
    if has_lists(left.dtype):
        return _arrow_values(function, *(_as_bytes(operand) for operand in (left, right)))
    if pat.is_struct(left.dtype):
        return _by_sign(function, _struct_sign(left, right))
    if is_text(left.dtype) or is_bytes(left.dtype):
        return _arrow_values(function, left, right)
    if is_float(left.dtype):
        return _float_values(function, left, right)
    if pat.is_decimal(left.dtype):
        left_unscaled, right_unscaled = common_scale(left, right)
        return np.asarray(_NUMPY[function](left_unscaled, right_unscaled), np.bool_)
    if pat.is_timestamp(left.dtype) and left.dtype.unit != right.dtype.unit:
        return _by_sign(function, _instant_sign(left, right))
    return np.asarray(_NUMPY[function](left.values, right.values))


def _as_bytes(operand: Vector) -> Vector:
    return Vector(pa.binary(), to_bytes(operand.values, compared=True), constant=operand.constant)


def _arrow_values(function: Function, left: Vector, right: Vector) -> Mask:
    left_values = left.values[0] if left.constant and not right.constant else left.values
    right_values = right.values[0] if right.constant and not left.constant else right.values
    result = _ARROW[function](left_values, right_values)
    return as_numpy_bool(result.fill_null(False) if result.null_count else result)


def _float_values(function: Function, left: Vector, right: Vector) -> Mask:
    a, b = left.values, right.values
    match function:
        case Function.NE:
            return ~_float_values(Function.EQ, left, right)
        case Function.GT:
            return _float_values(Function.LT, right, left)
        case Function.GE:
            return _float_values(Function.LE, right, left)
    if right.constant and not np.isnan(b[0]):
        return np.asarray(_NUMPY[function](a, b))
    if left.constant and not np.isnan(a[0]):
        # Also true where the other is NaN, which is greater than any number.
        return np.asarray(a == b) if function is Function.EQ else ~_NUMPY[_OPPOSITE[function]](a, b)
    match function:
        case Function.EQ:
            return np.asarray((a == b) | ((a != a) & (b != b)))
        case Function.LE:
            return np.asarray((a <= b) | (b != b))
        case _:
            return np.asarray(~(a >= b) & (a == a))


_OPPOSITE = {Function.LT: Function.GE, Function.LE: Function.GT}


def _by_sign(function: Function, sign: npt.NDArray[np.int8]) -> Mask:
    return np.asarray(_NUMPY[function](sign, 0))


def _instant_sign(left: Vector, right: Vector) -> npt.NDArray[np.int8]:
    """Compare timestamps of two units without leaving 64 bits: the finer one is split into quotient and rest."""
    left_units, right_units = (_UNITS_PER_SECOND[v.dtype.unit] for v in (left, right))
    if left_units < right_units:
        return np.asarray(-_instant_sign(right, left), np.int8)
    whole, rest = np.divmod(left.values, left_units // right_units)
    sign = (whole > right.values).astype(np.int8) - (whole < right.values).astype(np.int8)
    return np.asarray(np.where((sign == 0) & (rest > 0), 1, sign), np.int8)


def _struct_sign(left: Vector, right: Vector) -> npt.NDArray[np.int8]:
    """Compare structs field by field; inside a struct nulls equal each other and come first."""
    length = max(len(left.values), len(right.values))
    left, right = left.expand(length), right.expand(length)
    sign = np.zeros(length, np.int8)
    for i in range(left.dtype.num_fields):
        undecided = sign == 0
        if not undecided.any():
            break
        left_field = from_arrow(pc.struct_field(left.values, [i]))
        right_field = from_arrow(pc.struct_field(right.values, [i]))
        sign = np.where(undecided, _sign(left_field, right_field), sign)
    return sign


def _sign(left: Vector, right: Vector) -> npt.NDArray[np.int8]:
    less, equal = _values(Function.LT, left, right), _values(Function.EQ, left, right)
    sign: Array = np.where(equal, 0, np.where(less, -1, 1)).astype(np.int8)
    left_valid, right_valid = left.mask(), right.mask()
    if left_valid is None and right_valid is None:
        return sign
    left_valid = np.ones(len(sign), np.bool_) if left_valid is None else left_valid
    right_valid = np.ones(len(sign), np.bool_) if right_valid is None else right_valid
    by_null = left_valid.astype(np.int8) - right_valid.astype(np.int8)
    return np.where(left_valid & right_valid, sign, by_null)


def _extreme(node: Call, vectors: list[Vector], _length: int) -> Vector:
    """Compute ``greatest`` or ``least``: nulls are skipped, NaN is the greatest."""
    assert node.type is not None
    function = Function.GT if node.function is Function.GREATEST else Function.LT
    best = vectors[0]
    for vector in vectors[1:]:
        better = compare(function, vector, best).values
        best_valid, valid = best.mask(), vector.mask()
        if valid is not None:
            better = better & valid
        if best_valid is not None:
            better = better | (~best_valid if valid is None else ~best_valid & valid)
        best = choose(better, vector, best, node.type)
    return best


def _compared(node: Call, operands: list[Vector], _length: int) -> Vector:
    return compare(node.function, *operands)


FUNCTIONS: dict[Function, Run] = {
    **dict.fromkeys((*OPERATORS, Function.EQ_NULL_SAFE), _compared),
    Function.GREATEST: _extreme,
    Function.LEAST: _extreme,
}
