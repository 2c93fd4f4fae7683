"""Tables of Iceberg that a worker reads by itself: files, constants, deletes and columns of a scan of Iceberg's.

Which files a scan reads, and which deletes apply to each of them, Iceberg itself has decided, for the snapshot that
Spark asked for (`IcebergScan.java`). A worker finds columns by their numbers, whatever they were called when a file was
written. Positions of deleted rows belong to a file. Keys of deleted rows (Iceberg's equality deletes) are looked up as
a join does.

They do not apply to rows that were inserted later, not even to those with such a key. So data files that name the same
deletes are a group, deletes are read once for each group that names them, and the group is a part of the key::

    data file  names        deletes             keys (group, k)                       left
    a  k 1, 2  x, y         x  k 1              a is in group 1: (1, 1), (1, 2)       of a nothing
    b  k 1, 3  y            y  k 2, 3           b is in group 2: (2, 1), (2, 3)       of b k 1
                                                x: (1, 1); y: (1, 2), (1, 3), (2, 2), (2, 3)
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import types as t

from gpujoin.model.files import DeletedRows, DeletionFormat, FileSlice, StoredField
from gpujoin.plan.scanned import Buckets
from gpujoin.spark.catalyst.nodes import NotTranslatableError, new_id
from gpujoin.spark.compat import arrow_type
from gpujoin.spark.query.scans import DeletedKeys, RelationFiles, Snapshot, Stores, constant_of, field_of
from gpujoin.spark.query.stores import store_of_s3_file_io, without_logs_of_calls

if TYPE_CHECKING:
    from gpujoin.config import Options
    from gpujoin.model.files import Constant, Store
    from gpujoin.spark.catalyst.nodes import Node
    from gpujoin.spark.query.plans import PlanNode

_SCANS = "org.apache.iceberg.spark.source."
_QUERY_SCAN = _SCANS + "SparkBatchQueryScan"
_OTHER_SCANS = {
    _SCANS + "SparkCopyOnWriteScan": "its files are to be rewritten",
    _SCANS + "SparkStagedScan": "a procedure of Iceberg's reads its files",
    _SCANS + "SparkIncrementalAppendScan": "it is an incremental read",
    _SCANS + "SparkChangelogScan": "it is a read of changes",
    _SCANS + "SparkLocalScan": "Iceberg has its rows in metadata",
}
_NEWEST_VERSION = 3
"""Newest version of Iceberg's specification of tables that is read here."""
_METADATA = frozenset({
    "_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number", "_change_type",
    "_change_ordinal", "_commit_snapshot_id",
})  # fmt: skip
_FIRST_METADATA_ID = 2**31 - 1000
"""Numbers of columns that are in no file, such as ``_pos``, end at 2³¹ - 1."""
_TYPES: dict[str, t.DataType] = {
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "date": t.DateType(),
    "timestamp": t.TimestampNTZType(),
    "timestamptz": t.TimestampType(),
    "string": t.StringType(),
    "binary": t.BinaryType(),
}
"""Types of which values in files, in Iceberg and in Spark are the same, beside decimals."""
_INEXACT = (t.FloatType, t.DoubleType)
"""Types of which Iceberg tells values apart that Spark's ``=`` does not."""
_MOST_KEY_FILES = 2_000
"""Files of keys that one scan reads at most, each counted as often as it is read."""
_POSITIONS = "POSITION_DELETES"
_S3_FILE = "org.apache.iceberg.aws.s3.S3InputFile"
"""What ``S3FileIO`` opens."""
_IDENTITY, _BUCKETS = "identity", "bucket["
"""Transforms by which tables are partitioned: a column as it is, and a hash of it."""


def scan_obstacle(node: PlanNode) -> str | None:
    """Say why a scan of a data source is none of Iceberg's that workers can do; ``None``: it may be."""
    name = node.fields["@scan"]["class"]
    return (
        None if name == _QUERY_SCAN else _OTHER_SCANS.get(name, "only Iceberg's tables of data sources are read here")
    )


def read_iceberg(
    node: PlanNode, options: Options, required: frozenset[int], conditions: Sequence[Node] = ()
) -> RelationFiles:
    """Describe the files of a scan of Iceberg under conditions, with the required columns.

    Iceberg is asked for them only if the scan and its columns are not in the way. Raises ``NotTranslatableError`` if a
    worker cannot read them, or might read something else than Spark does.
    """
    obstacle = scan_obstacle(node)
    if obstacle is not None:
        raise NotTranslatableError(obstacle)
    for attribute in node.output:
        name = str(attribute.fields["name"])
        if attribute.expr_id in required and name in _METADATA:
            raise NotTranslatableError(f"column {name} is in no file of the table")
    for condition in conditions:
        if _compares_with_zero(condition):
            raise NotTranslatableError(f"{condition} compares with zero, of which Iceberg tells -0.0 apart")
    try:
        facts = node.iceberg_facts
    except Py4JJavaError as problem:
        raise NotTranslatableError(f"Iceberg does not list its files: {_cause(problem)}") from problem
    return _Table(node, options, facts).files(required)


def _cause(problem: Py4JJavaError) -> str:
    error = problem.java_exception
    while error.getCause() is not None:
        error = error.getCause()
    return str(error.getMessage() or error.getClass().getSimpleName())


def _compares_with_zero(condition: Node) -> bool:
    """Whether a condition compares floats with zero: Iceberg passes over row groups without this very zero."""
    columns = [node for node in condition.walk() if node.name in ("AttributeReference", "GetStructField")]
    if not any(isinstance(column.data_type, _INEXACT) for column in columns):
        return False
    values = []
    for node in condition.walk():
        if node.name == "Literal" and isinstance(node.data_type, _INEXACT):
            values.append(node.fields["@value"])
        if node.name == "InSet" and isinstance(node.children[0].data_type, _INEXACT):
            values += node.fields["@values"]
    return any(value is not None and float(value) == 0 for value in values)


class _Table:
    """What a scan reads of a table."""

    def __init__(self, node: PlanNode, options: Options, facts: Mapping[str, Any]) -> None:
        if "obstacle" in facts:
            raise NotTranslatableError(facts["obstacle"])
        if facts["version"] > _NEWEST_VERSION:
            raise NotTranslatableError(f"its version of Iceberg's specification is {facts['version']}")
        if facts["opener"] not in ("", _S3_FILE):
            openers = re.sub(r"\w+\.", "", facts["opener"])
            raise NotTranslatableError(f"its files are opened by {openers}, not by Hadoop or S3FileIO alone")
        self._node = node
        self._files: Sequence[Mapping[str, Any]] = facts["files"]
        self._deletes: Sequence[Mapping[str, Any]] = facts["deletes"]
        self._specs: Mapping[str, Sequence[tuple[int, str]]] = {
            name: tuple((source, transform) for source, transform in fields) for name, fields in facts["specs"].items()
        }
        version = "" if facts["snapshot"] is None else f"snapshot {facts['snapshot']}"
        self._snapshot = Snapshot(node.fields["@scan"]["table"], "Iceberg", version)
        self._projection: Sequence[Mapping[str, Any]] = json.loads(facts["projection"])["fields"]
        self._schema: Sequence[Mapping[str, Any]] = json.loads(facts["table"])["fields"]
        s3 = self._s3 if facts["opener"] == _S3_FILE else None
        self._stores = Stores(options, lambda: node.iceberg_configuration, local=partial(_is_local, node), s3=s3)
        self._paths: dict[str, str] = {}
        self._names = {str(attribute.fields["name"]) for attribute in node.output}

    def files(self, required: frozenset[int]) -> RelationFiles:
        """Describe all files, each whole."""
        by_name = {field["name"]: field for field in self._projection}
        columns: dict[int, pa.Field] = {}
        stored: dict[int, StoredField] = {}
        partitions: dict[int, pa.Field] = {}
        constants: list[tuple[int, t.DataType]] = []
        for attribute in self._node.output:
            if attribute.expr_id not in required:
                continue
            name, dtype = str(attribute.fields["name"]), attribute.data_type
            field = by_name.get(name)
            if field is None or field["id"] >= _FIRST_METADATA_ID:
                raise NotTranslatableError(f"column {name} is in no file of the table")
            place = self._place(field, dtype, name)
            if self._with_constant.get(field["id"], 0) == len(self._files) > 0:
                partitions[attribute.expr_id] = field_of(attribute)
                constants.append((field["id"], dtype))
            else:
                columns[attribute.expr_id] = field_of(attribute)
            stored[attribute.expr_id] = place
        if not columns and not partitions:
            counted = new_id()
            columns[counted], stored[counted] = self._plainest()
        slices = [self._slice(file, constants) for file in self._files]
        deleted: list[DeletedKeys] = []
        ids = {place.field_id: expr_id for expr_id, place in stored.items()}
        for key, numbers in self._named_by_key().items():
            places = [self._key(field_id) for field_id in key]
            for place, field in places:
                if place.field_id not in ids:
                    expr_id = ids[place.field_id] = new_id()
                    columns[expr_id], stored[expr_id] = field, place
            groups = {each: group for group, each in enumerate(dict.fromkeys(numbers))}
            group_id = new_id()
            partitions[group_id] = pa.field(f"#deletes{len(deleted)}", pa.int32(), nullable=False)
            slices = [
                dataclasses.replace(file, constants=(*file.constants, groups[each]))
                for file, each in zip(slices, numbers, strict=True)
            ]
            keys = {ids[place.field_id]: field for place, field in places}
            in_deletes = tuple(dataclasses.replace(place, required=True) for place, _ in places)
            deleted.append(DeletedKeys(self._key_files(groups), keys, in_deletes, group_id))
        return RelationFiles(
            tuple(slices), columns, partitions, self._stores.names, stored=stored, deleted_keys=tuple(deleted),
            snapshot=self._snapshot, buckets=self._buckets(ids),
        )  # fmt: skip

    def _s3(self) -> Store:
        """Describe the store that Iceberg opens by itself."""
        with without_logs_of_calls():
            opener = self._node.iceberg_properties
        locations = [file["location"] for file in (*self._files, *self._deletes)]
        return store_of_s3_file_io(opener["properties"], opener["credentials"], locations)

    # -- columns -----------------------------------------------------------------------------------------------------

    @cached_property
    def _with_constant(self) -> Counter[int]:
        """How many files have a constant for a column, by its number: one that partitions the table as it is."""
        return Counter(
            source
            for file in self._files
            for source in {source for source, transform in self._specs[file["spec"]] if transform == _IDENTITY}
        )

    def _buckets(self, ids: Mapping[int | None, int]) -> dict[int, Buckets]:
        """Give the buckets of columns by which all files are partitioned, by expression id."""
        specs = [self._specs[file["spec"]] for file in self._files]
        if not specs:
            return {}
        common = set(specs[0]).intersection(*specs[1:])
        return {
            ids[source]: Buckets(
                f"{transform} of {self._types[source]}",
                tuple(
                    file["values"][spec.index((source, transform))]
                    for file, spec in zip(self._files, specs, strict=True)
                ),
                tuple(file["size"] for file in self._files),
            )
            for source, transform in sorted(common)
            if transform.startswith(_BUCKETS) and source in ids and isinstance(self._types.get(source), str)
        }

    @cached_property
    def _types(self) -> Mapping[int, Any]:
        """Iceberg's types of columns by their numbers."""
        return {field["id"]: field["type"] for field in (*self._schema, *self._projection)}

    def _place(self, field: Mapping[str, Any], dtype: t.DataType, name: str) -> StoredField:
        """Where a column is in files.

        Where only some files have a constant for it, those without the column would need theirs.
        """
        place = _place_of(field, dtype, name)
        return dataclasses.replace(place, required=bool(self._with_constant.get(field["id"])))

    def _plainest(self) -> tuple[pa.Field, StoredField]:
        """Give a column to count rows by."""
        for field in self._schema:
            dtype = _spark_type(field["type"])
            if dtype is not None and "initial-default" not in field:
                return pa.field(field["name"], arrow_type(dtype)), StoredField(field_id=field["id"])
        raise NotTranslatableError("it has no column to count rows by")

    # -- files -------------------------------------------------------------------------------------------------------

    def _slice(self, file: Mapping[str, Any], constants: Sequence[tuple[int, t.DataType]]) -> FileSlice:
        path = self._path(file)
        if not _is_whole(file):
            raise NotTranslatableError(f"of {path} only parts are read")
        fields = zip(self._specs[file["spec"]], file["values"], strict=True)
        by_id = {source: value for (source, transform), value in fields if transform == _IDENTITY}
        values = tuple(_constant(dtype, by_id[field_id]) for field_id, dtype in constants)
        deletes = [self._deletes[number] for number in file["deletes"]]
        positions = tuple(self._positions(each, file) for each in deletes if each["content"] == _POSITIONS)
        return FileSlice(path, file["size"], constants=values, deletions=positions)

    def _path(self, file: Mapping[str, Any], formats: Sequence[str] = ("PARQUET",)) -> str:
        """Name a file as a worker opens it."""
        location = file["location"]
        if file["format"] not in formats:
            raise NotTranslatableError(f"it has files of {file['format'].capitalize()}, as {location}")
        if file["encrypted"]:
            raise NotTranslatableError(f"{location} is encrypted")
        if location not in self._paths:
            if ":" not in location.partition("/")[0]:
                location = self._root + location
            self._paths[file["location"]] = self._stores.path(location)
        return self._paths[file["location"]]

    @cached_property
    def _root(self) -> str:
        """The root of paths without a scheme; nothing: this machine's. Asked for once: it takes calls of the JVM."""
        default = str(self._node.iceberg_configuration.get("fs.defaultFS"))
        return "" if default.startswith("file:") else default.rstrip("/")

    def _positions(self, delete: Mapping[str, Any], file: Mapping[str, Any]) -> DeletedRows:
        """Where the positions of a file's deleted rows are."""
        path = self._path(delete, ("PARQUET", "PUFFIN"))
        if delete["format"] == "PUFFIN":
            return DeletedRows(DeletionFormat.PUFFIN, path, delete["offset"], delete["length"], delete["rows"])
        return DeletedRows(DeletionFormat.POSITIONS, path, length=delete["size"], data_file=file["location"])

    # -- deleted keys ------------------------------------------------------------------------------------------------

    def _named_by_key(self) -> dict[tuple[int, ...], list[frozenset[int]]]:
        """Give the deletes by key that each file names, by the numbers of the key's columns."""
        named: dict[tuple[int, ...], list[frozenset[int]]] = {}
        for place, file in enumerate(self._files):
            for number in file["deletes"]:
                if self._deletes[number]["content"] != _POSITIONS:
                    key = tuple(sorted(self._deletes[number]["ids"]))
                    each = named.setdefault(key, [frozenset()] * len(self._files))
                    each[place] |= {number}
        return named

    def _key(self, field_id: int) -> tuple[StoredField, pa.Field]:
        """Where a column of a key is in files, and its type."""
        field = next((field for field in (*self._projection, *self._schema) if field["id"] == field_id), None)
        dtype = None if field is None else _spark_type(field["type"])
        if field is None or dtype is None or isinstance(dtype, _INEXACT):
            name = f"a column with number {field_id}" if field is None else f"column {field['name']}"
            raise NotTranslatableError(f"rows are deleted by values of {name}, which Iceberg compares in its own way")
        name = field["name"] if field["name"] not in self._names else f"{field['name']}#{field_id}"
        return self._place(field, dtype, field["name"]), pa.field(name, arrow_type(dtype))

    def _key_files(self, groups: Mapping[frozenset[int], int]) -> tuple[FileSlice, ...]:
        """Give the files of keys, once for each group of files that name them."""
        if sum(map(len, groups)) > _MOST_KEY_FILES:
            raise NotTranslatableError(f"more than {_MOST_KEY_FILES} files of deleted keys would be read")
        return tuple(
            FileSlice(self._path(self._deletes[number]), self._deletes[number]["size"], constants=(group,))
            for numbers, group in groups.items()
            for number in sorted(numbers)
        )


def _is_local(node: PlanNode) -> bool:
    return bool(node.gateway.org.apache.spark.SparkContext.getOrCreate().isLocal())


def _is_whole(file: Mapping[str, Any]) -> bool:
    """Whether the tasks that read a file read all of it: their ranges of bytes adjoin, up to its end."""
    ranges = sorted(map(tuple, file["ranges"]))
    ends = [start + length for start, length in ranges]
    starts = [start for start, _ in ranges[1:]]
    return bool(ranges[0][0] <= file["first"] and starts == ends[:-1] and ends[-1] == file["size"])


def _constant(dtype: t.DataType, value: Any) -> Constant:
    """Read the value of a column that partitions a table."""
    if isinstance(dtype, _INEXACT):
        raise NotTranslatableError(f"it is partitioned by {dtype.simpleString()}")
    return constant_of(dtype, value)


# -- types -------------------------------------------------------------------------------------------------------


def _spark_type(ice_type: Any) -> t.DataType | None:
    """Give Spark's type for one of Iceberg's that has no parts; ``None``: there is none whose values are the same."""
    if not isinstance(ice_type, str):
        return None
    if ice_type.startswith("decimal("):
        precision, scale = ice_type.removeprefix("decimal(").rstrip(")").split(",")
        return t.DecimalType(int(precision), int(scale))
    return _TYPES.get(ice_type)


def _place_of(field: Mapping[str, Any], dtype: t.DataType, name: str) -> StoredField:
    """Where a column, or a field within one, is in files.

    Raises ``NotTranslatableError`` if its values in files may be others than in Spark.
    """
    if "initial-default" in field:
        raise NotTranslatableError(f"column {name} has a default in files that lack it")
    return _typed(field["id"], field["type"], dtype, name)


def _typed(field_id: int, ice_type: Any, dtype: t.DataType, name: str) -> StoredField:
    kind = ice_type["type"] if isinstance(ice_type, dict) else None
    match dtype:
        case t.StructType() if kind == "struct":
            by_name = {field["name"]: field for field in ice_type["fields"]}
            if not set(dtype.names) <= by_name.keys():
                raise NotTranslatableError(f"column {name} has a field that is in no file of the table")
            parts = tuple(_place_of(by_name[part.name], part.dataType, f"{name}.{part.name}") for part in dtype)
            return StoredField(field_id=field_id, fields=parts)
        case t.ArrayType() if kind == "list":
            element = _typed(ice_type["element-id"], ice_type["element"], dtype.elementType, f"{name}.element")
            return StoredField(field_id=field_id, fields=(element,))
        case t.MapType() if kind == "map":
            key = _typed(ice_type["key-id"], ice_type["key"], dtype.keyType, f"{name}.key")
            value = _typed(ice_type["value-id"], ice_type["value"], dtype.valueType, f"{name}.value")
            return StoredField(field_id=field_id, fields=(key, value))
        case _ if _spark_type(ice_type) == dtype:
            return StoredField(field_id=field_id)
    raise NotTranslatableError(f"column {name} is of Iceberg's type {ice_type if kind is None else kind}")
