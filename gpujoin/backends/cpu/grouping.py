"""Orders rows by key in compressed sparse row form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpujoin.backends.cpu.rowmaps import IndexArray, index_type
from gpujoin.errors import HostMemoryError

MOST_ROWS = (1 << 32) - 1
_DIGIT = 16
_HALF = np.uint64(32)
_LOWER = np.uint64(MOST_ROWS)


@dataclass(frozen=True, slots=True)
class Groups:
    """Build rows by group, ascending within each, in compressed sparse row form."""

    ranges: npt.NDArray[np.uint64]
    """First position of each group in ``order`` (upper half) and its number of rows (lower half), so that one access
    reads both. The last group is empty; probe rows without a match refer to it."""
    order: IndexArray | None
    """Build rows, group after group; ``None``: row ``i`` is at position ``i``."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.ranges.nbytes + (0 if self.order is None else self.order.nbytes)


def starts_of(ranges: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """First positions of groups."""
    return (ranges >> _HALF).view(np.int64)


def counts_of(ranges: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Numbers of rows of groups."""
    return (ranges & _LOWER).view(np.int64)


def group_rows(groups: npt.NDArray[Any], size: int, rows: IndexArray | None) -> Groups:
    """Order rows by group number, in ``range(size - 1)``; the last group stays empty.

    Entry ``i`` of ``groups`` is of row ``rows[i]``, which ascend, or of row ``i``. Raises ``HostMemoryError`` if
    there are 2**32 rows or more; the engine then divides the build side.
    """
    if len(groups) > MOST_ROWS:
        raise HostMemoryError(f"{len(groups)} build rows are more than {MOST_ROWS}")
    index = index_type(len(groups) if rows is None else int(rows[-1]) + 1 if len(rows) else 0)
    ranges = np.zeros(size, np.uint64)
    counts = np.bincount(groups, minlength=size).view(np.uint64)
    np.cumsum(counts[:-1], out=ranges[1:])
    ranges <<= _HALF
    ranges |= counts
    if bool((groups[1:] >= groups[:-1]).all()):
        return Groups(ranges, None if rows is None else rows.astype(index, copy=False))
    order = sorted_order(groups, size)
    if rows is not None:
        order = np.take(rows, order)
    return Groups(ranges, order.astype(index, copy=False))


def sorted_order(groups: npt.NDArray[Any], size: int) -> npt.NDArray[np.int64]:
    """Stable sorting permutation of small non-negative integers: NumPy's radix sort, sixteen bits at a time."""
    order = np.argsort(groups.astype(np.uint16), kind="stable")
    for shift in range(_DIGIT, max(1, size - 1).bit_length(), _DIGIT):
        digit = (groups >> shift).astype(np.uint16)
        order = np.take(order, np.argsort(np.take(digit, order), kind="stable"))
    return order
