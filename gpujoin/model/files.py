"""Slices of files, which tasks read, facts of files, which planning needs, and the stores that files are in."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from dataclasses import dataclass, field, fields
from decimal import Decimal
from enum import Enum
from operator import attrgetter
from typing import Any, TypeAlias

import pyarrow as pa

from gpujoin.errors import RelationError

Constant: TypeAlias = bool | int | float | str | bytes | Decimal | dt.date | dt.datetime | None
Bounds: TypeAlias = tuple[Constant, Constant]
"""The least and the greatest value of a column."""

_SECOND_MS = 1000
_SETTLED_MS = 2 * _SECOND_MS
"""Longer than a clock of whole seconds shows one time, and than one that has more."""


@dataclass(frozen=True, slots=True)
class ValueRanges:
    """Ranges that hold all values of a column: ascending, and no two of them overlap."""

    lows: tuple[Any, ...]
    """The least value of each range, in the form that statistics of files have: text as bytes."""
    highs: tuple[Any, ...]
    """The greatest value of each range."""
    values: pa.Array | None = field(default=None, compare=False)
    """All values, distinct and ascending, of whole numbers and dates; ``None`` where they are too many."""

    def meet(self, low: Any, high: Any) -> bool:
        """Whether a value may be between two bounds, both included."""
        at = bisect_left(self.highs, low)
        return at < len(self.lows) and bool(self.lows[at] <= high)


@dataclass(frozen=True, slots=True)
class Floor:
    """A bound of the rows to come: no later piece of a scan has a smaller value in a column, by statistics of files."""

    column: int
    """Position of the column in the scan."""
    value: Any
    """The bound, as statistics of files have it."""


class FileFormat(Enum):
    """A format of files."""

    PARQUET = "parquet"
    ORC = "orc"


class ForeignColumn(Enum):
    """A kind of columns that Spark reads by a setting in files that no Spark has written."""

    DATES = "dates and timestamps"
    INT96 = "timestamps stored as INT96"


class DeletionFormat(Enum):
    """How the positions of a file's deleted rows are stored."""

    DELTA = "a deletion vector in a file of Delta's"
    INLINE = "a deletion vector in Delta's log"
    PUFFIN = "a deletion vector in a Puffin file"
    POSITIONS = "a Parquet file of paths and positions"


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """The place of a list of deleted rows of a file; what it names never changes, nor does a file of the table."""

    format: DeletionFormat
    path: str = ""
    """Path of the file that has the positions, as this worker can open it; of an inline vector there is none."""
    offset: int = 0
    """First byte of a vector in its file: of its length, as both formats have it."""
    length: int = 0
    """Bytes of Delta's bitmap, of the whole blob of a Puffin file, of the whole Parquet file."""
    rows: int | None = None
    """How many rows are deleted; ``None``: not told."""
    data: bytes = field(default=b"", repr=False)
    """The bitmap of an inline vector."""
    data_file: str = ""
    """What a Parquet file of positions calls the file whose rows are deleted."""


@dataclass(frozen=True, slots=True)
class StoredField:
    """How a column, or a field within one, is found in files, if not by the name that the table has for it."""

    name: str | None = None
    """Its name in files; with an id, in files without any ids."""
    field_id: int | None = None
    """Its id in files."""
    fields: tuple[StoredField, ...] = ()
    """The same of what its type consists of, in order: fields of a struct, the element of a list, the key and the value
    of a map. Nothing: names of fields are those of the table."""
    required: bool = False
    """Whether a file without it is not read: its values there are others than null."""


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A part of one file for one task to read."""

    path: str
    """Path of the file, as this worker can open it."""
    size: int
    """Length of the whole file in bytes when the query was planned."""
    modified_ms: int | None = None
    """Its modification time then, in milliseconds since 1970; ``None``: no other file ever has its name, as in tables
    of Delta and Iceberg, and its size is enough."""
    row_groups: tuple[int, ...] | None = None
    """Which row groups, or stripes of ORC, to read, ascending; ``None``: those whose middle byte lies in
    ``byte_range``, or all."""
    byte_range: tuple[int, int] | None = None
    """First byte and the byte after the last, as Spark cuts files; not together with ``row_groups``."""
    constants: tuple[Constant, ...] = ()
    """Values of the scan's partition columns in this file, as Python values of their Arrow types."""
    deletions: tuple[DeletedRows, ...] = ()
    """Which of its rows are deleted: those that any of these has."""

    def __post_init__(self) -> None:
        if self.row_groups is not None and self.byte_range is not None:
            raise RelationError(f"{self.path}: give row groups or a byte range, not both")
        if self.row_groups is not None and list(self.row_groups) != sorted(set(self.row_groups)):
            raise RelationError(f"{self.path}: row groups must ascend, got {self.row_groups}")

    def __reduce__(self) -> tuple[type[FileSlice], tuple[object, ...]]:
        """Pickle it by its fields in order, in a third of the time: a table may have many thousand files."""
        return FileSlice, _values_of(self)

    def is_settled(self, now_ms: int) -> bool:
        """Whether a change of the file from now on would give it another modification time.

        Some file systems and stores have times in whole seconds: a file that was written in this second may be written
        again in it.
        """
        if self.modified_ms is None:
            return True
        return self.modified_ms % _SECOND_MS != 0 or now_ms - self.modified_ms > _SETTLED_MS


_values_of = attrgetter(*(each.name for each in fields(FileSlice)))


@dataclass(frozen=True, slots=True)
class FileFooter:
    """The facts of a file that planning needs."""

    path: str
    """Path of the file."""
    size: int
    """Its length in bytes."""
    modified_ms: int
    """Its modification time, in milliseconds since 1970."""
    rows: tuple[int, ...]
    """Rows of each row group, or stripe of ORC."""
    group_bytes: tuple[int, ...]
    """Compressed bytes, in each row group, of the columns that will be read."""
    bounds: tuple[Bounds | None, ...] = ()
    """Least and greatest value of each column that will be read, where the file says so."""
    obstacles: tuple[str, ...] = ()
    """Why columns of the file cannot be read here as Spark reads them."""
    different: tuple[float | None, ...] = ()
    """About how many different values each column that will be read has, where the file tells."""


class StoreKind(Enum):
    """Protocol of a store, by the scheme of its files' URIs."""

    S3 = "s3"
    GCS = "gs"
    AZURE = "abfs"
    HDFS = "hdfs"


@dataclass(frozen=True)
class Store:
    """How a store is opened: arguments of PyArrow's file system; what is not said, that finds by itself.

    Secrets are in no text that is made of it. They leave a process only where the value is pickled.
    """

    kind: StoreKind
    arguments: tuple[tuple[str, str | bool], ...] = ()
    """By name, such as an endpoint."""
    secrets: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """By name, such as an account's key."""
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Hadoop's, by name, of HDFS, whose client is Hadoop's own."""

    @property
    def is_plain(self) -> bool:
        """Whether nothing is said but the kind."""
        return not self.arguments and not self.secrets and not self.settings
