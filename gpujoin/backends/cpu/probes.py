"""Matches of a probe on the CPU: their number is computed first, pairs are made on demand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gpujoin.backends.cpu.grouping import Groups, counts_of, starts_of
from gpujoin.backends.cpu.memory import CHUNK, empty, memory_errors
from gpujoin.backends.cpu.rowmaps import IndexArray, Mask, index_type
from gpujoin.errors import GpuJoinError
from gpujoin.model.backend import PairSlice
from gpujoin.model.maps import Indices, OutOfBounds, Repeat, RowMap, Span, Tile

_LEAST_PRODUCT = 64
"""Least build rows of a key whose pairs are returned as a product, without storing them."""


class UniqueProbe:
    """A probe with at most one match per row: ``build_rows`` has the build row of each, or −1."""

    def __init__(self, build_rows: IndexArray) -> None:
        self._build_rows = build_rows

    @property
    def rows(self) -> int:
        return len(self._build_rows)

    @cached_property
    def _mask(self) -> Mask:
        return self._build_rows >= 0

    @cached_property
    def pairs(self) -> int:
        return int(np.count_nonzero(self._mask))

    def matched(self) -> Mask:
        return self._mask

    @memory_errors
    def lookup(self) -> Indices:
        return Indices(self._build_rows, self.rows, OutOfBounds.NULLIFY)

    def slices(self, max_pairs: int) -> Iterator[PairSlice]:
        rows = None if self.pairs == self.rows else self._matched_rows()
        for start in range(0, self.pairs, max_pairs):
            length = min(max_pairs, self.pairs - start)
            yield self._slice(rows, start, length)

    @memory_errors
    def _matched_rows(self) -> npt.NDArray[np.int64]:
        return np.flatnonzero(self._mask)

    @memory_errors
    def _slice(self, rows: npt.NDArray[np.int64] | None, start: int, length: int) -> PairSlice:
        if rows is None:
            return PairSlice(Span(start, length), Indices(self._build_rows[start : start + length], length))
        here = rows[start : start + length]
        return PairSlice(Indices(here, length), Indices(np.take(self._build_rows, here), length))

    @memory_errors
    def mark_build(self, marks: Mask) -> None:
        matched_rows = self._build_rows if self.pairs == self.rows else np.compress(self._mask, self._build_rows)
        marks[matched_rows] = True


class GroupProbe:
    """A probe whose rows match one group each; −1 or an empty group stands for no match."""

    def __init__(self, located: IndexArray, groups: Groups) -> None:
        self._order = groups.order
        self._ranges = _take(groups.ranges, located)

    @property
    def rows(self) -> int:
        return len(self._ranges)

    @cached_property
    def pairs(self) -> int:
        return int(counts_of(self._ranges).sum())

    @memory_errors
    def matched(self) -> Mask:
        return counts_of(self._ranges) > 0

    def lookup(self) -> Indices:
        """Raise, since a row may have several matches."""
        raise GpuJoinError("lookup() needs a build with unique keys; use slices()")

    def slices(self, max_pairs: int) -> Iterator[PairSlice]:
        """All pairs, at most ``max_pairs`` at a time. The matches of a row may be divided between slices."""
        if not self.pairs:
            return
        ends = self._ends()
        for start in range(0, self.pairs, max_pairs):
            yield self._slice(ends, start, min(start + max_pairs, self.pairs))

    @memory_errors
    def _ends(self) -> npt.NDArray[np.int64]:
        return np.cumsum(counts_of(self._ranges))

    @memory_errors
    def _slice(self, ends: npt.NDArray[np.int64], start: int, stop: int) -> PairSlice:
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, stop, side="left"))
        ranges = self._ranges[first : last + 1]
        counts, begin = counts_of(ranges), starts_of(ranges)
        skipped = start - (int(ends[first]) - int(counts[0]))
        if counts[0] >= _LEAST_PRODUCT and bool((ranges == ranges[0]).all()):
            return self._product(first, int(begin[0]), int(counts[0]), skipped, stop - start)
        counts[0] -= skipped
        begin[0] += skipped
        counts[-1] -= int(ends[last]) - stop
        return expand(first, begin, counts, stop - start, self._order, self.rows)

    def _product(self, first: int, begin: int, count: int, skipped: int, length: int) -> PairSlice:
        probe = Repeat(first * count + skipped, length, count)
        if skipped + length <= count:
            at = slice(begin + skipped, begin + skipped + length)
            build: RowMap = Span(at.start, length) if self._order is None else Indices(self._order[at], length)
        else:
            at = slice(begin, begin + count)
            build = Tile(
                skipped,
                length,
                count,
                np.arange(at.start, at.stop) if self._order is None else self._order[at],
            )
        return PairSlice(probe, build)

    @property
    def resumable(self) -> bool:
        return True

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        return counts_of(self._ranges)

    @memory_errors
    def pairs_at(self, rows: npt.NDArray[np.int64], offset: int, limit: int) -> PairSlice:
        ranges = np.take(self._ranges, rows)
        counts = np.clip(counts_of(ranges) - offset, 0, limit)
        length = int(counts.sum())
        if not length:
            none = Indices(np.zeros(0, np.int64), 0)
            return PairSlice(none, none)
        part = expand(0, starts_of(ranges) + offset, counts, length, self._order, self.rows)
        local = part.probe
        probe_rows = rows[local.start : local.start + length] if isinstance(local, Span) else rows[local.values]  # type: ignore[union-attr]
        return PairSlice(Indices(probe_rows, length), part.build)

    @memory_errors
    def mark_build(self, marks: Mask) -> None:
        """Mark the build rows with a match, once for each group, however many probe rows match it."""
        ranges = self._ranges[self.matched()]
        if self.pairs > 2 * len(ranges) or self.pairs > len(marks):
            ranges = np.unique(ranges)
        counts, starts = counts_of(ranges), starts_of(ranges)
        length = int(counts.sum())
        if not length:
            return
        positions = np.repeat(starts - (np.cumsum(counts) - counts), counts)
        positions += np.arange(length)
        marks[positions if self._order is None else np.take(self._order, positions)] = True


def expand(
    first: int,
    begin: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    length: int,
    order: IndexArray | None,
    probe_rows: int,
) -> PairSlice:
    """Make the pairs of consecutive probe rows, given the range of positions of each one's matches.

    ``length`` is the sum of the counts. ``order`` has the build row at each position; without it the position is the
    row. The rows of the whole probe decide the index type.
    """
    index = index_type(probe_rows)
    if length == len(counts) and int(counts.min()) == 1:
        probe: RowMap = Span(first, length)
        positions = begin
    else:
        numbers = np.repeat(np.arange(len(counts), dtype=index), counts)
        positions = _positions(begin - (np.cumsum(counts) - counts), numbers)
        numbers += index(first)
        probe = Indices(numbers, length)
    build = positions if order is None else _take(order, positions)
    return PairSlice(probe, Indices(build, length))


def _positions(begin: npt.NDArray[np.int64], numbers: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """``begin[numbers[i]] + i``."""
    positions = empty(len(numbers), np.int64)
    for start in range(0, len(numbers), CHUNK):
        part = positions[start : start + CHUNK]
        np.take(begin, numbers[start : start + CHUNK].astype(np.intp), out=part, mode="clip")
        part += np.arange(start, start + len(part))
    return positions


def _take(values: npt.NDArray[Any], at: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """``values[at]``, with indices widened chunk by chunk; −1 is the last value."""
    if at.dtype == np.intp:
        return np.take(values, at, mode="wrap")
    out = empty(len(at), values.dtype)
    for start in range(0, len(at), CHUNK):
        np.take(values, at[start : start + CHUNK].astype(np.intp), out=out[start : start + CHUNK], mode="wrap")
    return out
