"""Range indexes on the device, with gpujoin's own kernels or with `gpujoin.backends.ordered` over its arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from gpujoin.backends.cudf.arrays import MAX_ROWS, Array, ArrayOps, owners_of
from gpujoin.backends.cudf.index import unique_slices
from gpujoin.backends.cudf.rangekernels import KernelRangeIndex, KernelRangeProbe, kernel_index
from gpujoin.backends.ordered.index import Points, RangeIndex, RangeProbe
from gpujoin.backends.ordered.ops import OrderOps
from gpujoin.backends.ordered.probe import OrderedProbe
from gpujoin.launch.matches import UniqueMatches
from gpujoin.model.backend import NearestTerms, PairSlice
from gpujoin.model.maps import Indices, OutOfBounds


def order_ops(ops: ArrayOps, entered: Callable[[], AbstractContextManager[Any]]) -> OrderOps:
    """Array operations of the device for range indexes."""
    xp = ops.xp

    def search(ordered: Array, values: Array, including: bool) -> Array:
        return xp.searchsorted(ordered, values, side="right" if including else "left").astype(xp.int64)

    def sort(values: Array) -> tuple[Array, Array]:
        order = ops.stable_argsort(values)
        return values[order], order

    return OrderOps(xp, sort, search, partial(owners_of, ops), xp.int32, MAX_ROWS, entered)


class DeviceRangeBuild:
    """A build side on the device that is searched by order: groups if ``grouped``, and one or two points."""

    def __init__(
        self,
        ops: ArrayOps,
        entered: Callable[[], AbstractContextManager[Any]],
        columns: Sequence[Points],
        *,
        grouped: bool,
    ) -> None:
        groups, points = (columns[0], columns[1:]) if grouped else (None, columns)
        self._ops, self._entered, self._grouped = ops, entered, grouped
        rows, order = int(columns[0].values.shape[0]), order_ops(ops, entered)
        index: KernelRangeIndex | None = None
        if ops.kernels is not None:
            index = kernel_index(ops.kernels, order, points, groups, rows)
        self._index: KernelRangeIndex | RangeIndex = index or RangeIndex(order, points, groups, rows)

    @property
    def algorithm(self) -> str:
        """Name of the index; it starts with ``cudf`` where array operations search and not gpujoin's kernels."""
        name = self._index.algorithm
        return name if isinstance(self._index, KernelRangeIndex) else f"cudf {name}"

    @property
    def nbytes(self) -> int:
        return self._index.nbytes

    @property
    def finds_nearest(self) -> bool:
        with self._entered():
            return isinstance(self._index, KernelRangeIndex) and self._index.finds_nearest

    def _grouped_apart(self, columns: Sequence[Points]) -> tuple[Points | None, Sequence[Points]]:
        return (columns[0], columns[1:]) if self._grouped else (None, columns)

    def probe_columns(self, columns: Sequence[Points]) -> OrderedProbe:
        """Find the matches of each row, given the columns of its key frame."""
        groups, bounds = self._grouped_apart(columns)
        pairs = list(zip(bounds[::2], bounds[1::2], strict=True))
        if isinstance(self._index, KernelRangeIndex):
            return KernelRangeProbe(self._index, pairs, groups)
        return RangeProbe(self._index, pairs, groups)

    def nearest_columns(self, columns: Sequence[Points], terms: NearestTerms) -> LookupProbe:
        """Find the nearest row of each row, given the columns of its key frame."""
        assert isinstance(self._index, KernelRangeIndex)
        groups, (points,) = self._grouped_apart(columns)
        matches = self._index.nearest(points, groups, terms)
        return LookupProbe(self._ops, self._entered, matches)


class LookupProbe:
    """A probe whose matches are known, at most one for each probe row."""

    def __init__(
        self, ops: ArrayOps, entered: Callable[[], AbstractContextManager[Any]], matches: UniqueMatches
    ) -> None:
        self._ops, self._entered = ops, entered
        self._matches = matches
        self.rows, self.pairs = int(matches.row.shape[0]), matches.pairs

    def matched(self) -> Array:
        with self._entered():
            return self._matches.row >= 0

    def lookup(self) -> Indices:
        return Indices(self._matches.row, self.rows, OutOfBounds.NULLIFY)

    def slices(self, max_pairs: int) -> Iterator[PairSlice]:
        if self.pairs:
            yield from unique_slices(self._ops, self._entered, self._matches, max_pairs)

    def mark_build(self, marks: Array) -> None:
        with self._entered():
            marks[self._matches.row[self._matches.row >= 0]] = True
