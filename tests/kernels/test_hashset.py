"""Sets of keys (``hashset.cu``) against Python sets."""

from __future__ import annotations

import numpy as np
import pytest

from gpujoin.launch import hashset, unique
from tests.kernels.cases import SIZES, Side, colliding, extremes, side
from tests.kernels.conftest import MakeDevice
from tests.kernels.devices import RecordingDevice

WIDTHS = (4, 8)
SPREAD = 97_003


def check(device: RecordingDevice, build: Side, probe: Side) -> None:
    """A set of one side, probed by the other."""
    keys = {key for key in build.labels() if key is not None}
    expected = [0 if key in keys else -1 for key in probe.labels()]
    table = hashset.build(device, build.on(device))
    assert isinstance(table, hashset.HashSet)
    result = table.probe(device, probe.on(device))
    assert device.download(result.row).tolist() == expected
    assert result.pairs == expected.count(0)
    assert table.nbytes == table.slots * table.key_bytes
    assert table.nbytes % 32 == 0


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("shape", ["unique", "some"])
def test_sizes(device: RecordingDevice, rng: np.random.Generator, shape: str, rows: int) -> None:
    key_bytes = WIDTHS[SIZES.index(rows) % 2]
    build = side(rng, shape, rows, key_bytes, spread=SPREAD, nulls=0.1 * (rows % 3))
    check(device, build, side(rng, "some", rows + 1, key_bytes, spread=SPREAD, nulls=0.1))


@pytest.mark.parametrize("key_bytes", WIDTHS)
@pytest.mark.parametrize("shape", ["one", "zipf", "extremes"])
def test_duplicates(device: RecordingDevice, rng: np.random.Generator, shape: str, key_bytes: int) -> None:
    probe = side(rng, shape, 90, key_bytes, nulls=0.2)
    check(device, side(rng, shape, 700, key_bytes), probe)
    check(device, side(rng, shape, 70, key_bytes, nulls=0.5), probe)


@pytest.mark.parametrize("key_bytes", WIDTHS)
def test_no_key_value_is_special(device: RecordingDevice, key_bytes: int) -> None:
    """Each extreme key once in the build side, and once missing from it; a free slot has all bits set."""
    ends = extremes(key_bytes)
    assert -1 in ends
    check(device, Side(ends), Side(ends))
    for missing in range(len(ends)):
        check(device, Side(np.delete(ends, missing, axis=0)), Side(ends))


@pytest.mark.few
@pytest.mark.parametrize("key_bytes", WIDTHS)
@pytest.mark.parametrize("bits", [1, 4], ids=["two hashes", "sixteen hashes"])
def test_forced_collisions(make_device: MakeDevice, rng: np.random.Generator, bits: int, key_bytes: int) -> None:
    """Long runs of taken slots, also around the end of the set."""
    device = make_device(colliding(bits, "hashset.cu"))
    build = side(rng, "unique", 100, key_bytes)
    check(device, build, side(rng, "some", 300, key_bytes))
    check(device, side(rng, "some", 100, key_bytes), build)


def test_a_full_set_ends_every_search(
    monkeypatch: pytest.MonkeyPatch, make_device: MakeDevice, rng: np.random.Generator
) -> None:
    monkeypatch.setattr(hashset, "slots_for", lambda rows, _: rows)
    build = side(rng, "unique", 64, 8)
    probe = Side(np.arange(-20, 100, dtype=np.int64))
    check(make_device(), build, probe)
    check(make_device(colliding(1, "hashset.cu")), build, probe)


@pytest.mark.parametrize("key_bytes", WIDTHS)
def test_nothing_matches_nothing(device: RecordingDevice, rng: np.random.Generator, key_bytes: int) -> None:
    full = side(rng, "some", 40, key_bytes)
    none = Side(full.codes, np.zeros(40, bool))
    check(device, none, full)
    check(device, full, none)


def test_keys_of_16_bytes_have_a_table_of_rows(device: RecordingDevice, rng: np.random.Generator) -> None:
    build = side(rng, "some", 60, 16)
    table = hashset.build(device, build.on(device))
    assert isinstance(table, unique.HashTable)
    assert table.probe(device, build.on(device)).pairs == 60


@pytest.mark.parametrize("key_bytes", WIDTHS)
def test_slots_are_whole_sectors_at_most_half_taken(key_bytes: int) -> None:
    for rows in (0, 1, 31, 1000, 1 << 30, (1 << 31) - 1):
        slots = hashset.slots_for(rows, key_bytes)
        assert slots * key_bytes % 32 == 0
        assert slots <= unique.MAX_SLOTS
        assert slots >= min(2 * rows, unique.MAX_SLOTS - 8)
