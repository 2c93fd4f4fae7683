"""Roaring bitmaps: every kind of container, and bytes that are none."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gpujoin.backends.parquet.roaring import RoaringError, numbers_in
from tests.deletions import bitmap

MOST = 1 << 34
BITMAPS: dict[str, list[int]] = {
    "nothing": [],
    "first": [0],
    "ends of containers": [65535, 65536, 131071, 131072],
    "an array": list(range(0, 8000, 2)),
    "bits": list(range(0, 9000, 2)),
    "a full container": list(range(65536)),
    "many containers": [n << 16 for n in range(9)],
    "upper halves": [5, (1 << 32) + 5, (1 << 33) + 65536],
    "runs": [*range(10, 500), *range(600, 65536), *range(131000, 140000)],
}


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("name", BITMAPS)
def test_bitmaps_of_every_kind(name: str, runs: bool) -> None:
    numbers = BITMAPS[name]
    decoded = numbers_in(bitmap(numbers, runs=runs), MOST)
    assert decoded.dtype == np.int64
    assert decoded.tolist() == numbers


def test_numbers_beyond_the_file_are_refused_before_they_take_memory() -> None:
    data = bitmap(range(1 << 20), runs=True)
    assert len(data) < 50_000
    with pytest.raises(RoaringError, match="more numbers than there may be"):
        numbers_in(data, 1000)
    with pytest.raises(RoaringError, match="the number 1000, not below 1000"):
        numbers_in(bitmap([3, 1000]), 1000)


def test_any_bytes_are_ascending_numbers_or_an_error(rng: np.random.Generator) -> None:
    """Bytes of bitmaps are changed, left out, and put twice."""
    draw = random.Random(int(rng.integers(1 << 30)))  # not for secrets
    sound = [bitmap(numbers, runs=runs) for numbers in BITMAPS.values() for runs in (False, True)]
    decoded = 0
    for _ in range(3000):
        data = bytearray(draw.choice(sound))
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(min(len(data), 64) or 1) if draw.random() < 0.7 else draw.randrange(len(data) or 1)
            match draw.randrange(3):
                case 0 if data:
                    data[at] = draw.randrange(256)
                case 1:
                    del data[at : at + draw.randint(1, 9)]
                case _:
                    data[at:at] = data[at : at + draw.randint(1, 9)]
        try:
            numbers = numbers_in(bytes(data), 1 << 20)
        except RoaringError:
            continue
        decoded += 1
        assert (np.diff(numbers) > 0).all()
        assert len(numbers) == 0 or 0 <= numbers[0] <= numbers[-1] < 1 << 20
    assert decoded < 3000
