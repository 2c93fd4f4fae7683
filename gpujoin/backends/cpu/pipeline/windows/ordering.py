"""The array operations of windows on the CPU, and the codes of Polars' columns."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.backends.cpu.pipeline.columns import arrow_of
from gpujoin.backends.cpu.ranges import owners
from gpujoin.backends.ordered.windows.rows import SIGN, Codes, RowOps, SortedRows, codes_of
from gpujoin.model.types import is_bytes, is_float, is_text

Words: TypeAlias = npt.NDArray[np.uint64]
Floats: TypeAlias = npt.NDArray[np.float64]

_ROUND_MICROSECONDS = (1_000_000, 1_000)
"""Timestamps are often whole seconds or milliseconds, which take fewer bits."""


def _sorted(words: Words) -> Words:
    return pl.Series(words).sort().to_numpy()


def _running_sum(numbers: Floats, rows: SortedRows) -> Floats:
    frame = pl.DataFrame({"v": numbers, "p": pl.Series(rows.partition).set_sorted()})
    return frame.select(pl.col("v").cum_sum().over("p")).to_series().to_numpy()


OPS = RowOps(np, _sorted, owners, np.minimum.accumulate, _running_sum)


def series_codes(series: pl.Series, dtype: pa.DataType, *, descending: bool = False, nulls_first: bool = True) -> Codes:
    """Convert a column to unsigned integers in Spark's order of its values.

    NaN is the greatest float, all NaNs are equal, and so are −0.0 and 0.0; text is ordered by bytes.
    """
    units = _ROUND_MICROSECONDS if pat.is_timestamp(dtype) else ()
    return codes_of(
        OPS, _words(series, dtype), present_of(series), descending=descending, nulls_first=nulls_first, units=units
    )


def present_of(series: pl.Series) -> npt.NDArray[np.bool_] | None:
    """Which values are not null; ``None``: all."""
    return None if series.null_count() == 0 else series.is_not_null().to_numpy()


def _words(series: pl.Series, dtype: pa.DataType) -> Words:
    """Unsigned integers in the order of the values; those of nulls mean nothing."""
    if is_float(dtype):
        return float_words(series.fill_null(0.0).to_numpy())
    if series.dtype == pl.Int128:
        narrow = series.cast(pl.Int64, strict=False)
        if narrow.null_count() > series.null_count():
            return _ranks(series, dtype)
        series = narrow
    elif is_text(dtype) or is_bytes(dtype):
        return _ranks(series, dtype)
    integers = series.to_physical().cast(pl.Int64).fill_null(0).to_numpy()
    return integers.view(np.uint64) ^ np.uint64(SIGN)


def float_words(numbers: npt.NDArray[np.floating]) -> Words:
    """Unsigned integers in the order of floats."""
    single = numbers.dtype == np.float32
    values = numbers + numbers.dtype.type(0.0)  # −0.0 + 0.0 is 0.0
    values[np.isnan(values)] = np.nan
    bits = values.view(np.int32).astype(np.int64) if single else values.view(np.int64)
    if single:
        bits <<= 32
    # Of negative numbers the greater one has the lesser bits.
    ordered = np.where(bits < 0, ~bits, bits | np.int64(-1 << 63)).view(np.uint64)
    return ordered >> np.uint64(32) if single else ordered


def _ranks(series: pl.Series, dtype: pa.DataType) -> Words:
    if series.dtype == pl.Int128:
        array = arrow_of(series, pa.decimal128(38, 0) if not pat.is_decimal(dtype) else dtype)
    else:
        array = series.cast(pl.Binary).to_arrow(compat_level=pl.CompatLevel.oldest())
    encoded = pc.dictionary_encode(array)
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    ranks = np.zeros(max(1, len(encoded.dictionary)), np.uint64)
    ranks[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(encoded.dictionary))
    return ranks[pc.fill_null(encoded.indices, 0).to_numpy()]
