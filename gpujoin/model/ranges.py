"""Ranges by which a build side is searched, and the arithmetic of their codes, over arrays of NumPy or CuPy.

Codes are int64, and order as the values. An example, ``r.c > l.a AND r.c <= l.b``, right side built: the axis ``r.c``
has two bounds. A probe row with ``a = 10`` and ``b = 30`` asks for the codes from 11 to 30, both included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from gpujoin.model.expressions import Expression

LEAST, MOST = -(1 << 63), (1 << 63) - 1
"""The outermost codes."""
_ROUNDING, _SMALLEST = 2.0**-22, 2.0**-148
"""Rounding error of a difference in single precision: relative to it, and at least."""
_Array: TypeAlias = Any
_Masked: TypeAlias = tuple[_Array, _Array | None]
Extent: TypeAlias = tuple[int, int]
"""Least and greatest value of a column."""


class Comparison(Enum):
    """Comparison of a build-side value with a probe-side value."""

    LESS = "<"
    AT_MOST = "<="
    EQUAL = "="
    AT_LEAST = ">="
    GREATER = ">"

    @property
    def flipped(self) -> Comparison:
        """The same with the operands exchanged."""
        return _FLIPPED[self]


_FLIPPED = {
    Comparison.LESS: Comparison.GREATER,
    Comparison.AT_MOST: Comparison.AT_LEAST,
    Comparison.EQUAL: Comparison.EQUAL,
    Comparison.AT_LEAST: Comparison.AT_MOST,
    Comparison.GREATER: Comparison.LESS,
}


@dataclass(frozen=True)
class Bound:
    """One comparison of an axis with a probe-side expression."""

    comparison: Comparison
    """How the axis relates to the expression."""
    probe: Expression
    """Expression of the probe side alone."""
    offset: int | Decimal | float = 0
    """Number added to the value of ``probe``: days for dates; for floats it includes a margin for rounding."""
    reach: Expression | None = None
    """Expression of the probe side alone: a distance in whole numbers, to which ``offset`` is added. The sum is added
    to the value of ``probe`` in an upper bound, and subtracted from it in a lower bound."""


@dataclass(frozen=True)
class Axis:
    """A build-side expression, and the bounds that the condition sets for it."""

    build: Expression
    """Expression of the build side alone."""
    bounds: tuple[Bound, ...]
    """Bounds set by comparisons."""
    type: pa.DataType
    """Type in which values are ordered; both sides convert to it without loss."""
    widest: int | None = None
    """Largest distance that the type of a compared distance holds. Pairs farther apart have no distance."""

    def expressions(self) -> Iterator[Expression]:
        """The build-side expression, then those of the bounds."""
        yield self.build
        for bound in self.bounds:
            yield bound.probe
            if bound.reach is not None:
                yield bound.reach

    def over(self, change: Callable[[Expression], Expression]) -> Axis:
        """The same axis with changed expressions."""
        bounds = tuple(
            replace(bound, probe=change(bound.probe), reach=None if bound.reach is None else change(bound.reach))
            for bound in self.bounds
        )
        return replace(self, build=change(self.build), bounds=bounds)

    @property
    def closed(self) -> bool:
        """Whether the axis is bounded from below and from above."""
        kinds = {bound.comparison for bound in self.bounds}
        return Comparison.EQUAL in kinds or (
            bool(kinds & {Comparison.LESS, Comparison.AT_MOST})
            and bool(kinds & {Comparison.AT_LEAST, Comparison.GREATER})
        )


# -- codes -------------------------------------------------------------------------------------------------------


def too_far(first: Extent | None, second: Extent | None, widest: int | None) -> bool:
    """Whether some pair of values may be farther apart than a distance's type holds."""
    if widest is None or first is None or second is None:
        return False
    return max(first[1] - second[0], second[1] - first[0]) > widest


def _units(bound: Bound, dtype: pa.DataType) -> int:
    """Offset of a bound, in units of codes of a type; 0 for floats, whose values are moved by :func:`reached`."""
    if isinstance(bound.offset, Decimal):
        return int(bound.offset.scaleb(dtype.scale))
    return 0 if isinstance(bound.offset, float) else bound.offset


def reached(xp: Any, numbers: _Array, offset: float, comparison: Comparison) -> _Array:
    """Add an offset to doubles, with a margin above the rounding error of differences."""
    outward_end = math.inf if comparison in (Comparison.LESS, Comparison.AT_MOST) else -math.inf
    room = abs(offset) * _ROUNDING + _SMALLEST
    moved = numbers + math.nextafter(offset + math.copysign(room, outward_end), outward_end)
    return xp.nextafter(xp.nextafter(moved, outward_end), outward_end)


def distances(xp: Any, codes: _Array, others: _Array, float_bytes: int) -> _Array:
    """Distance of values from others, by their codes; ``float_bytes`` is 4 or 8 for codes of floats, else 0."""
    if not float_bytes:
        # The difference of two 64-bit integers is exact modulo 2**64.
        return xp.maximum(codes, others).view("uint64") - xp.minimum(codes, others).view("uint64")
    numbers, other_numbers = (_decoded(xp, values, float_bytes) for values in (codes, others))
    with np.errstate(invalid="ignore"):  # infinity less infinity is not a number
        return xp.where(numbers == other_numbers, 0.0, xp.abs(numbers - other_numbers))


def _decoded(xp: Any, codes: _Array, width: int) -> _Array:
    """The floats of codes, in double precision."""
    codes = codes.astype(f"int{8 * width}")
    bits = xp.where(codes < 0, codes ^ codes.dtype.type((1 << (8 * width - 1)) - 1), codes)
    return bits.view(f"float{8 * width}").astype("float64")


def limits(
    xp: Any, axis: Axis, rows: int, codes_of: Callable[[Bound], _Masked], distance: Callable[[Expression], _Masked]
) -> tuple[_Array, _Array, _Array | None]:
    """Find the lowest and the highest code of an axis that match each probe row, both included.

    Parameters
    ----------
    xp
        NumPy or CuPy.
    axis
        The axis.
    rows
        Length of the ranges, or 1.
    codes_of
        Gives the codes to which a bound compares, before a whole offset is added, and the mask of those that are not
        null; ``None``: all.
    distance
        Computes a distance in whole numbers, and its mask.

    Returns
    -------
    tuple
        Lowest and highest codes, and the mask of the rows that may match; ``None``: all.
    """
    low, high = (xp.full(rows, end, dtype="int64") for end in (LEAST, MOST))
    valid: _Array | None = None
    for bound in axis.bounds:
        codes, codes_valid = codes_of(bound)
        if bound.reach is None:
            codes = _shifted(xp, codes, _units(bound, axis.type))
        else:
            reach, reach_valid = distance(bound.reach)
            with np.errstate(over="ignore"):
                codes = _outward(xp, codes, reach, bound)
            valid = _both(valid, reach_valid)
        low, high, left = _narrowed(xp, low, high, bound.comparison, codes)
        valid = _both(_both(valid, codes_valid), left)
    return low, high, valid


def _both(first: _Array | None, second: _Array | None) -> _Array | None:
    if first is None or second is None:
        return first if second is None else second
    return first & second


def _shifted(xp: Any, codes: _Array, offset: int) -> _Array:
    """Add a number to codes, clamped to the limits of their type."""
    if not offset:
        return codes
    if offset > 0:
        return xp.where(codes > MOST - offset, MOST, codes + min(offset, MOST))
    return xp.where(codes < LEAST - offset, LEAST, codes + max(offset, LEAST))


def _outward(xp: Any, codes: _Array, reach: _Array, bound: Bound) -> _Array:
    """Add each row's distance, and the bound's offset, to codes, clamped to the limits of their type."""
    assert isinstance(bound.offset, int)
    by = _shifted(xp, xp.maximum(reach, LEAST + 1), bound.offset)
    if bound.comparison is Comparison.AT_LEAST:
        by = -xp.maximum(by, LEAST + 1)
    moved = codes + by
    moved = xp.where((by > 0) & (moved < codes), MOST, moved)
    return xp.where((by < 0) & (moved > codes), LEAST, moved)


def _narrowed(
    xp: Any, low: _Array, high: _Array, comparison: Comparison, codes: _Array
) -> tuple[_Array, _Array, _Array | None]:
    """Narrow ranges by a comparison. Also the mask that is false where nothing can match, since no code is left."""
    left: _Array | None = None
    match comparison:
        case Comparison.AT_LEAST | Comparison.EQUAL:
            low = xp.maximum(low, codes)
        case Comparison.GREATER:
            left = codes != MOST
            low = xp.maximum(low, codes + left)
    match comparison:
        case Comparison.AT_MOST | Comparison.EQUAL:
            high = xp.minimum(high, codes)
        case Comparison.LESS:
            left = codes != LEAST
            high = xp.minimum(high, codes - left)
    return low, high, left
