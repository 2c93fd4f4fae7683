"""Pairs of a many-to-many join (``expand.cu``)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from gpujoin.errors import KernelArgumentError
from gpujoin.launch import expand
from gpujoin.launch.matches import Ranges
from tests.kernels.devices import RecordingDevice

TILE = expand.OUTPUT_TILE
STAGED = 2048
"""Rows staged in shared memory, as in ``expand.cuh``."""


def ranges(
    device: RecordingDevice, counts: npt.NDArray[np.int64], rng: np.random.Generator
) -> tuple[Ranges, list[int]]:
    """Counts with first places somewhere."""
    start = rng.integers(0, 50, len(counts)).astype(np.int32)
    matches = Ranges(device.upload(start), device.upload(counts.astype(np.int32)), int(counts.sum()))
    return matches, start.tolist()


def check(device: RecordingDevice, counts: npt.NDArray[np.int64], rng: np.random.Generator, *lengths: int) -> None:
    matches, start = ranges(device, counts, rng)
    placed = rng.permutation(50 + int(counts.max(initial=0))).astype(np.int32)
    expected = [(row, start[row] + i) for row, count in enumerate(counts.tolist()) for i in range(count)]
    running = expand.running_counts(device, matches)
    on_device = device.upload(placed)
    for most in lengths:
        for table in (None, on_device):
            pairs: list[tuple[int, int]] = []
            for begin in range(0, matches.pairs, most):
                length = min(most, matches.pairs - begin)
                probe, build = expand.pairs(device, matches, running, table, begin, length)
                pairs += zip(device.download(probe).tolist(), device.download(build).tolist(), strict=True)
            assert pairs == [(row, place if table is None else int(placed[place])) for row, place in expected]


@pytest.mark.parametrize("pairs", [0, 1, 31, 33, TILE - 1, TILE, TILE + 1, 2 * TILE + 1])
def test_sizes(device: RecordingDevice, rng: np.random.Generator, pairs: int) -> None:
    counts = np.bincount(rng.integers(0, 40, pairs), minlength=41)
    check(device, counts, rng, 1 << 20, 700)


def test_a_hot_key_is_shared_by_many_tiles(device: RecordingDevice, rng: np.random.Generator) -> None:
    counts = np.array([0, 1, 5 * TILE + 3, 0, 2])
    check(device, counts, rng, 1 << 20, TILE + 1)


def test_more_rows_without_matches_than_are_staged(device: RecordingDevice, rng: np.random.Generator) -> None:
    """Between two pairs of a tile there may be any number of rows without one."""
    counts = np.zeros(9000, np.int64)
    counts[[0, 17, 4000, 8000, 8999]] = [3, 1, 2, TILE, 2]
    check(device, counts, rng, 1 << 20, 3)


@pytest.mark.parametrize("apart", [STAGED - 1, STAGED, STAGED + 1])
def test_as_many_rows_as_are_staged(device: RecordingDevice, rng: np.random.Generator, apart: int) -> None:
    """One tile's first and last row are so many rows apart, and there are rows with pairs after them."""
    counts = np.zeros(apart + 3, np.int64)
    counts[[0, apart // 2, apart]] = [2, TILE - 3, 1]
    counts[apart + 1 :] = [1, TILE]
    check(device, counts, rng, 1 << 20)


def test_one_pair_at_a_time(device: RecordingDevice, rng: np.random.Generator) -> None:
    check(device, np.array([0, 3, 0, 0, 2, 1]), rng, 1, 2)


def test_totals_over_32_bits(device: RecordingDevice) -> None:
    """Three probe rows with 2^31 - 1 matches each: the pairs in the middle and at the end."""
    many = (1 << 31) - 1
    rows = 3
    matches = Ranges(device.full(rows, 0, np.int32), device.full(rows, many, np.int32), rows * many)
    running = expand.running_counts(device, matches)
    assert device.download(running).tolist() == [many, 2 * many, 3 * many]
    for begin, row in ((many - 2, 0), (2 * many - 2, 1), (3 * many - 4, 2)):
        probe, place = expand.pairs(device, matches, running, None, begin, 4)
        expected = [divmod(begin + i, many) for i in range(4)]
        assert expected[0][0] == row
        pairs = zip(device.download(probe).tolist(), device.download(place).tolist(), strict=True)
        assert list(pairs) == expected


def test_what_does_not_exist_is_refused(device: RecordingDevice, rng: np.random.Generator) -> None:
    matches, _ = ranges(device, np.array([2, 3]), rng)
    running = expand.running_counts(device, matches)
    for begin, length in ((0, 6), (5, 1), (-1, 2), (0, 1 << 31)):
        with pytest.raises(KernelArgumentError):
            expand.pairs(device, matches, running, None, begin, length)
    with pytest.raises(KernelArgumentError, match="int64"):
        expand.pairs(device, matches, running.astype(np.int32), None, 0, 1)
    assert device.launches == []
