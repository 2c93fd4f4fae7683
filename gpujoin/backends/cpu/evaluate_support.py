"""Which expressions are evaluated here exactly as Spark would."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.evaluate_cast import can_cast
from gpujoin.backends.cpu.evaluate_dates import zone_offset
from gpujoin.backends.cpu.evaluate_regex import UnsupportedPatternError, java_to_re2
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, Expression, Function, Literal
from gpujoin.model.types import is_bytes, is_float, is_numeric, is_text, is_whole, logical

_COMPARISONS = frozenset(
    {Function.EQ, Function.NE, Function.LT, Function.LE, Function.GT, Function.GE, Function.EQ_NULL_SAFE}
)
_ARITHMETIC = frozenset(
    {
        Function.ADD, Function.SUBTRACT, Function.MULTIPLY, Function.DIVIDE, Function.INTEGRAL_DIVIDE,
        Function.REMAINDER, Function.PMOD, Function.NEGATE, Function.ABS, Function.FLOOR, Function.CEIL,
    }
)  # fmt: skip
_DATE_PARTS = frozenset(
    {
        Function.YEAR, Function.QUARTER, Function.MONTH, Function.DAY, Function.DAY_OF_WEEK, Function.DAY_OF_YEAR,
    }
)  # fmt: skip
_TIME_PARTS = frozenset({Function.HOUR, Function.MINUTE, Function.SECOND})
_PREDICATES = frozenset({Function.STARTS_WITH, Function.ENDS_WITH, Function.CONTAINS})
_LOGIC = frozenset({Function.AND, Function.OR, Function.NOT})


def can_evaluate(condition: Expression) -> bool:
    """Tell whether every node of a resolved tree is evaluated exactly as Spark would, whatever the data.

    Parameters
    ----------
    condition : Expression
        With a type on every node.
    """
    return all(_supported(node) for node in condition.walk())


def comparable(dtype: pa.DataType) -> bool:
    """Tell whether values of a type can be compared here."""
    if pat.is_struct(dtype):
        return all(comparable(f.type) for f in dtype)
    return (
        pat.is_boolean(dtype)
        or (is_numeric(dtype) and not pat.is_decimal256(dtype))
        or is_text(dtype)
        or is_bytes(dtype)
        or (pat.is_temporal(dtype) and not pat.is_interval(dtype))
    )


def _value(dtype: pa.DataType) -> bool:
    return comparable(dtype) or pat.is_null(dtype)


def _supported(node: Expression) -> bool:
    if node.type is None:
        return False
    if isinstance(node, ColumnRef):
        return node.index >= 0
    if isinstance(node, Literal):
        return _value(logical(node.type)) or node.value is None
    if isinstance(node, Cast):
        return _value(logical(node.to)) and can_cast(node)
    if isinstance(node, Case):
        return _value(logical(node.type))
    return isinstance(node, Call) and _call_supported(node)


def _call_supported(node: Call) -> bool:  # noqa: C901
    if any(a.type is None for a in node.arguments):
        return False
    types = [logical(a.type) for a in node.arguments if a.type is not None]
    alike = all(_alike(types[0], t) for t in types)
    match node.function:
        case f if f in _COMPARISONS:
            return alike and comparable(types[0])
        case Function.IN | Function.GREATEST | Function.LEAST:
            return alike and comparable(types[0])
        case Function.COALESCE:
            return alike and _value(types[0])
        case f if f in _LOGIC:
            return all(pat.is_boolean(t) for t in types)
        case Function.IS_NULL | Function.IS_NOT_NULL:
            return True
        case Function.SQRT:
            return pat.is_float64(types[0])
        case Function.IS_NAN:
            return is_float(types[0])
        case Function.UNSCALED_VALUE:
            return pat.is_decimal(types[0]) and types[0].precision <= 18
        case f if f in _ARITHMETIC:
            return _arithmetic_supported(node, types)
        case f if f in _PREDICATES:
            return all(is_text(t) for t in types) or all(is_bytes(t) for t in types)
        case Function.LENGTH | Function.SUBSTRING:
            return (is_text(types[0]) or is_bytes(types[0])) and all(pat.is_int32(t) for t in types[1:])
        case Function.CONCAT:
            return all(is_text(t) for t in types) or all(is_bytes(t) for t in types)
        case Function.TRIM:
            return len(types) == 1 and is_text(types[0])
        case Function.LIKE:
            escape = node.arguments[2] if len(types) > 2 else None
            plain = escape is None or (isinstance(escape, Literal) and len(escape.value or "") == 1)
            return plain and all(is_text(t) for t in types)
        case Function.RLIKE:
            return all(is_text(t) for t in types) and _known_regex(node.arguments[1])
        case Function.GET_FIELD:
            return pat.is_struct(types[0])
        case _:
            return _dates_supported(node, types)


def _alike(one: pa.DataType, two: pa.DataType) -> bool:
    if pat.is_decimal(one) and pat.is_decimal(two):
        return True
    if pat.is_timestamp(one) and pat.is_timestamp(two):
        return (one.tz is None) == (two.tz is None)
    if pat.is_struct(one) and pat.is_struct(two):
        return one.num_fields == two.num_fields and all(
            _alike(a.type, b.type) for a, b in zip(one, two, strict=True)
        )
    return one == two


def _arithmetic_supported(node: Call, types: list[pa.DataType]) -> bool:
    if node.function in (Function.FLOOR, Function.CEIL):
        return pat.is_decimal128(types[0]) or is_whole(types[0]) or pat.is_float64(types[0])
    if not all(is_numeric(t) and not pat.is_decimal256(t) for t in types):
        return False
    return all(pat.is_decimal(t) for t in types) or all(t == types[0] for t in types)


def _known_regex(pattern: Expression) -> bool:
    if not isinstance(pattern, Literal):
        return False
    try:
        if pattern.value is not None:
            java_to_re2(pattern.value)
    except UnsupportedPatternError:
        return False
    return True


def _dates_supported(node: Call, types: list[pa.DataType]) -> bool:
    if node.function in _DATE_PARTS:
        return pat.is_date(types[0])
    if node.function in _TIME_PARTS:
        return pat.is_timestamp(types[0]) and zone_offset(types[0]) is not None
    if node.function in (Function.DATE_ADD, Function.DATE_SUB):
        return pat.is_date(types[0]) and is_whole(types[1]) and types[1].bit_width <= 32
    return node.function is Function.DATE_DIFF and all(pat.is_date(t) for t in types)
