"""Tables of Delta Lake that a worker reads by itself: the files, constants and columns of a relation of Delta's.

Which files a query reads, Delta has decided, for the snapshot that Spark's plan has (`DeltaFiles.java`). A file of a
table never changes under its name: its size tells whether it is there as a whole. The columns of a table may have other
names in its files, or be found there by numbers (column mapping), and so may fields within them::

    table            schema                                                  files
    s STRUCT<a INT>  {"physicalName": "col-1f", "id": 4}, a {"col-2e", 5}    col-1f { col-2e }, with the ids 4 and 5

Rows that are deleted are told by a deletion vector, a bitmap of positions in the file.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import DataType, StructType

from gpujoin.model.files import DeletedRows, DeletionFormat, FileSlice, StoredField
from gpujoin.spark.catalyst.nodes import NotTranslatableError
from gpujoin.spark.query.scans import (
    ReadRelation,
    RelationFiles,
    Snapshot,
    Stores,
    check_defaults,
    check_options,
    constant_of,
    field_of,
)

if TYPE_CHECKING:
    from gpujoin.config import Options
    from gpujoin.spark.catalyst.nodes import Node
    from gpujoin.spark.query.plans import PlanNode

FORMAT = "org.apache.spark.sql.delta.DeltaParquetFileFormat"
"""Delta's class for the files of its tables."""
_NEWEST_VERSION = 3
"""Newest version of a reader in Delta's protocol that is known here: it names its features."""
_FEATURES = frozenset({
    "columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint",
    "vacuumProtocolCheck", "variantShredding", "variantShredding-preview", "variantType", "variantType-preview",
})  # fmt: skip
"""What a reader must know that is known here, or does not touch what is read: values of VARIANT are not."""
_NAME, _ID = "delta.columnMapping.physicalName", "delta.columnMapping.id"
"""Metadata of a column, and of a field within one: its name and its number in files."""


def is_delta(node: PlanNode) -> bool:
    """Whether a ``LogicalRelation`` is of a table of Delta's."""
    return bool(node.fields["@relation"].get("format") == FORMAT)


def read_delta(node: PlanNode, options: Options, conditions: Sequence[Node]) -> ReadRelation:
    """Describe the files of a table of Delta's, of which Delta leaves out those without rows for the conditions.

    Raises ``NotTranslatableError`` if a worker cannot read them, or might read something else than Spark does.
    """
    relation = node.fields["@relation"]
    check_options(relation)
    facts = node.files(conditions)
    if "obstacle" in facts:
        raise NotTranslatableError(facts["obstacle"])
    _check_protocol(facts["version"], facts["features"])
    reference = _by_name(json.loads(facts["reference"]))
    partitions = StructType.fromJson(relation["partitions"])
    by_name = {str(attribute.fields["name"]): attribute for attribute in node.output}
    if not set(partitions.names) <= by_name.keys():
        raise NotTranslatableError("a column that partitions it is not in the plan")
    data = {
        column["name"]: column
        for column in relation["schema"]["fields"]
        if column["name"] in reference and column["name"] in by_name and column["name"] not in partitions.names
    }
    check_defaults(data.values())
    stores = Stores.of_relation(options, node)
    types = [field.dataType for field in partitions]
    files = tuple(_file(about, types, stores) for about in facts["files"])
    columns = {by_name[name].expr_id: field_of(by_name[name]) for name in data}
    parts = {by_name[name].expr_id: field_of(by_name[name]) for name in partitions.names}
    stored = {}
    if facts["mapping"] != "none":
        key = {"name": _NAME, "id": _ID}[facts["mapping"]]
        stored = {by_name[name].expr_id: _stored_field(column, reference[name], key) for name, column in data.items()}
    name = relation.get("table") or next(iter(relation["paths"]), "")
    version = "" if facts["snapshot"] is None else f"version {facts['snapshot']}"
    snapshot = Snapshot(name, "Delta", version)
    return ReadRelation(
        RelationFiles(files, columns, parts, stores.names, stored=stored, snapshot=snapshot), tuple(conditions)
    )


def _check_protocol(version: int, features: Sequence[str]) -> None:
    unknown = [name for name in features if name not in _FEATURES]
    if unknown:
        raise NotTranslatableError(f"its readers must know Delta's feature {unknown[0]}, which is not known here")
    if version > _NEWEST_VERSION:
        raise NotTranslatableError(f"its readers must be of version {version} of Delta's protocol")


def _file(about: Sequence[Any], partitions: Sequence[DataType], stores: Stores) -> FileSlice:
    path, size, values, vector = about
    constants = tuple(constant_of(dtype, value) for dtype, value in zip(partitions, values, strict=True))
    deletions = () if vector is None else (_deleted_rows(vector, stores),)
    return FileSlice(stores.path(path), size, constants=constants, deletions=deletions)


def _deleted_rows(vector: Sequence[Any], stores: Stores) -> DeletedRows:
    path, offset, length, rows, data = vector
    if path is None:
        return DeletedRows(DeletionFormat.INLINE, length=length, rows=rows, data=base64.b64decode(data))
    return DeletedRows(DeletionFormat.DELTA, stores.path(path), offset, length, rows)


def _stored_field(field: Mapping[str, Any], reference: Mapping[str, Any], key: str) -> StoredField:
    """How a column, or a field within one, is found: by what the schema of the table has of it under a key."""
    if key not in reference["metadata"]:
        raise NotTranslatableError(f"it is not told what column {reference['name']} is called in its files")
    name, inner = reference["metadata"][key], _stored_fields(field["type"], reference["type"], key)
    return StoredField(name, fields=inner) if key == _NAME else StoredField(field_id=name, fields=inner)


def _stored_fields(dtype: Any, reference: Any, key: str) -> tuple[StoredField, ...]:
    """How what a type consists of is found; a query may read fewer fields than the table has."""
    if not isinstance(dtype, dict) or dtype["type"] == "udt":
        return ()
    if not isinstance(reference, dict) or reference["type"] != dtype["type"]:
        raise NotTranslatableError("a query reads a column as another type than the table has")
    match dtype["type"]:
        case "struct":
            fields = _by_name(reference)
            if not all(field["name"] in fields for field in dtype["fields"]):
                raise NotTranslatableError("fields of its structs are none of the table's")
            return tuple(_stored_field(field, fields[field["name"]], key) for field in dtype["fields"])
        case "array":
            return (StoredField(fields=_stored_fields(dtype["elementType"], reference["elementType"], key)),)
        case _:
            parts = ("keyType", "valueType")
            return tuple(StoredField(fields=_stored_fields(dtype[part], reference[part], key)) for part in parts)


def _by_name(struct: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {field["name"]: field for field in struct["fields"]}
