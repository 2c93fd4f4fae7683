"""Three-valued logic, null tests and ``coalesce``."""

from __future__ import annotations

from functools import reduce
from operator import and_, or_

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions import values as v
from gpujoin.functions.device import Active, KernelWriter, Offer, Operands, Text, chain, same_as_result, strict, suffix
from gpujoin.functions.implementation import Evaluate, Lazy, of_arrays
from gpujoin.functions.kinds import alike, comparable, is_alike
from gpujoin.functions.libraries import pl
from gpujoin.functions.lowered import Lowered, aligned, of_values, result_type
from gpujoin.functions.rows import Rows, scatter
from gpujoin.functions.signatures import ANY, BOOLEAN, FLOAT, MANY, Signature, over, takes, type_of, types_of
from gpujoin.functions.spec import FunctionSpec, Nulls, can_raise
from gpujoin.functions.values import Value
from gpujoin.functions.vector import Array, Mask, Vector, choose, mask_and, mask_and_not, nulls
from gpujoin.functions.widening import tightest, wider_of
from gpujoin.model.expressions import Call, Case, ColumnRef, Expression, Function, Literal
from gpujoin.model.types import is_bytes, is_text


def _resolve_coalesce(node: Call) -> Call | None:
    return over(node, wider_of([type_of(a) for a in node.arguments], node.mode))


def _alike_values(node: Call) -> bool:
    types = types_of(node)
    if pat.is_nested(types[0]) and all(is_alike(types[0], dtype) for dtype in types):
        return True
    return alike(types) and (comparable(types[0]) or pat.is_null(types[0]))


def _resolve_nanvl(node: Call) -> Call | None:
    types = [FLOAT.convert(type_of(a), node.mode) for a in node.arguments]
    if types[0] is None or types[1] is None:
        return None
    return over(node, tightest(types[0], types[1], node.mode))


def _alike_floats(node: Call) -> bool:
    first, second = types_of(node)
    return FLOAT.accepts(first) and first == second


_CONNECTED = takes(BOOLEAN, BOOLEAN, gives=pa.bool_(), repeated=True)
_TESTED = takes(ANY, gives=pa.bool_())


# -- NumPy and Arrow --------------------------------------------------------------------------------------------------


_WORTH_SELECTING = 8
"""An expensive operand is computed on selected rows if at most one row in this many needs it."""


def partly(node: Expression, rows: Rows, mask: Mask | None, evaluate: Evaluate) -> Vector:
    """Evaluate a node on the rows of a mask. The result is arbitrary elsewhere, possibly null."""
    if mask is None:
        return evaluate(node, rows)
    count = int(np.count_nonzero(np.broadcast_to(mask, rows.length)))
    if count == rows.length:
        return evaluate(node, rows)
    if count == 0:
        return nulls(type_of(node))
    if not can_raise(node) and (count * _WORTH_SELECTING > rows.length or not _expensive(node)):
        return evaluate(node, rows)
    selected, positions = rows.where(np.broadcast_to(mask, rows.length))
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


def is_false(vector: Vector) -> Mask:
    """Mask of rows that are false, not true or null."""
    return np.asarray(~vector.values if vector.valid is None else ~vector.values & vector.valid)


def _connect(node: Call, rows: Rows, evaluate: Evaluate) -> Vector:
    conjunction = node.function is Function.AND
    decided_by = is_false if conjunction else is_true
    so_far = evaluate(node.arguments[0], rows)
    for argument in node.arguments[1:]:
        decided = decided_by(so_far)
        operand = partly(argument, rows, ~decided, evaluate)
        if so_far.valid is None and operand.valid is None:
            joined = so_far.values & operand.values if conjunction else so_far.values | operand.values
            so_far = Vector(pa.bool_(), joined, None, so_far.constant and operand.constant)
            continue
        decided = decided | decided_by(operand)
        are_known = (is_true(so_far) & is_true(operand)) if conjunction else (is_false(so_far) & is_false(operand))
        values = ~decided if conjunction else decided
        so_far = Vector(pa.bool_(), values, decided | are_known, so_far.constant and operand.constant)
    return so_far


def _null_test(node: Call, operands: list[Vector], length: int) -> Vector:
    (vector,) = operands
    valid = vector.mask()
    if valid is None:
        valid = np.ones(1 if vector.constant else length, np.bool_)
    return Vector(pa.bool_(), valid if node.function is Function.IS_NOT_NULL else ~valid)


def _coalesce(node: Call, rows: Rows, evaluate: Evaluate) -> Vector:
    so_far = evaluate(node.arguments[0], rows)
    for argument in node.arguments[1:]:
        present = so_far.mask()
        if present is None:
            break
        value = partly(argument, rows, ~present, evaluate)
        so_far = choose(present, so_far, value, type_of(node))
    return so_far


def _nanvl(node: Call, rows: Rows, evaluate: Evaluate) -> Vector:
    """The first operand, or the second where the first is NaN."""
    first = evaluate(node.arguments[0], rows)
    nan = np.isnan(first.values)
    if first.valid is not None:
        nan = nan & first.valid
    if not nan.any():
        return first
    return choose(~nan, first, partly(node.arguments[1], rows, nan, evaluate), type_of(node))


def case(node: Case, rows: Rows, evaluate: Evaluate) -> Vector:
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


# -- Polars -----------------------------------------------------------------------------------------------------------


def _lower_coalesce(node: Call, values: list[Lowered]) -> Lowered:
    dtype = result_type(node)
    values, bounds, wide = aligned(values, dtype)
    return Lowered(pl.coalesce([v.expr for v in values]), dtype, bounds, wide)


# -- device -----------------------------------------------------------------------------------------------------------


def _device_and(operands: Operands, node: Call, active: Active) -> Value:
    return _device_junction(operands, node, active, absorbing=False)


def _device_or(operands: Operands, node: Call, active: Active) -> Value:
    return _device_junction(operands, node, active, absorbing=True)


def _device_junction(operands: Operands, node: Call, active: Active, *, absorbing: bool) -> Value:
    """AND (``absorbing`` false) or OR (true). An operand is evaluated only where earlier ones leave it undecided."""
    result: Value | None = None
    for argument in node.arguments:
        value = operands.fixed(argument, active)
        decided = _is_certainly(value, absorbing)
        active = mask_and_not(active, decided)
        if result is None:
            result = value
            continue
        settled = _is_certainly(result, absorbing) | decided
        valid = mask_and(result.valid, value.valid)
        data = settled if absorbing else ~settled
        result = Value(value.dtype, data, None if valid is None else valid | settled)
    assert result is not None
    return result


def _is_certainly(value: Value, truth: bool) -> Array:
    hit = value.data if truth else ~value.data
    return hit if value.valid is None else hit & value.valid


def _device_null_test(operands: Operands, node: Call, active: Active) -> Value:
    argument = node.arguments[0]
    valid = (
        operands.source.column_valid(argument)
        if isinstance(argument, ColumnRef)
        else operands.any(argument, active).valid
    )
    wants_null = node.function is Function.IS_NULL
    if valid is None:
        return Value(pa.bool_(), operands.xp.full(1, not wants_null, dtype=bool))
    return Value(pa.bool_(), ~valid if wants_null else valid)


def _device_coalesce(operands: Operands, node: Call, active: Active) -> Value | Text:
    parts: list[Value | Text] = []
    for argument in node.arguments:
        part = operands.any(argument, active)
        parts.append(part)
        if part.valid is None:
            break
        active = mask_and(active, ~part.valid)
    result = parts[-1]
    for part in reversed(parts[:-1]):
        assert part.valid is not None
        result = operands.choose(part.valid, part, result)
    return result


def _device_nanvl(operands: Operands, node: Call, active: Active) -> Value | Text:
    """The first operand, or the second where the first is NaN."""
    first = operands.fixed(node.arguments[0], active)
    nan = v.equal(operands.xp, first, v.constant(operands.xp, float("nan"), first.dtype))
    nan = nan if first.valid is None else nan & first.valid
    return operands.choose(nan, operands.fixed(node.arguments[1], mask_and(active, nan)), first)


def _write_null_test(writer: KernelWriter, node: Call) -> str:
    argument = node.arguments[0]
    test = writer.missing(argument) if isinstance(argument, ColumnRef) else f"{writer.node(argument)}.is_null()"
    return test if node.function is Function.IS_NULL else f"{test}.negated()"


TABLE = (
    FunctionSpec(
        Function.AND, ("And",), _CONNECTED,
        nulls=Nulls.OWN_RULE,
        numpy=Lazy(_connect), polars=of_values(lambda *operands: reduce(and_, operands), pa.bool_()),
        device=Offer(_device_and, kernel=chain("both")),
    ),
    FunctionSpec(
        Function.OR, ("Or",), _CONNECTED,
        nulls=Nulls.OWN_RULE,
        numpy=Lazy(_connect), polars=of_values(lambda *operands: reduce(or_, operands), pa.bool_()),
        device=Offer(_device_or, kernel=chain("either")),
    ),
    FunctionSpec(
        Function.NOT, ("Not",), takes(BOOLEAN, gives=pa.bool_()),
        numpy=of_arrays(np.logical_not), polars=of_values(lambda operand: ~operand, pa.bool_()),
        device=strict(lambda _, value: ~value.data, kernel=suffix("negated()")),
    ),
    FunctionSpec(
        Function.IS_NULL, ("IsNull",), _TESTED,
        nulls=Nulls.OWN_RULE, selectivity=0.05,
        numpy=_null_test, polars=of_values(lambda operand: operand.is_null(), pa.bool_()),
        device=Offer(_device_null_test, kernel=_write_null_test),
    ),
    FunctionSpec(
        Function.IS_NOT_NULL, ("IsNotNull",), _TESTED,
        nulls=Nulls.OWN_RULE, selectivity=1.0,
        numpy=_null_test, polars=of_values(lambda operand: operand.is_not_null(), pa.bool_()),
        device=Offer(_device_null_test, kernel=_write_null_test),
    ),
    FunctionSpec(
        Function.COALESCE, ("Coalesce",), Signature(_resolve_coalesce, _alike_values, (1, MANY)),
        nulls=Nulls.OWN_RULE,
        numpy=Lazy(_coalesce), polars=_lower_coalesce, device=Offer(_device_coalesce, same_as_result),
    ),
    FunctionSpec(
        Function.NANVL, ("NaNvl",), Signature(_resolve_nanvl, _alike_floats, parameters=(FLOAT, FLOAT)),
        nulls=Nulls.OWN_RULE,
        numpy=Lazy(_nanvl), device=Offer(_device_nanvl, same_as_result),
    ),
)  # fmt: skip
