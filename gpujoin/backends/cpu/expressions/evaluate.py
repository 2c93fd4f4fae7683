"""Evaluates resolved expressions over candidate pairs, exactly as Spark does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.backends.cpu.expressions import (
    arithmetic,
    arrays,
    compare,
    dates,
    encodings,
    formatting,
    hashes,
    lambdas,
    likeness,
    listmaking,
    logic,
    maps,
    maths,
    nestedbytes,
    patterns,
    rounding,
    text,
    timestamps,
    timetexts,
    zones,
)
from gpujoin.backends.cpu.expressions.casts import can_cast, cast
from gpujoin.backends.cpu.expressions.implementation import Run
from gpujoin.backends.cpu.expressions.rows import Rows
from gpujoin.backends.cpu.expressions.vector import Mask, Vector, from_arrow, mask_and, to_arrow
from gpujoin.errors import OPERATION_NOTE, InvalidTextError, UnsupportedValueError
from gpujoin.functions import SPECS, can_raise
from gpujoin.functions.comparison import comparable, is_written
from gpujoin.functions.signatures import type_of
from gpujoin.functions.spec import Nulls, Order
from gpujoin.functions.structs import field_position
from gpujoin.model.expressions import (
    Call,
    Case,
    Cast,
    ColumnRef,
    Expression,
    Function,
    Literal,
    Variable,
    operation_name,
)
from gpujoin.model.types import logical


def evaluate(condition: Expression, left: pa.RecordBatch, right: pa.RecordBatch, length: int) -> npt.NDArray[np.bool_]:
    """Find the pairs for which a resolved condition is true, not false or null.

    Row ``i`` of ``left`` pairs row ``i`` of ``right``; column references index into these. The condition is one that
    :func:`can_evaluate` accepts. Raises ``ExpressionEvaluationError`` if a value has no result in ANSI mode, or a
    LIKE pattern is malformed.
    """
    if length == 0:
        return np.zeros(0, np.bool_)
    result = logic.is_true(_evaluate(condition, Rows(left, right, length)))
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
        return logic.case(node, rows, _evaluate)
    assert isinstance(node, Call), node
    lazy = _LAZY.get(node.function)
    if lazy is not None:
        return lazy(node, rows, _evaluate)
    operands = _operands(node, rows)
    result = _FUNCTIONS[node.function](node, operands, rows.length)
    return dataclasses.replace(result, constant=result.constant or all(o.constant for o in operands))


def _relabelled(vector: Vector, node: ColumnRef | Variable) -> Vector:
    """Read timestamps in the zone that the expression's type names: Spark's session zone."""
    if node.type is not None and pat.is_timestamp(vector.dtype) and pat.is_timestamp(node.type):
        return dataclasses.replace(vector, dtype=pa.timestamp(vector.dtype.unit, node.type.tz))
    return vector


def _operands(node: Call, rows: Rows) -> list[Vector]:
    """Evaluate operands. An operand that might raise is evaluated only where those before it are not null."""
    spec = SPECS[node.function]
    all_rows = spec.nulls is Nulls.READ or spec.order is Order.ALL
    if all_rows or not any(can_raise(a) for a in node.arguments[:2]):
        return [_evaluate(a, rows) for a in node.arguments]
    order = list(range(len(node.arguments)))
    if spec.order is Order.RIGHT_FIRST:
        order.reverse()
    vectors: dict[int, Vector] = {}
    alive: Mask | None = None
    for i in order:
        vectors[i] = logic.partly(node.arguments[i], rows, alive, _evaluate)
        alive = mask_and(alive, vectors[i].mask())
    return [vectors[i] for i in range(len(order))]


def _field(node: Call, operands: list[Vector], _length: int) -> Vector:
    return from_arrow(pc.struct_field(operands[0].values, [field_position(node, type_of(node.arguments[0]))]))


_FUNCTIONS: dict[Function, Run] = {
    **logic.FUNCTIONS,
    **compare.FUNCTIONS,
    **arithmetic.FUNCTIONS,
    **rounding.FUNCTIONS,
    **maths.FUNCTIONS,
    **text.FUNCTIONS,
    **formatting.FUNCTIONS,
    **likeness.FUNCTIONS,
    **hashes.FUNCTIONS,
    **encodings.FUNCTIONS,
    **dates.FUNCTIONS,
    **patterns.FUNCTIONS,
    **zones.FUNCTIONS,
    **arrays.FUNCTIONS,
    **listmaking.FUNCTIONS,
    **maps.FUNCTIONS,
    **nestedbytes.FUNCTIONS,
    **timestamps.FUNCTIONS,
    **timetexts.FUNCTIONS,
    Function.GET_FIELD: _field,
}
_LAZY = logic.LAZY | lambdas.LAZY
FUNCTIONS = frozenset(_FUNCTIONS) | frozenset(_LAZY)
"""Functions that are implemented."""
_EXACT_FOR: dict[Function, Callable[[Call], bool]] = {
    Function.LIKE: text.constant_escape,
    Function.RLIKE: text.known_regex,
    Function.SPLIT: arrays.exact_separator,
    **dict.fromkeys((Function.EXISTS, Function.FORALL), lambdas.never_raises),
    **dict.fromkeys(rounding.FUNCTIONS, rounding.exact_scale),
    Function.REGEXP_EXTRACT: text.known_groups,
    Function.REGEXP_EXTRACT_ALL: arrays.exact_matches,
    Function.REGEXP_REPLACE: text.known_replacement,
    Function.REGEXP_INSTR: text.known_regex,
    Function.LOCATE: text.constant_start,
    Function.LEVENSHTEIN: likeness.constant_limit,
    Function.MASK: formatting.constant_masks,
    **dict.fromkeys((Function.ENCODE, Function.DECODE), encodings.is_utf8_named),
    Function.TIMESTAMP_ADD: dates.exact_shift,
    Function.ADD_MONTHS: dates.exact_months,
    Function.TRUNC: dates.exact_trunc,
    Function.DATE_TRUNC: dates.exact_date_trunc,
    **dict.fromkeys(patterns.FUNCTIONS, patterns.exact_pattern),
    **dict.fromkeys(zones.FUNCTIONS, zones.known_zone),
    **timetexts.EXACT,
    Function.TIMESTAMP_ADD_MONTHS: dates.exact_months,
    Function.TIMESTAMP_DIFF: timestamps.exact_difference,
    Function.NEXT_DAY: dates.exact_next_day,
    Function.MONTHS_BETWEEN: dates.exact_months_between,
    **dict.fromkeys((Function.HOUR, Function.MINUTE, Function.SECOND), dates.known_zone),
}
"""Tests of the calls that are computed exactly, for functions that are not exact for all operands."""


def can_evaluate(condition: Expression) -> bool:
    """Whether every node of a resolved tree is evaluated exactly as Spark would, for all data."""
    return all(_supported(node) for node in condition.walk())


def _supported(node: Expression) -> bool:
    if node.type is None or any(child.type is None for child in node.children):
        return False
    match node:
        case ColumnRef():
            return node.index >= 0
        case Variable():
            return True
        case Literal():
            return _is_value(node.type) or node.value is None or is_written(node.type)
        case Cast():
            return (_is_value(node.to) or is_written(node.to)) and can_cast(node)
        case Case():
            return _is_value(node.type) or is_written(node.type)
        case Call():
            exact = _EXACT_FOR.get(node.function)
            accepted = node.function in FUNCTIONS and SPECS[node.function].signature.accepts(node)
            return accepted and (exact is None or exact(node))
    return False


def _is_value(dtype: pa.DataType) -> bool:
    return comparable(logical(dtype)) or pat.is_null(dtype)
