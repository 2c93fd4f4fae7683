"""Sizes of sets of keys, and keys that have none; test_hash.py builds and probes sets."""

from __future__ import annotations

import numpy as np
import pytest

from gpujoin.launch import hashset, unique
from tests.kernels.cases import side
from tests.kernels.devices import RecordingDevice


def test_keys_of_16_bytes_have_a_table_of_rows(device: RecordingDevice, rng: np.random.Generator) -> None:
    build = side(rng, "some", 60, 16)
    table = hashset.build(device, build.on(device))
    assert isinstance(table, unique.HashTable)
    assert table.probe(device, build.on(device)).pairs == 60


@pytest.mark.parametrize("key_bytes", [4, 8])
def test_slots_are_whole_sectors_at_most_half_taken(key_bytes: int) -> None:
    for rows in (0, 1, 31, 1000, 1 << 30, (1 << 31) - 1):
        slots = hashset.slots_for(rows, key_bytes)
        assert slots * key_bytes % 32 == 0
        assert slots <= unique.MAX_SLOTS
        assert slots >= min(2 * rows, unique.MAX_SLOTS - 8)
