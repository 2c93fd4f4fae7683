"""Facts of key columns (``facts.cu``)."""

from __future__ import annotations

import numpy as np
import pytest

from gpujoin.launch import facts
from gpujoin.launch.facts import ColumnFacts
from tests.kernels.cases import DTYPES, SIZES, Side, extremes, mix, side
from tests.kernels.devices import RecordingDevice

WIDTHS = (4, 8, 16)


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("key_bytes", WIDTHS)
def test_range_and_number(device: RecordingDevice, rng: np.random.Generator, rows: int, key_bytes: int) -> None:
    for shape, nulls in (("some", 0.3), ("extremes", 0.0)):
        column = side(rng, shape, rows, key_bytes, nulls=nulls)
        keys = [key for key in column.labels() if key is not None]
        ranged = bool(keys) and key_bytes != 16
        expected = ColumnFacts(rows, len(keys), min(keys) if ranged else None, max(keys) if ranged else None)
        assert facts.column_facts(device, column.on(device)) == expected


@pytest.mark.parametrize("key_bytes", [4, 8])
def test_a_single_key_at_each_end(device: RecordingDevice, key_bytes: int) -> None:
    for key in extremes(key_bytes).tolist():
        key_facts = facts.column_facts(device, Side(np.array([key] * 3, DTYPES[key_bytes])).on(device))
        assert key_facts == ColumnFacts(3, 3, key, key)
    none = Side(np.zeros(40, DTYPES[key_bytes]), np.zeros(40, bool))
    assert facts.column_facts(device, none.on(device)) == ColumnFacts(40, 0, None, None)


@pytest.mark.parametrize("key_bytes", WIDTHS)
def test_samples_are_rows_from_all_over(device: RecordingDevice, rng: np.random.Generator, key_bytes: int) -> None:
    column = side(rng, "unique", 1000, key_bytes, nulls=0.2)
    assert column.valid is not None
    place = {key: row for row, key in enumerate(Side(column.codes).labels())}
    for samples, seed in ((1, 0), (7, 1), (999, 2), (1000, 3), (5000, 4)):
        sample = facts.sample(device, column.on(device), samples, seed)
        assert sample.rows == min(samples, 1000)
        assert sample.valid is not None
        rows = [place[key] for key in Side(device.download(sample.codes)).labels()]
        assert device.download(sample.valid).tolist() == [column.valid[row] for row in rows]
        if samples >= 1000:
            assert rows == list(range(1000))
        else:
            assert len(set(rows)) == samples, "a row was drawn twice"
        if samples == 999:
            assert rows != sorted(rows)
    assert facts.sample(device, side(rng, "unique", 0, key_bytes).on(device)).rows == 0


def shuffled(number: int, bits: int, seed: int) -> int:
    """What a number below ``2**bits`` becomes, as ``facts.cu`` has it."""
    mask, half = (1 << bits) - 1, bits // 2 if bits > 1 else 1
    for turn in range(3):
        number = (number * 0x9E3779B97F4A7C15 + mix(seed + turn)) & mask
        number ^= number >> half
    return number


def drawn(sample: int, rows: int, seed: int) -> int:
    """The row of a sample."""
    bits = (rows - 1).bit_length()
    row = shuffled(sample, bits, seed)
    while row >= rows:
        row = shuffled(row, bits, seed)
    return row


@pytest.mark.parametrize("rows", [2, 3, 70, 128, 1000])
def test_rows_of_samples_are_those_of_a_bijection(device: RecordingDevice, rows: int) -> None:
    """Its rounds, and what the seed adds in each, tell one seed's rows from another's."""
    bits = (rows - 1).bit_length()
    assert sorted(shuffled(row, bits, 5) for row in range(1 << bits)) == list(range(1 << bits))
    column = Side(np.arange(rows, dtype=DTYPES[4]))
    for seed, samples in ((0, rows - 1), (1, rows - 1), (2, rows // 2), (1 << 40, rows - 1)):
        sample = facts.sample(device, column.on(device), samples, seed)
        assert device.download(sample.codes).tolist() == [drawn(at, rows, seed) for at in range(samples)]


@pytest.mark.parametrize("key_bytes", WIDTHS)
def test_what_a_sample_of_all_rows_tells_is_exact(
    device: RecordingDevice, rng: np.random.Generator, key_bytes: int
) -> None:
    def told(column: Side) -> facts.Sample:
        keys = column.on(device)
        return facts.sample_facts(device, keys, facts.sample(device, keys))

    assert told(side(rng, "unique", 300, key_bytes)) == facts.Sample(300, 1.0, 1 / 300)
    assert told(side(rng, "one", 300, key_bytes)) == facts.Sample(300, 300.0, 1.0)
    numbers = np.repeat(np.arange(100), 3)
    thrice = side(rng, "unique", 100, key_bytes).codes[numbers]
    sample = told(Side(thrice))
    assert (sample.keys, sample.heaviest) == (300, 0.01)
    assert sample.rows_per_key == pytest.approx(3.0)
    assert told(side(rng, "unique", 0, key_bytes)) == facts.Sample(0, 1.0, 0.0)


def test_a_small_sample_estimates_duplicates_and_the_heaviest_key(device: RecordingDevice) -> None:
    """Of 20,000 rows 2,000 are sampled; the estimate must come within a factor, whatever the seed of the sample."""
    fours = Side(np.arange(20_000, dtype=np.int64) // 4 * 977)
    hot = Side(np.where(np.arange(20_000) % 5 == 0, 7, np.arange(20_000)).astype(np.int64))
    for seed in range(3):
        keys = fours.on(device)
        told = facts.sample_facts(device, keys, facts.sample(device, keys, 2000, seed))
        assert 2.0 < told.rows_per_key < 8.0
        assert told.heaviest < 0.01
        unique = Side(np.arange(20_000, dtype=np.int64) * 977).on(device)
        assert facts.sample_facts(device, unique, facts.sample(device, unique, 2000, seed)).rows_per_key == 1.0
        keys = hot.on(device)
        told = facts.sample_facts(device, keys, facts.sample(device, keys, 2000, seed))
        assert 0.1 < told.heaviest < 0.35
