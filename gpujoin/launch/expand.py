"""Launches ``expand.cu``: pairs of a many-to-many join, work shared out by output row."""

from __future__ import annotations

import numpy as np

from gpujoin.errors import KernelArgumentError
from gpujoin.launch.device import Array, Device, ModuleSpec, check_room, memory_errors
from gpujoin.launch.keys import BLOCK_THREADS, check_column, check_rows, grid_of
from gpujoin.launch.matches import Ranges

SPECIALISATIONS: tuple[ModuleSpec, ...] = (ModuleSpec("expand.cu"),)

OUTPUT_TILE = 1024
"""Output rows a block makes at a time, as in ``expand.cu``."""


def running_counts(device: Device, matches: Ranges) -> Array:
    """int64 number of pairs up to and with each probe row."""
    with memory_errors("the running count of the matches"):
        return device.xp.cumsum(matches.count, dtype=np.int64)


def compile_pairs(device: Device) -> None:
    """Compile what :func:`pairs` launches."""
    device.kernel(SPECIALISATIONS[0], "expand_pairs")


def pairs(
    device: Device, matches: Ranges, running: Array, placed: Array | None, begin: int, length: int
) -> tuple[Array, Array]:
    """Make ``length`` of the pairs of a probe from ``begin`` on, ascending by probe row and place.

    ``running`` is :func:`running_counts` of the matches, ``placed`` the int32 build row at each place; without it the
    places themselves are given. Gives int32 probe and build rows.
    """
    rows = int(matches.count.shape[0])
    check_rows(max(rows, length))
    check_column("running counts", running, np.int64, rows)
    check_column("first places", matches.start, np.int32, rows)
    if placed is not None:
        check_column("placed rows", placed, np.int32)
    if not 0 <= begin <= begin + length <= matches.pairs:
        raise KernelArgumentError(f"pairs {begin} … {begin + length - 1} of {matches.pairs} do not exist")
    check_room(device, 2 * 4 * length, f"{length} pairs")
    probe_row, build_row = device.empty(length, np.int32), device.empty(length, np.int32)
    if length:
        arguments = [
            running, np.uint64(rows), matches.start, placed, np.uint64(begin), np.uint64(length), probe_row, build_row,
        ]  # fmt: skip
        kernel = device.kernel(SPECIALISATIONS[0], "expand_pairs")
        device.launch(kernel, grid_of(device, length, OUTPUT_TILE), BLOCK_THREADS, arguments)
    return probe_row, build_row
