"""Running sums of counts (``sums.cu``), against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from gpujoin.errors import DeviceMemoryError, KernelArgumentError
from gpujoin.launch import sums
from tests.kernels.cases import SIZES
from tests.kernels.conftest import MakeDevice
from tests.kernels.devices import RecordingDevice

TILE = sums.SUM_TILE


@pytest.mark.parametrize("length", [*SIZES, TILE - 1, TILE, TILE + 1, 3 * TILE + 300])
@pytest.mark.parametrize("most", [1, 1000])
def test_sums_before_each_count(device: RecordingDevice, rng: np.random.Generator, length: int, most: int) -> None:
    counts = rng.integers(0, most + 1, length).astype(np.int32)
    first = sums.first_places(device, device.upload(counts))
    assert first.dtype == np.int32
    assert device.download(first).tolist() == [0, *np.cumsum(counts).tolist()]


def test_more_tiles_than_blocks(device: RecordingDevice, rng: np.random.Generator) -> None:
    counts = rng.integers(0, 3, (device.properties.blocks + 2) * TILE + 1).astype(np.int32)
    first = device.download(sums.first_places(device, device.upload(counts)))
    assert first[0] == 0
    assert (first[1:] == np.cumsum(counts)).all()


def test_a_total_of_31_bits(device: RecordingDevice) -> None:
    counts = np.zeros(2 * TILE, np.int32)
    counts[[5, TILE + 9]] = (1 << 30, (1 << 30) - 1)
    first = device.download(sums.first_places(device, device.upload(counts)))
    assert first[[5, 6, TILE + 9, TILE + 10, -1]].tolist() == [0, 1 << 30, 1 << 30, (1 << 31) - 1, (1 << 31) - 1]


def test_what_cannot_be_summed_up_is_refused(make_device: MakeDevice) -> None:
    device = make_device(memory_limit=4 * 3000 + 4000)
    with pytest.raises(KernelArgumentError, match="counts"):
        sums.first_places(device, device.zeros(8, np.int64))
    counts = device.zeros(3000, np.int32)
    with pytest.raises(DeviceMemoryError, match="ask for less at a time"):
        sums.first_places(device, counts)
    assert device.launches == []
