"""Encodes short byte strings as 64-bit words, loaded eight bytes at a time from Arrow buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.backends.cpu.memory import CHUNK, empty

_MASKS = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)
"""Masks of the first n bytes of a little-endian word."""

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bytes:
    """Byte strings in one buffer."""

    starts: Positions
    ends: Positions
    """First byte and end of each string."""
    data: npt.NDArray[np.uint8]
    """The buffer, at least eight bytes long."""

    @classmethod
    def from_array(cls, array: pa.Array) -> Bytes:
        """The strings of a large_binary array, without copying."""
        _, offsets, data = array.buffers()
        if offsets is None or not len(array):
            return cls(np.zeros(len(array), np.int64), np.zeros(len(array), np.int64), np.zeros(8, np.uint8))
        ends = np.frombuffer(offsets, np.int64, count=len(array) + 1, offset=8 * array.offset)
        content = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        if len(content) < 8:
            content = np.concatenate([content, np.zeros(8 - len(content), np.uint8)])
        return cls(ends[:-1], ends[1:], content)

    def lengths(self) -> Positions:
        """Length of each string."""
        return self.ends - self.starts

    def all_of_length(self, length: int) -> bool:
        """Whether every string has this length."""
        return not len(self.starts) or bool((self.lengths() == length).all())

    def slice(self, rows: slice) -> Bytes:
        """A range of the strings."""
        return Bytes(self.starts[rows], self.ends[rows], self.data)

    def words(self, at: Positions) -> npt.NDArray[np.uint64]:
        """Eight bytes from each position, little-endian; zeros beyond the buffer's end."""
        last = len(self.data) - 8
        loads: npt.NDArray[np.uint64] = np.ndarray((last + 1,), "<u8", self.data.data, strides=(1,))
        if not len(at) or int(at.max()) <= last:
            return loads[at]
        within = np.minimum(at, last)
        beyond = ((at - within) << 3).view(np.uint64)
        return loads[within] >> beyond  # NumPy defines a shift by 64 as zero


def fixed_words(data: Bytes, length: int) -> tuple[npt.NDArray[np.uint64], ...]:
    """Encode strings of exactly this length; the words of other strings are arbitrary.

    The last word overlaps the one before it where the length is not a multiple of eight.
    """
    if length < 8:
        return (_by_chunk(data, lambda part: part.words(part.starts) & _MASKS[length]),)
    at = [*range(0, length - 7, 8)]
    if length % 8:
        at.append(length - 8)
    rows = len(data.starts)
    if rows and int(data.ends[-1]) - int(data.starts[0]) == rows * length and data.all_of_length(length):
        first = int(data.starts[0])
        return tuple(np.ascontiguousarray(np.ndarray((rows,), "<u8", data.data.data, first + j, (length,))) for j in at)
    return tuple(_by_chunk(data, lambda part, j=j: part.words(part.starts + j)) for j in at)


def padded_words(data: Bytes, words: int) -> tuple[npt.NDArray[np.uint64], ...]:
    """Encode strings shorter than ``8 * words`` bytes: their bytes, and the length in the last byte."""
    columns = []
    for j in range(words):

        def load(part: Bytes, j: int = j) -> npt.NDArray[np.uint64]:
            lengths = part.lengths()
            here = np.clip(lengths - 8 * j, 0, 8 if j + 1 < words else 7)
            loaded = part.words(part.starts + 8 * j)
            loaded &= np.take(_MASKS, here)
            if j + 1 == words:
                loaded |= np.minimum(lengths, 255).view(np.uint64) << np.uint64(56)
            return loaded

        columns.append(_by_chunk(data, load))
    return tuple(columns)


def _by_chunk(data: Bytes, make: Any) -> npt.NDArray[np.uint64]:
    """Make a word for each row, in chunks of rows whose intermediate results stay in the cache."""
    rows = len(data.starts)
    out = empty(rows, np.uint64)
    for start in range(0, rows, CHUNK):
        part = slice(start, start + CHUNK)
        out[part] = make(data.slice(part))
    return out
