"""Relations of Parquet and ORC files that a worker can read by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from gpujoin.errors import JoinSpecError
from gpujoin.model.files import StoredField, StoreKind
from gpujoin.model.relations import FileFormat, FileSlice
from gpujoin.plan.scanned import Buckets
from gpujoin.spark.catalyst.nodes import NotTranslatableError, python_value
from gpujoin.spark.compat import arrow_type
from gpujoin.spark.query.stores import KINDS, store_of
from gpujoin.storage.locations import comparable_ms, in_store, name_in

if TYPE_CHECKING:
    from gpujoin.config import Options
    from gpujoin.model.files import Constant, Store
    from gpujoin.spark.catalyst.nodes import Node
    from gpujoin.spark.query.plans import PlanNode

_SOURCES = "org.apache.spark.sql.execution.datasources."
RELATION = _SOURCES + "LogicalRelation"
SCAN_RELATION = _SOURCES + "v2.DataSourceV2ScanRelation"
TABLES = frozenset({RELATION, SCAN_RELATION})
"""Relations that may be tables of files."""
_FILES = _SOURCES + "HadoopFsRelation"
_FORMATS = {
    _SOURCES + "parquet.ParquetFileFormat": FileFormat.PARQUET,
    _SOURCES + "orc.OrcFileFormat": FileFormat.ORC,
}
"""Formats that are read here, by Spark's classes; those of Hive and of other packages are others."""
_BY_POSITION = "orc.force.positional.evolution"
"""Setting of Hadoop's by which columns of ORC files have no names."""
_INDEX = _SOURCES + "InMemoryFileIndex"
_EXISTING_DEFAULT = "EXISTS_DEFAULT"
"""Metadata of a column added to a table later: its value in the files that were there."""
_HARMLESS_OPTIONS = frozenset({"path", "paths", "serialization.format", "header", "inferschema", "mergeschema"})
"""Options that change nothing of how files are read once the schema is known."""


@dataclass(frozen=True)
class DeletedKeys:
    """Files of keys: rows of a relation with equal values, nulls being equal, are deleted."""

    files: tuple[FileSlice, ...]
    """The files, each with one constant."""
    keys: Mapping[int, pa.Field]
    """The columns of the key, by their ids in the relation."""
    stored: tuple[StoredField, ...]
    """How each of them is found in the files."""
    constant: int
    """Id of the relation's column that is compared with the constant."""


@dataclass(frozen=True)
class Snapshot:
    """A table of Delta or Iceberg as a query reads it."""

    table: str
    """Its name, or the folder that it is in."""
    format: str
    """Whose table it is."""
    version: str
    """The commit whose rows are read; empty where there is none, or it is not told."""

    def __str__(self) -> str:
        return f"{self.format}, {self.version}" if self.version else self.format


@dataclass(frozen=True)
class RelationFiles:
    """A plain relation of files."""

    files: tuple[FileSlice, ...]
    """Its files as Spark has listed them, each whole."""
    columns: dict[int, pa.Field]
    """The columns in its files, by expression id."""
    partitions: dict[int, pa.Field]
    """The columns in the names of its folders; a file's constants are theirs, in this order."""
    stores: frozenset[str] = frozenset()
    """Names of the stores that its files are in (`storage.locations`)."""
    format: FileFormat = FileFormat.PARQUET
    """Format of its files."""
    stored: Mapping[int, StoredField] = field(default_factory=dict)
    """How columns are found in its files, by expression id; nothing: all by their names."""
    deleted_keys: tuple[DeletedKeys, ...] = ()
    """The keys of rows that are deleted, each time of other columns."""
    snapshot: Snapshot | None = None
    """The table that they are of; ``None``: of none of Delta or Iceberg."""
    buckets: Mapping[int, Buckets] = field(default_factory=dict)
    """The buckets of columns by which the files are divided, by expression id."""

    def with_partitions(self, ids: Sequence[int]) -> RelationFiles:
        """Keep only some of the partition columns, as a scan does that needs no others."""
        if list(ids) == list(self.partitions):
            return self
        at = [list(self.partitions).index(i) for i in ids]
        files = tuple(dataclasses.replace(file, constants=tuple(file.constants[n] for n in at)) for file in self.files)
        return dataclasses.replace(self, files=files, partitions={i: self.partitions[i] for i in ids})


@dataclass(frozen=True)
class ReadRelation:
    """A relation of files that a worker can read."""

    files: RelationFiles
    """The files that it reads."""
    rest: tuple[Node, ...]
    """The conditions that are not seen to by the choice of files."""


def read_relation(node: PlanNode, options: Options, conditions: Sequence[Node] = ()) -> ReadRelation:
    """Describe a ``LogicalRelation`` under conditions on its rows.

    Conditions on partition columns alone choose among its files, as Spark does. Raises ``NotTranslatableError`` if a
    worker cannot read it, or might read something else than Spark does.
    """
    relation = node.fields["@relation"]
    file_format = _format_of(relation, options)
    check_options(relation)
    data = relation["schema"]["fields"]
    check_defaults(data)
    names = {column["name"] for column in data}
    by_name = {str(attribute.fields["name"]): attribute for attribute in node.output}
    keys = [column["name"] for column in relation["partitions"]["fields"]]
    if names & set(keys) or not set(keys) <= by_name.keys():
        raise NotTranslatableError("a partition column is also in its files")
    parts = {by_name[name].expr_id: field_of(by_name[name]) for name in keys}
    choosing = [condition for condition in conditions if prunes(condition, {i: f.name for i, f in parts.items()})]
    listing = relation.get("listing") or node.files(choosing)
    _check_listing(listing, derived=relation["format"] not in _FORMATS)
    values = folders(listing["folders"], StructType.fromJson(relation["partitions"])) if keys else None
    stores = Stores.of_relation(options, node)
    if file_format is FileFormat.ORC and (stores.configuration.get(_BY_POSITION) or "").lower() == "true":
        raise NotTranslatableError(f"{_BY_POSITION} is true")
    files = _files(listing["files"], stores, values)
    columns = {a.expr_id: field_of(a) for name, a in by_name.items() if name in names}
    rest = tuple(condition for condition in conditions if condition not in choosing)
    return ReadRelation(RelationFiles(files, columns, parts, stores.names, file_format), rest)


def check_options(relation: Mapping[str, Any]) -> None:
    """Raise ``NotTranslatableError`` if a relation is read with options that may change its rows."""
    unknown = {name.lower() for name in relation["options"]} - _HARMLESS_OPTIONS
    if unknown:
        raise NotTranslatableError(f"it is read with option {min(unknown)}")


def check_defaults(columns: Iterable[Mapping[str, Any]]) -> None:
    """Raise ``NotTranslatableError`` if files that lack a column do not have nulls there."""
    for column in columns:
        if _EXISTING_DEFAULT in column["metadata"]:
            raise NotTranslatableError(f"column {column['name']} has a default in files that lack it")


def field_of(attribute: Node) -> pa.Field:
    """The column's Arrow field; types are checked where a column is read."""
    try:
        dtype: Any = arrow_type(attribute.data_type)
    except JoinSpecError:
        dtype = pa.null()
    return pa.field(str(attribute.fields["name"]), dtype, bool(attribute.fields["nullable"]))


def _format_of(relation: Mapping[str, Any], options: Options) -> FileFormat:
    """Give the format of a relation's files; that of a class in ``scan.parquetFormats`` is Parquet."""
    name = relation["format"] if relation["class"] == _FILES else ""
    if name in _FORMATS:
        return _FORMATS[name]
    if name not in options.scan_parquet_formats or not relation["derived"]:
        raise NotTranslatableError("only Parquet and ORC files are read here")
    if relation["obstacle"]:
        raise NotTranslatableError(relation["obstacle"])
    # Columns that the format computes, such as Delta's marks of deleted rows, are in no file.
    computed = [column["name"] for column in relation["schema"]["fields"] if column["name"].startswith("__")]
    if computed:
        raise NotTranslatableError(f"column {computed[0]} may be computed by {name.rpartition('.')[2]}")
    return FileFormat.PARQUET


def _check_listing(listing: Mapping[str, Any], *, derived: bool) -> None:
    """Check that a list of files is complete; ``derived``: of a subclass of Parquet's format.

    Lists of such formats are of classes of their own, such as a log of changes.
    """
    if not derived and listing["index"] != _INDEX:
        raise NotTranslatableError(
            f"its files are listed by {listing['index'].rpartition('.')[2]}, which is not known here"
        )
    if listing.get("obstacle"):
        raise NotTranslatableError(listing["obstacle"])


def _files(
    listed: Sequence[tuple[str, bool, int, int]], stores: Stores, folders: Folders | None
) -> tuple[FileSlice, ...]:
    """Describe files; each has the constants of its folder."""
    slices = []
    for path, is_folder, size, modified_ms in listed:
        if is_folder:
            raise NotTranslatableError(f"its list of files holds the folder {path}")
        if folders is not None and folder_of(path) not in folders:
            raise NotTranslatableError(f"{path} is in no folder of a partition")
        constants = () if folders is None else folders[folder_of(path)]
        opened = stores.path(path)
        slices.append(FileSlice(opened, size, comparable_ms(opened, modified_ms), constants=constants))
    return tuple(slices)


class Stores:
    """Names files as workers open them, where they may."""

    def __init__(
        self,
        options: Options,
        hadoop: Callable[[], Any],
        *,
        local: Callable[[], bool],
        s3: Callable[[], Store] | None = None,
    ) -> None:
        """Take the settings, and how to ask what Hadoop is told and whether workers are on the driver's machine.

        ``s3`` describes the store of all files of S3, where Hadoop does not open them.
        """
        self._options = options
        self._s3 = s3
        self._hadoop = hadoop
        self._local = local
        self._roots: dict[str, str] = {}

    @classmethod
    def of_relation(cls, options: Options, node: PlanNode) -> Stores:
        """Name the files of a ``LogicalRelation``, which are opened as its session has it."""

        def session() -> Any:
            return node.jvm.relation().sparkSession()

        return cls(
            options, lambda: session().sessionState().newHadoopConf(), local=lambda: session().sparkContext().isLocal()
        )

    @property
    def names(self) -> frozenset[str]:
        """Give the names of the stores that workers must know."""
        return frozenset(filter(None, map(name_in, self._roots.values())))

    @cached_property
    def configuration(self) -> Any:
        """What Hadoop is told."""
        return self._hadoop()

    def path(self, uri: str) -> str:
        """Name a file as a worker opens it.

        Raises ``NotTranslatableError`` if workers may not read it by themselves.
        """
        scheme, colon, rest = uri.partition(":")
        if not colon or "/" in scheme:
            scheme, rest = "file", uri
        if scheme == "file":
            self._check(scheme)
            return "/" + rest.lstrip("/")
        authority, _, key = rest.lstrip("/").partition("/")
        root = f"{scheme}://{authority}"
        if root not in self._roots:
            self._check(scheme)
            self._roots[root] = self._root(scheme, authority)
        return f"{self._roots[root]}/{key}"

    def _check(self, scheme: str) -> None:
        schemes = self._options.scan_schemes
        if scheme not in schemes:
            raise NotTranslatableError(
                f"its files are on {scheme!r}; workers read {', '.join(schemes)} (spark.gpujoin.scan.schemes)"
            )

    def _root(self, scheme: str, authority: str) -> str:
        if self._s3 is not None and KINDS[scheme] is StoreKind.S3:
            return in_store(self._s3(), authority)
        return in_store(*store_of(scheme, authority, self.configuration, local=bool(self._local())))


Folders = Mapping[str, tuple["Constant", ...]]
"""Values of the partition columns by folder, in the order of the partition schema."""


def folders(listing: Mapping[str, Sequence[Any]], schema: StructType) -> Folders:
    """Read the values that a list of files has for each folder, as ``PlanReader.java`` writes them.

    Raises ``NotTranslatableError`` if a column has a type of which no constants are covered, or a date that Python
    lacks.
    """
    return {
        folder: tuple(constant_of(field.dataType, value) for field, value in zip(schema, values, strict=True))
        for folder, values in listing.items()
    }


def constant_of(dtype: Any, value: Any) -> Constant:
    """Read a value that a partition has for a column, as ``PlanReader.java`` writes it; errors are as of `folders`."""
    try:
        constant: Constant = python_value(dtype, value)
    except OverflowError:
        raise NotTranslatableError("it is partitioned by a date that Python does not have") from None
    if isinstance(constant, Decimal) and -int(constant.as_tuple().exponent) != dtype.scale:
        # Spark takes the digits of such a value for those of its declared type.
        raise NotTranslatableError(f"it is partitioned by {dtype.simpleString()}, and a folder is named {constant}")
    return constant


def folder_of(path: str) -> str:
    """Give the folder of a file."""
    return path.rpartition("/")[0]


def prunes(condition: Node, names: Mapping[int, str]) -> bool:
    """Tell whether Spark itself applies the whole of a condition to partitions.

    ``names`` has the partition columns by expression id.
    """
    attributes = [node for node in condition.walk() if node.name == "AttributeReference"]
    if not attributes or any(names.get(node.expr_id) != node.fields["name"] for node in attributes):
        return False
    if any("plan" in node.fields or "Subquery" in node.name for node in condition.walk()):
        return False
    return condition.deterministic
