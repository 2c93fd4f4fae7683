"""Payload from packed rows by the engine and by the device backend's own code, and output that does not fit."""

from __future__ import annotations

import dataclasses
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.backends.cudf import packing
from gpujoin.backends.cudf.choices import Verdict
from gpujoin.config import Options
from gpujoin.errors import DeviceMemoryError
from gpujoin.launch import expand, rows
from gpujoin.launch.matches import Ranges, UniqueMatches
from gpujoin.launch.rows import FieldColumn
from gpujoin.model.algorithm import Algorithm
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.maps import Indices, MapOrder, OutOfBounds
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.testing import assert_same_rows
from tests.backends.cudf.host import HostBackend, emulated_ops, take
from tests.backends.cudf.test_engine import run
from tests.faults import FaultyBackend
from tests.generate import Generator, Mix
from tests.kernels.conftest import MakeDevice
from tests.kernels.emulator import EmulatedDevice
from tests.oracle.join import oracle_join

ROWS = 60
PAYLOAD = pa.schema(
    [("b", pa.bool_()), ("d", pa.decimal128(38, 10)), ("s", pa.string()), ("f", pa.float64()), ("y", pa.date32()),
     ("h", pa.int16()), ("c", pa.dictionary(pa.int32(), pa.string()))]
)  # fmt: skip
KERNELS = {"pack_rows", "gather_rows"}


@pytest.fixture
def by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are gathered from packed rows wherever they can be."""
    monkeypatch.setattr(packing, "packs_rows", lambda _: Verdict(True, "for the test"))


@pytest.fixture
def tiny_cache(make_device: MakeDevice, emulated: EmulatedDevice) -> EmulatedDevice:
    """A device whose L2 holds none of the columns below."""
    return make_device(properties=dataclasses.replace(emulated.properties, l2_bytes=16))


def tables(seed: int) -> tuple[pa.Table, pa.Table]:
    """Unique keys on the right; three matches a key on average; payload of every width."""
    g = Generator(seed, Mix(spread=6))
    left, right = g.table(PAYLOAD, 4 * ROWS), g.table(PAYLOAD, ROWS)
    keys = np.random.default_rng(seed).permutation(ROWS)
    probe = np.random.default_rng(seed + 1).integers(-5, ROWS, 4 * ROWS)
    return left.append_column("k", pa.array(probe)), right.append_column("k", pa.array(keys))


@pytest.mark.parametrize("duplicates", [False, True], ids=["unique", "duplicates"])
@pytest.mark.parametrize("kind", [JoinType.INNER, JoinType.LEFT, JoinType.FULL], ids=lambda k: k.value)
def test_the_engine_gathers_from_packed_rows(
    tiny_cache: EmulatedDevice, kind: JoinType, duplicates: bool, seed: int
) -> None:
    left, right = tables(seed)
    if duplicates:
        right = pa.concat_tables([right, right.slice(0, 7)])
    columns = tuple(range(left.num_columns))
    spec = JoinSpec(kind, (KeyPair(7, 7),), None, columns, columns)
    backend = HostBackend(ops=emulated_ops(tiny_cache))
    options = Options(gpu_algorithm=Algorithm.AUTO)
    result = run(left, right, spec, backend, Side.RIGHT, options, 2 * ROWS)
    assert_same_rows(result, oracle_join(left, right, spec), context=f"seed={seed}")
    assert set(tiny_cache.launches) >= KERNELS
    packed = [frame.num_rows for frame, rows_of in backend.packings.values() if rows_of.packed is not None]
    assert packed == [right.num_rows], "the build side is packed, and packed once; probe rows ascend"


def test_faults_while_packing_and_gathering(tiny_cache: EmulatedDevice, seed: int) -> None:
    left, right = tables(seed)
    columns = tuple(range(left.num_columns))
    spec = JoinSpec(JoinType.LEFT, (KeyPair(7, 7),), None, columns, columns)
    backend: Any = FaultyBackend(HostBackend(ops=emulated_ops(tiny_cache)), every=3)
    result = run(left, right, spec, backend, Side.RIGHT, Options(batch_bytes=4000), 2 * ROWS)
    assert backend.faults
    assert_same_rows(result, oracle_join(left, right, spec), context=f"seed={seed}")


SPECIAL = pa.table(
    {
        "flag": pa.array([True, None, False, True]),
        "text": ["a", None, "", "ü"],
        "money": pa.array([Decimal("-1.5"), None, Decimal(10) ** 27, Decimal(0)], pa.decimal128(38, 2)),
        "float": pa.array([-0.0, float("nan"), None, float("-inf")]),
        "day": pa.array([date(1, 1, 1), date(9999, 12, 31), None, date(1970, 1, 1)]),
        "whole": pa.array([1, 2, 3, -(1 << 63)]),
        "null": pa.nulls(4),
    }
)


@pytest.mark.usefixtures("by_rows")
@pytest.mark.parametrize("table", [SPECIAL, SPECIAL.slice(1, 3), SPECIAL.select(["whole", "text", "day"])])
@pytest.mark.parametrize("misses", [False, True])
def test_values_are_moved_bit_by_bit(emulated: EmulatedDevice, table: pa.Table, misses: bool) -> None:
    backend = HostBackend(ops=emulated_ops(emulated))
    wanted = [2, 0, 2, 1, 1, 0, 0] + ([-5, -1] if misses else [])
    rule = OutOfBounds.NULLIFY if misses else OutOfBounds.NEVER
    indices = backend.indices_from_host(np.array(wanted), rule)
    if misses:
        indices = Indices(emulated.xp.asarray(on_host_with_misses(wanted)), len(wanted), rule)
    result = backend.gather(table, indices, kernels=True)
    assert set(emulated.launches) == KERNELS
    taken = pa.array([None if i < 0 else i for i in wanted], pa.int32())
    for column, source in zip(result.columns, table.columns, strict=True):
        expected = take(source, taken)
        assert column.type == expected.type
        assert list(map(repr, column.to_pylist())) == list(map(repr, expected.to_pylist()))


def on_host_with_misses(wanted: list[int]) -> Any:
    return np.array([i if i >= 0 else -(1 << 31) for i in wanted], np.int32)


def test_packing_is_kept_and_counts_entries(tiny_cache: EmulatedDevice) -> None:
    backend = HostBackend(ops=emulated_ops(tiny_cache))
    table = pa.table({"a": pa.array(range(64)), "b": pa.array(range(64)), "c": pa.array(range(64))})
    some_rows = backend.indices_from_host(np.arange(15)[::-1].copy(), OutOfBounds.NEVER)
    ordered = dataclasses.replace(some_rows, order=MapOrder.ASCENDING)
    launches = []
    for rows_map in (ordered, some_rows, some_rows, some_rows, ordered):
        before = len(tiny_cache.launches)
        backend.gather(table, rows_map, kernels=True)
        launches.append(tiny_cache.launches[before:])
    # 15 entries save 50 ps each, two sectors at random places; packing 64 rows of 56 bytes takes 1 ns.
    assert launches == [[], [], ["pack_rows", "gather_rows"], ["gather_rows"], []]


@pytest.mark.usefixtures("by_rows")
def test_rows_that_do_not_fit_or_compile_are_gathered_by_columns(
    make_device: MakeDevice, caplog: pytest.LogCaptureFixture
) -> None:
    table = pa.table({"a": pa.array(range(1000)), "b": pa.array(range(1000))})
    broken = make_device({"rows.cu": "this is no program"})
    small = make_device(memory_limit=12_000)
    for device in (broken, small):
        backend = HostBackend(ops=emulated_ops(device))
        indices = backend.indices_from_host(np.array([5, 3]), OutOfBounds.NEVER)
        with caplog.at_level("WARNING", "gpujoin"):
            assert backend.gather(table, indices, kernels=True).column(0).to_pylist() == [5, 3]
        assert not device.launches
        assert backend.packings[id(table)][1].refused
    assert "rows.cu" in caplog.text


def test_output_over_memory_is_refused_before_anything_is_launched(make_device: MakeDevice) -> None:
    device = make_device(memory_limit=100_000)
    assert device.free_bytes == 100_000
    start, count = device.zeros(10, np.int32), device.full(10, 1 << 30, np.int32)
    ranges = Ranges(start, count, 10 << 30)
    running = expand.running_counts(device, ranges)
    launched, used = list(device.launches), device.arena.used
    with pytest.raises(DeviceMemoryError, match=str(8 << 30)):
        expand.pairs(device, ranges, running, None, 0, 1 << 30)
    columns = [FieldColumn(device.zeros(1000, np.int64)) for _ in range(2)]
    packed = rows.pack(device, columns)
    launched, used = list(device.launches), device.arena.used
    with pytest.raises(DeviceMemoryError, match="80000"):
        rows.gather(device, packed, device.zeros(5000, np.int32), may_miss=False)
    matches = UniqueMatches(device.zeros(5000, np.int32), 5000)
    with pytest.raises(DeviceMemoryError, match="80000"):
        rows.emit(device, matches, [], packed)
    del matches
    assert (device.launches, device.arena.used) == (launched, used)
    probe_row, _ = expand.pairs(device, ranges, running, None, (1 << 30) - 3, 6)
    assert probe_row.get().tolist() == [0, 0, 0, 1, 1, 1]
