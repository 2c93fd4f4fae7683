"""Converts row maps to arrays, filters them, and sets marks by them."""

from __future__ import annotations

from gpujoin.backends.cudf.arrays import Array, ArrayOps, positions
from gpujoin.errors import DeviceMemoryError
from gpujoin.launch.keys import MAX_ROWS
from gpujoin.model.maps import AllNull, Indices, MapOrder, OutOfBounds, Repeat, RowMap, Span, Tile

OUT_OF_BOUNDS = (1 << 31) - 1
"""Index that is out of bounds for tables of any size: libcudf adds the row count to negative ones."""


def indices(ops: ArrayOps, rows: RowMap) -> Array:
    """Convert a map to int32 indices, negative where there is no row.

    Raises ``DeviceMemoryError`` if the map is longer than a device column may be; smaller slices of it may succeed.
    """
    xp = ops.xp
    check_length(rows.length)
    match rows:
        case Indices(values):
            return values
        case Span(start, length):
            return xp.arange(start, start + length, dtype=xp.int32)
        case Repeat(start, length, times):
            return (xp.arange(start, start + length, dtype=xp.int64) // times).astype(xp.int32)
        case Tile(start, length, period):
            return (xp.arange(start, start + length, dtype=xp.int64) % period).astype(xp.int32)
        case AllNull(length):
            return xp.full(length, -1, dtype=xp.int32)


def gather_indices(ops: ArrayOps, rows: RowMap) -> Array:
    """Convert a map to indices for libcudf, with ``OUT_OF_BOUNDS`` where there is no row."""
    index = indices(ops, rows)
    if may_miss(rows):
        # Negative numbers are the greatest without a sign.
        unsigned = index.astype(ops.xp.int32, copy=False).view(ops.xp.uint32)
        return ops.xp.minimum(unsigned, ops.xp.uint32(OUT_OF_BOUNDS)).view(ops.xp.int32)
    return index


def may_miss(rows: RowMap) -> bool:
    """Whether a map may have entries without a row."""
    if isinstance(rows, Indices):
        return rows.out_of_bounds is OutOfBounds.NULLIFY
    return isinstance(rows, AllNull)


def filtered(ops: ArrayOps, rows: RowMap, mask: Array) -> RowMap:
    """Keep the entries of a map at which a mask is true."""
    places = positions(ops, mask)
    count = int(places.shape[0])
    match rows:
        case Indices(values, _, out_of_bounds, order):
            return Indices(values[places], count, out_of_bounds, order)
        case Span(start, length):
            return Span(start, length) if count == length else _ascending(places + start)
        case Repeat(start, _, times):
            return _ascending(((places.astype(ops.xp.int64) + start) // times).astype(ops.xp.int32))
        case Tile(start, _, period):
            return Indices(((places.astype(ops.xp.int64) + start) % period).astype(ops.xp.int32), count)
        case AllNull():
            return AllNull(count)


def selected(ops: ArrayOps, mask: Array, value: bool) -> RowMap:
    """Positions at which a mask has a value, ascending."""
    selected_rows = positions(ops, mask if value else ~mask)
    count = int(selected_rows.shape[0])
    return Span(0, count) if count == mask.shape[0] else _ascending(selected_rows)


def _ascending(values: Array) -> Indices:
    return Indices(values, int(values.shape[0]), order=MapOrder.ASCENDING)


def set_marks(ops: ArrayOps, marks: Array, rows: RowMap) -> None:
    """Set a mask to true at the rows of a map that is never out of bounds."""
    if isinstance(rows, Span):
        marks[rows.start : rows.start + rows.length] = True
    else:
        marks[indices(ops, rows)] = True


def check_length(length: int) -> None:
    """Raise ``DeviceMemoryError`` for more rows than a device column can have."""
    if length > MAX_ROWS:
        raise DeviceMemoryError(f"{length} rows are over the {MAX_ROWS} rows of a device column; use fewer at a time")
