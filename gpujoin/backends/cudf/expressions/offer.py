"""Offers: for which operands a function is computed on the device, and its implementation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.expressions.operands import Active, Operands, Text
from gpujoin.backends.cudf.expressions.values import Value, is_wide, mask_and, numpy_name
from gpujoin.functions import SPECS
from gpujoin.model.expressions import Call, Expression


@dataclass(frozen=True)
class Offer:
    """The implementation of one function on the device."""

    fits: Callable[[Call], bool]
    """Whether the function is offered for the operand types and the result type of a call."""
    run: Callable[[Operands, Call, Active], Value | Text]
    """Computes a call for its active rows."""


def accepted(node: Call) -> bool:
    """Whether the operands have types that the function's signature accepts."""
    return SPECS[node.function].signature.accepts(node)


def strict(compute: Callable[..., Array], fits: Callable[[Call], bool] = accepted) -> Offer:
    """Offer a function of fixed-width values whose result is null where an operand is null."""

    def evaluate(operands: Operands, node: Call, active: Active) -> Value:
        assert node.type is not None
        values: list[Value] = []
        valid: Array | None = None
        for argument in node.arguments:
            values.append(operands.fixed(argument, mask_and(active, valid)))
            valid = mask_and(valid, values[-1].valid)
        return Value(node.type, compute(operands.xp, *values).astype(numpy_name(node.type)), valid)

    return Offer(fits, evaluate)


def is_fixed(dtype: pa.DataType | None) -> bool:
    """Whether values of a type are arrays: booleans, signed integers, floats, decimals, dates, timestamps."""
    return dtype is not None and (
        pat.is_boolean(dtype) or pat.is_signed_integer(dtype) or pat.is_float32(dtype) or pat.is_float64(dtype)
        or pat.is_decimal128(dtype) or pat.is_date32(dtype) or pat.is_timestamp(dtype)
    )  # fmt: skip


def types(node: Expression) -> list[pa.DataType]:
    """Types of a node's operands."""
    return [child.type for child in node.children if child.type is not None]


def alike(node: Call) -> bool:
    """Whether all operands have the same comparable type; decimals may differ in precision, but not in scale."""
    first, *others = types(node)
    if pat.is_decimal128(first):
        return all(pat.is_decimal128(t) and t.scale == first.scale and is_wide(t) == is_wide(first) for t in others)
    return (is_fixed(first) or pat.is_string(first)) and all(t == first for t in others)


def alike_result(node: Call) -> bool:
    """Whether all operands have the type of the result."""
    return alike(node) and node.type == types(node)[0]
