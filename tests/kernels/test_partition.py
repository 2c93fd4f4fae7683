"""Partitioning by hash and joins of partitioned sides (``partition.cu``)."""

from __future__ import annotations

import numpy as np
import pytest

from gpujoin.errors import KernelArgumentError
from gpujoin.launch import partition
from gpujoin.launch.device import DeviceProperties
from gpujoin.launch.keys import KeyCodes
from gpujoin.launch.rows import FieldColumn
from tests.kernels.cases import Side, colliding, matches, one_of, side
from tests.kernels.conftest import MakeDevice
from tests.kernels.devices import RecordingDevice

TILE = partition.TILE_ROWS
SMALL = DeviceProperties(multiprocessors=1, shared_bytes=227 * 1024, l2_bytes=1 << 20)
MASK = (1 << 64) - 1


def mix(bits: int) -> int:
    bits = (bits + 0x9E3779B97F4A7C15) & MASK
    bits = ((bits ^ bits >> 30) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ bits >> 27) * 0x94D049BB133111EB) & MASK
    return bits ^ bits >> 31


def bucket(key: object, key_bytes: int) -> int:
    """The partition of a key, as ``key.cuh`` hashes it."""
    if isinstance(key, tuple):
        low, high = key
        return mix(mix(low) ^ high) >> 56
    assert isinstance(key, int)
    return mix(key % (1 << 8 * key_bytes)) >> 56


def check(device: RecordingDevice, given: Side, key_bytes: int, rng: np.random.Generator) -> None:
    """Every row is there once, with its key and its columns, and the partitions ascend."""
    rows = given.rows
    wide = rng.integers(0, 1 << 60, (rows, 2), np.uint64)
    narrow, valid = rng.integers(0, 200, rows, np.uint8), rng.random(rows) < 0.5
    columns = [
        FieldColumn(device.upload(wide)),
        FieldColumn(device.upload(narrow), device.upload(valid)),
    ]
    partitioned = partition.partition(device, given.on(device), columns)
    row = device.download(partitioned.row)
    assert sorted(row.tolist()) == list(range(rows))
    labels = given.labels()
    ordered = [labels[r] for r in row.tolist()]
    matchable = partitioned.keys.rows
    assert matchable == sum(key is not None for key in labels)
    assert ordered[matchable:] == [None] * (rows - matchable)
    assert Side(device.download(partitioned.keys.codes)).labels() == ordered[:matchable]
    buckets = [bucket(key, key_bytes) for key in ordered[:matchable]]
    assert buckets == sorted(buckets)
    assert (device.download(partitioned.columns[0].values) == wide[row]).all()
    assert (device.download(partitioned.columns[1].values) == narrow[row]).all()
    assert partitioned.columns[1].valid is not None
    assert (device.download(partitioned.columns[1].valid) == valid[row]).all()
    assert partitioned.nbytes == matchable * key_bytes + rows * (4 + 16 + 1 + 1)


@pytest.mark.parametrize("rows", [0, 1, 33, 257, TILE - 1, TILE, TILE + 1])
def test_sizes(device: RecordingDevice, rng: np.random.Generator, rows: int) -> None:
    key_bytes = (4, 8, 16)[rows % 3]
    check(device, side(rng, "some", rows, key_bytes, nulls=0.1), key_bytes, rng)


@pytest.mark.parametrize("key_bytes", [4, 8, 16])
@pytest.mark.parametrize("shape", ["one", "zipf", "extremes"])
def test_over_full_partitions(
    device: RecordingDevice, rng: np.random.Generator, shape: str, key_bytes: int
) -> None:
    """A hot key fills one partition with all the rows."""
    check(device, side(rng, shape, 1500, key_bytes), key_bytes, rng)


def test_blocks_that_take_several_tiles(make_device: MakeDevice, rng: np.random.Generator) -> None:
    """Nine tiles for four blocks: three take three of them, and one none."""
    device = make_device(properties=SMALL)
    check(device, side(rng, "some", 8 * TILE + 5, 4, nulls=0.1), 4, rng)


def test_no_row_matches(device: RecordingDevice, rng: np.random.Generator) -> None:
    keys = side(rng, "some", 300, 8)
    check(device, Side(keys.codes, np.zeros(300, bool)), 8, rng)


def probe_check(device: RecordingDevice, build: Side, probe: Side) -> None:
    expected = matches(build, probe)
    table = partition.build(device, build.on(device))
    assert table is not None
    result = table.probe(device, probe.on(device))
    assert device.download(result.row).tolist() == one_of(expected)
    assert result.pairs == sum(map(len, expected))


@pytest.mark.parametrize("fewest", [0, 1 << 20], ids=["partitioned", "as it comes"])
@pytest.mark.parametrize("key_bytes", [4, 8, 16])
def test_joins(
    device: RecordingDevice,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    key_bytes: int,
    fewest: int,
) -> None:
    monkeypatch.setattr(partition, "FEWEST_ROWS", fewest)
    build = side(rng, "unique", 700, key_bytes, nulls=0.2)
    for shape, rows in (("some", 900), ("zipf", 300), ("extremes", 40), ("one", 33), ("some", 0)):
        probe_check(device, build, side(rng, shape, rows, key_bytes, nulls=0.2))
    assert ("restore_order" in device.launches) == (fewest == 0)
    nothing = Side(build.codes, np.zeros(700, bool))
    probe_check(device, nothing, build)
    probe_check(device, build, nothing)
    assert partition.build(device, side(rng, "some", 100, key_bytes).on(device)) is None


def test_forced_collisions(
    make_device: MakeDevice, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All keys in two partitions, their slots running into each other's."""
    monkeypatch.setattr(partition, "FEWEST_ROWS", 0)
    device = make_device(colliding(1, "partition.cu", "unique.cu"))
    probe_check(device, side(rng, "unique", 120, 8), side(rng, "some", 300, 8))


def test_bad_arguments_are_refused_before_a_launch(device: RecordingDevice) -> None:
    keys = KeyCodes(device.zeros(8, np.int64), None)
    short = FieldColumn(device.zeros(7, np.int64))
    with pytest.raises(KernelArgumentError, match="7"):
        partition.partition(device, keys, [short])
    with pytest.raises(KernelArgumentError, match="int16"):
        partition.partition(device, KeyCodes(device.zeros(8, np.int16), None))
    with pytest.raises(KernelArgumentError):
        partition.partition(device, keys, [FieldColumn(device.zeros((8, 3), np.uint8))])
    assert device.launches == []


def test_few_probe_rows_are_not_ordered_for_a_large_table(
    device: RecordingDevice, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of 700 rows has 1,400 slots of 16 bytes in 700 sectors: 350 probe rows are worth an order."""
    monkeypatch.setattr(partition, "FEWEST_ROWS", 0)
    build = side(rng, "unique", 700, 8)
    for rows, ordered in ((349, False), (350, True)):
        device.launches.clear()
        probe_check(device, build, side(rng, "some", rows, 8))
        assert device.launches.count("partition_rows") == 1 + ordered


def test_a_table_of_duplicates_tells_which_rows_match(
    device: RecordingDevice, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the probe rows, whether or not they were ordered; the build rows' numbers are not kept."""
    build, probe = side(rng, "some", 500, 8, nulls=0.1), side(rng, "some", 600, 8, nulls=0.2)
    table = partition.build(device, build.on(device), duplicates=True)
    assert table is not None
    assert table.nbytes == table.table.nbytes
    wanted = [bool(rows) for rows in matches(build, probe)]
    for fewest, ordered in ((0, True), (1 << 20, False)):
        monkeypatch.setattr(partition, "FEWEST_ROWS", fewest)
        device.launches.clear()
        result = table.probe(device, probe.on(device))
        assert (device.download(result.row) >= 0).tolist() == wanted
        assert result.pairs == sum(wanted)
        assert ("restore_order" in device.launches) is ordered


@pytest.mark.parametrize(("share", "ordered"), [(0.1, False), (0.6, True)])
def test_probe_rows_are_ordered_only_where_enough_of_a_sample_match(
    device: RecordingDevice,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    share: float,
    ordered: bool,
) -> None:
    monkeypatch.setattr(partition, "FEWEST_ROWS", 0)
    build, keys = rng.permutation(500), rng.integers(500, 10_000, 2000)
    keys[: int(share * 2000)] = rng.integers(0, 500, int(share * 2000))
    table = partition.build(device, KeyCodes(device.upload(build), None), least_match=0.25)
    assert table is not None
    probe = KeyCodes(device.upload(rng.permutation(keys)), None)
    assert table.match_ratio(device, probe) == pytest.approx(share)
    assert table.match_ratio(device, KeyCodes(device.zeros(0, np.int64), None)) == 0.0
    device.launches.clear()
    matches = table.probe(device, probe)
    assert ("partition_rows" in device.launches) is ordered
    assert matches.pairs == int(share * 2000)
    rows = device.download(matches.row)
    codes = device.download(probe.codes)
    assert (rows >= 0).tolist() == (codes < 500).tolist()
    assert (build[rows[rows >= 0]] == codes[codes < 500]).all()
