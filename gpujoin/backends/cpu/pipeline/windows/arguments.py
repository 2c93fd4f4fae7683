"""Columns of Polars as arguments of window functions, and the results as columns of Polars."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.pipeline.columns import arrow_of, series_of
from gpujoin.backends.cpu.pipeline.windows.ordering import OPS, float_words, present_of, series_codes
from gpujoin.backends.ordered.windows.calls import Numbers, Places
from gpujoin.backends.ordered.windows.rows import Codes
from gpujoin.backends.ordered.windows.spans import Presence, RangeKey
from gpujoin.functions.lowered import Column, magnitude
from gpujoin.model.types import is_float

Integers = npt.NDArray[np.int64]

_LIMB = 32
_MASK = np.int64((1 << _LIMB) - 1)
_DIGITS = pa.decimal128(38, 0)


@dataclass(frozen=True)
class SeriesArgument:
    """A column in the order of the window; see :class:`gpujoin.backends.ordered.windows.calls.Argument`."""

    series: pl.Series
    column: Column

    @cached_property
    def presence(self) -> Presence:
        return Presence(OPS, present_of(self.series))

    def largest(self) -> int:
        bounds = self.column.bounds.get()
        assert bounds is not None
        return magnitude(bounds)

    def integers(self) -> Integers:
        return self.series.fill_null(0).cast(pl.Int64).to_numpy()

    def limbs(self) -> tuple[Integers, Integers, Integers, Integers]:
        array = arrow_of(self.series.fill_null(0), _DIGITS)
        words = np.frombuffer(array.buffers()[1], np.int64)[2 * array.offset :][: 2 * len(array)].reshape(-1, 2)
        low, high = words[:, 0], words[:, 1]
        return low & _MASK, (low >> _LIMB) & _MASK, high & _MASK, high >> _LIMB

    def doubles(self) -> npt.NDArray[np.float64]:
        return self.series.cast(pl.Float64).fill_null(0.0).to_numpy() + 0.0  # −0.0 + 0.0 is 0.0

    def codes(self, *, descending: bool) -> Codes:
        return series_codes(self.series, self.column.dtype, descending=descending, nulls_first=False)

    def values_at(self, places: Places) -> pl.Series:
        """Values at places, null for places that are not valid."""
        if places.valid.all():
            return self.series.gather(places.at)
        positions = pl.Series(np.where(places.valid, places.at, 0))
        return _where(places.valid, self.series.gather(positions))


def range_key(series: pl.Series, dtype: pa.DataType, *, descending: bool, nulls_first: bool) -> RangeKey:
    """Make the key of ranges by distance of a column in the order of the window."""
    presence = Presence(OPS, present_of(series))
    key: Any = partial(RangeKey, type=str(dtype), descending=descending, nulls_first=nulls_first)
    if is_float(dtype):
        return key(values=series.fill_null(0.0).to_numpy(), present=presence, words=float_words)
    physical = series.to_physical()
    if pat.is_decimal(dtype) or pat.is_timestamp(dtype):
        physical = physical.cast(pl.Int64)
    return key(values=physical.fill_null(0).to_numpy(), present=presence, words=lambda values: values)


def series_of_numbers(numbers: Numbers) -> pl.Series:
    """Convert numbers. Decimals that need 128 bits get them."""
    if numbers.low is None:
        series = pl.Series(numbers.data)
    else:
        data = np.ascontiguousarray(np.stack([numbers.low.view(np.int64), numbers.data], axis=1))
        array = pa.Array.from_buffers(_DIGITS, len(data), [None, pa.py_buffer(data)])
        series, _ = series_of(array, _DIGITS)
    return series if numbers.valid is None else _where(numbers.valid, series)


def _where(valid: npt.NDArray[np.bool_], series: pl.Series) -> pl.Series:
    return series if valid.all() else pl.select(pl.when(pl.Series(valid)).then(series)).to_series()
