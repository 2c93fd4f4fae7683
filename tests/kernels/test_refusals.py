"""What launchers refuse before they launch anything: bad arrays, too many rows, tables that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.kernels import joins
from gpujoin.errors import DeviceMemoryError, KernelArgumentError
from gpujoin.launch import csr, direct, facts, residual, unique
from gpujoin.launch.device import Device
from gpujoin.launch.keys import MAX_ROWS, KeyCodes
from gpujoin.launch.matches import UniqueMatches
from gpujoin.launch.normalise import KeyColumn, Kind, layout_of, pack
from gpujoin.launch.rows import FieldColumn
from tests.kernels.conftest import MakeDevice
from tests.kernels.emulator import EmulatedDevice

ROWS = 3000
Launcher = Callable[[Device, KeyCodes], object]
RANGE = direct.Range(0, ROWS)


def side(device: Device, keys: KeyCodes) -> joins.Side:
    return joins.Side(keys, (FieldColumn(device.zeros(8, np.int64)),))


BUILDS: dict[str, Launcher] = {
    "direct unique": lambda device, keys: direct.build_unique(device, keys, RANGE),
    "direct many": lambda device, keys: direct.build_many(device, keys, RANGE),
    "direct set": lambda device, keys: direct.build_set(device, keys, direct.Range(0, 100 * ROWS)),
    "unique": unique.build,
    "csr": csr.build,
}
OTHERS: dict[str, Launcher] = {
    "facts": facts.column_facts,
    "sample": facts.sample,
    "inner join": lambda device, keys: list(
        joins.inner_join(device, side(device, keys), side(device, keys), joins.Kernel.UNIQUE)
    ),
    "semi join": lambda device, keys: joins.semi_join(device, keys, side(device, keys), joins.Kernel.UNIQUE),
}
BAD: dict[str, Callable[[Device], KeyCodes]] = {
    "gaps": lambda device: KeyCodes(device.zeros(16, np.int64)[::2], None),
    "wrong type": lambda device: KeyCodes(device.zeros(8, np.float64), None),
    "wrong shape": lambda device: KeyCodes(device.zeros((8, 3), np.uint64), None),
    "too many rows": lambda _: KeyCodes(np.broadcast_to(np.zeros(1, np.int64), (1 << 31,)), None),
    "validity of another type": lambda device: KeyCodes(device.zeros(8, np.int64), device.zeros(8, np.int8)),
    "validity of another length": lambda device: KeyCodes(device.zeros(8, np.int64), device.zeros(7, np.bool_)),
    "array of the host": lambda _: KeyCodes(np.zeros(8, np.int64), None),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("name", BUILDS | OTHERS)
def test_bad_keys(emulated: EmulatedDevice, name: str, case: str) -> None:
    keys = BAD[case](emulated)
    with pytest.raises(KernelArgumentError):
        (BUILDS | OTHERS)[name](emulated, keys)
    assert not emulated.launches


@pytest.mark.parametrize("build", [unique.build, csr.build], ids=["unique", "csr"])
def test_probe_keys_of_another_width(emulated: EmulatedDevice, build: Callable[..., Any]) -> None:
    wide, narrow = (KeyCodes(emulated.upload(np.arange(8, dtype=t)), None) for t in (np.int64, np.int32))
    for build_keys, probe in ((wide, narrow), (narrow, wide)):
        table = build(emulated, build_keys)
        before = list(emulated.launches)
        with pytest.raises(KernelArgumentError, match="pack both by one layout"):
            table.probe(emulated, probe)
        assert emulated.launches == before


def test_keys_of_another_type_than_the_layout(emulated: EmulatedDevice) -> None:
    """A layout of bytes would cut integers down to bytes."""
    given = [emulated.upload(np.array([1, 2], t)) for t in (np.int8, np.int32, np.int64)]
    columns = [KeyColumn(Kind.INTEGER, values, null_safe=i == 0) for i, values in enumerate(given)]
    for build, probe in ((0, 1), (2, 1)):
        layout = layout_of(emulated, [columns[build]])
        assert layout is not None
        with pytest.raises(KernelArgumentError, match="where the layout was made for integer"):
            pack(emulated, layout, [columns[probe]])


def test_condition_columns_of_another_length(emulated: EmulatedDevice) -> None:
    """One value for all rows is not one a row: the kernel would read what lies behind it."""
    short = [residual.ConditionColumn(None, emulated.zeros(1, np.bool_))]
    text = "from_left(pair).missing(0)"
    with pytest.raises(KernelArgumentError, match="column 0 has"):
        residual.mask(emulated, text, short, 8)
    matches = UniqueMatches(emulated.zeros(8, np.int32), 8)
    with pytest.raises(KernelArgumentError, match="column 0 has"):
        residual.restrict(emulated, text, short, matches, 4, probe_is_left=True)
    assert not emulated.launches


def test_more_rows_than_a_table_can_have_slots_for(emulated: EmulatedDevice) -> None:
    """Simulated: no memory stands behind these keys."""
    keys = KeyCodes(np.broadcast_to(np.zeros(1, np.int64), ((1 << 31) - 1,)), None)
    assert csr.slots_for(keys.rows, unique.MAX_SLOTS) > 1.99 * keys.rows
    assert keys.rows == MAX_ROWS
    assert MAX_ROWS - csr.SECTOR_SLOTS < csr.slots_for(keys.rows) <= MAX_ROWS


@pytest.mark.parametrize("name", BUILDS)
def test_tables_that_do_not_fit(make_device: MakeDevice, name: str, rng: np.random.Generator) -> None:
    """Nothing is launched, and nothing of what was asked for stays."""
    device = make_device(memory_limit=8 * ROWS + 4000)
    keys = KeyCodes(device.upload(rng.permutation(ROWS)), None)
    used = device.arena.used
    with pytest.raises(DeviceMemoryError, match="ask for less at a time"):
        BUILDS[name](device, keys)
    assert (device.launches, device.arena.used) == ([], used)


@pytest.mark.parametrize("kernel", joins.Kernel, ids=lambda k: k.value)
def test_whole_joins_that_do_not_fit(make_device: MakeDevice, kernel: joins.Kernel, rng: np.random.Generator) -> None:
    device = make_device(memory_limit=2 * 8 * ROWS + 2000)
    keys = KeyCodes(device.upload(rng.permutation(ROWS)), None)
    given = joins.Side(keys, (FieldColumn(device.upload(np.arange(ROWS))),))
    with pytest.raises(DeviceMemoryError, match="ask for less at a time"):
        list(joins.inner_join(device, given, given, kernel))
