"""Arithmetic of integers and floats on the device. Decimals are computed by pipelines only."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.expressions import values as v
from gpujoin.backends.cudf.expressions.offer import Offer, accepted, strict, types
from gpujoin.backends.cudf.expressions.operands import Active, Operands
from gpujoin.backends.cudf.expressions.values import Value, mask_and, mask_and_not
from gpujoin.model.expressions import Call, EvalMode, Function


def _is_nan(operands: Operands, node: Call, active: Active) -> Value:
    value = operands.fixed(node.arguments[0], active)
    nan = v.equal(operands.xp, value, v.constant(operands.xp, float("nan"), value.dtype))
    return Value(pa.bool_(), nan if value.valid is None else nan & value.valid)


def _checked(compute: Callable[..., tuple[Array, Array | None]]) -> Offer:
    """Offer a function of numbers of one type; ``compute`` returns the result and the mask of overflows."""

    def evaluate(operands: Operands, node: Call, active: Active) -> Value:
        arrays: list[Array] = []
        valid: Array | None = None
        for argument in node.arguments:
            value = operands.fixed(argument, mask_and(active, valid))
            arrays.append(value.data)
            valid = mask_and(valid, value.valid)
        result, failed = compute(operands.xp, *arrays)
        return operands.checked(node, result, valid, failed, active)

    return Offer(_of_one_type, evaluate)


def _division(operands: Operands, node: Call, active: Active) -> Value:
    """Evaluate the divisor first, as Spark does: the dividend is not evaluated where it is null or zero."""
    assert node.type is not None
    right = operands.fixed(node.arguments[1], active)
    zero = right.data == 0
    left = operands.fixed(node.arguments[0], mask_and_not(mask_and(active, right.valid), zero))
    valid = mask_and(left.valid, right.valid)
    if node.mode is EvalMode.ANSI:
        operands.fail_if(mask_and(mask_and(zero, valid), active), f"{node}: division by zero")
    safe = operands.xp.where(zero, 1, right.data).astype(right.data.dtype)
    valid = mask_and_not(valid, zero)
    if node.function is Function.DIVIDE:
        return Value(node.type, left.data / safe, valid)
    if node.function is Function.REMAINDER:
        return Value(node.type, v.remainder(operands.xp, left.data, safe), valid)
    if node.function is Function.PMOD:
        return Value(node.type, v.positive_remainder(operands.xp, left.data, safe), valid)
    result, failed = v.quotient(operands.xp, left.data, safe)
    return operands.checked(node, result, valid, failed, active)


def _integral(operands: Operands, node: Call, active: Active) -> Value:
    """``floor`` and ``ceil``, as int64."""
    value = operands.fixed(node.arguments[0], active)
    if not pat.is_floating(value.dtype):
        return Value(pa.int64(), value.data.astype("int64"), value.valid)
    rounded = (operands.xp.floor if node.function is Function.FLOOR else operands.xp.ceil)(value.data)
    failed = ~((rounded >= -(2.0**63)) & (rounded < 2.0**63))
    return operands.checked(node, v.truncated(operands.xp, rounded), value.valid, failed, active)


def _to_whole(node: Call) -> bool:
    (kind,) = types(node)
    return bool(pat.is_int64(node.type)) and (pat.is_signed_integer(kind) or pat.is_float64(kind))


def _whole(node: Call) -> bool:
    return pat.is_signed_integer(node.type) and all(t == node.type for t in types(node))


def _double(node: Call) -> bool:
    return all(map(pat.is_float64, [*types(node), node.type]))


def _of_one_type(node: Call) -> bool:
    return _whole(node) or _double(node)


FUNCTIONS: dict[Function, Offer] = {
    Function.ADD: _checked(lambda _, left, right: v.add(left, right)),
    Function.SUBTRACT: _checked(lambda _, left, right: v.subtract(left, right)),
    Function.MULTIPLY: _checked(v.multiply),
    Function.NEGATE: _checked(v.negate),
    Function.ABS: _checked(v.absolute),
    Function.DIVIDE: Offer(_double, _division),
    Function.INTEGRAL_DIVIDE: Offer(_whole, _division),
    Function.REMAINDER: Offer(_of_one_type, _division),
    Function.PMOD: Offer(_of_one_type, _division),
    Function.FLOOR: Offer(_to_whole, _integral),
    Function.CEIL: Offer(_to_whole, _integral),
    Function.SQRT: strict(lambda xp, value: xp.sqrt(value.data)),
    Function.IS_NAN: Offer(accepted, _is_nan),
}
