"""Three-valued logic, and functions that evaluate an operand only where earlier ones do not decide the result.

An operand that might raise is evaluated only on the rows on which Spark would evaluate it. Other operands are computed
for all rows, which is faster.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.backends.cpu.expressions.compare import compare
from gpujoin.backends.cpu.expressions.implementation import Run, of_arrays
from gpujoin.backends.cpu.expressions.rows import Rows, scatter
from gpujoin.backends.cpu.expressions.vector import Mask, Vector, as_numpy_bool, choose, nulls
from gpujoin.functions import can_raise
from gpujoin.model.expressions import Call, Case, Expression, Function, Literal
from gpujoin.model.types import is_bytes, is_float, is_text

Evaluator = Callable[[Expression, Rows], Vector]

_WORTH_SELECTING = 8
"""An expensive operand is computed on selected rows only if at most one row in this many needs it."""


def partly(node: Expression, rows: Rows, needed: Mask | None, evaluate: Evaluator) -> Vector:
    """Evaluate a node on the rows that need it; the result is arbitrary elsewhere, possibly null."""
    assert node.type is not None
    if needed is None:
        return evaluate(node, rows)
    count = int(np.count_nonzero(np.broadcast_to(needed, rows.length)))
    if count == rows.length:
        return evaluate(node, rows)
    if count == 0:
        return nulls(node.type)
    if not can_raise(node) and (count * _WORTH_SELECTING > rows.length or not _expensive(node)):
        return evaluate(node, rows)
    selected, positions = rows.where(np.broadcast_to(needed, rows.length))
    result = evaluate(node, selected)
    return result if result.constant else scatter(result, positions, rows.length)


def _expensive(node: Expression) -> bool:
    return any(
        n.type is not None and (is_text(n.type) or is_bytes(n.type) or pat.is_decimal(n.type))
        for n in node.walk()
        if not isinstance(n, Literal)
    )


def is_true(vector: Vector) -> Mask:
    """Mask of rows that are true, not false or null."""
    return np.asarray(vector.values if vector.valid is None else vector.values & vector.valid)


def _is_false(vector: Vector) -> Mask:
    return np.asarray(~vector.values if vector.valid is None else ~vector.values & vector.valid)


def _connect(node: Call, rows: Rows, evaluate: Evaluator) -> Vector:
    conjunction = node.function is Function.AND
    decided_by = _is_false if conjunction else is_true
    so_far = evaluate(node.arguments[0], rows)
    for argument in node.arguments[1:]:
        decided = decided_by(so_far)
        operand = partly(argument, rows, ~decided, evaluate)
        if so_far.valid is None and operand.valid is None:
            joined = so_far.values & operand.values if conjunction else so_far.values | operand.values
            so_far = Vector(pa.bool_(), joined, None, so_far.constant and operand.constant)
            continue
        decided = decided | decided_by(operand)
        known = (is_true(so_far) & is_true(operand)) if conjunction else (_is_false(so_far) & _is_false(operand))
        values = ~decided if conjunction else decided
        so_far = Vector(pa.bool_(), values, decided | known, so_far.constant and operand.constant)
    return so_far


def _null_test(node: Call, operands: list[Vector], length: int) -> Vector:
    (vector,) = operands
    valid = vector.mask()
    if valid is None:
        valid = np.ones(1 if vector.constant else length, np.bool_)
    return Vector(pa.bool_(), valid if node.function is Function.IS_NOT_NULL else ~valid)


def _coalesce(node: Call, rows: Rows, evaluate: Evaluator) -> Vector:
    assert node.type is not None
    so_far = evaluate(node.arguments[0], rows)
    for argument in node.arguments[1:]:
        present = so_far.mask()
        if present is None:
            break
        value = partly(argument, rows, ~present, evaluate)
        so_far = choose(present, so_far, value, node.type)
    return so_far


def _nanvl(node: Call, rows: Rows, evaluate: Evaluator) -> Vector:
    """Take the second operand where the first is NaN; null where the first is."""
    assert node.type is not None
    first = evaluate(node.arguments[0], rows)
    nan = np.isnan(first.values)
    if first.valid is not None:
        nan = nan & first.valid
    if not nan.any():
        return first
    return choose(~nan, first, partly(node.arguments[1], rows, nan, evaluate), node.type)


def case(node: Case, rows: Rows, evaluate: Evaluator) -> Vector:
    """Take the value of the first branch whose condition is true."""
    assert node.type is not None
    result = nulls(node.type)
    left: Mask = np.ones(1, np.bool_)
    for condition, value in zip(node.conditions, node.values, strict=True):
        hit = is_true(partly(condition, rows, left, evaluate)) & left
        if hit.any():
            result = choose(hit, partly(value, rows, hit, evaluate), result, node.type)
            left = left & ~hit
        if not left.any():
            return result
    return choose(left, partly(node.otherwise, rows, left, evaluate), result, node.type)


def _membership(node: Call, rows: Rows, evaluate: Evaluator) -> Vector:
    """Compute ``IN``: true on the first equal element, else null if the value or an element is null.

    Of no elements it is false, and the value is not evaluated.
    """
    elements = node.arguments[1:]
    if not elements:
        return Vector(pa.bool_(), np.zeros(1, np.bool_), constant=True)
    value = evaluate(node.arguments[0], rows)
    if len(elements) > 4 and all(isinstance(e, Literal) for e in elements):
        membership = _literal_membership(value, [e for e in elements if isinstance(e, Literal)])
        if membership is not None:
            return membership
    present = value.mask()
    hit: Mask = np.zeros(1, np.bool_)
    unknown: Mask = np.zeros(1, np.bool_)
    for element in elements:
        needed = ~hit if present is None else present & ~hit
        other = partly(element, rows, needed, evaluate)
        equal = compare(Function.EQ, value, other)
        hit = hit | is_true(equal)
        if equal.valid is not None:
            unknown = unknown | ~equal.valid
    constant = value.constant and len(hit) == 1
    unknown = unknown & ~hit
    return Vector(pa.bool_(), hit, ~unknown if unknown.any() else None, constant)


def _literal_membership(value: Vector, elements: list[Literal]) -> Vector | None:
    """Look all values up in a set; ``None`` for types whose equality is not that of the set."""
    if is_float(value.dtype) or pat.is_nested(value.dtype) or pat.is_decimal(value.dtype):
        return None
    known = [e.value for e in elements if e.value is not None]
    present = value.mask()
    if value.in_arrow:
        wanted = pa.array(known, value.dtype).cast(value.values.type)
        hit = as_numpy_bool(pc.is_in(value.values, wanted))
    else:
        wanted = pa.array(known, value.dtype)
        if not pat.is_integer(value.dtype):
            return None
        hit = np.isin(value.values, wanted.to_numpy(zero_copy_only=False))
    if present is not None:
        hit = hit & present
    if len(known) < len(elements):
        return Vector(pa.bool_(), hit, hit.copy(), value.constant)
    return Vector(pa.bool_(), hit, present, value.constant)


FUNCTIONS: dict[Function, Run] = {
    Function.NOT: of_arrays(np.logical_not),
    Function.IS_NULL: _null_test,
    Function.IS_NOT_NULL: _null_test,
}
LAZY: dict[Function, Callable[[Call, Rows, Evaluator], Vector]] = {
    Function.AND: _connect,
    Function.OR: _connect,
    Function.COALESCE: _coalesce,
    Function.IN: _membership,
    Function.NANVL: _nanvl,
}
"""Functions that evaluate their operands themselves."""
