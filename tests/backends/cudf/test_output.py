"""Output that is written without gather maps on a GPU: the order of the CPU's rows, and which way was taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpujoin import DeviceTable
from gpujoin.backends.cudf import fetching
from gpujoin.backends.cudf.choices import Verdict
from gpujoin.config import Options
from gpujoin.engine.join.sinks import DeviceSink
from gpujoin.engine.tables import join_tables
from gpujoin.launch import rows
from gpujoin.model.jointype import JoinType
from gpujoin.testing import cells

pytestmark = pytest.mark.gpu


def keyed(keys: Any, name: str, rng: np.random.Generator) -> pa.Table:
    """Columns of several widths, with nulls in keys and payload."""
    length = len(keys)
    missing = rng.random((2, length)) < 0.1
    return pa.table(
        {
            "k": pa.array(keys, pa.int64(), mask=missing[0]),
            f"{name}_whole": pa.array(np.arange(length), pa.int32()),
            f"{name}_double": pa.array(rng.choice([0.5, -0.0, np.nan, np.inf], length), mask=missing[1]),
            f"{name}_flag": pa.array(rng.random(length) < 0.5, mask=missing[1][::-1]),
            f"{name}_short": pa.array(rng.integers(-100, 100, length), pa.int16()),
        }
    )


def joined(left: pa.Table, right: pa.Table, how: JoinType, *, on_device: bool) -> pa.Table:
    """Join on the GPU by ``k``, in many batches, and compare rows and their order with the CPU."""
    options = Options(batch_bytes=4000)
    expected = join_tables(left, right, on="k", how=how, backend="cpu", options=options)
    given = [DeviceTable.from_arrow(table, backend="gpu") if on_device else table for table in (left, right)]
    made = join_tables(given[0], given[1], on="k", how=how, backend="gpu", options=options)
    result = made.to_arrow() if on_device else made
    assert list(map(repr, cells(result.to_struct_array()))) == list(map(repr, cells(expected.to_struct_array())))
    return expected


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the slices of many-to-many output that kernels have written."""
    lengths: list[int] = []
    written = rows.emit_ranges

    def counted(*given: Any) -> Any:
        lengths.append(given[-1])
        return written(*given)

    monkeypatch.setattr(rows, "emit_ranges", counted)
    return lengths


@pytest.mark.parametrize("on_device", [False, True], ids=["from the host", "tables on the GPU"])
@pytest.mark.parametrize("how", [JoinType.INNER, JoinType.LEFT, JoinType.RIGHT, JoinType.FULL], ids=lambda h: h.value)
@pytest.mark.parametrize("matches", ["several", "all", "none", "one key"])
def test_keys_that_repeat(
    slices: list[int], how: JoinType, matches: str, on_device: bool, rng: np.random.Generator
) -> None:
    probe_keys, build_keys = {
        "several": (rng.integers(0, 90, 700), rng.integers(0, 60, 200)),
        "all": (rng.integers(0, 20, 300), np.arange(60) % 20),
        "none": (rng.integers(100, 200, 300), np.arange(60) % 20),
        "one key": (np.full(50, 7), np.full(40, 7)),
    }[matches]
    left, right = keyed(probe_keys, "l", rng), keyed(build_keys, "r", rng)
    joined(left, right, how, on_device=on_device)
    assert bool(slices) is (matches != "none")
    pairs = join_tables(left, right, on="k", backend="cpu").num_rows
    assert sum(slices) == pairs
    assert on_device or matches == "none" or len(slices) > 1


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of the outputs whose payload was read with the keys, which is done wherever it can be."""
    rows_out: list[int] = []
    made = fetching.fetch

    def counted(*given: Any, **options: Any) -> Any:
        emitted = made(*given, **options)
        rows_out.append(emitted.rows)
        return emitted

    monkeypatch.setattr(fetching, "fetch", counted)
    monkeypatch.setattr(fetching, "fetches_payload", lambda _: Verdict(True, "for the test"))
    monkeypatch.setattr(DeviceSink, "fetches", True)
    return rows_out


@pytest.mark.parametrize("on_device", [False, True], ids=["from the host", "tables on the GPU"])
@pytest.mark.parametrize("how", [JoinType.INNER, JoinType.LEFT], ids=lambda h: h.value)
@pytest.mark.parametrize("apart", [1, 1 << 40], ids=["dense", "far apart"])
@pytest.mark.parametrize("matches", ["some", "all", "none"])
def test_unique_keys(
    fetched: list[int], matches: str, apart: int, how: JoinType, on_device: bool, rng: np.random.Generator
) -> None:
    low, high = {"some": (0, 90), "all": (0, 60), "none": (100, 200)}[matches]
    left = keyed(rng.integers(low, high, 700) * apart, "l", rng)
    right = keyed(rng.permutation(60) * apart, "r", rng)
    expected = joined(left, right, how, on_device=on_device)
    assert fetched == [expected.num_rows]


def test_text_takes_maps(slices: list[int], fetched: list[int], rng: np.random.Generator) -> None:
    left, right = keyed(rng.integers(0, 9, 80), "l", rng), keyed(rng.integers(0, 9, 30), "r", rng)
    right = right.append_column("text", pa.array([f"row {i}" for i in range(30)]))
    tables = [join_tables(left, right, on="k", backend=backend) for backend in ("gpu", "cpu")]
    first, second = (list(map(repr, cells(table.to_struct_array()))) for table in tables)
    assert first == second
    assert not slices
    assert not fetched
