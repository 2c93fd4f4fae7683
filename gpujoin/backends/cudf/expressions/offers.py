"""Which conditions the device evaluates exactly as Spark does; the others are left to the CPU.

Not offered: regular expressions (of another dialect), case mapping, decimal arithmetic, time zones with rules, nested
values, byte strings, and casts that may fail or whose result depends on settings.
"""

from __future__ import annotations

import pyarrow.types as pat

from gpujoin.backends.cudf.expressions.evaluator import FUNCTIONS
from gpujoin.backends.cudf.expressions.offer import is_fixed
from gpujoin.backends.cudf.expressions.values import NARROW_DIGITS
from gpujoin.functions.casts import is_lossless
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, Expression, Function, Literal


def can_evaluate(condition: Expression) -> bool:
    """Whether a resolved boolean expression, with all below it, evaluates here exactly as in Spark."""
    return condition.type is not None and pat.is_boolean(condition.type) and _offered(condition)


def _offered(node: Expression) -> bool:
    if node.type is None:
        return False
    if isinstance(node, Literal | ColumnRef):
        unsigned = isinstance(node, ColumnRef) and pat.is_unsigned_integer(node.type)
        return is_fixed(node.type) or pat.is_string(node.type) or unsigned
    if isinstance(node, Call):
        if node.function in (Function.IS_NULL, Function.IS_NOT_NULL) and isinstance(
            node.arguments[0], ColumnRef
        ):
            return True
        return fits_function(node) and all(map(_offered, node.arguments))
    if isinstance(node, Cast):
        return cast_fits(node) and _offered(node.child)
    if isinstance(node, Case):
        return (
            is_fixed(node.type)
            and all(c.type == node.type for c in (*node.values, node.otherwise))
            and all(map(_offered, node.children))
        )
    return False


def cast_fits(node: Cast) -> bool:
    """Casts that cannot fail, and whose result does not depend on settings."""
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
    """Tell whether a call's function is offered for the types of its operands."""
    offer = FUNCTIONS.get(node.function)
    return offer is not None and offer.fits(node)
