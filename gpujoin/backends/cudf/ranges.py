"""Range indexes on the device, with gpujoin's own kernels or with `gpujoin.backends.ordered` over its arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from gpujoin.backends.cudf.arrays import Array, ArrayOps, owners_of
from gpujoin.backends.cudf.rangekernels import KernelRangeIndex, KernelRangeProbe, kernel_index
from gpujoin.backends.ordered.index import Points, RangeIndex, RangeProbe
from gpujoin.backends.ordered.nearest import LookupProbe, nearest_rows
from gpujoin.backends.ordered.ops import OrderOps
from gpujoin.backends.ordered.probe import OrderedProbe
from gpujoin.launch.keys import MAX_ROWS
from gpujoin.model.backend import NearestTerms


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
    """A build side on the device, searched by group, if ``grouped``, and by one or two points."""

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
        """Name of the index. It starts with ``cudf`` if array operations search in place of gpujoin's kernels."""
        name = self._index.algorithm
        return name if isinstance(self._index, KernelRangeIndex) else f"cudf {name}"

    @property
    def nbytes(self) -> int:
        return self._index.nbytes

    def _grouped_apart(self, columns: Sequence[Points]) -> tuple[Points | None, Sequence[Points]]:
        return (columns[0], columns[1:]) if self._grouped else (None, columns)

    def probe_columns(self, columns: Sequence[Points]) -> OrderedProbe:
        """Find the matches of each row, given the columns of its key frame."""
        groups, bounds = self._grouped_apart(columns)
        pairs = list(zip(bounds[::2], bounds[1::2], strict=True))
        if isinstance(self._index, KernelRangeIndex):
            return KernelRangeProbe(self._index, pairs, groups)
        return RangeProbe(self._index, pairs, groups)

    def nearest_columns(self, columns: Sequence[Points], codes: Array, terms: NearestTerms) -> LookupProbe:
        """Find the nearest row of each row, given the columns of its key frame and the points of build rows."""
        index = self._index
        groups, (points,) = self._grouped_apart(columns)
        if isinstance(index, KernelRangeIndex) and index.finds_nearest:
            matches = index.nearest(points, groups, terms)
            return LookupProbe(index.ops, matches.row, matches.pairs)
        own = [] if groups is None else [groups]
        return nearest_rows(index.ops, lambda bounds: self.probe_columns([*own, *bounds]), codes, points, terms)
