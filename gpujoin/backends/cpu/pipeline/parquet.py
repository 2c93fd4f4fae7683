"""Reading Parquet: footers checked by PyArrow, pages decoded by Polars, INT96 timestamps by PyArrow.

A file is read as it was planned or not at all: its size and modification time are compared before and after, and every
problem is a :class:`ScanError` that names it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from gpujoin.backends.cpu.pipeline.columns import Bounds, Column, LazyBounds, polars_type, unscaled
from gpujoin.backends.cpu.pipeline.lowering import Lowered, lower
from gpujoin.backends.cpu.pipeline.piece import ROW, Piece, fresh
from gpujoin.backends.cpu.pipeline.pruning import Statistics, may_match
from gpujoin.errors import ScanError
from gpujoin.model.expressions import Literal
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import Constant, FileFooter, FileSlice, Scan
from gpujoin.model.types import is_bytes, is_text, is_whole, logical, plain

PIECE_BYTES = 128 << 20
"""Decoded bytes of the columns read that a piece aims at."""

_LEGACY_KEYS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_SPARK_VERSION = b"org.apache.spark.version"
_PROLEPTIC_SINCE = (3, 1)


@dataclass(frozen=True)
class _Source:
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


def read(scan: Scan, metrics: PipelineMetrics, *, piece_bytes: int = PIECE_BYTES) -> Iterator[Piece]:
    """Read a scan's slices.

    Parameters
    ----------
    scan : Scan
        With its slices given.
    metrics : PipelineMetrics
        Counters to add to.
    piece_bytes : int
        Decoded size at which a piece is cut, at row group boundaries.

    Raises
    ------
    ScanError
        If a file is missing, unreadable, changed, truncated or corrupt, or a column has a type that is not read here as
        Spark would read it.
    """
    for part in scan.slices or ():
        metrics.files += 1
        yield from _read_slice(scan, part, piece_bytes, metrics)


def footer(scan: Scan, path: str, constants: tuple[Constant, ...]) -> FileFooter:
    """Read what planning needs to know of a file.

    Raises
    ------
    ScanError
        If the file cannot be opened or is no Parquet file.
    """
    found = _stat(path)
    with _open(path) as file:
        metadata = file.metadata
        problems = [_legacy(path, metadata, scan.file_columns)]
        sources = []
        for field in scan.file_columns:
            try:
                sources.append(_source(path, file, field, case_sensitive=scan.case_sensitive))
            except ScanError as problem:
                problems.append(str(problem))
        leaves = {source.leaf for source in sources if source.name is not None}
        groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
        return FileFooter(
            path, found.st_size, found.st_mtime_ns // 1_000_000,
            tuple(group.num_rows for group in groups),
            tuple(sum(group.column(leaf).total_compressed_size for leaf in leaves) for group in groups),
            constants, tuple(problem for problem in problems if problem is not None),
        )  # fmt: skip


def _read_slice(scan: Scan, part: FileSlice, piece_bytes: int, metrics: PipelineMetrics) -> Iterator[Piece]:
    _check_unchanged(part)
    with _open(part.path) as file:
        metadata = file.metadata
        legacy = _legacy(part.path, metadata, scan.file_columns)
        if legacy is not None:
            raise ScanError(legacy)
        sources = [_source(part.path, file, f, case_sensitive=scan.case_sensitive) for f in scan.file_columns]
        planned = _row_groups(part, metadata)
        groups = [g for g in planned if _may_match(scan, part, sources, metadata.row_group(g))]
        metrics.row_groups += len(groups)
        metrics.skipped_row_groups += len(planned) - len(groups)
        for run in _runs(groups, sources, metadata, piece_bytes):
            yield _piece(scan, part, file, sources, run, metrics)
    _check_unchanged(part)


# -- files -------------------------------------------------------------------------------------------------------


def _stat(path: str) -> os.stat_result:
    try:
        return Path(path).stat()
    except OSError as problem:
        raise ScanError(
            f"{path}: {problem.strerror}; was it removed since the query was planned?"
        ) from problem


def _check_unchanged(part: FileSlice) -> None:
    found = _stat(part.path)
    modified = found.st_mtime_ns // 1_000_000
    if found.st_size != part.size or part.modified_ms not in (None, modified):
        raise ScanError(
            f"{part.path}: has changed since the query was planned: {found.st_size} bytes of {modified} ms, "
            f"planned {part.size} bytes of {part.modified_ms} ms. Run the query again, after refreshing its tables"
        )


def _open(path: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, coerce_int96_timestamp_unit="us", memory_map=True)
    except FileNotFoundError as problem:
        raise ScanError(f"{path}: there is no such file; was it removed?") from problem
    except (OSError, pa.ArrowException, ValueError) as problem:
        raise ScanError(f"{path}: no readable Parquet file, truncated or corrupt: {problem}") from problem


def _row_groups(part: FileSlice, metadata: Any) -> list[int]:
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


def _runs(
    groups: Sequence[int], sources: Sequence[_Source], metadata: Any, piece_bytes: int
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


def _legacy(path: str, metadata: Any, columns: pa.Schema) -> str | None:
    """Why a file's dates may be in the old calendar, or ``None``."""
    if not any(pat.is_date(f.type) or pat.is_timestamp(f.type) for f in columns):
        return None
    facts = metadata.metadata or {}
    version = facts.get(_SPARK_VERSION)
    old = version is not None and tuple(int(p) for p in version.split(b".")[:2]) < _PROLEPTIC_SINCE
    if old or any(key in facts for key in _LEGACY_KEYS):
        return f"{path}: its dates were written in the old calendar, by Spark before 3.1 or in legacy mode"
    return None


def _source(path: str, file: pq.ParquetFile, field: pa.Field, *, case_sensitive: bool) -> _Source:
    schema = file.schema_arrow
    names = schema.names
    found = [i for i, n in enumerate(names) if n == field.name]
    if not case_sensitive:
        found = [i for i, n in enumerate(names) if n.lower() == field.name.lower()]
    if len(found) > 1:
        raise ScanError(f"{path}: columns {[names[i] for i in found]} all fit the name {field.name!r}")
    if not found:
        return _Source(None)
    leaves = [i for i in range(len(file.schema)) if file.schema.column(i).path == names[found[0]]]
    held = plain(schema.field(found[0]).type)
    if len(leaves) != 1:
        raise ScanError(f"{path}: column {field.name!r} is {held}, planned as {field.type}")
    leaf = file.schema.column(leaves[0])
    int96 = leaf.physical_type == "INT96"
    if not _readable(held, logical(field.type), int96=int96):
        raise ScanError(
            f"{path}: column {field.name!r} is {held} ({leaf.physical_type}), planned as {field.type}; has the table's "
            "schema changed? Set spark.gpujoin.scan.fuse to false to let Spark read it"
        )
    integers = leaf.physical_type in ("INT32", "INT64")
    return _Source(names[found[0]], leaves[0], held, int96, integers)


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


def _may_match(scan: Scan, part: FileSlice, sources: Sequence[_Source], group: Any) -> bool:
    """Whether the statistics leave it open that rows of a group pass the scan's filters."""

    def statistics(index: int) -> Statistics | None:
        if index >= len(sources):
            constant = part.constants[index - len(sources)]
            return Statistics(constant, constant, nulls=int(constant is None), rows=1)
        return _statistics(sources[index], group)

    return all(may_match(condition, statistics) for condition in scan.filters)


def _statistics(source: _Source, group: Any) -> Statistics | None:
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


def _bounds(
    source: _Source, dtype: pa.DataType, metadata: Any, run: Sequence[int]
) -> Callable[[], Bounds | None]:
    def find() -> Bounds | None:
        found: list[int] = []
        for group in run:
            known = _statistics(source, metadata.row_group(group))
            if known is None:
                return None
            if known.low is None or known.high is None:
                if known.nulls == known.rows:
                    continue
                return None
            for value in (known.low, known.high):
                number = _number(value, dtype)
                if number is None:
                    return None
                found.append(number)
        return (min(found), max(found)) if found else (0, 0)

    return find


def _number(value: Any, dtype: pa.DataType) -> int | None:
    """A statistic as the integer that carries it."""
    if pat.is_decimal(dtype):
        return unscaled(value, dtype.scale) if isinstance(value, Decimal) else None
    if pat.is_date32(dtype):
        return int(pa.scalar(value, pa.date32()).cast(pa.int32()).as_py())
    return int(value) if isinstance(value, int) else None


# -- pieces ------------------------------------------------------------------------------------------------------


def _piece(
    scan: Scan, part: FileSlice, file: pq.ParquetFile, sources: Sequence[_Source], run: tuple[int, ...],
    metrics: PipelineMetrics,
) -> Piece:  # fmt: skip
    metadata = file.metadata
    before = sum(metadata.row_group(g).num_rows for g in range(run[0]))
    rows = sum(metadata.row_group(g).num_rows for g in run)
    frame, held = _decoded(part.path, file, sources, run, before, rows)
    columns: list[Column] = []
    added: list[pl.Expr] = []
    for source, field in zip(sources, scan.file_columns, strict=True):
        dtype, name = logical(field.type), fresh()
        if source.name is None:
            added.append(pl.lit(None, polars_type(dtype)).alias(name))
            columns.append(Column(name, dtype, LazyBounds(dtype, lambda: (0, 0))))
            continue
        wide = pat.is_decimal(dtype) and dtype.precision > 18
        added.append(_carried(pl.col(held[source.name]), source, dtype).alias(name))
        columns.append(Column(name, dtype, LazyBounds(dtype, _bounds(source, dtype, metadata, run)), wide))
    for value, field in zip(part.constants, list(scan.columns)[len(sources) :], strict=True):
        constant = lower(Literal(value=value, type=logical(field.type)), ())
        name = fresh()
        added.append(constant.expr.alias(name))
        columns.append(_constant_column(name, constant))
    frame = frame.with_columns(added) if added else frame
    metrics.scanned_rows += rows
    piece = Piece(frame, tuple(columns), rows, (part.path,), metrics)
    return reduce(Piece.filter, scan.filters, piece)


def _constant_column(name: str, constant: Lowered) -> Column:
    return Column(name, constant.dtype, LazyBounds(constant.dtype, lambda: constant.bounds), constant.wide)


def _decoded(
    path: str, file: pq.ParquetFile, sources: Sequence[_Source], run: tuple[int, ...], before: int, rows: int
) -> tuple[pl.LazyFrame, dict[str, str]]:
    """The file's columns as a lazy frame, and what each is called in it."""
    names = list(dict.fromkeys(s.name for s in sources if s.name is not None))
    if not names:
        return pl.DataFrame({ROW: pl.zeros(rows, pl.Int8, eager=True)}).lazy(), {}
    if any(s.int96 for s in sources):
        try:
            table = file.read_row_groups(list(run), columns=names, use_threads=False)
        except (OSError, pa.ArrowException) as problem:
            raise ScanError(f"{path}: row groups {run[0]} to {run[-1]} are corrupt: {problem}") from problem
        found = pl.from_arrow(table)
        assert isinstance(found, pl.DataFrame)
        return found.lazy(), {name: name for name in names}
    frame = pl.scan_parquet(path, glob=False, hive_partitioning=False, cache=False)
    if before or rows < file.metadata.num_rows:
        frame = frame.slice(before, rows)
    return frame, {name: name for name in names}


def _carried(column: pl.Expr, source: _Source, dtype: pa.DataType) -> pl.Expr:
    """A file's values in the form in which pieces carry them."""
    held = source.arrow
    assert held is not None
    if pat.is_decimal(dtype):
        physical = column.to_physical()
        if dtype.precision > 18:
            return physical
        # What the file holds in 64 bits fits again without a check, which takes as long as decoding.
        return physical.cast(pl.Int64, wrap_numerical=source.integers)
    if pat.is_timestamp(dtype):
        micros = column.to_physical()
        return (micros * 1000 if held.unit == "ms" else micros).cast(pl.Datetime("us"))
    # Text may be dictionary-encoded in Polars' eyes, integers narrower than planned.
    return column.cast(polars_type(dtype)) if is_text(dtype) or is_whole(dtype) else column
