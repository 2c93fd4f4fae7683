"""Arithmetic of integers and floats on the device. Decimals are computed by pipelines only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.expressions import values as v
from gpujoin.backends.cudf.expressions.offer import Active, Offer, accepted, strict, types
from gpujoin.backends.cudf.expressions.values import Value, mask_and, mask_and_not
from gpujoin.model.expressions import Call, EvalMode, Function

if TYPE_CHECKING:
    from gpujoin.backends.cudf.expressions.evaluator import Evaluator


def _is_nan(run: Evaluator, node: Call, active: Active) -> Value:
    value = run.fixed(node.arguments[0], active)
    nan = v.equal(run.xp, value, v.constant(run.xp, float("nan"), value.dtype))
    return Value(pa.bool_(), nan if value.valid is None else nan & value.valid)


def _checked(compute: Callable[..., tuple[Array, Array | None]]) -> Offer:
    """Offer a function of numbers of one type; ``compute`` returns the result and the mask of overflows."""

    def run(run: Evaluator, node: Call, active: Active) -> Value:
        arrays: list[Array] = []
        valid: Array | None = None
        for argument in node.arguments:
            value = run.fixed(argument, mask_and(active, valid))
            arrays.append(value.data)
            valid = mask_and(valid, value.valid)
        result, failed = compute(run.xp, *arrays)
        return run.checked(node, result, valid, failed, active)

    return Offer(_of_one_type, run)


def _division(run: Evaluator, node: Call, active: Active) -> Value:
    """Evaluate the divisor first, as Spark does: the dividend is not evaluated where it is null or zero."""
    assert node.type is not None
    right = run.fixed(node.arguments[1], active)
    zero = right.data == 0
    left = run.fixed(node.arguments[0], mask_and_not(mask_and(active, right.valid), zero))
    valid = mask_and(left.valid, right.valid)
    if node.mode is EvalMode.ANSI:
        run.fail_if(mask_and(mask_and(zero, valid), active), f"{node}: division by zero")
    safe = run.xp.where(zero, 1, right.data).astype(right.data.dtype)
    valid = mask_and_not(valid, zero)
    if node.function is Function.DIVIDE:
        return Value(node.type, left.data / safe, valid)
    if node.function is Function.REMAINDER:
        return Value(node.type, v.remainder(run.xp, left.data, safe), valid)
    if node.function is Function.PMOD:
        return Value(node.type, v.positive_remainder(run.xp, left.data, safe), valid)
    result, failed = v.quotient(run.xp, left.data, safe)
    return run.checked(node, result, valid, failed, active)


def _integral(run: Evaluator, node: Call, active: Active) -> Value:
    """``floor`` and ``ceil``, as int64."""
    value = run.fixed(node.arguments[0], active)
    if not pat.is_floating(value.dtype):
        return Value(pa.int64(), value.data.astype("int64"), value.valid)
    rounded = (run.xp.floor if node.function is Function.FLOOR else run.xp.ceil)(value.data)
    failed = ~((rounded >= -(2.0**63)) & (rounded < 2.0**63))
    return run.checked(node, v.truncated(run.xp, rounded), value.valid, failed, active)


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
