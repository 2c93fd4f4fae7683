"""``round`` and ``bround`` of integers and doubles on the device. Decimals are rounded by pipelines only.

Spark rounds a double as the decimal that Java prints of it. How a double is compared with the half between two results,
and which doubles are too long for that comparison, is told in :mod:`gpujoin.backends.cpu.expressions.rounding`; the CPU
rounds those digit by digit, so a piece that has one raises ``DeviceValueError``.
"""

from __future__ import annotations

import pyarrow.types as pat

from gpujoin.backends.cudf.expressions.offer import Offer, accepted, types
from gpujoin.backends.cudf.expressions.operands import Active, Operands
from gpujoin.backends.cudf.expressions.values import Value, mask_and
from gpujoin.backends.ordered.reductions import any_true
from gpujoin.errors import DeviceValueError
from gpujoin.functions.rounding import MOST_DIGITS, constant_scale, round_by_halves
from gpujoin.model.expressions import Call, Function
from gpujoin.model.types import is_whole

_MOST_ZEROS = 18
"""Most digits before the point that are rounded away: a power of ten up to it is one 64-bit integer."""


def _round(operands: Operands, node: Call, active: Active) -> Value:
    value, scale = operands.fixed(node.arguments[0], active), constant_scale(node)
    assert scale is not None
    if pat.is_float64(value.dtype):
        return _double(operands, node, value, scale, active)
    if scale >= 0:
        return value
    return _integer(operands, node, value, 10**-scale, active)


def _integer(operands: Operands, node: Call, value: Value, unit: int, active: Active) -> Value:
    """Round to a multiple of a power of ten; what does not fit wraps around, or raises in ANSI mode."""
    xp, own = operands.xp, value.data.dtype
    wide = value.data.astype("int64")
    quotient = wide // unit
    rest = wide - quotient * unit
    # The quotient is rounded downwards, so that a half of a negative number is away from zero already.
    upwards = wide >= 0 if node.function is Function.ROUND else quotient % 2 != 0
    above = (rest > unit // 2) | ((rest == unit // 2) & upwards)
    step = xp.where(above, unit - rest, -rest)
    rounded = wide + step
    limits = xp.iinfo(own)
    bad = (rounded < limits.min) | (rounded > limits.max) | (((wide ^ rounded) & (step ^ rounded)) < 0)
    return operands.checked(node, rounded.astype(own), value.valid, bad, active)


def _double(operands: Operands, node: Call, value: Value, scale: int, active: Active) -> Value:
    rounded, unsure = round_by_halves(operands.xp, value.data, scale, node.function)
    looked_at = mask_and(mask_and(unsure, value.valid), active)
    if looked_at is not None and any_true(looked_at):
        raise DeviceValueError(f"{node}: a double has too many digits to be compared with a half")
    return Value(value.dtype, rounded + 0.0, value.valid)  # No decimal is a negative zero.


def _fits(node: Call) -> bool:
    """Whether integers or doubles are rounded to a number of digits at which the result is known to be Spark's."""
    scale, dtype = constant_scale(node), types(node)[0]
    if scale is None or not accepted(node):
        return False
    if pat.is_float64(dtype):
        return 0 <= scale <= MOST_DIGITS
    return is_whole(dtype) and scale >= -_MOST_ZEROS


_ROUND = Offer(_fits, _round)
FUNCTIONS: dict[Function, Offer] = {Function.ROUND: _ROUND, Function.ROUND_EVEN: _ROUND}
