"""The CPU backend's table: contiguous Arrow arrays and a row count."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.rowstore import RowStoreCache
from gpujoin.model.hostgather import SMALL_OFFSETS, buffer_bytes
from gpujoin.model.layouts import in_type
from gpujoin.model.types import wide_offsets

_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Frame:
    """Columns of one length."""

    columns: tuple[pa.Array, ...]
    """Contiguous arrays with buffers aligned to 8 bytes. Types with 32-bit offsets become large where the data needs
    it."""
    rows: int
    """Row count, known also without columns."""
    store: RowStoreCache = field(default_factory=RowStoreCache, compare=False, repr=False)
    """Row-wise copy of the fixed-width columns, made when it pays."""

    @property
    def nbytes(self) -> int:
        """Bytes of data the columns refer to."""
        return sum(map(buffer_bytes, self.columns))


def from_arrow(table: pa.Table) -> Frame:
    """Convert a table to a frame. A column of one aligned chunk is not copied."""
    return Frame(tuple(_aligned(_one_array(column)) for column in table.columns), table.num_rows)


def to_batch(frame: Frame, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a frame to a batch of exactly this schema, by position where a column's type differs."""
    if not len(schema):
        return _batch_without_columns(frame.rows, schema)
    arrays = [in_type(column, field.type) for column, field in zip(frame.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def anonymous_batch(frame: Frame) -> pa.RecordBatch:
    """The columns as a batch, named by position."""
    return pa.RecordBatch.from_arrays(list(frame.columns), names=[str(i) for i in range(len(frame.columns))])


def _batch_without_columns(rows: int, schema: pa.Schema) -> pa.RecordBatch:
    counted = pa.RecordBatch.from_arrays([pa.nulls(rows)], names=["rows"]).select([])
    return counted.replace_schema_metadata(schema.metadata)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return pa.array([], column.type)
    if pat.is_dictionary(column.type):
        column = column.unify_dictionaries()
    if _variable(column.type) and buffer_bytes(column) > SMALL_OFFSETS:
        wide = wide_offsets(column.type)
        column = pa.chunked_array([in_type(chunk, wide) for chunk in column.chunks], wide)
    return pa.concat_arrays(column.chunks)


def _variable(dtype: pa.DataType) -> bool:
    return bool(pat.is_string(dtype) or pat.is_binary(dtype) or pat.is_nested(dtype))


def _aligned(array: pa.Array) -> pa.Array:
    """Copy an array unless it is aligned: NumPy copies an unaligned operand on every use."""
    if pat.is_nested(array.type) or pat.is_union(array.type) or isinstance(array, pa.ExtensionArray):
        return array
    buffers = array.buffers()
    if pat.is_dictionary(array.type) or all(b is None or b.address % _ALIGNMENT == 0 for b in buffers):
        return array
    moved = [None if b is None else _copied(b) for b in buffers]
    return pa.Array.from_buffers(array.type, len(array), moved, array.null_count, array.offset)


def _copied(buffer: pa.Buffer) -> pa.Buffer:
    return pa.py_buffer(np.frombuffer(buffer, np.uint8).copy())
