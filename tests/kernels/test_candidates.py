"""Matches of two ranges by looking at candidates (``candidates.cu``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from gpujoin.errors import DeviceMemoryError, KernelArgumentError
from gpujoin.launch import candidates, expand
from gpujoin.launch.candidates import Candidates
from gpujoin.launch.device import Device
from gpujoin.launch.matches import Ranges
from tests.kernels.conftest import MakeDevice
from tests.kernels.devices import RecordingDevice

TILE = expand.OUTPUT_TILE
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """Ranks of the build rows in order, and for each probe row its places and the ranks that it wants."""

    ranks: Ints
    start: Ints
    count: Ints
    low: Ints
    width: Ints
    placed: Ints

    @classmethod
    def drawn(cls, rng: np.random.Generator, counts: Ints, places: int, distinct: int = 9) -> Case:
        start = np.array([rng.integers(0, places - count + 1) for count in counts.tolist()], np.int64)
        low = rng.integers(0, distinct, len(counts))
        width = rng.integers(0, distinct - low + 1)
        ranks = rng.integers(0, distinct, places)
        return cls(ranks, start, counts, low, width, rng.permutation(places))

    def on(self, device: Device) -> Candidates:
        def there(array: Ints) -> object:
            return device.upload(array.astype(np.int32))

        places = Ranges(there(self.start), there(self.count), int(self.count.sum()))
        second = Ranges(there(self.low), there(self.width), 0)
        return Candidates(places, expand.running_counts(device, places), there(self.ranks), second)

    def matches(self) -> list[list[int]]:
        """Places of the matches of each probe row."""
        pairs = []
        for start, count, low, width in zip(self.start, self.count, self.low, self.width, strict=True):
            places = np.arange(start, start + count)
            ranks = self.ranks[places]
            pairs.append(places[(ranks >= low) & (ranks < low + width)].tolist())
        return pairs


def check(device: RecordingDevice, case: Case, *slices: int) -> None:
    wanted = case.matches()
    looked = case.on(device)
    counts, pairs = candidates.count(device, looked)
    assert device.download(counts).tolist() == [len(places) for places in wanted]
    assert pairs == sum(map(len, wanted))
    expected = [(row, int(case.placed[place])) for row, places in enumerate(wanted) for place in places]
    placed = device.upload(case.placed.astype(np.int32))
    for most in slices:
        matches: list[tuple[int, int]] = []
        for begin in range(0, looked.places.pairs, most):
            length = min(most, looked.places.pairs - begin)
            probe, build = candidates.keep(device, looked, placed, begin, length)
            matches += zip(device.download(probe).tolist(), device.download(build).tolist(), strict=True)
        assert matches == expected


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 255, 256, 257, TILE - 1, TILE, TILE + 1, 4 * TILE + 1])
def test_sizes(device: RecordingDevice, rng: np.random.Generator, length: int) -> None:
    counts = np.bincount(rng.integers(0, 50, length), minlength=51)
    check(device, Case.drawn(rng, counts, 200 + int(counts.max(initial=0))), 1 << 20, 700)


def test_a_row_of_many_candidates_is_shared_by_many_tiles(device: RecordingDevice, rng: np.random.Generator) -> None:
    check(device, Case.drawn(rng, np.array([0, 2, 5 * TILE + 3, 0, 1]), 6 * TILE), 1 << 20, TILE + 1)


def test_more_rows_without_candidates_than_are_staged(device: RecordingDevice, rng: np.random.Generator) -> None:
    counts = np.zeros(9000, np.int64)
    counts[[0, 17, 4000, 8000, 8999]] = [3, 1, 2, TILE, 2]
    check(device, Case.drawn(rng, counts, 2 * TILE), 1 << 20, 300)


def test_all_match_and_none_does(device: RecordingDevice) -> None:
    """Tiles that are full and tiles that are empty."""
    counts = np.full(70, 61)
    ranks, zero = np.repeat([0, 5, 3], 100), np.zeros(70, np.int64)
    for low, width in ((0, 6), (0, 0), (5, 1), (4, 1), (0, 3), (5, 0), (6, 0)):
        case = Case(ranks, zero + 90, counts, zero + low, zero + width, np.arange(300)[::-1])
        check(device, case, 1 << 20, 500)


def test_ranks_at_the_end_of_their_type(device: RecordingDevice) -> None:
    most = (1 << 31) - 1
    ranks = np.array([0, 1, most - 1, most, 0])
    low = np.array([0, 0, most, most - 1, 1, 0])
    width = np.array([most, 1, 0, 1, most - 1, 0])
    check(device, Case(ranks, np.zeros(6, np.int64), np.full(6, 5), low, width, np.arange(5)), 1 << 20)


def test_what_does_not_exist_is_refused(device: RecordingDevice, rng: np.random.Generator) -> None:
    case = Case.drawn(rng, np.array([2, 3]), 20).on(device)
    placed = device.zeros(20, np.int32)
    for begin, length in ((0, 6), (5, 1), (-1, 2), (0, 1 << 31)):
        with pytest.raises(KernelArgumentError):
            candidates.keep(device, case, placed, begin, length)
    with pytest.raises(KernelArgumentError, match="placed rows"):
        candidates.keep(device, case, placed[:19], 0, 1)
    bad = Candidates(case.places, case.running, case.ranks.astype(np.int64), case.second)
    with pytest.raises(KernelArgumentError, match="ranks of second points"):
        candidates.count(device, bad)
    bad = Candidates(case.second, case.running[:1], case.ranks, case.second)
    with pytest.raises(KernelArgumentError, match="first places"):
        candidates.count(device, bad)
    assert device.launches == []


def test_what_does_not_fit_is_refused(make_device: MakeDevice) -> None:
    device = make_device(memory_limit=200_000)
    counts, zero = np.array([40_000]), np.zeros(1, np.int64)
    case = Case(np.zeros(40_000, np.int64), zero, counts, zero, zero + 1, zero).on(device)
    with pytest.raises(DeviceMemoryError, match="40000 pairs"):
        candidates.keep(device, case, case.ranks, 0, 40_000)
    assert "keep_candidates" not in device.launches
