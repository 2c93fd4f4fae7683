"""Settings of Spark that change what files hold, and which files or columns they concern.

A setting keeps no more with Spark than it changes. Two of them keep all files of a session, the others columns::

    spark.sql.parquet.fieldId.read.enabled=true     id INT, name STRING        read here, by name as in Spark
                                                    id INT {parquet.field.id}  Spark looks for it by its number
    …parquet.int96RebaseModeInRead=LEGACY           t INT96, by Spark          the file itself says how it is read
                                                    t INT96, by Impala         Spark moves its values
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpujoin.model.files import FileFormat, ForeignColumn
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.spark.catalyst.nodes import NotTranslatableError

if TYPE_CHECKING:
    from gpujoin.spark.catalyst.nodes import Node

IGNORES_CORRUPT = "spark.sql.files.ignoreCorruptFiles"
"""Spark's own reader decides what is corrupt, and where it stops in a file: it reads all files."""
IGNORES_MISSING = "spark.sql.files.ignoreMissingFiles"
"""A file that is gone when it is opened fails the query here, and Spark runs it again: all but streams, of which
nothing runs again."""
CASE_SENSITIVE = "spark.sql.caseSensitive"
"""Names are then matched as written, as a scan can; fields of structs are matched without regard to case here."""
FIELD_IDS = "spark.sql.parquet.fieldId.read.enabled"
"""Columns whose schema has a number, at any depth, are found by it."""
BY_COLUMN = {
    "spark.sql.parquet.int96TimestampConversion": ("false", ForeignColumn.INT96),
    "spark.sql.parquet.int96RebaseModeInRead": ("corrected", ForeignColumn.INT96),
    "spark.sql.legacy.parquet.int96RebaseModeInRead": ("corrected", ForeignColumn.INT96),
    "spark.sql.parquet.datetimeRebaseModeInRead": ("corrected", ForeignColumn.DATES),
    "spark.sql.legacy.parquet.datetimeRebaseModeInRead": ("corrected", ForeignColumn.DATES),
}
"""Settings that shift values of columns of files that no Spark has written; the value under which none does, and which.

``spark.sql.parquet.binaryAsString`` and ``spark.sql.legacy.parquet.nanosAsLong`` are none: they give a column a type
that its files do not have, and such a column is read by Spark under any setting.
"""
PUSHDOWN = {
    FileFormat.PARQUET: "spark.sql.parquet.filterPushdown",
    FileFormat.ORC: "spark.sql.orc.filterPushdown",
}
"""Settings by which Spark leaves out row groups and stripes, if their statistics say that no row passes a filter."""
_FIELD_ID = "parquet.field.id"


@dataclass(frozen=True)
class Reading:
    """How workers read files in a session."""

    obstacle: Reason | None = None
    """Why they read none; ``None``: they do."""
    case_sensitive: bool = False
    """Whether names of columns are matched as written."""
    by_field_id: bool = False
    """Whether columns with a number are found by it."""
    by_setting: tuple[tuple[ForeignColumn, str], ...] = ()
    """As `Scan.by_setting`."""
    by_statistics: frozenset[FileFormat] = frozenset(FileFormat)
    """Formats of which the statistics are used, as they are by Spark."""

    @classmethod
    def from_conf(cls, conf: Mapping[str, str], *, streamed: bool = False) -> Reading:
        """Read the configuration of a session; ``streamed``: for a micro-batch of a stream."""

        def is_on(key: str) -> bool:
            return conf.get(key, "false").lower() == "true"

        obstacle = None
        for key in (IGNORES_CORRUPT, *([IGNORES_MISSING] if streamed else [])):
            if obstacle is None and is_on(key):
                obstacle = Reason(ReasonKind.UNSUPPORTED, "files", f"{key} is true")
        by_setting = [
            (kind, f"{key} is {conf[key]}")
            for key, (plain, kind) in BY_COLUMN.items()
            if conf.get(key, plain).lower() != plain
        ]
        pushed = frozenset(form for form, key in PUSHDOWN.items() if conf.get(key, "true").lower() == "true")
        return cls(obstacle, is_on(CASE_SENSITIVE), is_on(FIELD_IDS), tuple(by_setting), pushed)

    def check_columns(self, relation: Mapping[str, Any], columns: Sequence[Node]) -> None:
        """Raise ``NotTranslatableError`` if a setting lets Spark find a column of a relation in another way."""
        fields = {field["name"]: field for field in relation["schema"]["fields"]}
        for column in columns:
            name = column.fields["name"]
            if self.by_field_id and _has(fields[name], lambda part: _FIELD_ID in part.get("metadata", {})):
                raise NotTranslatableError(f"column {name} is found by its {_FIELD_ID} ({FIELD_IDS} is true)")
            if self.case_sensitive and _has(fields[name], lambda part: part.get("type") == "struct"):
                raise NotTranslatableError(
                    f"column {name} has a struct, whose fields have cases ({CASE_SENSITIVE} is true)"
                )


def _has(part: Any, test: Any) -> bool:
    """Whether a field of a schema, as JSON, or anything within its type, is as wanted."""
    if isinstance(part, list):
        return any(_has(inner, test) for inner in part)
    if not isinstance(part, dict):
        return False
    return bool(test(part)) or any(_has(inner, test) for key, inner in part.items() if key != "metadata")
