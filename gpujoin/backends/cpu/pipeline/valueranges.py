"""Values of build sides, by which the scan of the other side skips files, row groups and rows."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.pipeline.columns import ascends
from gpujoin.backends.cpu.pipeline.piece import Piece
from gpujoin.backends.parquet.pruning import Statistics
from gpujoin.functions.lowered import polars_type
from gpujoin.model.files import ValueRanges
from gpujoin.model.types import is_bytes, is_text, is_whole

_RANGES = 1 << 10
"""Most ranges: each row group is compared with some ten of them."""
_MOST_SHARE = 0.75
"""Share of a column's possible values beyond which its rows are not compared with them, as most would stay."""
_EPOCH = datetime.date(1970, 1, 1)


def value_ranges(piece: Piece, position: int, most: int) -> ValueRanges | None:
    """Ranges of a column's values, nulls aside; ``None`` for types without statistics to compare.

    Of more than ``most`` rows the least and the greatest value are the only range.
    """
    column = piece.columns[position]
    in_statistics = _form_in_statistics(column.dtype)
    if in_statistics is None:
        return None
    values = piece.values(column).drop_nulls()
    if not len(values):
        return ValueRanges((), ())
    distinct = None
    if len(values) > most:
        physical = values.to_physical()
        lows, highs = [physical.min()], [physical.max()]
    else:
        values = values if ascends(values) else values.unique().sort()
        distinct = values.to_arrow() if _is_counted(column.dtype) else None
        values = values.to_physical()
        step = -(-len(values) // _RANGES)
        lows = values.gather_every(step).to_list()
        last = pl.Series(range(step - 1, len(values) + step - 1, step), dtype=pl.UInt32).clip(0, len(values) - 1)
        highs = values.gather(last).to_list()
    if in_statistics is not _unchanged:
        lows, highs = list(map(in_statistics, lows)), list(map(in_statistics, highs))
    return ValueRanges(tuple(lows), tuple(highs), distinct)


def with_values_of(piece: Piece, position: int, ranges: ValueRanges, statistics: Sequence[Statistics | None]) -> Piece:
    """Drop rows with a value that a build side does not have, unless statistics show that most would stay.

    Polars decodes the other columns only for the rows that stay.
    """
    values, column = ranges.values, piece.columns[position]
    if values is None or _most_are_among(values, statistics):
        return piece
    members = pl.Series(values).cast(polars_type(column.dtype), strict=False).drop_nulls()
    piece.metrics.key_filters += 1
    return piece.where(pl.col(column.name).is_in(members.implode()))


def _most_are_among(values: pa.Array, statistics: Sequence[Statistics | None]) -> bool:
    """Whether most of the values that statistics allow are among those of a build side."""
    if any(each is None or each.low is None or each.high is None for each in statistics):
        return False
    low = min(_as_number(each.low) for each in statistics if each is not None)
    high = max(_as_number(each.high) for each in statistics if each is not None)
    numbers = (values.cast(pa.int32()) if pat.is_date(values.type) else values).to_numpy()
    within = np.searchsorted(numbers, high, "right") - np.searchsorted(numbers, low)
    return bool(within > _MOST_SHARE * (high - low + 1))


def _as_number(value: Any) -> int:
    return (value - _EPOCH).days if isinstance(value, datetime.date) else int(value)


def _is_counted(dtype: pa.DataType) -> bool:
    return is_whole(dtype) or pat.is_date(dtype)


def _form_in_statistics(dtype: pa.DataType) -> Callable[[Any], Any] | None:
    """Converter of values to the form in statistics of files, with dates as days; ``None`` for other types."""
    if pat.is_date(dtype):
        return _as_date
    if _is_counted(dtype) or is_bytes(dtype):
        return _unchanged
    return _as_bytes if is_text(dtype) else None


def _unchanged(value: Any) -> Any:
    return value


def _as_date(days: int) -> datetime.date:
    """The nearest date that Python has; statistics have no others."""
    return datetime.date.fromordinal(min(max(_EPOCH.toordinal() + days, 1), datetime.date.max.toordinal()))


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
