"""Parquet files before they are decoded: footers, what of them is read, and whether it can be read as Spark reads it.

A file is read as it was planned or not at all: its size and modification time are compared before and after, and every
problem is a :class:`ScanError` that names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from gpujoin.backends.parquet.places import facts, is_local, source
from gpujoin.backends.parquet.pruning import Statistics, may_match
from gpujoin.errors import ScanError
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import Constant, FileFooter, FileSlice, Scan
from gpujoin.model.types import is_bytes, is_text, is_whole, logical, plain

_LEGACY_KEYS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_SPARK_VERSION = b"org.apache.spark.version"
_PROLEPTIC_SINCE = (3, 1)


@dataclass(frozen=True)
class Source:
    """A column of the scan in one file.

    Attributes
    ----------
    name : str or None
        In the file; ``None``: it has no such column, whose values then are null.
    leaf : int
        Number of the column chunk in a row group.
    arrow : pyarrow.DataType or None
        The file's own type.
    int96 : bool
        Whether it is stored as INT96.
    integers : bool
        Whether it is stored as INT32 or INT64.
    """

    name: str | None
    leaf: int = -1
    arrow: pa.DataType | None = None
    int96: bool = False
    integers: bool = False


def footer(scan: Scan, path: str, constants: tuple[Constant, ...]) -> FileFooter:
    """Read what planning needs to know of a file.

    Raises
    ------
    ScanError
        If the file cannot be opened or is no Parquet file.
    """
    found = facts(path)
    with open_file(path) as file:
        metadata = file.metadata
        problems = [legacy_calendar(path, metadata, scan.file_columns)]
        held = FileColumns(path, file, case_sensitive=scan.case_sensitive)
        sources = []
        for field in scan.file_columns:
            try:
                sources.append(held.source_of(field))
            except ScanError as problem:
                problems.append(str(problem))
        leaves = {source.leaf for source in sources if source.name is not None}
        groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
        return FileFooter(
            path, found.size, found.modified_ms,
            tuple(group.num_rows for group in groups),
            tuple(sum(group.column(leaf).total_compressed_size for leaf in leaves) for group in groups),
            constants, tuple(problem for problem in problems if problem is not None),
        )  # fmt: skip


@contextmanager
def opened(
    scan: Scan, part: FileSlice, metrics: PipelineMetrics
) -> Iterator[tuple[pq.ParquetFile, list[Source], list[int]]]:
    """Open a slice's file: its columns, and the row groups to read, those that no row can leave being skipped.

    Raises
    ------
    ScanError
        If the file is not as planned, before or after, or a column is not read here as Spark would read it.
    """
    check_unchanged(part)
    with open_file(part.path) as file:
        metadata = file.metadata
        legacy = legacy_calendar(part.path, metadata, scan.file_columns)
        if legacy is not None:
            raise ScanError(legacy)
        held = FileColumns(part.path, file, case_sensitive=scan.case_sensitive)
        sources = [held.source_of(field) for field in scan.file_columns]
        planned = row_groups(part, metadata)
        groups = [g for g in planned if group_may_match(scan, part, sources, metadata.row_group(g))]
        metrics.row_groups += len(groups)
        metrics.skipped_row_groups += len(planned) - len(groups)
        yield file, sources, groups
    check_unchanged(part)


# -- files -------------------------------------------------------------------------------------------------------


def check_unchanged(part: FileSlice) -> None:
    """Compare a file with what it was when it was planned.

    Raises
    ------
    ScanError
        If its size or modification time differs, or it is gone.
    """
    found = facts(part.path)
    if found.size != part.size or part.modified_ms not in (None, found.modified_ms):
        raise ScanError(
            f"{part.path}: has changed since the query was planned: {found.size} bytes of {found.modified_ms} ms, "
            f"planned {part.size} bytes of {part.modified_ms} ms. Run the query again, after refreshing its tables"
        )


def open_file(path: str) -> pq.ParquetFile:
    """Open a file and read its footer.

    Raises
    ------
    ScanError
        If it is missing or no Parquet file.
    """
    try:
        local = is_local(path)
        return pq.ParquetFile(
            source(path), coerce_int96_timestamp_unit="us", memory_map=local, pre_buffer=not local
        )
    except FileNotFoundError as problem:
        raise ScanError(f"{path}: there is no such file; was it removed?") from problem
    except (OSError, pa.ArrowException, ValueError) as problem:
        raise ScanError(f"{path}: no readable Parquet file, truncated or corrupt: {problem}") from problem


def row_groups(part: FileSlice, metadata: Any) -> list[int]:
    """Give the row groups that a slice says, by number or by the bytes in which their middle lies.

    Raises
    ------
    ScanError
        If the file has fewer.
    """
    count = metadata.num_row_groups
    if part.row_groups is not None:
        missing = [g for g in part.row_groups if g >= count]
        if missing:
            raise ScanError(f"{part.path}: has {count} row groups, planned was to read number {missing[0]}")
        return list(part.row_groups)
    if part.byte_range is None:
        return list(range(count))
    first, last = part.byte_range
    return [g for g in range(count) if first <= _middle(metadata.row_group(g)) < last]


def _middle(group: Any) -> int:
    """The byte in the middle of a row group: a split reads the groups whose middle lies in it."""
    start = min(_chunk_start(group.column(i)) for i in range(group.num_columns))
    return int(start + sum(group.column(i).total_compressed_size for i in range(group.num_columns)) // 2)


def _chunk_start(chunk: Any) -> int:
    dictionary = chunk.dictionary_page_offset
    has_dictionary = dictionary is not None and 0 < dictionary < chunk.data_page_offset
    return int(dictionary if has_dictionary else chunk.data_page_offset)


def runs(
    groups: Sequence[int], sources: Sequence[Source], metadata: Any, piece_bytes: int
) -> Iterator[tuple[int, ...]]:
    """Neighbouring row groups, together near a size."""
    run: list[int] = []
    size = 0
    for group in groups:
        found = metadata.row_group(group)
        mine = sum(
            max(found.column(s.leaf).total_uncompressed_size, found.num_rows * 8)
            for s in sources
            if s.name is not None
        )
        if run and (group != run[-1] + 1 or size + mine > piece_bytes):
            yield tuple(run)
            run, size = [], 0
        run.append(group)
        size += mine
    if run:
        yield tuple(run)


# -- types -------------------------------------------------------------------------------------------------------


def legacy_calendar(path: str, metadata: Any, columns: pa.Schema) -> str | None:
    """Why a file's dates may be in the old calendar, or ``None``."""
    if not any(pat.is_date(f.type) or pat.is_timestamp(f.type) for f in columns):
        return None
    facts = metadata.metadata or {}
    version = facts.get(_SPARK_VERSION)
    old = version is not None and tuple(int(p) for p in version.split(b".")[:2]) < _PROLEPTIC_SINCE
    if old or any(key in facts for key in _LEGACY_KEYS):
        return f"{path}: its dates were written in the old calendar, by Spark before 3.1 or in legacy mode"
    return None


class FileColumns:
    """The columns of a file, by name.

    Parameters
    ----------
    path : str
        For messages.
    file : pyarrow.parquet.ParquetFile
        The file.
    case_sensitive : bool
        Whether names that differ in case are different ones.
    """

    def __init__(self, path: str, file: pq.ParquetFile, *, case_sensitive: bool) -> None:
        self._path = path
        self._case_sensitive = case_sensitive
        self._schema = file.schema_arrow
        self._columns: dict[str, list[int]] = {}
        for position, name in enumerate(self._schema.names):
            self._columns.setdefault(self._key(name), []).append(position)
        self._leaves: dict[str, list[int]] = {}
        self._parquet = file.schema
        for number in range(len(file.schema)):
            self._leaves.setdefault(file.schema.column(number).path, []).append(number)

    def _key(self, name: str) -> str:
        return name if self._case_sensitive else name.lower()

    def source_of(self, field: pa.Field) -> Source:
        """Find a scan's column in the file.

        Raises
        ------
        ScanError
            If several fit its name, or its type is one that is not read here as Spark reads it.
        """
        names = self._schema.names
        found = self._columns.get(self._key(field.name), [])
        if len(found) > 1:
            fitting = [names[i] for i in found]
            raise ScanError(f"{self._path}: columns {fitting} all fit the name {field.name!r}")
        if not found:
            return Source(None)
        name = names[found[0]]
        leaves = self._leaves.get(name, [])
        held = plain(self._schema.field(found[0]).type)
        if pat.is_nested(held) and pat.is_nested(logical(field.type)):
            raise ScanError(
                f"{self._path}: column {field.name!r} is {held}; nested columns are not read here"
            )
        if len(leaves) != 1:
            raise ScanError(f"{self._path}: column {field.name!r} is {held}, planned as {field.type}")
        leaf = self._parquet.column(leaves[0])
        int96 = leaf.physical_type == "INT96"
        if not _readable(held, logical(field.type), int96=int96):
            raise ScanError(
                f"{self._path}: column {field.name!r} is {held} ({leaf.physical_type}), planned as {field.type}; has "
                "the table's schema changed? Set spark.gpujoin.scan.fuse to false to let Spark read it"
            )
        return Source(name, leaves[0], held, int96, leaf.physical_type in ("INT32", "INT64"))


def _readable(held: pa.DataType, wanted: pa.DataType, *, int96: bool) -> bool:
    if pat.is_decimal(wanted):
        return bool(
            pat.is_decimal128(held) and held.scale == wanted.scale and held.precision <= wanted.precision
        )
    if pat.is_timestamp(wanted):
        if not pat.is_timestamp(held):
            return False
        if int96:
            return wanted.tz is not None
        return held.unit in ("ms", "us") and (held.tz is None) == (wanted.tz is None)
    if is_text(wanted):
        return is_text(held)
    if is_bytes(wanted):
        return pat.is_binary(held) or pat.is_large_binary(held) or pat.is_binary_view(held)
    if is_whole(wanted):
        return bool(is_whole(held) and held.bit_width <= wanted.bit_width)
    return bool(held == wanted)


# -- statistics --------------------------------------------------------------------------------------------------


def group_may_match(scan: Scan, part: FileSlice, sources: Sequence[Source], group: Any) -> bool:
    """Whether the statistics leave it open that rows of a group pass the scan's filters."""

    def statistics(index: int) -> Statistics | None:
        if index >= len(sources):
            constant = part.constants[index - len(sources)]
            return Statistics(constant, constant, nulls=int(constant is None), rows=1)
        return statistics_of(sources[index], group)

    return all(may_match(condition, statistics) for condition in scan.filters)


def statistics_of(source: Source, group: Any) -> Statistics | None:
    """Give what a row group's footer tells of a column, if anything."""
    if source.name is None:
        return Statistics(None, None, nulls=group.num_rows, rows=group.num_rows)
    if source.int96:
        return None
    found = group.column(source.leaf).statistics
    if found is None:
        return None
    nulls = found.null_count if found.has_null_count else None
    low = high = None
    if found.has_min_max:
        with suppress(ValueError, OverflowError, pa.ArrowException):  # Python's dates end with the year 9999
            low, high = found.min, found.max
    return Statistics(low, high, nulls=nulls, rows=group.num_rows)
