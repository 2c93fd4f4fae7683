"""Reads ORC by PyArrow, a stripe at a time.

A file must be the one that was planned: its size and modification time are compared before and after reading. Every
problem is a :class:`ScanError` that names the file.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.backends.cpu.pipeline.piece import Piece
from gpujoin.backends.orc.files import CALENDARS_AGREE, OrcFile, early_dates, footer, opened
from gpujoin.backends.parquet.footers import matching_slices
from gpujoin.errors import ScanError
from gpujoin.functions.lower import Extent
from gpujoin.model.pipeline import PipelineMetrics, Rung
from gpujoin.model.relations import FileSlice, Scan

__all__ = ["footer", "read"]

_AGREE_DAYS = (CALENDARS_AGREE - dt.date(1970, 1, 1)).days


def read(scan: Scan, metrics: PipelineMetrics, *, piece_bytes: int, rung: Rung = Rung.FAST) -> Iterator[Piece]:
    """Read a scan's slices, in pieces of about ``piece_bytes`` and of one stripe each.

    Raises ``ScanError`` if a file is missing, unreadable, changed, truncated or corrupt, or a column has a type that is
    not read here as Spark would read it.
    """
    extent = Extent.COLUMNS if rung is Rung.CAREFUL else Extent.ALL
    for path, table in _tables(scan, metrics, piece_bytes):
        piece = dataclasses.replace(Piece.of_batches(table.to_batches(), scan.schema, metrics), files=(path,))
        yield reduce(lambda rest, condition: rest.filter(condition, extent=extent), scan.filters, piece)


def _tables(scan: Scan, metrics: PipelineMetrics, piece_bytes: int) -> Iterator[tuple[str, pa.Table]]:
    for part in matching_slices(scan, metrics):
        with opened(scan, part, metrics) as file:
            for number in file.stripes:
                stripe = _stripe(scan, part, file, number)
                metrics.scanned_rows += stripe.num_rows
                count = stripe.num_rows
                rows = min(count, max(1, count * piece_bytes // max(1, stripe.nbytes)))
                for first in range(0, count, rows or 1):
                    yield part.path, stripe.slice(first, min(rows, count - first))


def _stripe(scan: Scan, part: FileSlice, file: OrcFile, number: int) -> pa.Table:
    """Columns of a scan in one stripe."""
    rows = file.tail.stripes[number].rows
    names = [column.name for column in file.columns if column is not None]
    decoded = _decoded(part.path, file, number, names) if names else None
    if decoded is not None and decoded.num_rows != rows:
        raise ScanError(f"{part.path}: stripe {number} has {decoded.num_rows} rows, not {rows}")
    arrays: list[pa.Array] = []
    for column, field in zip(file.columns, scan.file_columns, strict=True):
        if column is None:
            arrays.append(pa.nulls(rows, field.type))
            continue
        assert decoded is not None
        values = decoded.column(column.name)
        if pat.is_date(values.type) and _is_early(values):
            raise ScanError(early_dates(part.path, column.name))
        arrays.append(values)
    constants = list(scan.columns)[len(arrays) :]
    arrays += [
        pa.repeat(pa.scalar(value, field.type), rows) for value, field in zip(part.constants, constants, strict=True)
    ]
    if not arrays:
        return pa.table({"rows": pa.nulls(rows)}).select([])
    return pa.Table.from_arrays(arrays, scan.schema.names)


def _decoded(path: str, file: OrcFile, number: int, names: list[str]) -> pa.RecordBatch:
    try:
        return file.reader.read_stripe(number, columns=names)
    except (OSError, pa.ArrowException, ValueError) as problem:
        raise ScanError(f"{path}: stripe {number} cannot be read: {problem}") from problem


def _is_early(dates: pa.Array) -> bool:
    least = pc.min(dates)
    return bool(least.is_valid and least.cast(pa.int32()).as_py() < _AGREE_DAYS)
