"""Logic, comparisons and null tests on the device."""

from __future__ import annotations

import pyarrow as pa

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.expressions import values as v
from gpujoin.backends.cudf.expressions.offer import Offer, accepted, alike, alike_result, strict
from gpujoin.backends.cudf.expressions.operands import Active, Operands, Text
from gpujoin.backends.cudf.expressions.values import Value, mask_and, mask_and_not
from gpujoin.functions.comparison import OPERATORS
from gpujoin.model.expressions import Call, ColumnRef, Function


def _and(operands: Operands, node: Call, active: Active) -> Value:
    return _junction(operands, node, active, absorbing=False)


def _or(operands: Operands, node: Call, active: Active) -> Value:
    return _junction(operands, node, active, absorbing=True)


def _junction(operands: Operands, node: Call, active: Active, *, absorbing: bool) -> Value:
    """AND (``absorbing`` false) or OR (true). An operand is evaluated only where earlier ones leave it undecided."""
    result: Value | None = None
    for argument in node.arguments:
        value = operands.fixed(argument, active)
        decided = _is(value, absorbing)
        active = mask_and_not(active, decided)
        if result is None:
            result = value
            continue
        settled = _is(result, absorbing) | decided
        valid = mask_and(result.valid, value.valid)
        data = settled if absorbing else ~settled
        result = Value(value.dtype, data, None if valid is None else valid | settled)
    assert result is not None
    return result


def _is(value: Value, wanted: bool) -> Array:
    hit = value.data if wanted else ~value.data
    return hit if value.valid is None else hit & value.valid


def _compared(operands: Operands, function: Function, left: Value | Text, right: Value | Text) -> Array:
    if not isinstance(left, Value):
        return left.compare(function, right)
    assert isinstance(right, Value)
    match function:
        case Function.EQ:
            return v.equal(operands.xp, left, right)
        case Function.NE:
            return ~v.equal(operands.xp, left, right)
        case Function.LT:
            return v.less(operands.xp, left, right)
        case Function.GE:
            return ~v.less(operands.xp, left, right)
        case Function.GT:
            return v.less(operands.xp, right, left)
        case _:
            return ~v.less(operands.xp, right, left)


def _comparison(operands: Operands, node: Call, active: Active) -> Value:
    left = operands.any(node.arguments[0], active)
    right = operands.any(node.arguments[1], mask_and(active, left.valid))
    return Value(pa.bool_(), _compared(operands, node.function, left, right), mask_and(left.valid, right.valid))


def _null_safe(operands: Operands, node: Call, active: Active) -> Value:
    left, right = (operands.any(a, active) for a in node.arguments)
    same = _compared(operands, Function.EQ, left, right)
    if left.valid is None and right.valid is None:
        return Value(pa.bool_(), same)
    yes = operands.xp.ones(1, dtype=bool)
    left_valid, right_valid = (yes if side.valid is None else side.valid for side in (left, right))
    return Value(pa.bool_(), (same & left_valid & right_valid) | (~left_valid & ~right_valid))


def _in(operands: Operands, node: Call, active: Active) -> Value:
    """True on a match, else null if anything compared was null; an empty list gives false, even for null."""
    if len(node.arguments) == 1:
        return Value(pa.bool_(), operands.xp.zeros(1, dtype=bool))
    value = operands.any(node.arguments[0], active)
    active = mask_and(active, value.valid)
    is_member: Array = operands.xp.zeros(1, dtype=bool)
    all_valid = value.valid
    for argument in node.arguments[1:]:
        other = operands.any(argument, active)
        hit = _compared(operands, Function.EQ, value, other)
        hit = hit if other.valid is None else hit & other.valid
        is_member = is_member | (hit if value.valid is None else hit & value.valid)
        all_valid = mask_and(all_valid, other.valid)
        active = mask_and_not(active, is_member)
    return Value(pa.bool_(), is_member, None if all_valid is None else is_member | all_valid)


def _null_test(operands: Operands, node: Call, active: Active) -> Value:
    argument = node.arguments[0]
    valid = (
        operands.source.column_valid(argument)
        if isinstance(argument, ColumnRef)
        else operands.any(argument, active).valid
    )
    wants_null = node.function is Function.IS_NULL
    if valid is None:
        return Value(pa.bool_(), operands.xp.full(1, not wants_null, dtype=bool))
    return Value(pa.bool_(), ~valid if wants_null else valid)


def _coalesce(operands: Operands, node: Call, active: Active) -> Value | Text:
    parts: list[Value | Text] = []
    for argument in node.arguments:
        part = operands.any(argument, active)
        parts.append(part)
        if part.valid is None:
            break
        active = mask_and(active, ~part.valid)
    result = parts[-1]
    for part in reversed(parts[:-1]):
        assert part.valid is not None
        result = operands.chosen(part.valid, part, result)
    return result


def _extreme(operands: Operands, node: Call, active: Active) -> Value | Text:
    """``greatest`` and ``least``: nulls are skipped."""
    function = Function.GT if node.function is Function.GREATEST else Function.LT
    best = operands.any(node.arguments[0], active)
    for argument in node.arguments[1:]:
        other = operands.any(argument, active)
        better = _compared(operands, function, other, best)
        if other.valid is not None:
            better = better & other.valid
        if best.valid is not None:
            better = better | ~best.valid
        best = operands.chosen(better, other, best)
    return best


def _nanvl(operands: Operands, node: Call, active: Active) -> Value | Text:
    """The second operand where the first is NaN; null where the first is."""
    first = operands.fixed(node.arguments[0], active)
    nan = v.equal(operands.xp, first, v.constant(operands.xp, float("nan"), first.dtype))
    nan = nan if first.valid is None else nan & first.valid
    return operands.chosen(nan, operands.fixed(node.arguments[1], mask_and(active, nan)), first)


FUNCTIONS: dict[Function, Offer] = {
    Function.AND: Offer(accepted, _and),
    Function.OR: Offer(accepted, _or),
    Function.NOT: strict(lambda _, value: ~value.data),
    **dict.fromkeys(OPERATORS, Offer(alike, _comparison)),
    Function.EQ_NULL_SAFE: Offer(alike, _null_safe),
    Function.IN: Offer(alike, _in),
    Function.IS_NULL: Offer(lambda _: True, _null_test),
    Function.IS_NOT_NULL: Offer(lambda _: True, _null_test),
    Function.COALESCE: Offer(alike_result, _coalesce),
    Function.GREATEST: Offer(alike_result, _extreme),
    Function.LEAST: Offer(alike_result, _extreme),
    Function.NANVL: Offer(alike_result, _nanvl),
}
