"""Launches ``candidates.cu``: matches of two ranges, found by testing each place that fits the first range."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpujoin.errors import KernelArgumentError
from gpujoin.launch.device import Array, Device, ModuleSpec, check_room, memory_errors
from gpujoin.launch.expand import OUTPUT_TILE
from gpujoin.launch.keys import BLOCK_THREADS, check_column, check_rows, grid_of, total, value_of
from gpujoin.launch.matches import Ranges

SPECIALISATIONS: tuple[ModuleSpec, ...] = (ModuleSpec("candidates.cu"),)

_TILE_BYTES = 4 + 8
_PAIR_BYTES = 2 * 4


@dataclass(frozen=True)
class Candidates:
    """Places that fit the first range of each probe row, and the test for the second range."""

    places: Ranges
    """Places whose first point lies in the first range, for each probe row."""
    running: Array
    """Running count of candidates, by :func:`gpujoin.launch.expand.running_counts`."""
    ranks: Array
    """Rank of the second point at each place."""
    second: Ranges
    """Ranks that fit the second range of each probe row: the first of them, and how many."""

    @property
    def rows(self) -> int:
        """Probe rows."""
        return int(self.running.shape[0])

    @property
    def arguments(self) -> list[Array]:
        """The arrays in the order of the kernel's parameters."""
        return [
            self.running, np.uint64(self.rows), self.places.start, self.ranks, self.second.start, self.second.count,
        ]  # fmt: skip


def count(device: Device, candidates: Candidates) -> tuple[Array, int]:
    """Count the matches of each probe row, as int32, and of all."""
    _check(candidates)
    counts, matches = device.zeros(candidates.rows, np.int32), total(device)
    length = candidates.places.pairs
    if length:
        arguments = [*candidates.arguments, np.uint64(length), counts, matches]
        kernel = device.kernel(SPECIALISATIONS[0], "count_candidates")
        device.launch(kernel, grid_of(device, length, OUTPUT_TILE), BLOCK_THREADS, arguments)
    return counts, value_of(device, matches)


def keep(device: Device, candidates: Candidates, placed: Array, begin: int, length: int) -> tuple[Array, Array]:
    """Keep the candidates that match, among ``length`` of them from ``begin`` on, by ascending probe row and place.

    ``placed`` is the int32 build row at each place. Gives int32 probe and build rows.
    """
    _check(candidates)
    check_rows(length)
    check_column("placed rows", placed, np.int32, int(candidates.ranks.shape[0]))
    if not 0 <= begin <= begin + length <= candidates.places.pairs:
        raise KernelArgumentError(
            f"candidates {begin} … {begin + length - 1} of {candidates.places.pairs} do not exist"
        )
    tiles = -(-length // OUTPUT_TILE)
    check_room(device, _TILE_BYTES * tiles, f"{length} candidates")
    if not length:
        return device.empty(0, np.int32), device.empty(0, np.int32)
    of_tile = device.empty(tiles, np.int32)
    portion = [np.uint64(begin), np.uint64(length)]
    grid = grid_of(device, length, OUTPUT_TILE)
    kernel = device.kernel(SPECIALISATIONS[0], "tile_candidates")
    device.launch(kernel, grid, BLOCK_THREADS, [*candidates.arguments, *portion, of_tile])
    with memory_errors("the places of the matches"):
        ends = device.xp.cumsum(of_tile, dtype=np.int64)
        offsets = ends - of_tile
    matches = int(ends[-1])
    check_room(device, _PAIR_BYTES * matches, f"{matches} pairs")
    probe_row, build_row = device.empty(matches, np.int32), device.empty(matches, np.int32)
    if matches:
        arguments = [*candidates.arguments, placed, *portion, offsets, probe_row, build_row]
        kernel = device.kernel(SPECIALISATIONS[0], "keep_candidates")
        device.launch(kernel, grid, BLOCK_THREADS, arguments)
    return probe_row, build_row


def _check(candidates: Candidates) -> None:
    rows = candidates.rows
    check_rows(rows)
    check_column("running counts", candidates.running, np.int64)
    check_column("first places", candidates.places.start, np.int32, rows)
    check_column("ranks of second points", candidates.ranks, np.int32)
    check_column("lowest ranks", candidates.second.start, np.int32, rows)
    check_column("numbers of ranks", candidates.second.count, np.int32, rows)
