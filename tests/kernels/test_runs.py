"""Output of many-to-many joins, written without pairs (``emit_ranges`` of ``rows.cu``), against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpujoin.errors import DeviceMemoryError, KernelArgumentError
from gpujoin.launch import expand, rows
from gpujoin.launch.matches import Ranges
from gpujoin.launch.rows import FieldColumn
from tests.kernels.conftest import MakeDevice
from tests.kernels.devices import RecordingDevice

TILE = expand.OUTPUT_TILE
PLACES = 60


def columns(device: RecordingDevice, count: int) -> list[FieldColumn]:
    """A column of 8, 1 and 16 bytes, row numbers from one, the second with nulls."""
    number = np.arange(1, count + 1)
    return [
        FieldColumn(device.upload(number)),
        FieldColumn(device.upload(number.astype(np.uint8)), device.upload(number % 3 != 0)),
        FieldColumn(device.upload(np.stack([number, -number], axis=1))),
    ]


def values(device: RecordingDevice, made: list[FieldColumn]) -> list[Any]:
    """Row numbers of each column; where a column has nulls, its validity beside."""
    out: list[Any] = []
    for column in made:
        array = device.download(column.values)
        out.append(array[:, 0] if array.ndim == 2 else array)
        if column.valid is not None:
            out.append(device.download(column.valid))
    return out


def wanted(row: npt.NDArray[np.int64], *, nullable: bool) -> list[Any]:
    """What :func:`values` gives for rows of :func:`columns`; packed rows have validity for every field."""
    valid = np.ones(len(row), bool)
    of_second = [(row + 1).astype(np.uint8), (row + 1) % 3 != 0]
    return [row + 1, *([valid] if nullable else []), *of_second, row + 1, *([valid] if nullable else [])]


def check(device: RecordingDevice, counts: npt.NDArray[np.int64], rng: np.random.Generator, most: int) -> None:
    start = rng.integers(0, PLACES, len(counts)).astype(np.int32)
    ranges = Ranges(device.upload(start), device.upload(counts.astype(np.int32)), int(counts.sum()))
    running = expand.running_counts(device, ranges)
    probe, build = columns(device, len(counts)), columns(device, PLACES + int(counts.max(initial=0)))
    packed = rows.pack(device, build)
    row = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(ranges.pairs) - np.repeat(np.cumsum(counts) - counts, counts)
    place = start[row] + number
    for begin in range(0, ranges.pairs, most):
        end = min(begin + most, ranges.pairs)
        for of_probe, of_build in ((probe, packed), (probe, None), ((), packed)):
            made = rows.emit_ranges(device, ranges, running, of_probe, of_build, begin, end - begin)
            expected = wanted(row[begin:end], nullable=False) if of_probe else []
            assert_same(values(device, made[0]), expected)
            assert_same(values(device, made[1]), wanted(place[begin:end], nullable=True) if of_build else [])


def assert_same(actual: list[Any], expected: list[Any]) -> None:
    assert len(actual) == len(expected)
    for column, wanted_column in zip(actual, expected, strict=True):
        assert (column == wanted_column).all()


@pytest.mark.parametrize("pairs", [1, 31, 33, TILE - 1, TILE, TILE + 1, 2 * TILE + 1])
def test_sizes(device: RecordingDevice, rng: np.random.Generator, pairs: int) -> None:
    check(device, np.bincount(rng.integers(0, 40, pairs), minlength=41), rng, 1 << 20)


def test_slices(device: RecordingDevice, rng: np.random.Generator) -> None:
    check(device, rng.integers(0, 9, 500), rng, 700)


def test_a_hot_key_is_shared_by_many_tiles(device: RecordingDevice, rng: np.random.Generator) -> None:
    check(device, np.array([0, 1, 5 * TILE + 3, 0, 2]), rng, TILE + 1)


def test_more_rows_without_matches_than_are_staged(device: RecordingDevice, rng: np.random.Generator) -> None:
    counts = np.zeros(9000, np.int64)
    counts[[0, 17, 4000, 8000, 8999]] = [3, 1, 2, TILE, 2]
    check(device, counts, rng, 1 << 20)


def test_more_tiles_than_blocks(device: RecordingDevice, rng: np.random.Generator) -> None:
    check(device, rng.integers(0, 5, 9 * TILE), rng, 1 << 20)


def test_nothing_to_write(device: RecordingDevice, rng: np.random.Generator) -> None:
    ranges = Ranges(device.zeros(4, np.int32), device.upload(np.array([0, 2, 0, 1], np.int32)), 3)
    running = expand.running_counts(device, ranges)
    assert rows.emit_ranges(device, ranges, running, (), None, 0, 3) == ([], [])
    probe, build = rows.emit_ranges(device, ranges, running, columns(device, 4), None, 1, 0)
    assert [column.rows for column in probe] == [0, 0, 0]
    assert build == []
    assert device.launches == []


def test_output_rows_beyond_32_bits(device: RecordingDevice) -> None:
    """Three probe rows with 2^31 - 1 matches each: the output rows around the end of each."""
    many = (1 << 31) - 1
    ranges = Ranges(device.full(3, 0, np.int32), device.full(3, many, np.int32), 3 * many)
    running = expand.running_counts(device, ranges)
    for begin in (many - 2, 2 * many - 2, 3 * many - 4):
        (made,), _ = rows.emit_ranges(device, ranges, running, columns(device, 3)[:1], None, begin, 4)
        assert device.download(made.values).tolist() == [(begin + i) // many + 1 for i in range(4)]


def test_what_does_not_exist_is_refused(device: RecordingDevice) -> None:
    ranges = Ranges(device.zeros(2, np.int32), device.upload(np.array([2, 3], np.int32)), 5)
    running = expand.running_counts(device, ranges)
    probe = columns(device, 2)
    for begin, length in ((0, 6), (5, 1), (-1, 2), (0, 1 << 31)):
        with pytest.raises(KernelArgumentError):
            rows.emit_ranges(device, ranges, running, probe, None, begin, length)
    with pytest.raises(KernelArgumentError, match="3 probe rows, but matches of 2"):
        rows.emit_ranges(device, ranges, running, columns(device, 3), None, 0, 1)
    with pytest.raises(KernelArgumentError, match="int64"):
        rows.emit_ranges(device, ranges, running.astype(np.int32), probe, None, 0, 1)
    assert device.launches == []


def test_output_that_does_not_fit(make_device: MakeDevice) -> None:
    device = make_device(memory_limit=20_000)
    ranges = Ranges(device.zeros(2, np.int32), device.upload(np.array([500, 1500], np.int32)), 2000)
    running = expand.running_counts(device, ranges)
    with pytest.raises(DeviceMemoryError, match="2000 output rows"):
        rows.emit_ranges(device, ranges, running, columns(device, 2), None, 0, 2000)
    assert device.launches == []
