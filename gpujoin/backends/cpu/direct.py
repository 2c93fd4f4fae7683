"""Direct-address tables, for dense integer keys: the key gives the position in the table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpujoin.backends.cpu.grouping import Groups, group_rows
from gpujoin.backends.cpu.keywords import KeyRows, Words
from gpujoin.backends.cpu.memory import CHUNK, empty
from gpujoin.backends.cpu.rowmaps import IndexArray, index_type


@dataclass(frozen=True, slots=True)
class Address:
    """Maps a key to a position: the least key to 1, the greatest to ``size``, all others to 0 or ``size + 1``."""

    base: int
    """The least key less one, modulo 2**64."""
    size: int
    """Greatest key less least key, plus one."""

    @classmethod
    def from_bounds(cls, low: int, high: int) -> Address:
        """The address of keys in ``low … high``."""
        return cls((low - 1) % (1 << 64), high - low + 1)

    def positions(self, keys: Words) -> npt.NDArray[np.int64]:
        """Positions of keys, before they are clipped.

        Differences wrap modulo 2**64. Distinct 64-bit keys stay distinct, so only the keys between least and
        greatest get the positions between 1 and ``size``.
        """
        wide = keys.astype(np.int64).view(np.uint64)
        wide -= np.uint64(self.base)
        return wide.view(np.int64)


@dataclass(frozen=True, slots=True)
class DirectRows:
    """A table of unique keys, from position to row."""

    address: Address
    """Key to position."""
    table: IndexArray
    """Row at each position, or −1."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.table.nbytes

    def locate(self, keys: KeyRows) -> IndexArray:
        """Build row of each probe row, or −1."""
        result = empty(keys.rows, self.table.dtype)
        words = keys.words[0]
        for start in range(0, len(result), CHUNK):
            positions = self.address.positions(words[start : start + CHUNK])
            np.take(self.table, positions, out=result[start : start + CHUNK], mode="clip")
        if keys.valid is not None:
            result[~keys.valid] = -1
        return result


@dataclass(frozen=True, slots=True)
class DirectOffset:
    """Unique keys that ascend one by one, so that the position gives the row."""

    address: Address
    """Key to position, which is row + 1."""

    @property
    def nbytes(self) -> int:
        """Nothing is stored."""
        return 0

    def locate(self, keys: KeyRows) -> IndexArray:
        """Build row of each probe row, or −1."""
        result = empty(keys.rows, index_type(self.address.size))
        words = keys.words[0]
        for start in range(0, len(result), CHUNK):
            positions = self.address.positions(words[start : start + CHUNK])
            positions -= 1
            outside = positions.view(np.uint64) >= np.uint64(self.address.size)
            if outside.any():
                positions[outside] = -1
            result[start : start + CHUNK] = positions
        if keys.valid is not None:
            result[~keys.valid] = -1
        return result


@dataclass(frozen=True, slots=True)
class DirectGroups:
    """A table of keys with duplicates, from position to group."""

    address: Address
    """Key to position, which is the group's number."""

    @property
    def nbytes(self) -> int:
        """Nothing beyond the groups is stored."""
        return 0

    def locate(self, keys: KeyRows) -> IndexArray:
        """Group of each probe row; the last group, ``size + 1``, if there is none."""
        last = self.address.size + 1
        result = empty(keys.rows, index_type(last + 1))
        words = keys.words[0]
        for start in range(0, len(result), CHUNK):
            positions = self.address.positions(words[start : start + CHUNK])
            np.clip(positions, 0, last, out=result[start : start + CHUNK], casting="unsafe")
        if keys.valid is not None:
            result[~keys.valid] = last
        return result


def direct_unique(words: Words, rows: IndexArray | None, low: int, high: int) -> DirectRows | DirectOffset | None:
    """Build a table of the unique keys of the given rows, or of all; ``None`` if a key occurs twice."""
    address = Address.from_bounds(low, high)
    if rows is None and address.size == len(words) and _consecutive(words, low):
        return DirectOffset(address)
    if address.size < len(words):
        return None
    total = len(words) if rows is None or not len(rows) else int(rows[-1]) + 1
    table = np.full(address.size + 2, -1, index_type(total))
    for start in range(0, len(words), CHUNK):
        positions = address.positions(words[start : start + CHUNK])
        table[positions] = _numbers(rows, start, len(positions), table.dtype)
    for start in range(0, len(words), CHUNK):
        positions = address.positions(words[start : start + CHUNK])
        numbers = _numbers(rows, start, len(positions), table.dtype)
        if not np.array_equal(np.take(table, positions), numbers):
            return None
    return DirectRows(address, table)


def direct_groups(words: Words, rows: IndexArray | None, low: int, high: int) -> tuple[DirectGroups, Groups]:
    """Build a table of keys with duplicates; parameters as for :func:`direct_unique`."""
    address = Address.from_bounds(low, high)
    groups = np.empty(len(words), index_type(address.size + 2))
    for start in range(0, len(words), CHUNK):
        groups[start : start + CHUNK] = address.positions(words[start : start + CHUNK])
    return DirectGroups(address), group_rows(groups, address.size + 2, rows)


def _consecutive(words: Words, low: int) -> bool:
    if int(words[0]) != low:
        return False
    return all(bool((np.diff(words[start : start + CHUNK + 1]) == 1).all()) for start in range(0, len(words), CHUNK))


def _numbers(rows: IndexArray | None, start: int, length: int, dtype: np.dtype[np.signedinteger]) -> IndexArray:
    if rows is None:
        return np.arange(start, start + length, dtype=dtype)
    return rows[start : start + length].astype(dtype, copy=False)
