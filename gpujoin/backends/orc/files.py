"""Opens ORC files: finds the columns and stripes to read, and whether they can be read as Spark reads them.

Refused, with the reason, are types of which Spark's reader makes something else than what is in the file, and files
in which columns are found otherwise than by name:

- timestamps, which have no zone: they are those of the writer's and of the reader's JVM;
- ``char`` and ``varchar``, nested columns, columns of another type than the table's, which Spark converts;
- dates before 1582-10-15, which are in one of two calendars;
- files of Hive's transactions, and files whose columns are all named ``_col0``, ``_col1``, …: Spark takes these by
  their positions.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pat
from pyarrow import orc

from gpujoin.backends.orc.tail import OrcColumn, OrcTail, read_tail
from gpujoin.backends.parquet.footers import chosen_groups, rows_may_match
from gpujoin.backends.parquet.pruning import Statistics
from gpujoin.errors import ScanError
from gpujoin.model.files import Bounds, FileFooter, FileSlice
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import Scan
from gpujoin.model.sqltext import show_type
from gpujoin.model.types import is_bytes, is_text, logical
from gpujoin.storage.locations import check_unchanged, facts, open_binary

CALENDARS_AGREE = dt.date(1582, 10, 15)
"""From this day on the old and the new calendar are one."""
_KINDS = {9: "a timestamp", 10: "a list", 11: "a map", 12: "a struct", 13: "a union", 16: "varchar", 17: "char",
          18: "a timestamp"}  # fmt: skip
"""Types that are not read here, by their numbers in the format."""
_POSITIONAL = re.compile(r"_col.*")
_TRANSACTIONS = b"hive.acid."
_OF_TRANSACTIONS = {"operation", "originaltransaction", "bucket", "rowid", "currenttransaction", "row"}


@dataclass(frozen=True)
class OrcFile:
    """An open file, and what to read of it."""

    tail: OrcTail
    columns: tuple[OrcColumn | None, ...]
    """For each column of the scan that is read from files, the file's; ``None``: it lacks it, and values are null."""
    stripes: tuple[int, ...]
    """Which to read."""
    reader: orc.ORCFile


def footer(scan: Scan, path: str) -> FileFooter:
    """Read the facts of a file that planning needs.

    Raises ``ScanError`` if the file cannot be opened or is no ORC file.
    """
    now = facts(path)
    with _reader(path) as reader:
        tail = _tail_of(path, reader, now.size)
    problems: list[str] = []
    columns: tuple[OrcColumn | None, ...] = ()
    try:
        columns = columns_of(scan, tail)
    except ScanError as problem:
        problems.append(str(problem))
    rows = tuple(stripe.rows for stripe in tail.stripes)
    bounds = () if problems else tuple(map(_bounds, columns))
    return FileFooter(path, now.size, now.modified_ms, rows, _bytes_of(tail, columns), bounds, tuple(problems))


@contextmanager
def opened(scan: Scan, part: FileSlice, metrics: PipelineMetrics) -> Iterator[OrcFile]:
    """Open the file of a slice, with the stripes to read, none if no row of the file can pass the filters.

    Raises ``ScanError`` if the file is not the planned one, before or after, or a column cannot be read as Spark
    reads it.
    """
    if part.deletions:
        raise ScanError(f"{part.path}: has deleted rows, which are left out here of Parquet files alone")
    check_unchanged(part)
    with _reader(part.path) as reader:
        tail = _tail_of(part.path, reader, part.size)
        columns = columns_of(scan, tail)
        stripes = tail.stripes

        def middle(stripe: int) -> int:
            return stripes[stripe].start + stripes[stripe].nbytes // 2

        planned = chosen_groups(part, len(stripes), middle)
        may_match = rows_may_match(scan, part, lambda place: _statistics(columns[place], tail))
        metrics.row_groups += len(planned) if may_match else 0
        metrics.skipped_row_groups += 0 if may_match else len(planned)
        yield OrcFile(tail, columns, tuple(planned) if may_match else (), reader)
    check_unchanged(part)


@contextmanager
def _reader(path: str) -> Iterator[orc.ORCFile]:
    try:
        with open_binary(path) as file:
            yield orc.ORCFile(file)
    except ScanError:
        raise
    except FileNotFoundError as problem:
        raise ScanError(f"{path}: there is no such file; was it removed?") from problem
    except (OSError, pa.ArrowException, ValueError) as problem:
        raise ScanError(f"{path}: no readable ORC file, truncated or corrupt: {problem}") from problem


def _tail_of(path: str, reader: orc.ORCFile, size: int) -> OrcTail:
    tail = read_tail(path, reader.reader.serialized_file_tail(), size)
    if len(tail.stripes) != reader.nstripes or tail.rows != reader.nrows:
        raise ScanError(f"{path}: its tail has {len(tail.stripes)} stripes, PyArrow {reader.nstripes}")
    return tail


def columns_of(scan: Scan, tail: OrcTail) -> tuple[OrcColumn | None, ...]:
    """Find the columns of a scan in a file.

    Raises ``ScanError`` if the file, or one of them, cannot be read as Spark reads it.
    """
    if scan.stored_fields:
        raise ScanError(f"{tail.path}: columns of ORC files are found here by their names in the table alone")
    if tail.is_encrypted:
        raise ScanError(f"{tail.path}: has encrypted columns, which are not read here")
    names = [column.name.lower() for column in tail.columns]
    if any(fact.startswith(_TRANSACTIONS) for fact in tail.facts) or set(names) == _OF_TRANSACTIONS:
        raise ScanError(f"{tail.path}: is of a table with transactions, which is not read here")
    if all(map(_POSITIONAL.match, names)) and tail.rows:  # of a file without columns Spark reads no rows
        raise ScanError(f"{tail.path}: its columns have no names, and are found by position")
    return tuple(_column_of(field, scan, tail) for field in scan.file_columns)


def _column_of(field: pa.Field, scan: Scan, tail: OrcTail) -> OrcColumn | None:
    def key(name: str) -> str:
        return name if scan.case_sensitive else name.lower()

    fitting = [column for column in tail.columns if key(column.name) == key(field.name)]
    if len(fitting) > 1:
        raise ScanError(f"{tail.path}: columns {[column.name for column in fitting]} all fit the name {field.name!r}")
    if not fitting:
        return None
    [column] = fitting
    if column.arrow is None or not _is_same(column.arrow, logical(field.type)):
        file_type = _KINDS.get(column.kind, f"of kind {column.kind}") if column.arrow is None else column.arrow
        raise ScanError(
            f"{tail.path}: column {field.name!r} is {show_type(file_type)}, planned as {show_type(field.type)}; "
            "ORC files are read here where both are of the same plain type"
        )
    if "." in column.name:
        raise ScanError(f"{tail.path}: column {column.name!r} has a name by which it is not read here")
    low = column.statistics.low if column.statistics is not None else None
    if pat.is_date(column.arrow) and low is not None and low < CALENDARS_AGREE:
        raise ScanError(early_dates(tail.path, column.name))
    return column


def early_dates(path: str, column: str) -> str:
    """Give the refusal of a column with dates before the calendar's change."""
    return f"{path}: column {column!r} has dates before {CALENDARS_AGREE}, which are in one of two calendars"


def _is_same(file_type: pa.DataType, dtype: pa.DataType) -> bool:
    if is_text(dtype) or is_bytes(dtype):
        return is_text(file_type) == is_text(dtype) and is_bytes(file_type) == is_bytes(dtype)
    return bool(file_type == dtype)


def _statistics(column: OrcColumn | None, tail: OrcTail) -> Statistics | None:
    return Statistics(None, None, tail.rows, tail.rows) if column is None else column.statistics


def _bounds(column: OrcColumn | None) -> Bounds | None:
    statistics = None if column is None else column.statistics
    return None if statistics is None or statistics.low is None else (statistics.low, statistics.high)


def _bytes_of(tail: OrcTail, columns: Sequence[OrcColumn | None]) -> tuple[int, ...]:
    """Compressed bytes of some columns in each stripe, as a share of the stripe's bytes."""
    read_columns = [column for column in columns if column is not None]
    sizes = [column.nbytes for column in tail.columns]
    total = sum(stripe.nbytes for stripe in tail.stripes)
    if None in sizes or not total:
        share = len(read_columns) / max(1, len(tail.columns))
    else:
        share = min(1.0, sum(column.nbytes or 0 for column in read_columns) / total)
    return tuple(round(stripe.nbytes * share) for stripe in tail.stripes)
