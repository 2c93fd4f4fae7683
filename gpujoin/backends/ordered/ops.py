"""What the indexes of this room need of a backend's arrays.

Only the common ground of NumPy and CuPy is used besides, so the very code that runs on a device runs, and is tested,
without one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

Array: TypeAlias = Any
"""A one-dimensional array of the backend's module."""


@dataclass(frozen=True)
class OrderOps:
    """An array module and what is done better outside it.

    Attributes
    ----------
    xp : module
        ``numpy`` or ``cupy``.
    sort : callable (int64 array) -> (int64 array, int array)
        The values ascending, and where each was; equal values in their old order.
    search : callable (sorted int64 array, int64 array, bool) -> int64 array
        How many sorted values are less than each of the others, or, if the flag is set, not greater.
    owners : callable (int64 array, int) -> int array
        ``[0] * sizes[0] + [1] * sizes[1] + …``, given the sizes, one at least positive, and their sum.
    index : dtype
        Of row numbers that leave an index.
    block : int
        How many questions are best asked at a time: what fits a cache, or fills a device.
    entered : callable
        Makes the device current for a ``with`` block.
    """

    xp: Any
    sort: Callable[[Array], tuple[Array, Array]]
    search: Callable[[Array, Array, bool], Array]
    owners: Callable[[Array, int], Array]
    index: Any
    block: int
    entered: Callable[[], AbstractContextManager[Any]]
