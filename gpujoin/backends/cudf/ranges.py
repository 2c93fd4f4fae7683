"""Range indexes on the device: `gpujoin.backends.ordered` over the device's arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from gpujoin.backends.cudf.arrays import MAX_ROWS, Array, ArrayOps, owners
from gpujoin.backends.ordered.index import Points, RangeIndex, RangeProbe
from gpujoin.backends.ordered.ops import OrderOps


def order_ops(ops: ArrayOps, entered: Callable[[], AbstractContextManager[Any]]) -> OrderOps:
    """What range indexes need, in terms of this backend's arrays."""
    xp = ops.xp

    def search(ordered: Array, values: Array, including: bool) -> Array:
        return xp.searchsorted(ordered, values, side="right" if including else "left").astype(xp.int64)

    def sort(values: Array) -> tuple[Array, Array]:
        order = ops.stable_argsort(values)
        return values[order], order

    def repeated(sizes: Array, total: int) -> Array:
        starts = xp.cumsum(sizes, dtype=xp.int64) - sizes
        return owners(ops, sizes, starts, total).astype(xp.int64)

    return OrderOps(xp, sort, search, repeated, xp.int32, MAX_ROWS, entered)


class DeviceRangeBuild:
    """A build side searched by order; see :class:`gpujoin.model.backend.RangeBuild`.

    Parameters
    ----------
    ops : OrderOps
        See :func:`order_ops`.
    columns : sequence of Points
        The group if ``grouped``, and one or two points.
    grouped : bool
        Whether there is a column of groups.
    """

    def __init__(self, ops: OrderOps, columns: Sequence[Points], *, grouped: bool) -> None:
        groups, points = (columns[0], columns[1:]) if grouped else (None, columns)
        self._index = RangeIndex(ops, points, groups, int(columns[0].values.shape[0]))
        self._grouped = grouped

    @property
    def algorithm(self) -> str:
        """See :class:`gpujoin.model.backend.RangeBuild`."""
        return self._index.algorithm

    @property
    def nbytes(self) -> int:
        """See :class:`gpujoin.model.backend.RangeBuild`."""
        return self._index.nbytes

    def probe_columns(self, columns: Sequence[Points]) -> RangeProbe:
        """Find the matches of each row, given the columns of its frame."""
        groups, bounds = (columns[0], columns[1:]) if self._grouped else (None, columns)
        return RangeProbe(self._index, list(zip(bounds[::2], bounds[1::2], strict=True)), groups)
