"""Ranges that hold all values of a column, by which files and row groups are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.pipeline.piece import Piece
from gpujoin.model.files import ValueRanges
from gpujoin.model.types import is_bytes, is_text, is_whole

_MOST_SORTED = 1 << 16
"""Rows that are sorted, which takes a few milliseconds; of more the least and the greatest value are the only range."""
_RANGES = 1 << 10
"""Ranges that are made at most: each row group is compared with some ten of them."""


def value_ranges(piece: Piece, position: int) -> ValueRanges | None:
    """Ranges that hold a column's values, but for null; ``None`` for types whose statistics are not compared."""
    column = piece.columns[position]
    in_statistics = _form_in_statistics(column.dtype)
    if in_statistics is None:
        return None
    values = piece.run(piece.frame.select(column.name)).to_series().drop_nulls()
    if not len(values):
        return ValueRanges((), ())
    if len(values) > _MOST_SORTED:
        lows, highs = [values.min()], [values.max()]
    else:
        values = values.unique().sort()
        step = -(-len(values) // _RANGES)
        lows = values.gather_every(step).to_list()
        last = pl.Series(range(step - 1, len(values) + step - 1, step), dtype=pl.UInt32).clip(0, len(values) - 1)
        highs = values.gather(last).to_list()
    return ValueRanges(tuple(map(in_statistics, lows)), tuple(map(in_statistics, highs)))


def _form_in_statistics(dtype: pa.DataType) -> Callable[[Any], Any] | None:
    """What makes of a value, as Polars gives it, one that is compared with statistics of files."""
    if is_whole(dtype) or pat.is_date(dtype) or is_bytes(dtype):
        return _unchanged
    return _as_bytes if is_text(dtype) else None


def _unchanged(value: Any) -> Any:
    return value


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
