"""Arrow text that may be no UTF-8: to Spark it is data like any other, to most functions of libraries undefined."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import InvalidTextError
from gpujoin.model.types import is_text

_BYTES = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}
_CHARACTERS = {dtype: text for text, dtype in _BYTES.items()}


def is_utf8(array: pa.Array | pa.ChunkedArray) -> bool:
    """Tell whether a text column is UTF-8; Arrow's own check of 1 GB takes about as long as copying it."""
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
    """The same buffers as bytes."""
    return text.view(_BYTES[text.type])


def as_characters(values: pa.Array) -> pa.Array:
    """The same buffers as text, whatever is in them."""
    return values.view(_CHARACTERS[values.type])


def check_utf8(array: pa.Array, reader: object) -> None:
    """Refuse text that is no UTF-8, for a function that reads characters.

    Parameters
    ----------
    array : pyarrow.Array
        What the function reads; only text is looked at.
    reader : object
        Names the function.

    Raises
    ------
    InvalidTextError
        If there is such text.
    """
    if is_text(array.type) and not is_utf8(array):
        raise InvalidTextError(
            f"{reader}: reads characters, and a text is no UTF-8; use a binary column, or leave the query to Spark"
        )
