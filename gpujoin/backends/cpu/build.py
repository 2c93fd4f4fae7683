"""Chooses and builds the search structure of a build side."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import numpy as np

from gpujoin.backends.cpu.cascade import Cascade, Scramble, build_cascade, renumbered, scramble_words
from gpujoin.backends.cpu.direct import (
    Address,
    DirectGroups,
    DirectOffset,
    DirectRows,
    direct_groups,
    direct_unique,
)
from gpujoin.backends.cpu.frame import Frame
from gpujoin.backends.cpu.grouping import Groups, group_rows
from gpujoin.backends.cpu.keywords import KeyLayout, KeyRows, any_valid, bounds
from gpujoin.backends.cpu.memory import memory_errors
from gpujoin.backends.cpu.probes import GroupProbe, UniqueProbe
from gpujoin.backends.cpu.rowmaps import IndexArray, index_type

DENSE_FACTOR = 6
"""Most positions of a direct-address table for each build row; see `benchmarks/engine/README.md`, "direct or hash"."""
DENSE_ANYWAY = 1 << 18
"""Tables of at most so many positions are always addressed directly: they stay in the second-level cache."""

Locator: TypeAlias = DirectRows | DirectOffset | DirectGroups | Cascade


class Algorithm(Enum):
    """Search structures for keys."""

    EMPTY = "empty"
    """No build row can match."""
    OFFSET = "offset"
    """Keys ascend one by one: the key minus the least key is the row."""
    DIRECT = "direct"
    """The key minus the least key is a position in a table."""
    HASH = "hash"
    """A cascade of hash tables over one integer."""
    HASH_WORDS = "hash_words"
    """A cascade of hash tables over several integers."""
    HASH_BYTES = "hash_bytes"
    """A cascade of hash tables over fingerprints of bytes; the bytes are compared."""


@dataclass(frozen=True, slots=True)
class CpuBuild:
    """A build side on the CPU."""

    rows: int
    """Rows of the key frame it was built from."""
    kind: Algorithm
    layout: KeyLayout
    """Layout in which keys are encoded as words."""
    locator: Locator | None
    """Finds the row of a key, or its group if there are groups; ``None``: nothing matches."""
    groups: Groups | None
    """Rows by group; ``None``: keys are unique."""

    @property
    def unique(self) -> bool:
        return self.groups is None

    @property
    def algorithm(self) -> str:
        return self.kind.value

    @property
    def reason(self) -> None:
        """``None``: the CPU says nothing of it."""

    @property
    def nbytes(self) -> int:
        locator_bytes = 0 if self.locator is None else self.locator.nbytes
        return locator_bytes + (0 if self.groups is None else self.groups.nbytes)

    @memory_errors
    def probe(self, keys: Frame) -> UniqueProbe | GroupProbe:
        if self.locator is None:
            return UniqueProbe(np.full(keys.rows, -1, np.int32))
        entries = self.locator.locate(self.layout.encode(keys))
        if self.groups is None:
            return UniqueProbe(entries)
        return GroupProbe(entries, self.groups)


@memory_errors
def make_build(
    keys: Frame,
    *,
    dense_factor: int = DENSE_FACTOR,
    dense_anyway: int = DENSE_ANYWAY,
    scramble: Scramble = scramble_words,
) -> CpuBuild:
    """Build the search structure of a frame of normalised keys.

    Keys are addressed directly if their range is at most ``dense_factor`` per row, or ``dense_anyway``.
    """
    layout, encoded = KeyLayout.fit(keys)
    if not any_valid(encoded):
        return CpuBuild(keys.rows, Algorithm.EMPTY, layout, None, None)
    rows = _valid_rows(encoded, keys.rows)
    if _is_one_number(encoded):
        build = _direct(layout, encoded, rows, keys.rows, dense_factor, dense_anyway)
        if build is not None:
            return build
    return _hashed(layout, encoded, rows, keys.rows, scramble)


@memory_errors
def make_locator(keys: Frame) -> tuple[KeyLayout, Locator | None]:
    """Build a locator that returns equal numbers for equal keys, from 0 on; ``None`` if no row has a valid key.

    Some numbers may be unused.
    """
    layout, encoded = KeyLayout.fit(keys)
    if not any_valid(encoded):
        return layout, None
    rows = _valid_rows(encoded, keys.rows)
    if _is_one_number(encoded):
        words = encoded.words[0] if rows is None else np.take(encoded.words[0], rows)
        low, high = bounds(words, None)
        if high - low + 1 <= max(DENSE_FACTOR * len(words), DENSE_ANYWAY):
            return layout, DirectGroups(Address.from_bounds(low, high))
    return layout, _numbered(encoded, rows, keys.rows, scramble_words).cascade


def _valid_rows(encoded: KeyRows, total: int) -> IndexArray | None:
    """Rows with a valid key; ``None``: all rows."""
    if encoded.valid is None or encoded.valid.all():
        return None
    return np.flatnonzero(encoded.valid).astype(index_type(total))


def _is_one_number(encoded: KeyRows) -> bool:
    return len(encoded.words) == 1 and not encoded.tails and encoded.words[0].dtype != np.uint64


def _direct(
    layout: KeyLayout,
    encoded: KeyRows,
    rows: IndexArray | None,
    total: int,
    dense_factor: int,
    dense_anyway: int,
) -> CpuBuild | None:
    words = encoded.words[0] if rows is None else np.take(encoded.words[0], rows)
    low, high = bounds(words, None)
    if high - low + 1 > max(dense_factor * len(words), dense_anyway):
        return None
    table = direct_unique(words, rows, low, high)
    if table is not None:
        kind = Algorithm.OFFSET if isinstance(table, DirectOffset) else Algorithm.DIRECT
        return CpuBuild(total, kind, layout, table, None)
    address, groups = direct_groups(words, rows, low, high)
    return CpuBuild(total, Algorithm.DIRECT, layout, address, groups)


def _hashed(layout: KeyLayout, encoded: KeyRows, rows: IndexArray | None, total: int, scramble: Scramble) -> CpuBuild:
    kind = Algorithm.HASH if len(encoded.words) == 1 else Algorithm.HASH_WORDS
    if encoded.tails:
        kind = Algorithm.HASH_BYTES
    numbering = _numbered(encoded, rows, total, scramble)
    if numbering.of_row is None:
        return CpuBuild(total, kind, layout, numbering.cascade, None)
    return CpuBuild(total, kind, layout, numbering.cascade, group_rows(numbering.of_row, numbering.size + 1, rows))


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A cascade over build keys, with the number of each row's key."""

    cascade: Cascade
    of_row: IndexArray | None
    """Number of each valid row's key; ``None``: keys are unique, and the cascade returns rows."""
    size: int


def _numbered(encoded: KeyRows, rows: IndexArray | None, total: int, scramble: Scramble) -> _Numbered:
    entries = build_cascade(encoded, rows, scramble)
    if not len(entries.duplicates):
        return _Numbered(entries.cascade, None, total)
    original = np.arange(total, dtype=index_type(total))
    original[entries.duplicates] = entries.originals
    is_entry = original == np.arange(total, dtype=original.dtype)
    if rows is not None:
        is_entry &= encoded.valid
    firsts = np.flatnonzero(is_entry)
    numbers = np.cumsum(is_entry, dtype=original.dtype)
    numbers -= 1
    of_row = np.take(numbers, original if rows is None else np.take(original, rows))
    return _Numbered(renumbered(entries.cascade, numbers, firsts), of_row, len(firsts))
