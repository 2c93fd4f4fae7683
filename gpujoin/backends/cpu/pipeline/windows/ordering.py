"""Sorts rows by partition and order, and finds where partitions and peers begin.

Each column becomes unsigned integers in its order, as small as its values allow: numbers less the least one, floats by
their bits, text by the place among its different values. The integers of all columns and the row's number are packed
into words of 64 bits, so that sorting words sorts rows. For partition ``p`` and order ``t``, of 4 rows::

    p    t          codes p t   word = p t row      sorted     row   partition   peers
    b  105            1   5       1 5 00            0 0 11       3   begins      begin
    b  100            1   0       1 0 01            0 0 10 …
    a  100            0   0       0 0 10
    a  100            0   0       0 0 11

Where they do not fit into one word, rows are sorted several times, by the last bits first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.backends.cpu.pipeline.columns import arrow_of
from gpujoin.model.types import is_bytes, is_float, is_text

Integers: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_WORD_BITS = 64
_SIGN = np.uint64(1 << 63)
_ROUND_MICROSECONDS = (1_000_000, 1_000)
"""Timestamps are often whole seconds or milliseconds, which take fewer bits."""
_ROUND_SAMPLE = 1024


@dataclass(frozen=True)
class Codes:
    """A column as unsigned integers in its order."""

    values: Words
    bits: int
    """Bits that the greatest one takes."""


@dataclass(frozen=True)
class SortedRows:
    """Rows in the order of a window. All positions are places in this order."""

    rows: int
    permutation: Integers | None
    """Number of the row at each place; ``None``: rows were in order."""
    begins_partition: Mask
    begins_peers: Mask
    """Whether the first row of a partition, or of peers, is at a place."""

    @cached_property
    def starts(self) -> Integers:
        """First places of the partitions."""
        return np.flatnonzero(self.begins_partition)

    @cached_property
    def sizes(self) -> Integers:
        """Rows of the partitions."""
        return np.diff(self.starts, append=self.rows)

    @cached_property
    def places(self) -> Integers:
        """All places, in order."""
        return np.arange(self.rows)

    @cached_property
    def partition(self) -> Integers:
        """Number of each row's partition."""
        return np.repeat(np.arange(len(self.starts)), self.sizes)

    @cached_property
    def first(self) -> Integers:
        """First place of each row's partition."""
        return np.repeat(self.starts, self.sizes)

    @cached_property
    def end(self) -> Integers:
        """Place after the last of each row's partition."""
        return np.repeat(self.starts + self.sizes, self.sizes)

    @cached_property
    def peer_starts(self) -> Integers:
        """First places of peers."""
        return np.flatnonzero(self.begins_peers)

    @cached_property
    def _peers(self) -> Integers:
        return np.diff(self.peer_starts, append=self.rows)

    @cached_property
    def first_peer(self) -> Integers:
        """First place of each row's peers."""
        return np.repeat(self.peer_starts, self._peers)

    @cached_property
    def peer_end(self) -> Integers:
        """Place after the last of each row's peers."""
        return np.repeat(self.peer_starts + self._peers, self._peers)


def sort_rows(partition: Sequence[Codes], order: Sequence[Codes], rows: int) -> SortedRows:
    """Sort rows by partition, then by order; equal ones stay in their order."""
    row_bits = max(1, (rows - 1).bit_length())
    fields = [part for codes in (*partition, *order) for part in _split(codes, _WORD_BITS - row_bits)]
    permutation: Integers | None = None
    while fields:
        taken, bits = [], row_bits
        while fields and bits + fields[-1].bits <= _WORD_BITS:
            taken.append(fields.pop())
            bits += taken[-1].bits
        permutation = _sorted_by(taken[::-1], permutation, row_bits, rows)
    begins = np.zeros(rows, np.bool_)
    begins[0] = True
    for codes in partition:
        begins[1:] |= _changes(codes, permutation)
    peers = begins.copy()
    for codes in order:
        peers[1:] |= _changes(codes, permutation)
    return SortedRows(rows, permutation, begins, peers)


def _split(codes: Codes, most: int) -> list[Codes]:
    """Codes of so many bits at most, the first bits first; none of a constant."""
    parts = []
    for low in range(0, codes.bits, most):
        values = codes.values if low == 0 else codes.values >> np.uint64(low)
        bits = min(most, codes.bits - low)
        parts.append(Codes(values if low + bits == codes.bits else values & np.uint64((1 << bits) - 1), bits))
    return parts[::-1]


def _sorted_by(fields: Sequence[Codes], permutation: Integers | None, row_bits: int, rows: int) -> Integers | None:
    word = np.zeros(rows, np.uint64)
    for field in fields:
        word <<= np.uint64(field.bits)
        word |= field.values if permutation is None else field.values[permutation]
    if (word[1:] >= word[:-1]).all():
        return permutation
    word <<= np.uint64(row_bits)
    word |= np.arange(rows, dtype=np.uint64)
    ordered = pl.Series(word).sort().to_numpy()
    places = (ordered & np.uint64((1 << row_bits) - 1)).view(np.int64)
    return places if permutation is None else permutation[places]


def _changes(codes: Codes, permutation: Integers | None) -> Mask:
    values = codes.values if permutation is None else codes.values[permutation]
    return values[1:] != values[:-1]


def codes_of(series: pl.Series, dtype: pa.DataType, *, descending: bool = False, nulls_first: bool = True) -> Codes:
    """Convert a column to unsigned integers that are ordered as Spark orders its values, and equal where they are.

    NaN is the greatest float, all NaNs are equal, and so are −0.0 and 0.0; text is ordered by bytes.
    """
    present = None if series.null_count() == 0 else series.is_not_null().to_numpy()
    values = _values(series, dtype)
    if len(values) == 0 or (present is not None and not present.any()):
        return Codes(np.zeros(len(values), np.uint64), 0)
    counted = values if present is None else values[present]
    least, most = counted.min(), counted.max()
    span = int(most) - int(least)
    if present is not None and span == (1 << _WORD_BITS) - 1:
        values = np.searchsorted(np.unique(counted), values).astype(np.uint64)
        return _with_nulls(values, int(values.max()), present, descending=descending, nulls_first=nulls_first)
    values = most - values if descending else values - least
    if pat.is_timestamp(dtype):
        values, span = _rounded(values, span, present)
    return _with_nulls(values, span, present, descending=False, nulls_first=nulls_first)


def _with_nulls(values: Words, span: int, present: Mask | None, *, descending: bool, nulls_first: bool) -> Codes:
    if descending:
        values = np.uint64(span) - values
    if present is None:
        return Codes(values, span.bit_length())
    if nulls_first:
        return Codes(np.where(present, values + np.uint64(1), np.uint64(0)), (span + 1).bit_length())
    return Codes(np.where(present, values, np.uint64(span + 1)), (span + 1).bit_length())


def _rounded(values: Words, span: int, present: Mask | None) -> tuple[Words, int]:
    for unit in map(np.uint64, _ROUND_MICROSECONDS):
        counted = values if present is None else values[present]
        if not (counted[:_ROUND_SAMPLE] % unit).any() and not (counted % unit).any():
            return values // unit, span // int(unit)
    return values, span


def _values(series: pl.Series, dtype: pa.DataType) -> Words:
    """Unsigned integers in the order of the values; those of nulls mean nothing."""
    if is_float(dtype):
        return _of_floats(series)
    if series.dtype == pl.Int128:
        narrow = series.cast(pl.Int64, strict=False)
        if narrow.null_count() > series.null_count():
            return _ranks(series, dtype)
        series = narrow
    elif is_text(dtype) or is_bytes(dtype):
        return _ranks(series, dtype)
    integers = series.to_physical().cast(pl.Int64).fill_null(0).to_numpy()
    return integers.view(np.uint64) ^ _SIGN


def _of_floats(series: pl.Series) -> Words:
    single = series.dtype == pl.Float32
    values = series.fill_null(0.0).to_numpy() + (np.float32(0.0) if single else 0.0)  # −0.0 + 0.0 is 0.0
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
