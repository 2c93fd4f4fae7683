"""Payload packed into rows, gathered and emitted (``rows.cu``), against NumPy indexing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpujoin.errors import KernelArgumentError
from gpujoin.launch import rows as rows_module
from gpujoin.launch.matches import UniqueMatches
from gpujoin.launch.rows import FieldColumn, RowLayout, emit, gather, pack, reorder
from tests.kernels.cases import SIZES
from tests.kernels.devices import RecordingDevice

WIDTHS: dict[str, tuple[int, ...]] = {
    "one": (8,),
    "byte": (1,),
    "mixed": (1, 8, 2, 4, 16, 1),
    "four": (8, 8, 8, 8),
    "many": (4,) * 32,
}


def host_column(rng: np.random.Generator, width: int, rows: int, *, nulls: bool) -> tuple[Any, Any]:
    shape = (rows, 2) if width == 16 else (rows,)
    dtype = np.dtype(f"uint{min(width, 8) * 8}")
    values = rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    return values, (rng.random(rows) < 0.7 if nulls else None)


def table(rng: np.random.Generator, widths: tuple[int, ...], rows: int, *, nulls: bool) -> list[tuple[Any, Any]]:
    return [host_column(rng, w, rows, nulls=nulls and i % 2 == 0) for i, w in enumerate(widths)]


def upload(device: RecordingDevice, columns: list[tuple[Any, Any]]) -> list[FieldColumn]:
    return [
        FieldColumn(device.upload(values), None if valid is None else device.upload(valid)) for values, valid in columns
    ]


def cells(values: Any, valid: Any) -> list[Any]:
    return [
        None if valid is not None and not v else k
        for k, v in zip(values.tolist(), valid if valid is not None else values, strict=True)
    ]


def check(device: RecordingDevice, columns: list[FieldColumn], host: list[tuple[Any, Any]], rows: Any) -> None:
    """Output columns against rows of host columns, −1 being a null row."""
    assert len(columns) == len(host)
    for column, (values, valid) in zip(columns, host, strict=True):
        assert column.values.dtype == values.dtype
        source = cells(values, valid)
        expected = [None if row < 0 else source[row] for row in rows]
        got_valid = None if column.valid is None else device.download(column.valid)
        assert cells(device.download(column.values), got_valid) == expected


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("nulls", [False, True], ids=["no nulls", "nulls"])
def test_gather(device: RecordingDevice, rng: np.random.Generator, widths: str, nulls: bool) -> None:
    host = table(rng, WIDTHS[widths], 50, nulls=nulls)
    packed = pack(device, upload(device, host))
    for may_miss in (False, True):
        for length in (0, 1, 31, 33, 257):
            rows = rng.integers(-1 if may_miss else 0, 50, length).astype(np.int32)
            out = gather(device, packed, device.upload(rows), may_miss=may_miss)
            check(device, out, host, rows.tolist())


@pytest.mark.parametrize("widths", [(1,), (2,), (16,), (8, 4), (16, 1, 4), (16, 16, 8)], ids=str)
@pytest.mark.parametrize("rows", [0, 1, 33, 2100])
def test_packed_rows_in_another_order(
    device: RecordingDevice, rng: np.random.Generator, rows: int, widths: tuple[int, ...]
) -> None:
    """Rows may be left out, or be there twice."""
    host = table(rng, widths, rows, nulls=len(widths) > 1)
    order = rng.integers(0, max(1, rows), rows and rows + 7).astype(np.int32)
    packed = reorder(device, pack(device, upload(device, host)), device.upload(order))
    assert packed.rows == len(order)
    places = rng.permutation(len(order)).astype(np.int32)
    out = gather(device, packed, device.upload(places), may_miss=False)
    check(device, out, host, order[places].tolist())


def test_an_order_of_other_numbers_is_refused(device: RecordingDevice, rng: np.random.Generator) -> None:
    packed = pack(device, upload(device, table(rng, (8,), 9, nulls=False)))
    with pytest.raises(KernelArgumentError, match="the order of packed rows"):
        reorder(device, packed, device.upload(np.zeros(9, np.int64)))


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("matched", [True, False], ids=["matched", "unmatched"])
def test_emission(device: RecordingDevice, rng: np.random.Generator, rows: int, matched: bool) -> None:
    probe = table(rng, (8, 1, 16), rows, nulls=True)
    build = table(rng, (4, 8, 8), 40, nulls=bool(rows % 2))
    row = np.where(rng.random(rows) < 0.6, rng.integers(0, 40, rows), -1).astype(np.int32)
    matches = UniqueMatches(device.upload(row), int((row >= 0).sum()))
    packed = pack(device, upload(device, build)) if matched else None
    of_probe, of_build = emit(device, matches, upload(device, probe), packed, matched=matched)
    kept = np.flatnonzero((row >= 0) == matched)
    check(device, of_probe, probe, kept.tolist())
    check(device, of_build, build if matched else [], row[kept].tolist())


@pytest.mark.parametrize("hits", ["all", "none"])
def test_emission_of_all_or_nothing(device: RecordingDevice, rng: np.random.Generator, hits: str) -> None:
    probe, build = (table(rng, (8,), 300, nulls=False) for _ in range(2))
    row = np.arange(300, dtype=np.int32) if hits == "all" else np.full(300, -1, np.int32)
    matches = UniqueMatches(device.upload(row), 300 if hits == "all" else 0)
    kept = list(range(300)) if hits == "all" else []
    of_probe, of_build = emit(device, matches, upload(device, probe), pack(device, upload(device, build)))
    check(device, of_probe, probe, kept)
    check(device, of_build, build, kept)
    _, alone = emit(device, matches, [], pack(device, upload(device, build)))
    check(device, alone, build, kept)


def test_all_probe_rows_are_output_as_they_are(device: RecordingDevice, rng: np.random.Generator) -> None:
    """Inner where each has a match, anti where none has: columns are the given ones, and nothing counts or copies."""
    host, build = table(rng, (8, 4), 300, nulls=True), table(rng, (8, 1), 40, nulls=False)
    given, packed = upload(device, host), pack(device, upload(device, build))
    row = rng.integers(0, 40, 300).astype(np.int32)
    device.launches.clear()
    of_probe, of_build = emit(device, UniqueMatches(device.upload(row), 300), given, packed)
    assert device.launches == ["gather_rows"]
    assert all(one is other for one, other in zip(of_probe, given, strict=True))
    check(device, of_build, build, row.tolist())
    device.launches.clear()
    none = UniqueMatches(device.upload(np.full(300, -1, np.int32)), 0)
    of_probe, of_build = emit(device, none, given, None, matched=False)
    assert device.launches == []
    assert all(one is other for one, other in zip(of_probe, given, strict=True))
    assert of_build == []


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_one_column_without_nulls_is_packed_without_a_copy(
    device: RecordingDevice, rng: np.random.Generator, width: int
) -> None:
    host = table(rng, (width,), 50, nulls=False)
    given = upload(device, host)
    device.launches.clear()
    packed = pack(device, given)
    assert device.launches == []
    assert (packed.nbytes, packed.layout.row_bytes) == (50 * width, width)
    rows = rng.integers(-1, 50, 77).astype(np.int32)
    check(device, gather(device, packed, device.upload(rows), may_miss=True), host, rows.tolist())
    row = np.where(rng.random(90) < 0.6, rng.integers(0, 50, 90), -1).astype(np.int32)
    _, of_build = emit(device, UniqueMatches(device.upload(row), int((row >= 0).sum())), [], packed)
    check(device, of_build, host, row[row >= 0].tolist())


def test_layouts() -> None:
    """Values lie on multiples of their width; rows up to a sector have a size that divides it."""
    for widths in [*WIDTHS.values(), (16, 16), (8, 8, 4, 4, 4), (2, 1), (16, 1), (4,)]:
        for nullable in (False, True):
            layout = RowLayout.from_widths(widths, nullable=nullable)
            used: set[int] = set()
            for offset, width in zip(layout.offsets, layout.widths, strict=True):
                assert offset % width == 0
                assert layout.row_bytes % width == 0
                here = set(range(offset, offset + width))
                assert not here & used
                used |= here
            if nullable:
                assert layout.flags_at is not None
                assert layout.flags_at % 4 == 0
                used |= set(range(layout.flags_at, layout.flags_at + 4))
            assert max(used) < layout.row_bytes
            assert layout.row_bytes in (8, 16, 32) or layout.row_bytes % 16 == 0


def test_bad_columns_are_refused_before_a_launch(device: RecordingDevice) -> None:
    good = FieldColumn(device.zeros(8, np.int64))
    bad = [
        [],
        [good, FieldColumn(device.zeros(7, np.int64))],
        [FieldColumn(device.zeros(16, np.int64)[::2])],
        [FieldColumn(device.zeros((8, 3), np.int8))],
        [FieldColumn(device.zeros(8, np.int64), device.zeros(8, np.int8))],
        [good] * 33,
        [FieldColumn(device.zeros((8, 2), np.int64))] * 17,
        [FieldColumn(np.broadcast_to(np.zeros(1, np.int64), (1 << 31,)))],
    ]
    for columns in bad:
        with pytest.raises(KernelArgumentError):
            pack(device, columns)
    packed = rows_module.PackedRows(8, RowLayout.from_widths([8], nullable=False), None, None, ((np.int64, ()),))
    matches = UniqueMatches(device.zeros(8, np.int32), 8)
    with pytest.raises(KernelArgumentError, match="int32"):
        gather(device, packed, device.zeros(4, np.int64), may_miss=False)
    with pytest.raises(KernelArgumentError, match="probe rows"):
        emit(device, matches, [FieldColumn(device.zeros(9, np.int64))], None)
    with pytest.raises(KernelArgumentError, match="packed=None"):
        emit(device, matches, [good], packed, matched=False)
    assert device.launches == []
