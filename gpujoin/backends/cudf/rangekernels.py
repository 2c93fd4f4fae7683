"""Range indexes on the device with gpujoin's own kernels. Order, counts and pairs are those of array operations."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.ordered.index import Points, Range
from gpujoin.backends.ordered.ops import OrderOps
from gpujoin.backends.ordered.probe import OrderedProbe, Stretches
from gpujoin.backends.ordered.reductions import all_true, total
from gpujoin.errors import KernelCompileError
from gpujoin.launch import candidates, expand, nearest, ranges, wavelet
from gpujoin.launch.device import Device, ModuleSpec
from gpujoin.launch.keys import MAX_ROWS
from gpujoin.launch.matches import Ranges, UniqueMatches
from gpujoin.launch.ranges import Bounds, Groups, Ordered
from gpujoin.logs import log
from gpujoin.model.backend import NearestTerms
from gpujoin.model.spec import Direction

_ONE_POINT = ((ranges.SPECIALISATIONS[0], "find_stretches"), (expand.SPECIALISATIONS[0], "expand_pairs"))
_TWO_POINTS = (
    (ranges.SPECIALISATIONS[0], "narrow_stretches"),
    (candidates.SPECIALISATIONS[0], "count_candidates"),
    (wavelet.SPECIALISATIONS[0], "wavelet_count"),
)
_PAIR = 2
_NEAREST = tuple((spec, "nearest_rows") for spec in nearest.SPECIALISATIONS)


def kernel_index(
    device: Device, ops: OrderOps, points: Sequence[Points], groups: Points | None, rows: int
) -> KernelRangeIndex | None:
    """Build a range index that kernels search; see :class:`gpujoin.backends.ordered.index.RangeIndex`.

    ``None`` if a kernel does not compile, or group numbers are too high, which is logged.
    """
    if not _compile(device, (*_ONE_POINT, *(_TWO_POINTS if len(points) == _PAIR else ()))):
        return None
    valid_rows = _valid_rows(ops, points, groups)
    values = [p.values if valid_rows is None else p.values[valid_rows] for p in points]
    own = None if groups is None else groups.values if valid_rows is None else groups.values[valid_rows]
    number = 0 if own is None or not int(own.shape[0]) else int(own.max()) + 1
    if number > MAX_ROWS:
        log.warning("group %d is over the %d of kernels, so array operations search", number - 1, MAX_ROWS)
        return None
    return KernelRangeIndex(device, ops, values, own, number, valid_rows, rows)


def _compile(device: Device, kernels: Sequence[tuple[ModuleSpec, str]]) -> bool:
    """Whether kernels compile; the first one that does not is logged."""
    try:
        for spec, name in kernels:
            device.kernel(spec, name)
    except KernelCompileError as problem:
        log.warning("a kernel does not compile, so array operations search instead: %s", problem)
        return False
    return True


def _valid_rows(ops: OrderOps, points: Sequence[Points], groups: Points | None) -> Array | None:
    """Rows that may have a match; ``None``: all."""
    masks = [column.valid for column in points]
    if groups is not None:
        masks += [groups.valid, groups.values >= 0]
    valid = _all_of(masks)
    return None if valid is None or all_true(valid) else ops.xp.flatnonzero(valid)


def _all_of(masks: Sequence[Array | None]) -> Array | None:
    intersection: Array | None = None
    for mask in masks:
        if mask is not None:
            intersection = mask if intersection is None else intersection & mask
    return intersection


class KernelRangeIndex:
    """A range index that kernels search.

    ``values`` has the one or two points of each row that may have a match, ``groups`` the groups of these rows, and
    ``kept`` their numbers (``None``: all). ``number`` counts empty groups too, ``rows`` the rows of no group too.
    """

    def __init__(
        self,
        device: Device,
        ops: OrderOps,
        values: Sequence[Array],
        groups: Array | None,
        number: int,
        valid_rows: Array | None,
        rows: int,
    ) -> None:
        self.device, self.ops, self.rows = device, ops, rows
        order = _order(ops, [*reversed(values), *([] if groups is None else [groups])])
        self.points = ranges.ordered(values[0][order])
        of_place = None if groups is None else groups[order]
        self.groups: Groups | None = None
        if of_place is not None:
            self.groups = ranges.groups_of(device, of_place, number)
        self.order = (order if valid_rows is None else valid_rows[order]).astype(ops.index)
        self.places = self.points.places
        self.second: _Second | None = None
        self.monotone: Ordered | None = None
        if len(values) == _PAIR and self.places:
            seconds = values[1][order]
            if _ascends(seconds, of_place):
                self.monotone = ranges.ordered(seconds)
            else:
                self.second = _Second.from_points(ops, seconds)
        self._wavelet: wavelet.Matrix | None = None
        self._lock = threading.Lock()

    @property
    def algorithm(self) -> str:
        if self.second is not None:
            return "range_pair"
        return "range" if self.monotone is None else "range_monotone"

    @property
    def depth(self) -> int:
        """Steps of a search by the second point."""
        return 1 if self.second is None else max(1, self.second.distinct.places.bit_length())

    @property
    def nbytes(self) -> int:
        """Memory held."""
        total = self.points.nbytes + int(self.order.nbytes)
        total += 0 if self.groups is None else int(self.groups.first.nbytes)
        total += 0 if self.monotone is None else self.monotone.nbytes
        total += 0 if self.second is None else self.second.nbytes
        return total + (0 if self._wavelet is None else self._wavelet.nbytes)

    def wavelet(self) -> wavelet.Matrix:
        """Wavelet matrix of the second points; made when first needed."""
        with self._lock:
            if self._wavelet is None:
                assert self.second is not None
                limit = self.second.distinct.places
                matrix = wavelet.build(self.device, self.second.ranks, self.order, limit)
                # Wait for the device: another thread may read the matrix next, on its own stream.
                self.device.download(matrix.zeros)
                self._wavelet = matrix
            return self._wavelet

    def find(self, bounds: Sequence[Range], groups: Points | None) -> Stretches:
        """Find the stretches of the matches of probe rows."""
        masks = [column.valid for pair in bounds for column in pair]
        masks += [] if groups is None else [groups.valid]
        group = None if groups is None else groups.values
        valid = _all_of(masks)
        intervals = [Bounds(low.values, high.values) for low, high in bounds]
        first = Bounds(intervals[0].low, intervals[0].high, valid, group)
        stretches = ranges.find(self.device, self.points, self.groups, first)
        if self.monotone is not None:
            stretches = ranges.narrow(self.device, self.monotone, stretches, intervals[1])
        if self.second is None:
            return Stretches(stretches.start, stretches.count, stretches.pairs, None)
        ranks = ranges.find(self.device, self.second.distinct, None, intervals[1])
        xp = self.ops.xp
        length = xp.where(ranks.count > 0, stretches.count, xp.int32(0))
        return Stretches(stretches.start, length, total(length), ranks)

    @cached_property
    def finds_nearest(self) -> bool:
        """Whether :meth:`nearest` is possible; the first call compiles its kernels."""
        return _compile(self.device, _NEAREST)

    def nearest(self, points: Points, groups: Points | None, terms: NearestTerms) -> UniqueMatches:
        """Find the nearest build row of each probe row; only for indexes of one point."""
        valid = _all_of([points.valid, None if groups is None else groups.valid])
        sought = nearest.Sought(points.values, valid, None if groups is None else groups.values)
        kernel_terms = nearest.Terms(
            backward=terms.direction is not Direction.FORWARD,
            forward=terms.direction is not Direction.BACKWARD,
            exact=terms.allow_exact,
            codes=nearest.Codes(terms.float_bytes),
            tolerance=terms.tolerance,
        )
        return nearest.find(self.device, self.points, self.groups, self.order, sought, kernel_terms)


@dataclass(frozen=True)
class _Second:
    """Second points that do not ascend with the first ones."""

    distinct: Ordered
    """Distinct second points."""
    ranks: Array
    """Rank of the second point at each place among the distinct ones."""

    @property
    def nbytes(self) -> int:
        return self.distinct.nbytes + int(self.ranks.nbytes)

    @classmethod
    def from_points(cls, ops: OrderOps, seconds: Array) -> _Second:
        xp = ops.xp
        values, order = ops.sort(seconds)
        leads = xp.ones(values.shape[0], dtype=bool)
        leads[1:] = values[1:] != values[:-1]
        ranks = xp.empty(values.shape[0], dtype=xp.int32)
        ranks[order] = xp.cumsum(leads, dtype=xp.int32) - xp.int32(1)
        return cls(ranges.ordered(values[leads]), ranks)


def _order(ops: OrderOps, keys: Sequence[Array]) -> Array:
    """Stable ascending order by several keys, the last one being the most significant."""
    _, order = ops.sort(keys[0])
    for key in keys[1:]:
        _, inner = ops.sort(key[order])
        order = order[inner]
    return order


def _ascends(values: Array, groups: Array | None) -> bool:
    """Whether values ascend within each group."""
    steps = values[1:] >= values[:-1]
    if groups is not None:
        steps |= groups[1:] != groups[:-1]
    return all_true(steps)


class KernelRangeProbe(OrderedProbe):
    """The matches of rows in a :class:`KernelRangeIndex`; see :class:`gpujoin.backends.ordered.index.RangeProbe`."""

    def __init__(self, index: KernelRangeIndex, bounds: Sequence[Range], groups: Points | None) -> None:
        self._index = index
        self._device = index.device
        self._counted: wavelet.WaveletCounts | None = None
        super().__init__(index, index.find(bounds, groups))

    @property
    def _stretches(self) -> Ranges:
        return Ranges(self._matches.begin, self._matches.length, self._matches.total)

    def _count_by_search(self) -> tuple[Array, int]:
        assert self._matches.second is not None
        matrix = self._index.wavelet()
        self._counted = wavelet.count(self._device, matrix, self._stretches, self._matches.second)
        return self._counted.count, self._counted.pairs

    def _count_by_looking(self) -> tuple[Array, int]:
        return candidates.count(self._device, self._candidates())

    def _candidates(self) -> candidates.Candidates:
        second, stretches = self._index.second, self._stretches
        assert second is not None
        assert self._matches.second is not None
        running = expand.running_counts(self._device, stretches)
        return candidates.Candidates(stretches, running, second.ranks, self._matches.second)

    def _looked(self, most: int) -> Iterator[tuple[Array, Array]]:
        total = self._matches.total
        if not self.pairs:
            return
        looked = self._candidates()
        for begin in range(0, total, most):
            yield candidates.keep(self._device, looked, self._order, begin, min(most, total - begin))

    def _numbered(self, most: int) -> Iterator[tuple[Array, Array]]:
        if not self.pairs:
            return
        running = self._ops.xp.cumsum(self.counts, dtype=self._ops.xp.int64)
        for begin in range(0, self.pairs, most):
            length = min(most, self.pairs - begin)
            if self._counted is None:
                yield expand.pairs(self._device, self._stretches, running, self._order, begin, length)
            else:
                matrix = self._index.wavelet()
                yield wavelet.pairs(self._device, matrix, self._counted, running, begin, length)

    def _continued(self, rows: Array, counts: Array, skip: int, total: int) -> tuple[Array, Array]:
        xp = self._ops.xp
        stretches = self._matches
        counts = counts.astype(xp.int32)
        running = xp.cumsum(counts, dtype=xp.int64)
        begin, more = stretches.begin[rows], xp.int32(skip)
        if self._counted is None:
            places = Ranges(begin + more, counts, total)
            owner, build = expand.pairs(self._device, places, running, self._order, 0, total)
        else:
            places = Ranges(begin, stretches.length[rows], total)
            part = wavelet.WaveletCounts(places, self._counted.below[rows] + more, counts, total)
            owner, build = wavelet.pairs(self._device, self._index.wavelet(), part, running, 0, total)
        return rows[owner].astype(self._ops.index), build
