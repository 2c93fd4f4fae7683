"""Whole numbers in blobs: as narrow as the values of a blob allow, and wide again where it is read.

A byte that is exchanged is written, moved and read some ten times on its way from one worker to another; finding the
least and the greatest value of a column is next to nothing beside that. Integers, dates, timestamps and decimals become
integers of 8, 16, 32 or 64 bits. A blob holds its own schema, so each says by itself how narrow its columns are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.errors import CorruptBlobError

_WIDTHS: tuple[pa.DataType, ...] = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def narrowed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Make whole numbers of a batch narrow; columns that would not become narrower stay as they are."""
    if batch.num_rows == 0 or batch.num_columns == 0:
        return batch
    return pa.RecordBatch.from_arrays([_narrow(column) for column in batch.columns], names=batch.schema.names)


def widened(batch: pa.RecordBatch, schema: pa.Schema, origin: str) -> pa.RecordBatch:
    """Give the batch, of the given schema, that :func:`narrowed` was given; ``origin`` is for the error.

    Raises ``CorruptBlobError`` if it cannot have been made of a batch with that schema.
    """
    types = [field.type for field in schema]
    if batch.schema.equals(schema):
        return batch
    if batch.num_columns != len(types):
        raise CorruptBlobError(f"{origin}: holds {batch.num_columns} columns, not {len(types)}")
    columns = []
    for column, dtype in zip(batch.columns, types, strict=True):
        if column.type != dtype and not (_is_whole(dtype) and column.type in _WIDTHS):
            raise CorruptBlobError(f"{origin}: a column is {column.type}, not {dtype}")
        columns.append(column if column.type == dtype else _wide(column, dtype))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _is_whole(dtype: pa.DataType) -> bool:
    return pat.is_signed_integer(dtype) or pat.is_date32(dtype) or pat.is_timestamp(dtype) or pat.is_decimal128(dtype)


def _narrow(column: pa.Array) -> pa.Array:
    if not _is_whole(column.type):
        return column
    whole = _digits(column) if pat.is_decimal128(column.type) else _as_integers(column)
    if whole is None:
        return column
    ends = pc.min_max(whole).as_py()
    least, most = ends["min"] or 0, ends["max"] or 0
    for dtype in _WIDTHS:
        bound = 1 << (dtype.bit_width - 1)
        if dtype.bit_width >= column.type.bit_width:
            break
        if -bound <= least and most < bound:
            return whole if whole.type == dtype else pc.cast(whole, dtype, safe=False)
    return column


def _as_integers(column: pa.Array) -> pa.Array:
    if pat.is_signed_integer(column.type):
        return column
    return column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())


def _digits(column: pa.Array) -> pa.Array | None:
    """The digits of decimals as 64-bit integers; ``None`` if some need more."""
    words = _words(column)
    low, high = words[:, 0], words[:, 1]
    absent = None if column.null_count == 0 else np.asarray(column.is_null())
    wide = high != low >> 63
    if absent is not None:
        wide &= ~absent
    return None if wide.any() else pa.array(np.ascontiguousarray(low), mask=absent)


def _words(column: pa.Array) -> npt.NDArray[np.int64]:
    """The low and the high word of decimals."""
    words = np.frombuffer(column.buffers()[1], "<i8").reshape(-1, 2)
    return words[column.offset : column.offset + len(column)]


def _wide(column: pa.Array, dtype: pa.DataType) -> pa.Array:
    if not pat.is_decimal128(dtype):
        integers = pa.int32() if dtype.bit_width == 32 else pa.int64() if dtype.bit_width == 64 else dtype
        wide = pc.cast(column, integers, safe=False)
        return wide if integers == dtype else wide.view(dtype)
    values = pc.cast(column, pa.int64(), safe=False)
    low = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values)]
    words = np.empty((len(low), 2), np.int64)
    words[:, 0] = low
    np.right_shift(low, 63, out=words[:, 1])
    validity = None if column.null_count == 0 else pc.is_valid(column).buffers()[1]
    return pa.Array.from_buffers(dtype, len(low), [validity, pa.py_buffer(words)], column.null_count)
