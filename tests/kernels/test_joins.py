"""Joins of device columns, keys and payload in and output columns out, against DuckDB."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from benchmarks.kernels import joins
from benchmarks.kernels.joins import Kernel, inner_join, semi_join
from gpujoin.backends.cudf import fetching
from gpujoin.backends.cudf.choices import Verdict
from gpujoin.errors import KernelArgumentError
from gpujoin.launch.keys import KeyCodes
from gpujoin.launch.rows import MAX_FIELDS, FieldColumn
from tests.kernels.devices import RecordingDevice

Columns = dict[str, Any]


def columns(rng: np.random.Generator, keys: Any, prefix: str, *, nulls: bool) -> Columns:
    """Keys and payload of several widths; a masked key is null."""
    rows = len(keys)
    made: Columns = {"k": keys, f"{prefix}0": np.arange(rows, dtype=np.int64)}
    made[f"{prefix}1"] = rng.integers(-100, 100, rows).astype(np.int16)
    made[f"{prefix}2"] = rng.integers(0, 100, rows).astype(np.float32)
    made["valid"] = rng.random(rows) < 0.8 if nulls else np.ones(rows, bool)
    return made


def on(device: RecordingDevice, side: Columns, *, nulls: bool) -> joins.Side:
    valid = device.upload(side["valid"]) if nulls else None
    payload = tuple(FieldColumn(device.upload(values)) for name, values in side.items() if name not in ("k", "valid"))
    return joins.Side(KeyCodes(device.upload(side["k"]), valid), payload)


def expected(build: Columns, probe: Columns, sql: str) -> list[tuple[Any, ...]]:
    connection = duckdb.connect()
    for name, side in (("b", build), ("p", probe)):
        keys = pa.array(side["k"], mask=~side["valid"])
        connection.register(name, pa.table({**side, "k": keys}))
    return sorted(connection.sql(sql).fetchall())


INNER = "select p0, p1, p2, b0, b1, b2 from p join b on p.k = b.k"
SHAPES: dict[str, tuple[int, int]] = {
    "unique": (1, 1), "half match": (1, 2), "tenth": (1, 10), "duplicates": (4, 4), "hot": (200, 200),
}  # fmt: skip


def sides(rng: np.random.Generator, shape: str, dtype: Any, *, nulls: bool) -> tuple[Columns, Columns]:
    """``rows a key`` and ``distinct probe keys for each build key``."""
    multiplicity, spread = SHAPES[shape]
    rows = 600
    keys = rng.permutation(rows) // multiplicity if multiplicity > 1 else rng.permutation(rows)
    probe = rng.integers(0, rows // multiplicity * spread // min(multiplicity, spread), 700)
    return (
        columns(rng, (keys * 3 - 50).astype(dtype), "b", nulls=nulls),
        columns(rng, (probe * 3 - 50).astype(dtype), "p", nulls=nulls),
    )


def rows_of(device: RecordingDevice, output: joins.Output) -> list[tuple[Any, ...]]:
    every = (*output.probe, *output.build)
    assert all(len(c.values) == output.length for c in every)
    return list(zip(*(device.download(c.values).tolist() for c in every), strict=True))


@pytest.mark.few
@pytest.mark.parametrize("kernel", Kernel, ids=lambda k: k.value)
@pytest.mark.parametrize("shape", SHAPES)
def test_inner(device: RecordingDevice, rng: np.random.Generator, shape: str, kernel: Kernel) -> None:
    for dtype, nulls in ((np.int64, True), (np.int32, False)):
        build, probe = sides(rng, shape, dtype, nulls=nulls)
        rows: list[tuple[Any, ...]] = []
        outputs = 0
        given = on(device, build, nulls=nulls), on(device, probe, nulls=nulls)
        for output in inner_join(device, *given, kernel, batch_rows=1000):
            rows += rows_of(device, output)
            outputs += 1
        wanted = expected(build, probe, INNER)
        assert wanted
        assert sorted(rows) == wanted
        assert (outputs > 1) == (SHAPES[shape][0] > 1 and len(wanted) > 1000)


@pytest.mark.parametrize("fetched", [True, False], ids=["payload with keys", "row numbers"])
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@pytest.mark.parametrize("kernel", [Kernel.DIRECT, Kernel.UNIQUE], ids=lambda k: k.value)
@pytest.mark.parametrize("shape", ["unique", "half match"])
def test_payload_is_fetched_with_the_keys(
    device: RecordingDevice,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    shape: str,
    kernel: Kernel,
    dtype: Any,
    fetched: bool,
) -> None:
    """By either choice; either way the answer is the same, with every row matched or some."""
    monkeypatch.setattr(fetching, "fetches_payload", lambda _: Verdict(fetched, "for the test"))
    build, probe = sides(rng, shape, dtype, nulls=True)
    inner = inner_join(device, on(device, build, nulls=True), on(device, probe, nulls=True), kernel)
    assert sorted(row for output in inner for row in rows_of(device, output)) == expected(build, probe, INNER)
    wanted = {f"{kernel.value}_insert", f"{kernel.value}_fetch" if fetched else f"{kernel.value}_probe"}
    assert {name for name in device.launches if name.startswith(kernel.value)} == wanted


def test_as_many_columns_as_a_row_has_leave_no_room_for_the_key(
    device: RecordingDevice, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "fetches_payload", lambda _: Verdict(True, "for the test"))
    keys = device.upload(rng.permutation(300).astype(np.int64))
    for columns, kernel in ((MAX_FIELDS, "unique_probe"), (MAX_FIELDS - 2, "unique_fetch")):
        device.launches.clear()
        build = joins.Side(KeyCodes(keys, None), (FieldColumn(keys),) * columns)
        (output,) = inner_join(device, build, joins.Side(build.keys, ()), Kernel.UNIQUE)
        assert all((device.download(column.values) == device.download(keys)).all() for column in output.build)
        assert kernel in device.launches


def test_columns_of_probe_rows_that_all_match_are_not_copied(device: RecordingDevice, rng: np.random.Generator) -> None:
    keys = device.upload(rng.permutation(700).astype(np.int64))
    build = joins.Side(KeyCodes(keys, None), (FieldColumn(keys),))
    (output,) = inner_join(device, build, build, Kernel.DIRECT)
    assert output.probe[0].values is keys
    assert (device.download(output.build[0].values) == device.download(keys)).all()
    assert "emit_matches" not in device.launches


@pytest.mark.parametrize("kernel", Kernel, ids=lambda k: k.value)
def test_rows_of_a_key_are_written_without_pairs(
    device: RecordingDevice, rng: np.random.Generator, kernel: Kernel
) -> None:
    build, probe = sides(rng, "duplicates", np.int64, nulls=False)
    given = on(device, build, nulls=False), on(device, probe, nulls=False)
    assert sum(output.length for output in inner_join(device, *given, kernel)) == len(expected(build, probe, INNER))
    assert {"csr_count", "sum_tiles", "sum_counts", "csr_order", "pack_rows", "emit_ranges"} <= set(device.launches)
    assert not {"expand_pairs", "gather_rows"} & set(device.launches)


@pytest.mark.parametrize("kernel", Kernel, ids=lambda k: k.value)
@pytest.mark.parametrize("shape", ["half match", "duplicates"])
def test_semi_and_anti(device: RecordingDevice, rng: np.random.Generator, shape: str, kernel: Kernel) -> None:
    build, probe = sides(rng, shape, np.int64, nulls=True)
    given = on(device, build, nulls=True).keys, on(device, probe, nulls=True)
    for matched, word in ((True, "semi"), (False, "anti")):
        output = semi_join(device, *given, kernel, matched=matched)
        wanted = expected(build, probe, f"select p0, p1, p2 from p {word} join b on p.k = b.k")
        assert sorted(rows_of(device, output)) == wanted


@pytest.mark.parametrize("kernel", Kernel, ids=lambda k: k.value)
def test_empty_sides_and_no_payload(device: RecordingDevice, rng: np.random.Generator, kernel: Kernel) -> None:
    build, probe = sides(rng, "unique", np.int64, nulls=False)
    full = on(device, build, nulls=False), on(device, probe, nulls=False)
    nothing = on(device, {name: values[:0] for name, values in build.items()}, nulls=False)
    for build_side, probe_side in ((nothing, full[1]), (full[0], nothing), (nothing, nothing)):
        assert sum(output.length for output in inner_join(device, build_side, probe_side, kernel)) == 0
    bare = joins.Side(full[0].keys, ()), joins.Side(full[1].keys, ())
    wanted = len(expected(build, probe, INNER))
    assert sum(output.length for output in inner_join(device, *bare, kernel)) == wanted


def test_bad_sides_are_refused_before_a_launch(device: RecordingDevice, rng: np.random.Generator) -> None:
    build, probe = sides(rng, "unique", np.int64, nulls=False)
    good, other = on(device, build, nulls=False), on(device, probe, nulls=False)
    with pytest.raises(KernelArgumentError, match="rows of payload"):
        next(inner_join(device, joins.Side(good.keys, other.payload), other, Kernel.UNIQUE))
    assert device.launches == []
    wide = KeyCodes(device.upload(np.array([0, 1 << 40])), None)
    with pytest.raises(KernelArgumentError, match="slots"):
        next(inner_join(device, joins.Side(wide, ()), other, Kernel.DIRECT))
