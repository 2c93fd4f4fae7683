"""Parquet relations that a worker can read by itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gpujoin.errors import JoinSpecError
from gpujoin.model.relations import FileSlice
from gpujoin.spark.catalyst.columns import arrow_type
from gpujoin.spark.catalyst.translate import NotTranslatableError

if TYPE_CHECKING:
    from gpujoin.config import Options
    from gpujoin.spark.catalyst.nodes import Node
    from gpujoin.spark.query.plans import PlanNode

_SOURCES = "org.apache.spark.sql.execution.datasources."
RELATION = _SOURCES + "LogicalRelation"
_FILES = _SOURCES + "HadoopFsRelation"
_PARQUET = _SOURCES + "parquet.ParquetFileFormat"
_INDEX = _SOURCES + "InMemoryFileIndex"
_STATUS = re.compile(
    r"path=(?P<path>[^;]*); isDirectory=(?P<folder>\w+); length=(?P<length>\d+);.*?modification_time=(?P<time>\d+);"
)
_READING = {
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "corrected",
    "spark.sql.parquet.int96RebaseModeInRead": "corrected",
    "spark.sql.legacy.parquet.datetimeRebaseModeInRead": "corrected",
    "spark.sql.legacy.parquet.int96RebaseModeInRead": "corrected",
}
"""Settings of Spark's with another meaning of the same files, and the value under which there is only one."""

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
        Its columns by expression id.
    """

    files: tuple[FileSlice, ...]
    columns: dict[int, pa.Field]

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


def read_relation(node: PlanNode, options: Options) -> ParquetFiles:
    """Describe a ``LogicalRelation``.

    Raises
    ------
    NotTranslatableError
        If a worker cannot read it, or might read something else than Spark does.
    """
    if not options.scan_fuse:
        raise NotTranslatableError("spark.gpujoin.scan.fuse is false")
    relation = node.jvm.relation()
    _expect(relation, _FILES, "the relation")
    _expect(relation.fileFormat(), _PARQUET, "the file format")
    location = relation.location()
    _expect(location, _INDEX, "the list of files")
    if not relation.partitionSchema().isEmpty():
        raise NotTranslatableError("it is partitioned by columns")
    given = {str(key).lower() for key in relation.options().keys().mkString(_SEPARATOR).split(_SEPARATOR)}
    unknown = given - _HARMLESS_OPTIONS - {""}
    if unknown:
        raise NotTranslatableError(f"it is read with option {min(unknown)}")
    names = set(relation.dataSchema().fieldNames())
    columns = {}
    for attribute in node.output:
        name = str(attribute.fields["name"])
        if name not in names:
            continue
        columns[attribute.expr_id] = attribute
    return ParquetFiles(_files(location, options), {i: _field(a) for i, a in columns.items()})


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


def _expect(thing: Any, wanted: str, what: str) -> None:
    found = str(thing.getClass().getName())
    if found != wanted:
        raise NotTranslatableError(f"{what} is {found.rpartition('.')[2]}")


def _files(location: Any, options: Options) -> tuple[FileSlice, ...]:
    text = str(location.allFiles().mkString(_SEPARATOR))
    found = []
    for entry in text.split(_SEPARATOR) if text else ():
        status = _STATUS.search(entry)
        if status is None or status["folder"] != "false":
            raise NotTranslatableError(f"its list of files holds {entry[:200]!r}")
        found.append(
            FileSlice(_local_path(status["path"], options), int(status["length"]), int(status["time"]))
        )
    return tuple(found)


def _local_path(path: str, options: Options) -> str:
    scheme, colon, rest = path.partition(":")
    if not colon or "/" in scheme:
        scheme, rest = "file", path
    if scheme not in options.scan_schemes:
        raise NotTranslatableError(
            f"its files are on {scheme!r}, and spark.gpujoin.scan.schemes is {','.join(options.scan_schemes)}"
        )
    if scheme != "file":
        raise NotTranslatableError(f"reading from {scheme!r} is not covered")
    return "/" + rest.lstrip("/")
