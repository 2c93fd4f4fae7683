"""Hash tables (``unique.cu``, ``csr.cu``) and sets of keys (``hashset.cu``) against Python dictionaries."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpujoin.errors import KernelArgumentError
from gpujoin.launch import csr, hashset, unique
from gpujoin.launch.device import Array
from gpujoin.launch.keys import KeyCodes
from gpujoin.launch.rows import FieldColumn
from tests.kernels.cases import (
    SIZES,
    Side,
    check_fetched,
    colliding,
    extremes,
    matches,
    one_of,
    payloads,
    side,
)
from tests.kernels.conftest import MakeDevice
from tests.kernels.devices import RecordingDevice

SPREAD = 97_003


def check_tables(device: RecordingDevice, build: Side, probe: Side, *, ordered: bool = True) -> None:
    """Both tables over one build side, probed."""
    expected = matches(build, probe)
    counts = [len(rows) for rows in expected]
    built, probed = build.on(device), probe.on(device)
    distinct = [key for key in build.labels() if key is not None]
    table = unique.build(device, built)
    assert (table is not None) == (len(set(distinct)) == len(distinct))
    if table is not None:
        result = table.probe(device, probed)
        assert device.download(result.row).tolist() == one_of(expected)
        assert result.pairs == sum(counts)
        assert table.nbytes == int(built.codes.nbytes) + csr.SLOT_BYTES * csr.slots_for(build.rows)
    if table is not None and ordered:
        check_payload(device, table, build, probe, expected)
    many = csr.build(device, built, ordered=ordered)
    ranges = many.probe(device, probed)
    assert device.download(ranges.count).tolist() == counts
    assert ranges.pairs == sum(counts)
    start, placed = device.download(ranges.start).tolist(), device.download(many.places.rows).tolist()
    laid = [placed[s : s + c] for s, c in zip(start, counts, strict=True)]
    assert (laid if ordered else [sorted(rows) for rows in laid]) == expected


def check_payload(
    device: RecordingDevice, table: unique.HashTable, build: Side, probe: Side, expected: list[list[int]]
) -> None:
    """Payload beside the keys."""
    for columns in payloads(device, build.rows):
        made = table.with_payload(device, columns)
        check_fetched(device, made.fetch(device, probe.on(device)), expected)
        assert made.nbytes == int(made.table.nbytes) + made.packed.layout.row_bytes * build.rows


def check_unordered(device: RecordingDevice, build: Side, probe: Side) -> None:
    """Both tables, rows of a key in any order."""
    check_tables(device, build, probe, ordered=False)


def check_set(device: RecordingDevice, build: Side, probe: Side) -> None:
    """A set of one side, probed by the other."""
    expected = [0 if rows else -1 for rows in matches(build, probe)]
    table = hashset.build(device, build.on(device))
    assert isinstance(table, hashset.HashSet)
    result = table.probe(device, probe.on(device))
    assert device.download(result.row).tolist() == expected
    assert result.pairs == expected.count(0)
    assert table.nbytes == table.slots * table.key_bytes
    assert table.nbytes % 32 == 0


Check = Callable[[RecordingDevice, Side, Side], None]
TABLES, SET = pytest.param(check_tables, id="tables"), pytest.param(check_set, id="set")
SOURCES = ("unique.cu", "csr.cu", "hashset.cu")
WIDTHS: dict[Check, tuple[int, ...]] = {check_tables: (4, 8, 16), check_unordered: (4, 8, 16), check_set: (4, 8)}
"""Bytes of a key: a set has keys of up to 8."""


def with_widths(**checks: Check) -> pytest.MarkDecorator:
    """Parametrize a test by what is built and probed, and by the bytes of a key."""
    cases = [
        pytest.param(check, width, id=f"{name}-{width}") for name, check in checks.items() for width in WIDTHS[check]
    ]
    return pytest.mark.parametrize(("check", "key_bytes"), cases)


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("shape", ["unique", "some"])
@pytest.mark.parametrize("check", [TABLES, SET])
def test_sizes(device: RecordingDevice, rng: np.random.Generator, check: Check, shape: str, rows: int) -> None:
    widths = WIDTHS[check]
    key_bytes = widths[SIZES.index(rows) % len(widths)]
    build = side(rng, shape, rows, key_bytes, spread=SPREAD, nulls=0.1 * (rows % 3))
    check(device, build, side(rng, "some", rows + 1, key_bytes, spread=SPREAD, nulls=0.1))


@with_widths(tables=check_tables, unordered=check_unordered, set=check_set)
@pytest.mark.parametrize("shape", ["one", "zipf", "extremes"])
def test_duplicates(
    device: RecordingDevice, rng: np.random.Generator, shape: str, check: Check, key_bytes: int
) -> None:
    probe = side(rng, shape, 90, key_bytes, nulls=0.2)
    check(device, side(rng, shape, 700, key_bytes), probe)
    check(device, side(rng, shape, 70, key_bytes, nulls=0.5), probe)


@with_widths(tables=check_tables, set=check_set)
def test_no_key_value_is_special(device: RecordingDevice, check: Check, key_bytes: int) -> None:
    """Each extreme key once in the build side, and once missing from it: no value may read as an empty slot."""
    ends = extremes(key_bytes)
    assert ~ends.dtype.type(0) in ends, "all bits set, as in a free slot of a set"
    check(device, Side(ends), Side(ends))
    for missing in range(len(ends)):
        check(device, Side(np.delete(ends, missing, axis=0)), Side(ends))


@pytest.mark.few
@with_widths(tables=check_tables, set=check_set)
@pytest.mark.parametrize("bits", [1, 4], ids=["two hashes", "sixteen hashes"])
def test_forced_collisions(
    make_device: MakeDevice, rng: np.random.Generator, bits: int, check: Check, key_bytes: int
) -> None:
    """Long runs of taken slots, also around the end of the table."""
    device = make_device(colliding(bits, *SOURCES))
    build = side(rng, "unique", 100, key_bytes)
    check(device, build, side(rng, "some", 300, key_bytes))
    check(device, side(rng, "some", 100, key_bytes), build)


@pytest.mark.parametrize("check", [TABLES, SET])
def test_a_full_table_ends_every_search(
    monkeypatch: pytest.MonkeyPatch, make_device: MakeDevice, rng: np.random.Generator, check: Check
) -> None:
    monkeypatch.setattr(csr, "slots_for", lambda rows: rows)
    for module in (unique, hashset):
        monkeypatch.setattr(module, "slots_for", lambda rows, _: rows)
    build = side(rng, "unique", 64, 8)
    probe = Side(np.arange(-20, 100, dtype=np.int64))
    check(make_device(), build, probe)
    check(make_device(colliding(1, *SOURCES)), build, probe)


@with_widths(tables=check_tables, set=check_set)
def test_nothing_matches_nothing(
    device: RecordingDevice, rng: np.random.Generator, check: Check, key_bytes: int
) -> None:
    full = side(rng, "some", 40, key_bytes)
    none = Side(full.codes, np.zeros(40, bool))
    check(device, none, full)
    check(device, full, none)


def test_slots_hold_all_rows_in_32_bit_numbers() -> None:
    assert csr.slots_for(0) > 0
    for rows in (1, 1000, (1 << 30) + 1, csr._MOST_ROWS):
        slots = csr.slots_for(rows)
        assert rows <= slots < 1 << 31
        assert slots % csr.SECTOR_SLOTS == 0
    for rows in (1, 31, 1000, 1 << 30):
        assert csr.slots_for(rows, unique.MAX_SLOTS) >= 2 * rows


def test_payload_of_other_rows_is_refused(device: RecordingDevice) -> None:
    table = unique.build(device, KeyCodes(device.upload(np.arange(8)), None))
    assert table is not None
    before = list(device.launches)
    with pytest.raises(KernelArgumentError, match=r"\[7, 8\] rows"):
        table.with_payload(device, [FieldColumn(device.zeros(7, np.int64))])
    assert device.launches == before


def test_payload_for_probe_keys_of_another_width_is_refused(device: RecordingDevice) -> None:
    keys = device.upload(np.arange(8))
    table = unique.build(device, KeyCodes(keys, None))
    assert table is not None
    made = table.with_payload(device, [FieldColumn(keys)])
    before = list(device.launches)
    with pytest.raises(KernelArgumentError, match="pack both by one layout"):
        made.fetch(device, KeyCodes(device.zeros(8, np.int32), None))
    assert device.launches == before


@pytest.mark.parametrize("build", [unique.build, csr.build], ids=["unique", "csr"])
def test_bad_codes_are_refused_before_a_launch(device: RecordingDevice, build: object) -> None:
    def refused(codes: Array) -> None:
        with pytest.raises(KernelArgumentError):
            build(device, KeyCodes(codes, None))  # type: ignore[operator]

    refused(device.zeros((8, 3), np.uint64))
    refused(device.zeros((8, 2), np.int64))
    refused(device.zeros((8, 4), np.uint64)[:, ::2])
    refused(device.zeros(8, np.float32))
    refused(np.broadcast_to(np.zeros(1, np.int64), (1 << 31,)))
    assert device.launches == []
