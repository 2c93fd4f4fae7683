"""Parquet relations that a worker can read by itself."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gpujoin.backends.parquet.places import in_store
from gpujoin.errors import JoinSpecError
from gpujoin.model.relations import FileSlice
from gpujoin.spark.catalyst.columns import arrow_type
from gpujoin.spark.catalyst.translate import NotTranslatableError
from gpujoin.spark.gateway import class_of, schema_of
from gpujoin.spark.query.partitions import Folders, folder_of, folders, listed, pruned, prunes
from gpujoin.spark.query.stores import store_obstacle

if TYPE_CHECKING:
    from gpujoin.config import Options
    from gpujoin.spark.catalyst.nodes import Node
    from gpujoin.spark.query.plans import PlanNode

_SOURCES = "org.apache.spark.sql.execution.datasources."
RELATION = _SOURCES + "LogicalRelation"
_FILES = _SOURCES + "HadoopFsRelation"
_PARQUET = _SOURCES + "parquet.ParquetFileFormat"
_INDEX = _SOURCES + "InMemoryFileIndex"
_PATH = "FileStatus{path="
_STATUS = re.compile(
    r"(?P<path>[^;]*); isDirectory=(?P<folder>\w+); length=(?P<length>\d+);.*?modification_time=(?P<time>\d+);"
)
_READING = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.fieldId.read.enabled": "false",
    "spark.sql.parquet.int96TimestampConversion": "false",
    "spark.sql.legacy.parquet.nanosAsLong": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "corrected",
    "spark.sql.parquet.int96RebaseModeInRead": "corrected",
    "spark.sql.legacy.parquet.datetimeRebaseModeInRead": "corrected",
    "spark.sql.legacy.parquet.int96RebaseModeInRead": "corrected",
}
"""Settings of Spark's with another meaning of the same files, and the value under which there is only one."""

_EXISTING_DEFAULT = "EXISTS_DEFAULT"
"""Metadata of a column added to a table later: its value in the files that were there."""
_SEPARATOR = "\x1e"
_HARMLESS_OPTIONS = frozenset({"path", "paths", "serialization.format", "header", "inferschema"})


@dataclass(frozen=True)
class ParquetFiles:
    """A plain Parquet relation.

    Attributes
    ----------
    files : tuple of FileSlice
        Its files as Spark has listed them, each whole.
    columns : dict from int to pyarrow.Field
        The columns in its files, by expression id.
    partitions : dict from int to pyarrow.Field
        The columns in the names of its folders; a file's constants are theirs, in this order.
    """

    files: tuple[FileSlice, ...]
    columns: dict[int, pa.Field]
    partitions: dict[int, pa.Field]

    def with_partitions(self, chosen: Sequence[int]) -> ParquetFiles:
        """Keep only some of the partition columns, as a scan does that needs no others."""
        at = [list(self.partitions).index(i) for i in chosen]
        files = tuple(
            dataclasses.replace(one, constants=tuple(one.constants[n] for n in at)) for one in self.files
        )
        return ParquetFiles(files, self.columns, {i: self.partitions[i] for i in chosen})

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(one.size for one in self.files)

    @property
    def paths(self) -> tuple[str, ...]:
        """Their paths."""
        return tuple(one.path for one in self.files)


def reading_obstacle(conf: Mapping[str, str]) -> str | None:
    """Tell which of Spark's settings has files read in a way that is not covered, if one does."""
    for key, wanted in _READING.items():
        if conf.get(key, wanted).lower() != wanted:
            return f"{key} is {conf[key]}"
    return None


@dataclass(frozen=True)
class ReadRelation:
    """A Parquet relation that a worker can read.

    Attributes
    ----------
    files : ParquetFiles
        What it reads.
    rest : tuple of Node
        The conditions that are not seen to by the choice of files.
    """

    files: ParquetFiles
    rest: tuple[Node, ...]


def read_relation(node: PlanNode, options: Options, conditions: Sequence[Node] = ()) -> ReadRelation:
    """Describe a ``LogicalRelation`` under conditions.

    Parameters
    ----------
    node : PlanNode
        The relation.
    options : Options
        Settings.
    conditions : sequence of Node
        What is asked of its rows. Those of partition columns alone choose among its files, as Spark does.

    Raises
    ------
    NotTranslatableError
        If a worker cannot read it, or might read something else than Spark does.
    """
    if not options.scan_fuse:
        raise NotTranslatableError("spark.gpujoin.scan.fuse is false")
    relation, gateway = node.jvm.relation(), node.gateway
    _expect(class_of(relation, gateway), _FILES, "the relation")
    _expect(class_of(relation.fileFormat(), gateway), _PARQUET, "the file format")
    location, index = listed(relation.location(), gateway)
    _expect(index, _INDEX, "the list of files")
    options_text = str(relation.options().mkString(_SEPARATOR))
    given = {one.partition(" -> ")[0].lower() for one in options_text.split(_SEPARATOR)}
    unknown = given - _HARMLESS_OPTIONS - {""}
    if unknown:
        raise NotTranslatableError(f"it is read with option {min(unknown)}")
    stores = _Stores(options, relation)
    data = schema_of(relation, "dataSchema")
    for field in data.fields:
        if _EXISTING_DEFAULT in (field.metadata or {}):
            raise NotTranslatableError(f"column {field.name} has a default in files that lack it")
    names = set(data.names)
    by_name = {str(attribute.fields["name"]): attribute for attribute in node.output}
    if relation.partitionSchema().isEmpty():
        columns = {a.expr_id: _field(a) for name, a in by_name.items() if name in names}
        files = _files(pruned(location, (), gateway), stores, None)
        return ReadRelation(ParquetFiles(files, columns, {}), tuple(conditions))
    schema = schema_of(relation, "partitionSchema")
    if names & set(schema.names) or not set(schema.names) <= by_name.keys():
        raise NotTranslatableError("a partition column is also in its files")
    parts = {by_name[name].expr_id: _field(by_name[name]) for name in schema.names}
    choosing = [one for one in conditions if prunes(one, {i: f.name for i, f in parts.items()})]
    files = _files(pruned(location, choosing, gateway), stores, folders(location, schema))
    columns = {a.expr_id: _field(a) for name, a in by_name.items() if name in names}
    rest = tuple(one for one in conditions if one not in choosing)
    return ReadRelation(ParquetFiles(files, columns, parts), rest)


def _field(attribute: Node) -> pa.Field:
    """The column's Arrow field; types are checked where a column is read."""
    try:
        dtype: Any = arrow_type(_declared(attribute))
    except JoinSpecError:
        dtype = pa.null()
    return pa.field(str(attribute.fields["name"]), dtype, bool(attribute.fields["nullable"]))


def _declared(attribute: Node) -> Any:
    from gpujoin.spark.catalyst.nodes import declared_type

    return declared_type(attribute)


def _expect(found: str, wanted: str, what: str) -> None:
    if found != wanted:
        raise NotTranslatableError(f"{what} is {found.rpartition('.')[2]}")


def _files(text: str, stores: _Stores, folders: Folders | None) -> tuple[FileSlice, ...]:
    """Read a list of files; each has the constants of its folder."""
    found = []
    for entry in text.split(_PATH)[1:]:
        status = _STATUS.match(entry)
        if status is None or status["folder"] != "false":
            raise NotTranslatableError(f"its list of files holds {entry[:200]!r}")
        path = status["path"]
        if folders is not None and folder_of(path) not in folders:
            raise NotTranslatableError(f"{path} is in no folder of a partition")
        found.append(
            FileSlice(
                stores.path(path), int(status["length"]), int(status["time"]),
                constants=() if folders is None else folders[folder_of(path)],
            )
        )  # fmt: skip
    return tuple(found)


class _Stores:
    """Names files as workers open them, where they may."""

    def __init__(self, options: Options, relation: Any) -> None:
        self._options = options
        self._relation = relation
        self._checked = {"file"}

    def path(self, uri: str) -> str:
        """Name a file as a worker opens it.

        Raises
        ------
        NotTranslatableError
            If workers may not read it by themselves.
        """
        scheme, colon, rest = uri.partition(":")
        if not colon or "/" in scheme:
            scheme, rest = "file", uri
        schemes = self._options.scan_schemes
        if scheme not in schemes:
            raise NotTranslatableError(
                f"its files are on {scheme!r}; workers read {', '.join(schemes)} (spark.gpujoin.scan.schemes)"
            )
        if scheme not in self._checked:
            session = self._relation.sparkSession()
            configuration = session.sessionState().newHadoopConf()
            obstacle = store_obstacle(scheme, configuration, local=bool(session.sparkContext().isLocal()))
            if obstacle is not None:
                raise NotTranslatableError(obstacle)
            self._checked.add(scheme)
        return "/" + rest.lstrip("/") if scheme == "file" else in_store(rest)
