"""Finds matches with array operations of libcudf and CuPy, without gpujoin's own kernels.

Every algorithm maps the key of a row to a *group*, the set of build rows with that key. Groups are stored as
:class:`~gpujoin.launch.matches.Places`, or as one row for each group if keys are unique.

cuDF's own joins are not used: from Python its inner, left and full joins neither keep a build side nor return the size
of a result before it is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from gpujoin.backends.cudf.arrays import (
    Array,
    ArrayOps,
    exclusive_offsets,
    owners,
    positions,
    run_ends,
    run_starts,
)
from gpujoin.backends.ordered.reductions import all_true, total
from gpujoin.launch.keys import MAX_ROWS, KeyCodes
from gpujoin.launch.matches import Places, Ranges, UniqueMatches

SMALL_TABLE_SLOTS = 1 << 24
"""Slots up to which a direct-address table is always used: 64 MiB, about the L2 cache of a device."""

SLOTS_PER_ROW = 4
"""Most slots of a larger direct-address table for each row: twice the memory of the codes."""


class Locator(Protocol):
    """Finds the group of each code."""

    @property
    def algorithm(self) -> str:
        """Name of the algorithm, for metrics and explanations."""

    @property
    def nbytes(self) -> int:
        """Memory held."""

    def locate(self, ops: ArrayOps, probe: KeyCodes) -> Array:
        """Group of each row as int32, −1 where there is none."""


@dataclass(frozen=True)
class DirectAddress:
    """The group is the code minus the least code. Groups of absent codes are empty."""

    low: int
    high: int
    algorithm: str = "cudf direct"
    nbytes: int = 0

    def locate(self, ops: ArrayOps, probe: KeyCodes) -> Array:
        """Differences of codes outside the range may wrap around; they are replaced by −1."""
        inside = (probe.codes >= self.low) & (probe.codes <= self.high)
        if probe.valid is not None:
            inside &= probe.valid
        return ops.xp.where(inside, probe.codes - self.low, -1).astype(ops.xp.int32)


@dataclass(frozen=True)
class SortedCodes:
    """The group is the rank of the code among the distinct build codes, found by binary search."""

    distinct: Array
    algorithm: str = "cudf sorted"

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return int(self.distinct.nbytes)

    def locate(self, ops: ArrayOps, probe: KeyCodes) -> Array:
        xp = ops.xp
        rank = xp.searchsorted(self.distinct, probe.codes).astype(xp.int32)
        xp.minimum(rank, self.distinct.shape[0] - 1, out=rank)
        hit = self.distinct[rank] == probe.codes
        if probe.valid is not None:
            hit &= probe.valid
        return xp.where(hit, rank, -1)


@dataclass(frozen=True)
class NoKeys:
    """Finds no group: no build row can have a match."""

    algorithm: str = "empty"
    nbytes: int = 0

    def locate(self, ops: ArrayOps, probe: KeyCodes) -> Array:
        return ops.xp.full(probe.rows, -1, dtype=ops.xp.int32)


@dataclass(frozen=True)
class OneRow:
    """Groups of at most one row each, for unique keys."""

    row: Array
    """Row of each group, −1 for an empty group."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return int(self.row.nbytes)


Groups: TypeAlias = OneRow | Places


def group_rows(ops: ArrayOps, built: KeyCodes, *, exact: bool) -> tuple[Locator, Groups]:
    """Group the rows of a build side by code. The algorithm depends on the range of the codes and on duplicates.

    ``exact``: codes are keys, whose range is meaningful, and not hashes.
    """
    xp = ops.xp
    if built.valid is None:
        row_ids, codes = xp.arange(built.rows, dtype=xp.int32), built.codes
    else:
        row_ids = positions(ops, built.valid)
        codes = built.codes[row_ids]
    if codes.shape[0] == 0:
        return NoKeys(), OneRow(xp.full(1, -1, dtype=xp.int32))
    if exact:
        low, high = int(codes.min()), int(codes.max())
        if high - low < min(max(SLOTS_PER_ROW * codes.shape[0], SMALL_TABLE_SLOTS), MAX_ROWS):
            return DirectAddress(low, high), _by_slot(ops, row_ids, (codes - low).astype(xp.int32), high - low + 1)
    order = ops.stable_argsort(codes)
    codes, rows = codes[order], row_ids[order]
    del order
    starts = run_starts(ops, codes)
    locator = SortedCodes(codes[starts])
    if starts.shape[0] == rows.shape[0]:
        return locator, OneRow(rows)
    end = xp.full(1, rows.shape[0], dtype=xp.int32)
    return locator, Places(xp.concatenate([starts, end]), rows)


def _by_slot(ops: ArrayOps, row_ids: Array, slots: Array, size: int) -> Groups:
    """Make groups by direct address. Keys are unique if no row was overwritten in its slot."""
    table = ops.xp.full(size, -1, dtype=ops.xp.int32)
    table[slots] = row_ids
    if all_true(table[slots] == row_ids):
        return OneRow(table)
    del table
    order = ops.stable_argsort(slots)
    slots = slots[order]
    starts = run_starts(ops, slots)
    sizes = ops.xp.zeros(size, dtype=ops.xp.int32)
    sizes[slots[starts]] = run_ends(ops, starts, slots.shape[0]) - starts
    return Places(exclusive_offsets(ops, sizes), row_ids[order])


@dataclass(frozen=True)
class ArrayMatcher:
    """Finds the build rows of a code by array operations; a :class:`gpujoin.backends.cudf.index.Matcher`."""

    ops: ArrayOps
    locator: Locator
    groups: Groups

    @property
    def algorithm(self) -> str:
        """``cudf direct``, ``cudf sorted`` or ``empty``."""
        return self.locator.algorithm

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.groups.nbytes + self.locator.nbytes

    @property
    def places(self) -> Places | None:
        return self.groups if isinstance(self.groups, Places) else None

    def match(self, probe: KeyCodes) -> UniqueMatches | Ranges:
        xp = self.ops.xp
        group = self.locator.locate(self.ops, probe)
        missing = group < 0
        there = xp.maximum(group, 0)
        if isinstance(self.groups, OneRow):
            row = self.groups.row[there]
            row[missing] = -1
            return UniqueMatches(row, total(row >= 0))
        start = self.groups.first[there]
        count = self.groups.first[there + 1] - start
        count[missing] = 0
        return Ranges(start, count, total(count))

    def expand(self, matches: Ranges, running: Array, begin: int, end: int) -> tuple[Array, Array]:
        xp = self.ops.xp
        assert isinstance(self.groups, Places)
        ends = xp.searchsorted(running, xp.asarray([begin, end - 1], dtype=xp.int64), side="right")
        low, high = int(ends[0]), int(ends[1]) + 1
        counts = matches.count[low:high]
        starts = running[low:high] - counts - begin
        owner = owners(self.ops, counts, starts, end - begin)
        within = xp.arange(end - begin, dtype=xp.int64) - starts[owner]
        place = matches.start[low:high][owner] + within
        return owner + xp.int32(low), self.groups.rows[place]


def match_by_arrays(ops: ArrayOps, built: KeyCodes, *, exact: bool) -> ArrayMatcher:
    """Build a search structure over key codes with array operations."""
    return ArrayMatcher(ops, *group_rows(ops, built, exact=exact))
