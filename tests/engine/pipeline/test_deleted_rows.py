"""Rows that a table says are deleted: left out by their position in the whole file, before anything else."""

from __future__ import annotations

import dataclasses
import itertools
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from gpujoin.backends.cpu.pipeline import parquet
from gpujoin.backends.parquet import deletions
from gpujoin.config import Options
from gpujoin.errors import ScanError
from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.expressions import left
from gpujoin.model.files import DeletedRows, FileFormat, FileSlice, StoredField
from gpujoin.model.pipeline import PipelineMetrics, Rung
from gpujoin.model.relations import PartialAggregate, Scan
from gpujoin.plan.resolve import resolve
from gpujoin.testing import assert_same_rows
from tests.deletions import delta_file, inline, position_file, puffin_file
from tests.engine.pipeline.places import everywhere, run
from tests.trees import Aggregate, Tree, count, file_slice, total

ROWS, GROUP_ROWS = 1000, 130
TABLE = pa.table({
    "k": pa.array(range(ROWS), pa.int64()), "t": [None if n % 7 == 0 else f"row {n % 50}" for n in range(ROWS)],
    "l": pa.array([[n, n + 1] if n % 3 else None for n in range(ROWS)], pa.list_(pa.int32())),
})  # fmt: skip
DELETED: dict[str, list[int]] = {
    "none": [],
    "one": [130],
    "ends of row groups": [0, 129, 130, 259, 260, 999],
    "a whole row group": list(range(130, 260)),
    "all but one": [n for n in range(ROWS) if n != 500],
    "every third": list(range(0, ROWS, 3)),
}
FORMS = ("delta", "second of a file", "inline", "puffin", "positions", "several")


def told(folder: Path, form: str, numbers: Sequence[int]) -> tuple[DeletedRows, ...]:
    match form:
        case "delta":
            return (delta_file(folder / "d.bin", numbers)[0],)
        case "second of a file":
            return (delta_file(folder / "d.bin", [5], numbers)[1],)
        case "inline":
            return (inline(numbers),)
        case "puffin":
            return (puffin_file(folder / "d.puffin", [1, 2], numbers)[1],)
        case "positions":
            return (position_file(folder / "d.parquet", {"a": [1], "b": numbers, "c": [7]}, "b"),)
        case _:
            some = position_file(folder / "e.parquet", {"b": numbers[::2]}, "b")
            return (some, position_file(folder / "f.parquet", {"b": numbers[1:]}, "b"))


def written(folder: Path, rows: Sequence[int], form: str = "delta", **options: object) -> FileSlice:
    path = folder / "data.parquet"
    pq.write_table(TABLE, path, row_group_size=GROUP_ROWS, **options)
    return file_slice(path, deletions=told(folder, form, rows))


def left_over(rows: Sequence[int], columns: Sequence[str] = tuple(TABLE.column_names)) -> pa.Table:
    mask = np.ones(ROWS, np.bool_)
    mask[list(rows)] = False
    return TABLE.select(columns).filter(pa.array(mask))


@pytest.mark.few(2)
@everywhere
@pytest.mark.parametrize("columns", [("k", "t", "l"), ("k", "t"), ("k",)], ids="".join)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", DELETED)
def test_deleted_rows_are_left_out(tmp_path: Path, name: str, form: str, columns: Sequence[str]) -> None:
    part, expected = written(tmp_path, DELETED[name], form), left_over(DELETED[name], columns)
    schema = expected.schema
    scan = Scan(schema, slices=(part,))
    assert_same_rows(pa.Table.from_batches(run(scan), schema), expected, allow_empty=True)
    late = dataclasses.replace(scan, filters=(resolve(left("k") >= 400, schema, schema),))
    filtered = expected.filter(pa.array([k >= 400 for k in expected["k"].to_pylist()], pa.bool_()))
    assert_same_rows(pa.Table.from_batches(run(late), schema), filtered, allow_empty=True)


@pytest.mark.parametrize("rung", [Rung.FAST, Rung.ARROW_SCANS, Rung.CAREFUL])
@pytest.mark.parametrize("version", ["1.0", "2.0"], ids=["by polars", "by pyarrow"])
@pytest.mark.parametrize("piece_bytes", [1 << 30, 3000, 64], ids=["whole", "groups", "slices of groups"])
def test_every_decoder_leaves_them_out(tmp_path: Path, rung: Rung, version: str, piece_bytes: int) -> None:
    rows = DELETED["every third"] + [130, 131]
    part, metrics = written(tmp_path, rows, data_page_version=version), PipelineMetrics()
    schema = TABLE.schema
    scan = Scan(schema, slices=(part,), filters=(resolve(left("k") >= 140, schema, schema),))
    pieces = list(parquet.read(scan, metrics, piece_bytes=piece_bytes, rung=rung))
    values = [k for piece in pieces for k in piece.values(piece.columns[0]).to_list()]
    assert values == [k for k in left_over(rows)["k"].to_pylist() if k >= 140]
    assert metrics.skipped_row_groups == 1


@everywhere
@pytest.mark.parametrize("parts", ["row groups", "bytes"])
def test_tasks_count_positions_from_the_beginning_of_the_file(tmp_path: Path, parts: str) -> None:
    rows = DELETED["ends of row groups"]
    part = written(tmp_path, rows)
    if parts == "row groups":
        slices = [dataclasses.replace(part, row_groups=groups) for groups in ((0, 2), (1, 3, 4), (5, 6, 7))]
    else:
        cuts = [part.size * n // 3 for n in range(4)]
        slices = [dataclasses.replace(part, byte_range=cut) for cut in itertools.pairwise(cuts)]
    read = [pa.Table.from_batches(run(Scan(TABLE.schema, slices=(each,))), TABLE.schema) for each in slices]
    assert_same_rows(pa.concat_tables(read), left_over(rows))


@everywhere
@pytest.mark.parametrize("columns", ["constant", "missing"])
def test_rows_are_counted_without_those_deleted_if_no_column_is_read(tmp_path: Path, columns: str) -> None:
    rows = DELETED["every third"]
    part = written(tmp_path, rows)
    if columns == "constant":
        scan = Scan(pa.schema([("p", pa.int32())]), 1, slices=(dataclasses.replace(part, constants=(3,)),))
    else:
        scan = Scan(pa.schema([("gone", pa.int32())]), slices=(part,))
    node = Tree(scan).group(n=count()).relation
    assert pa.Table.from_batches(run(node), node.schema).to_pylist() == [{"n.count": ROWS - len(rows)}]


@everywhere
def test_aggregates_and_least_and_greatest_values_are_those_of_the_rows_left(tmp_path: Path) -> None:
    """The file's own statistics have the greatest value of all of its rows."""
    rows = [0, 1, *range(700, ROWS)]
    part, expected = written(tmp_path, rows), left_over(rows)
    node = Tree(Scan(TABLE.schema, slices=(part,))).group(
        n=count(), s=total(left("k")), low=Aggregate(AggregateFunction.MIN, (left("k"),)),
        high=Aggregate(AggregateFunction.MAX, (left("k"),)),
    ).relation  # fmt: skip
    [row] = pa.Table.from_batches(run(node), node.schema).to_pylist()
    assert list(row.values()) == [expected.num_rows, sum(expected["k"].to_pylist()), 2, 699]


def test_groups_of_sorted_files_are_complete_without_the_rows_deleted(tmp_path: Path) -> None:
    rows = DELETED["ends of row groups"]
    part, metrics = written(tmp_path, rows), PipelineMetrics()
    node = Tree(Scan(TABLE.schema, slices=(part,))).group("k", n=count()).relation
    assert isinstance(node, PartialAggregate)
    node = dataclasses.replace(node, final=True)
    read = pa.Table.from_batches(run(node, metrics=metrics, piece_bytes=64, options=Options()), node.schema)
    assert sorted(read["k"].to_pylist()) == left_over(rows)["k"].to_pylist()
    assert metrics.complete_groups


def test_positions_are_read_once_by_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def noted(path: str) -> object:
        opened.append(path)
        return Path(path).open("rb")

    monkeypatch.setattr(deletions, "open_binary", noted)
    part = written(tmp_path, [3, 4], "second of a file")
    for group in range(3):
        list(run(Scan(TABLE.schema, slices=(dataclasses.replace(part, row_groups=(group,)),))))
    assert opened == [str(tmp_path / "d.bin")]


DAMAGE = {
    "missing": "No such file",
    "checksum": "its checksum is that of other bytes",
    "cut off": "ends . bytes before it does|ends .. bytes before it does",
    "cardinality": "it has 3 rows, not 4",
    "length": "it is said to have",
    "magic": "no bitmap in the portable form",
    "beyond the file": "the number 1000, not below 1000",
    "inline and cut off": "bytes, not",
    "puffin's magic": "which is no bitmap",
    "positions beyond the file": "positions 5 to 1000 of 1000 rows",
    "no positions": "it lacks file_path or pos|cannot be read",
}


@everywhere
@pytest.mark.parametrize("damage", DAMAGE)
def test_positions_that_are_missing_or_damaged_are_an_error_that_names_them(tmp_path: Path, damage: str) -> None:
    numbers = [2, 5, 900] if damage != "beyond the file" else [2, 5, 1000]
    part = written(tmp_path, numbers)
    [deletion], file = part.deletions, tmp_path / "d.bin"
    data, name = bytearray(file.read_bytes()), r"d\.bin: a deletion vector"
    match damage:
        case "missing":
            file.unlink()
        case "checksum":
            data[-6] ^= 1
        case "cut off":
            del data[-7:]
        case "cardinality":
            deletion = dataclasses.replace(deletion, rows=4)
        case "length":
            data[deletion.offset + 3] += 1
        case "magic":
            content = struct.pack("<i", 1681511376) + bytes(data[9:-4])
            data = bytearray(b"\x01" + struct.pack(">i", len(content)) + content + crc(content))
        case "inline and cut off":
            deletion, name = dataclasses.replace(inline(numbers), length=77), r"data\.parquet: a deletion vector"
        case "puffin's magic":
            [deletion] = puffin_file(tmp_path / "d.puffin", numbers)
            content = b"PFA1" + bytes(8)
            (tmp_path / "d.puffin").write_bytes(b"PFA1" + struct.pack(">i", len(content)) + content + crc(content))
            deletion, name = dataclasses.replace(deletion, length=len(content) + 8), r"d\.puffin: a deletion vector"
        case "positions beyond the file":
            deletion = position_file(tmp_path / "p.parquet", {"b": [5, 1000]}, "b")
            name = r"p\.parquet: a Parquet file"
        case "no positions":
            pq.write_table(TABLE, tmp_path / "p.parquet")
            deletion = position_file(tmp_path / "q.parquet", {}, "b")
            deletion = dataclasses.replace(deletion, path=str(tmp_path / "p.parquet"))
            name = r"p\.parquet: a Parquet file"
    if damage != "missing":
        file.write_bytes(data)
    scan = Scan(TABLE.schema, slices=(dataclasses.replace(part, deletions=(deletion,)),))
    with pytest.raises(ScanError, match=f"{name}.*({DAMAGE[damage]})"):
        list(run(scan))


def crc(content: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(content))


@pytest.mark.parametrize("change", ["deletions", "stored_fields"])
def test_orc_files_with_deleted_or_mapped_columns_are_refused(tmp_path: Path, change: str) -> None:
    table = TABLE.select(["k"])
    orc.write_table(table, tmp_path / "x.orc")
    part = file_slice(tmp_path / "x.orc")
    scan = Scan(table.schema, slices=(part,), format=FileFormat.ORC)
    if change == "deletions":
        scan = dataclasses.replace(scan, slices=(dataclasses.replace(part, deletions=(inline([1]),)),))
    else:
        scan = dataclasses.replace(scan, stored_fields=(StoredField("k"),))
    with pytest.raises(ScanError, match=r"x\.orc: "):
        list(run(scan))
