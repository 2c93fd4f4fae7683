"""What every probe of an index by order has in common: which way matches are counted and found, and the protocol.

The ways themselves are array operations (:mod:`gpujoin.backends.ordered.index`) or, on a device, kernels. Which of
them is taken is decided here, from counts alone, so all give pairs in one order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from gpujoin.backends.ordered.ops import Array, OrderOps
from gpujoin.model.backend import PairSlice
from gpujoin.model.maps import Indices, MapOrder, OutOfBounds

LOOKS_PER_STEP = 2
"""Candidates that can be looked at one after the other in the time of one step of one search in a wavelet matrix:
`benchmarks/engine/README.md`, "two ranges"."""
CANDIDATES = 1 << 20
"""Positions looked at in one go where no size was asked for."""


@dataclass(frozen=True)
class Stretches:
    """Where the first point of each probe row's matches lies in the order of the index.

    Attributes
    ----------
    begin, length : int array
        First position, and number of positions; the number is zero where a row can match nothing.
    total : int
        Sum of the lengths.
    second : object or None
        What the second point must be, where that is not settled by the stretch.
    """

    begin: Array
    length: Array
    total: int
    second: Any | None


class OrderedIndex(Protocol):
    """A build side by order, as a probe needs to know it."""

    @property
    def ops(self) -> OrderOps:
        """The array module."""
        ...

    @property
    def order(self) -> Array:
        """Build row at each position."""
        ...

    @property
    def places(self) -> int:
        """How many positions there are."""
        ...

    @property
    def depth(self) -> int:
        """Steps of a search by the second point."""
        ...


class OrderedProbe(ABC):
    """Matches of some rows in an index; see :class:`gpujoin.model.backend.RangeProbe`.

    Parameters
    ----------
    index : OrderedIndex
        Index of the build side.
    stretches : Stretches
        Stretches of the probe rows.
    """

    def __init__(self, index: OrderedIndex, stretches: Stretches) -> None:
        self._order, self._places = index.order, index.places
        self._ops = index.ops
        self._matches = stretches
        self.rows = int(stretches.begin.shape[0])
        self._searched = False
        """Whether pairs are found by a search for each, not by looking at what the first point admits."""
        self.resumable = True
        """Whether :meth:`pairs_at` is possible."""
        if stretches.second is None:
            self.counts, self.pairs = stretches.length, stretches.total
            return
        self.resumable = stretches.total > LOOKS_PER_STEP * index.depth * max(1, self.rows)
        self.counts, self.pairs = self._count_by_search() if self.resumable else self._count_by_looking()
        self._searched = self.resumable and stretches.total > LOOKS_PER_STEP * index.depth * self.pairs

    @abstractmethod
    def _count_by_search(self) -> tuple[Array, int]:
        """Matches of each row and of all, given two points; also makes ready for what follows."""

    @abstractmethod
    def _count_by_looking(self) -> tuple[Array, int]:
        """The same at the cost of one look for each position that the first point admits."""

    @abstractmethod
    def _looked(self, most: int) -> Iterator[tuple[Array, Array]]:
        """Probe and build rows of pairs, from at most so many positions at a time, all of which are looked at."""

    @abstractmethod
    def _numbered(self, most: int) -> Iterator[tuple[Array, Array]]:
        """Probe and build rows of pairs, at most so many at a time, each found by its number."""

    @abstractmethod
    def _continued(self, rows: Array, counts: Array, skip: int, total: int) -> tuple[Array, Array]:
        """Probe and build rows of the next ``counts`` pairs, ``total`` in all, of some rows after ``skip`` each."""

    # -- the protocol --------------------------------------------------------------------------------------

    def matched(self) -> Array:
        """Mask over probe rows: has a match."""
        with self._ops.entered():
            return self.counts > 0

    def lookup(self) -> Indices:
        """The first match of each row, or −1; all of them only where the build is said to be unique."""
        return self.edge(last=False)

    def edge(self, *, last: bool) -> Indices:
        """The match with the lowest or highest first point, or −1; of several the first or last row.

        Only for one point.
        """
        with self._ops.entered():
            xp, begin = self._ops.xp, self._matches.begin
            if not self._places:
                return Indices(xp.full(self.rows, -1, dtype=self._ops.index), self.rows, OutOfBounds.NULLIFY)
            position = begin + self.counts - 1 if last else begin
            build_rows = self._order[xp.clip(position, 0, self._places - 1)]
            return Indices(xp.where(self.counts > 0, build_rows, -1), self.rows, OutOfBounds.NULLIFY)

    def slices(self, max_pairs: int) -> Iterator[PairSlice]:
        """All pairs, ascending by probe row, then in the order of the index."""
        by_looking = self._matches.second is not None and not self._searched
        made = self._looked if by_looking else self._numbered
        for probe, build in self._guarded(lambda: made(max_pairs)):
            part = self._pair_slice(probe, build, MapOrder.ASCENDING)
            if part.length:
                yield part

    def _guarded(self, make: Callable[[], Iterator[tuple[Array, Array]]]) -> Iterator[tuple[Array, Array]]:
        """The same with the device current only while a part is being made."""
        source = make()
        while True:
            with self._ops.entered():
                part = next(source, None)
            if part is None:
                return
            yield part

    def _pair_slice(self, probe: Array, build: Array, order: MapOrder = MapOrder.ANY) -> PairSlice:
        length = int(probe.shape[0])
        return PairSlice(Indices(probe, length, order=order), Indices(build, length))

    def pairs_at(self, rows: Any, offset: int, limit: int) -> PairSlice:
        with self._ops.entered():
            xp = self._ops.xp
            rows = xp.asarray(rows, dtype=xp.int64)
            counts = xp.clip(self.counts[rows] - offset, 0, min(limit, self._places))
            total = int(counts.sum())
            if not total:
                none = xp.zeros(0, dtype=self._ops.index)
                return self._pair_slice(none, none)
            return self._pair_slice(*self._continued(rows, counts, offset, total))

    def mark_build(self, marks: Array) -> None:
        """Set ``marks`` wherever a build row has a match."""
        if self._matches.second is not None:
            for part in self.slices(CANDIDATES):
                with self._ops.entered():
                    marks[part.build.values] = True  # type: ignore[union-attr]
            return
        with self._ops.entered():
            xp = self._ops.xp
            matched = xp.flatnonzero(self.counts)
            if not int(matched.shape[0]):
                return
            begin = self._matches.begin[matched]
            opened = xp.bincount(begin, minlength=self._places + 1)
            closed = xp.bincount(begin + self.counts[matched], minlength=self._places + 1)
            covered = xp.cumsum(opened - closed)[: self._places] > 0
            marks[self._order[covered]] = True

    @cached_property
    def unique(self) -> bool:
        """Whether no probe row has two matches."""
        return not self.rows or int(self.counts.max()) <= 1
