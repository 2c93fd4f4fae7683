"""Knows which expressions and nodes a pipeline computes on the device exactly as Spark does.

These are the expressions of join conditions (:mod:`gpujoin.backends.cudf.expressions.evaluator`), and also arithmetic
and rounding of decimals, and casts between numbers.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.expressions.evaluator import can_evaluate, cast_fits, fits_function
from gpujoin.backends.cudf.expressions.values import NARROW_DIGITS
from gpujoin.backends.cudf.pipeline.casts import is_number_cast
from gpujoin.functions.casts import is_lossless
from gpujoin.functions.rounding import constant_scale
from gpujoin.model.aggregates import EXTREMES_BY, MOMENTS, AggregateCall, AggregateFunction
from gpujoin.model.expressions import (
    Call,
    Case,
    Cast,
    ColumnRef,
    EvalMode,
    Expression,
    Function,
    Literal,
)
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.relations import Explode, Join, PartialAggregate, Relation, Window, operation_name
from gpujoin.model.sqltext import show_type, value_name
from gpujoin.model.types import MAX_PRECISION, is_float, is_text, is_whole, logical
from gpujoin.model.windows import FramedAggregate

_AGGREGATES = MOMENTS | EXTREMES_BY | {
    AggregateFunction.SUM, AggregateFunction.COUNT, AggregateFunction.MIN, AggregateFunction.MAX, AggregateFunction.AVG,
    AggregateFunction.FIRST, AggregateFunction.LAST,
}  # fmt: skip
_ARITHMETIC = frozenset({Function.ADD, Function.SUBTRACT, Function.MULTIPLY, Function.DIVIDE})
_NEGATED_DIGITS = 34
"""Most digits of decimals whose sign Spark turns without rounding them."""
_PRINTED_DIGITS = 14
"""Most digits of decimals that are made of doubles: halves of the last place have one more, and are exact up to 15."""


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


def can_test(condition: Expression) -> bool:
    """Whether a resolved boolean expression is evaluated exactly as in Spark, over pairs of rows or rows."""
    boolean = condition.type is not None and pat.is_boolean(condition.type)
    return boolean and (can_evaluate(condition) or can_compute(condition))


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
        carried_type = _fixed(node.type) or pat.is_string(node.type)
        return carried_type and same and all(map(_computable, node.children))
    return False


def _call(node: Call) -> bool:
    if is_decimal_arithmetic(node):
        return _exact_scale(node) and all(map(_computable, node.arguments))
    if is_decimal_sign(node) or is_decimal_rounding(node):
        return all(map(_computable, node.arguments))
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
    if is_number_cast(node):
        return True
    if pat.is_decimal128(target) and (is_whole(source) or pat.is_decimal128(source)):
        return target.scale >= 0 and (is_whole(source) or source.scale >= 0)
    if pat.is_decimal128(target) and pat.is_float64(source):
        return bool(target.precision <= _PRINTED_DIGITS and target.scale >= 0)
    if pat.is_decimal128(source):
        return bool(pat.is_float64(target) and source.scale >= 0)
    return cast_fits(node)


def can_code(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether keys of two types are coded on the device."""
    left, right = logical(left), logical(right)
    return bool(left == right or (is_whole(left) and is_whole(right)))


# -- nodes -------------------------------------------------------------------------------------------------------


def node_obstacles(node: Relation) -> tuple[Reason, ...]:
    """Reasons why a node, without its inputs, is not computed on the device exactly as in Spark. Needs no device."""
    what = operation_name(node)
    reasons = [
        _unsupported(what, f"{value_name(field)} is not held on a GPU")
        for field in node.schema
        if not can_carry(field.type)
    ]
    if isinstance(node, Explode):
        return (*reasons, _unsupported(what, "rows are made of elements by the CPU"))
    if isinstance(node, Join):
        return (*reasons, *_join_obstacles(node))
    if isinstance(node, PartialAggregate):
        reasons += [_uncomputed(call) for call in node.aggregates if not _aggregates(call)]
    if isinstance(node, Window):
        reasons += _window_obstacles(node)
    for expression in node.expressions():
        if not can_compute(expression):
            part = next(p for p in expression.walk() if not can_compute(p) and all(map(can_compute, p.children)))
            why = f"{part} is not computed on a GPU exactly as Spark does"
            reasons.append(_unsupported(what, why))
        elif expression.type is None or not can_carry(expression.type):
            why = f"{expression} of type {show_type(expression.type)} is not held on a GPU"
            reasons.append(_unsupported(what, why))
    return tuple(reasons)


def _aggregates(call: AggregateCall) -> bool:
    return call.function in _AGGREGATES and call.mode is not EvalMode.TRY


def _uncomputed(call: AggregateCall) -> Reason:
    return _unsupported("the aggregation", f"{call} is not computed on a GPU")


def _window_obstacles(node: Window) -> list[Reason]:
    framed = [call.call for call in node.calls if isinstance(call, FramedAggregate)]
    reasons = [_uncomputed(call) for call in framed if not _aggregates(call)]
    if any(call.frame.has_distance for call in node.calls) and pat.is_float32(node.order[0].expression.type):
        reasons.append(_unsupported("the window", "distances in single precision are added by the CPU"))
    return reasons


def _join_obstacles(node: Join) -> list[Reason]:
    spec = node.spec
    reasons = []
    pairs = [(key.left, key.right) for key in spec.keys]
    if spec.as_of is not None:
        pairs.append((spec.as_of.left, spec.as_of.right))
    for left_at, right_at in pairs:
        left_type, right_type = node.left.schema.field(left_at).type, node.right.schema.field(right_at).type
        if not (can_carry(left_type) and can_carry(right_type) and can_code(left_type, right_type)):
            reasons.append(
                _unsupported(
                    "the join", f"keys of {show_type(left_type)} and {show_type(right_type)} go through host memory"
                )
            )
    if spec.condition is not None and not can_test(spec.condition):
        why = f"the condition {spec.condition} is not computed on a GPU exactly as Spark does"
        reasons.append(_unsupported("the join", why))
    if not all(can_carry(field.type) for child in node.children for field in child.schema):
        reasons.append(_unsupported("the join", "a column of an input is not held on a GPU"))
    return reasons


def _unsupported(what: str, why: str) -> Reason:
    return Reason(ReasonKind.UNSUPPORTED, what, why)


def is_certain(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast of integers or decimals to a decimal succeeds for every value. Rounding may need a digit more."""
    if is_lossless(source, target):
        return True
    return bool(
        pat.is_decimal(source) and source.scale > target.scale
        and target.precision - target.scale > source.precision - source.scale
    )  # fmt: skip


def is_decimal_arithmetic(node: Call) -> bool:
    """Whether a call adds, subtracts, multiplies or divides decimals."""
    kinds = [argument.type for argument in node.arguments]
    return (
        node.function in _ARITHMETIC and node.type is not None and pat.is_decimal128(node.type)
        and all(kind is not None and pat.is_decimal128(kind) for kind in kinds)
    )  # fmt: skip


def is_decimal_sign(node: Call) -> bool:
    """Whether a call turns or drops the sign of a decimal that is not rounded."""
    kind = node.type
    return node.function in (Function.ABS, Function.NEGATE) and kind is not None and (
        pat.is_decimal128(kind) and kind.precision <= _NEGATED_DIGITS and kind == node.arguments[0].type
    )  # fmt: skip


def is_decimal_rounding(node: Call) -> bool:
    """Whether a call rounds a decimal to a constant number of digits, dropping no more than 38."""
    kind, scale = node.arguments[0].type, None
    if node.function in (Function.ROUND, Function.ROUND_EVEN):
        scale = constant_scale(node)
    if scale is None or kind is None or not pat.is_decimal128(kind) or kind.scale < 0:
        return False
    return bool(kind.scale - scale <= MAX_PRECISION and scale >= -MAX_PRECISION)


def natural(node: Call) -> tuple[int, int]:
    """Precision and scale in which a sum, difference or product of decimals is exact."""
    left, right = (logical(argument.type) for argument in node.arguments)
    if node.function is Function.MULTIPLY:
        return left.precision + right.precision + 1, left.scale + right.scale
    scale = max(left.scale, right.scale)
    return max(left.precision - left.scale, right.precision - right.scale) + scale + 1, scale


def _exact_scale(node: Call) -> bool:
    """Whether the result is exact, and rounded where Spark rounds it."""
    left, right = (logical(argument.type) for argument in node.arguments)
    result = logical(node.type)
    if min(left.scale, right.scale, result.scale) < 0:
        return False
    if node.function is Function.DIVIDE:
        return True
    precision, scale = natural(node)
    if node.function is not Function.MULTIPLY:
        return bool(result.scale <= scale)
    if result.scale < scale:
        return scale - result.scale <= MAX_PRECISION
    # A product beyond 127 bits has more than 38 digits.
    return bool(result.scale == scale and result.precision >= min(precision, MAX_PRECISION))


def _fixed(dtype: pa.DataType) -> bool:
    return (
        pat.is_boolean(dtype) or is_whole(dtype) or is_float(dtype) or pat.is_decimal128(dtype)
        or pat.is_date32(dtype) or pat.is_timestamp(dtype)
    )  # fmt: skip
