"""Reads Parquet on the device: the host reads footers and statistics, libcudf decodes pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.pipeline.columns import Columns, FilterTerm, Frame
from gpujoin.backends.cudf.pipeline.compute import filtered, values_of
from gpujoin.backends.cudf.pipeline.offers import carried
from gpujoin.backends.ordered.reductions import any_true
from gpujoin.backends.parquet.deletions import positions_between
from gpujoin.backends.parquet.footers import Source, are_of_type, matching_slices, opened, runs
from gpujoin.backends.parquet.metadata import ParquetFooter
from gpujoin.backends.parquet.pages import have_first_version
from gpujoin.backends.parquet.roaring import Numbers
from gpujoin.errors import DecodeError, DeviceMemoryError, ScanError
from gpujoin.functions.device import Text
from gpujoin.functions.values import Value, constant
from gpujoin.model.expressions import Call, ColumnRef, Expression, Function, Literal, conjuncts
from gpujoin.model.maps import AllNull, Indices
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import Constant, FileFormat, FileSlice, Scan
from gpujoin.model.types import is_text, is_whole, logical
from gpujoin.storage.locations import is_local

_OPERATORS = {
    Function.EQ: "=", Function.LT: "<", Function.LE: "<=", Function.GT: ">", Function.GE: ">=",
}  # fmt: skip
_MOST_MILLIS = ((1 << 63) - 1) // 1000
"""Largest timestamp in milliseconds that does not overflow in microseconds."""
_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def read(
    columns: Columns[Frame], scan: Scan, metrics: PipelineMetrics, piece_bytes: int
) -> Iterator[Frame | FileSlice]:
    """Read a scan's slices, in pieces of about ``piece_bytes`` that end at row group boundaries.

    A slice is yielded itself if it must be read on the host: because it has INT96 timestamps, which libcudf reads in
    nanoseconds, values that have to be converted, numbers that may be beyond their type, a name with a dot, which
    libcudf takes for a path, or pages that say how many nulls they have, which libcudf believes; because it is in an
    object store, or because it does not fit the device. So are all slices of ORC files. Raises ``ScanError`` if a file
    is not as planned or unreadable, ``DecodeError`` if the library does not decode its pages: another one may, or says
    why not.
    """
    if scan.format is not FileFormat.PARQUET:
        yield from scan.slices or ()
        return
    for part in matching_slices(scan, metrics):
        with opened(scan, part, metrics) as (parquet, sources, groups, positions):
            if not is_local(part.path) or not _are_decoded_here(parquet, sources, groups):
                if groups:
                    yield dataclasses.replace(part, row_groups=tuple(groups), byte_range=None)
                continue
            for run in runs(groups, sources, parquet, piece_bytes):
                rows = sum(parquet.groups[g].rows for g in run)
                first = sum(parquet.groups[g].rows for g in range(run[0]))
                try:
                    with columns.memory_errors():
                        numbers = positions_between(positions, first, rows)
                        piece = _piece(columns, scan, part, sources, run, rows, numbers)
                except DeviceMemoryError:
                    yield dataclasses.replace(part, row_groups=run, byte_range=None)
                    continue
                metrics.scanned_rows += rows
                yield piece


def _are_decoded_here(parquet: ParquetFooter, sources: Sequence[Source], groups: Sequence[int]) -> bool:
    if any(source.int96 or source.converted or "." in (source.name or "") for source in sources):
        return False
    return are_of_type(parquet, sources, groups) and have_first_version(parquet, sources, groups)


def _piece(
    columns: Columns[Frame], scan: Scan, part: FileSlice, sources: Sequence[Source], run: tuple[int, ...],
    rows: int, without: Numbers,
) -> Frame:  # fmt: skip
    """Decode row groups without the rows of some numbers, and filter them."""
    named = {source.name: source for source in sources if source.name is not None}
    names = list(named)
    if names:
        types = [_file_type(named[name]) for name in names]
        terms = [] if len(without) else _pushed(scan, sources)  # rows that it leaves out have no number
        decoded = columns.read(part.path, names, types, run, terms)
        decoded_rows = columns.backend.frame_rows(decoded)
        if decoded_rows > rows or (decoded_rows < rows and not terms):
            raise DecodeError(f"{part.path}: row groups {run[0]} to {run[-1]} have {decoded_rows} rows, not {rows}")
        rows = decoded_rows
    else:
        decoded = columns.frame([], [], rows)
    parts: list[Frame] = []
    for source, field in zip(sources, scan.file_columns, strict=True):
        dtype = logical(field.type)
        if source.name is None:
            parts.append(_constant(columns, decoded, None, dtype, rows))
            continue
        column = columns.select(decoded, (names.index(source.name),))
        parts.append(_conformed(columns, column, dtype, rows, part.path))
    for value, field in zip(part.constants, list(scan.columns)[len(sources) :], strict=True):
        parts.append(_constant(columns, decoded, value, logical(field.type), rows))
    frame = columns.hstack(parts) if parts else decoded
    if len(without):
        mask = columns.ops.xp.ones(rows, dtype=bool)
        mask[columns.ops.xp.asarray(without)] = False
        frame = columns.backend.gather(frame, columns.backend.selection(mask, True))
    for condition in scan.filters:
        frame = filtered(columns, frame, condition)
    return frame


def _file_type(source: Source) -> pa.DataType:
    assert source.arrow is not None
    return source.arrow


def _conformed(columns: Columns[Frame], column: Frame, dtype: pa.DataType, rows: int, path: str) -> Frame:
    """Convert a decoded column to the type in which it is carried."""
    (have,) = columns.types(column)
    target = carried(dtype)
    if have == target:
        return column
    same_zone = pat.is_timestamp(target) and pat.is_timestamp(have) and have.unit == "us"
    if same_zone or not _computed(have):
        return columns.relabelled(column, (target,))
    value = values_of(columns, column, 0)
    if pat.is_timestamp(target):
        beyond = (value.data > _MOST_MILLIS) | (value.data < -_MOST_MILLIS)
        if any_true(beyond if value.valid is None else beyond & value.valid):
            raise ScanError(f"{path}: a timestamp in milliseconds overflows in microseconds")
        return columns.frame([Value(dtype, value.data * 1000, value.valid)], (target,), rows)
    if pat.is_decimal(target):
        # The same scale and fewer digits: only the width may differ.
        data = value.data if value.low is None else value.low.view("int64")
        low = data.view("uint64") if not pat.is_decimal64(target) else None
        words = Value(dtype, data >> 63 if low is not None else data, value.valid, low)
        return columns.frame([value if value.low is not None and low is not None else words], (target,), rows)
    return columns.frame([Value(dtype, value.data.astype(f"int{dtype.bit_width}"), value.valid)], (target,), rows)


def _computed(dtype: pa.DataType) -> bool:
    return is_whole(dtype) or pat.is_decimal(dtype) or pat.is_timestamp(dtype)


def _constant(columns: Columns[Frame], frame: Frame, value: Constant, dtype: pa.DataType, rows: int) -> Frame:
    """Make a column that has one value in every row."""
    kind = carried(dtype)
    if is_text(dtype):
        text: Text = columns.source(frame).text(None if value is None else str(value))
        return columns.frame([text], (kind,), rows)
    if pat.is_binary(dtype):
        single = columns.backend.from_arrow(pa.table({"c": pa.array([value], kind)}))
        return _repeated(columns, single, rows)
    return columns.frame([constant(columns.ops.xp, value, dtype)], (kind,), rows)


def _repeated(columns: Columns[Frame], single: Frame, rows: int) -> Frame:
    zeros = columns.ops.xp.zeros(rows, dtype="int32")
    return columns.backend.gather(single, Indices(zeros, rows) if rows else AllNull(0))


# -- what the reader may leave out -------------------------------------------------------------------------------


def _pushed(scan: Scan, sources: Sequence[Source]) -> list[FilterTerm]:
    """Filters that libcudf applies while it reads: comparisons of integers and dates with constants.

    It leaves out row groups by statistics, too.
    """
    if not scan.by_statistics:
        return []
    terms = []
    for condition in scan.filters:
        for node in conjuncts(condition):
            term = _term(node, sources)
            if term is not None:
                terms.append(term)
    return terms


def _term(node: Expression, sources: Sequence[Source]) -> FilterTerm | None:
    if not isinstance(node, Call) or node.function not in _OPERATORS:
        return None
    column, literal = node.arguments
    operator = _OPERATORS[node.function]
    if isinstance(column, Literal):
        column, literal, operator = literal, column, _MIRRORED[operator]
    if not isinstance(column, ColumnRef) or not isinstance(literal, Literal) or literal.value is None:
        return None
    if column.index >= len(sources):
        return None
    source = sources[column.index]
    file_type = source.arrow
    if (
        source.name is None
        or file_type is None
        or file_type != logical(literal.type)
        or file_type != logical(column.type)
    ):
        return None
    if not (pat.is_int32(file_type) or pat.is_int64(file_type)):
        return None
    return FilterTerm(source.name, operator, pa.scalar(literal.value, file_type))
