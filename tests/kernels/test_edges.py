"""Edges that the mutation check found untested: ends of ranges, several tiles a block, many slots a thread."""

from __future__ import annotations

import numpy as np
import pytest

from gpujoin.launch import direct, expand, rows, unique
from gpujoin.launch.matches import Ranges, UniqueMatches
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
        [i for i, k in enumerate(labels) if k == key and ok] for key, ok in zip(labels, inside(labels), strict=True)
    ]
    assert [placed[s : s + c] for s, c in zip(start, count, strict=True)] == wanted
    assert ranges.pairs == sum(map(len, wanted))
    marked = direct.build_set(device, here, keys).probe(device, here)
    assert (device.download(marked.row) == 0).tolist() == inside(labels)
    assert marked.pairs == sum(inside(labels))


@pytest.mark.parametrize("key_bytes", [4, 8])
def test_probe_keys_next_to_the_range_match_nothing(device: RecordingDevice, key_bytes: int) -> None:
    build = Side(np.arange(LOW, LOW + SLOTS).astype(DTYPES[key_bytes]))
    keys, probe = direct.Range(LOW, SLOTS), around(key_bytes)
    labels, there = probe.labels(), probe.on(device)
    unique = direct.build_unique(device, build.on(device), keys)
    assert unique is not None
    matches = unique.probe(device, there)
    wanted = [key - LOW if ok else -1 for key, ok in zip(labels, inside(labels), strict=True)]
    assert device.download(matches.row).tolist() == wanted
    marked = direct.build_set(device, build.on(device), keys).probe(device, there)
    assert (device.download(marked.row) == 0).tolist() == inside(labels)


def test_every_slot_is_put_in_order(device: RecordingDevice, rng: np.random.Generator) -> None:
    """More slots than threads, and in each so many rows that hardly one is in order by itself."""
    slots, rows_a_slot = 1700, 7
    codes = rng.permutation(np.repeat(np.arange(slots), rows_a_slot)).astype(np.int64)
    places = direct.build_many(device, Side(codes).on(device), direct.Range(0, slots)).places
    wanted = np.argsort(codes, kind="stable").reshape(slots, rows_a_slot)
    assert (device.download(places.first) == np.arange(slots + 1) * rows_a_slot).all()
    assert (device.download(places.rows).reshape(slots, rows_a_slot) == wanted).all()


def test_tiles_with_more_rows_than_threads(device: RecordingDevice, rng: np.random.Generator) -> None:
    """Blocks take several tiles, and stage several rows a thread for each."""
    counts = rng.integers(0, 3, 9 * expand.OUTPUT_TILE)
    matches = Ranges(
        device.upload(np.zeros(len(counts), np.int32)),
        device.upload(counts.astype(np.int32)),
        int(counts.sum()),
    )
    running = expand.running_counts(device, matches)
    probe, build = expand.pairs(device, matches, running, None, 5, matches.pairs - 9)
    row = np.repeat(np.arange(len(counts)), counts)
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    places = np.arange(matches.pairs) - first[row]
    assert (device.download(probe) == row[5:-4]).all()
    assert (device.download(build) == places[5:-4]).all()


def test_fifty_thousand_rows_a_side(device: RecordingDevice, rng: np.random.Generator) -> None:
    """More tiles than a device has blocks for, and long runs of taken slots."""
    many = 50_000
    build = rng.permutation(many * 2)[:many].astype(np.int64) * 1_000_003
    probe = rng.integers(0, many * 2, many) * 1_000_003
    table = unique.build(device, Side(build).on(device))
    assert table is not None
    matches = table.probe(device, Side(probe).on(device))
    order = np.argsort(build)
    places = np.searchsorted(build[order], probe)
    there = order[np.minimum(places, many - 1)]
    assert (device.download(matches.row) == np.where(build[there] == probe, there, -1)).all()


def columns_of(device: RecordingDevice, count: int) -> list[rows.FieldColumn]:
    """A column of each width, row numbers from one being its values, every third row null."""
    valid = device.upload(np.arange(count) % 3 != 0)
    number = np.arange(1, count + 1)
    narrow = [number.astype(np.dtype(f"uint{8 * width}")) for width in (1, 2, 4, 8)]
    wide = np.stack([number, -number], axis=1).astype(np.int64)
    return [rows.FieldColumn(device.upload(values), valid) for values in (*narrow, wide)]


def test_more_rows_than_threads_are_packed_and_gathered(device: RecordingDevice, rng: np.random.Generator) -> None:
    """Rows that are missing are null and hold zeros, so that no old memory gets out."""
    count = 2100
    columns = columns_of(device, count)
    packed = rows.pack(device, columns)
    wanted = rng.integers(-1, count, 2500).astype(np.int32)
    wanted[[0, -1]] = -1
    for column, out in zip(columns, rows.gather(device, packed, device.upload(wanted), may_miss=True), strict=True):
        assert out.valid is not None
        values, valid = device.download(out.values), device.download(out.valid)
        there = wanted >= 0
        assert (valid == (there & (wanted % 3 != 0))).all()
        assert (values[there] == device.download(column.values)[wanted[there]]).all()
        assert (values[~there] == 0).all()


@pytest.mark.parametrize("matched", [True, False])
def test_matches_of_many_tiles_are_emitted(device: RecordingDevice, rng: np.random.Generator, matched: bool) -> None:
    """Blocks take several tiles, of which some keep every row and some none."""
    count = 2100
    hit = rng.integers(0, 300, count).astype(np.int32)
    hit[rng.random(count) < 0.4] = -1
    hit[256:512], hit[1024:1280] = -1, 5
    build, probe = columns_of(device, 300), columns_of(device, count)
    matches = UniqueMatches(device.upload(hit), int((hit >= 0).sum()))
    packed = rows.pack(device, build) if matched else None
    probe_out, build_out = rows.emit(device, matches, probe, packed, matched=matched)
    kept = np.flatnonzero((hit >= 0) == matched)
    for column, out in zip(probe, probe_out, strict=True):
        assert (device.download(out.values) == device.download(column.values)[kept]).all()
    assert len(build_out) == (len(build) if matched else 0)
    for column, out in zip(build, build_out, strict=False):
        assert (device.download(out.values) == device.download(column.values)[hit[kept]]).all()
        assert out.valid is not None
        assert (device.download(out.valid) == (hit[kept] % 3 != 0)).all()


def test_every_row_of_many_is_entered_and_found(device: RecordingDevice, rng: np.random.Generator) -> None:
    count = 2500
    build, probe = rng.permutation(count).astype(np.int64), np.arange(count)
    keys, built, probed = direct.Range(0, count), Side(build).on(device), Side(probe).on(device)
    wanted = np.argsort(build)
    for table in (direct.build_unique(device, built, keys), unique.build(device, built)):
        assert table is not None
        matches = table.probe(device, probed)
        assert (device.download(matches.row) == wanted).all()
        assert matches.pairs == count
    many = direct.build_many(device, built, keys)
    ranges = many.probe(device, probed)
    assert (device.download(ranges.count) == 1).all()
    assert (device.download(many.places.rows)[device.download(ranges.start)] == wanted).all()
    assert ranges.pairs == count
    marked = direct.build_set(device, built, keys).probe(device, probed)
    assert (device.download(marked.row) == 0).all()
    assert marked.pairs == count
