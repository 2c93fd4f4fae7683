"""Edges that the mutation check found untested: keys just outside of a range, the last word of a bitmap."""

from __future__ import annotations

import numpy as np
import pytest

from gpujoin.launch import direct
from tests.kernels.cases import DTYPES, Side
from tests.kernels.devices import RecordingDevice

LOW, SLOTS = -7, 64
"""A range that fills whole words of a bitmap, so that the slot after the last is in no word."""


def around(key_bytes: int) -> Side:
    """Every key from two below the range to two above it, the ends of the range twice."""
    keys = [*range(LOW - 2, LOW + SLOTS + 2), LOW, LOW + SLOTS - 1]
    return Side(np.array(keys, DTYPES[key_bytes]))


def inside(keys: list[int]) -> list[bool]:
    return [LOW <= key < LOW + SLOTS for key in keys]


@pytest.mark.parametrize("key_bytes", [4, 8])
def test_build_keys_outside_of_the_range_are_in_no_table(device: RecordingDevice, key_bytes: int) -> None:
    side, keys = around(key_bytes), direct.Range(LOW, SLOTS)
    labels = side.labels()
    here = side.on(device)
    many = direct.build_many(device, here, keys)
    ranges = many.probe(device, here)
    placed = device.download(many.places.rows).tolist()
    start, count = device.download(ranges.start).tolist(), device.download(ranges.count).tolist()
    wanted = [
        [i for i, k in enumerate(labels) if k == key and ok]
        for key, ok in zip(labels, inside(labels), strict=True)
    ]
    assert [placed[s : s + c] for s, c in zip(start, count, strict=True)] == wanted
    assert ranges.pairs == sum(map(len, wanted))
    marks, number = direct.build_set(device, here, keys).test(device, here)
    assert device.download(marks).tolist() == inside(labels)
    assert number == sum(inside(labels))


@pytest.mark.parametrize("key_bytes", [4, 8])
def test_probe_keys_next_to_the_range_match_nothing(device: RecordingDevice, key_bytes: int) -> None:
    build = Side(np.arange(LOW, LOW + SLOTS).astype(DTYPES[key_bytes]))
    keys, probe = direct.Range(LOW, SLOTS), around(key_bytes)
    labels, there = probe.labels(), probe.on(device)
    unique = direct.build_unique(device, build.on(device), keys)
    assert unique is not None
    found = unique.probe(device, there)
    wanted = [key - LOW if ok else -1 for key, ok in zip(labels, inside(labels), strict=True)]
    assert device.download(found.row).tolist() == wanted
    marks, _ = direct.build_set(device, build.on(device), keys).test(device, there)
    assert device.download(marks).tolist() == inside(labels)
