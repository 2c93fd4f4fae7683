"""Row groups that Polars reads some rows at a time, and their deleted rows, compared with a loop over the rows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpujoin.backends.cpu.pipeline import parquet
from gpujoin.model.expressions import Expression, left
from gpujoin.model.files import FileSlice, ValueRanges
from gpujoin.model.pipeline import PipelineMetrics, Rung
from gpujoin.model.relations import Scan
from gpujoin.plan.resolve import resolve
from tests.deletions import delta_file
from tests.engine.pipeline.places import run
from tests.trees import Tree, count, file_slice, total

SEEDS = [pytest.param(seed, marks=[pytest.mark.extra] * (seed >= 10)) for seed in range(100)]
CODECS = ("snappy", "zstd", "none")
Row = dict[str, Any]


@pytest.fixture
def by_polars_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars reads slices of any number of rows, and PyArrow nothing."""

    def refuse(*_: object, **__: object) -> Any:
        raise AssertionError("PyArrow decodes a file")

    monkeypatch.setattr(parquet, "_LEAST_STEP", 1)
    monkeypatch.setattr(parquet, "_by_arrow", refuse)


def random_table(rng: np.random.Generator) -> pa.Table:
    rows = int(rng.integers(1, 300))
    keys = rng.integers(0, int(rng.choice([5, 100, 10**6])), rows)
    keys = np.sort(keys) if rng.random() < 0.5 else keys
    return pa.table({
        "k": pa.array(keys, mask=rng.random(rows) < rng.choice([0, 0.2])),
        "row": pa.array(range(rows), pa.int64()),
        "t": pa.array([f"text {n}" for n in rng.integers(0, 9, rows)], mask=rng.random(rows) < 0.1),
        "d": pa.array(rng.integers(-(10**6), 10**6, rows), mask=rng.random(rows) < 0.1).cast(pa.decimal128(19, 0)).cast(
            pa.decimal128(12, 2), safe=False
        ),
    })  # fmt: skip


def random_deletes(rng: np.random.Generator, rows: int) -> list[int]:
    deleted = rng.random(rows) < rng.choice([0, 0.05, 0.5, 1])
    for _ in range(int(rng.integers(0, 3))):
        first = int(rng.integers(0, rows))
        deleted[first : first + int(rng.integers(1, 80))] ^= True
    return np.flatnonzero(deleted).tolist()


def random_condition(rng: np.random.Generator, table: pa.Table) -> tuple[Expression | None, Any]:
    """A condition, and what tells whether a row meets it."""
    least = int(rng.integers(0, table.num_rows))
    match int(rng.integers(0, 5)):
        case 0:
            return None, lambda row: True
        case 1:
            return left("row") >= least, lambda row: row["row"] >= least
        case 2:
            return left("t") == "text 3", lambda row: row["t"] == "text 3"
        case 3:
            both = (left("row") < least) & (left("t") == "text 3")
            return both, lambda row: row["row"] < least and row["t"] == "text 3"
        case _:
            return left("k") < 3, lambda row: row["k"] is not None and row["k"] < 3


def written(rng: np.random.Generator, table: pa.Table, path: Path) -> None:
    pq.write_table(
        table, path, row_group_size=int(rng.integers(1, table.num_rows + 1)), data_page_size=64,
        max_rows_per_page=int(rng.choice([1, 7, 50])), write_batch_size=int(rng.choice([1, 16])),
        compression=str(rng.choice(CODECS)), use_dictionary=bool(rng.random() < 0.7),
    )  # fmt: skip


def random_parts(rng: np.random.Generator, part: FileSlice) -> list[FileSlice]:
    groups = pq.ParquetFile(part.path).num_row_groups
    if rng.random() < 0.5:
        return [part]
    tasks = rng.integers(0, 3, groups)
    return [dataclasses.replace(part, row_groups=tuple(np.flatnonzero(tasks == n).tolist())) for n in range(3)]


@pytest.mark.parametrize("seed", SEEDS)
def test_slices_have_the_rows_of_a_loop(tmp_path: Path, by_polars_alone: None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    print(f"seed {seed}")
    table = random_table(rng)
    written(rng, table, tmp_path / "data.parquet")
    deleted = random_deletes(rng, table.num_rows)
    deletions = tuple(delta_file(tmp_path / "d.bin", deleted)) if deleted else ()
    condition, meets = random_condition(rng, table)
    parts = random_parts(rng, file_slice(tmp_path / "data.parquet", deletions=deletions))
    piece_bytes = int(rng.choice([400, 1500, 8000, 1 << 20]))
    scan = Scan(table.schema, filters=() if condition is None else (resolve(condition, table.schema, table.schema),))
    expected = [row for n, row in enumerate(table.to_pylist()) if n not in set(deleted) and meets(row)]
    read: list[Row] = []
    for part in parts:
        each = dataclasses.replace(scan, slices=(part,))
        rows = pa.Table.from_batches(run(each, piece_bytes=piece_bytes), table.schema).to_pylist()
        assert [row["row"] for row in rows] == sorted(row["row"] for row in rows)
        read += rows
    assert sorted(read, key=lambda row: row["row"]) == expected
    if table["k"].null_count < table.num_rows:
        wanted = sorted({key for key in table["k"].to_pylist()[:20] if key is not None})
        ranges = ValueRanges(tuple(wanted), tuple(wanted), pa.array(wanted, pa.int64()))
        narrow = dataclasses.replace(scan, slices=tuple(parts), match_ranges=((0, ranges),))
        rows = pa.Table.from_batches(run(narrow, piece_bytes=piece_bytes), table.schema).to_pylist()
        assert all(row in expected for row in rows)
        matching = [row for row in rows if row["k"] in wanted]
        assert sorted(matching, key=lambda row: row["row"]) == [row for row in expected if row["k"] in wanted]
    tree = Tree(dataclasses.replace(scan, slices=tuple(parts))).group(n=count(), s=total(left("row"))).relation
    [row] = pa.Table.from_batches(run(tree, piece_bytes=piece_bytes), tree.schema).to_pylist()
    assert row["n.count"] == len(expected)


@pytest.mark.parametrize("has_deletes", [False, True])
def test_deletes_and_filters_are_part_of_the_query_that_decodes(
    tmp_path: Path, by_polars_alone: None, has_deletes: bool
) -> None:
    """So Polars decodes other columns for the rows that stay alone."""
    table = pa.table({"k": range(1000), "row": [f"row {n}" for n in range(1000)]})
    pq.write_table(table, tmp_path / "data.parquet", row_group_size=400, max_rows_per_page=50)
    deletions = tuple(delta_file(tmp_path / "d.bin", range(100, 150))) if has_deletes else ()
    filters = (resolve(left("k") >= 120, table.schema, table.schema),)
    part = file_slice(tmp_path / "data.parquet", deletions=deletions)
    scan = Scan(table.schema, filters=filters, slices=(part,))
    pieces = list(parquet.read(scan, PipelineMetrics(), piece_bytes=2000))
    assert len(pieces) > 4
    for piece in pieces:
        plan = piece.frame.explain()
        assert plan.count("FILTER") == 0
        assert plan.count("SELECTION") == 1
    rows = [k for piece in pieces for k in piece.values(piece.columns[0]).to_list()]
    assert rows == list(range(150 if has_deletes else 120, 1000))
    assert sum(piece.rows for piece in pieces) == 1000 - 50 * has_deletes


def test_a_file_with_columns_named_as_the_positions_are_is_read(tmp_path: Path, by_polars_alone: None) -> None:
    table = pa.table({"row": range(50), "row_": range(50, 100)})
    pq.write_table(table, tmp_path / "data.parquet", row_group_size=20)
    part = file_slice(tmp_path / "data.parquet", deletions=tuple(delta_file(tmp_path / "d.bin", [0, 3, 49])))
    rows = pa.Table.from_batches(run(Scan(table.schema, slices=(part,))), table.schema).to_pylist()
    assert rows == [row for n, row in enumerate(table.to_pylist()) if n not in (0, 3, 49)]


@pytest.mark.parametrize(
    ("piece_bytes", "decoder", "pieces"), [(1 << 30, "Polars", 1), (250_000, "Polars", 3), (20_000, "PyArrow", 60)]
)
def test_slices_have_twenty_thousand_rows_at_least(tmp_path: Path, piece_bytes: int, decoder: str, pieces: int) -> None:
    """Smaller ones are cut by PyArrow, which decodes each page once."""
    rows = 90_000
    table = pa.table({"k": pa.array(np.arange(rows)), "t": [f"text {n % 9}" for n in range(rows)]})
    pq.write_table(table, tmp_path / "data.parquet", row_group_size=rows)
    part = file_slice(tmp_path / "data.parquet", deletions=tuple(delta_file(tmp_path / "d.bin", range(0, rows, 2))))
    scan, values = Scan(table.schema, slices=(part,)), []
    read = list(parquet.read(scan, PipelineMetrics(), piece_bytes=piece_bytes, rung=Rung.FAST))
    for piece in read:
        assert ("Parquet SCAN" in piece.frame.explain()) == (decoder == "Polars")
        values += piece.values(piece.columns[0]).to_list()
    assert values == list(range(1, rows, 2))
    assert len(read) >= pieces
