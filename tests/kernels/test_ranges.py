"""Ranges in sorted build rows (``ranges.cu``)."""

from __future__ import annotations

import numpy as np
import pytest

from gpujoin.errors import KernelArgumentError
from gpujoin.launch import ranges
from gpujoin.launch.matches import Ranges
from gpujoin.launch.ranges import MOST_SAMPLES, Bounds
from tests.kernels.cases import SIZES
from tests.kernels.devices import RecordingDevice
from tests.kernels.ordered_cases import (
    ENDS,
    LEAST,
    MOST,
    SHAPES,
    Asked,
    Build,
    matching,
    points,
    some_ranges,
)

SAMPLES = (1, 7, MOST_SAMPLES)


def places(device: RecordingDevice, stretches: Ranges) -> list[list[int]]:
    start, count = device.download(stretches.start).tolist(), device.download(stretches.count).tolist()
    assert stretches.pairs == sum(count)
    return [list(range(first, first + number)) for first, number in zip(start, count, strict=True)]


def check(device: RecordingDevice, build: Build, asked: Asked, samples: int) -> None:
    searched, groups = build.on(device, samples)
    assert searched.samples.shape[0] <= samples
    assert places(device, ranges.find(device, searched, groups, asked.on(device))) == matching(build, (asked,))


@pytest.mark.parametrize("rows", SIZES)
def test_sizes_of_the_build_side(device: RecordingDevice, rng: np.random.Generator, rows: int) -> None:
    for shape, samples in zip(SHAPES, (*SAMPLES, 7, 1), strict=True):
        build = Build(None, (points(rng, shape, rows),))
        check(device, build, some_ranges(rng, build.points[0], 70, 9), samples)


@pytest.mark.parametrize("rows", SIZES)
def test_sizes_of_the_probe_side(device: RecordingDevice, rng: np.random.Generator, rows: int) -> None:
    build = Build(None, (points(rng, "some", 100),))
    check(device, build, some_ranges(rng, build.points[0], rows, 9, nulls=0.2), 7)


@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize("shape", SHAPES)
def test_groups(device: RecordingDevice, rng: np.random.Generator, shape: str, samples: int) -> None:
    """Some groups are empty, one is heavy, and some probe rows have none."""
    rows, number = 900, 12
    groups = np.minimum(rng.zipf(1.4, rows), number - 1)
    groups[groups == 3] = 4
    build = Build(groups, (points(rng, shape, rows),), number)
    check(device, build, some_ranges(rng, build.points[0], 400, 9, nulls=0.1, groups=number), samples)


def test_more_places_than_samples(device: RecordingDevice, rng: np.random.Generator) -> None:
    build = Build(None, (points(rng, "some", 3 * MOST_SAMPLES + 1),))
    check(device, build, some_ranges(rng, build.points[0], 300, 4), MOST_SAMPLES)


@pytest.mark.parametrize("samples", SAMPLES)
def test_every_pair_of_extreme_bounds(device: RecordingDevice, samples: int) -> None:
    build = Build(None, (np.repeat(ENDS, 3),))
    low, high = (column.reshape(-1) for column in np.meshgrid(ENDS, ENDS))
    check(device, build, Asked(np.ascontiguousarray(low), np.ascontiguousarray(high)), samples)


def test_nobody_may_match(device: RecordingDevice) -> None:
    build = Build(None, (np.arange(50),))
    everything = np.full(40, LEAST), np.full(40, MOST)
    check(device, build, Asked(*everything, np.zeros(40, bool)), 7)
    check(device, Build(np.zeros(50, np.int64), (np.arange(50),)), Asked(*everything, None, np.full(40, -1)), 7)
    check(device, Build(None, (np.zeros(0, np.int64),)), Asked(*everything), 7)
    none = np.zeros(0, np.int64)
    check(device, Build(none, (none,), 0), Asked(*everything, None, np.zeros(40, np.int64)), 7)


def test_everybody_matches_everything(device: RecordingDevice) -> None:
    """The sum of the counts is over what one block, and what a warp, finds."""
    build, rows = Build(None, (np.arange(3000),)), 2500
    searched, _ = build.on(device, MOST_SAMPLES)
    stretches = ranges.find(device, searched, None, Asked(np.full(rows, LEAST), np.full(rows, MOST)).on(device))
    assert stretches.pairs == 3000 * rows
    assert device.download(stretches.start).tolist() == [0] * rows
    assert device.download(stretches.count).tolist() == [3000] * rows


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("samples", SAMPLES)
def test_second_points_that_ascend_too(
    device: RecordingDevice, rng: np.random.Generator, samples: int, grouped: bool
) -> None:
    """Intervals of one length: begin and end ascend together within a group."""
    rows, number = 700, 9
    begins = points(rng, "some", rows)
    groups = rng.integers(0, number, rows) if grouped else None
    build = Build(groups, (begins, begins + 5), number)
    first = some_ranges(rng, begins, 300, 40, nulls=0.1, groups=number if grouped else None)
    second = some_ranges(rng, begins + 5, 300, 12)
    searched, beginnings = build.on(device, samples)
    stretches = ranges.find(device, searched, beginnings, first.on(device))
    narrowed = ranges.narrow(device, build.on(device, samples, 1)[0], stretches, second.on(device))
    assert places(device, narrowed) == matching(build, (first, second))


def test_beginnings_of_groups(device: RecordingDevice) -> None:
    stretches = ranges.groups_of(device, device.upload(np.array([1, 1, 4, 4, 4])), 6)
    assert device.download(stretches.first).tolist() == [0, 0, 2, 2, 2, 5, 5]
    assert stretches.number == 6


def test_what_cannot_be_searched_is_refused(device: RecordingDevice) -> None:
    values = device.upload(np.arange(20))
    good = ranges.ordered(values)
    for bad in (values[::2], values.astype(np.int32), values.reshape(4, 5)):
        with pytest.raises(KernelArgumentError, match="sorted points"):
            ranges.ordered(bad)
        with pytest.raises(KernelArgumentError, match="highest points"):
            ranges.find(device, good, None, Bounds(values[: bad.shape[0]], bad))
    for samples in (0, MOST_SAMPLES + 1):
        with pytest.raises(KernelArgumentError, match="samples"):
            ranges.ordered(values, samples)
    with pytest.raises(KernelArgumentError, match="validity"):
        ranges.find(device, good, None, Bounds(values, values, values))
    with pytest.raises(KernelArgumentError, match="groups"):
        ranges.find(device, good, None, Bounds(values, values, None, values))
    beginnings = ranges.groups_of(device, values, 20)
    with pytest.raises(KernelArgumentError, match="groups of probe rows"):
        ranges.find(device, good, beginnings, Bounds(values, values, None, values.astype(np.int32)))
    stretches = Ranges(device.zeros(19, np.int32), device.zeros(20, np.int32), 0)
    with pytest.raises(KernelArgumentError, match="first places"):
        ranges.narrow(device, good, stretches, Bounds(values, values))
    assert device.launches == []


class _Long:
    """The shape of an array that is too long to be made."""

    shape = ((1 << 31),)
    ndim = 1
    dtype = np.dtype(np.int64)

    class flags:  # noqa: N801 - as in NumPy
        c_contiguous = True


def test_more_rows_than_row_numbers_are_refused(device: RecordingDevice) -> None:
    with pytest.raises(KernelArgumentError, match="2147483648 rows"):
        ranges.ordered(_Long())
    with pytest.raises(KernelArgumentError, match="2147483648 rows"):
        ranges.find(device, ranges.ordered(device.upload(np.arange(3))), None, Bounds(_Long(), _Long()))
    with pytest.raises(KernelArgumentError, match="2147483648 rows"):
        ranges.groups_of(device, device.upload(np.arange(3)), 1 << 31)
