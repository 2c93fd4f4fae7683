"""Translates casts to Polars expressions, where no value can fail."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.pipeline.columns import magnitude, polars_type, type_bounds, within
from gpujoin.backends.cpu.pipeline.lowering.lowered import Lowered, NotLowered, known, rescaled, same_kind
from gpujoin.model.types import is_whole

_EXACT_DOUBLE = 1 << 53
_EXACT_POWER = 22
_LONG_AND_INTERVAL = {pa.int64(), pa.duration("us")}
"""An interval is a number of microseconds."""


def cast(value: Lowered, target: pa.DataType) -> Lowered:
    """Convert values to another type."""
    source = value.dtype
    if same_kind(source, target) and not pat.is_decimal(target):
        return Lowered(value.expr, target, value.bounds, value.wide)
    if pat.is_decimal(target) and (pat.is_decimal(source) or is_whole(source)):
        return _to_decimal(value, target)
    if {source, target} == _LONG_AND_INTERVAL:
        return Lowered(value.expr.cast(polars_type(target)), target, type_bounds(target))
    if is_whole(source) and is_whole(target):
        limits = type_bounds(target)
        assert limits is not None
        if not within(known(value), limits):
            raise NotLowered(f"values beyond {target}")
        return Lowered(value.expr.cast(polars_type(target)), target, value.bounds)
    if pat.is_float64(target) and (is_whole(source) or pat.is_float32(source)):
        return Lowered(value.expr.cast(pl.Float64), target)
    if pat.is_float64(target) and pat.is_decimal(source):
        # Both are exact doubles, so the division rounds once. The divisor is a column, since Polars multiplies by the
        # reciprocal of a constant.
        if magnitude(known(value)) >= _EXACT_DOUBLE or source.scale > _EXACT_POWER:
            raise NotLowered("a decimal that is no exact double")
        number = value.expr.cast(pl.Float64)
        return Lowered(number / (number * 0.0 + float(10**source.scale)), target)
    raise NotLowered(f"a cast of {source} to {target}")


def _to_decimal(value: Lowered, target: pa.DataType) -> Lowered:
    if is_whole(value.dtype):
        value = Lowered(value.expr.cast(pl.Int64), pa.decimal128(20, 0), value.bounds)
    value = rescaled(value, target.scale)
    limits = type_bounds(target)
    assert limits is not None
    if not within(known(value), limits):
        raise NotLowered(f"values beyond {target}")
    return Lowered(value.expr, target, value.bounds, value.wide)
