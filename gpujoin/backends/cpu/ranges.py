"""Range indexes on the CPU: `gpujoin.backends.ordered` over NumPy."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.backends.cpu.bits import validity, view
from gpujoin.backends.cpu.build import make_build
from gpujoin.backends.cpu.frame import Frame, from_arrow
from gpujoin.backends.cpu.memory import memory_errors
from gpujoin.backends.cpu.rowmaps import index_type
from gpujoin.backends.ordered.index import Points, RangeIndex, RangeProbe
from gpujoin.backends.ordered.ops import OrderOps

_BLOCK = 1 << 14
"""Questions to a wavelet matrix at a time: their state then stays in the second-level cache from step to step."""
_FEW = 1 << 12
"""A sorted array of so few values stays in the first-level cache: searches in any order are fast."""


def _argsort(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if len(values) < 2 or bool((values[1:] >= values[:-1]).all()):
        return np.arange(len(values))
    return np.argsort(values, kind="stable")


def _search(
    ordered: npt.NDArray[np.int64], values: npt.NDArray[np.int64], including: bool
) -> npt.NDArray[np.int64]:
    """Binary searches in ascending order of what is sought, so that each finds in the cache what the last one left."""
    side: Any = "right" if including else "left"
    if len(ordered) <= _FEW or len(values) < _FEW or bool((values[1:] >= values[:-1]).all()):
        return np.searchsorted(ordered, values, side=side)
    order = np.argsort(values)
    found = np.empty(len(values), np.int64)
    found[order] = np.searchsorted(ordered, values[order], side=side)
    return found


def _owners(sizes: npt.NDArray[np.int64], total: int) -> npt.NDArray[np.int64]:
    del total
    return np.repeat(np.arange(len(sizes)), sizes)


def _ops(rows: int) -> OrderOps:
    return OrderOps(np, _argsort, _search, _owners, index_type(rows), _BLOCK, nullcontext)


class CpuRangeBuild:
    """A build side searched by order; see :class:`gpujoin.model.backend.RangeBuild`.

    Parameters
    ----------
    points : Frame
        int64 columns: the group if ``grouped``, and one or two points.
    grouped : bool
        Whether there is a column of groups.
    """

    @memory_errors
    def __init__(self, points: Frame, *, grouped: bool) -> None:
        columns = [Points(view(column, np.int64), validity(column)) for column in points.columns]
        groups = columns.pop(0) if grouped else None
        self._index = RangeIndex(_ops(points.rows), columns, groups, points.rows)
        self._grouped = grouped

    @property
    def algorithm(self) -> str:
        """What was chosen."""
        return self._index.algorithm

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self._index.nbytes

    @memory_errors
    def probe(self, bounds: Frame) -> RangeProbe:
        """Find the matches of each row."""
        columns = [Points(view(column, np.int64), validity(column)) for column in bounds.columns]
        groups = columns.pop(0) if self._grouped else None
        return RangeProbe(self._index, list(zip(columns[::2], columns[1::2], strict=True)), groups)


class CpuGrouper:
    """Rows numbered by key; see :class:`gpujoin.model.backend.Grouper`.

    Parameters
    ----------
    codes : Table
        Key codes.
    """

    @memory_errors
    def __init__(self, codes: pa.Table) -> None:
        self._build = make_build(from_arrow(codes))

    @memory_errors
    def groups(self, codes: pa.Table) -> npt.NDArray[np.int64]:
        """Number of each row; negative where there is none."""
        keys = from_arrow(codes)
        if self._build.locator is None:
            return np.full(keys.rows, -1)
        found = self._build.locator.locate(self._build.layout.encode(keys)).astype(np.int64)
        for column in keys.columns:
            valid = validity(column)
            if valid is not None:
                found[~valid] = -1
        return found
