"""Order-preserving codes: converts values of any ordered type to 64-bit integers that compare as the values in Spark.

Numbers of up to 64 bits, dates and times are their own codes. The bits of floats are changed to ascend with the value
(−0.0 is 0.0, every NaN is the same and greater than all else). Text, bytes and wide decimals do not fit 64 bits. Their
code is twice their rank among the distinct values of the build side, so that odd codes are left for probe values that
lie between two build values. An example::

    build   b  d  b  f     distinct values b d f     codes 0 2 0 4
    probe   a  c  d                                  codes -1 1 2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.model.ranges import LEAST
from gpujoin.model.types import is_bytes, is_text, is_wide_decimal

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class OrderCodec:
    """Converts values of one type to codes."""

    dtype: pa.DataType
    distinct: pa.Array | None
    """Distinct values of the build side, ascending, where codes are ranks; ``None`` for other types."""

    @classmethod
    def fit(cls, values: pa.Array) -> OrderCodec:
        """Make the codec of a build side's values."""
        if not by_rank(values.type):
            return cls(values.type, None)
        distinct = pc.unique(values.drop_null())
        return cls(values.type, distinct.take(pc.sort_indices(distinct)))

    def codes(self, values: pa.Array) -> tuple[Codes, npt.NDArray[np.bool_] | None]:
        """Codes and validity mask of values; a mask of ``None``: all are valid."""
        valid = None if values.null_count == 0 else pc.is_valid(values).to_numpy(zero_copy_only=False)
        if self.distinct is None:
            return _own_codes(values), valid
        return self._ranks(values), valid

    def _ranks(self, values: pa.Array) -> Codes:
        encoded = values.dictionary_encode()
        values_once = encoded.dictionary
        assert self.distinct is not None
        all_values = pa.concat_arrays([self.distinct, values_once])
        order = pc.sort_indices(all_values).to_numpy()
        is_distinct = order < len(self.distinct)
        at_most = np.empty(len(all_values), np.int64)
        at_most[order] = np.cumsum(is_distinct)
        if len(values_once) == 0:
            return np.zeros(len(values), np.int64)
        # Arrow's sort is not promised to be stable: a value equal to a known one is found by equality.
        exact = pc.index_in(values_once, self.distinct)
        known_at = pc.fill_null(exact, -1).to_numpy()
        at_most = at_most[len(self.distinct) :]
        codes = np.where(known_at >= 0, 2 * known_at.astype(np.int64), 2 * at_most - 1)
        indices = pc.fill_null(encoded.indices, 0).to_numpy()
        return codes[indices]


def by_rank(dtype: pa.DataType) -> bool:
    """Whether values of a type do not fit 64 bits, so that codes are ranks."""
    return is_wide_decimal(dtype) or is_text(dtype) or is_bytes(dtype)


def _own_codes(values: pa.Array) -> Codes:
    dtype = values.type
    if pat.is_boolean(dtype):
        return _raw(pc.fill_null(values, False).cast(pa.int8()), np.int8).astype(np.int64)
    if pat.is_floating(dtype):
        return _float_codes(values)
    if pat.is_decimal(dtype):
        words = dtype.bit_width // 64
        if words == 0:
            return _raw(values, np.int32).astype(np.int64)
        wide = _raw(values, np.int64, words).reshape(-1, words)
        return np.ascontiguousarray(wide[:, 0])
    if pat.is_uint64(dtype):
        return _raw(values, np.uint64).view(np.int64) ^ np.int64(LEAST)
    if pat.is_unsigned_integer(dtype):
        return _raw(values, f"u{dtype.bit_width // 8}").astype(np.int64)
    return _raw(values, f"i{dtype.bit_width // 8}").astype(np.int64)


def _float_codes(values: pa.Array) -> Codes:
    if pat.is_float16(values.type):
        values = values.cast(pa.float32())
    kind = np.float32 if pat.is_float32(values.type) else np.float64
    with np.errstate(invalid="ignore"):
        numbers = _raw(values, kind) + kind(0.0)  # −0.0 + 0.0 is 0.0
    numbers[np.isnan(numbers)] = np.nan  # a positive one: its bits are above those of infinity
    bits = numbers.view(f"i{numbers.itemsize}")
    negative = bits < 0
    bits[negative] ^= np.iinfo(bits.dtype).max
    return bits.astype(np.int64)


def _raw(values: pa.Array, dtype: npt.DTypeLike, words: int = 1) -> npt.NDArray[Any]:
    """Data of a fixed-width array, arbitrary for nulls."""
    buffer = values.buffers()[1]
    if buffer is None or len(values) == 0:
        return np.zeros(len(values) * words, dtype)
    return np.frombuffer(buffer, dtype)[values.offset * words :][: len(values) * words]
