"""Partition hashes: stable, independent by seed, blind to layout."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.engine.hashing import hash_rows, partition_ids

TEXTS = [
    b"",
    b"a",
    b"a\0",
    b"12345678",
    b"123456789",
    b"x" * 255,
    b"x" * 256,
    b"x" * 257,
    b"x" * 999 + b"y",
    "é".encode(),
]


PINNED_INTS = [7960286522194355700, 16834447057089888969, 13029008266876403067, 13647987970143295485]
PINNED_BYTES = [7960286522194355700, 3691784304057940263, 3697733627563800536, 7459979865504866473]


def test_hashes_are_the_same_for_ever() -> None:
    """Two hosts, two versions, two runs must agree; a change of the function breaks running exchanges."""
    ints = pa.table({"k": pa.array([0, 1, -1, 2**62], pa.int64())})
    assert hash_rows(ints).tolist() == PINNED_INTS
    assert hash_rows(pa.table({"k": pa.array(TEXTS[:4], pa.large_binary())})).tolist() == PINNED_BYTES


def test_distinct_values_hash_apart() -> None:
    hashes = hash_rows(pa.table({"k": pa.array(TEXTS, pa.large_binary())}))
    assert len(set(hashes.tolist())) == len(TEXTS)


def test_slices_and_widths_do_not_matter() -> None:
    column = pa.array([None, *TEXTS], pa.large_binary())
    whole = hash_rows(pa.table({"k": column}))
    for start in range(len(column)):
        assert hash_rows(pa.table({"k": column.slice(start)})).tolist() == whole[start:].tolist()
    narrow, wide = (pa.table({"k": pa.array([5, -5, 0], t)}) for t in (pa.int32(), pa.int64()))
    assert hash_rows(narrow).tolist() == hash_rows(wide).tolist()


@pytest.mark.parametrize("partitions", [1, 2, 7, 16, 200, 4096])
def test_partitions_are_even_and_in_range(partitions: int) -> None:
    keys = pa.table({"k": pa.array(np.arange(200_000) * 16)})
    ids = partition_ids(keys, partitions)
    assert ids.dtype == np.int32
    counts = np.bincount(ids, minlength=partitions)
    assert len(counts) == partitions
    mean = len(ids) / partitions
    assert np.abs(counts - mean).max() < 6 * np.sqrt(mean) + 1


def test_a_second_seed_divides_what_the_first_put_together() -> None:
    keys = pa.table({"k": pa.array(np.arange(100_000))})
    together = keys.filter(pa.array(partition_ids(keys, 16) == 3))
    counts = np.bincount(partition_ids(together, 16, seed=1), minlength=16)
    assert counts.min() > together.num_rows / 16 * 0.8


def test_no_rows() -> None:
    assert len(partition_ids(pa.table({"k": pa.array([], pa.large_binary())}), 8)) == 0
