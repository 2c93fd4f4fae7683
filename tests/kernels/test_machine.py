"""The memory accesses of ``machine.cu``, against their places computed on the host: none may be left out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.kernels import accesses
from tests.kernels.cases import mix
from tests.kernels.devices import RecordingDevice

MANY = 2100
"""More than the emulated device has threads."""
FREE = (1 << 64) - 1


def places(count: int, of: int) -> npt.NDArray[np.int64]:
    """The first pseudo-random places."""
    return np.array([(mix(number) >> 32) * of >> 32 for number in range(count)], np.int64)


def words(rng: np.random.Generator, count: int) -> npt.NDArray[np.uint64]:
    return rng.integers(0, 1 << 63, count, np.uint64)


def test_every_word_is_copied(device: RecordingDevice, rng: np.random.Generator) -> None:
    for count in (0, 2, 2 * MANY):
        source, target = words(rng, count), device.zeros(count, np.uint64)
        accesses.copy(device, device.upload(source), target)
        assert (device.download(target) == source).all()


def test_every_word_is_gathered(device: RecordingDevice, rng: np.random.Generator) -> None:
    source = words(rng, 1000)
    for reads in (0, 1, MANY):
        gathered = accesses.gather_words(device, device.upload(source), reads)
        assert device.download(gathered)[0] == source[places(reads, 1000)].sum(dtype=np.uint64)


@pytest.mark.parametrize("run", [4, 8, 16])
def test_every_run_is_gathered(device: RecordingDevice, rng: np.random.Generator, run: int) -> None:
    source = words(rng, 1000 + run - 1)
    whole = source[: len(source) // run * run].reshape(-1, run)
    for reads in (0, 1, MANY):
        gathered = accesses.gather_runs(device, device.upload(source), run, reads)
        assert device.download(gathered)[0] == whole[places(reads, len(whole))].sum(dtype=np.uint64)


def test_every_counter_is_added_to(device: RecordingDevice) -> None:
    for additions in (0, 1, MANY):
        counters = device.zeros(100, np.uint32)
        accesses.add_counters(device, counters, additions)
        wanted = np.bincount(places(additions, 100), minlength=100)
        assert device.download(counters).tolist() == wanted.tolist()


def test_every_free_slot_is_taken(device: RecordingDevice) -> None:
    """Of many slots too, most of which a single take comes to."""
    for takes, count in ((0, 100), (1, 100), (MANY, 100), (MANY, 20 * MANY)):
        slots = device.full(count, FREE, np.uint64)
        accesses.take_slots(device, slots, takes)
        taken = device.download(slots)
        wanted = places(takes, count)
        for place, by in enumerate(taken.tolist()):
            assert (by == FREE) == (place not in wanted)
            assert by == FREE or wanted[by] == place


def test_slots_are_swapped(device: RecordingDevice) -> None:
    """Every slot that a number comes to holds one of the numbers that came to it."""
    for swaps, count in ((0, 100), (1, 100), (MANY, 100)):
        slots = device.full(count, FREE, np.uint64)
        accesses.swap_slots(device, slots, swaps)
        wanted = places(swaps, count)
        for place, by in enumerate(device.download(slots).tolist()):
            assert (by == FREE) == (place not in wanted)
            assert by == FREE or wanted[by] == place


@pytest.mark.parametrize("order", accesses.Order, ids=lambda order: order.name)
def test_every_number_is_entered_into_its_partition(device: RecordingDevice, order: accesses.Order) -> None:
    for entries, partitions, count in ((0, 1, 8), (1, 1, 8), (MANY, 1, 2 * MANY), (MANY, 7, 14 * 301)):
        slots = device.full(count, FREE, np.uint64)
        accesses.enter_numbers(device, slots, partitions, entries, order)
        windows = device.download(slots).reshape(partitions, -1)
        each = -(-entries // partitions)
        for number, window in enumerate(windows):
            inside = sorted(window[window != FREE].tolist())
            assert inside == list(range(number * each, min(entries, (number + 1) * each)))


@pytest.mark.parametrize("rows", [0, 1, accesses.RADIX_TILE, accesses.RADIX_TILE + 1, 3 * accesses.RADIX_TILE - 5])
def test_a_radix_pass_orders_rows_by_digit(device: RecordingDevice, rng: np.random.Generator, rows: int) -> None:
    keys, payload = words(rng, rows), words(rng, rows)
    moved = [device.download(a) for a in accesses.radix_pass(device, device.upload(keys), device.upload(payload))]
    digits = [mix(key) >> 56 for key in moved[0].tolist()]
    assert digits == sorted(digits)
    assert sorted(zip(*(column.tolist() for column in moved), strict=True)) == sorted(
        zip(keys.tolist(), payload.tolist(), strict=True)
    )
