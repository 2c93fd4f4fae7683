"""Which conditions the device evaluates exactly as Spark does; the others are left to the CPU.

Not offered: regular expressions (of another dialect), case mapping, decimal arithmetic, time zones with rules, nested
values, byte strings, and casts that may fail or whose result depends on settings.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.values import NARROW_DIGITS, is_wide
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, Expression, Function, Literal

COMPARISONS = frozenset({Function.EQ, Function.NE, Function.LT, Function.LE, Function.GT, Function.GE})
SEARCHES = frozenset({Function.STARTS_WITH, Function.ENDS_WITH, Function.CONTAINS})
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
_UTC = (None, "UTC", "Etc/UTC", "Z", "+00:00")


def can_evaluate(condition: Expression) -> bool:
    """Whether a resolved boolean expression, with all below it, evaluates here exactly as in Spark."""
    return condition.type is not None and pat.is_boolean(condition.type) and _offered(condition)


def _offered(node: Expression) -> bool:
    if node.type is None:
        return False
    if isinstance(node, Literal | ColumnRef):
        unsigned = isinstance(node, ColumnRef) and pat.is_unsigned_integer(node.type)
        return _fixed(node.type) or pat.is_string(node.type) or unsigned
    if isinstance(node, Call):
        fits = FITS.get(node.function)
        if node.function in (Function.IS_NULL, Function.IS_NOT_NULL) and isinstance(
            node.arguments[0], ColumnRef
        ):
            return True
        return fits is not None and fits(node) and all(map(_offered, node.arguments))
    if isinstance(node, Cast):
        return cast_fits(node) and _offered(node.child)
    if isinstance(node, Case):
        return (
            _fixed(node.type)
            and all(c.type == node.type for c in (*node.values, node.otherwise))
            and all(map(_offered, node.children))
        )
    return False


def _fixed(dtype: pa.DataType | None) -> bool:
    """Types whose values can be computed with: booleans, signed integers, floats, decimals, dates, timestamps."""
    return dtype is not None and (
        pat.is_boolean(dtype) or pat.is_signed_integer(dtype) or pat.is_float32(dtype) or pat.is_float64(dtype)
        or pat.is_decimal128(dtype) or pat.is_date32(dtype) or pat.is_timestamp(dtype)
    )  # fmt: skip


def _types(node: Expression) -> list[pa.DataType]:
    return [child.type for child in node.children if child.type is not None]


def _all_boolean(node: Call) -> bool:
    return all(map(pat.is_boolean, _types(node)))


def _alike(node: Call) -> bool:
    """All arguments of one type whose values can be compared; decimals may differ in precision, not in scale."""
    first, *others = _types(node)
    if pat.is_decimal128(first):
        return all(
            pat.is_decimal128(t) and t.scale == first.scale and is_wide(t) == is_wide(first) for t in others
        )
    return (_fixed(first) or pat.is_string(first)) and all(t == first for t in others)


def _alike_fixed(node: Call) -> bool:
    return _alike(node) and _fixed(_types(node)[0]) and node.type == _types(node)[0]


def _arithmetic(node: Call) -> bool:
    kinds = _types(node)
    return all(t == node.type for t in kinds) and (
        pat.is_signed_integer(node.type) or pat.is_float64(node.type)
    )


def _double(node: Call) -> bool:
    return all(map(pat.is_float64, [*_types(node), node.type]))


def _whole(node: Call) -> bool:
    return pat.is_signed_integer(node.type) and all(t == node.type for t in _types(node))


def _text_pair(node: Call) -> bool:
    return all(map(pat.is_string, _types(node)))


def _like_fits(node: Call) -> bool:
    """A literal pattern in which the escape character precedes a wildcard or itself, as Spark demands."""
    if not _text_pair(node) or not all(
        isinstance(a, Literal) and a.value is not None for a in node.arguments[1:]
    ):
        return False
    pattern, escape = like_parts(node)
    if len(escape) != 1 or not escape.isascii() or escape in "%_":
        return False
    rest = iter(pattern)
    return all(character != escape or next(rest, "") in ("%", "_", escape) for character in rest)


def like_parts(node: Call) -> tuple[str, str]:
    """Pattern and escape character of a LIKE whose pattern is a literal."""
    pattern, *escape = (str(a.value) for a in node.arguments[1:] if isinstance(a, Literal))
    return pattern, escape[0] if escape else "\\"


def _date_parts(node: Call) -> bool:
    return all(map(pat.is_date32, _types(node)))


def _date_shift(node: Call) -> bool:
    date, days = _types(node)
    return pat.is_date32(date) and pat.is_int32(days)


def _zone_free(node: Call) -> bool:
    return all(pat.is_timestamp(t) and t.tz in _UTC for t in _types(node))


def cast_fits(node: Cast) -> bool:
    """Casts that cannot fail, and whose result does not depend on settings."""
    source, target = node.child.type, node.type
    if source is None or target is None:
        return False
    if source == target:
        return _fixed(source)
    if pat.is_integer(source):
        unsigned = pat.is_unsigned_integer(source)
        if pat.is_signed_integer(target):
            return bool(source.bit_width + unsigned <= target.bit_width)
        if pat.is_decimal128(target):
            digits = _INTEGER_DIGITS[source.bit_width]
            return (
                not unsigned
                and digits + target.scale <= target.precision <= NARROW_DIGITS
                and target.scale >= 0
            )
        return (pat.is_float64(target) or pat.is_float32(target)) and not unsigned
    if pat.is_float32(source):
        return pat.is_float64(target)
    if pat.is_decimal128(source) and pat.is_decimal128(target):
        kept = target.precision - target.scale >= source.precision - source.scale
        return kept and target.scale >= source.scale and target.precision <= NARROW_DIGITS
    return pat.is_timestamp(source) and source.tz is None and pat.is_date32(target)


FITS: dict[Function, Callable[[Call], bool]] = {
    **dict.fromkeys((Function.AND, Function.OR, Function.NOT), _all_boolean),
    **dict.fromkeys((*COMPARISONS, Function.EQ_NULL_SAFE, Function.IN), _alike),
    **dict.fromkeys((Function.IS_NULL, Function.IS_NOT_NULL), lambda _: True),
    Function.IS_NAN: lambda node: pat.is_floating(_types(node)[0]),
    Function.COALESCE: _alike_fixed,
    **dict.fromkeys(
        (Function.ADD, Function.SUBTRACT, Function.MULTIPLY, Function.NEGATE, Function.ABS), _arithmetic
    ),
    Function.DIVIDE: _double,
    **dict.fromkeys((Function.INTEGRAL_DIVIDE, Function.REMAINDER), _whole),
    **dict.fromkeys(SEARCHES, _text_pair),
    Function.LIKE: _like_fits,
    Function.LENGTH: _text_pair,
    **dict.fromkeys(
        (Function.YEAR, Function.QUARTER, Function.MONTH, Function.DAY, Function.DAY_OF_WEEK,
         Function.DAY_OF_YEAR, Function.DATE_DIFF),
        _date_parts,
    ),
    **dict.fromkeys((Function.HOUR, Function.MINUTE, Function.SECOND), _zone_free),
    **dict.fromkeys((Function.DATE_ADD, Function.DATE_SUB), _date_shift),
}  # fmt: skip
"""For each function offered, whether the types of its arguments, and its own, are ones it is offered for."""
