"""Checks the arguments of as-of joins, and derives their normal form and column names."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import JoinSpecError, KeyTypeError, did_you_mean
from gpujoin.model.jointype import JoinType
from gpujoin.model.spec import AsOf, Direction, JoinSpec, KeyPair
from gpujoin.model.types import UNITS_PER_SECOND, is_wide_decimal
from gpujoin.plan.key_types import key_type
from gpujoin.plan.ranges import order_type

_MOST_UNITS = (1 << 64) - 1
_FAR = 100
"""Power of ten above all distances of decimals."""
_PART = re.compile(r"'?(-?\d+)'?\s+(week|day|hour|minute|second|millisecond|microsecond)s?\b", re.IGNORECASE | re.ASCII)
_INTERVAL = re.compile(rf"\s*(?:interval\s+)?(?:(?:{_PART.pattern})\s*)+", re.IGNORECASE | re.ASCII)


def as_of_type(left: pa.DataType, right: pa.DataType, terms: AsOf) -> pa.DataType:
    """Find the type in which the order keys of an as-of join are compared.

    Raises ``KeyTypeError`` if the keys have no common order; or no distance, where the nearest row or a tolerance
    asks for one; ``JoinSpecError`` if the tolerance is of the wrong type.
    """
    common = order_type((left, right))
    if common is not None and pat.is_large_string(common):
        raise KeyTypeError(
            f"as-of keys of types {left} and {right} are texts, and '10:00' comes before '9:00' in their order;"
            " cast them to numbers, dates or timestamps"
        )
    if common is None or pat.is_boolean(common):
        if pat.is_timestamp(left) and pat.is_timestamp(right):
            key_type(left, right)
        raise KeyTypeError(
            f"as-of keys of type {left} and {right} have no common order; give numbers, dates, timestamps, times,"
            " or durations of one kind on both sides"
        )
    if terms.direction is Direction.NEAREST or terms.tolerance is not None:
        wide = is_wide_decimal(common)
        if wide or pat.is_large_binary(common):
            problem = "that fits into 64 bits, " if wide else ""
            cure = "cast them to a narrower type, or " if wide else ""
            raise KeyTypeError(
                f"as-of keys of types {left} and {right} have no distance {problem}which direction='nearest' and a"
                f" tolerance need; {cure}use direction='backward' or 'forward' without a tolerance"
            )
    if terms.tolerance is not None:
        tolerance_in(common, terms.tolerance)
    return common


def tolerance_in(dtype: pa.DataType, tolerance: Any) -> int | float:
    """Convert a tolerance to units of the order key's type.

    Raises ``JoinSpecError`` if the tolerance does not fit the type, or is negative.
    """
    requirement = "an integer"
    units: int | float | None = None
    is_number = isinstance(tolerance, (Real, Decimal)) and not isinstance(tolerance, bool)
    if pat.is_temporal(dtype):
        requirement = "an interval such as '5 minutes' or a datetime.timedelta"
        if isinstance(tolerance, dt.timedelta):
            units = _time_units(dtype, tolerance)
    elif pat.is_floating(dtype):
        requirement = "a number"
        units = _float(tolerance) if is_number else None
    elif pat.is_decimal(dtype):
        requirement = "an integer or a Decimal"
        if is_number and isinstance(tolerance, (Integral, Decimal)):
            exact = tolerance if isinstance(tolerance, Decimal) else Decimal(int(tolerance))
            units = _decimal_units(exact, dtype.scale)
    elif is_number and isinstance(tolerance, Integral):
        units = int(tolerance)
    if units is None:
        raise JoinSpecError(f"the tolerance of as-of keys of type {dtype} must be {requirement}, got {tolerance!r}")
    if not units >= 0:
        raise JoinSpecError(f"a tolerance cannot be negative or NaN, got {tolerance!r}")
    return units if isinstance(units, float) else min(units, _MOST_UNITS)


def _interval(text: str) -> dt.timedelta | str:
    """Read an interval of weeks to microseconds in SQL's words, as in ``1 hour 30 minutes``; other text is kept.

    Raises ``JoinSpecError`` if it is too long.
    """
    if _INTERVAL.fullmatch(text) is None:
        return text
    try:
        parts = [dt.timedelta(**{f"{unit.lower()}s": int(number)}) for number, unit in _PART.findall(text)]
        return sum(parts, dt.timedelta())
    except OverflowError:
        raise JoinSpecError(f"the tolerance {text!r} is too long") from None


def _float(tolerance: Any) -> float:
    try:
        return float(tolerance)
    except OverflowError:
        return math.inf if tolerance > 0 else -math.inf
    except ValueError:  # a NaN that signals
        return math.nan


def _decimal_units(tolerance: Decimal, scale: int) -> int | None:
    """Whole units of the last digit, rounded down so that a negative tolerance stays negative; ``None``: not finite."""
    if not tolerance.is_finite():
        return None
    if tolerance and abs(tolerance.adjusted()) > _FAR:
        return (_MOST_UNITS if tolerance.adjusted() > 0 else 0) if tolerance > 0 else -1
    return math.floor(Fraction(tolerance) * 10**scale)


def _time_units(dtype: pa.DataType, tolerance: dt.timedelta) -> int:
    if pat.is_date(dtype):
        return tolerance.days
    microseconds = tolerance // dt.timedelta(microseconds=1)
    nanoseconds = microseconds * 1000 + getattr(tolerance, "nanoseconds", 0)  # those of pandas' Timedelta
    return nanoseconds * UNITS_PER_SECOND[dtype.unit] // 10**9


@dataclass(frozen=True)
class AsOfPlan:
    """An as-of join over two schemas."""

    spec: JoinSpec
    """Normal form of the join."""
    names: tuple[str, ...]
    """Column names of the result."""


def plan_as_of(
    left: pa.Schema,
    right: pa.Schema,
    *,
    on: str | None,
    left_on: str | None,
    right_on: str | None,
    by: str | Sequence[str] | None,
    left_by: str | Sequence[str] | None,
    right_by: str | Sequence[str] | None,
    direction: str | Direction,
    tolerance: Any,
    allow_exact: bool,
    suffixes: tuple[str, str],
) -> AsOfPlan:
    """Check the arguments of an as-of join and derive its normal form.

    Raises ``JoinSpecError`` or ``KeyTypeError`` if they contradict each other, name no column, or have types that
    cannot be compared.
    """
    if (on is None) == (left_on is None and right_on is None) or (left_on is None) != (right_on is None):
        raise JoinSpecError("give either on, or left_on and right_on: the order key of each side")
    left_order, right_order = (on, on) if on is not None else (left_on, right_on)
    for name in (left_order, right_order):
        if not isinstance(name, str):
            raise JoinSpecError(f"the order key of an as-of join is one column, given by name, got {name!r}")
    if by is not None and (left_by is not None or right_by is not None):
        raise JoinSpecError("give either by, or left_by and right_by, not both")
    lefts, rights = (_names(by if by is not None else side_by) for side_by in (left_by, right_by))
    if len(lefts) != len(rights):
        raise JoinSpecError(f"left_by has {len(lefts)} keys, right_by has {len(rights)}: {lefts} and {rights}")
    if not isinstance(allow_exact, bool):
        raise JoinSpecError(f"allow_exact must be a bool, got {allow_exact!r}")
    check_suffixes(suffixes)
    if isinstance(tolerance, str):
        tolerance = _interval(tolerance)
    terms = AsOf(
        _position(left, str(left_order), "left"), _position(right, str(right_order), "right"),
        Direction.parse(direction), tolerance, allow_exact,
    )  # fmt: skip
    keys = tuple(
        KeyPair(_position(left, a, "left"), _position(right, b, "right")) for a, b in zip(lefts, rights, strict=True)
    )
    as_of_type(left.field(terms.left).type, right.field(terms.right).type, terms)
    for key in keys:
        key_type(left.field(key.left).type, right.field(key.right).type)
    shared = {key.right for key in keys} if by is not None else set()
    shared |= {terms.right} if on is not None else set()
    right_output = [i for i in range(len(right)) if i not in shared]
    clash = set(left.names) & {right.field(i).name for i in right_output}
    names = [name + (suffixes[0] if name in clash else "") for name in left.names]
    names += [right.field(i).name + (suffixes[1] if right.field(i).name in clash else "") for i in right_output]
    check_result_names(names)
    spec = JoinSpec(JoinType.LEFT, keys, None, tuple(range(len(left))), tuple(right_output), as_of=terms)
    return AsOfPlan(spec, tuple(names))


def check_suffixes(suffixes: Any) -> None:
    """Refuse suffixes of column names that are not two texts; a text alone is not two of one character.

    Raises ``JoinSpecError``.
    """
    if not isinstance(suffixes, (tuple, list)) or [type(suffix) for suffix in suffixes] != [str, str]:
        raise JoinSpecError(f"suffixes must be two texts, left and right, got {suffixes!r}")


def check_result_names(names: Sequence[str]) -> None:
    """Raise ``JoinSpecError`` if two columns of a result would have one name."""
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise JoinSpecError(f"the result would have the columns {twice} twice; rename them or choose other suffixes")


def _names(columns: Any) -> tuple[str, ...]:
    if columns is None:
        return ()
    if not isinstance(columns, Iterable) or isinstance(columns, (AbstractSet, Mapping)):  # sets do not pair up in order
        raise JoinSpecError(f"by columns are given by name or as a sequence of names, got {columns!r}")
    try:
        names = (columns,) if isinstance(columns, str) else tuple(columns)
    except TypeError:  # a Column of Spark's looks like something to iterate over, and is not
        names = (columns,)
    if not all(isinstance(name, str) for name in names):
        raise JoinSpecError(f"by columns are given by name, got {columns!r}")
    return names


def _position(schema: pa.Schema, name: str, side: str) -> int:
    positions = schema.get_all_field_indices(name)
    if len(positions) != 1:
        problem = "has no column" if not positions else "has several columns"
        raise JoinSpecError(f"the {side} input {problem} {name!r}.{did_you_mean(name, schema.names)}")
    return int(positions[0])
