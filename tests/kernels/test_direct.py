"""Direct address (``direct.cu``) against Python dictionaries."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from gpujoin.errors import KernelArgumentError
from gpujoin.launch import direct
from gpujoin.launch.keys import KeyCodes
from tests.kernels.cases import (
    DTYPES,
    SIZES,
    Side,
    check_fetched,
    extremes,
    matches,
    one_of,
    payloads,
    side,
)
from tests.kernels.devices import RecordingDevice

WIDTHS = (4, 8)


def whole_range(build: Side) -> direct.Range:
    keys = [key for key in build.labels() if key is not None]
    return direct.Range(min(keys), max(keys) - min(keys) + 1) if keys else direct.Range(0, 1)


def check(device: RecordingDevice, build: Side, probe: Side, keys: direct.Range | None = None) -> None:
    """All tables over one build side, probed."""
    keys = keys or whole_range(build)
    expected = matches(build, probe)
    counts = [len(rows) for rows in expected]
    built, probed = build.on(device), probe.on(device)
    unique = direct.build_unique(device, built, keys)
    distinct = [key for key in build.labels() if key is not None]
    assert (unique is not None) == (len(set(distinct)) == len(distinct))
    if unique is not None:
        result = unique.probe(device, probed)
        assert device.download(result.row).tolist() == one_of(expected)
        assert result.pairs == sum(counts)
    many = direct.build_many(device, built, keys)
    ranges = many.probe(device, probed)
    start, count = device.download(ranges.start).tolist(), device.download(ranges.count).tolist()
    placed = device.download(many.places.rows).tolist()
    assert count == counts
    assert ranges.pairs == sum(counts)
    assert [placed[s : s + c] for s, c in zip(start, count, strict=True)] == expected
    check_payload(device, build, probe, keys)
    marked = direct.build_set(device, built, keys).probe(device, probed)
    assert device.download(marked.row).tolist() == [0 if c else -1 for c in counts]
    assert marked.pairs == sum(c > 0 for c in counts)


def check_payload(device: RecordingDevice, build: Side, probe: Side, keys: direct.Range) -> None:
    """Payload in the slots."""
    inside = valid_in(build, keys)
    present = int(inside.sum())
    for told in (present, None):
        table = direct.build_unique(device, build.on(device), keys, present=told)
        if table is None:
            return
        for columns in payloads(device, build.rows) if build.rows else ():
            made = table.with_payload(device, columns)
            assert (made.bits is None) == (told == keys.slots)
            assert made.nbytes >= made.packed.nbytes >= 16 * keys.slots
            check_fetched(device, made.fetch(device, probe.on(device)), matches(Side(build.codes, inside), probe))


def valid_in(build: Side, keys: direct.Range) -> npt.NDArray[np.bool_]:
    """Rows whose key is in a range."""
    labels = build.labels()
    return np.array([key is not None and keys.low <= key < keys.low + keys.slots for key in labels], bool)


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("shape", ["unique", "some"])
def test_sizes(device: RecordingDevice, rng: np.random.Generator, shape: str, rows: int) -> None:
    key_bytes = WIDTHS[rows % 2]
    build = side(rng, shape, rows, key_bytes, nulls=0.1 * (rows % 3))
    probe = side(rng, "some", rows + 1, key_bytes, nulls=0.1)
    check(device, build, Side(probe.codes - 2, probe.valid))


@pytest.mark.parametrize("key_bytes", WIDTHS)
@pytest.mark.parametrize("shape", ["one", "zipf"])
def test_hot_keys(device: RecordingDevice, rng: np.random.Generator, shape: str, key_bytes: int) -> None:
    check(device, side(rng, shape, 700, key_bytes), side(rng, shape, 90, key_bytes, nulls=0.2))


@pytest.mark.parametrize("key_bytes", WIDTHS)
def test_no_build_row_matches(device: RecordingDevice, rng: np.random.Generator, key_bytes: int) -> None:
    build = side(rng, "some", 40, key_bytes)
    check(device, Side(build.codes, np.zeros(40, bool)), build)


@pytest.mark.parametrize("key_bytes", WIDTHS)
@pytest.mark.parametrize("end", ["low", "high"])
def test_ranges_at_the_ends_of_the_type(device: RecordingDevice, end: str, key_bytes: int) -> None:
    """Distances of keys at the other end of the type wrap around, and must not be taken for slots."""
    info = np.iinfo(DTYPES[key_bytes])
    keys = [info.min, info.min + 2, info.min + 5] if end == "low" else [info.max, info.max - 3, info.max - 4]
    probe = np.concatenate([extremes(key_bytes), np.array(keys, DTYPES[key_bytes])])
    check(device, Side(np.array(keys, DTYPES[key_bytes])), Side(probe))
    check(device, Side(np.array([*keys, keys[1]], DTYPES[key_bytes])), Side(probe))


def test_build_keys_outside_the_range_are_left_out(device: RecordingDevice) -> None:
    build = Side(np.arange(-10, 30, dtype=np.int64))
    table = direct.build_unique(device, build.on(device), direct.Range(0, 10))
    assert table is not None
    matches = table.probe(device, build.on(device))
    assert device.download(matches.row).tolist() == [-1] * 10 + list(range(10, 20)) + [-1] * 20
    check_payload(device, build, build, direct.Range(0, 10))
    check_payload(device, build, build, direct.Range(-11, 10))


@pytest.mark.parametrize("missing", [0, 31, 32, 1699])
def test_payload_of_a_range_that_lacks_one_key(device: RecordingDevice, rng: np.random.Generator, missing: int) -> None:
    """More rows than threads; with all keys there no bit is looked at."""
    keys, every = direct.Range(-100, 1700), rng.permutation(1700).astype(np.int64) - 100
    probe = Side(np.arange(-200, 1700))
    check_payload(device, Side(every), probe, keys)
    check_payload(device, Side(every[every != missing - 100]), probe, keys)


def test_one_key_twice_among_many_is_noticed(device: RecordingDevice, rng: np.random.Generator) -> None:
    codes = rng.permutation(np.append(np.arange(1500), 700)).astype(np.int64)
    assert direct.build_unique(device, Side(codes).on(device), direct.Range(0, 1500)) is None


@pytest.mark.parametrize(("low", "slots"), [(0, 0), (0, 1 << 31), ((1 << 63) - 1, 2), (-(1 << 63) - 1, 5)])
def test_impossible_ranges_are_refused(low: int, slots: int) -> None:
    with pytest.raises(KernelArgumentError, match=r"slots|64-bit"):
        direct.Range(low, slots)


BAD: dict[str, Callable[[RecordingDevice], KeyCodes]] = {
    "dtype": lambda d: KeyCodes(d.zeros(8, np.int16), None),
    "float": lambda d: KeyCodes(d.zeros(8, np.float64), None),
    "wide": lambda d: KeyCodes(d.zeros((8, 2), np.uint64), None),
    "strided": lambda d: KeyCodes(d.zeros(16, np.int64)[::2], None),
    "valid dtype": lambda d: KeyCodes(d.zeros(8, np.int64), d.zeros(8, np.int32)),
    "valid length": lambda d: KeyCodes(d.zeros(8, np.int64), d.zeros(7, np.bool_)),
    "host": lambda _: KeyCodes(np.zeros(8, np.int64), None),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_codes_are_refused_before_a_launch(device: RecordingDevice, case: str) -> None:
    bad = BAD[case](device)
    keys = direct.Range(0, 10)
    for build in (direct.build_unique, direct.build_many, direct.build_set):
        with pytest.raises(KernelArgumentError):
            build(device, bad, keys)
    assert device.launches == []


def test_more_rows_than_row_numbers_are_refused(device: RecordingDevice) -> None:
    """The array has no memory of its own; nothing may touch it."""
    many = np.broadcast_to(np.zeros(1, np.int64), (1 << 31,))
    with pytest.raises(KernelArgumentError, match="2147483648 rows"):
        direct.build_unique(device, KeyCodes(many, None), direct.Range(0, 10))
    assert device.launches == []
