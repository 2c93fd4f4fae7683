"""Evaluates resolved expressions over candidate pairs, exactly as Spark does."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import OPERATION_NOTE, InvalidTextError, UnsupportedValueError
from gpujoin.functions.casts import cast
from gpujoin.functions.implementation import Lazy
from gpujoin.functions.logic import case, is_true, partly
from gpujoin.functions.rows import Rows
from gpujoin.functions.spec import SPECS, Nulls, Order, can_raise
from gpujoin.functions.vector import Mask, Vector, from_arrow, mask_and, to_arrow
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, Expression, Literal, Variable, operation_name


def evaluate(condition: Expression, left: pa.RecordBatch, right: pa.RecordBatch, length: int) -> npt.NDArray[np.bool_]:
    """Find the pairs for which a resolved condition is true, not false or null.

    Row ``i`` of ``left`` pairs row ``i`` of ``right``; column references index into these. The condition is one that
    :mod:`.support` accepts. Raises ``ExpressionEvaluationError`` if a value has no result in ANSI mode, or a
    LIKE pattern is malformed.
    """
    if length == 0:
        return np.zeros(0, np.bool_)
    result = is_true(_evaluate(condition, Rows(left, right, length)))
    return result if len(result) == length else np.repeat(result, length)


def evaluate_column(expression: Expression, left: pa.RecordBatch, right: pa.RecordBatch, length: int) -> pa.Array:
    """Compute values of exactly the expression's type. Operands and errors are those of :func:`evaluate`."""
    assert expression.type is not None, f"{expression} is not resolved"
    if length == 0:
        return pa.array([], expression.type)
    return to_arrow(_evaluate(expression, Rows(left, right, length)), expression.type, length)


def _evaluate(node: Expression, rows: Rows) -> Vector:
    try:
        return _computed(node, rows)
    except (InvalidTextError, UnsupportedValueError) as problem:
        if not hasattr(problem, "__notes__"):  # of an operand
            problem.add_note(f"{OPERATION_NOTE}{operation_name(node)}")
        raise


def _computed(node: Expression, rows: Rows) -> Vector:
    if isinstance(node, ColumnRef):
        return _relabelled(rows.column(node), node)
    if isinstance(node, Variable):
        return _relabelled(rows.variable(node.name), node)
    if isinstance(node, Literal):
        return dataclasses.replace(from_arrow(pa.array([node.value], node.type)), constant=True)
    if isinstance(node, Cast):
        child = _evaluate(node.child, rows)
        return dataclasses.replace(cast(node, child), constant=child.constant or pat.is_null(child.dtype))
    if isinstance(node, Case):
        return case(node, rows, _evaluate)
    assert isinstance(node, Call), node
    implementation = SPECS[node.function].numpy
    if isinstance(implementation, Lazy):
        return implementation.run(node, rows, _evaluate)
    operands = _operands(node, rows)
    result = implementation(node, operands, rows.length)
    return dataclasses.replace(result, constant=result.constant or all(o.constant for o in operands))


def _relabelled(vector: Vector, node: ColumnRef | Variable) -> Vector:
    """Read timestamps in the zone that the expression's type names: Spark's session zone."""
    if node.type is not None and pat.is_timestamp(vector.dtype) and pat.is_timestamp(node.type):
        return dataclasses.replace(vector, dtype=pa.timestamp(vector.dtype.unit, node.type.tz))
    return vector


def _operands(node: Call, rows: Rows) -> list[Vector]:
    """Evaluate operands. An operand that might raise is evaluated only on rows where earlier ones are not null."""
    spec = SPECS[node.function]
    all_rows = spec.nulls is Nulls.OWN_RULE or spec.order is Order.ALL
    if all_rows or not any(can_raise(a) for a in node.arguments[:2]):
        return [_evaluate(a, rows) for a in node.arguments]
    order = list(range(len(node.arguments)))
    if spec.order is Order.RIGHT_FIRST:
        order.reverse()
    vectors: dict[int, Vector] = {}
    alive: Mask | None = None
    for i in order:
        vectors[i] = partly(node.arguments[i], rows, alive, _evaluate)
        alive = mask_and(alive, vectors[i].mask())
    return [vectors[i] for i in range(len(order))]
