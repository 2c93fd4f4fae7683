"""Operations on frames for joins whose tables stay on the device: row numbers, merged keys, null keys."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.canonical import takes_key
from gpujoin.backends.cudf.pipeline.columns import Columns, Frame
from gpujoin.backends.cudf.pipeline.compute import rows_at, valid_of, values_of, widened_key
from gpujoin.backends.cudf.storage import storage_type
from gpujoin.backends.ordered.reductions import any_true
from gpujoin.functions.values import Value
from gpujoin.model.maps import RowMap, Span
from gpujoin.model.types import is_whole, logical

_NO_PATTERN = (1 << 63) - 1


def same_codes(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether keys of two types can be compared as frames store them, integers after widening."""
    if is_whole(logical(left)) and is_whole(logical(right)):
        return True
    alike = logical(left) == logical(right) and storage_type(left) == storage_type(right)
    return alike and takes_key(left) and takes_key(right)


def row_numbers(columns: Columns[Frame], rows: int) -> Frame:
    """Frame of one int32 column of row numbers."""
    return columns.frame([Value(pa.int32(), columns.ops.xp.arange(rows, dtype="int32"))], (pa.int32(),), rows)


def positions(columns: Columns[Frame], frame: Frame, at: int) -> Array:
    """Values of an int32 column, −1 where it is null."""
    xp = columns.ops.xp
    if columns.backend.frame_rows(frame) == 0:
        return xp.zeros(0, dtype="int32")
    value = values_of(columns, frame, at)
    values = value.data if value.valid is None else xp.where(value.valid, value.data, xp.int32(-1))
    return xp.ascontiguousarray(values)


def rows_by_nulls(
    columns: Columns[Frame], keys: Frame, null_safe: Sequence[bool], but: Array | None
) -> dict[int, RowMap]:
    """Divide rows by null pattern, a number whose bit ``i`` is set if key ``i`` is null and not null-safe."""
    backend, xp = columns.backend, columns.ops.xp
    rows = backend.frame_rows(keys)
    patterns = xp.zeros(rows, dtype="int64")
    valids = [None if safe or not rows else valid_of(columns, keys, i) for i, safe in enumerate(null_safe)]
    for number, valid in enumerate(valids):
        if valid is not None:
            patterns = patterns | ((~valid).astype("int64") << number)
    if rows and but is None and all(valid is None for valid in valids):
        return {0: Span(0, rows)}
    rows_of: dict[int, RowMap] = {}
    following = xp.ones(rows, dtype=bool) if but is None else ~but
    patterns = patterns if but is None else xp.where(but, _NO_PATTERN, patterns)
    while any_true(following):
        pattern = int(xp.where(following, patterns, _NO_PATTERN).min())
        rows_of[pattern] = backend.selection(patterns == pattern, True)
        following = (patterns > pattern) & (patterns < _NO_PATTERN)
    return rows_of


def coalesced(columns: Columns[Frame], frame: Frame, first: int, second: int, dtype: pa.DataType) -> Frame:
    """Coalesce two columns, in their common type, to a frame of one column."""
    rows = columns.backend.frame_rows(frame)
    valid = valid_of(columns, frame, first) if rows else None
    if valid is None:
        return widened_key(columns, frame, first, dtype)
    xp = columns.ops.xp
    row = xp.arange(rows, dtype="int64")
    stacked = columns.concat([widened_key(columns, frame, at, dtype) for at in (first, second)])
    return rows_at(columns, stacked, xp.where(valid, row, row + rows))
