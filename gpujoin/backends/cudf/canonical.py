"""Encodes key columns as integer words with array operations, for joins without the kernels of ``normalise.cu``.

Nothing here imports CuPy; see :mod:`gpujoin.backends.cudf.arrays`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.arrays import Array
from gpujoin.launch.normalise import ONE_WORD_DIGITS, KeyColumn, Kind


def takes_key(dtype: pa.DataType) -> bool:
    """Whether key columns of a type are normalised on the device.

    All types are, but nested ones, 256-bit decimals, half floats and nulls, which the engine codes on the host.
    """
    if pat.is_decimal(dtype):
        return bool(dtype.bit_width <= 128)
    temporal = pat.is_temporal(dtype) and not pat.is_interval(dtype)
    return bool(
        temporal or pat.is_boolean(dtype) or pat.is_integer(dtype) or pat.is_float32(dtype) or pat.is_float64(dtype)
        or pat.is_large_string(dtype) or pat.is_large_binary(dtype) or pat.is_string(dtype) or pat.is_binary(dtype)
    )  # fmt: skip


def words(xp: Any, column: KeyColumn) -> list[Array]:
    """Encode a key column of fixed width as int32 or int64 words that are equal exactly if the keys are.

    Words of null rows that match nothing are arbitrary. In a null-safe column, nulls have words of zero, and an
    additional word tells nulls from zeros.
    """
    column_words = _words(xp, column)
    if not column.null_safe:
        return column_words
    if column.valid is None:
        return [*column_words, xp.zeros(column.rows, dtype=xp.int32)]
    return [
        *(xp.where(column.valid, word, word.dtype.type(0)) for word in column_words),
        null_flag(xp, column),
    ]


def null_flag(xp: Any, column: KeyColumn) -> Array:
    """Word of the nulls of a null-safe column: 1 for null, else 0."""
    if column.valid is None:
        return xp.zeros(column.rows, dtype=xp.int32)
    return (~column.valid).astype(xp.int32)


def may_match(columns: tuple[KeyColumn, ...]) -> Array | None:
    """Mask of the rows that may have a match; ``None``: all."""
    masks = [c.valid for c in columns if c.valid is not None and not c.null_safe]
    if not masks:
        return None
    valid = masks[0]
    for mask in masks[1:]:
        valid = valid & mask
    return valid


def _words(xp: Any, column: KeyColumn) -> list[Array]:
    values = column.values
    if column.kind is Kind.DECIMAL:
        count = 1 if column.digits is not None and column.digits <= ONE_WORD_DIGITS else 2
        return [xp.ascontiguousarray(values[:, word]).view(xp.int64) for word in range(count)]
    if column.kind is Kind.FLOAT:
        return [float_bits(xp, values)]
    return [values if values.dtype.itemsize >= np.dtype(np.int32).itemsize else values.astype(xp.int32)]


def float_bits(xp: Any, values: Array) -> Array:
    """Bits of floats, with −0.0 as 0.0 and a single NaN, by integer operations, which flush nothing to zero."""
    kind = np.dtype(f"int{8 * values.dtype.itemsize}")
    real = np.dtype(f"float{8 * values.dtype.itemsize}").type
    infinity, nan = (int(np.array(v, real).view(kind)) for v in (np.inf, np.nan))
    bits = values.view(kind)
    magnitude = bits & kind.type(np.iinfo(kind).max)
    bits = xp.where(magnitude == 0, kind.type(0), bits)
    return xp.where(magnitude > infinity, kind.type(nan), bits)
