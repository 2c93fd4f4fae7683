"""Launches ``wavelet.cu``: counts and finds matches of two ranges, in a wavelet matrix of the second points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpujoin.errors import KernelArgumentError
from gpujoin.launch.device import Array, Device, ModuleSpec, check_room, memory_errors
from gpujoin.launch.expand import OUTPUT_TILE
from gpujoin.launch.keys import BLOCK_THREADS, check_column, check_rows, grid_of, total, value_of
from gpujoin.launch.matches import Ranges

SPECIALISATIONS: tuple[ModuleSpec, ...] = (ModuleSpec("wavelet.cu"),)

_WORD_POSITIONS = 32
_PAIR_BYTES = 2 * 4


@dataclass(frozen=True)
class Matrix:
    """A wavelet matrix over a sequence of ranks."""

    words: Array
    """Bits and counts, as ``wavelet.cu`` reads them."""
    zeros: Array
    """Number of zeros of each level."""
    placed: Array
    """Build rows in the order of the last level."""

    @property
    def depth(self) -> int:
        """Steps of a search."""
        return int(self.words.shape[0])

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return int(self.words.nbytes + self.zeros.nbytes + self.placed.nbytes)

    @property
    def arguments(self) -> list[Array]:
        """The arrays in the order of the kernel's parameters."""
        return [self.words, self.zeros, np.uint64(self.words.shape[1]), np.uint32(self.depth)]


@dataclass(frozen=True)
class WaveletCounts:
    """The counted matches of each probe row."""

    places: Ranges
    """Places that were searched, for each probe row."""
    below: Array
    """Number of places whose rank is too low."""
    count: Array
    """Number of matches."""
    pairs: int
    """Total number of matches, exact in 64 bits."""


def build(device: Device, ranks: Array, placed: Array, limit: int) -> Matrix:
    """Build a wavelet matrix over the int32 rank, not negative, of each place's second point.

    ``placed`` is the int32 build row at each place, ``limit`` the upper limit of all ranks and of all bounds.
    """
    check_column("ranks of second points", ranks, np.int32)
    length = int(ranks.shape[0])
    check_rows(max(length, limit))
    check_column("placed rows", placed, np.int32, length)
    depth, words = max(1, limit.bit_length()), length // _WORD_POSITIONS + 1
    check_room(device, (8 * depth + 4 + 8 + 8) * words + 4 * 4 * length, f"a search structure of {length} rows")
    matrix = device.empty((depth, words), np.uint64)
    zeros = device.empty(depth, np.int64)
    votes, number = device.empty(words, np.uint32), device.empty(words, np.int64)
    grid = grid_of(device, words * _WORD_POSITIONS)
    count, split = (device.kernel(SPECIALISATIONS[0], name) for name in ("wavelet_zeros", "wavelet_split"))
    for level in range(depth):
        arguments = [ranks, np.uint64(length), np.uint64(words), np.uint32(depth - 1 - level), votes, number]
        device.launch(count, grid, BLOCK_THREADS, arguments)
        with memory_errors("a search structure"):
            running = device.xp.cumsum(number, dtype=np.int64)
        zeros[level] = running[-1]
        after = device.empty(length, np.int32), device.empty(length, np.int32)
        arguments = [ranks, placed, np.uint64(length), np.uint64(words), votes, running, matrix[level], *after]
        device.launch(split, grid, BLOCK_THREADS, arguments)
        ranks, placed = after
    return Matrix(matrix, zeros, placed)


def count(device: Device, matrix: Matrix, places: Ranges, second: Ranges) -> WaveletCounts:
    """Count the places of each probe row whose rank lies in its second range.

    A range has the first rank, and their number.
    """
    rows = int(places.start.shape[0])
    check_rows(rows)
    _check(places, rows)
    check_column("lowest ranks", second.start, np.int32, rows)
    check_column("numbers of ranks", second.count, np.int32, rows)
    below, counts, matches = device.empty(rows, np.int32), device.empty(rows, np.int32), total(device)
    if rows:
        arguments = [
            *matrix.arguments, places.start, places.count, second.start, second.count, np.uint64(rows), below, counts,
            matches,
        ]  # fmt: skip
        kernel = device.kernel(SPECIALISATIONS[0], "wavelet_count")
        device.launch(kernel, grid_of(device, rows), BLOCK_THREADS, arguments)
    return WaveletCounts(places, below, counts, value_of(device, matches))


def pairs(
    device: Device, matrix: Matrix, counted: WaveletCounts, running: Array, begin: int, length: int
) -> tuple[Array, Array]:
    """Find ``length`` of the pairs that were counted from ``begin`` on, ascending by probe row, rank and place.

    ``running`` is the int64 running count of pairs. Gives int32 probe and build rows.
    """
    rows = int(counted.places.start.shape[0])
    check_rows(max(rows, length))
    _check(counted.places, rows)
    check_column("running counts", running, np.int64, rows)
    check_column("numbers of low ranks", counted.below, np.int32, rows)
    if not 0 <= begin <= begin + length <= counted.pairs:
        raise KernelArgumentError(f"pairs {begin} … {begin + length - 1} of {counted.pairs} do not exist")
    check_room(device, _PAIR_BYTES * length, f"{length} pairs")
    probe_row, build_row = device.empty(length, np.int32), device.empty(length, np.int32)
    if length:
        arguments = [
            *matrix.arguments, matrix.placed, running, np.uint64(rows), counted.places.start, counted.places.count,
            counted.below, np.uint64(begin), np.uint64(length), probe_row, build_row,
        ]  # fmt: skip
        kernel = device.kernel(SPECIALISATIONS[0], "wavelet_pairs")
        device.launch(kernel, grid_of(device, length, OUTPUT_TILE), BLOCK_THREADS, arguments)
    return probe_row, build_row


def _check(places: Ranges, rows: int) -> None:
    check_column("first places", places.start, np.int32, rows)
    check_column("numbers of places", places.count, np.int32, rows)
