"""Converts row maps to NumPy indices, filters them, and sets marks by them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gpujoin.model.maps import AllNull, Indices, OutOfBounds, Repeat, RowMap, Span, Tile

IndexArray: TypeAlias = npt.NDArray[Any]
"""int32 or int64 row numbers."""
Mask: TypeAlias = npt.NDArray[np.bool_]


def index_type(rows: int) -> type[np.signedinteger[Any]]:
    """int32 or int64, whichever is the narrowest that can number this many rows."""
    return np.int32 if rows < 1 << 31 else np.int64


def as_indices(rows: RowMap) -> IndexArray:
    """Convert a map to explicit indices, negative where there is no row."""
    match rows:
        case Indices(values, _, _):
            return np.asarray(values)
        case Span(start, length):
            return np.arange(start, start + length)
        case Repeat(start, length, times):
            first = start // times
            outer = np.arange(first, -(-(start + length) // times))
            return np.repeat(outer, times)[start - first * times :][:length]
        case Tile(start, length, period, chosen):
            offset = start % period
            pieces = -(-(offset + length) // period)
            period_rows = np.arange(period) if chosen is None else chosen
            return np.tile(period_rows, pieces)[offset : offset + length]
        case AllNull(length):
            return np.full(length, -1)


def filtered(rows: RowMap, mask: Mask) -> RowMap:
    """Keep the entries of a map at which a mask is true."""
    positions = np.flatnonzero(mask)
    if len(positions) == len(mask):
        return rows
    match rows:
        case AllNull():
            return AllNull(len(positions))
        case Span(start, _):
            return Indices(positions + start, len(positions), OutOfBounds.NEVER)
        case Repeat(start, _, times):
            return Indices((positions + start) // times, len(positions), OutOfBounds.NEVER)
        case Tile(start, _, period, order):
            inner = (positions + start) % period
            return Indices(inner if order is None else np.take(order, inner), len(positions), OutOfBounds.NEVER)
        case Indices(values, _, out_of_bounds):
            return Indices(np.take(values, positions), len(positions), out_of_bounds)


def selected(mask: Mask) -> RowMap:
    """Positions at which a mask is true, ascending."""
    positions = np.flatnonzero(mask)
    if len(positions) == len(mask):
        return Span(0, len(mask))
    return Indices(positions, len(positions), OutOfBounds.NEVER)


def set_marks(marks: Mask, rows: RowMap) -> None:
    """Set a mask to true at the rows of a map without negative entries."""
    if rows.length == 0:
        return
    match rows:
        case Span(start, length):
            marks[start : start + length] = True
        case Repeat(start, length, times):
            marks[start // times : (start + length - 1) // times + 1] = True
        case Tile(start, length, period, chosen):
            if length >= period:
                marks[slice(period) if chosen is None else chosen] = True
            else:
                marks[as_indices(rows)] = True
        case _:
            marks[as_indices(rows)] = True
