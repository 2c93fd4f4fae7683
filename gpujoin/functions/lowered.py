"""Polars expressions with bounds of their values, and conversion between their widths and scales."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import TypeAlias

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.libraries import pl
from gpujoin.functions.signatures import type_of
from gpujoin.model.expressions import Call, Expression, Literal
from gpujoin.model.types import is_bytes, is_float, is_text, is_whole, logical

Bounds = tuple[int, int]
"""Least and greatest value that may occur, not counting nulls."""

INT64: Bounds = (-(1 << 63), (1 << 63) - 1)
INT128: Bounds = (-(1 << 127), (1 << 127) - 1)


def within(bounds: Bounds, limits: Bounds) -> bool:
    """Whether all values within bounds are within limits."""
    return limits[0] <= bounds[0] and bounds[1] <= limits[1]


def magnitude(bounds: Bounds) -> int:
    """Largest absolute value within bounds."""
    return max(abs(bounds[0]), abs(bounds[1]))


def type_bounds(dtype: pa.DataType) -> Bounds | None:
    """Bound values by their type: integers, unscaled decimals, days; ``None`` for other types."""
    if pat.is_signed_integer(dtype):
        edge = 1 << (dtype.bit_width - 1)
        return -edge, edge - 1
    if pat.is_decimal(dtype):
        return 1 - 10**dtype.precision, 10**dtype.precision - 1
    if pat.is_date32(dtype):
        return -(1 << 31), (1 << 31) - 1
    return None


_EXACT = Context(prec=100)


def unscaled(value: Decimal, scale: int) -> int | None:
    """Unscaled integer of a decimal; ``None`` if the decimal has more digits after the point."""
    shifted = value.scaleb(scale, _EXACT)
    whole = int(shifted)
    return whole if whole == shifted else None


class Unmeasured(Exception):  # noqa: N818  # says what is missing, and never reaches a user
    """Bounds were needed of a column whose values have not been read yet."""


class LazyBounds:
    """Bounds of a column's integers, decimals or dates, computed at the first use.

    Bounds are used as proofs that nothing overflows. So they are computed from the values themselves, and not taken
    from a file's statistics, which may be wrong. ``compute`` returns ``None`` if all values are null; without it the
    values have not been read.
    """

    __slots__ = ("_bounds", "_compute", "_dtype")

    def __init__(self, dtype: pa.DataType, compute: Callable[[], Bounds | None] | None = None) -> None:
        self._dtype = dtype
        self._compute = compute
        self._bounds: Bounds | None = None

    @property
    def measured(self) -> bool:
        """Whether the bounds are known, or can be computed."""
        return self._compute is not None or self._bounds is not None or type_bounds(self._dtype) is None

    def get(self) -> Bounds | None:
        """The bounds; ``None`` for a type that has none. Raises ``Unmeasured`` if the values have not been read.

        Several threads may ask: what one has not found yet, another computes too.
        """
        compute = self._compute
        if self._bounds is None and type_bounds(self._dtype) is not None:
            if compute is None:
                raise Unmeasured
            self._bounds = compute() or (0, 0)
            self._compute = None
        return self._bounds


def as_lazy(bounds: Bounds | LazyBounds | None, dtype: pa.DataType) -> LazyBounds:
    """Convert bounds, which may be known already, to :class:`LazyBounds`."""
    return bounds if isinstance(bounds, LazyBounds) else LazyBounds(dtype, lambda: bounds)


@dataclass(frozen=True)
class Column:
    """A column of a piece."""

    name: str
    """Name of the column in the frame; unique there."""
    dtype: pa.DataType
    """Spark's type, as an Arrow type."""
    bounds: LazyBounds
    """Bounds of integers, unscaled decimals or days."""
    wide: bool = False
    """Whether values are carried in the wider of two forms: decimals in 128 bits, text as bytes."""
    constant: bool = False
    """Whether all rows have one value. (Polars may know it as a literal.)"""


_PLAIN = {
    pa.bool_(): "Boolean",
    pa.int8(): "Int8",
    pa.int16(): "Int16",
    pa.int32(): "Int32",
    pa.int64(): "Int64",
    pa.float32(): "Float32",
    pa.float64(): "Float64",
    pa.date32(): "Date",
}


def can_carry(dtype: pa.DataType) -> bool:
    """Whether values of a type can be carried in a piece."""
    dtype = logical(dtype)
    if pat.is_timestamp(dtype) or pat.is_duration(dtype):
        return bool(dtype.unit == "us")
    return dtype in _PLAIN or pat.is_decimal128(dtype) or is_text(dtype) or is_bytes(dtype)


def polars_type(dtype: pa.DataType, *, wide: bool = False) -> pl.DataType | type[pl.DataType]:
    """Polars type that carries values of a type, in the wider form if ``wide``."""
    dtype = logical(dtype)
    if pat.is_decimal(dtype):
        return pl.Int128 if wide else pl.Int64
    if is_text(dtype) and wide:
        return pl.Binary
    if pat.is_timestamp(dtype):
        return pl.Datetime("us")
    if pat.is_duration(dtype):
        return pl.Duration("us")
    if is_text(dtype):
        return pl.String
    if is_bytes(dtype):
        return pl.Binary
    plain: type[pl.DataType] = getattr(pl, _PLAIN[dtype])
    return plain


# -- expressions ------------------------------------------------------------------------------------------------------


_EPOCH = dt.date(1970, 1, 1)


class NotLowered(Exception):  # noqa: N818  # says what happened, and never reaches a user
    """An expression cannot be computed by Polars exactly, or not without raising."""


@dataclass(frozen=True)
class Lowered:
    """A Polars expression, with the type and the bounds of its values."""

    expr: pl.Expr
    """Computes the values, in the type of :func:`polars_type`."""
    dtype: pa.DataType
    """Logical type of the values."""
    bounds: Bounds | LazyBounds | None = None
    """Bounds of integers, unscaled decimals or days."""
    wide: bool = False
    """Whether values have the wider form, as in :class:`~gpujoin.backends.cpu.pipeline.columns.Column`."""
    constant: bool = False
    """Whether Polars may treat the value as a constant."""


def as_column(value: Lowered, any_column: pl.Expr) -> pl.Expr:
    """Make an expression that becomes a column of its own: a constant float is repeated for each row."""
    if not (value.constant and is_float(value.dtype)):
        return value.expr
    return pl.when(any_column.is_null()).then(value.expr).otherwise(value.expr)


def result_type(node: Expression) -> pa.DataType:
    """Type of a resolved node's values."""
    return logical(type_of(node))


Rule: TypeAlias = Callable[[Call, list[Lowered]], Lowered]
"""Translates a call, given its translated operands."""


def of_values(compute: Callable[..., pl.Expr], dtype: pa.DataType) -> Rule:
    """Make the rule of a function that Polars computes exactly for all values."""
    return lambda _node, values: Lowered(compute(*(v.expr for v in values)), dtype)


def literal(node: Literal) -> Lowered:
    """Translate a constant."""
    dtype, value = result_type(node), node.value
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
    if pat.is_duration(dtype):
        return Lowered(pl.lit(pa.scalar(value, dtype).value, pl.Int64).cast(pl.Duration("us")), dtype)
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


def fitted(value: Lowered, *, wide: bool) -> pl.Expr:
    """Cast values to a width."""
    if value.wide == wide:
        return value.expr
    return value.expr.cast(polars_type(value.dtype, wide=wide))


def bounds_of(value: Lowered) -> Bounds:
    """Bounds of values. Raises ``NotLowered`` if none are known."""
    bounds = value.bounds.get() if isinstance(value.bounds, LazyBounds) else value.bounds
    if bounds is None:
        raise NotLowered(f"no bounds for {value.dtype}")
    return bounds


def rescaled(value: Lowered, scale: int) -> Lowered:
    """Change the scale of an unscaled decimal, rounding half up, in 128 bits where 64 may not suffice."""
    digits = scale - value.dtype.scale
    if digits == 0:
        return value
    if digits < 0:
        return _rounded(value, 10**-digits)
    factor = 10**digits
    low, high = bounds_of(value)
    bounds = (low * factor, high * factor)
    return _product(value, _integer_literal(factor, pa.decimal128(38, 0)), bounds, value.dtype)


def _rounded(value: Lowered, divisor: int) -> Lowered:
    """Divide unscaled values, halves away from zero."""
    half = divisor // 2
    if magnitude(bounds_of(value)) + half > (INT128 if value.wide else INT64)[1]:
        raise NotLowered("rounding of the largest values")
    quotient = (size(value) + _constant(half, wide=value.wide)) // _constant(divisor, wide=value.wide)
    low, high = ((abs(b) + half) // divisor * (-1 if b < 0 else 1) for b in bounds_of(value))
    rounded = pl.when(value.expr < 0).then(quotient * -1).otherwise(quotient)
    return Lowered(rounded, value.dtype, (low, high), value.wide)


def size(value: Lowered) -> pl.Expr:
    """Absolute value, which Polars lacks for 128 bits."""
    return pl.when(value.expr < 0).then(value.expr * -1).otherwise(value.expr) if value.wide else value.expr.abs()


def _constant(number: int, *, wide: bool) -> pl.Expr:
    return fitted(_integer_literal(number, pa.decimal128(38, 0)), wide=wide)


def _product(left: Lowered, right: Lowered, bounds: Bounds, dtype: pa.DataType) -> Lowered:
    wide = not within(bounds, INT64)
    if not within(bounds, INT128):
        raise NotLowered("a product beyond 128 bits")
    if not wide and (left.wide or right.wide):
        wide = True  # an operand may be wider than the product
    return Lowered(fitted(left, wide=wide) * fitted(right, wide=wide), dtype, bounds, wide)


def aligned(values: Sequence[Lowered], dtype: pa.DataType) -> tuple[list[Lowered], Bounds | None, bool]:
    """Cast values to the scale of a type and to a common width."""
    if any(not same_kind(v.dtype, dtype) for v in values):
        raise NotLowered(f"{', '.join(str(v.dtype) for v in values)} as {dtype}")
    if pat.is_decimal(dtype):
        values = [rescaled(v, dtype.scale) for v in values]
    wide = any(v.wide for v in values)
    limits, bounds = type_bounds(dtype), None
    if limits is not None:
        ranges = [bounds_of(v) for v in values]
        bounds = (min(low for low, _ in ranges), max(high for _, high in ranges))
        if pat.is_decimal(dtype) and not within(bounds, limits):
            raise NotLowered(f"values beyond {dtype}")
    if wide:
        values = [Lowered(fitted(v, wide=wide), dtype, v.bounds, wide) for v in values]
    return list(values), bounds, wide


def same_kind(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether values of two types are carried alike; decimals of any precision are."""
    if pat.is_decimal(left) and pat.is_decimal(right):
        return True
    if pat.is_timestamp(left) and pat.is_timestamp(right):
        return bool(left.unit == right.unit and (left.tz is None) == (right.tz is None))
    return bool(left == right)
