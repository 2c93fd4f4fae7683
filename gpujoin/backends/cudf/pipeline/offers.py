"""Knows which nodes a pipeline computes on the device exactly as Spark does."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.support import can_carry, device_obstacle, is_device_supported
from gpujoin.model.aggregates import EXTREMES_BY, MOMENTS, AggregateCall, AggregateFunction
from gpujoin.model.expressions import EvalMode
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.relations import Explode, Join, PartialAggregate, PythonStep, Relation, Window, operation_name
from gpujoin.model.sqltext import show_type, value_name
from gpujoin.model.types import LONG_DIGITS, is_whole, logical
from gpujoin.model.windows import FramedAggregate

_AGGREGATES = MOMENTS | EXTREMES_BY | {
    AggregateFunction.SUM, AggregateFunction.COUNT, AggregateFunction.MIN, AggregateFunction.MAX, AggregateFunction.AVG,
    AggregateFunction.FIRST, AggregateFunction.LAST,
}  # fmt: skip


def carried(dtype: pa.DataType) -> pa.DataType:
    """Type in which the device carries values: decimals of up to 18 digits have 64 bits."""
    dtype = logical(dtype)
    if pat.is_decimal(dtype) and dtype.precision <= LONG_DIGITS:
        return pa.decimal64(dtype.precision, dtype.scale)
    return dtype


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
    if isinstance(node, PythonStep):
        return (*reasons, _unsupported(what, "Python functions are called with rows in host memory"))
    if isinstance(node, Join):
        return (*reasons, *_join_obstacles(node))
    if isinstance(node, PartialAggregate):
        reasons += [_uncomputed(call) for call in node.aggregates if not _aggregates(call)]
    if isinstance(node, Window):
        reasons += _window_obstacles(node)
    for expression in node.expressions():
        if not is_device_supported(expression):
            part = device_obstacle(expression)
            why = f"{expression if part is None else part} is not computed on a GPU exactly as Spark does"
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
    if spec.condition is not None and device_obstacle(spec.condition) is not None:
        why = f"the condition {spec.condition} is not computed on a GPU exactly as Spark does"
        reasons.append(_unsupported("the join", why))
    if not all(can_carry(field.type) for child in node.children for field in child.schema):
        reasons.append(_unsupported("the join", "a column of an input is not held on a GPU"))
    return reasons


def _unsupported(what: str, why: str) -> Reason:
    return Reason(ReasonKind.UNSUPPORTED, what, why)
