"""Knows which expressions and nodes a pipeline computes on the device exactly as Spark does.

These are the expressions of join conditions (:mod:`gpujoin.backends.cudf.expressions.evaluator`), and also sums,
differences and products of decimals whose scale Spark does not reduce, and casts of integers and decimals to wider
decimals.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.expressions.evaluator import can_evaluate, cast_fits, fits_function
from gpujoin.backends.cudf.expressions.values import NARROW_DIGITS, is_wide
from gpujoin.functions.casts import is_lossless
from gpujoin.model.aggregates import CENTRAL_MOMENTS, AggregateFunction
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, EvalMode, Expression, Function, Literal
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.relations import Explode, Join, PartialAggregate, Relation, Window
from gpujoin.model.types import MAX_PRECISION, is_float, is_text, is_whole, logical

_AGGREGATES = CENTRAL_MOMENTS | {
    AggregateFunction.SUM, AggregateFunction.COUNT, AggregateFunction.MIN, AggregateFunction.MAX, AggregateFunction.AVG,
    AggregateFunction.FIRST, AggregateFunction.LAST,
}  # fmt: skip
_ARITHMETIC = frozenset({Function.ADD, Function.SUBTRACT, Function.MULTIPLY})
_EXACT_DIGITS = 15
"""Most digits of decimals that are converted to doubles by dividing two exact doubles, which rounds once."""


def can_carry(dtype: pa.DataType) -> bool:
    """Whether values of a type can be columns of a piece."""
    dtype = logical(dtype)
    if pat.is_timestamp(dtype):
        return bool(dtype.unit == "us")
    return _fixed(dtype) or pat.is_string(dtype) or pat.is_binary(dtype)


def carried(dtype: pa.DataType) -> pa.DataType:
    """Type in which the device carries values: decimals of up to 18 digits have 64 bits."""
    dtype = logical(dtype)
    if pat.is_decimal(dtype) and dtype.precision <= NARROW_DIGITS:
        return pa.decimal64(dtype.precision, dtype.scale)
    return dtype


def can_compute(node: Expression) -> bool:
    """Whether an expression is evaluated exactly as in Spark. A mere column may have any type."""
    if isinstance(node, ColumnRef):
        return node.type is not None and can_carry(node.type)
    return _computable(node)


def _computable(node: Expression) -> bool:
    if node.type is None:
        return False
    if isinstance(node, Literal | ColumnRef):
        return _fixed(logical(node.type)) or is_text(node.type)
    if isinstance(node, Call):
        return _call(node)
    if isinstance(node, Cast):
        return is_constant(node) or (_cast(node) and _computable(node.child))
    if isinstance(node, Case):
        same = all(c.type == node.type for c in (*node.values, node.otherwise))
        return _fixed(node.type) and same and all(map(_computable, node.children))
    return False


def _call(node: Call) -> bool:
    if is_decimal_arithmetic(node):
        return _exact_scale(node) and all(map(_computable, node.arguments))
    if node.function is Function.UNSCALED_VALUE:
        child = node.arguments[0]
        return child.type is not None and child.type.precision <= NARROW_DIGITS and _computable(child)
    if node.function in (Function.IS_NULL, Function.IS_NOT_NULL) and isinstance(node.arguments[0], ColumnRef):
        return can_carry(node.arguments[0].type or pa.null())
    return fits_function(node) and all(map(_computable, node.arguments))


def is_constant(node: Cast) -> bool:
    """Whether a cast is that of a null constant, or of a constant integer that fits a decimal."""
    if not isinstance(node.child, Literal) or node.type is None:
        return False
    value, target = node.child.value, node.type
    if value is None:
        return _fixed(target)
    return bool(
        pat.is_decimal128(target) and isinstance(value, int) and not isinstance(value, bool)
        and target.scale >= 0 and abs(value) < 10 ** (target.precision - target.scale)
    )  # fmt: skip


def _cast(node: Cast) -> bool:
    source, target = node.child.type, node.type
    if source is None or target is None:
        return False
    if pat.is_decimal128(target) and (is_whole(source) or pat.is_decimal128(source)):
        return is_lossless(source, target)
    if pat.is_decimal128(source):
        return bool(pat.is_float64(target) and source.precision <= _EXACT_DIGITS and source.scale >= 0)
    return cast_fits(node)


def can_code(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether keys of two types are coded on the device."""
    left, right = logical(left), logical(right)
    return bool(left == right or (is_whole(left) and is_whole(right)))


# -- nodes -------------------------------------------------------------------------------------------------------


def node_obstacles(node: Relation) -> tuple[Reason, ...]:
    """Reasons why a node, without its inputs, is not computed on the device exactly as in Spark. Needs no device."""
    what = type(node).__name__.lower()
    reasons = [
        _unsupported(f"{what} column {field.name!r}", f"type {field.type} is not carried on a GPU")
        for field in node.schema
        if not can_carry(field.type)
    ]
    if isinstance(node, Window):
        return (*reasons, _unsupported("window", "windows are computed by the CPU"))
    if isinstance(node, Explode):
        return (*reasons, _unsupported("explode", "rows are made of elements by the CPU"))
    if isinstance(node, Join):
        return (*reasons, *_join_obstacles(node))
    if isinstance(node, PartialAggregate):
        reasons += [
            _unsupported(f"aggregate {call}", "the function is not computed on a GPU")
            for call in node.aggregates
            if call.function not in _AGGREGATES or call.mode is EvalMode.TRY
        ]
    for expression in node.expressions():
        if not can_compute(expression):
            part = next(p for p in expression.walk() if not can_compute(p) and all(map(can_compute, p.children)))
            why = f"{part} is not computed on a GPU exactly as Spark does"
            reasons.append(_unsupported(f"{what} expression", why))
        elif expression.type is None or not can_carry(expression.type):
            why = f"{expression}: type {expression.type} is not carried on a GPU"
            reasons.append(_unsupported(f"{what} expression", why))
    return tuple(reasons)


def _join_obstacles(node: Join) -> list[Reason]:
    spec = node.spec
    reasons = []
    pairs = [(key.left, key.right) for key in spec.keys]
    if spec.as_of is not None:
        pairs.append((spec.as_of.left, spec.as_of.right))
        if not _has_order(node.left.schema.field(spec.as_of.left).type):
            reasons.append(_unsupported("join", "order keys of more than 64 bits go through host memory"))
    elif not spec.keys:
        why = f"{spec.join_type.value} joins without equal keys go through host memory"
        reasons.append(_unsupported("join", why))
    if spec.join_type.null_aware and (len(spec.keys) > 1 or spec.condition is not None):
        why = f"{spec.join_type.value} joins by several keys or with a condition go through host memory"
        reasons.append(_unsupported("join", why))
    for left_at, right_at in pairs:
        left_type, right_type = node.left.schema.field(left_at).type, node.right.schema.field(right_at).type
        if not (can_carry(left_type) and can_carry(right_type) and can_code(left_type, right_type)):
            reasons.append(_unsupported("join", f"keys of {left_type} and {right_type} go through host memory"))
    if spec.condition is not None and not can_evaluate(spec.condition):
        why = f"the condition {spec.condition} is not computed on a GPU exactly as Spark does"
        reasons.append(_unsupported("join", why))
    if not all(can_carry(field.type) for child in node.children for field in child.schema):
        reasons.append(_unsupported("join", "a column of an input is not carried on a GPU"))
    return reasons


def _has_order(dtype: pa.DataType) -> bool:
    """Whether values of a type have codes of 64 bits that keep their order."""
    dtype = logical(dtype)
    return _fixed(dtype) and not is_wide(dtype)


def _unsupported(what: str, why: str) -> Reason:
    return Reason(ReasonKind.UNSUPPORTED, what, why)


def is_decimal_arithmetic(node: Call) -> bool:
    """Whether a call adds, subtracts or multiplies decimals."""
    kinds = [argument.type for argument in node.arguments]
    return (
        node.function in _ARITHMETIC and node.type is not None and pat.is_decimal128(node.type)
        and all(kind is not None and pat.is_decimal128(kind) for kind in kinds)
    )  # fmt: skip


def natural(node: Call) -> tuple[int, int]:
    """Precision and scale in which a sum, difference or product of decimals is exact."""
    left, right = (logical(argument.type) for argument in node.arguments)
    if node.function is Function.MULTIPLY:
        return left.precision + right.precision + 1, left.scale + right.scale
    scale = max(left.scale, right.scale)
    return max(left.precision - left.scale, right.precision - right.scale) + scale + 1, scale


def _exact_scale(node: Call) -> bool:
    precision, scale = natural(node)
    result = logical(node.type)
    if result.scale != scale or result.precision < min(precision, MAX_PRECISION):
        return False
    # A product beyond 127 bits has more than 38 digits. A rescaled operand beyond 127 bits may cancel out in the sum.
    alike = len({logical(argument.type).scale for argument in node.arguments}) == 1
    return node.function is Function.MULTIPLY or alike or precision <= MAX_PRECISION


def _fixed(dtype: pa.DataType) -> bool:
    return (
        pat.is_boolean(dtype) or is_whole(dtype) or is_float(dtype) or pat.is_decimal128(dtype)
        or pat.is_date32(dtype) or pat.is_timestamp(dtype)
    )  # fmt: skip
