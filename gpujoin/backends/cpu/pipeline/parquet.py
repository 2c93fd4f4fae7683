"""Reads Parquet: Polars decodes a file if it does so as the Parquet schema says, else PyArrow (`pipeline.decoding`).

A file must be the one that was planned: its size and modification time are compared before and after reading. Every
problem is a :class:`ScanError` that names the file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.backends.cpu.pipeline.columns import series_of
from gpujoin.backends.cpu.pipeline.decoding import (
    check_readable,
    polars_decodes,
    read_batches,
    read_row_groups,
    scan_by_polars,
)
from gpujoin.backends.cpu.pipeline.late import LateColumn, held_type, late_column, late_from_arrow
from gpujoin.backends.cpu.pipeline.offers import is_late
from gpujoin.backends.cpu.pipeline.piece import ROW, Piece, fresh
from gpujoin.backends.cpu.pipeline.valueranges import with_values_of
from gpujoin.backends.parquet.deletions import positions_between
from gpujoin.backends.parquet.floors import floors_of
from gpujoin.backends.parquet.footers import (
    FieldFinder,
    Source,
    fields_of,
    footer_of,
    matching_slices,
    opened,
    runs,
    sources_of,
    statistics_of,
    within,
)
from gpujoin.backends.parquet.footers import footer as read_footer
from gpujoin.backends.parquet.metadata import ParquetFooter
from gpujoin.backends.parquet.roaring import Numbers
from gpujoin.errors import ScanError
from gpujoin.functions.lower import Extent, lower
from gpujoin.functions.lowered import Column, LazyBounds, as_column, as_lazy, polars_type
from gpujoin.model.expressions import Literal
from gpujoin.model.files import Floor, StoredField
from gpujoin.model.pipeline import PipelineMetrics, Rung
from gpujoin.model.relations import FileFooter, FileSlice, Scan
from gpujoin.model.types import is_bytes, is_text, is_whole, is_wide_decimal, logical
from gpujoin.storage.locations import is_local

_WHOLE = 4
"""Most pieces of a row group that are decoded at once, which takes less time than reading it in slices: a slice costs
about as much as decompressing the row group (`docs/performance.md`, "Delta and Iceberg")."""
_LEAST_STEP = 20_000
"""Rows of a page as most writers make them. Polars would decode a page again for each smaller slice of it."""
_MOST_NUMBERED = (1 << 32) - 1
"""Most rows of a file that Polars numbers."""
_VIEW_BYTES = 16


@dataclass(frozen=True)
class _Decoded:
    """Columns of a file."""

    frame: pl.LazyFrame
    names: Mapping[str, str]
    """Their names in the frame, by those in the file."""
    as_bytes: frozenset[str] = frozenset()
    """The texts that are carried as bytes."""
    late: Mapping[str, LateColumn] = field(default_factory=dict)
    """The late columns among them."""
    has_deleted: bool = False
    """Whether deleted rows are among the rows."""


def read(scan: Scan, metrics: PipelineMetrics, *, piece_bytes: int, rung: Rung = Rung.FAST) -> Iterator[Piece]:
    """Read a scan's slices, in pieces of about ``piece_bytes`` that end at row group boundaries.

    Polars decodes on the fastest rung, PyArrow on lower ones. Raises ``ScanError`` if a file is missing, unreadable,
    changed, truncated or corrupt, or a column has a type that is not read here as Spark would read it.
    """
    after = floors_of(scan) if rung is Rung.FAST else {}
    for part in matching_slices(scan, metrics):
        yield from _read_slice(scan, part, piece_bytes, metrics, rung, after.get(part, {}))


def _named(sources: Sequence[Source]) -> dict[str, Source]:
    """Columns that a file has, by their names in it."""
    return {source.name: source for source in sources if source.name is not None}


def _rows(parquet: ParquetFooter, run: Sequence[int]) -> int:
    return sum(parquet.groups[group].rows for group in run)


def _with_fields(values: pa.Array, dtype: pa.DataType, stored_field: StoredField, finder: FieldFinder) -> pa.Array:
    """Nested values of a file with the fields of a planned type.

    A file may have more fields than the table, or fewer, in another order. Once they are read, values come together by
    position.
    """
    if values.type == dtype and not stored_field.fields:
        return values
    if not pat.is_nested(dtype):
        return values if values.type == dtype else values.cast(dtype)
    validity = pc.is_null(values) if values.null_count else None
    inner = within(stored_field, dtype)
    if pat.is_struct(dtype):
        places = finder.places_in(values.type, dtype, stored_field)
        assert places is not None, f"{values.type} was found to be read as {dtype}"
        fields = [
            pa.nulls(len(values), field.type)
            if place is None
            else _with_fields(pc.struct_field(values, [place]), field.type, each, finder)
            for place, field, each in zip(places, dtype, inner, strict=True)
        ]
        return pa.StructArray.from_arrays(fields, fields=list(dtype), mask=validity)
    offsets = _offsets(values)
    if pat.is_map(dtype):
        keys, items = (
            _with_fields(part, field.type, each, finder)
            for part, field, each in zip((values.keys, values.items), fields_of(dtype), inner, strict=True)
        )
        return pa.MapArray.from_arrays(offsets, keys, items, dtype, mask=validity)
    elements = _with_fields(values.values, dtype.value_type, inner[0], finder)
    return pa.ListArray.from_arrays(offsets, elements, dtype, mask=validity)


def _offsets(values: pa.Array) -> pa.Array:
    """Where each list begins in the values, as an array of its own, as masks ask for."""
    return pa.array(values.offsets.to_numpy())


def footer(scan: Scan, path: str) -> FileFooter:
    """Read the facts of a file that planning needs, with reasons why it cannot be read here.

    Raises ``ScanError`` if the file cannot be opened or is no Parquet file.
    """
    file_footer = read_footer(scan, path)
    if file_footer.obstacles or not is_local(path):
        return file_footer
    parquet = footer_of(path, file_footer.size)
    sources = sources_of(scan, parquet)
    try:
        if not polars_decodes(parquet, sources):
            check_readable(parquet, sources)
    except ScanError as problem:
        return dataclasses.replace(file_footer, obstacles=(str(problem),))
    return file_footer


def _read_slice(
    scan: Scan, part: FileSlice, piece_bytes: int, metrics: PipelineMetrics, rung: Rung, floors: Mapping[int, Floor]
) -> Iterator[Piece]:
    """Read a slice. ``floors`` are those after its row groups, by number."""
    with opened(scan, part, metrics) as (parquet, sources, groups, positions):
        by_polars = bool(groups) and rung is Rung.FAST and polars_decodes(parquet, sources, groups)
        by_polars = by_polars and not (len(positions) and parquet.rows > _MOST_NUMBERED)
        for run in runs(groups, sources, parquet, piece_bytes):
            first, left = _rows(parquet, range(run[0])), _rows(parquet, run)
            step = _step(parquet, sources, run, piece_bytes)
            if not _named(sources):
                parts = iter([_of_rows(parquet, run, first, positions)])
            elif by_polars and step >= min(left, _LEAST_STEP):
                parts = _by_polars(parquet, sources, first, left, step, positions)
            else:
                parts = _by_arrow(scan, parquet, sources, run, piece_bytes)
            for decoded, rows in parts:
                piece = _piece(scan, part, sources, decoded, rows, metrics)
                deleted = positions_between(positions, first, rows)
                if decoded.has_deleted:
                    piece = _without(piece, deleted)
                piece = dataclasses.replace(piece, rows=rows - len(deleted))
                first, left = first + rows, left - rows
                piece = dataclasses.replace(piece, floor=None if left else floors.get(run[-1]))
                if rung is Rung.FAST:
                    piece = _with_matching_keys(scan, piece, sources, parquet, run)
                extent = Extent.COLUMNS if rung is Rung.CAREFUL else Extent.ALL
                yield reduce(lambda rest, condition: rest.filter(condition, extent=extent), scan.filters, piece)


def _without(piece: Piece, numbers: Numbers) -> Piece:
    """Leave out the rows of some numbers."""
    if not len(numbers):
        return piece
    collected = piece.collect()
    frame = collected.rows_of_query()
    if frame.height != piece.rows:
        raise ScanError(f"{', '.join(piece.files)}: {frame.height} rows were decoded, not {piece.rows}")
    mask = np.ones(frame.height, np.bool_)
    mask[numbers] = False
    name = fresh()
    masked = collected.with_rows(frame.with_columns(pl.Series(name, mask)))
    return masked.where(pl.col(name), frame.height - len(numbers))


def _with_matching_keys(
    scan: Scan, piece: Piece, sources: Sequence[Source], parquet: ParquetFooter, run: tuple[int, ...]
) -> Piece:
    """Drop rows of row groups that have no match in a join above; constants were compared for the whole file."""
    for column, ranges in scan.match_ranges:
        if column < len(sources):
            statistics = [statistics_of(sources[column], parquet, group) for group in run]
            piece = with_values_of(piece, column, ranges, statistics)
    return piece


def _decoded_bytes(parquet: ParquetFooter, sources: Sequence[Source], group: int) -> int:
    """Memory that Polars takes for the columns of a row group. Texts are views into pages and dictionaries."""
    rows, size = parquet.groups[group].rows, 0
    for source in sources:
        if source.name is not None:
            views = _VIEW_BYTES * rows if _has_texts(source) else 0
            size += views + sum(max(parquet.chunk(group, leaf).uncompressed, rows * 8) for leaf in source.leaves)
    return size


def _step(parquet: ParquetFooter, sources: Sequence[Source], run: Sequence[int], piece_bytes: int) -> int:
    """Rows that Polars decodes at once: all of row groups that are a piece together, an even share of a large one."""
    rows = _rows(parquet, run)
    slices = -(-_decoded_bytes(parquet, sources, run[0]) // (_WHOLE * piece_bytes)) if len(run) == 1 else 1
    return max(1, -(-rows // max(1, slices)))


def _has_texts(source: Source) -> bool:
    return source.arrow is not None and (is_text(source.arrow) or is_bytes(source.arrow))


# -- pieces ------------------------------------------------------------------------------------------------------


def _piece(
    scan: Scan, part: FileSlice, sources: Sequence[Source], decoded: _Decoded, rows: int, metrics: PipelineMetrics
) -> Piece:
    """Decoded rows with the types and constants of a scan, without its filters."""
    columns: list[Column] = []
    added: list[pl.Expr] = []
    any_column = pl.col(next(iter(decoded.names.values()))) if decoded.names else pl.first()
    for source, planned in zip(sources, scan.file_columns, strict=True):
        dtype, name = logical(planned.type), fresh()
        if source.name is None:
            added.append(pl.lit(None, held_type(dtype)).alias(name))
            absent = Column(name, dtype, LazyBounds(dtype, lambda: (0, 0)))
            columns.append(late_column(name, dtype) if is_late(dtype) else absent)
            continue
        values = pl.col(decoded.names[source.name])
        if source.name in decoded.late:
            added.append(values.alias(name))
            columns.append(dataclasses.replace(decoded.late[source.name], name=name))
            continue
        wide = source.name in decoded.as_bytes or is_wide_decimal(dtype)
        added.append(_carried(values, source, dtype, wide=wide).alias(name))
        columns.append(Column(name, dtype, LazyBounds(dtype), wide))
    for value, planned in zip(part.constants, list(scan.columns)[len(sources) :], strict=True):
        constant = lower(Literal(value=value, type=logical(planned.type)), ())
        name = fresh()
        added.append(as_column(constant, any_column).alias(name))
        columns.append(
            Column(name, constant.dtype, as_lazy(constant.bounds, constant.dtype), constant.wide, constant=True)
        )
    frame = decoded.frame
    if decoded.names:
        # Columns of the file are dropped: their names may clash with those of pieces.
        frame = frame.select(added)
    elif added:
        frame = frame.with_columns(added)
    metrics.scanned_rows += rows
    return Piece(frame, tuple(columns), rows, (part.path,), metrics)


def _of_rows(parquet: ParquetFooter, run: Sequence[int], first: int, positions: Numbers) -> tuple[_Decoded, int]:
    """Rows of row groups of which no column is read, without those deleted."""
    rows = _rows(parquet, run)
    left = rows - len(positions_between(positions, first, rows))
    frame = pl.DataFrame({ROW: pl.zeros(left, pl.Int8, eager=True)})
    return _Decoded(frame.lazy(), {}), rows


def _by_polars(
    parquet: ParquetFooter, sources: Sequence[Source], first: int, rows: int, step: int, positions: Numbers
) -> Iterator[tuple[_Decoded, int]]:
    """Queries for some rows of a file, a step at a time, without those deleted.

    The query leaves them out by their positions, so that Polars still decodes the columns of filters first. A mask it
    would apply to the rows of a row group that pass a filter.
    """
    names = {name: name for name in _named(sources)}
    for start in range(first, first + max(1, rows), step):
        count = min(step, first + rows - start)
        deleted = positions_between(positions, start, count) + start
        number = _unused_name(parquet) if len(deleted) else None
        query = scan_by_polars(parquet.path, number)
        if start or count < parquet.rows:
            query = query.slice(start, count)
        if number is not None:
            numbers = pl.Series(deleted).cast(pl.get_index_type())
            query = query.filter(pl.col(number).is_in(numbers.implode()).not_())
        yield _Decoded(query, names), count


def _unused_name(parquet: ParquetFooter) -> str:
    """A name that no column of a file has."""
    names, name = {column.name for column in parquet.columns}, "row"
    while name in names:
        name += "_"
    return name


def _by_arrow(
    scan: Scan, parquet: ParquetFooter, sources: Sequence[Source], run: Sequence[int], piece_bytes: int
) -> Iterator[tuple[_Decoded, int]]:
    """Decode row groups, or a large one in one pass, some rows at a time, with their deleted rows."""
    rows, named, rows_read = _rows(parquet, run), _named(sources), 0
    if len(run) == 1 and _decoded_bytes(parquet, sources, run[0]) > _WHOLE * piece_bytes:
        tables = read_batches(parquet, named, run[0], piece_bytes)
    else:
        tables = iter([read_row_groups(parquet, named, run)])
    for table in tables:
        rows_read += table.num_rows
        yield _of_arrow(scan, parquet, table, sources), table.num_rows
    if rows_read != rows:
        raise ScanError(f"{parquet.path}: row groups {run[0]} to {run[-1]} have {rows_read} rows, not {rows}")


def _of_arrow(scan: Scan, parquet: ParquetFooter, table: pa.Table, sources: Sequence[Source]) -> _Decoded:
    """Convert decoded columns to Polars, with names that are no patterns; text that is no UTF-8 becomes bytes."""
    finder = FieldFinder(scan.case_sensitive, parquet.has_ids)
    stored_fields = scan.stored_fields or (StoredField(),) * len(sources)
    series: dict[str, pl.Series] = {}
    late: dict[str, LateColumn] = {}
    for source, planned, place in zip(sources, scan.file_columns, stored_fields, strict=True):
        if source.name is None:
            continue
        values = table.column(source.name)
        if is_late(planned.type):
            chunks = [_with_fields(chunk, planned.type, place, finder) for chunk in values.chunks]
            series[source.name], late[source.name] = late_from_arrow(
                fresh(), pa.chunked_array(chunks, planned.type), planned.type
            )
        else:
            series[source.name] = _to_series(values, source.arrow).alias(fresh())
    text = (each.name for each in sources if each.name is not None and each.arrow is not None and is_text(each.arrow))
    as_bytes = frozenset(name for name in text if series[name].dtype == pl.Binary)
    names = {name: each.name for name, each in series.items()}
    return _Decoded(pl.DataFrame(list(series.values())).lazy(), names, as_bytes, late, has_deleted=True)


def _to_series(column: pa.ChunkedArray, dtype: pa.DataType | None) -> pl.Series:
    """Convert a column to Polars; text that is no UTF-8 becomes bytes."""
    if dtype is not None and is_text(dtype):
        return series_of(column, dtype)[0]
    series = pl.from_arrow(column)
    assert isinstance(series, pl.Series)
    return series


def _carried(column: pl.Expr, source: Source, dtype: pa.DataType, *, wide: bool) -> pl.Expr:
    """Convert a file's values to the form in which pieces carry them."""
    file_type = source.arrow
    assert file_type is not None
    if pat.is_decimal(dtype):
        physical = column.to_physical()
        if is_wide_decimal(dtype):
            return physical.cast(pl.Int128) if source.converted else physical
        # Values that the file stores in 64 bits fit without a check, which would take as long as decoding.
        return physical.cast(pl.Int64, wrap_numerical=source.integers)
    if pat.is_timestamp(dtype):
        units = column.to_physical()
        if file_type.unit == "ms":
            # A timestamp that exceeds 64 bits in microseconds is an error, as in Spark, so the cast back is checked.
            units = (units.cast(pl.Int128) * 1000).cast(pl.Int64)
        return units.cast(pl.Datetime("us"))
    # Polars may decode text as a dictionary, and integers to a narrower type.
    if is_text(dtype):
        return column if wide else column.cast(pl.String)
    return column.cast(polars_type(dtype)) if is_whole(dtype) or source.converted else column
