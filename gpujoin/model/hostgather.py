"""Gathers rows of Arrow data of any type on the host, concatenates batches, and measures their true size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.model.layouts import in_known_layout, in_type, nulls
from gpujoin.model.types import is_list, wide_offsets

Sizes = npt.NDArray[np.int64]

SMALL_OFFSETS = (1 << 31) - 1
"""Bytes, or values, that 32-bit offsets reach to."""
_VIEW_BYTES = 16
_INLINE_BYTES = 12
"""Values up to this length are stored in the view itself (Arrow's layout of views)."""
NBYTES_OF_VIEWS = tuple(map(int, pa.__version__.split(".")[:2])) >= (26, 0)
"""Whether PyArrow measures views."""


def take(array: pa.Array, rows: pa.Array) -> pa.Array:
    """Gather rows of an array of any type; a null row number gives a null.

    Arrow's own ``take`` supports neither views nor run-end encoding, at any depth. Such arrays are converted to a type
    that it supports, and back.
    """
    if pat.is_dictionary(array.type):
        return pa.DictionaryArray.from_arrays(
            pc.take(array.indices, rows), array.dictionary, ordered=array.type.ordered
        )
    plain = in_known_layout(array)
    gathered = pc.take(plain, rows)
    return gathered if plain is array else in_type(gathered, array.type)


def take_rows(batch: pa.RecordBatch, rows: pa.Array) -> pa.RecordBatch:
    """Gather rows of a batch; see :func:`take`."""
    return pa.RecordBatch.from_arrays([take(column, rows) for column in batch.columns], schema=batch.schema)


def buffer_bytes(data: pa.RecordBatch | pa.Table | pa.ChunkedArray | pa.Array) -> int:
    """Bytes of the buffers of Arrow data, as its ``nbytes`` counts them in PyArrow 26.

    Of views PyArrow 25.0 and 24 may crash, and older ones fail. Those of a view's data buffers are counted whole.
    """
    if NBYTES_OF_VIEWS:
        return int(data.nbytes)
    if isinstance(data, pa.ChunkedArray):
        return sum(_buffer_bytes(chunk) for chunk in data.chunks)
    return _buffer_bytes(data) if isinstance(data, pa.Array) else sum(buffer_bytes(column) for column in data.columns)


def _buffer_bytes(array: pa.Array) -> int:
    if not _has_views(array.type):
        return int(array.nbytes)
    if not _is_view(array.type):
        return int(array.get_total_buffer_size())
    mask, _, *data = array.buffers()
    first, last = array.offset // 8, (array.offset + len(array) + 7) // 8
    return len(array) * _VIEW_BYTES + (0 if mask is None else last - first) + sum(b.size for b in data if b is not None)


def own_bytes(data: pa.RecordBatch | pa.Table) -> int:
    """Bytes of the rows of a batch or table. A view counts the bytes it points to, not the whole buffer."""
    chunks = (chunk for c in data.columns for chunk in (c.chunks if isinstance(c, pa.ChunkedArray) else (c,)))
    return sum(_own_bytes(chunk) for chunk in chunks)


def compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy the columns of views whose buffers hold much more than the batch's rows."""
    loose = {i for i, c in enumerate(batch.columns) if _is_view(c.type) and 2 * _own_bytes(c) < buffer_bytes(c)}
    if not loose:
        return batch
    columns = [in_type(in_known_layout(c), c.type) if i in loose else c for i, c in enumerate(batch.columns)]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _own_bytes(array: pa.Array) -> int:
    views = array.buffers()[1] if _is_view(array.type) else None
    if views is None:
        return buffer_bytes(array)
    lengths = np.frombuffer(views, np.int32)[array.offset * 4 :][: len(array) * 4 : 4]
    if array.null_count:
        lengths = lengths[pc.is_valid(array).to_numpy(zero_copy_only=False)]
    return len(array) * _VIEW_BYTES + int(lengths[lengths > _INLINE_BYTES].sum(dtype=np.int64))


def _is_view(dtype: pa.DataType) -> bool:
    return bool(pat.is_string_view(dtype) or pat.is_binary_view(dtype))


def _has_views(dtype: pa.DataType) -> bool:
    if isinstance(dtype, pa.BaseExtensionType):
        return _has_views(dtype.storage_type)
    if pat.is_dictionary(dtype):
        return _has_views(dtype.value_type)
    return _is_view(dtype) or any(_has_views(dtype.field(i).type) for i in range(dtype.num_fields))


def row_bytes(array: pa.Array) -> Sizes | None:
    """Bytes of variable-width data in each row; ``None`` for types without any.

    Items of lists count; offsets and validity do not.
    """
    dtype = array.type
    if isinstance(array, pa.ExtensionArray):
        return row_bytes(array.storage)
    if pat.is_struct(dtype):
        fields = (row_bytes(field) for field in array.flatten())
        return _sum([sizes for sizes in fields if sizes is not None])
    if pat.is_map(dtype):
        return _list_bytes(array, _entries(array))
    if is_list(dtype):
        return _list_bytes(array, array.values)
    if pat.is_fixed_size_list(dtype):
        items = row_bytes(array.values)
        if items is None or dtype.list_size == 0:
            return None
        first = array.offset * dtype.list_size
        return items[first : first + len(array) * dtype.list_size].reshape(len(array), -1).sum(axis=1)
    if pat.is_run_end_encoded(dtype) or _is_view(dtype):
        return row_bytes(in_known_layout(array))
    if _is_bytes_like(dtype):
        return pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return None


def most_values(array: pa.Array) -> int:
    """Count the values of an array, or of the items of its lists at some depth, if these are more."""
    dtype = array.type
    if isinstance(array, pa.ExtensionArray):
        return most_values(array.storage)
    children: list[pa.Array] = []
    if pat.is_struct(dtype):
        children = [array.field(i) for i in range(dtype.num_fields)]
    elif len(array) and (pat.is_map(dtype) or is_list(dtype)):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        items = [array.keys, array.items] if pat.is_map(dtype) else [array.values]
        children = [each.slice(first, last - first) for each in items]
    return max([len(array), *map(most_values, children)])


def _is_bytes_like(dtype: pa.DataType) -> bool:
    return pat.is_string(dtype) or pat.is_large_string(dtype) or pat.is_binary(dtype) or pat.is_large_binary(dtype)


def _entries(array: Any) -> pa.Array:
    return pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])


def _list_bytes(array: Any, items: pa.Array) -> Sizes:
    """Bytes of the list items of each row, fixed-width and variable-width."""
    if len(array) == 0:
        return np.zeros(0, np.int64)
    offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    lengths = np.diff(offsets)
    lengths[pc.is_null(array).to_numpy(zero_copy_only=False)] = 0
    total = lengths * _fixed_width(items.type)
    sizes = row_bytes(items)
    if sizes is not None:
        upto = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        inner = upto[offsets[1:]] - upto[offsets[:-1]]
        total += np.where(lengths > 0, inner, 0)
    return total


def _fixed_width(dtype: pa.DataType) -> int:
    """Bytes of an item that do not depend on its value; at least one, since a list may hold any number of nulls."""
    if pat.is_struct(dtype):
        return max(1, sum(_fixed_width(f.type) for f in dtype))
    try:
        return max(1, dtype.bit_width // 8)
    except ValueError:
        return 1


def _sum(parts: list[Sizes]) -> Sizes | None:
    return np.sum(parts, axis=0) if parts else None


def one_batch(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Concatenate batches; a single batch is not copied.

    Text, bytes and lists of more than 2 GiB in all, also inside other types, get 64-bit offsets, and the schema of the
    result differs accordingly. Maps have no 64-bit form.
    """
    if len(batches) == 1:
        return batches[0]
    if not batches:
        columns = [nulls(0, field.type) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    if len(schema) == 0:
        return pa.record_batch({"rows": pa.nulls(sum(b.num_rows for b in batches))}).select([])
    wide = pa.schema([f.with_type(wide_offsets(f.type)) for f in schema], schema.metadata)
    if wide != schema and sum(map(buffer_bytes, batches)) >= SMALL_OFFSETS:
        batches = [
            pa.RecordBatch.from_arrays([in_type(c, f.type) for c, f in zip(b.columns, wide, strict=True)], schema=wide)
            for b in batches
        ]
    return pa.concat_batches(batches)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Concatenate the chunks of a column; a single chunk is not copied."""
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)
