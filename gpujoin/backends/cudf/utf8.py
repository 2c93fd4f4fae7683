"""Tells whether texts on the device are UTF-8, by array operations over their bytes.

Spark takes text as it is, UTF-8 or not, and libcudf reads the characters of other bytes in its own way. So a function
that reads characters is computed on the device for UTF-8 alone. An example: ``E2 61 61`` announces a character of three
bytes, of which libcudf makes one, and Spark three.

Nothing here imports CuPy; see :mod:`gpujoin.backends.cudf.arrays`.
"""

from __future__ import annotations

from typing import Any

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.ordered.reductions import any_true

_SECOND_BYTES = ((0xE0, 0xA0, 0xBF), (0xED, 0x80, 0x9F), (0xF0, 0x90, 0xBF), (0xF4, 0x80, 0x8F))
"""First bytes after which not every second byte is allowed, and which are: no character has two encodings, and
surrogates are none."""


def is_ascii(offsets: Array, data: Array) -> bool:
    """Whether all texts are ASCII, nulls included; the parameters are those of :func:`is_utf8`."""
    if int(offsets.shape[0]) < 2:
        return True
    text = data[int(offsets[0]) : int(offsets[-1])]
    return not int(text.shape[0]) or int(text.max()) < 0x80


def is_utf8(xp: Any, offsets: Array, data: Array) -> bool:
    """Whether all texts are UTF-8, nulls included.

    Parameters
    ----------
    xp
        The array module.
    offsets
        First byte of each text, and the end of the last one.
    data
        The bytes.
    """
    if is_ascii(offsets, data):
        return True
    first, end = int(offsets[0]), int(offsets[-1])
    text = data[first:end]
    continues = (text & 0xC0) == 0x80
    of_two, of_three = (text >= 0xC2) & (text <= 0xDF), (text & 0xF0) == 0xE0
    of_four = (text >= 0xF0) & (text <= 0xF4)
    longer = of_three | of_four
    if any_true((text >= 0xC0) & ~(of_two | longer)):
        return False
    # A byte past the end must not be awaited either, so there are three places more.
    awaited = xp.zeros(end - first + 3, dtype=bool)
    awaited[1:-2] |= of_two | longer
    awaited[2:-1] |= longer
    awaited[3:] |= of_four
    if any_true(awaited[end - first :]) or any_true(awaited[: end - first] != continues):
        return False
    begins = offsets[:-1][offsets[1:] > offsets[:-1]] - first
    if any_true(continues[begins]):  # a character goes on in the next text
        return False
    before, second = text[:-1], text[1:]
    return not any(any_true((before == byte) & ((second < low) | (second > high))) for byte, low, high in _SECOND_BYTES)
