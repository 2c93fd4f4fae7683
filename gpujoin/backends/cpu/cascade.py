"""A hash table for vectorised code: a cascade of ever smaller tables without chains.

All build rows are written to their slots in the first table at once. Of the rows that fall on the same slot, one
survives. Rows whose slot was taken by another key go to the next table, which is sized for them and addressed by
another multiplier, and so on until no row is left. With four slots for each row, about a ninth of the rows goes on to
the next table. So a match is found after 1.1 rounds on average, and the number of tables grows with the logarithm of
the rows. Slots hold row numbers only; keys are compared in their columns. An example with 3 keys and 4 slots::

    table 1   slot of 7, 9, 4 = 1, 3, 1     slots  -  4  -  9      4 has overwritten 7
    table 2   slot of 7 = 0                 slots  7

    probe 9   slot 3 of table 1 has 9: match
    probe 7   slot 1 of table 1 has 4: go on; slot 0 of table 2 has 7: match
    probe 5   slot 2 of table 1 is empty: no match

Multiplicative hashing: D. E. Knuth, The Art of Computer Programming, volume 3, section 6.4. Tables in a cascade:
A. Broder and A. Karlin, Multilevel adaptive hashing, SODA 1990.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gpujoin.backends.cpu.keywords import KeyRows, Words
from gpujoin.backends.cpu.memory import empty
from gpujoin.backends.cpu.rowmaps import IndexArray, index_type

Scramble: TypeAlias = Callable[[tuple[Words, ...]], npt.NDArray[np.uint64]]
"""Hashes each row of words to 64 bits, into new memory. Rows with equal words have equal hashes."""

_CHUNK = 1 << 16
_FEW = 1 << 10
"""Fewer rows of a chunk wait for rows of other chunks, in place of a round of their own."""
SLOTS_PER_ROW = 4
"""Slots for each row of a table; measured in `benchmarks/engine/README.md`, "slots per row"."""
_FEWEST_SLOTS = 16
_MOST_SLOTS = (1 << 32) - 1
_PATIENCE = 24
"""After so many tables the remaining rows are assumed to have equal hashes, so that larger tables would not help."""
_MULTIPLIERS = np.random.default_rng(0x6A6F696E).integers(0, 1 << 63, 64, np.uint64) * np.uint64(2) + np.uint64(1)
_WORD_PRIME = np.uint64(0xC6A4A7935BD1E995)
_HALF = np.uint64(32)


def scramble_words(words: tuple[Words, ...]) -> npt.NDArray[np.uint64]:
    """Hash several words to one. A single word is returned as it is: each table multiplies it anyway."""
    mixed = _unsigned(words[0])
    for word in words[1:]:
        mixed *= _WORD_PRIME
        mixed ^= mixed >> _HALF
        mixed += _unsigned(word)
    if len(words) > 1:
        mixed *= _WORD_PRIME
        mixed ^= mixed >> _HALF
    return mixed


def _unsigned(words: Words) -> npt.NDArray[np.uint64]:
    return words.astype(np.int64).view(np.uint64) if words.itemsize == 4 else words.astype(np.uint64)


@dataclass(frozen=True, slots=True)
class Level:
    """One table of the cascade. The slot is the upper half of hash × multiplier, scaled to the number of slots."""

    multiplier: np.uint64
    """Odd factor of the multiplicative hash."""
    slots: IndexArray
    """Entry number, or −1; fewer than 2**32."""

    def slots_of(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Slot number of each hash, in the memory of the hashes."""
        hashes *= self.multiplier
        hashes >>= _HALF
        hashes *= np.uint64(len(self.slots))
        hashes >>= _HALF
        return hashes.view(np.int64)


@dataclass(frozen=True, slots=True)
class Cascade:
    """The tables, and the key of each entry."""

    entries: KeyRows
    """Key of each entry."""
    levels: tuple[Level, ...]
    """The tables, in the order they are probed."""
    scramble: Scramble

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return sum(level.slots.nbytes for level in self.levels) + self.entries.nbytes

    def locate(self, keys: KeyRows) -> IndexArray:
        """Entry of each probe row, or −1."""
        if not self.entries.tails:
            return self._search(keys, self.entries)
        # The words alone nearly always find the right entry. Its bytes are then compared once, in order.
        entry_of_row = self._search(keys.without_tails(), self.entries.without_tails())
        for rows in _chunks(keys.rows):
            chunk, entries_of_chunk = keys.slice(rows), entry_of_row[rows]
            hit = entries_of_chunk >= 0
            wrong = np.flatnonzero(hit > self.entries.tails_equal(entries_of_chunk, chunk, hit))
            if len(wrong):
                entries_of_chunk[wrong] = self._search(chunk.take(wrong), self.entries)
        return entry_of_row

    def _search(self, keys: KeyRows, entries: KeyRows) -> IndexArray:
        entry_of_row = empty(keys.rows, self.levels[0].slots.dtype)
        waiting: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(len(self.levels) + 1)]
        for rows in _chunks(keys.rows):
            self._first_rounds(keys.slice(rows), entries, rows.start, entry_of_row[rows], waiting)
        if keys.valid is not None:
            entry_of_row[~keys.valid] = -1
        for number, level in enumerate(self.levels):
            if not waiting[number]:
                continue
            pending = np.concatenate(waiting[number])
            if keys.valid is not None:
                pending = pending[keys.valid[pending]]
            for chunk in _chunks(len(pending)):
                rows_of_chunk = pending[chunk]
                candidates, left = self._round(level, keys.take(rows_of_chunk), entries)
                entry_of_row[rows_of_chunk] = candidates
                waiting[number + 1].append(rows_of_chunk[left])
        return entry_of_row

    def _first_rounds(
        self,
        keys: KeyRows,
        entries: KeyRows,
        start: int,
        entry_of_row: IndexArray,
        waiting: list[list[npt.NDArray[np.int64]]],
    ) -> None:
        """Probe table after table while enough rows need it; the others wait for their next table."""
        rows: npt.NDArray[np.int64] | None = None
        for number, level in enumerate(self.levels):
            candidates, left = self._round(level, keys, entries)
            if rows is None:
                entry_of_row[:] = candidates
                rows = left
            else:
                entry_of_row[rows] = candidates
                rows = rows[left]
            if len(left) < _FEW:
                if len(left):
                    waiting[number + 1].append(rows + start)
                return
            keys = keys.take(left)

    def _round(self, level: Level, keys: KeyRows, entries: KeyRows) -> tuple[IndexArray, npt.NDArray[np.int64]]:
        """Entry of each key in one table, or −1, and the keys whose slot has another key's entry."""
        met = np.take(level.slots, level.slots_of(self.scramble(keys.words)), mode="clip")
        # The −1 of an empty slot is compared with entry 0; the result does not matter, since it stays −1.
        same = entries.equal(met.astype(np.int64, copy=False), keys)
        left = np.flatnonzero((met >= 0) > same)
        met |= same.view(np.int8) - np.int8(1)
        return met, left


@dataclass(frozen=True, slots=True)
class Entries:
    """Result of :func:`build_cascade`."""

    cascade: Cascade
    """The tables, whose entries are build rows."""
    duplicates: IndexArray
    originals: IndexArray
    """Build rows without an entry, and for each the row with the same key that has one."""


def build_cascade(keys: KeyRows, rows: IndexArray | None, scramble: Scramble = scramble_words) -> Entries:
    """Build the tables over the given rows, or over all. A weak ``scramble`` costs time, not correctness."""
    index = index_type(keys.rows)
    levels: list[Level] = []
    duplicates: list[IndexArray] = []
    originals: list[IndexArray] = []
    waiting = keys.rows if rows is None else len(rows)
    while waiting or not levels:
        level = _empty_level(len(levels), waiting, index)
        for chunk, part in _row_chunks(keys, rows, index):
            level.slots[level.slots_of(scramble(part.words))] = chunk
        losers = []
        for chunk, part in _row_chunks(keys, rows, index):
            winners = np.take(level.slots, level.slots_of(scramble(part.words)), mode="clip")
            losing = np.flatnonzero(winners != chunk)
            if not len(losing):
                continue
            lost_rows, lost_to = chunk[losing], winners[losing]
            same = keys.equal(lost_to.astype(np.int64), part.take(losing))
            if same.any():
                duplicates.append(lost_rows[same])
                originals.append(lost_to[same])
                lost_rows = lost_rows[~same]
            losers.append(lost_rows)
        levels.append(level)
        rows = np.concatenate(losers) if losers else np.zeros(0, index)
        waiting = len(rows)
    return Entries(
        Cascade(keys, tuple(levels), scramble),
        np.concatenate(duplicates) if duplicates else np.zeros(0, index),
        np.concatenate(originals) if originals else np.zeros(0, index),
    )


def renumbered(cascade: Cascade, numbers: IndexArray, entries: npt.NDArray[Any]) -> Cascade:
    """Renumber the entries of a cascade over rows.

    ``numbers`` has the new number of each row that is an entry, ``entries`` the row of each new number.
    """
    levels = []
    for level in cascade.levels:
        slots = np.empty(len(level.slots), numbers.dtype)
        for part in _chunks(len(slots)):
            old = level.slots[part]
            np.take(numbers, old.astype(np.intp), out=slots[part], mode="clip")
            slots[part] |= -(old < 0).astype(np.int8)
        levels.append(Level(level.multiplier, slots))
    return Cascade(cascade.entries.take(entries), tuple(levels), cascade.scramble)


def _empty_level(number: int, rows: int, index: type[np.signedinteger[Any]]) -> Level:
    count = rows * SLOTS_PER_ROW if number < _PATIENCE else 0
    slots = np.full(min(max(_FEWEST_SLOTS, count), _MOST_SLOTS), -1, index)
    return Level(_MULTIPLIERS[number % len(_MULTIPLIERS)], slots)


def _chunks(length: int) -> Iterator[slice]:
    for start in range(0, length, _CHUNK):
        yield slice(start, min(length, start + _CHUNK))


def _row_chunks(
    keys: KeyRows, rows: IndexArray | None, index: type[np.signedinteger[Any]]
) -> Iterator[tuple[IndexArray, KeyRows]]:
    """Row numbers and keys, in chunks."""
    for part in _chunks(keys.rows if rows is None else len(rows)):
        if rows is None:
            yield np.arange(part.start, part.stop, dtype=index), keys.slice(part)
        else:
            chunk = rows[part].astype(index, copy=False)
            yield chunk, keys.take(chunk)
