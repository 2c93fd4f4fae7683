"""Range index: build rows sorted by group and point, whose matches are stretches of that order.

A *point* is an integer that orders as the build-side value does (`gpujoin.engine.join.ranges`). A probe row asks for
the points from a lowest to a highest one. These lie side by side in the sorted order, in a *stretch* that two binary
searches find. With equality keys, rows are sorted by group first, and the searches stay within the group. An example
with one point, three build rows, and a probe row that asks for 11 to 30::

    sorted   position  0  1  2      search for 11: position 1
             point    10 20 40      search for 30, included: position 2
             row       1  2  0      the stretch is position 1 alone: row 2 matches

Where a second point is bounded too, there are three methods. An example with intervals ``[c, d]`` as build rows, and a
probe row that asks for those that contain 4, so ``c <= 4`` and ``d >= 4``::

    sorted by c   row  0  1  2      c <= 4: the stretch of rows 0 1 2
                  c    1  2  4      d >= 4: 9 and 5 of these
                  d    9  3  5      rows 0 and 2 match

- Both points ascend together, as they do if no interval contains another one. Then each bound is a stretch of the same
  order, and the matches are their intersection. In the example they do not: 9, 3, 5.
- The stretch of the first point is short. Then its rows are tested one by one.
- Else a wavelet matrix of the second points counts and finds the matches within the stretch
  (`gpujoin.backends.ordered.wavelet`).

The choice between the last two depends on counts alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from gpujoin.backends.ordered.ops import Array, OrderOps
from gpujoin.backends.ordered.probe import CANDIDATES, OrderedProbe, Stretches
from gpujoin.backends.ordered.reductions import all_true, total
from gpujoin.backends.ordered.wavelet import WaveletMatrix
from gpujoin.errors import DeviceMemoryError

_MOST_CODES = 1 << 62
_ROWS_A_SEARCH = 16
"""Rows that can be counted in the time of one binary search."""


@dataclass(frozen=True)
class Points:
    """An integer point for each row."""

    values: Array
    """The points; meaningless where not valid."""
    valid: Array | None
    """False where a row matches nothing; ``None``: nowhere."""


Range: TypeAlias = tuple[Points, Points]
"""Lowest and highest point of each row's matches, both included; no match if the lowest is greater."""


class _Scale:
    """Encodes points as distances from the least build point, if that leaves room for the group number."""

    def __init__(self, ops: OrderOps, values: Array) -> None:
        self._xp = ops.xp
        any_rows = int(values.shape[0]) > 0
        self.low, self.high = (int(values.min()), int(values.max())) if any_rows else (0, 0)
        self.size = self.high - self.low + 1 if any_rows else 0

    def add_to(self, keys: Array, values: Array) -> None:
        """Add the numbers of the build side's points to sort keys, in place."""
        keys += values
        keys -= self.low

    def below(self, bounds: Array, including: bool) -> Array | None:
        """Number of possible points below each bound, or up to and including it; ``None``: 0 for all."""
        xp = self._xp
        if not self.size or (not including and all_true(bounds <= self.low)):
            return None
        distance = xp.clip(bounds, self.low, self.high) - self.low
        return distance + (bounds >= self.low if including else bounds > self.high)


class _Axis:
    """Encodes points as ranks among the distinct build points."""

    def __init__(self, ops: OrderOps, values: Array) -> None:
        self._ops = ops
        xp = ops.xp
        ordered, order = ops.sort(values)
        leads = xp.ones(ordered.shape[0], dtype=bool)
        leads[1:] = ordered[1:] != ordered[:-1]
        self.distinct = ordered[leads]
        self.ranks = xp.empty(values.shape[0], dtype=xp.int64)
        self.ranks[order] = xp.cumsum(leads, dtype=xp.int64) - 1

    @property
    def size(self) -> int:
        return int(self.distinct.shape[0])

    def add_to(self, keys: Array, values: Array) -> None:
        """Add the ranks of the build side's points to sort keys, in place."""
        del values
        keys += self.ranks

    def below(self, bounds: Array, including: bool) -> Array:
        """Number of distinct points below each bound, or up to and including it."""
        return self._ops.search(self.distinct, bounds, including)


class RangeIndex:
    """The index of a build side by order, over one or two points of each build row.

    Rows with a negative group match nothing; without groups all rows are one. Raises ``DeviceMemoryError`` if groups
    and points together do not fit 62 bits.
    """

    def __init__(self, ops: OrderOps, points: Sequence[Points], groups: Points | None, rows: int) -> None:
        self.ops, self.rows = ops, rows
        xp = ops.xp
        valid = _valid_in(points, groups)
        valid_rows = None if valid is None else xp.flatnonzero(valid)
        values = [p.values if valid_rows is None else p.values[valid_rows] for p in points]
        own = None if groups is None else groups.values if valid_rows is None else groups.values[valid_rows]
        self.axis: _Axis | _Scale | None = None
        self.second: _Axis | None = None
        if len(points) == 2 and int(values[0].shape[0]):
            self.second = _Axis(ops, values[1])
        if own is None:
            keys = values[0]
        else:
            self.axis = _Scale(ops, values[0])
            if not self._fits(own, self.axis.size + 1):
                self.axis = _Axis(ops, values[0])
            self._step = self.axis.size + 1
            self._check(own, self._step)
            keys = own * self._step
            self.axis.add_to(keys, values[0])
        if self.second is None:
            self.keys, order = ops.sort(keys)
        else:
            _, inner = ops.sort(self.second.ranks)
            self.keys, outer = ops.sort(keys[inner])
            order = inner[outer]
        self.order = (order if valid_rows is None else valid_rows[order]).astype(ops.index)
        self.places = int(self.keys.shape[0])
        self.seconds: Array | None = None
        self.second_keys: Array | None = None
        if self.second is not None:
            self._take_second(order, own)
        self._wavelet: WaveletMatrix | None = None
        self._lock = threading.Lock()

    @staticmethod
    def _fits(groups: Array, step: int) -> bool:
        return not groups.shape[0] or (int(groups.max()) + 2) * step <= _MOST_CODES

    def _check(self, groups: Array, step: int) -> None:
        if not self._fits(groups, step):
            raise DeviceMemoryError("too many keys and points for one index; the engine divides them")

    def _take_second(self, order: Array, groups: Array | None) -> None:
        """Order the second points by the first ones, and test whether they ascend within each group."""
        assert self.second is not None
        xp = self.ops.xp
        self.seconds = self.second.ranks[order]
        step = self._second_step = self.second.size + 1
        keys = self.seconds
        if groups is not None:
            self._check(groups, step)
            keys = groups[order] * step + keys
        if all_true(keys[1:] >= keys[:-1]):
            self.second_keys = keys
        self.seconds = xp.ascontiguousarray(self.seconds)

    @property
    def algorithm(self) -> str:
        """``range``, ``range_pair`` or ``range_monotone``."""
        if self.second is None:
            return "range"
        return "range_pair" if self.second_keys is None else "range_monotone"

    @property
    def depth(self) -> int:
        """Steps of a search by the second point."""
        return 1 if self.second is None else max(1, self.second.size.bit_length())

    @property
    def nbytes(self) -> int:
        """Memory held."""
        arrays = [self.keys, self.order, self.seconds, self.second_keys]
        arrays += [axis.distinct for axis in (self.axis, self.second) if isinstance(axis, _Axis)]
        size = sum(int(a.nbytes) for a in arrays if a is not None)
        return size + (0 if self._wavelet is None else self._wavelet.nbytes)

    def wavelet(self) -> WaveletMatrix:
        """Wavelet matrix of the second points; made when first needed."""
        with self._lock:
            if self._wavelet is None:
                assert self.seconds is not None
                assert self.second is not None
                self._wavelet = WaveletMatrix(self.ops, self.seconds, self.second.size)
            return self._wavelet

    def stretches(self, bounds: Range, groups: Points | None) -> tuple[Array, Array]:
        """Find the begin and end of each probe row's stretch by the first point."""
        search = self.ops.search
        low, high = bounds[0].values, bounds[1].values
        if self.axis is None:
            return search(self.keys, low, False), search(self.keys, high, True)
        assert groups is not None
        first = groups.values * self._step
        start, end = self.axis.below(low, False), self.axis.below(high, True)
        begin = self._begin_of(groups.values) if start is None else search(self.keys, first + start, False)
        return begin, begin if end is None else search(self.keys, first + end, False)

    def _begin_of(self, groups: Array) -> Array:
        """First position of each group; arbitrary for groups without build rows."""
        starts = self._starts
        return starts[self.ops.xp.clip(groups, 0, starts.shape[0] - 1)]

    @cached_property
    def _starts(self) -> Array:
        xp = self.ops.xp
        groups = int(self.keys[-1]) // self._step + 1 if self.places else 0
        if groups * _ROWS_A_SEARCH < self.places:
            return self.ops.search(self.keys, xp.arange(groups + 1, dtype=xp.int64) * self._step, False)
        starts = xp.zeros(groups + 1, dtype=xp.int64)
        if groups:
            starts[1:] = xp.cumsum(xp.bincount(self.keys // self._step))
        return starts

    def second_ranks(self, bounds: Range) -> tuple[Array, Array]:
        """Lowest rank of the second point, and the one after the highest."""
        assert self.second is not None
        return self.second.below(bounds[0].values, False), self.second.below(bounds[1].values, True)

    def second_stretches(self, low: Array, high: Array, groups: Points | None) -> tuple[Array, Array]:
        """Find the begin and end of each probe row's stretch by the second point, where it ascends too."""
        first = 0 if groups is None else groups.values * self._second_step
        search = self.ops.search
        return search(self.second_keys, first + low, False), search(self.second_keys, first + high, False)


def _valid_in(columns: Sequence[Points], groups: Points | None) -> Array | None:
    """Mask of the rows that may have a match; ``None``: all."""
    masks = [column.valid for column in columns]
    if groups is not None:
        masks += [groups.valid, groups.values >= 0]
    valid: Array | None = None
    for mask in masks:
        if mask is not None:
            valid = mask if valid is None else valid & mask
    return None if valid is None or all_true(valid) else valid


class RangeProbe(OrderedProbe):
    """The matches of rows in a :class:`RangeIndex`, by array operations.

    ``bounds`` has the lowest and the highest matching value of each point. A negative group is none.
    """

    def __init__(self, index: RangeIndex, bounds: Sequence[Range], groups: Points | None) -> None:
        self._index = index
        self._skipped: Array | None = None
        super().__init__(index, self._find(index, bounds, groups))

    @staticmethod
    def _find(index: RangeIndex, bounds: Sequence[Range], groups: Points | None) -> Stretches:
        xp = index.ops.xp
        begin, end = index.stretches(bounds[0], groups)
        ranks: tuple[Array, Array] | None = None
        if index.second is not None:
            low, high = index.second_ranks(bounds[1])
            if index.second_keys is not None:
                other_begin, other_end = index.second_stretches(low, high, groups)
                begin, end = xp.maximum(begin, other_begin), xp.minimum(end, other_end)
            else:
                ranks = (low, high)
                end = xp.where(low < high, end, begin)
        valid = _valid_in([column for pair in bounds for column in pair], groups)
        if valid is not None:
            begin, end = xp.where(valid, begin, 0), xp.where(valid, end, 0)
        length = xp.maximum(end - begin, 0)
        return Stretches(begin, length, total(length), ranks)

    def _count_by_search(self) -> tuple[Array, int]:
        wavelet, stretches = self._index.wavelet(), self._matches
        assert stretches.second is not None
        end = stretches.begin + stretches.length
        below = wavelet.count_below(stretches.begin, end, stretches.second[0])
        self._skipped = below
        counts = wavelet.count_below(stretches.begin, end, stretches.second[1]) - below
        return counts, total(counts)

    def _count_by_looking(self) -> tuple[Array, int]:
        xp = self._ops.xp
        counts = xp.zeros(self.rows, dtype=xp.int64)
        for probe, _ in self._tested_pairs(CANDIDATES):
            counts += xp.bincount(probe, minlength=self.rows)
        return counts, total(counts)

    def _tested_pairs(self, most: int) -> Iterator[tuple[Array, Array]]:
        """Probe rows and positions of the candidates that match, testing at most ``most`` candidates at a time."""
        stretches, seconds = self._matches, self._index.seconds
        assert stretches.second is not None
        assert seconds is not None
        low, high = stretches.second
        for probe, number in self._parts(stretches.length, stretches.total, most):
            position = stretches.begin[probe] + number
            rank = seconds[position]
            matches = self._ops.xp.flatnonzero((rank >= low[probe]) & (rank < high[probe]))
            yield probe[matches], position[matches]

    def _looked(self, most: int) -> Iterator[tuple[Array, Array]]:
        for probe, position in self._tested_pairs(most):
            yield self._rows(probe, position)

    def _numbered(self, most: int) -> Iterator[tuple[Array, Array]]:
        for probe, number in self._parts(self.counts, self.pairs, most):
            yield self._rows(probe, self._position(probe, number))

    def _continued(self, rows: Array, counts: Array, skip: int, total: int) -> tuple[Array, Array]:
        xp = self._ops.xp
        owner = self._ops.owners(counts, total)
        number = xp.arange(total, dtype=xp.int64) - (xp.cumsum(counts) - counts)[owner] + skip
        probe = rows[owner]
        return self._rows(probe, self._position(probe, number))

    def _rows(self, probe: Array, position: Array) -> tuple[Array, Array]:
        return probe.astype(self._ops.index), self._index.order[position]

    def _position(self, probe: Array, number: Array) -> Array:
        """Position in the index of the ``number``-th match of each probe row."""
        begin = self._matches.begin[probe]
        if self._skipped is None:
            return begin + number
        end = begin + self._matches.length[probe]
        return self._index.wavelet().select(begin, end, number + self._skipped[probe])

    def _parts(self, counts: Array, total: int, most: int) -> Iterator[tuple[Array, Array]]:
        """Row, and number within the row, of ``counts`` items for each row, at most ``most`` at a time."""
        if not total:
            return
        xp = self._ops.xp
        ends = xp.cumsum(counts)
        for start in range(0, total, most):
            stop = min(total, start + most)
            edges = xp.searchsorted(ends, xp.asarray([start, stop - 1], dtype=xp.int64), side="right")
            first, last = int(edges[0]), int(edges[1]) + 1
            before = ends[first:last] - counts[first:last]
            sizes = xp.minimum(ends[first:last], stop) - xp.maximum(before, start)
            owner = self._ops.owners(sizes, stop - start)
            number = xp.arange(start, stop, dtype=xp.int64) - before[owner]
            yield owner + first, number
