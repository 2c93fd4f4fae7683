"""Handles Arrow text that may be no UTF-8, which is valid data for Spark but not for most functions of libraries."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import InvalidTextError
from gpujoin.model.types import is_text

_BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
_CHARACTERS = {dtype: text for text, dtype in _BYTES.items()}


def is_utf8(array: pa.Array | pa.ChunkedArray) -> bool:
    """Whether a text column is UTF-8. Arrow's check takes about as long as copying the data."""
    if isinstance(array, pa.ChunkedArray):
        return all(map(is_utf8, array.chunks))
    if pat.is_dictionary(array.type):
        return is_utf8(array.dictionary)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def as_bytes(text: pa.Array) -> pa.Array:
    """View text as bytes, without copying."""
    return text.view(_BYTES[text.type])


def as_characters(values: pa.Array) -> pa.Array:
    """View bytes as text, without checking or copying."""
    return values.view(_CHARACTERS[values.type])


def check_utf8(array: pa.Array, reader: object) -> None:
    """Raise ``InvalidTextError`` for text that is no UTF-8, before the function ``reader`` reads its characters."""
    if is_text(array.type) and not is_utf8(array):
        raise InvalidTextError(f"{reader} reads the characters of a text that is no UTF-8, which only Spark does")
