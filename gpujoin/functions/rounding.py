"""Rounding to a constant number of digits, after the point or, if negative, before it.

``round(x, 1)`` of 2.25 is 2.3, ``round(x, -1)`` of 25 is 30. Integers keep their type; a decimal gets room for one more
digit before the point, as 9.9 becomes 10. ``ceil`` and ``floor`` of two operands convert theirs to a decimal first.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.signatures import (
    INT,
    NUMBER,
    Convert,
    Parameter,
    Signature,
    cast_to,
    to,
    type_of,
    typed,
    types_of,
)
from gpujoin.functions.spec import NOT_FUSED, ON_CPU, FunctionSpec, Raises
from gpujoin.functions.widening import decimal_for
from gpujoin.model.expressions import Call, EvalMode, Expression, Function, Literal
from gpujoin.model.types import MAX_PRECISION, is_float, is_whole

MOST_DIGITS = 15
"""Most digits after the point to which all versions of Java round doubles alike."""
_WHOLE = 2.0**52
"""Doubles from here on are integers."""
_RESOLVED = 2.0**51
"""Up to here a product of a double and a power of ten is known to less than a half."""
_SHORT_HALF = 1e14
"""Halves above lesser integers have at most 15 digits, so that the double of such a half is printed as it."""
_DECIMALS_OF_FLOATS = {pa.float32(): pa.decimal128(14, 7), pa.float64(): pa.decimal128(30, 15)}
"""The decimals that floats are converted to where a decimal is wanted."""
_NULL_AS_DECIMAL = to(pa.decimal128(38, 18))


def constant_scale(node: Expression) -> int | None:
    """The constant number of digits that a call rounds to; ``None`` if it is no constant."""
    scale = node.children[1]
    return int(scale.value) if isinstance(scale, Literal) and scale.value is not None else None


def round_by_halves(xp: Any, values: Any, scale: int, function: Function) -> tuple[Any, Any]:
    """Round doubles to 0 to 15 digits after the point, by comparing each with the half between two results.

    ``values`` is an array of the module ``xp``. Also returns the mask of the doubles that have too many digits for
    that. A result may be a negative zero, which no decimal is.
    """
    size, unit = xp.abs(values), 10.0**scale
    fractional = (size < _WHOLE) & (size != xp.floor(size))
    size = xp.where(fractional, size, 0.0)
    product = size * unit
    below = xp.floor(product)
    half = (2.0 * below + 1.0) / (2.0 * unit)
    at_half = size == half
    upwards = at_half if function is Function.ROUND else at_half & (below % 2.0 == 1.0)
    rounded = (below + ((size > half) | upwards)) / unit
    unsure = fractional & ((product >= _RESOLVED) | (at_half & (below >= _SHORT_HALF)))
    return xp.where(fractional, xp.copysign(rounded, values), values), unsure


def rounded_decimal(dtype: pa.DataType, scale: int) -> pa.DataType:
    """Type of a decimal that was rounded to a number of digits after the point."""
    whole = dtype.precision - dtype.scale + 1
    if scale < 0:
        return pa.decimal128(min(max(whole, 1 - scale), MAX_PRECISION), 0)
    kept = min(dtype.scale, scale)
    return pa.decimal128(min(whole + kept, MAX_PRECISION), kept)


def _to_decimal(source: pa.DataType, mode: EvalMode) -> pa.DataType | None:
    if is_whole(source) or pat.is_decimal(source):
        return decimal_for(source)
    return _DECIMALS_OF_FLOATS.get(source) or _NULL_AS_DECIMAL(source, mode)


def _rounding(convert: Convert) -> Signature:
    """Signature of a function of a number and a constant scale."""
    number = Parameter(NUMBER.accepts, convert)

    def resolve(node: Call) -> Call | None:
        value, scale = node.arguments
        target = number.convert(type_of(value), node.mode)
        if target is None or not isinstance(scale, Literal) or not isinstance(scale.value, int):
            return None
        scale = dataclasses.replace(scale, type=pa.int32())
        result = rounded_decimal(target, scale.value) if pat.is_decimal(target) else target
        return typed(node, result, cast_to(value, target, node.mode), scale)

    def accepts(node: Call) -> bool:
        value, scale = types_of(node)
        return number.accepts(value) and INT.accepts(scale)

    return Signature(resolve, accepts, (2, 2), (number, INT))


def _never_raises(node: Call) -> bool:
    """Whether no value can overflow: digits are dropped after the point alone, or a decimal has room for one more."""
    scale, dtype = constant_scale(node), types_of(node)[0]
    if is_float(dtype) or (scale is not None and scale >= 0):
        return True
    return pat.is_decimal(dtype) and scale is not None and max(dtype.precision - dtype.scale, -scale) < MAX_PRECISION


_NUMBERS = _rounding(NUMBER.convert)
_DECIMALS = _rounding(_to_decimal)
_F = Function

TABLE = (
    FunctionSpec(_F.ROUND, ("Round",), _NUMBERS, raises=Raises.ANSI_OR_DECIMAL, safe=_never_raises, lacks=NOT_FUSED),
    FunctionSpec(
        _F.ROUND_EVEN, ("BRound",), _NUMBERS, raises=Raises.ANSI_OR_DECIMAL, safe=_never_raises, lacks=NOT_FUSED
    ),
    FunctionSpec(
        _F.ROUND_CEIL, ("RoundCeil",), _DECIMALS, raises=Raises.ANSI_OR_DECIMAL, safe=_never_raises, lacks=ON_CPU
    ),
    FunctionSpec(
        _F.ROUND_FLOOR, ("RoundFloor",), _DECIMALS, raises=Raises.ANSI_OR_DECIMAL, safe=_never_raises, lacks=ON_CPU
    ),
)
