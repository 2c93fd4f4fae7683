"""Evaluation of resolved expressions over candidate pairs, with Spark's semantics to the letter."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.backends.cpu import evaluate_arithmetic as arithmetic
from gpujoin.backends.cpu import evaluate_dates as dates
from gpujoin.backends.cpu import evaluate_logic as logic
from gpujoin.backends.cpu import evaluate_text as text
from gpujoin.backends.cpu.evaluate_cast import cast
from gpujoin.backends.cpu.evaluate_compare import compare
from gpujoin.backends.cpu.evaluate_errors import can_raise
from gpujoin.backends.cpu.evaluate_rows import Rows
from gpujoin.backends.cpu.evaluate_support import can_evaluate
from gpujoin.backends.cpu.evaluate_vector import Mask, Vector, both, from_arrow, to_arrow
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, Expression, Function, Literal

__all__ = ["can_evaluate", "evaluate", "evaluate_column"]


def evaluate(
    condition: Expression, left: pa.RecordBatch, right: pa.RecordBatch, length: int
) -> npt.NDArray[np.bool_]:
    """Find the pairs for which a condition is true.

    Parameters
    ----------
    condition : Expression
        Resolved, boolean, and accepted by :func:`can_evaluate`.
    left, right : pyarrow.RecordBatch
        The pairs: row ``i`` of one with row ``i`` of the other. Column references index into these.
    length : int
        Number of pairs.

    Returns
    -------
    numpy.ndarray
        ``length`` booleans; false where the condition is false or null.

    Raises
    ------
    ExpressionEvaluationError
        If a value has no result in ANSI mode, or a LIKE pattern is malformed.
    """
    if length == 0:
        return np.zeros(0, np.bool_)
    found = logic.is_true(_evaluate(condition, Rows(left, right, length)))
    return found if len(found) == length else np.repeat(found, length)


def evaluate_column(
    expression: Expression, left: pa.RecordBatch, right: pa.RecordBatch, length: int
) -> pa.Array:
    """Compute an expression of any type.

    Parameters and errors are those of :func:`evaluate`.

    Returns
    -------
    pyarrow.Array
        ``length`` values of exactly the expression's type.
    """
    assert expression.type is not None, f"{expression} is not resolved"
    if length == 0:
        return pa.array([], expression.type)
    return to_arrow(_evaluate(expression, Rows(left, right, length)), expression.type, length)


def _evaluate(node: Expression, rows: Rows) -> Vector:
    if isinstance(node, ColumnRef):
        return _relabelled(rows.column(node), node)
    if isinstance(node, Literal):
        return dataclasses.replace(from_arrow(pa.array([node.value], node.type)), constant=True)
    if isinstance(node, Cast):
        child = _evaluate(node.child, rows)
        return dataclasses.replace(cast(node, child), constant=child.constant or pat.is_null(child.dtype))
    if isinstance(node, Case):
        return logic.case(node, rows, _evaluate)
    assert isinstance(node, Call), node
    match node.function:
        case Function.AND | Function.OR:
            return logic.connect(node, rows, _evaluate)
        case Function.COALESCE:
            return logic.coalesce(node, rows, _evaluate)
        case Function.IN:
            return logic.membership(node, rows, _evaluate)
    operands = _operands(node, rows)
    result = _apply(node, operands, rows.length)
    return dataclasses.replace(result, constant=result.constant or all(o.constant for o in operands))


def _relabelled(vector: Vector, node: Expression) -> Vector:
    """Read timestamps in the zone that the expression's type names: Spark's session zone."""
    if node.type is not None and pat.is_timestamp(vector.dtype) and pat.is_timestamp(node.type):
        return dataclasses.replace(vector, dtype=pa.timestamp(vector.dtype.unit, node.type.tz))
    return vector


_TAKE_NULLS = frozenset(
    {
        Function.EQ_NULL_SAFE, Function.IS_NULL, Function.IS_NOT_NULL, Function.GREATEST, Function.LEAST,
        Function.CONCAT,
    }
)  # fmt: skip
_DIVISIONS = frozenset({Function.DIVIDE, Function.INTEGRAL_DIVIDE, Function.REMAINDER, Function.PMOD})


def _operands(node: Call, rows: Rows) -> list[Vector]:
    """Evaluate operands; one that might raise only where those before it are not null.

    Spark evaluates the divisor of a division first.
    """
    if node.function in _TAKE_NULLS or not any(can_raise(a) for a in node.arguments[:2]):
        return [_evaluate(a, rows) for a in node.arguments]
    order = list(range(len(node.arguments)))
    if node.function in _DIVISIONS:
        order.reverse()
    found: dict[int, Vector] = {}
    alive: Mask | None = None
    for i in order:
        found[i] = logic.partly(node.arguments[i], rows, alive, _evaluate)
        alive = both(alive, found[i].mask())
    return [found[i] for i in range(len(order))]


def _apply(node: Call, operands: list[Vector], length: int) -> Vector:
    match node.function:
        case (
            Function.EQ | Function.NE | Function.LT | Function.LE | Function.GT | Function.GE
            | Function.EQ_NULL_SAFE
        ):  # fmt: skip
            return compare(node.function, operands[0], operands[1])
        case (
            Function.ADD | Function.SUBTRACT | Function.MULTIPLY | Function.DIVIDE | Function.INTEGRAL_DIVIDE
            | Function.REMAINDER | Function.PMOD
        ):  # fmt: skip
            return arithmetic.binary(node, operands[0], operands[1])
        case Function.LIKE:
            return text.like(node, operands)
        case Function.RLIKE:
            return text.rlike(node, operands)
        case Function.STARTS_WITH | Function.ENDS_WITH | Function.CONTAINS:
            return text.affix(node, operands)
        case Function.CONCAT:
            return text.concat(node, operands, length)
        case Function.SUBSTRING:
            return text.substring(node, operands)
        case Function.GREATEST | Function.LEAST:
            return arithmetic.extreme(node, operands)
        case Function.DATE_ADD | Function.DATE_SUB:
            return dates.shift(node, operands[0], operands[1])
        case Function.DATE_DIFF:
            return dates.difference(operands[0], operands[1])
        case _:
            return _apply_unary(node, operands[0], length)


def _apply_unary(node: Call, operand: Vector, length: int) -> Vector:
    match node.function:
        case Function.NOT:
            return logic.negation(operand)
        case Function.IS_NULL | Function.IS_NOT_NULL:
            return logic.null_test(node, operand, length)
        case Function.IS_NAN:
            nan = np.isnan(operand.values)
            return Vector(pa.bool_(), nan if operand.valid is None else nan & operand.valid)
        case Function.SQRT:
            with np.errstate(invalid="ignore"):
                return Vector(pa.float64(), np.sqrt(operand.values), operand.valid)
        case Function.NEGATE:
            return arithmetic.negate(node, operand)
        case Function.ABS:
            return arithmetic.absolute(node, operand)
        case Function.FLOOR | Function.CEIL:
            return arithmetic.floor_or_ceil(node, operand)
        case Function.TRIM:
            return text.trim(operand)
        case Function.LENGTH:
            return text.length_of(node, operand)
        case Function.UNSCALED_VALUE:
            return Vector(pa.int64(), operand.values, operand.valid)
        case Function.GET_FIELD:
            return _field(node, operand)
        case Function.HOUR | Function.MINUTE | Function.SECOND:
            return dates.time_part(node, operand)
        case _:
            return dates.date_part(node, operand)


def _field(node: Call, struct: Vector) -> Vector:
    name = node.arguments[1]
    assert isinstance(name, Literal)
    position = [f.name for f in struct.dtype].index(name.value)
    return from_arrow(pc.struct_field(struct.values, [position]))
