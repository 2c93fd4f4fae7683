"""Decodes Roaring bitmaps of 64-bit numbers in their portable form, by NumPy.

A bitmap is a number of 32-bit ones, each for an upper half of the numbers. Those have a container for each 16 bits
below, of one of three kinds, as https://github.com/RoaringBitmap/RoaringFormatSpec has it. An example, of positions 3
and 65536 to 65538, in two containers of the upper half 0::

    upper 0    key 0, 1 number      array   3
               key 1, 3 numbers     run     0, 2 more

Decoding any bytes ends with ascending numbers or with :class:`RoaringError`, and takes no more memory than the numbers
that were allowed.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

_PLAIN = 12346
"""Marks a bitmap without runs. With runs the mark is greater by 1, in 16 bits, and the number of containers follows."""
_WITH_RUNS = _PLAIN + 1
_MOST_IN_ARRAY = 4096
_BITSET_BYTES = 8192
_FEW = 4
"""Bitmaps with runs of fewer containers do not have their offsets."""
_CONTAINER = 1 << 16

Numbers = npt.NDArray[np.int64]


class RoaringError(ValueError):
    """The bytes are no bitmap, or one of more or of greater numbers than are allowed."""


def numbers_in(data: bytes, most: int) -> Numbers:
    """Decode a bitmap of numbers below ``most``, which is what a file may have rows. They ascend."""
    reader = _Reader(data, most)
    count, parts, last = reader.unpack("<Q"), [np.zeros(0, np.int64)], -1
    for _ in range(count):
        upper = reader.unpack("<I")
        if upper <= last:
            raise RoaringError("its upper halves do not ascend")
        if upper << 32 >= most:
            raise RoaringError(f"it has numbers from {upper << 32} on, not below {most}")
        parts += reader.bitmap(upper << 32)
        last = upper
    if reader.at != len(data):
        raise RoaringError(f"{len(data) - reader.at} bytes follow it")
    numbers = np.concatenate(parts)
    if len(numbers) and numbers[-1] >= most:
        raise RoaringError(f"it has the number {numbers[-1]}, not below {most}")
    return numbers


class _Reader:
    """What was read of some bytes."""

    def __init__(self, data: bytes, most: int) -> None:
        self._data = data
        self._left = most
        self.at = 0

    def unpack(self, form: str) -> int:
        """The next number, of a form of `struct`."""
        (number,) = struct.unpack(form, self._take(struct.calcsize(form)))
        return int(number)

    def bitmap(self, base: int) -> list[Numbers]:
        """The numbers of the next 32-bit bitmap, by container, with a number added to each."""
        mark = self.unpack("<I")
        has_runs = mark & 0xFFFF == _WITH_RUNS
        if not has_runs and mark != _PLAIN:
            raise RoaringError(f"it begins with the mark {mark}")
        count = (mark >> 16) + 1 if has_runs else self.unpack("<I")
        if count > _CONTAINER:
            raise RoaringError(f"it has {count} containers")
        is_run = np.unpackbits(self._array("u1", (count + 7) // 8), bitorder="little") if has_runs else np.zeros(count)
        keys, fewer = self._array("<u2", 2 * count).reshape(count, 2).astype(np.int64).T
        sizes = fewer + 1
        if (keys[1:] <= keys[:-1]).any():
            raise RoaringError("its containers do not ascend")
        self._left -= int(sizes.sum())
        if self._left < 0:
            raise RoaringError("it has more numbers than there may be")
        if not has_runs or count >= _FEW:
            self._array("<u4", count)  # where the containers begin, one after the other as they are
        lower = [
            self._container(size, runs) for size, runs in zip(sizes.tolist(), is_run[:count].tolist(), strict=True)
        ]
        return [values + (base + (key << 16)) for key, values in zip(keys.tolist(), lower, strict=True)]

    def _container(self, size: int, is_run: float) -> Numbers:
        if is_run:
            starts, more = self._array("<u2", 2 * self.unpack("<H")).reshape(-1, 2).astype(np.int64).T
            counts = more + 1
            ends = starts + counts
            if counts.sum() != size or (starts[1:] < ends[:-1]).any() or (ends > _CONTAINER).any():
                raise RoaringError("it has runs that contradict one another, or how many numbers they have")
            return np.arange(size) + np.repeat(starts - np.cumsum(counts) + counts, counts)
        if size <= _MOST_IN_ARRAY:
            values = self._array("<u2", size).astype(np.int64)
            if (values[1:] <= values[:-1]).any():
                raise RoaringError("its numbers do not ascend")
            return values
        values = np.flatnonzero(np.unpackbits(self._array("u1", _BITSET_BYTES), bitorder="little"))
        if len(values) != size:
            raise RoaringError(f"{len(values)} bits are set of {size}")
        return values

    def _array(self, dtype: str, count: int) -> npt.NDArray[Any]:
        return np.frombuffer(self._take(np.dtype(dtype).itemsize * count), dtype)

    def _take(self, count: int) -> bytes:
        part = self._data[self.at : self.at + count]
        if len(part) < count:
            raise RoaringError("it ends early")
        self.at += count
        return part
