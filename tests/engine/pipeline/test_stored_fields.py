"""Columns, and fields within them, that files have under other names, or under ids."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpujoin.engine.pipeline.support import read_footers
from gpujoin.errors import RelationError, ScanError
from gpujoin.model.expressions import left
from gpujoin.model.files import StoredField
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import Scan
from gpujoin.plan.resolve import resolve
from tests.engine.pipeline.places import everywhere, run
from tests.trees import file_slice


def field(name: str, dtype: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, dtype, metadata={"PARQUET:field_id": str(number)})


INNER = pa.struct([field("p", pa.int32(), 5), field("q", pa.string(), 6)])
STORED = pa.schema([
    field("a", pa.int64(), 1), field("b", pa.string(), 2), field("s", INNER, 3),
    field("l", pa.list_(field("element", INNER, 4)), 7),
    field("m", pa.map_(pa.string(), INNER), 8),
])  # fmt: skip
"""What a file has; `p` and `q` are in a struct, a list and a map."""
ROWS: list[dict[str, Any]] = [
    {
        "a": n, "b": f"t{n}", "s": None if n % 5 == 0 else {"p": n, "q": None if n % 4 == 0 else "x"},
        "l": None if n % 3 == 0 else [{"p": 1, "q": "y"}, None], "m": [("k", {"p": n, "q": "z"})],
    }
    for n in range(60)
]  # fmt: skip


def written(folder: Path, schema: pa.Schema = STORED) -> Path:
    path = folder / "data.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS, schema), path, row_group_size=20)
    return path


PLANNED_INNER = pa.struct([("q", pa.int32()), ("new", pa.int8()), ("P", pa.string())])
"""The names of `p` and `q` are others, `q` is now that of the first, and a field is added."""
PLANNED = pa.schema([
    ("b", pa.int64()), ("c", pa.string()), ("s", PLANNED_INNER), ("l", pa.list_(PLANNED_INNER)),
    ("m", pa.map_(pa.string(), PLANNED_INNER)), ("added", pa.int32()),
])  # fmt: skip
NAMES, IDS = (
    (
        StoredField(**a), StoredField(**b), StoredField(**s, fields=inner),
        StoredField(**li, fields=(StoredField(fields=inner),)),
        StoredField(**m, fields=(StoredField(), StoredField(fields=inner))), StoredField(**gone),
    )
    for (a, b, s, li, m, gone), inner in (
        (({"name": n} for n in ("a", "b", "s", "l", "m", "gone")), tuple(map(StoredField, ("p", "none", "q")))),
        (({"field_id": n} for n in (1, 2, 3, 7, 8, 99)), tuple(StoredField(field_id=n) for n in (5, 98, 6))),
    )
)  # fmt: skip


def renamed(value: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if value is None else {"q": value["p"], "new": None, "P": value["q"]}


EXPECTED = [
    {
        "b": row["a"], "c": row["b"], "s": renamed(row["s"]),
        "l": None if row["l"] is None else [renamed(value) for value in row["l"]],
        "m": [(key, renamed(value)) for key, value in row["m"]], "added": None,
    }
    for row in ROWS
]  # fmt: skip


@everywhere
@pytest.mark.parametrize("stored_fields", [NAMES, IDS], ids=["names", "ids"])
def test_columns_are_found_at_every_depth(tmp_path: Path, stored_fields: tuple[StoredField, ...]) -> None:
    path, metrics = written(tmp_path), PipelineMetrics()
    scan = Scan(PLANNED, slices=(file_slice(path),), stored_fields=stored_fields)
    [footer] = read_footers(scan, [str(path)])
    assert footer.obstacles == ()
    assert footer.bounds[0] == (0, 59)
    assert pa.Table.from_batches(run(scan), PLANNED).to_pylist() == EXPECTED
    late = dataclasses.replace(scan, filters=(resolve(left("b") >= 45, PLANNED, PLANNED),))
    assert pa.Table.from_batches(run(late, metrics=metrics), PLANNED).to_pylist() == EXPECTED[45:]
    assert metrics.skipped_row_groups == 2


@everywhere
@pytest.mark.parametrize("by", ["name", "field_id"])
def test_two_columns_may_have_exchanged_their_names(tmp_path: Path, by: str) -> None:
    flat = pa.schema([STORED.field("a"), field("b", pa.int64(), 2), STORED.field("s")])
    table = pa.table({"a": [1, 2], "b": [3, 4], "s": [{"p": 5, "q": "x"}, None]}, schema=flat)
    pq.write_table(table, tmp_path / "x.parquet")
    inner = pa.struct([("p", pa.string()), ("q", pa.int32())])
    planned = pa.schema([("b", pa.int64()), ("a", pa.int64()), ("s", inner)])
    names, ids = ("a", "b", "s", "q", "p"), (1, 2, 3, 6, 5)
    a, b, s, q, p = map(StoredField, names) if by == "name" else (StoredField(field_id=number) for number in ids)
    scan = Scan(planned, slices=(file_slice(tmp_path / "x.parquet"),),
                stored_fields=(a, b, dataclasses.replace(s, fields=(q, p))))  # fmt: skip
    assert pa.Table.from_batches(run(scan), planned).to_pylist() == [
        {"b": 1, "a": 3, "s": {"p": "x", "q": 5}}, {"b": 2, "a": 4, "s": None},
    ]  # fmt: skip


def test_ids_of_a_file_without_ids(tmp_path: Path) -> None:
    plain = tmp_path / "plain.parquet"
    pq.write_table(pa.table({"a": [1]}), plain)
    planned = pa.schema([("x", pa.int64())])
    scan = Scan(planned, slices=(file_slice(plain),), stored_fields=(StoredField(field_id=1),))
    with pytest.raises(ScanError, match=r"plain\.parquet: column 'x' is found by its id, and the file has none"):
        list(run(scan))
    named = dataclasses.replace(scan, stored_fields=(StoredField("a", 1),))
    assert pa.Table.from_batches(run(named), planned)["x"].to_pylist() == [1]
    path = written(tmp_path)
    by_id = Scan(planned, slices=(file_slice(path),), stored_fields=(StoredField("b", 1),))
    assert pa.Table.from_batches(run(by_id), planned)["x"].to_pylist() == list(range(60)), "by name where none has ids"


def test_an_id_that_two_columns_have_is_refused(tmp_path: Path) -> None:
    twice = pa.schema([field("a", pa.int64(), 1), field("b", pa.int64(), 1)])
    pq.write_table(pa.table({"a": [1], "b": [2]}, schema=twice), tmp_path / "x.parquet")
    scan = Scan(pa.schema([("x", pa.int64())]), slices=(file_slice(tmp_path / "x.parquet"),),
                stored_fields=(StoredField(field_id=1),))  # fmt: skip
    with pytest.raises(ScanError, match=r"columns \['a', 'b'\] all fit"):
        list(run(scan))


def test_a_struct_of_which_a_file_has_no_field_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    planned = pa.schema([("s", pa.struct([("x", pa.int8()), ("y", pa.int8())]))])
    with pytest.raises(ScanError, match=r"column 's' is struct<p"):
        list(run(Scan(planned, slices=(file_slice(path),))))


def test_stored_fields_are_as_many_as_columns() -> None:
    with pytest.raises(RelationError, match="2 places in files for 1 columns"):
        Scan(pa.schema([("x", pa.int64()), ("part", pa.int8())]), 1, stored_fields=(StoredField(), StoredField()))
