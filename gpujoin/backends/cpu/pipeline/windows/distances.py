"""Frames of rows whose order key is within distances of the current row's.

The bounds of all rows, and all keys, become ranks of one order, so that places are found by one search. For the keys
10, 20, 50 and a null of a partition, nulls first, and ``RANGE BETWEEN 15 PRECEDING AND CURRENT ROW``::

    place  key    lower bound   frame
        0  null   null          0 to 0    a null is within any distance of nulls, and of nothing else
        1  10     -5            1 to 1
        2  20     5             1 to 2
        3  50     35            3 to 3
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.pipeline.windows.ordering import Integers, Mask, SortedRows
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.types import is_float
from gpujoin.model.windows import Frame


@dataclass(frozen=True)
class RangeKey:
    """The order key of a window, in the window's order."""

    series: pl.Series
    dtype: pa.DataType
    descending: bool
    nulls_first: bool


def ranged(frame: Frame, rows: SortedRows, key: RangeKey) -> tuple[Integers, Integers]:
    """Find where frames begin and end; an end may be less than the beginning.

    Raises ``ExpressionEvaluationError`` if a bound is outside of the key's type.
    """
    present = None if key.series.null_count() == 0 else key.series.is_not_null().to_numpy()
    values = _numbers(key)
    bounds = [_moved(values, present, bound, key) for bound in (frame.start, frame.end) if bound]
    ranks, *bound_ranks = _ranks([values, *bounds], descending=key.descending)
    most = 1 + max((int(each.max(initial=0)) for each in (ranks, *bound_ranks)), default=0)
    searched = iter(bound_ranks)

    def placed(ranks: Integers) -> Integers:
        """Ranks with nulls among them, partitions one after the other."""
        if present is not None:
            ranks = np.where(present, ranks + 1, 0 if key.nulls_first else most + 1)
        return ranks + rows.partition * np.int64(most + 2)

    ordered = placed(ranks)
    lows, highs = rows.first, rows.end
    if frame.start is not None:
        lows = np.searchsorted(ordered, placed(next(searched)), "left") if frame.start else rows.first_peer
    if frame.end is not None:
        highs = np.searchsorted(ordered, placed(next(searched)), "right") if frame.end else rows.peer_end
    return lows, highs


def _numbers(key: RangeKey) -> npt.NDArray[Any]:
    """The key's values as NumPy has them; those of nulls mean nothing."""
    if is_float(key.dtype):
        return key.series.fill_null(0.0).to_numpy()
    physical = key.series.to_physical()
    if pat.is_decimal(key.dtype) or pat.is_timestamp(key.dtype):
        physical = physical.cast(pl.Int64)
    return physical.fill_null(0).to_numpy()


def _moved(values: npt.NDArray[Any], present: Mask | None, distance: float, key: RangeKey) -> npt.NDArray[Any]:
    """Values at a distance: in a descending order greater ones come before."""
    distance = -distance if key.descending else distance
    if is_float(key.dtype):
        with np.errstate(over="ignore", invalid="ignore"):
            moved: npt.NDArray[Any] = values + values.dtype.type(distance)
        return moved
    info = np.iinfo(values.dtype)
    distance = int(distance)
    if not info.min <= distance <= info.max:
        raise ExpressionEvaluationError(f"{distance}, a distance of a range frame, is none of {key.dtype}")
    leaves = values > info.max - distance if distance > 0 else values < info.min - distance
    if bool((leaves if present is None else leaves & present).any()):
        raise ExpressionEvaluationError(f"a bound of a range frame, {distance} from its row, leaves {key.dtype}")
    with np.errstate(over="ignore"):  # of what stands for nulls
        return values + values.dtype.type(distance)


def _ranks(columns: list[npt.NDArray[Any]], *, descending: bool) -> list[Integers]:
    """Numbers in the order of all values, the same for equal ones; NaN is the greatest, and both zeros are equal."""
    _, ranks = np.unique(np.concatenate(columns), return_inverse=True, equal_nan=True)
    ranks = ranks.astype(np.int64)
    if descending:
        ranks = ranks.max(initial=0) - ranks
    ends = np.cumsum([len(column) for column in columns])[:-1]
    return np.split(ranks, ends)
