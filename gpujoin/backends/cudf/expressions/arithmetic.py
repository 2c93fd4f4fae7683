"""Arithmetic of integers and floats on the device; decimals are those of pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.expressions import values as v
from gpujoin.backends.cudf.expressions.offer import Active, Offer, types
from gpujoin.backends.cudf.expressions.values import Value, both, without
from gpujoin.model.expressions import Call, EvalMode, Function

if TYPE_CHECKING:
    from gpujoin.backends.cudf.expressions.evaluator import Evaluator


def _is_nan(run: Evaluator, node: Call, active: Active) -> Value:
    value = run.fixed(node.arguments[0], active)
    nan = v.equal(run.xp, value, v.constant(run.xp, float("nan"), value.dtype))
    return Value(pa.bool_(), nan if value.valid is None else nan & value.valid)


_PAIRWISE = {Function.ADD: v.add, Function.SUBTRACT: v.subtract}
_SINGLE = {Function.NEGATE: v.negate, Function.ABS: v.absolute}


def _binary(run: Evaluator, node: Call, active: Active) -> Value:
    left, right, valid = run.pair(node, active)
    if node.function is Function.MULTIPLY:
        result, failed = v.multiply(run.xp, left.data, right.data)
    else:
        result, failed = _PAIRWISE[node.function](left.data, right.data)
    return run.checked(node, result, valid, failed, active)


def _unary(run: Evaluator, node: Call, active: Active) -> Value:
    value = run.fixed(node.arguments[0], active)
    result, failed = _SINGLE[node.function](run.xp, value.data)
    return run.checked(node, result, value.valid, failed, active)


def _division(run: Evaluator, node: Call, active: Active) -> Value:
    """The divisor first, as in Spark: where it is null or zero the dividend is not evaluated."""
    assert node.type is not None
    right = run.fixed(node.arguments[1], active)
    zero = right.data == 0
    left = run.fixed(node.arguments[0], without(both(active, right.valid), zero))
    valid = both(left.valid, right.valid)
    if node.mode is EvalMode.ANSI:
        run.fail_if(both(both(zero, valid), active), f"{node}: division by zero")
    safe = run.xp.where(zero, 1, right.data).astype(right.data.dtype)
    valid = without(valid, zero)
    if node.function is Function.DIVIDE:
        return Value(node.type, left.data / safe, valid)
    if node.function is Function.REMAINDER:
        return Value(node.type, v.remainder(run.xp, left.data, safe), valid)
    result, failed = v.quotient(run.xp, left.data, safe)
    return run.checked(node, result, valid, failed, active)


def _arithmetic(node: Call) -> bool:
    kinds = types(node)
    return all(t == node.type for t in kinds) and (
        pat.is_signed_integer(node.type) or pat.is_float64(node.type)
    )


def _double(node: Call) -> bool:
    return all(map(pat.is_float64, [*types(node), node.type]))


def _whole(node: Call) -> bool:
    return pat.is_signed_integer(node.type) and all(t == node.type for t in types(node))


_SIMPLE = Offer(_arithmetic, _binary)
_SIGN = Offer(_arithmetic, _unary)
FUNCTIONS: dict[Function, Offer] = {
    Function.ADD: _SIMPLE,
    Function.SUBTRACT: _SIMPLE,
    Function.MULTIPLY: _SIMPLE,
    Function.NEGATE: _SIGN,
    Function.ABS: _SIGN,
    Function.DIVIDE: Offer(_double, _division),
    Function.INTEGRAL_DIVIDE: Offer(_whole, _division),
    Function.REMAINDER: Offer(_whole, _division),
    Function.IS_NAN: Offer(lambda node: pat.is_floating(types(node)[0]), _is_nan),
}
