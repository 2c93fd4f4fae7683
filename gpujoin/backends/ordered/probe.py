"""The base class of probes of range indexes: it chooses the method, and implements the probe protocol.

The methods themselves are array operations (:mod:`gpujoin.backends.ordered.index`) or, on a device, kernels. The choice
between testing candidates and searching a wavelet matrix is made here, from counts alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from gpujoin.backends.ordered.ops import Array, OrderOps
from gpujoin.backends.ordered.reductions import total
from gpujoin.model.backend import PairSlice
from gpujoin.model.maps import Indices, MapOrder, OutOfBounds

LOOKS_PER_STEP = 2
"""Candidates that can be tested in the time of one step of a search in a wavelet matrix; measured in
`benchmarks/engine/README.md`, "two ranges"."""
CANDIDATES = 1 << 20
"""Candidates tested at a time where the caller gives no limit."""


@dataclass(frozen=True)
class Stretches:
    """The stretch of each probe row: the positions whose first point matches."""

    begin: Array
    length: Array
    """First position and number of positions; zero where a row cannot have a match."""
    total: int
    """Sum of the lengths."""
    second: Any | None
    """Range of the second point, unless the stretch implies it."""


class OrderedIndex(Protocol):
    """A range index, as a probe reads it."""

    @property
    def ops(self) -> OrderOps:
        """The array module."""

    @property
    def order(self) -> Array:
        """Build row at each position."""

    @property
    def places(self) -> int:
        """Number of positions."""

    @property
    def depth(self) -> int:
        """Steps of a search by the second point."""


class OrderedProbe(ABC):
    """The matches of rows in a range index; implements :class:`gpujoin.model.backend.RangeProbe`."""

    def __init__(self, index: OrderedIndex, stretches: Stretches) -> None:
        self._order, self._places = index.order, index.places
        self._ops = index.ops
        self._matches = stretches
        self.rows = int(stretches.begin.shape[0])
        self._searched = False
        """Whether each pair is found by a search, and not by testing the candidates of the first point."""
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
        """Count the matches of each row and of all by searches, for two points."""

    @abstractmethod
    def _count_by_looking(self) -> tuple[Array, int]:
        """Count the matches of each row and of all by testing the candidates of the first point."""

    @abstractmethod
    def _looked(self, most: int) -> Iterator[tuple[Array, Array]]:
        """Probe and build rows of pairs, by testing at most ``most`` candidates at a time."""

    @abstractmethod
    def _numbered(self, most: int) -> Iterator[tuple[Array, Array]]:
        """Probe and build rows of pairs, at most ``most`` at a time, each found by its number."""

    @abstractmethod
    def _continued(self, rows: Array, counts: Array, skip: int, total: int) -> tuple[Array, Array]:
        """Probe and build rows of the ``counts`` pairs of each given row after the first ``skip``; ``total`` in all."""

    # -- the protocol --------------------------------------------------------------------------------------

    def matched(self) -> Array:
        """Mask over probe rows: has a match."""
        with self._ops.entered():
            return self.counts > 0

    def lookup(self) -> Indices:
        """Map from each row to its first match, −1 if it has none; only for unique builds."""
        return self.edge(last=False)

    def edge(self, *, last: bool) -> Indices:
        """Map from each row to its match with the lowest or highest point, −1 if it has none.

        Of several such matches, the first or last row is taken. Only for indexes of one point.
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
        search = self._looked if by_looking else self._numbered
        for probe, build in self._guarded(lambda: search(max_pairs)):
            part = self._pair_slice(probe, build, MapOrder.ASCENDING)
            if part.length:
                yield part

    def _guarded(self, make: Callable[[], Iterator[tuple[Array, Array]]]) -> Iterator[tuple[Array, Array]]:
        """Iterate with the device current only while a slice is being made."""
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
            pairs = total(counts)
            if not pairs:
                none = xp.zeros(0, dtype=self._ops.index)
                return self._pair_slice(none, none)
            return self._pair_slice(*self._continued(rows, counts, offset, pairs))

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
