"""Matches of two ranges in a wavelet matrix (``wavelet.cu``)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from gpujoin.errors import DeviceMemoryError, KernelArgumentError
from gpujoin.launch import wavelet
from gpujoin.launch.device import Array, Device
from gpujoin.launch.expand import OUTPUT_TILE
from gpujoin.launch.matches import Ranges
from tests.kernels.cases import SIZES
from tests.kernels.conftest import MakeDevice
from tests.kernels.devices import RecordingDevice

TILE = OUTPUT_TILE
Ints = npt.NDArray[np.int64]


def there(device: Device, array: Ints) -> Array:
    return device.upload(array.astype(np.int32))


def stretches(rng: np.random.Generator, length: int, limit: int, rows: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Random stretches and ranges of ranks, the ends of both among them; some are empty."""
    start = np.where(rng.random(rows) < 0.2, 0, rng.integers(0, length + 1, rows))
    count = np.where(rng.random(rows) < 0.2, length - start, rng.integers(0, length - start + 1))
    low = np.where(rng.random(rows) < 0.2, 0, rng.integers(0, limit + 1, rows))
    width = np.where(rng.random(rows) < 0.2, limit - low, rng.integers(0, limit - low + 1))
    return start, count, low, width


def check(device: RecordingDevice, ranks: Ints, limit: int, asked: tuple[Ints, Ints, Ints, Ints], *slices: int) -> None:
    start, count, low, width = asked
    placed = np.arange(len(ranks)) * 2 + 1
    matrix = wavelet.build(device, there(device, ranks), there(device, placed), limit)
    assert matrix.depth == max(1, limit.bit_length())
    places = Ranges(there(device, start), there(device, count), int(count.sum()))
    counted = wavelet.count(device, matrix, places, Ranges(there(device, low), there(device, width), 0))
    wanted, below = [], []
    for row in range(len(start)):
        ranks_of_row = ranks[start[row] : start[row] + count[row]]
        hits = np.flatnonzero((ranks_of_row >= low[row]) & (ranks_of_row < low[row] + width[row]))
        by_rank = hits[np.argsort(ranks_of_row[hits], kind="stable")]
        wanted.append((placed[start[row] + by_rank]).tolist())
        below.append(int((ranks_of_row < low[row]).sum()))
    assert device.download(counted.count).tolist() == [len(rows) for rows in wanted]
    assert device.download(counted.below).tolist() == below
    assert counted.pairs == sum(map(len, wanted))
    running = device.xp.cumsum(counted.count, dtype=np.int64)
    expected = [(row, build) for row, rows in enumerate(wanted) for build in rows]
    for most in slices:
        pairs: list[tuple[int, int]] = []
        for begin in range(0, counted.pairs, most):
            length = min(most, counted.pairs - begin)
            probe, build = wavelet.pairs(device, matrix, counted, running, begin, length)
            pairs += zip(device.download(probe).tolist(), device.download(build).tolist(), strict=True)
        assert pairs == expected


@pytest.mark.parametrize("length", SIZES)
def test_sizes_of_the_build_side(device: RecordingDevice, rng: np.random.Generator, length: int) -> None:
    limit = max(1, length // 3)
    ranks = rng.integers(0, limit, length)
    check(device, ranks, limit, stretches(rng, length, limit, 12), 1 << 20)


@pytest.mark.parametrize("rows", SIZES)
def test_sizes_of_the_probe_side(device: RecordingDevice, rng: np.random.Generator, rows: int) -> None:
    check(device, rng.integers(0, 5, 40), 5, stretches(rng, 40, 5, rows), 1 << 20)


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4, 7, 8, 9])
def test_every_rank_and_every_bound(device: RecordingDevice, rng: np.random.Generator, limit: int) -> None:
    """Ranks up to the limit, and every range of them."""
    ranks = rng.integers(0, limit + 1, 70)
    low, high = (column.reshape(-1) for column in np.meshgrid(np.arange(limit + 1), np.arange(limit + 1)))
    whole = np.full(len(low), 70)
    check(device, ranks, limit, (whole - 70, whole, low, np.maximum(high - low, 0)), 1 << 20, 29)
    part = np.full(len(low), 33)
    check(device, ranks, limit, (part - 2, part, low, np.maximum(high - low, 0)), 1 << 20)


@pytest.mark.parametrize("pairs", [1, 31, 33, TILE - 1, TILE, TILE + 1, 2 * TILE + 1])
def test_tiles_of_pairs(device: RecordingDevice, rng: np.random.Generator, pairs: int) -> None:
    """One row with all pairs, and rows without any around it."""
    asked = tuple(np.array(column) for column in ([0, 3, 0], [0, pairs, 5], [0, 0, 8], [9, 9, 1]))
    check(device, rng.integers(0, 8, pairs + 5), 9, asked, 1 << 20, 700)  # type: ignore[arg-type]


def test_one_rank_and_zipf(device: RecordingDevice, rng: np.random.Generator) -> None:
    check(device, np.full(300, 6), 7, stretches(rng, 300, 7, 60), 1 << 20)
    ranks = np.minimum(rng.zipf(1.5, 900), 60)
    check(device, ranks, 61, stretches(rng, 900, 61, 40), 1 << 20)


def test_ranks_of_31_bits(device: RecordingDevice, rng: np.random.Generator) -> None:
    most = (1 << 31) - 1
    ranks = np.array([0, 1, most - 1, most // 2, most - 1, most // 2 + 1])
    asked = tuple(np.array(column) for column in ([0, 0, 1, 2], [6, 6, 5, 4], [0, 1, most - 1, most], [most, 1, 1, 0]))
    check(device, ranks, most, asked, 1 << 20)  # type: ignore[arg-type]


def test_what_does_not_exist_is_refused(device: RecordingDevice) -> None:
    ranks = device.zeros(20, np.int32)
    matrix = wavelet.build(device, ranks, ranks, 3)
    assert matrix.nbytes == 2 * 8 + 2 * 8 + 20 * 4
    device.launches.clear()
    with pytest.raises(KernelArgumentError, match="ranks of second points"):
        wavelet.build(device, ranks.astype(np.int64), ranks, 3)
    with pytest.raises(KernelArgumentError, match="placed rows"):
        wavelet.build(device, ranks, ranks[:3], 3)
    with pytest.raises(KernelArgumentError, match="rows"):
        wavelet.build(device, ranks, ranks, 1 << 31)
    zeros = device.zeros(2, np.int32)
    with pytest.raises(KernelArgumentError, match="lowest ranks"):
        wavelet.count(device, matrix, Ranges(zeros, zeros, 0), Ranges(ranks, zeros, 0))
    with pytest.raises(KernelArgumentError, match="numbers of places"):
        wavelet.count(device, matrix, Ranges(zeros, ranks, 0), Ranges(zeros, zeros, 0))
    counted = wavelet.WaveletCounts(Ranges(zeros, zeros, 0), zeros, zeros, 5)
    running = device.zeros(2, np.int64)
    for begin, length in ((0, 6), (5, 1), (-1, 2), (0, 1 << 31)):
        with pytest.raises(KernelArgumentError):
            wavelet.pairs(device, matrix, counted, running, begin, length)
    with pytest.raises(KernelArgumentError, match="running"):
        wavelet.pairs(device, matrix, counted, zeros, 0, 1)
    assert device.launches == []


def test_what_does_not_fit_is_refused(make_device: MakeDevice) -> None:
    device = make_device(memory_limit=100_000)
    ranks = device.zeros(9000, np.int32)
    with pytest.raises(DeviceMemoryError, match="9000 rows"):
        wavelet.build(device, ranks, ranks, 9000)
    assert device.launches == []
