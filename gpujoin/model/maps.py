"""Gather maps: the row of each side that goes into each output row.

A join computes two maps of equal length, one for each side; the output is made by gathering each side's columns by its
map. An example, ``l LEFT JOIN r ON l.k = r.k``, three left rows and two right rows::

    l  row  k v      r  row  k w      maps   left   0  1  2      output   k v w
       0    1 a         0    3 x             right  1 -1  0               1 a y
       1    2 b         1    1 y                                          2 b null
       2    3 c                                                           3 c x

The right map has −1 where the left row has no match (:attr:`OutOfBounds.NULLIFY`), so the gather makes a null there.

Maps with a structure do not store their indices. The left map above is a :class:`Span`: rows 0, 1, 2. Only
:class:`Indices` holds memory, in the array type of its backend.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias


class OutOfBounds(Enum):
    """What a negative index in a map means."""

    NEVER = "never"
    """There are no negative indices, so a gather need not check."""
    NULLIFY = "nullify"
    """The output row is all null."""


class MapOrder(Enum):
    """Known order of a map's rows."""

    ANY = "any"
    """Rows come in any order."""
    ASCENDING = "ascending"
    """Rows ascend; a row may be repeated."""


@dataclass(frozen=True, slots=True)
class Indices:
    """Explicit row indices."""

    values: Any
    """The backend's own integer vector (NumPy int32 or int64 on the CPU, a device column on the GPU); negative means
    "no row"."""
    length: int
    out_of_bounds: OutOfBounds = OutOfBounds.NEVER
    """Whether negative values may occur, and what they mean."""
    order: MapOrder = MapOrder.ANY
    """Known order of the rows."""


@dataclass(frozen=True, slots=True)
class Span:
    """Rows ``start, start + 1, …, start + length - 1``: the identity map and its slices."""

    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """Output row ``i`` is row ``(start + i) // times``: the outer side of a cross product."""

    start: int
    length: int
    times: int


@dataclass(frozen=True, slots=True)
class Tile:
    """Output row ``i`` is row ``(start + i) % period``: the inner side of a cross product."""

    start: int
    length: int
    period: int
    """First number, number of output rows, rows of the inner side."""
    rows: Any = None
    """Rows of one key, in the backend's own integer vector: the number is a position in them. ``None``: the number is
    the row itself. Only the CPU backend makes such maps."""


@dataclass(frozen=True, slots=True)
class AllNull:
    """``length`` null rows: the missing side of rows without a match."""

    length: int


RowMap: TypeAlias = Indices | Span | Repeat | Tile | AllNull


def cross_maps(outer_rows: int, inner_rows: int, max_pairs: int) -> Iterator[tuple[Repeat, Tile]]:
    """Cut the cross product of two sides into slices of maps of at most ``max_pairs`` pairs; no indices are stored.

    The outer side varies slowest.
    """
    total = outer_rows * inner_rows
    for start in range(0, total, max_pairs):
        length = min(max_pairs, total - start)
        yield Repeat(start, length, inner_rows), Tile(start, length, inner_rows)


def slice_map(rows: RowMap, start: int, length: int) -> RowMap:
    """Entries ``start … start + length - 1`` of a map, without copying."""
    match rows:
        case Indices(values, _, out_of_bounds, order):
            return Indices(values[start : start + length], length, out_of_bounds, order)
        case Span(first, _):
            return Span(first + start, length)
        case Repeat(first, _, times):
            return Repeat(first + start, length, times)
        case Tile(first, _, period, chosen):
            return Tile(first + start, length, period, chosen)
        case AllNull():
            return AllNull(length)
