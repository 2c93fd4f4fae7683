"""Translates comparisons, logic and null tests to Polars expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_, or_

import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.pipeline.columns import polars_type
from gpujoin.backends.cpu.pipeline.lowering.lowered import (
    Lowered,
    NotLowered,
    Rule,
    aligned,
    fitted,
    of_values,
    rescaled,
    result_type,
    same_kind,
)
from gpujoin.model.expressions import Call, Function, Literal
from gpujoin.model.types import is_text, is_whole

_COMPARE: dict[Function, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    Function.EQ: lambda a, b: a == b,
    Function.NE: lambda a, b: a != b,
    Function.LT: lambda a, b: a < b,
    Function.LE: lambda a, b: a <= b,
    Function.GT: lambda a, b: a > b,
    Function.GE: lambda a, b: a >= b,
    Function.EQ_NULL_SAFE: lambda a, b: a.eq_missing(b),
}


def _comparable(values: Sequence[Lowered]) -> list[Lowered]:
    first = values[0].dtype
    if pat.is_decimal(first) and all(pat.is_decimal(v.dtype) for v in values):
        scale = max(v.dtype.scale for v in values)
        values = [rescaled(v, scale) for v in values]
        wide = any(v.wide for v in values)
        return [Lowered(fitted(v, wide=wide), v.dtype, v.bounds, wide) for v in values]
    if any(not same_kind(first, v.dtype) for v in values):
        raise NotLowered("operands of different types")
    wide = any(v.wide for v in values)
    return [Lowered(fitted(v, wide=wide), v.dtype, v.bounds, wide) for v in values]


def _comparison(node: Call, values: list[Lowered]) -> Lowered:
    left, right = _comparable(values)
    return Lowered(_COMPARE[node.function](left.expr, right.expr), pa.bool_())


def _in(node: Call, values: list[Lowered]) -> Lowered:
    values = _comparable(values)
    value, *elements = values
    if not elements:
        raise NotLowered("an empty IN")
    known = [a.value for a in node.arguments[1:] if isinstance(a, Literal) and a.value is not None]
    plain = is_text(value.dtype) or is_whole(value.dtype)
    if plain and len(known) == len(elements) and len(known) > 2:
        if value.wide:
            known = [text.encode() for text in known]
        wanted = pl.lit(pl.Series(known, dtype=polars_type(value.dtype, wide=value.wide)).implode())
        return Lowered(value.expr.is_in(wanted), pa.bool_())
    equal = (value.expr == element.expr for element in elements)
    return Lowered(reduce(lambda a, b: a | b, equal), pa.bool_())


def _coalesce(node: Call, values: list[Lowered]) -> Lowered:
    dtype = result_type(node)
    values, bounds, wide = aligned(values, dtype)
    return Lowered(pl.coalesce([v.expr for v in values]), dtype, bounds, wide)


FUNCTIONS: dict[Function, Rule] = {
    **dict.fromkeys(_COMPARE, _comparison),
    Function.AND: of_values(lambda *operands: reduce(and_, operands), pa.bool_()),
    Function.OR: of_values(lambda *operands: reduce(or_, operands), pa.bool_()),
    Function.NOT: of_values(lambda operand: ~operand, pa.bool_()),
    Function.IS_NULL: of_values(lambda operand: operand.is_null(), pa.bool_()),
    Function.IS_NOT_NULL: of_values(lambda operand: operand.is_not_null(), pa.bool_()),
    Function.IN: _in,
    Function.COALESCE: _coalesce,
}
