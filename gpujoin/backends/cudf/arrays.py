"""Array operations that run on CuPy and on NumPy alike.

Nothing here imports CuPy, so the code that runs on a device is tested without one. Only what both modules have in
common is used: CuPy does not check index bounds, and has no ``repeat`` by an array.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from gpujoin.launch.device import Device

Array: TypeAlias = Any
"""A one-dimensional CuPy or NumPy array."""

_HALF_BITS = 32


@dataclass(frozen=True)
class ArrayOps:
    """An array module, with operations that other libraries do better."""

    xp: Any
    """``cupy`` or ``numpy``."""
    stable_argsort: Callable[[Array], Array]
    """Stable ascending order of an int32 or int64 array, as int32 positions."""
    kernels: Device | None = None
    """Device for gpujoin's own kernels; ``None``: they are not used."""


def positions(ops: ArrayOps, mask: Array) -> Array:
    """Positions at which a mask is true, as int32, ascending."""
    return ops.xp.flatnonzero(mask).astype(ops.xp.int32)


def exclusive_offsets(ops: ArrayOps, sizes: Array) -> Array:
    """Start of each of consecutive runs, and the end of the last one: ``len(sizes) + 1`` int32 values.

    The sum of the sizes must fit int32, as it does for rows of a column.
    """
    offsets = ops.xp.zeros(sizes.shape[0] + 1, dtype=ops.xp.int32)
    offsets[1:] = ops.xp.cumsum(sizes, dtype=ops.xp.int32)
    return offsets


def owners(ops: ArrayOps, sizes: Array, starts: Array, length: int) -> Array:
    """Number of the run that each of ``length`` consecutive positions belongs to, as int32; runs may be empty.

    The start of the first non-empty run may be negative, if it is cut off. At the start of each non-empty run the
    difference of its number to that of the run before is written, and a running sum gives the numbers. That is linear
    work, where a binary search for each position would be log-linear.
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


def owners_of(ops: ArrayOps, sizes: Array, total: int) -> Array:
    """Number of the run that each position belongs to, as int64, given the sizes of all runs and their sum."""
    starts = ops.xp.cumsum(sizes, dtype=ops.xp.int64) - sizes
    return owners(ops, sizes, starts, total).astype(ops.xp.int64)


def run_starts(ops: ArrayOps, ordered: Array) -> Array:
    """Positions at which a new value starts in a sorted array that is not empty, as int32."""
    leads = ops.xp.ones(ordered.shape[0], dtype=bool)
    leads[1:] = ordered[1:] != ordered[:-1]
    return positions(ops, leads)


def run_ends(ops: ArrayOps, starts: Array, length: int) -> Array:
    """Ends of the runs that :func:`run_starts` returns."""
    return ops.xp.concatenate([starts[1:], ops.xp.full(1, length, dtype=ops.xp.int32)])


def pack(ops: ArrayOps, high: Array, low: Array) -> Array:
    """Combine two int32 arrays to one int64 array; distinct pairs give distinct values."""
    xp = ops.xp
    return (high.astype(xp.int64) << _HALF_BITS) | (low.astype(xp.int64) & ((1 << _HALF_BITS) - 1))
