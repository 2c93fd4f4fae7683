"""Converts between Arrow's bitmaps and NumPy's bytes: validity, booleans, fixed-width values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

_NUMPY_WIDTHS = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}


def fixed_width(dtype: pa.DataType) -> int | None:
    """Bytes of a value in a flat type of whole bytes; ``None`` for bits, variable-width and nested types."""
    if pat.is_primitive(dtype) or pat.is_decimal(dtype) or pat.is_fixed_size_binary(dtype) or pat.is_interval(dtype):
        bits = dtype.bit_width
        return bits // 8 if bits and bits % 8 == 0 else None
    return None


def values_of(array: pa.Array, width: int) -> npt.NDArray[Any]:
    """The values of a fixed-width array as opaque items of ``width`` bytes; arbitrary under nulls."""
    dtype = np.dtype(_NUMPY_WIDTHS.get(width, f"V{width}"))
    return view(array, dtype)


def view(array: pa.Array, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The data buffer of a flat array as NumPy values, without copying."""
    dtype = np.dtype(dtype)
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype, count=len(array), offset=array.offset * dtype.itemsize)


def validity(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Mask of the values that are not null, a byte for each; ``None`` if there are no nulls."""
    if array.null_count == 0:
        return None
    bitmap = array.buffers()[0]
    if bitmap is None:
        return np.zeros(len(array), np.bool_)
    first = array.offset // 8
    bits = np.frombuffer(bitmap, np.uint8)[first : (array.offset + len(array) + 7) // 8]
    lead = array.offset % 8
    return np.unpackbits(bits, count=lead + len(array), bitorder="little")[lead:].view(np.bool_)


def take_bits(buffer: pa.Buffer, offset: int, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Gather bits of a bitmap as bytes of 0 or 1; negative positions read the first bit."""
    at = indices + offset if offset else indices
    bits = np.take(np.frombuffer(buffer, np.uint8), at >> 3, mode="clip")
    bits >>= (at & 7).astype(np.uint8)
    bits &= 1
    return bits


def packed(mask: npt.NDArray[Any]) -> pa.Buffer:
    """Convert a mask to an Arrow bitmap."""
    return pa.py_buffer(np.packbits(mask, bitorder="little"))
