"""Comparisons, ``IN``, ``greatest`` and ``least``: operands meet in a common type and compare as Spark orders them.

NaN equals NaN and is greater than all else, −0.0 equals 0.0, text and bytes compare by bytes, structs field by field.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.functions import values as v
from gpujoin.functions.decimals import common_scale
from gpujoin.functions.device import (
    Active,
    KernelWriter,
    Offer,
    Operands,
    Text,
    chain,
    same_as_result,
    same_types,
    swapped,
)
from gpujoin.functions.implementation import Evaluate, Lazy
from gpujoin.functions.kinds import alike, comparable, fits_as_bytes, has_lists
from gpujoin.functions.libraries import pl
from gpujoin.functions.logic import is_true, partly
from gpujoin.functions.lowered import Lowered, NotLowered, fitted, polars_type, rescaled, same_kind
from gpujoin.functions.nestedbytes import to_bytes
from gpujoin.functions.rows import Rows
from gpujoin.functions.signatures import MANY, Signature, cast_to, over, type_of, typed, types_of
from gpujoin.functions.spec import FunctionSpec, Nulls
from gpujoin.functions.values import Value
from gpujoin.functions.vector import (
    Array,
    Mask,
    Vector,
    as_numpy_bool,
    choose,
    from_arrow,
    is_present,
    mask_and,
    mask_and_not,
)
from gpujoin.functions.widening import compared, decimal_for, is_atomic, wider_of, wider_without_text
from gpujoin.model.expressions import Call, EvalMode, Expression, Function, Literal
from gpujoin.model.types import UNITS_PER_SECOND, is_bytes, is_float, is_numeric, is_text, is_whole

OPERATORS = frozenset({Function.EQ, Function.NE, Function.LT, Function.LE, Function.GT, Function.GE})
"""Comparisons whose result is null where an operand is null."""
_INT64 = (-(1 << 63), (1 << 63) - 1)
MIRRORED = {Function.LT: Function.GT, Function.LE: Function.GE, Function.GT: Function.LT, Function.GE: Function.LE}
"""Comparisons by order, and what they are with their operands exchanged."""


def _resolve_comparison(node: Call) -> Expression | None:
    left, right = node.arguments
    left_type, right_type = type_of(left), type_of(right)
    if pat.is_null(left_type) and pat.is_null(right_type):
        return over(node, pa.bool_(), pa.bool_())
    if isinstance(right, Literal) and is_whole(left_type) and pat.is_decimal(right_type):
        reduced = _whole_against_decimal(node, left, right)
        if reduced is not None:
            return reduced
    if isinstance(left, Literal) and is_whole(right_type) and pat.is_decimal(left_type) and node.function in MIRRORED:
        return _resolve_comparison(
            typed(dataclasses.replace(node, function=MIRRORED[node.function]), left_type, right, left)
        )
    equality = node.function in (Function.EQ, Function.NE, Function.EQ_NULL_SAFE)
    if equality and node.mode is not EvalMode.ANSI and pat.is_boolean(left_type) != pat.is_boolean(right_type):
        number = right_type if pat.is_boolean(left_type) else left_type
        if is_numeric(number):
            return over(node, number, pa.bool_())
    node = with_literal_precision(node)
    common = compared(left_type, right_type, node.mode)
    if common is not None and pat.is_decimal(common):
        widened = [decimal_for(type_of(a)) for a in node.arguments]
        common = compared(widened[0], widened[1], node.mode)
    if common is None or not _orders(common):
        return None
    return over(node, common, pa.bool_())


def _orders(dtype: pa.DataType) -> bool:
    """Whether Spark compares values of a type."""
    if pat.is_struct(dtype):
        return all(_orders(f.type) for f in dtype)
    if pat.is_list(dtype):
        return _orders(dtype.value_type)
    return is_atomic(dtype) or pat.is_null(dtype)


def _whole_against_decimal(node: Call, whole: Expression, literal: Literal) -> Expression | None:
    """Compare an integer with a decimal literal as integers, the literal rounded up or down as the operator asks."""
    if node.function not in MIRRORED or literal.value is None:
        return None
    value = Decimal(literal.value)
    if value < _INT64[0] or value > _INT64[1]:
        upward = node.function in (Function.GT, Function.GE)
        return Literal(value=upward == (value < 0), type=pa.bool_())
    down = node.function in (Function.GT, Function.LE)
    bound = Literal(value=math.floor(value) if down else math.ceil(value), type=pa.int64())
    return typed(node, pa.bool_(), cast_to(whole, pa.int64(), node.mode), bound)


def with_literal_precision(node: Call) -> Call:
    """Next to a decimal, give an integer literal no more digits than it has."""
    left, right = node.arguments
    if pat.is_decimal(type_of(right)) and isinstance(left, Literal) and is_whole(type_of(left)):
        left = cast_to(left, _literal_decimal(left), node.mode)
    elif pat.is_decimal(type_of(left)) and isinstance(right, Literal) and is_whole(type_of(right)):
        right = cast_to(right, _literal_decimal(right), node.mode)
    return dataclasses.replace(node, arguments=(left, right))


def _literal_decimal(literal: Literal) -> pa.DataType:
    return pa.decimal128(len(str(abs(literal.value or 0))), 0)


def _resolve_in(node: Call) -> Call | None:
    common = wider_of([type_of(a) for a in node.arguments], node.mode)
    if common is None or not _orders(common):
        return None
    return over(node, pa.bool_() if pat.is_null(common) else common, pa.bool_())


def _resolve_extreme(node: Call) -> Call | None:
    common = wider_of([type_of(a) for a in node.arguments], node.mode, wider_without_text)
    return over(node, common) if common is not None and _orders(common) else None


def _is_comparable(node: Call) -> bool:
    types = types_of(node)
    return fits_as_bytes(types) or (alike(types) and comparable(types[0]))


_PAIR = Signature(_resolve_comparison, _is_comparable)
_EXTREME = Signature(_resolve_extreme, _is_comparable, (2, MANY))


# -- NumPy and Arrow --------------------------------------------------------------------------------------------------


_NUMPY: dict[Function, Callable[[Any, Any], Any]] = {
    Function.EQ: np.equal,
    Function.NE: np.not_equal,
    Function.LT: np.less,
    Function.LE: np.less_equal,
    Function.GT: np.greater,
    Function.GE: np.greater_equal,
}
_ARROW: dict[Function, Callable[[Any, Any], Any]] = {
    Function.EQ: pc.equal,
    Function.NE: pc.not_equal,
    Function.LT: pc.less,
    Function.LE: pc.less_equal,
    Function.GT: pc.greater,
    Function.GE: pc.greater_equal,
}


def compare(function: Function, left: Vector, right: Vector) -> Vector:
    """Compare two columns of one type by ``= != < <= > >=`` or ``<=>``.

    Decimals may differ in scale and timestamps in unit; the comparison is exact. The result is null where an operand
    is, except for ``<=>``.
    """
    if function is Function.EQ_NULL_SAFE:
        return _null_safe(left, right)
    return Vector(pa.bool_(), _compared_values(function, left, right), mask_and(left.mask(), right.mask()))


def _null_safe(left: Vector, right: Vector) -> Vector:
    equal = _compared_values(Function.EQ, left, right)
    left_valid, right_valid = left.mask(), right.mask()
    if left_valid is None and right_valid is None:
        return Vector(pa.bool_(), equal)
    left_valid, right_valid = is_present(left_valid, 1), is_present(right_valid, 1)
    return Vector(pa.bool_(), (equal & left_valid & right_valid) | ~(left_valid | right_valid))


def _compared_values(function: Function, left: Vector, right: Vector) -> Mask:
    if has_lists(left.dtype):
        return _arrow_values(function, *(_as_bytes(operand) for operand in (left, right)))
    if pat.is_struct(left.dtype):
        return _by_sign(function, _struct_sign(left, right))
    if is_text(left.dtype) or is_bytes(left.dtype):
        return _arrow_values(function, left, right)
    if is_float(left.dtype):
        return _float_values(function, left, right)
    if pat.is_decimal(left.dtype):
        left_unscaled, right_unscaled = common_scale(left, right)
        return np.asarray(_NUMPY[function](left_unscaled, right_unscaled), np.bool_)
    if pat.is_timestamp(left.dtype) and left.dtype.unit != right.dtype.unit:
        return _by_sign(function, _instant_sign(left, right))
    return np.asarray(_NUMPY[function](left.values, right.values))


def _as_bytes(operand: Vector) -> Vector:
    return Vector(pa.binary(), to_bytes(operand.values, compared=True), constant=operand.constant)


def _arrow_values(function: Function, left: Vector, right: Vector) -> Mask:
    left_values = left.values[0] if left.constant and not right.constant else left.values
    right_values = right.values[0] if right.constant and not left.constant else right.values
    result = _ARROW[function](left_values, right_values)
    return as_numpy_bool(result.fill_null(False) if result.null_count else result)


def _float_values(function: Function, left: Vector, right: Vector) -> Mask:
    a, b = left.values, right.values
    match function:
        case Function.NE:
            return ~_float_values(Function.EQ, left, right)
        case Function.GT:
            return _float_values(Function.LT, right, left)
        case Function.GE:
            return _float_values(Function.LE, right, left)
    if right.constant and not np.isnan(b[0]):
        return np.asarray(_NUMPY[function](a, b))
    if left.constant and not np.isnan(a[0]):
        # Also true where the other is NaN, which is greater than any number.
        return np.asarray(a == b) if function is Function.EQ else ~_NUMPY[_OPPOSITE[function]](a, b)
    match function:
        case Function.EQ:
            return np.asarray((a == b) | ((a != a) & (b != b)))
        case Function.LE:
            return np.asarray((a <= b) | (b != b))
        case _:
            return np.asarray(~(a >= b) & (a == a))


_OPPOSITE = {Function.LT: Function.GE, Function.LE: Function.GT}


def _by_sign(function: Function, sign: npt.NDArray[np.int8]) -> Mask:
    return np.asarray(_NUMPY[function](sign, 0))


def _instant_sign(left: Vector, right: Vector) -> npt.NDArray[np.int8]:
    """Compare timestamps of two units without leaving 64 bits: the finer one is split into quotient and rest."""
    left_units, right_units = (UNITS_PER_SECOND[v.dtype.unit] for v in (left, right))
    if left_units < right_units:
        return np.asarray(-_instant_sign(right, left), np.int8)
    whole, rest = np.divmod(left.values, left_units // right_units)
    sign = (whole > right.values).astype(np.int8) - (whole < right.values).astype(np.int8)
    return np.asarray(np.where((sign == 0) & (rest > 0), 1, sign), np.int8)


def _struct_sign(left: Vector, right: Vector) -> npt.NDArray[np.int8]:
    """Compare structs field by field; inside a struct nulls equal each other and come first."""
    length = max(len(left.values), len(right.values))
    left, right = left.expand(length), right.expand(length)
    sign = np.zeros(length, np.int8)
    for i in range(left.dtype.num_fields):
        undecided = sign == 0
        if not undecided.any():
            break
        left_field = from_arrow(pc.struct_field(left.values, [i]))
        right_field = from_arrow(pc.struct_field(right.values, [i]))
        sign = np.where(undecided, _sign(left_field, right_field), sign)
    return sign


def _sign(left: Vector, right: Vector) -> npt.NDArray[np.int8]:
    less, equal = _compared_values(Function.LT, left, right), _compared_values(Function.EQ, left, right)
    sign: Array = np.where(equal, 0, np.where(less, -1, 1)).astype(np.int8)
    left_valid, right_valid = left.mask(), right.mask()
    if left_valid is None and right_valid is None:
        return sign
    left_valid, right_valid = is_present(left_valid, len(sign)), is_present(right_valid, len(sign))
    by_null = left_valid.astype(np.int8) - right_valid.astype(np.int8)
    return np.where(left_valid & right_valid, sign, by_null)


def _extreme(node: Call, vectors: list[Vector], _length: int) -> Vector:
    """Compute ``greatest`` or ``least``: nulls are skipped, NaN is the greatest."""
    function = Function.GT if node.function is Function.GREATEST else Function.LT
    best = vectors[0]
    for vector in vectors[1:]:
        better = compare(function, vector, best).values
        best_valid, valid = best.mask(), vector.mask()
        if valid is not None:
            better = better & valid
        if best_valid is not None:
            better = better | (~best_valid if valid is None else ~best_valid & valid)
        best = choose(better, vector, best, type_of(node))
    return best


def _compared(node: Call, operands: list[Vector], _length: int) -> Vector:
    return compare(node.function, *operands)


def _membership(node: Call, rows: Rows, evaluate: Evaluate) -> Vector:
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
        undecided = ~hit if present is None else present & ~hit
        other = partly(element, rows, undecided, evaluate)
        equal = compare(Function.EQ, value, other)
        hit = hit | is_true(equal)
        if equal.valid is not None:
            unknown = unknown | ~equal.valid
    constant = value.constant and len(hit) == 1
    unknown = unknown & ~hit
    return Vector(pa.bool_(), hit, ~unknown if unknown.any() else None, constant)


def _literal_membership(value: Vector, elements: list[Literal]) -> Vector | None:
    """Look all values up in a set. ``None`` for types that a set compares differently from Spark."""
    if is_float(value.dtype) or pat.is_nested(value.dtype) or pat.is_decimal(value.dtype):
        return None
    members = [e.value for e in elements if e.value is not None]
    present = value.mask()
    if value.in_arrow:
        member_array = pa.array(members, value.dtype).cast(value.values.type)
        hit = as_numpy_bool(pc.is_in(value.values, member_array))
    else:
        member_array = pa.array(members, value.dtype)
        if not pat.is_integer(value.dtype):
            return None
        hit = np.isin(value.values, member_array.to_numpy(zero_copy_only=False))
    if present is not None:
        hit = hit & present
    if len(members) < len(elements):
        return Vector(pa.bool_(), hit, hit.copy(), value.constant)
    return Vector(pa.bool_(), hit, present, value.constant)


# -- Polars -----------------------------------------------------------------------------------------------------------


_POLARS: dict[Function, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    Function.EQ: lambda a, b: a == b,
    Function.NE: lambda a, b: a != b,
    Function.LT: lambda a, b: a < b,
    Function.LE: lambda a, b: a <= b,
    Function.GT: lambda a, b: a > b,
    Function.GE: lambda a, b: a >= b,
    Function.EQ_NULL_SAFE: lambda a, b: a.eq_missing(b),
}


def _lower_operands(values: Sequence[Lowered]) -> list[Lowered]:
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


def _lower_comparison(node: Call, values: list[Lowered]) -> Lowered:
    left, right = _lower_operands(values)
    return Lowered(_POLARS[node.function](left.expr, right.expr), pa.bool_())


def _lower_in(node: Call, values: list[Lowered]) -> Lowered:
    values = _lower_operands(values)
    value, *elements = values
    if not elements:
        raise NotLowered("an empty IN")
    members = [a.value for a in node.arguments[1:] if isinstance(a, Literal) and a.value is not None]
    plain = is_text(value.dtype) or is_whole(value.dtype)
    if plain and len(members) == len(elements) and len(members) > 2:
        if value.wide:
            members = [text.encode() for text in members]
        member_list = pl.lit(pl.Series(members, dtype=polars_type(value.dtype, wide=value.wide)).implode())
        return Lowered(value.expr.is_in(member_list), pa.bool_())
    equal = (value.expr == element.expr for element in elements)
    return Lowered(reduce(lambda a, b: a | b, equal), pa.bool_())


# -- device -----------------------------------------------------------------------------------------------------------


def _compare_on_device(operands: Operands, function: Function, left: Value | Text, right: Value | Text) -> Array:
    if not isinstance(left, Value):
        return left.compare(function, right)
    assert isinstance(right, Value)
    match function:
        case Function.EQ:
            return v.equal(operands.xp, left, right)
        case Function.NE:
            return ~v.equal(operands.xp, left, right)
        case Function.LT:
            return v.less(operands.xp, left, right)
        case Function.GE:
            return ~v.less(operands.xp, left, right)
        case Function.GT:
            return v.less(operands.xp, right, left)
        case _:
            return ~v.less(operands.xp, right, left)


def _device_comparison(operands: Operands, node: Call, active: Active) -> Value:
    left = operands.any(node.arguments[0], active)
    right = operands.any(node.arguments[1], mask_and(active, left.valid))
    return Value(
        pa.bool_(), _compare_on_device(operands, node.function, left, right), mask_and(left.valid, right.valid)
    )


def _device_null_safe(operands: Operands, node: Call, active: Active) -> Value:
    left, right = (operands.any(a, active) for a in node.arguments)
    same = _compare_on_device(operands, Function.EQ, left, right)
    if left.valid is None and right.valid is None:
        return Value(pa.bool_(), same)
    yes = operands.xp.ones(1, dtype=bool)
    left_valid, right_valid = (yes if side.valid is None else side.valid for side in (left, right))
    return Value(pa.bool_(), (same & left_valid & right_valid) | (~left_valid & ~right_valid))


def _device_in(operands: Operands, node: Call, active: Active) -> Value:
    """Compute ``IN``: true on a match, else null if any operand is null; false for an empty list."""
    if len(node.arguments) == 1:
        return Value(pa.bool_(), operands.xp.zeros(1, dtype=bool))
    value = operands.any(node.arguments[0], active)
    active = mask_and(active, value.valid)
    is_member: Array = operands.xp.zeros(1, dtype=bool)
    all_valid = value.valid
    for argument in node.arguments[1:]:
        other = operands.any(argument, active)
        hit = _compare_on_device(operands, Function.EQ, value, other)
        hit = hit if other.valid is None else hit & other.valid
        is_member = is_member | (hit if value.valid is None else hit & value.valid)
        all_valid = mask_and(all_valid, other.valid)
        active = mask_and_not(active, is_member)
    return Value(pa.bool_(), is_member, None if all_valid is None else is_member | all_valid)


def _device_extreme(operands: Operands, node: Call, active: Active) -> Value | Text:
    """``greatest`` and ``least``: nulls are skipped."""
    function = Function.GT if node.function is Function.GREATEST else Function.LT
    best = operands.any(node.arguments[0], active)
    for argument in node.arguments[1:]:
        other = operands.any(argument, active)
        better = _compare_on_device(operands, function, other, best)
        if other.valid is not None:
            better = better & other.valid
        if best.valid is not None:
            better = better | ~best.valid
        best = operands.choose(better, other, best)
    return best


_MOST_MEMBERS = 16
"""Most elements of an ``IN`` list in a kernel: the compiler's time grows faster than the list."""


def _write_in(writer: KernelWriter, node: Call) -> str | None:
    if len(node.arguments) == 1:
        return "literal<bool>(false)"
    if len(node.arguments) > 1 + _MOST_MEMBERS:
        return None
    value, *others = map(writer.node, node.arguments)
    first, *rest = (f"{value}.eq({other})" for other in others)
    return first + "".join(f".either({test})" for test in rest)


TABLE = (
    FunctionSpec(
        Function.EQ, ("EqualTo",), _PAIR,
        selectivity=0.1,
        numpy=_compared, polars=_lower_comparison, device=Offer(_device_comparison, same_types, chain("eq")),
    ),
    FunctionSpec(
        Function.NE, (), _PAIR,
        numpy=_compared, polars=_lower_comparison, device=Offer(_device_comparison, same_types, chain("ne")),
    ),
    FunctionSpec(
        Function.LT, ("LessThan",), _PAIR,
        selectivity=0.5,
        numpy=_compared, polars=_lower_comparison, device=Offer(_device_comparison, same_types, chain("lt")),
    ),
    FunctionSpec(
        Function.LE, ("LessThanOrEqual",), _PAIR,
        selectivity=0.5,
        numpy=_compared, polars=_lower_comparison, device=Offer(_device_comparison, same_types, chain("le")),
    ),
    FunctionSpec(
        Function.GT, ("GreaterThan",), _PAIR,
        selectivity=0.5,
        numpy=_compared, polars=_lower_comparison, device=Offer(_device_comparison, same_types, swapped("lt")),
    ),
    FunctionSpec(
        Function.GE, ("GreaterThanOrEqual",), _PAIR,
        selectivity=0.5,
        numpy=_compared, polars=_lower_comparison, device=Offer(_device_comparison, same_types, swapped("le")),
    ),
    FunctionSpec(
        Function.EQ_NULL_SAFE, ("EqualNullSafe",), _PAIR,
        nulls=Nulls.OWN_RULE, selectivity=0.1,
        numpy=_compared, polars=_lower_comparison, device=Offer(_device_null_safe, same_types, chain("same")),
    ),
    FunctionSpec(
        Function.IN, ("In", "InSet"), Signature(_resolve_in, _is_comparable, (1, MANY)),
        nulls=Nulls.OWN_RULE, selectivity=0.2,
        numpy=Lazy(_membership), polars=_lower_in, device=Offer(_device_in, same_types, _write_in),
    ),
    FunctionSpec(
        Function.GREATEST, ("Greatest",), _EXTREME,
        nulls=Nulls.OWN_RULE,
        numpy=_extreme, device=Offer(_device_extreme, same_as_result),
    ),
    FunctionSpec(
        Function.LEAST, ("Least",), _EXTREME,
        nulls=Nulls.OWN_RULE,
        numpy=_extreme, device=Offer(_device_extreme, same_as_result),
    ),
)  # fmt: skip
