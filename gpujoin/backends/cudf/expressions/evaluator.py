"""Evaluates resolved expressions on the device, for the rows for which Spark would; knows which it can, without one.

Not offered are regular expressions (libcudf's dialect differs), decimal arithmetic, time zones with rules, nested
values, byte strings, and casts that may fail or whose result depends on settings. Where the result depends on values
that the device may not compute as Spark does, a function looks at them first, and raises ``DeviceValueError``:
characters of text that is no UTF-8, cases of characters other than ASCII, and halves of doubles with many digits.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.types as pat

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.expressions import arithmetic, bits, dates, logic, rounding, text
from gpujoin.backends.cudf.expressions import values as v
from gpujoin.backends.cudf.expressions.offer import Offer, is_fixed
from gpujoin.backends.cudf.expressions.operands import Active, Operands, Text
from gpujoin.backends.cudf.expressions.values import NARROW_DIGITS, Value, mask_and, mask_and_not
from gpujoin.errors import GpuJoinError
from gpujoin.functions.casts import is_lossless
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, Expression, Function, Literal

FUNCTIONS: dict[Function, Offer] = {
    **logic.FUNCTIONS,
    **arithmetic.FUNCTIONS,
    **bits.FUNCTIONS,
    **rounding.FUNCTIONS,
    **text.FUNCTIONS,
    **dates.FUNCTIONS,
}
"""The functions that are offered, and how they are computed."""


@dataclass(frozen=True)
class Evaluator(Operands):
    """Evaluates the expressions that :func:`can_evaluate` accepts."""

    def mask(self, condition: Expression, length: int) -> Array:
        """Mask of the rows for which a condition is true."""
        true = self.true(self.fixed(condition, None))
        return self.xp.ascontiguousarray(self.xp.broadcast_to(true, (length,)))

    def any(self, node: Expression, active: Active) -> Value | Text:
        """Evaluate a node."""
        if isinstance(node, ColumnRef):
            return self.source.column(node)
        if isinstance(node, Literal):
            assert node.type is not None
            return (
                self.source.text(node.value) if pat.is_string(node.type) else v.constant(self.xp, node.value, node.type)
            )
        if isinstance(node, Call):
            return FUNCTIONS[node.function].run(self, node, active)
        if isinstance(node, Cast):
            return self._cast(node, active)
        if isinstance(node, Case):
            return self._case(node, active)
        raise GpuJoinError(f"{node!r} cannot be evaluated on a GPU")

    def _case(self, node: Case, active: Active) -> Value | Text:
        left = active
        branches: list[tuple[Array, Value | Text]] = []
        for condition, branch in zip(node.conditions, node.values, strict=True):
            met = self.true(self.fixed(condition, left))
            branches.append((met, self.any(branch, mask_and(left, met))))
            left = mask_and_not(left, met)
        result = self.any(node.otherwise, left)
        for met, branch_value in reversed(branches):
            result = self.chosen(met, branch_value, result)
        return result

    def _cast(self, node: Cast, active: Active) -> Value:
        value, target = self.fixed(node.child, active), node.type
        assert target is not None
        if value.dtype == target:
            return value
        if pat.is_decimal(target):
            return v.scaled(value, target)
        if pat.is_timestamp(value.dtype):
            return Value(target, v.day_of_timestamp(value).astype("int32"), value.valid)
        if pat.is_float32(value.dtype):
            return Value(target, v.widened(self.xp, value.data), value.valid)
        return Value(target, value.data.astype(v.numpy_name(target)), value.valid)


# -- what is offered -------------------------------------------------------------------------------------------


def can_evaluate(condition: Expression) -> bool:
    """Whether a resolved boolean expression is evaluated exactly as in Spark."""
    return condition.type is not None and pat.is_boolean(condition.type) and _offered(condition)


def _offered(node: Expression) -> bool:
    if node.type is None:
        return False
    if isinstance(node, Literal | ColumnRef):
        unsigned = isinstance(node, ColumnRef) and pat.is_unsigned_integer(node.type)
        return is_fixed(node.type) or pat.is_string(node.type) or unsigned
    if isinstance(node, Call):
        if node.function in (Function.IS_NULL, Function.IS_NOT_NULL) and isinstance(node.arguments[0], ColumnRef):
            return True
        return fits_function(node) and all(map(_offered, node.arguments))
    if isinstance(node, Cast):
        return cast_fits(node) and _offered(node.child)
    if isinstance(node, Case):
        return (
            (is_fixed(node.type) or pat.is_string(node.type))
            and all(c.type == node.type for c in (*node.values, node.otherwise))
            and all(map(_offered, node.children))
        )
    return False


def cast_fits(node: Cast) -> bool:
    """Whether a cast cannot fail, and has a result that does not depend on settings."""
    source, target = node.child.type, node.type
    if source is None or target is None:
        return False
    if source == target:
        return is_fixed(source)
    if pat.is_integer(source):
        unsigned = pat.is_unsigned_integer(source)
        if pat.is_signed_integer(target):
            return bool(source.bit_width + unsigned <= target.bit_width)
        if pat.is_decimal128(target):
            narrow = target.precision <= NARROW_DIGITS and target.scale >= 0
            return narrow and is_lossless(source, target)
        return (pat.is_float64(target) or pat.is_float32(target)) and not unsigned
    if pat.is_float32(source):
        return pat.is_float64(target)
    if pat.is_decimal128(source) and pat.is_decimal128(target):
        return is_lossless(source, target) and target.precision <= NARROW_DIGITS
    return pat.is_timestamp(source) and source.tz is None and pat.is_date32(target)


def fits_function(node: Call) -> bool:
    """Whether a call's function is offered for the types of its operands."""
    offer = FUNCTIONS.get(node.function)
    return offer is not None and offer.fits(node)
