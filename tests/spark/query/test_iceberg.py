"""What is read of the facts that a scan of Iceberg tells, without Iceberg; with it: `tests/lake`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from gpujoin.config import Options
from gpujoin.model.files import DeletedRows, DeletionFormat, FileSlice, StoredField
from gpujoin.plan.scanned import Buckets
from gpujoin.spark.catalyst.nodes import NotTranslatableError, new_id
from gpujoin.spark.query.iceberg import read_iceberg
from gpujoin.spark.query.scans import RelationFiles, Snapshot

FIELDS = [
    {"id": 1, "name": "k", "required": False, "type": "long"},
    {"id": 2, "name": "g", "required": False, "type": "int"},
    {"id": 3, "name": "s", "required": False, "type": "string"},
]
COLUMNS = {"k": t.LongType(), "g": t.IntegerType(), "s": t.StringType()}
SCAN = "org.apache.iceberg.spark.source.SparkBatchQueryScan"


def file_(name: str, **changes: Any) -> dict[str, Any]:
    about = {
        "location": f"file:/t/{name}", "format": "PARQUET", "size": 100, "rows": 9, "encrypted": False, "spec": "0",
        "values": [], "deletes": [], "ranges": [[4, 96]], "first": 4,
    }  # fmt: skip
    return about | changes


def delete(name: str, content: str = "EQUALITY_DELETES", **changes: Any) -> dict[str, Any]:
    about = {
        "location": f"file:/t/{name}", "format": "PARQUET", "size": 50, "rows": 2, "encrypted": False,
        "content": content, "offset": None, "length": None, "data": None, "ids": None,
    }  # fmt: skip
    return about | changes


def read(
    *files: Mapping[str, Any], fields: list[dict[str, Any]] = FIELDS, columns: Mapping[str, t.DataType] = COLUMNS,
    scan: str = SCAN, **changes: Any,
) -> RelationFiles:  # fmt: skip
    """Read a table's facts; columns have the numbers of their places, from 10 on, as expression ids."""
    schema = json.dumps({"type": "struct", "schema-id": 0, "fields": fields})
    facts = {
        "version": 2, "projection": schema, "table": schema, "opener": "", "specs": {"0": []}, "deletes": [],
        "files": list(files), "snapshot": 77,
    }  # fmt: skip
    output = tuple(
        SimpleNamespace(expr_id=10 + n, data_type=dtype, fields={"name": name, "nullable": True})
        for n, (name, dtype) in enumerate(columns.items())
    )
    about = {"@scan": {"class": scan, "table": "ice.db.t"}}
    node: Any = SimpleNamespace(output=output, iceberg_facts=facts | changes, fields=about)
    return read_iceberg(node, Options(), frozenset(range(10, 10 + len(columns))))


def test_columns_are_found_by_their_numbers() -> None:
    relation = read(file_("a"))
    assert relation.files == (FileSlice("/t/a", 100),)
    assert {i: place.field_id for i, place in relation.stored.items()} == {10: 1, 11: 2, 12: 3}
    assert [field.type for field in relation.columns.values()] == [pa.int64(), pa.int32(), pa.string()]
    assert not relation.partitions
    assert relation.snapshot == Snapshot("ice.db.t", "Iceberg", "snapshot 77")


def test_buckets_of_a_column_by_which_all_files_are_partitioned() -> None:
    both = {"0": [(1, "bucket[4]"), (2, "identity")], "1": [(3, "truncate[2]"), (1, "bucket[4]")]}
    files = [file_("a", values=[3, 7]), file_("b", values=["x", None], spec="1")]
    relation = read(*files, specs=both)
    assert relation.buckets == {10: Buckets("bucket[4] of long", (3, None), (100, 100))}
    assert not read(*files, specs=both | {"1": [(3, "truncate[2]"), (1, "bucket[8]")]}).buckets
    assert not read(file_("a")).buckets


def test_a_column_by_which_all_files_are_partitioned_is_a_constant() -> None:
    files = [file_("a", values=[None, 7]), file_("b", values=[None, None])]
    relation = read(*files, specs={"0": [(1, "bucket[4]"), (2, "identity")]})
    assert [file.constants for file in relation.files] == [(7,), (None,)]
    assert list(relation.partitions) == [11]
    assert list(relation.columns) == [10, 12]


def test_a_column_by_which_some_files_are_partitioned_is_to_be_in_all() -> None:
    relation = read(file_("a", values=[7]), file_("b", spec="1"), specs={"0": [(2, "identity")], "1": []})
    assert relation.stored[11] == StoredField(field_id=2, required=True)
    assert relation.stored[10] == StoredField(field_id=1)
    assert not relation.partitions


def test_positions_of_deleted_rows_belong_to_a_file() -> None:
    positions = delete("p", "POSITION_DELETES")
    vector = delete("v", "POSITION_DELETES", format="PUFFIN", offset=4, length=40, rows=3)
    relation = read(file_("a", deletes=[0, 1]), file_("b"), deletes=[positions, vector])
    assert relation.files[0].deletions == (
        DeletedRows(DeletionFormat.POSITIONS, "/t/p", length=50, data_file="file:/t/a"),
        DeletedRows(DeletionFormat.PUFFIN, "/t/v", 4, 40, 3),
    )
    assert not relation.files[1].deletions


def test_deleted_keys_are_read_for_each_group_of_files_that_names_them() -> None:
    deletes = [delete("x", ids=[1]), delete("y", ids=[1]), delete("z", ids=[3, 1])]
    relation = read(file_("a", deletes=[0, 1, 2]), file_("b", deletes=[1]), file_("c"), deletes=deletes)
    by_k, by_both = relation.deleted_keys
    assert list(by_k.keys) == [10]
    assert list(by_both.keys) == [10, 12]
    assert [file.constants for file in relation.files] == [(0, 0), (1, 1), (2, 1)]
    assert [(file.path, file.constants) for file in by_k.files] == [("/t/x", (0,)), ("/t/y", (0,)), ("/t/y", (1,))]
    assert [(file.path, file.constants) for file in by_both.files] == [("/t/z", (0,))]


def test_a_key_that_nobody_asks_for_is_read_too() -> None:
    relation = read(file_("a", deletes=[0]), columns={"s": t.StringType()}, deletes=[delete("x", ids=[2])])
    [keys] = relation.deleted_keys
    [(expr_id, field)] = keys.keys.items()
    assert relation.columns[expr_id] == field == pa.field("g", pa.int32())
    assert relation.stored[expr_id].field_id == 2


def test_columns_that_nobody_asks_for_share_no_id_with_another_and_have_the_same_names_each_time() -> None:
    columns: dict[str, t.DataType] = {"s": t.StringType()}
    reads = [read(file_("a", deletes=[0]), columns=columns, deletes=[delete("x", ids=[2])]) for _ in range(2)]
    ids = [{i for i in (*relation.columns, *relation.partitions) if i < 0} for relation in reads]
    assert [len(each) for each in ids] == [2, 2]
    assert not ids[0] & ids[1]
    assert new_id() < min(ids[0] | ids[1])  # as stand-ins for what Spark computes have
    first, second = ([*relation.columns.values(), *relation.partitions.values()] for relation in reads)
    assert first == second


def test_rows_are_counted_by_a_column_that_nobody_asks_for() -> None:
    relation = read(file_("a"), columns={})
    assert [field.name for field in relation.columns.values()] == ["k"]


OBSTACLES: dict[str, tuple[dict[str, Any], str]] = {
    "a scan of changes": ({"scan": SCAN.replace("BatchQuery", "Changelog")}, "it is a read of changes"),
    "another scan": ({"scan": "x.JDBCScan"}, "only Iceberg's tables of data sources"),
    "a newer specification": ({"version": 4}, "its version of Iceberg's specification is 4"),
    "another opener": ({"opener": "org.apache.iceberg.gcp.gcs.GCSInputFile"}, "its files are opened by GCSInputFile"),
    "what is not told": ({"obstacle": "why not"}, "why not"),
    "metadata": ({"columns": {"_pos": t.LongType()}}, "column _pos is in no file of the table"),
    "an unknown column": ({"columns": {"x": t.LongType()}}, "column x is in no file of the table"),
    "a type of Iceberg's": ({"fields": [FIELDS[0] | {"type": "uuid"}], "columns": {"k": t.StringType()}}, "type uuid"),
    "another type": ({"columns": {"k": t.IntegerType()}}, "column k is of Iceberg's type long"),
    "a default": ({"fields": [FIELDS[0] | {"initial-default": 4}], "columns": {"k": t.LongType()}}, "has a default"),
}
FILES: dict[str, tuple[dict[str, Any], str]] = {
    "ORC": ({"format": "ORC"}, "it has files of Orc"),
    "encryption": ({"encrypted": True}, "is encrypted"),
    "a beginning": ({"ranges": [[4, 50]]}, "only parts are read"),
    "a hole": ({"ranges": [[4, 50], [60, 40]]}, "only parts are read"),
    "an end": ({"ranges": [[50, 50]]}, "only parts are read"),
    "a store": ({"location": "s9://b/a"}, "its files are on 's9'"),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_what_is_not_known_is_left_to_spark(name: str) -> None:
    changes, why = OBSTACLES[name]
    with pytest.raises(NotTranslatableError, match=why):
        read(file_("a"), **changes)


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_not_known_are_left_to_spark(name: str) -> None:
    changes, why = FILES[name]
    with pytest.raises(NotTranslatableError, match=why):
        read(file_("a"), file_("b", **changes))


def test_a_file_in_several_parts_is_read_as_a_whole() -> None:
    assert read(file_("a", ranges=[[40, 60], [4, 36]])).files == (FileSlice("/t/a", 100),)


@pytest.mark.parametrize(
    "field", [{"id": 9, "name": "x", "type": "double"}, {"id": 9, "name": "x", "type": {"type": "list"}}]
)
def test_keys_that_iceberg_compares_in_its_own_way_are_left_to_spark(field: dict[str, Any]) -> None:
    with pytest.raises(NotTranslatableError, match="rows are deleted by values of column x"):
        read(file_("a", deletes=[0]), fields=[*FIELDS, field], deletes=[delete("x", ids=[9])])
    with pytest.raises(NotTranslatableError, match="rows are deleted by values of a column with number 8"):
        read(file_("a", deletes=[0]), deletes=[delete("x", ids=[8])])
