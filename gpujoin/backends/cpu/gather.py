"""Gathers rows of a frame by a row map.

Flat values go through `numpy.take`, which was fastest for them in `benchmarks/engine/algorithms.py`, everything else
through Arrow's own take.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.backends.cpu.bits import fixed_width, packed, take_bits, validity, values_of, view
from gpujoin.backends.cpu.frame import Frame
from gpujoin.backends.cpu.memory import empty
from gpujoin.backends.cpu.rowmaps import IndexArray, Mask, as_indices
from gpujoin.model.hostgather import buffer_bytes
from gpujoin.model.maps import AllNull, Indices, OutOfBounds, RowMap, Span, Tile

_UNCHECKED = pc.TakeOptions(boundscheck=False)
_TILE_PIECES = 64
"""A tiled side of at most so many slices is concatenated; one of more slices is gathered by index."""


def can_gather(dtype: pa.DataType) -> bool:
    """Whether a type, and every type within it, can be gathered here."""
    if isinstance(dtype, pa.BaseExtensionType):
        return can_gather(dtype.storage_type)
    return _is_view(dtype) or _arrow_takes(dtype)


def _arrow_takes(dtype: pa.DataType) -> bool:
    if isinstance(dtype, pa.BaseExtensionType):
        return _arrow_takes(dtype.storage_type)
    if pat.is_run_end_encoded(dtype) or _is_view(dtype):
        return False
    if pat.is_dictionary(dtype):
        return _arrow_takes(dtype.value_type)
    return all(_arrow_takes(dtype.field(i).type) for i in range(dtype.num_fields))


def _is_view(dtype: pa.DataType) -> bool:
    return bool(pat.is_string_view(dtype) or pat.is_binary_view(dtype))


def gather(frame: Frame, rows: RowMap) -> Frame:
    """Gather rows of a frame by a map; the row is null where the map has none."""
    if not frame.columns:
        return Frame((), rows.length)
    match rows:
        case Span(start, length):
            if start == 0 and length == frame.rows:
                return frame
            return Frame(tuple(column.slice(start, length) for column in frame.columns), length)
        case AllNull(length):
            return Frame(tuple(nulls(length, column.type) for column in frame.columns), length)
        case Tile(start, length, period, chosen) if length and -(-length // period) < _TILE_PIECES:
            if chosen is not None:
                frame = gather(frame, Indices(chosen, period))
            return Frame(tuple(_tiled(column, start, length, period) for column in frame.columns), length)
        case Indices(_, length, OutOfBounds.NULLIFY) if frame.rows == 0:
            return Frame(tuple(nulls(length, column.type) for column in frame.columns), length)
    return Frame(_gathered(frame, RowPositions(rows)), rows.length)


def _gathered(frame: Frame, row_positions: RowPositions) -> tuple[pa.Array, ...]:
    widths = [fixed_width(column.type) if len(column) else None for column in frame.columns]
    flat = {i: values_of(frame.columns[i], width) for i, width in enumerate(widths) if width is not None}
    store = frame.store.get(list(flat.values()), len(row_positions.indices))
    if store is not None:
        values = dict(zip(flat, store.take(row_positions.positions), strict=True))
    else:
        values = {i: row_positions.values(source) for i, source in flat.items()}
    return tuple(
        row_positions.with_validity(column, values[i]) if i in values else row_positions.column(column)
        for i, column in enumerate(frame.columns)
    )


def nulls(length: int, dtype: pa.DataType) -> pa.Array:
    """Array of nulls."""
    if isinstance(dtype, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(dtype, nulls(length, dtype.storage_type))
    return pa.nulls(length, dtype)


def _tiled(column: pa.Array, start: int, length: int, period: int) -> pa.Array:
    pieces = []
    at = start % period
    while length:
        piece = column.slice(at, min(length, period - at))
        pieces.append(piece)
        length -= len(piece)
        at = 0
    return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)


class RowPositions:
    """The indices of a map, in the forms that columns of various types need; each form is made once."""

    def __init__(self, rows: RowMap) -> None:
        self.indices: IndexArray = as_indices(rows)
        self.checked = isinstance(rows, Indices) and rows.out_of_bounds is OutOfBounds.NULLIFY

    @cached_property
    def present(self) -> Mask | None:
        """Mask of the entries that have a row; ``None`` if all have."""
        if not self.checked:
            return None
        mask = self.indices >= 0
        return None if mask.all() else mask

    @cached_property
    def validity(self) -> pa.Buffer | None:
        """:attr:`present` as a bitmap."""
        return None if self.present is None else packed(self.present)

    @cached_property
    def positions(self) -> npt.NDArray[np.intp]:
        """The indices in the type that NumPy takes without conversion."""
        if self.indices.dtype == np.intp:
            return self.indices
        positions = empty(len(self.indices), np.intp)
        positions[:] = self.indices
        return positions

    @cached_property
    def arrow(self) -> pa.Array:
        """The indices as an Arrow array, null where there is no row."""
        indices = np.ascontiguousarray(self.indices)
        dtype = pa.int32() if indices.itemsize == 4 else pa.int64()
        return pa.Array.from_buffers(dtype, len(indices), [self.validity, pa.py_buffer(indices)])

    def values(self, source: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Gather fixed-width values; arbitrary where there is no row."""
        return np.take(source, self.positions, out=empty(len(self.positions), source.dtype), mode="clip")

    def with_validity(self, array: pa.Array, values: npt.NDArray[Any]) -> pa.Array:
        """Make an array of values gathered from a flat array, with their validity."""
        return pa.Array.from_buffers(array.type, len(values), [self._validity_of(array), pa.py_buffer(values)])

    def column(self, array: pa.Array) -> pa.Array:
        """Gather a column that is not of fixed width."""
        if pat.is_boolean(array.type):
            return self._booleans(array)
        if _is_view(array.type):
            return self._views(array)
        return pc.call_function("take", [array, self.arrow], _UNCHECKED)

    def _views(self, array: pa.Array) -> pa.Array:
        """Gather views; the data that they point to is shared."""
        if not len(array):
            return nulls(len(self.indices), array.type)
        views = self.values(view(array, "V16"))
        buffers = [self._validity_of(array), pa.py_buffer(views), *array.buffers()[2:]]
        return pa.Array.from_buffers(array.type, len(views), buffers)

    def _booleans(self, array: pa.Array) -> pa.Array:
        data = array.buffers()[1]
        if data is None or not len(array):
            return pc.call_function("take", [array, self.arrow], _UNCHECKED)
        bits = take_bits(data, array.offset, self._never_negative)
        return pa.Array.from_buffers(pa.bool_(), len(bits), [self._validity_of(array), packed(bits)])

    @cached_property
    def _never_negative(self) -> npt.NDArray[np.intp]:
        return self.positions if self.present is None else np.maximum(self.positions, 0)

    def _validity_of(self, array: pa.Array) -> pa.Buffer | None:
        bitmap = array.buffers()[0]
        if array.null_count == 0 or bitmap is None:
            return self.validity
        bits = take_bits(bitmap, array.offset, self._never_negative)
        if self.present is not None:
            bits &= self.present.view(np.uint8)
        return packed(bits)


def gathered_bytes(frame: Frame, rows: RowMap) -> tuple[int, ...]:
    """Exact bytes of data of each variable-width column after :func:`gather`, without offsets; zero for others."""
    if isinstance(rows, AllNull) or not rows.length:
        return (0,) * len(frame.columns)
    if isinstance(rows, Span):
        return tuple(
            int(np.diff(_bytes_before(column, np.array([rows.start, rows.start + rows.length])))[0])
            if _has_variable_width(column.type) else 0
            for column in frame.columns
        )  # fmt: skip
    if not any(_has_variable_width(column.type) for column in frame.columns):
        return (0,) * len(frame.columns)
    indices = as_indices(rows).astype(np.int64, copy=False)
    if isinstance(rows, Indices) and rows.out_of_bounds is OutOfBounds.NULLIFY:
        indices = indices[indices >= 0]
    return tuple(_taken_bytes(column, indices) for column in frame.columns)


def _taken_bytes(column: pa.Array, indices: npt.NDArray[np.int64]) -> int:
    if not _has_variable_width(column.type) or not len(indices):
        return 0
    valid = validity(column)
    if valid is not None:
        indices = indices[valid[indices]]
    return int((_bytes_before(column, indices + 1) - _bytes_before(column, indices)).sum())


def _has_variable_width(dtype: pa.DataType) -> bool:
    if isinstance(dtype, pa.BaseExtensionType):
        return _has_variable_width(dtype.storage_type)
    if pat.is_struct(dtype):
        return any(_has_variable_width(field.type) for field in dtype)
    if pat.is_fixed_size_list(dtype):
        return _has_variable_width(dtype.value_type)
    if pat.is_dictionary(dtype) or pat.is_null(dtype):
        return False
    return fixed_width(dtype) is None and not pat.is_boolean(dtype)


def _bytes_before(array: pa.Array, at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Bytes of data before each position, up to a constant."""
    dtype = array.type
    if isinstance(array, pa.ExtensionArray):
        return _bytes_before(array.storage, at)
    if pat.is_string(dtype) or pat.is_binary(dtype):
        return _offsets(array, np.int32)[at].astype(np.int64)
    if pat.is_large_string(dtype) or pat.is_large_binary(dtype):
        return _offsets(array, np.int64)[at]
    if pat.is_list(dtype) or pat.is_map(dtype):
        child = array.values if pat.is_list(dtype) else _entries(array)
        return _bytes_before(child, _offsets(array, np.int32)[at].astype(np.int64))
    if pat.is_large_list(dtype):
        return _bytes_before(array.values, _offsets(array, np.int64)[at])
    if pat.is_fixed_size_list(dtype):
        return _bytes_before(array.values, (at + array.offset) * dtype.list_size)
    if pat.is_struct(dtype):
        total = np.zeros(len(at), np.int64)
        for i in range(dtype.num_fields):
            total += _bytes_before(array.field(i), at)
        return total
    width = fixed_width(dtype)
    if width is not None:
        return at * width
    if pat.is_boolean(dtype) or pat.is_null(dtype) or pat.is_dictionary(dtype):
        return at >> 3
    return _scanned_bytes_before(array)[at]


def _entries(array: pa.MapArray) -> pa.Array:
    return pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])


def _offsets(array: pa.Array, dtype: type[np.signedinteger]) -> npt.NDArray[np.int64]:
    buffer = array.buffers()[1]
    if buffer is None or buffer.size == 0:
        return np.zeros(len(array) + 1, dtype)
    return np.frombuffer(buffer, dtype)[array.offset : array.offset + len(array) + 1]


def _scanned_bytes_before(array: pa.Array) -> npt.NDArray[np.int64]:
    """Bytes of data before each position, for layouts whose data is not in row order: views and unions."""
    dtype = array.type
    before = np.zeros(len(array) + 1, np.int64)
    if _is_view(dtype):
        # A view begins with its length; Arrow has no kernel that reads it, and a null's may be anything.
        views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, 4)
        lengths = views[array.offset : array.offset + len(array), 0]
        np.cumsum(lengths if array.null_count == 0 else np.where(array.is_valid(), lengths, 0), out=before[1:])
    elif pat.is_list_view(dtype) or pat.is_large_list_view(dtype):
        width = np.int32 if pat.is_list_view(dtype) else np.int64
        first = view(array, width).astype(np.int64)
        sizes = np.frombuffer(array.buffers()[2], width)[array.offset :][: len(array)].astype(np.int64)
        inner = _bytes_before(array.values, first + sizes) - _bytes_before(array.values, first)
        np.cumsum(inner, out=before[1:])
    else:
        mean = buffer_bytes(array) / max(1, len(array))
        before = np.ceil(np.arange(len(array) + 1) * mean).astype(np.int64)
    return before
