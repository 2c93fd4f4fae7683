"""Columns of a piece: the Polars types that carry Spark's values, and bounds of the values.

Decimals are carried as unscaled integers, of 64 bits if the known bounds allow it, else of 128 bits; the scale stays in
the column's type. Text is carried as text if it is UTF-8, else as bytes. Spark compares and joins text as bytes,
whatever they are, but the behaviour of Polars is undefined for text that is no UTF-8. Timestamps are carried without
their zone. All other values have their natural Polars type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.functions.lowered import INT64, Bounds, Column, LazyBounds, polars_type, within
from gpujoin.functions.utf8 import as_bytes, as_characters, is_utf8
from gpujoin.model.types import LONG_DIGITS, is_bytes, is_text, logical


def is_wide(series: pl.Series, dtype: pa.DataType) -> bool:
    """Whether values are carried in the wider form of their type."""
    return bool(series.dtype == pl.Int128 or (series.dtype == pl.Binary and is_text(dtype)))


def series_of(
    array: pa.Array | pa.ChunkedArray, dtype: pa.DataType, *, checked: bool = False
) -> tuple[pl.Series, bool]:
    """Convert an Arrow column, in any layout of its logical type, to a Polars series in :func:`polars_type`.

    Also tells whether it is in the wider form: of decimals that need it, and of text that is no UTF-8 (``checked``:
    it is known to be).
    """
    dtype = logical(dtype)
    if isinstance(array, pa.Array):
        array = pa.chunked_array([array], array.type)
    if pat.is_dictionary(array.type) or pat.is_run_end_encoded(array.type):
        array = array.cast(array.type.value_type)
    if pat.is_decimal(dtype):
        return _unscaled(array, dtype)
    if pat.is_timestamp(dtype):
        if array.type.unit != "us":
            array = array.cast(pa.timestamp("us", array.type.tz))
        array = pa.chunked_array([c.view(pa.timestamp("us")) for c in array.chunks], pa.timestamp("us"))
    elif not (is_text(dtype) or is_bytes(dtype)) and array.type != dtype:
        array = array.cast(dtype)
    elif pat.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    elif is_text(dtype) and is_text(array.type) and not (checked or is_utf8(array)):
        array = pa.chunked_array([as_bytes(chunk) for chunk in array.chunks])
    series = pl.from_arrow(array)
    assert isinstance(series, pl.Series)
    wide = is_wide(series, dtype)
    return series.cast(polars_type(dtype, wide=wide)), wide


def as_text(series: pl.Series) -> pl.Series:
    """Convert bytes to text if they are UTF-8; else return them unchanged."""
    try:
        return series.cast(pl.String)
    except pl.exceptions.ComputeError:
        return series


def _unscaled(array: pa.ChunkedArray, dtype: pa.DataType) -> tuple[pl.Series, bool]:
    if array.type != dtype:
        array = array.cast(dtype)
    if dtype.precision <= LONG_DIGITS:
        parts = [_low_limbs(chunk) for chunk in array.chunks]
        return (pl.concat(parts) if parts else pl.Series([], dtype=pl.Int64)), False
    whole = pl.from_arrow(array.cast(pa.decimal128(38, dtype.scale)))
    assert isinstance(whole, pl.Series)
    series = whole.to_physical()
    low, high = series.min(), series.max()
    if low is None or within((int(low), int(high)), INT64):  # type: ignore[arg-type]
        return series.cast(pl.Int64), False
    return series, True


def _low_limbs(chunk: pa.Array) -> pl.Series:
    data = chunk.buffers()[1]
    if data is None or len(chunk) == 0:
        return pl.Series([None] * len(chunk), dtype=pl.Int64)
    limbs = np.frombuffer(data, np.int64, 2 * len(chunk), chunk.offset * 16)[::2]
    series = pl.Series(np.ascontiguousarray(limbs))
    if chunk.null_count == 0:
        return series
    valid = pl.from_arrow(chunk.is_valid())
    assert isinstance(valid, pl.Series)
    return pl.select(pl.when(valid).then(series)).to_series()


def arrow_of(series: pl.Series, dtype: pa.DataType) -> pa.Array:
    """Convert a column to one Arrow array of exactly a type; text and bytes get 32-bit offsets.

    Raises ``pyarrow.ArrowInvalid`` if text or bytes of the column exceed 2 GiB.
    """
    kind = logical(dtype)
    if is_wide(series, kind) and is_text(kind):
        array = as_characters(_one_chunk(series.to_arrow(compat_level=pl.CompatLevel.oldest())))
        return array if array.type == dtype else pc.cast(array, dtype)
    if pat.is_decimal(kind):
        array = _one_chunk(series.cast(pl.Int128).cast(pl.Decimal(38, 0)).to_arrow())
        return pa.Array.from_buffers(dtype, len(array), array.buffers(), array.null_count, array.offset)
    array = _one_chunk(series.to_arrow(compat_level=pl.CompatLevel.oldest()))
    if pat.is_timestamp(kind):
        return array.view(pa.int64()).view(dtype)
    return array if array.type == dtype else pc.cast(array, dtype)


def _one_chunk(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def measured(series: pl.Series, dtype: pa.DataType) -> Callable[[], Bounds | None]:
    """Compute bounds from the values, when asked."""

    def find() -> Bounds | None:
        values = series.to_physical() if pat.is_date32(dtype) else series
        low, high = values.min(), values.max()
        return None if low is None or high is None else (int(low), int(high))  # type: ignore[arg-type]

    return find


def remeasured(column: Column, series: pl.Series) -> Column:
    """The same column with bounds of its values, which are now available."""
    return replace(column, bounds=LazyBounds(column.dtype, measured(series, column.dtype)))


def column_of(name: str, series: pl.Series, dtype: pa.DataType, *, wide: bool = False) -> Column:
    """Describe a column whose values are available."""
    dtype = logical(dtype)
    return Column(name, dtype, LazyBounds(dtype, measured(series, dtype)), wide)


def ascends(values: pl.Series) -> bool:
    """Whether whole numbers or dates have no null and each is greater than the one before it."""
    if values.null_count() or values.dtype not in (pl.Int32, pl.Int64, pl.Date):
        return False
    numbers = values.to_physical().to_numpy()
    return bool((numbers[1:] > numbers[:-1]).all())
