"""Hash partitioning of keys. Hashes are the same on every host, backend and version, since both sides must agree.

Integers are mixed with the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014); bytes are read as 64-bit
little-endian words.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

_U64 = np.uint64
_GOLDEN = 0x9E3779B97F4A7C15
_MIX1 = _U64(0xBF58476D1CE4E5B9)
_MIX2 = _U64(0x94D049BB133111EB)
_VECTOR_BYTES = 256
"""Values up to this length are hashed 8 bytes at a time for all rows at once. The tails of longer ones are hashed value
by value: a pass over all rows for every 8 bytes of the longest value would take too long."""
_BLOCK = 1 << 14

Hashes = npt.NDArray[np.uint64]


def hash_rows(codes: pa.Table, seed: int = 0) -> Hashes:
    """Hash each row of a table of key codes to 64 bits; different seeds give independent hashes.

    Codes are int32, int64 or large_binary, one chunk each; null counts as zero or empty.
    """
    hashes = np.full(codes.num_rows, (seed * _GOLDEN + _GOLDEN) % (1 << 64), _U64)
    for column in codes.columns:
        array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        if pat.is_large_binary(array.type):
            _mix_bytes(hashes, array)
        else:
            _mix_words(hashes, _words(array))
    return hashes


def partition_ids(codes: pa.Table, partitions: int, seed: int = 0) -> npt.NDArray[np.int32]:
    """Assign each row of key codes to a partition, uniformly over distinct keys.

    Rows of one partition are divided further with another seed.
    """
    return partitions_of(hash_rows(codes, seed), partitions)


def partitions_of(hashes: Hashes, partitions: int) -> npt.NDArray[np.int32]:
    """Assign each row to a partition by its hash."""
    high = hashes >> _U64(32)
    return ((high * _U64(partitions)) >> _U64(32)).astype(np.int32)


def _words(array: pa.Array) -> Hashes:
    if array.null_count:
        array = array.fill_null(0)
    if len(array) == 0:
        return np.zeros(0, _U64)
    dtype = np.int32 if pat.is_int32(array.type) else np.int64
    values = np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]
    return values.astype(np.int64).view(_U64)


def _mix_words(hashes: Hashes, words: Hashes) -> None:
    """Fold one word per row into ``hashes``, in place, a cache-sized block at a time."""
    for start in range(0, len(hashes), _BLOCK):
        block = hashes[start : start + _BLOCK]
        block ^= words[start : start + _BLOCK]
        block += _U64(_GOLDEN)
        block ^= block >> _U64(30)
        block *= _MIX1
        block ^= block >> _U64(27)
        block *= _MIX2
        block ^= block >> _U64(31)


def _mix_bytes(hashes: Hashes, array: pa.Array) -> None:
    if array.null_count:
        array = array.fill_null(b"")
    rows = len(array)
    if rows == 0:
        return
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + rows + 1]
    starts, lengths = offsets[:-1], np.diff(offsets)
    _mix_words(hashes, lengths.view(_U64))
    longest = int(lengths.max())
    if longest == 0:
        return
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + 8, np.uint8)  # padded: the last word may be read past its value
    data[:-8] = np.frombuffer(array.buffers()[2], np.uint8)[first:last]
    words = np.ndarray(shape=(len(data) - 7,), dtype=np.dtype("<u8"), buffer=data.data, strides=(1,))
    starts = starts - first
    for position in range(0, min(longest, _VECTOR_BYTES), 8):
        live = np.flatnonzero(lengths > position)
        everywhere = len(live) == rows
        at = starts + position if everywhere else starts[live] + position
        left = (lengths if everywhere else lengths[live]) - position
        value = words[at]
        short = left < 8
        if short.any():
            value[short] &= (_U64(1) << (left[short] * 8).astype(_U64)) - _U64(1)
        if everywhere:
            _mix_words(hashes, value)
        else:
            part = hashes[live]
            _mix_words(part, value)
            hashes[live] = part
    for row in np.flatnonzero(lengths > _VECTOR_BYTES):
        start, stop = int(starts[row]) + _VECTOR_BYTES, int(starts[row] + lengths[row])
        tail = data[start:stop].tobytes()
        word = zlib.crc32(tail) | zlib.adler32(tail) << 32
        part = hashes[row : row + 1]
        _mix_words(part, np.array([word], _U64))
