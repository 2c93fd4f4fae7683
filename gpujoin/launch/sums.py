"""Launches ``sums.cu``: running sums of counts, in two passes over them."""

from __future__ import annotations

import numpy as np

from gpujoin.launch.device import Array, Device, ModuleSpec, check_room, memory_errors
from gpujoin.launch.keys import BLOCK_THREADS, check_column, grid_of

SPECIALISATIONS: tuple[ModuleSpec, ...] = (ModuleSpec("sums.cu"),)

SUM_TILE = 4096
"""Counts of which a block makes one sum, as in ``sums.cu``."""

_SUM_BYTES = 4
_TILE_BYTES = 2 * 4


def first_places(device: Device, counts: Array) -> Array:
    """Sum of the int32 counts before each one, and at last of all of them, as int32.

    It is up to the caller that the total has 31 bits. Nothing waits for the device.
    """
    check_column("counts", counts, np.int32)
    length = int(counts.shape[0])
    if not length:
        return device.zeros(1, np.int32)
    tiles = -(-length // SUM_TILE)
    what = f"the sums of {length} counts"
    check_room(device, _SUM_BYTES * (length + 1) + _TILE_BYTES * tiles, what)
    sums, of_tile = device.empty(length + 1, np.int32), device.empty(tiles, np.int32)
    grid = grid_of(device, length, SUM_TILE)
    arguments = [counts, np.uint64(length)]
    device.launch(device.kernel(SPECIALISATIONS[0], "sum_tiles"), grid, BLOCK_THREADS, [*arguments, of_tile])
    with memory_errors(what):
        ends = device.xp.cumsum(of_tile, dtype=np.int32)
    device.launch(device.kernel(SPECIALISATIONS[0], "sum_counts"), grid, BLOCK_THREADS, [*arguments, ends, sums])
    return sums
