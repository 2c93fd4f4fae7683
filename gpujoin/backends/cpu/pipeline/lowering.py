"""Expressions as Polars expressions, where that is exactly Spark and proven not to raise.

What an expression can give follows from the bounds of its columns: an addition that cannot leave its type needs no
check.

Polars computes with a *constant* (a literal, or a column that has one value for all rows) by shortcuts that are not
exact for floats. With rows `x = -0.0, 7.0`:

- `x + lit(0.0)` is `x`, so `-0.0` where IEEE and Spark have `0.0`; so are `lit(0.0) + x`, and `lit(0.0) - x` is `-x`;
- `x / lit(3.0)` is `x * (1 / 3.0)`, which rounds twice.

So these are not lowered, and constants that become columns of floats are spread over the rows (:func:`as_column`).
Where the proof fails, :class:`NotLowered` is raised, and the caller evaluates the expression with
`gpujoin.backends.cpu.evaluate`, which raises where Spark raises.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from functools import reduce

import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.evaluate_regex import LikePatternError, like_parts
from gpujoin.backends.cpu.pipeline.columns import (
    INT64,
    INT128,
    Bounds,
    Column,
    LazyBounds,
    can_carry,
    magnitude,
    polars_type,
    type_bounds,
    unscaled,
    within,
)
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, EvalMode, Expression, Function, Literal
from gpujoin.model.types import MAX_PRECISION, is_bytes, is_float, is_text, is_whole, logical

_CALENDAR: Bounds = (-719162, 2932896)
"""Days of the years 1 to 9999, in which every date has its parts in Polars."""
_EXACT_DOUBLE = 1 << 53
_EXACT_POWER = 22
_EPOCH = dt.date(1970, 1, 1)


class NotLowered(Exception):  # noqa: N818  # says what happened, and never reaches a user
    """An expression has no exact and safe form in Polars over these columns."""


@dataclass(frozen=True)
class Lowered:
    """A Polars expression and what is known of its values.

    Attributes
    ----------
    expr : polars.Expr
        Computes the values in the form of :func:`polars_type`.
    dtype : pyarrow.DataType
        What they mean.
    bounds : (int, int), LazyBounds or None
        Of integers, unscaled decimals, days.
    wide : bool
        Decimals 128 bits wide, text as bytes: see :class:`~gpujoin.backends.cpu.pipeline.columns.Column`.
    constant : bool
        Whether Polars may hold one value for all rows.
    """

    expr: pl.Expr
    dtype: pa.DataType
    bounds: Bounds | LazyBounds | None = None
    wide: bool = False
    constant: bool = False


def as_column(value: Lowered, beside: pl.Expr) -> pl.Expr:
    """Give an expression for a column of its own: a constant float is spread over the rows.

    Parameters
    ----------
    value : Lowered
        What the column is to hold.
    beside : polars.Expr
        Any column of the frame.
    """
    if not (value.constant and is_float(value.dtype)):
        return value.expr
    return pl.when(beside.is_null()).then(value.expr).otherwise(value.expr)


class Extent(Enum):
    """Which expressions become part of a Polars query; the others are evaluated by `gpujoin.backends.cpu.evaluate`."""

    ALL = "all that can be lowered"
    COLUMNS = "columns and constants"


def lower(node: Expression, columns: Sequence[Column], extent: Extent = Extent.ALL) -> Lowered:
    """Turn a resolved expression into a Polars expression over a frame.

    Parameters
    ----------
    node : Expression
        Its column references count within ``columns``.
    columns : sequence of Column
        Of the frame.
    extent : Extent
        Which expressions are lowered at all.

    Raises
    ------
    NotLowered
        If it cannot be done exactly, or the bounds do not prove that nothing raises.
    Unmeasured
        If a proof needs the bounds of a column whose values have not been read.
    """
    if extent is Extent.COLUMNS and not isinstance(node, (ColumnRef, Literal)):
        raise NotLowered("only columns and constants are asked for")
    return _Lowering(columns).lower(node)


class _Lowering:
    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns

    def lower(self, node: Expression) -> Lowered:
        assert node.type is not None, node
        match node:
            case ColumnRef():
                column = self._columns[node.index]
                return Lowered(pl.col(column.name), logical(node.type), column.bounds, column.wide)
            case Literal():
                return replace(_literal(node), constant=True)
            case Cast():
                child = self.lower(node.child)
                return replace(_cast(child, logical(node.to)), constant=child.constant)
            case Case():
                return self._case(node)
            case Call():
                rule = _RULES.get(node.function)
                if rule is None:
                    raise NotLowered(node.function.value)
                arguments = [self.lower(a) for a in node.arguments]
                # One constant may make the whole one: false and …, coalesce(0.0, …).
                test = any if node.function in (Function.AND, Function.OR, Function.COALESCE) else all
                return replace(rule(node, arguments), constant=test(a.constant for a in arguments))
        raise NotLowered(type(node).__name__)

    def _case(self, node: Case) -> Lowered:
        values = [self.lower(v) for v in (*node.values, node.otherwise)]
        constant = any(value.constant for value in values)
        dtype = _type(node)
        values, bounds, wide = _aligned(values, dtype)
        result = values[-1].expr
        conditions = [self.lower(condition) for condition in node.conditions]
        for condition, value in zip(reversed(conditions), reversed(values[:-1]), strict=True):
            result = pl.when(condition.expr).then(value.expr).otherwise(result)
        # A constant condition takes one of the values.
        return Lowered(result, dtype, bounds, wide, constant and any(c.constant for c in conditions))


def _type(node: Expression) -> pa.DataType:
    assert node.type is not None
    return logical(node.type)


def _literal(node: Literal) -> Lowered:
    dtype, value = _type(node), node.value
    if pat.is_null(dtype) or not can_carry(dtype):
        raise NotLowered(f"a literal of type {dtype}")
    if value is None:
        return Lowered(pl.lit(None, polars_type(dtype)), dtype, (0, 0) if type_bounds(dtype) else None)
    if pat.is_decimal(dtype):
        whole = unscaled(Decimal(value), dtype.scale)
        if whole is None:
            raise NotLowered(f"{value} has more digits than {dtype}")
        return _integer_literal(whole, dtype)
    if pat.is_timestamp(dtype):
        micros = pa.scalar(value, node.type).value
        return Lowered(pl.lit(micros, pl.Int64).cast(pl.Datetime("us")), dtype)
    if is_whole(dtype):
        return Lowered(pl.lit(int(value), polars_type(dtype)), dtype, (int(value), int(value)))
    if pat.is_date32(dtype):
        days = value.toordinal() - _EPOCH.toordinal() if isinstance(value, dt.date) else int(value)
        return Lowered(pl.lit(days, pl.Int32).cast(pl.Date), dtype, (days, days))
    if is_text(dtype) and not isinstance(value, str):
        raise NotLowered(f"the text literal {value!r}")
    return Lowered(pl.lit(value, polars_type(dtype)), dtype)


def _integer_literal(number: int, dtype: pa.DataType) -> Lowered:
    bounds = (number, number)
    wide = not within(bounds, INT64)
    if not wide:
        return Lowered(pl.lit(number, pl.Int64), dtype, bounds)
    high, low = divmod(number, 10**18)
    if not within((high, high), INT64):
        high_high, high_low = divmod(high, 10**18)
        upper = pl.lit(high_high, pl.Int64).cast(pl.Int128) * 10**18 + pl.lit(high_low, pl.Int64)
    else:
        upper = pl.lit(high, pl.Int64).cast(pl.Int128)
    return Lowered(upper * 10**18 + pl.lit(low, pl.Int64), dtype, bounds, wide=True)


# -- widths and scales -------------------------------------------------------------------------------------------


def _fitted(value: Lowered, *, wide: bool) -> pl.Expr:
    if value.wide == wide:
        return value.expr
    return value.expr.cast(polars_type(value.dtype, wide=wide))


def _known(value: Lowered) -> Bounds:
    bounds = value.bounds.get() if isinstance(value.bounds, LazyBounds) else value.bounds
    if bounds is None:
        raise NotLowered(f"no bounds for {value.dtype}")
    return bounds


def _rescaled(value: Lowered, scale: int) -> Lowered:
    """Bring an unscaled decimal to another scale, rounding half up, in 128 bits where 64 might not do."""
    digits = scale - value.dtype.scale
    if digits == 0:
        return value
    if digits < 0:
        return _rounded(value, 10**-digits)
    factor = 10**digits
    low, high = _known(value)
    bounds = (low * factor, high * factor)
    return _product(value, _integer_literal(factor, pa.decimal128(38, 0)), bounds, value.dtype)


def _rounded(value: Lowered, divisor: int) -> Lowered:
    """Divide unscaled values, halves away from zero."""
    half = divisor // 2
    if magnitude(_known(value)) + half > (INT128 if value.wide else INT64)[1]:
        raise NotLowered("rounding of the largest values")
    size = _size(value) + _constant(half, wide=value.wide)
    quotient = size // _constant(divisor, wide=value.wide)
    low, high = ((abs(b) + half) // divisor * (-1 if b < 0 else 1) for b in _known(value))
    rounded = pl.when(value.expr < 0).then(quotient * -1).otherwise(quotient)
    return Lowered(rounded, value.dtype, (low, high), value.wide)


def _size(value: Lowered) -> pl.Expr:
    """Drop the sign; Polars has no such function of 128 bits."""
    return (
        pl.when(value.expr < 0).then(value.expr * -1).otherwise(value.expr)
        if value.wide
        else value.expr.abs()
    )


def _constant(number: int, *, wide: bool) -> pl.Expr:
    return _fitted(_integer_literal(number, pa.decimal128(38, 0)), wide=wide)


def _product(one: Lowered, two: Lowered, bounds: Bounds, dtype: pa.DataType) -> Lowered:
    wide = not within(bounds, INT64)
    if not within(bounds, INT128):
        raise NotLowered("a product beyond 128 bits")
    if not wide and (one.wide or two.wide):
        wide = True  # an operand may be wider than the product
    return Lowered(_fitted(one, wide=wide) * _fitted(two, wide=wide), dtype, bounds, wide)


def _aligned(values: Sequence[Lowered], dtype: pa.DataType) -> tuple[list[Lowered], Bounds | None, bool]:
    """Bring values to one type's scale and one width."""
    if any(not _same_kind(v.dtype, dtype) for v in values):
        raise NotLowered(f"{', '.join(str(v.dtype) for v in values)} as {dtype}")
    if pat.is_decimal(dtype):
        values = [_rescaled(v, dtype.scale) for v in values]
    wide = any(v.wide for v in values)
    limits, bounds = type_bounds(dtype), None
    if limits is not None:
        known = [_known(v) for v in values]
        bounds = (min(b[0] for b in known), max(b[1] for b in known))
        if pat.is_decimal(dtype) and not within(bounds, limits):
            raise NotLowered(f"values beyond {dtype}")
    if wide:
        values = [Lowered(_fitted(v, wide=wide), dtype, v.bounds, wide) for v in values]
    return list(values), bounds, wide


def _same_kind(one: pa.DataType, two: pa.DataType) -> bool:
    if pat.is_decimal(one) and pat.is_decimal(two):
        return True
    if pat.is_timestamp(one) and pat.is_timestamp(two):
        return bool(one.unit == two.unit and (one.tz is None) == (two.tz is None))
    return bool(one == two)


# -- comparisons and logic ---------------------------------------------------------------------------------------

_Rule = Callable[[Call, list[Lowered]], Lowered]

_COMPARE: dict[Function, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    Function.EQ: lambda a, b: a == b,
    Function.NE: lambda a, b: a != b,
    Function.LT: lambda a, b: a < b,
    Function.LE: lambda a, b: a <= b,
    Function.GT: lambda a, b: a > b,
    Function.GE: lambda a, b: a >= b,
    Function.EQ_NULL_SAFE: lambda a, b: a.eq_missing(b),
}


def _comparable(values: Sequence[Lowered]) -> list[Lowered]:
    first = values[0].dtype
    if pat.is_decimal(first) and all(pat.is_decimal(v.dtype) for v in values):
        scale = max(v.dtype.scale for v in values)
        values = [_rescaled(v, scale) for v in values]
        wide = any(v.wide for v in values)
        return [Lowered(_fitted(v, wide=wide), v.dtype, v.bounds, wide) for v in values]
    if any(not _same_kind(first, v.dtype) for v in values):
        raise NotLowered("operands of different types")
    wide = any(v.wide for v in values)
    return [Lowered(_fitted(v, wide=wide), v.dtype, v.bounds, wide) for v in values]


def _comparison(node: Call, values: list[Lowered]) -> Lowered:
    one, two = _comparable(values)
    return Lowered(_COMPARE[node.function](one.expr, two.expr), pa.bool_())


def _and(_node: Call, values: list[Lowered]) -> Lowered:
    return Lowered(reduce(lambda a, b: a & b, (v.expr for v in values)), pa.bool_())


def _or(_node: Call, values: list[Lowered]) -> Lowered:
    return Lowered(reduce(lambda a, b: a | b, (v.expr for v in values)), pa.bool_())


def _in(node: Call, values: list[Lowered]) -> Lowered:
    values = _comparable(values)
    value, *elements = values
    if not elements:
        raise NotLowered("an empty IN")
    known = [a.value for a in node.arguments[1:] if isinstance(a, Literal) and a.value is not None]
    plain = is_text(value.dtype) or is_whole(value.dtype)
    if plain and len(known) == len(elements) and len(known) > 2:
        if value.wide:
            known = [text.encode() for text in known]
        wanted = pl.lit(pl.Series(known, dtype=polars_type(value.dtype, wide=value.wide)).implode())
        return Lowered(value.expr.is_in(wanted), pa.bool_())
    equal = (value.expr == element.expr for element in elements)
    return Lowered(reduce(lambda a, b: a | b, equal), pa.bool_())


def _coalesce(node: Call, values: list[Lowered]) -> Lowered:
    dtype = _type(node)
    values, bounds, wide = _aligned(values, dtype)
    return Lowered(pl.coalesce([v.expr for v in values]), dtype, bounds, wide)


def _is_nan(_node: Call, values: list[Lowered]) -> Lowered:
    return Lowered(values[0].expr.is_nan().fill_null(value=False), pa.bool_())


# -- arithmetic --------------------------------------------------------------------------------------------------


def _simple(function: Function, one: Bounds, two: Bounds) -> Bounds:
    if function is Function.ADD:
        return one[0] + two[0], one[1] + two[1]
    if function is Function.SUBTRACT:
        return one[0] - two[1], one[1] - two[0]
    corners = [a * b for a in one for b in two]
    return min(corners), max(corners)


_OPERATE: dict[Function, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    Function.ADD: lambda a, b: a + b,
    Function.SUBTRACT: lambda a, b: a - b,
    Function.MULTIPLY: lambda a, b: a * b,
}


def _arithmetic(node: Call, values: list[Lowered]) -> Lowered:
    one, two = values
    dtype = _type(node)
    operate = _OPERATE[node.function]
    if is_float(dtype):
        if one.dtype != dtype or two.dtype != dtype:
            raise NotLowered("mixed floats")
        if node.function is not Function.MULTIPLY and not all(map(_adds_exactly, values, node.arguments)):
            raise NotLowered("Polars leaves out the addition of a constant zero, which changes -0.0")
        return Lowered(operate(one.expr, two.expr), dtype)
    limits = type_bounds(dtype)
    if limits is None:
        raise NotLowered(f"arithmetic on {dtype}")
    if not pat.is_decimal(dtype):
        bounds = _simple(node.function, _known(one), _known(two))
        if one.dtype != dtype or two.dtype != dtype or not within(bounds, limits):
            raise NotLowered("an integer that may overflow")
        return Lowered(operate(one.expr, two.expr), dtype, bounds)
    if node.function is not Function.MULTIPLY:
        scale = max(one.dtype.scale, two.dtype.scale)
        one, two = _rescaled(one, scale), _rescaled(two, scale)
    else:
        scale = one.dtype.scale + two.dtype.scale
    bounds = _simple(node.function, _known(one), _known(two))
    if not within(bounds, INT128):
        raise NotLowered("a result beyond 128 bits")
    wide = one.wide or two.wide or not within(bounds, INT64)
    exact = operate(_fitted(one, wide=wide), _fitted(two, wide=wide))
    held = pa.decimal128(38, scale) if scale <= MAX_PRECISION else pa.decimal256(76, scale)
    result = _rescaled(Lowered(exact, held, bounds, wide), dtype.scale)
    if not within(_known(result), limits):
        raise NotLowered(f"values beyond {dtype}")
    return Lowered(result.expr, dtype, result.bounds, result.wide)


def _adds_exactly(value: Lowered, node: Expression) -> bool:
    """Tell whether Polars adds an operand as IEEE does: any but a constant that may be zero."""
    return not value.constant or (isinstance(node, Literal) and bool(node.value))


def _divide(node: Call, values: list[Lowered]) -> Lowered:
    one, two = values
    if not is_float(_type(node)) or one.dtype != two.dtype:
        raise NotLowered("division")
    if two.constant:
        raise NotLowered("Polars divides by a constant through its reciprocal, which rounds twice")
    if node.mode is EvalMode.ANSI:
        raise NotLowered("division by what may be zero")
    return Lowered(pl.when(two.expr != 0).then(one.expr / two.expr), _type(node))


def _negate(node: Call, values: list[Lowered]) -> Lowered:
    (value,) = values
    if is_float(value.dtype):
        return Lowered(-value.expr, value.dtype)
    low, high = _known(value)
    limits = type_bounds(value.dtype)
    assert limits is not None
    if not within((-high, -low), limits) or (
        pat.is_decimal(value.dtype) and magnitude((low, high)) >= 10**34
    ):
        raise NotLowered("a negation that may overflow")
    return Lowered(value.expr * -1, _type(node), (-high, -low), value.wide)


def _absolute(node: Call, values: list[Lowered]) -> Lowered:
    (value,) = values
    if is_float(value.dtype):
        return Lowered(value.expr.abs(), value.dtype)
    bounds = _known(value)
    limits = type_bounds(value.dtype)
    assert limits is not None
    largest = magnitude(bounds)
    if largest > limits[1] or (pat.is_decimal(value.dtype) and largest >= 10**34):
        raise NotLowered("an absolute value that may overflow")
    return Lowered(_size(value), _type(node), (0, largest), value.wide)


# -- casts -------------------------------------------------------------------------------------------------------


def _cast(value: Lowered, target: pa.DataType) -> Lowered:
    source = value.dtype
    if _same_kind(source, target) and not pat.is_decimal(target):
        return Lowered(value.expr, target, value.bounds, value.wide)
    if pat.is_decimal(target) and (pat.is_decimal(source) or is_whole(source)):
        return _to_decimal(value, target)
    if is_whole(source) and is_whole(target):
        limits = type_bounds(target)
        assert limits is not None
        if not within(_known(value), limits):
            raise NotLowered(f"values beyond {target}")
        return Lowered(value.expr.cast(polars_type(target)), target, value.bounds)
    if pat.is_float64(target) and (is_whole(source) or pat.is_float32(source)):
        return Lowered(value.expr.cast(pl.Float64), target)
    if pat.is_float64(target) and pat.is_decimal(source):
        # Both are exact doubles, so that the division rounds once. The divisor is made a column: Polars divides by a
        # constant through its reciprocal.
        if magnitude(_known(value)) >= _EXACT_DOUBLE or source.scale > _EXACT_POWER:
            raise NotLowered("a decimal that is no exact double")
        number = value.expr.cast(pl.Float64)
        return Lowered(number / (number * 0.0 + float(10**source.scale)), target)
    raise NotLowered(f"a cast of {source} to {target}")


def _to_decimal(value: Lowered, target: pa.DataType) -> Lowered:
    if is_whole(value.dtype):
        value = Lowered(value.expr.cast(pl.Int64), pa.decimal128(20, 0), value.bounds)
    value = _rescaled(value, target.scale)
    limits = type_bounds(target)
    assert limits is not None
    if not within(_known(value), limits):
        raise NotLowered(f"values beyond {target}")
    return Lowered(value.expr, target, value.bounds, value.wide)


# -- text --------------------------------------------------------------------------------------------------------


def _text_of(node: Expression) -> str:
    if not isinstance(node, Literal) or not isinstance(node.value, str):
        raise NotLowered("a pattern that is no constant text")
    return node.value


def _like(node: Call, values: list[Lowered]) -> Lowered:
    escape = _text_of(node.arguments[2]) if len(node.arguments) > 2 else "\\"
    try:
        parts = like_parts(_text_of(node.arguments[1]), escape)
    except LikePatternError:
        raise NotLowered("a malformed pattern") from None
    if values[0].wide:
        raise NotLowered("characters of text that is no UTF-8")
    text = values[0].expr
    match parts:
        case []:
            return Lowered(text == "", pa.bool_())
        case [str(exact)] if exact:
            return Lowered(text == exact, pa.bool_())
        case [str(prefix), ""] if prefix:
            return Lowered(text.str.starts_with(prefix), pa.bool_())
        case ["", str(suffix)] if suffix:
            return Lowered(text.str.ends_with(suffix), pa.bool_())
        case ["", str(inner), ""] if inner:
            return Lowered(text.str.contains(inner, literal=True), pa.bool_())
    body = "".join("." if p is None else ".*" if p == "" else _quoted(p) for p in parts)
    return Lowered(text.str.contains(rf"(?s)\A{body}\z"), pa.bool_())


def _is_utf8(value: Lowered) -> bool:
    return is_text(value.dtype) and not value.wide


def _trim(node: Call, values: list[Lowered]) -> Lowered:
    if not _is_utf8(values[0]):
        raise NotLowered("bytes")
    return Lowered(values[0].expr.str.strip_chars(" "), _type(node))


def _quoted(text: str) -> str:
    """Literal text in a regular expression: ASCII marks are escaped, the rest stands for itself."""
    return "".join(f"\\x{{{ord(c):x}}}" if ord(c) < 128 and not c.isalnum() and c != " " else c for c in text)


def _affix(node: Call, values: list[Lowered]) -> Lowered:
    if not _is_utf8(values[0]):
        raise NotLowered("bytes")
    part, text = _text_of(node.arguments[1]), values[0].expr
    match node.function:
        case Function.STARTS_WITH:
            return Lowered(text.str.starts_with(part), pa.bool_())
        case Function.ENDS_WITH:
            return Lowered(text.str.ends_with(part), pa.bool_())
        case _:
            return Lowered(text.str.contains(part, literal=True), pa.bool_())


def _substring(node: Call, values: list[Lowered]) -> Lowered:
    if not _is_utf8(values[0]):
        raise NotLowered("bytes")
    numbers = [a.value if isinstance(a, Literal) else None for a in node.arguments[1:]]
    start, length = numbers[0], numbers[1] if len(numbers) > 1 else (1 << 31) - 1
    if start is None or length is None or start < 1 or length < 0:
        raise NotLowered("a substring that is not from a constant position")
    return Lowered(values[0].expr.str.slice(start - 1, length), _type(node))


def _length(node: Call, values: list[Lowered]) -> Lowered:
    (value,) = values
    if not is_bytes(value.dtype) and not _is_utf8(value):
        raise NotLowered("characters of text that is no UTF-8")
    counted = value.expr.bin.size() if is_bytes(value.dtype) else value.expr.str.len_chars()
    return Lowered(counted.cast(pl.Int32), _type(node), (0, (1 << 31) - 1))


def _concat(node: Call, values: list[Lowered]) -> Lowered:
    if not values or not all(map(_is_utf8, values)):
        raise NotLowered("bytes")
    return Lowered(pl.concat_str([v.expr for v in values], ignore_nulls=False), _type(node))


# -- dates -------------------------------------------------------------------------------------------------------

_PARTS: dict[Function, tuple[Callable[[pl.Expr], pl.Expr], Bounds]] = {
    Function.YEAR: (lambda d: d.dt.year(), (1, 9999)),
    Function.QUARTER: (lambda d: d.dt.quarter(), (1, 4)),
    Function.MONTH: (lambda d: d.dt.month(), (1, 12)),
    Function.DAY: (lambda d: d.dt.day(), (1, 31)),
    Function.DAY_OF_YEAR: (lambda d: d.dt.ordinal_day(), (1, 366)),
}


def _date_part(node: Call, values: list[Lowered]) -> Lowered:
    (value,) = values
    if not pat.is_date32(value.dtype) or not within(_known(value), _CALENDAR):
        raise NotLowered("a date outside the years 1 to 9999")
    part, bounds = _PARTS[node.function]
    return Lowered(part(value.expr).cast(pl.Int32), pa.int32(), bounds)


def _date_shift(node: Call, values: list[Lowered]) -> Lowered:
    date, days = values
    function = Function.ADD if node.function is Function.DATE_ADD else Function.SUBTRACT
    bounds = _simple(function, _known(date), _known(days))
    if not pat.is_date32(date.dtype) or not within(bounds, _CALENDAR):
        raise NotLowered("a date outside the years 1 to 9999")
    shifted = _OPERATE[function](date.expr.cast(pl.Int32), days.expr.cast(pl.Int32))
    return Lowered(shifted.cast(pl.Date), pa.date32(), bounds)


def _date_difference(_node: Call, values: list[Lowered]) -> Lowered:
    one, two = values
    bounds = _simple(Function.SUBTRACT, _known(one), _known(two))
    if not within(bounds, (-(1 << 31), (1 << 31) - 1)):
        raise NotLowered("a difference that may overflow")
    return Lowered(one.expr.cast(pl.Int32) - two.expr.cast(pl.Int32), pa.int32(), bounds)


_RULES: dict[Function, _Rule] = {
    **dict.fromkeys(_COMPARE, _comparison),
    **dict.fromkeys(_OPERATE, _arithmetic),
    **dict.fromkeys(_PARTS, _date_part),
    Function.AND: _and,
    Function.OR: _or,
    Function.NOT: lambda _node, values: Lowered(~values[0].expr, pa.bool_()),
    Function.IS_NULL: lambda _node, values: Lowered(values[0].expr.is_null(), pa.bool_()),
    Function.IS_NOT_NULL: lambda _node, values: Lowered(values[0].expr.is_not_null(), pa.bool_()),
    Function.IS_NAN: _is_nan,
    Function.SQRT: lambda _node, values: Lowered(values[0].expr.sqrt(), pa.float64()),
    Function.IN: _in,
    Function.COALESCE: _coalesce,
    Function.DIVIDE: _divide,
    Function.NEGATE: _negate,
    Function.ABS: _absolute,
    Function.UNSCALED_VALUE: lambda _node, values: Lowered(
        _fitted(values[0], wide=False), pa.int64(), values[0].bounds
    ),
    Function.LIKE: _like,
    **dict.fromkeys((Function.STARTS_WITH, Function.ENDS_WITH, Function.CONTAINS), _affix),
    Function.SUBSTRING: _substring,
    Function.LENGTH: _length,
    Function.CONCAT: _concat,
    Function.TRIM: _trim,
    Function.DATE_ADD: _date_shift,
    Function.DATE_SUB: _date_shift,
    Function.DATE_DIFF: _date_difference,
}
