"""Array arithmetic over an array module: CuPy on a device, NumPy on a host.

Nothing here imports CuPy, so the very code that runs on a device also runs, and is tested, without one. Where the two
modules differ (CuPy does not check index bounds, and has no ``repeat`` by an array), the common ground is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from gpujoin.launch.device import Device

Array: TypeAlias = Any
"""A one-dimensional CuPy or NumPy array."""

_HALF_BITS = 32

MAX_ROWS = (1 << 31) - 1
"""Most rows of a device column; row numbers therefore fit int32."""


@dataclass(frozen=True)
class ArrayOps:
    """An array module and what is done better outside it.

    Attributes
    ----------
    xp : module
        ``cupy`` or ``numpy``.
    stable_argsort : callable
        Ascending order of an int32 or int64 array, equal values in their old order, as int32.
    kernels : Device or None
        Where gpujoin's own kernels run; ``None``: nowhere.
    """

    xp: Any
    stable_argsort: Callable[[Array], Array]
    kernels: Device | None = None


def positions(ops: ArrayOps, mask: Array) -> Array:
    """Ascending int32 positions at which a mask is true."""
    return ops.xp.flatnonzero(mask).astype(ops.xp.int32)


def exclusive_offsets(ops: ArrayOps, sizes: Array) -> Array:
    """Where each of some consecutive runs starts, and where the last one ends: ``len(sizes) + 1`` int32 values.

    The sum of the sizes must fit int32, as it does where they count rows of one column.
    """
    offsets = ops.xp.zeros(sizes.shape[0] + 1, dtype=ops.xp.int32)
    offsets[1:] = ops.xp.cumsum(sizes, dtype=ops.xp.int32)
    return offsets


def owners(ops: ArrayOps, sizes: Array, starts: Array, length: int) -> Array:
    """Which run each of ``length`` consecutive positions belongs to.

    Parameters
    ----------
    sizes : int array
        Sizes of consecutive runs; empty runs own nothing.
    starts : int array
        Position at which each run starts; that of the first non-empty run may be negative, being cut off there.
    length : int
        Number of positions, all of them owned.

    Returns
    -------
    int32 array of ``length``
        Ascending run numbers.

    Notes
    -----
    The step to the next non-empty run is written where it starts, and a running sum spreads it: linear work, where a
    binary search for each position would be log-linear.
    """
    xp = ops.xp
    steps = xp.zeros(length, dtype=xp.int32)
    if length == 0:
        return steps
    filled = positions(ops, sizes)
    first = xp.maximum(starts[filled], 0)
    deltas = filled.copy()
    deltas[1:] -= filled[:-1]
    steps[first] = deltas
    return xp.cumsum(steps, dtype=xp.int32)


def run_starts(ops: ArrayOps, ordered: Array) -> Array:
    """int32 positions at which a new value begins in a sorted array that is not empty."""
    leads = ops.xp.ones(ordered.shape[0], dtype=bool)
    leads[1:] = ordered[1:] != ordered[:-1]
    return positions(ops, leads)


def run_ends(ops: ArrayOps, starts: Array, length: int) -> Array:
    """Ends of the runs that :func:`run_starts` found."""
    return ops.xp.concatenate([starts[1:], ops.xp.full(1, length, dtype=ops.xp.int32)])


def pack(ops: ArrayOps, high: Array, low: Array) -> Array:
    """Two int32 arrays as one int64 array; distinct pairs give distinct values."""
    xp = ops.xp
    return (high.astype(xp.int64) << _HALF_BITS) | (low.astype(xp.int64) & ((1 << _HALF_BITS) - 1))
