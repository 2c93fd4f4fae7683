"""Range indexes on the CPU: `gpujoin.backends.ordered` with NumPy."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.backends.cpu.bits import validity, view
from gpujoin.backends.cpu.build import make_locator
from gpujoin.backends.cpu.frame import Frame, from_arrow
from gpujoin.backends.cpu.memory import CHUNK, empty, memory_errors
from gpujoin.backends.cpu.rowmaps import index_type
from gpujoin.backends.ordered.index import Points, Range, RangeIndex, RangeProbe
from gpujoin.backends.ordered.nearest import LookupProbe, nearest_rows
from gpujoin.backends.ordered.ops import OrderOps
from gpujoin.model.backend import NearestTerms

_BLOCK = 1 << 14
"""Searches of a wavelet matrix at a time: their state stays in the second-level cache from step to step."""
_FEW = 1 << 12
"""Sorted values that stay in the first-level cache, so that searches in any order are fast."""


def _sort(values: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Sort values; also return their original positions. The sort is stable.

    A value and its position are sorted as one integer, which is several times as fast as NumPy's ``argsort``. Where
    both do not fit 64 bits, the values are sorted by their lower bits, then by the upper ones.
    """
    rows = len(values)
    if rows < 2 or bool((values[1:] >= values[:-1]).all()):
        return values, np.arange(rows)
    low, bits = int(values.min()), (rows - 1).bit_length()
    wide, digit = (int(values.max()) - low).bit_length(), 64 - bits
    packed, order = _sorted_digit(values, None, low, 0, digit)
    if wide <= digit:
        for start in range(0, rows, CHUNK):
            part = packed[start : start + CHUNK]
            part >>= np.uint64(bits)
            part += np.uint64(low % (1 << 64))
        return packed.view(np.int64), order
    for shift in range(digit, wide, digit):
        _, inner = _sorted_digit(values, order, low, shift, digit)
        order = np.take(order, inner)
    return np.take(values, order), order


def _sorted_digit(
    values: npt.NDArray[np.int64], order: npt.NDArray[np.int64] | None, low: int, shift: int, digit: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Sort by ``digit`` bits of the distance from ``low``: one pass of a radix sort.

    Returns
    -------
    packed, order
        Sorted integers, which hold the bits above the position, and the positions.
    """
    rows = len(values)
    packed, positions = empty(rows, np.uint64), empty(rows, np.int64)
    bits = np.uint64(64 - digit)
    for start in range(0, rows, CHUNK):
        stop = min(rows, start + CHUNK)
        chunk = values[start:stop] if order is None else np.take(values, order[start:stop])
        part = packed[start:stop]
        np.subtract(chunk.view(np.uint64), np.uint64(low % (1 << 64)), out=part)
        part >>= np.uint64(shift)
        part <<= bits  # what does not fit is left to the next digit
        part |= np.arange(start, stop, dtype=np.uint64)
    packed.sort()
    mask = np.uint64((1 << int(bits)) - 1)
    for start in range(0, rows, CHUNK):
        np.bitwise_and(packed[start : start + CHUNK], mask, out=positions[start : start + CHUNK].view(np.uint64))
    return packed, positions


def _search(ordered: npt.NDArray[np.int64], values: npt.NDArray[np.int64], including: bool) -> npt.NDArray[np.int64]:
    """Search in ascending order of the values, so that each search uses the cache lines of the last one."""
    side: Any = "right" if including else "left"
    if len(ordered) <= _FEW or len(values) < _FEW:
        return np.searchsorted(ordered, values, side=side)
    if bool((values[1:] >= values[:-1]).all()):
        return _merged(ordered, values, side)
    sought, order = _sort(values)
    positions = empty(len(values), np.int64)
    positions[order] = _merged(ordered, sought, side)
    return positions


def _merged(ordered: npt.NDArray[np.int64], sought: npt.NDArray[np.int64], side: Any) -> npt.NDArray[np.int64]:
    """Search ascending values in chunks, each between the positions of its first and its last value."""
    positions = empty(len(sought), np.int64)
    edges = np.searchsorted(ordered, sought[::_FEW], side=side).tolist()
    edges.append(int(np.searchsorted(ordered, sought[-1], side=side)))
    for number, start in enumerate(range(0, len(sought), _FEW)):
        low, high = edges[number], edges[number + 1]
        np.add(
            np.searchsorted(ordered[low:high], sought[start : start + _FEW], side=side),
            low,
            out=positions[start : start + _FEW],
        )
    return positions


def owners(sizes: npt.NDArray[np.int64], total: int) -> npt.NDArray[np.int64]:
    """Number of the run that each place belongs to, given the runs' sizes."""
    del total
    return np.repeat(np.arange(len(sizes)), sizes)


def _ops(rows: int) -> OrderOps:
    return OrderOps(np, _sort, _search, owners, index_type(rows), _BLOCK, nullcontext)


class CpuRangeBuild:
    """A build side searched by order, over int64 columns: the group if ``grouped``, and one or two points."""

    @memory_errors
    def __init__(self, points: Frame, *, grouped: bool) -> None:
        columns = [Points(view(column, np.int64), validity(column)) for column in points.columns]
        groups = columns.pop(0) if grouped else None
        self._index = RangeIndex(_ops(points.rows), columns, groups, points.rows)
        self._grouped = grouped

    @property
    def algorithm(self) -> str:
        return self._index.algorithm

    @property
    def nbytes(self) -> int:
        return self._index.nbytes

    @memory_errors
    def probe(self, bounds: Frame) -> RangeProbe:
        columns = [Points(view(column, np.int64), validity(column)) for column in bounds.columns]
        groups = columns.pop(0) if self._grouped else None
        return RangeProbe(self._index, list(zip(columns[::2], columns[1::2], strict=True)), groups)

    @memory_errors
    def nearest(self, points: Frame, codes: Frame, terms: NearestTerms) -> LookupProbe:
        columns = [Points(view(column, np.int64), validity(column)) for column in points.columns]
        groups = columns.pop(0) if self._grouped else None

        def find(bounds: Range) -> RangeProbe:
            return RangeProbe(self._index, [bounds], groups)

        return nearest_rows(self._index.ops, find, view(codes.columns[0], np.int64), columns[0], terms)


class CpuGrouper:
    """Numbers rows by key."""

    @memory_errors
    def __init__(self, codes: pa.Table) -> None:
        self._layout, self._locator = make_locator(from_arrow(codes))

    @memory_errors
    def groups(self, codes: pa.Table) -> npt.NDArray[np.int64]:
        keys = from_arrow(codes)
        if self._locator is None:
            return np.full(keys.rows, -1)
        groups = self._locator.locate(self._layout.encode(keys)).astype(np.int64)
        for column in keys.columns:
            valid = validity(column)
            if valid is not None:
                groups[~valid] = -1
        return groups
