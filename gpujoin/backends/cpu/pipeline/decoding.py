"""Decodes the pages of Parquet files to the types that the Parquet schema gives, whatever else a file says of itself.

Writers add claims: an Arrow schema (``ARROW:schema``), the order of the rows (``sorting_columns``), and in headers of
pages of the second version the number of nulls. Spark uses none of them. Polars does: it decodes a column as the Arrow
schema says, does not look at values that are said to be sorted, and looks for no other nulls. So Polars decodes a file
only if nothing is claimed of the order of its rows, its pages are of the first version, it means to decode each
column that is read to the type of the Parquet schema, and statistics show that no number is beyond that type: 300 as
UINT_8 becomes 44. PyArrow decodes all others, with a footer that claims nothing, and numbers of which statistics do not
tell are compared with the limits of their type. An example, a column of INT64 without a logical type, whose value is
1700000000::

    ARROW:schema says     Polars decodes              here
    int64                 1700000000                  by Polars
    timestamp[s]          1700000000000 ms            by PyArrow, 1700000000
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

from gpujoin.backends.parquet.footers import Source, are_of_type, beyond_type
from gpujoin.backends.parquet.metadata import Leaf, ParquetFooter, Physical, is_narrow
from gpujoin.backends.parquet.pages import have_first_version
from gpujoin.backends.parquet.statistics import limits
from gpujoin.errors import ScanError
from gpujoin.model.types import is_text, logical
from gpujoin.storage.locations import is_local, open_binary

_ARROW_SCHEMA = b"ARROW:schema"
_POLARS_TYPES: dict[pa.DataType, type[pl.DataType]] = {
    pa.bool_(): pl.Boolean, pa.int8(): pl.Int8, pa.int16(): pl.Int16, pa.int32(): pl.Int32, pa.int64(): pl.Int64,
    pa.uint8(): pl.UInt8, pa.uint16(): pl.UInt16, pa.uint32(): pl.UInt32, pa.uint64(): pl.UInt64,
    pa.float32(): pl.Float32, pa.float64(): pl.Float64, pa.date32(): pl.Date, pa.binary(): pl.Binary,
}  # fmt: skip
"""Types of Polars for types of files."""
_MOST_SECONDS = (1 << 63) // 1_000_000
"""Latest timestamp that Spark holds, which counts microseconds in 64 bits."""
_INTERVAL_BYTES = 12
_SAMPLE = 1024
"""Rows of the sample from which the size of a row group in memory is estimated."""


# -- by Polars ---------------------------------------------------------------------------------------------------


def scan_by_polars(path: str, number: str | None = None) -> pl.LazyFrame:
    """Make a query for a local file. Its statistics are not used: row groups are chosen by those that were checked.

    ``number`` names a column with the positions of rows in the whole file.
    """
    return pl.scan_parquet(
        path, row_index_name=number, glob=False, hive_partitioning=False, cache=False, use_statistics=False
    )


def polars_decodes(parquet: ParquetFooter, sources: Sequence[Source], groups: Sequence[int] = ()) -> bool:
    """Whether Polars decodes the columns that are read of a file to the types that its Parquet schema gives them.

    It must not be misled by the headers of pages in the row groups that are read, either.
    """
    named = [source for source in sources if source.name is not None]
    if parquet.claims_order or not is_local(parquet.path):
        return False
    if any(source.int96 or _is_pattern(source.name) for source in named) or any(map(_is_interval, parquet.leaves)):
        return False
    if not _is_parsed_by_polars(parquet.facts.get(_ARROW_SCHEMA)):
        return False
    try:
        schema = scan_by_polars(parquet.path).collect_schema()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
        return False
    if not all(_is_decoded_as(schema.get(source.name or ""), source.arrow) for source in named):
        return False
    return are_of_type(parquet, named, groups) and have_first_version(parquet, named, groups)


def _is_decoded_as(dtype: pl.DataType | None, file_type: pa.DataType | None) -> bool:
    """Whether a type of Polars holds the values of a file's type, unchanged.

    Categories are texts, but an ``Enum`` turns texts that its file does not list into nulls.
    """
    if dtype is None or file_type is None:
        return False
    if is_text(file_type):
        return dtype in (pl.String, pl.Categorical)
    if pat.is_fixed_size_binary(file_type):
        return dtype == pl.Binary
    if pat.is_timestamp(file_type):
        return isinstance(dtype, pl.Datetime) and dtype.time_unit == file_type.unit
    if pat.is_decimal128(file_type):
        return dtype == pl.Decimal(file_type.precision, file_type.scale)
    return dtype == _POLARS_TYPES.get(file_type)


def _is_interval(leaf: Leaf) -> bool:
    """Whether a column may be of Parquet's intervals, of which Polars panics, which is printed even if it is caught."""
    return leaf.arrow is None and leaf.physical is Physical.FIXED_LEN_BYTE_ARRAY and leaf.length == _INTERVAL_BYTES


def _is_pattern(name: str | None) -> bool:
    """Whether Polars takes a name for a pattern of names."""
    return name is not None and (name == "*" or (name.startswith("^") and name.endswith("$")))


@functools.lru_cache(maxsize=16)
def _is_parsed_by_polars(claim: bytes | None) -> bool:
    """Whether Polars takes in an Arrow schema; it panics at some, which is printed even if it is caught.

    Files of a table mostly have the same one, and one of 300 columns takes half a millisecond.
    """
    if claim is None:
        return True
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(claim)))
    except (ValueError, OSError, pa.ArrowException):
        return False
    return all(map(_is_known_to_polars, schema.types))


def _is_known_to_polars(dtype: pa.DataType) -> bool:
    if pat.is_run_end_encoded(dtype):
        return False
    if pat.is_dictionary(dtype):
        return _is_known_to_polars(dtype.value_type)
    if pat.is_timestamp(dtype):
        return dtype.tz is None or not dtype.tz.startswith(("+", "-"))
    return all(_is_known_to_polars(dtype.field(i).type) for i in range(dtype.num_fields))


# -- by PyArrow --------------------------------------------------------------------------------------------------


def check_readable(parquet: ParquetFooter, sources: Sequence[Source]) -> None:
    """Raise ``ScanError`` if PyArrow does not decode columns of a file to the types of its Parquet schema."""
    with _arrow_errors(parquet, "its footer"), _arrow_reader(parquet) as reader:
        _leaves(reader, parquet, {source.name: source for source in sources if source.name is not None})


def read_row_groups(parquet: ParquetFooter, named: Mapping[str, Source], run: Sequence[int]) -> pa.Table:
    """Decode columns of row groups, by their names in the file; INT96 timestamps are in microseconds.

    Integers of 8 and 16 bits are of 32, as they are stored. Raises ``ScanError`` if a number is beyond its type.
    """
    with _arrow_errors(parquet, _groups(run)):
        _check_int96(parquet, named, run)
        with _arrow_reader(parquet) as reader:
            leaves = _leaves(reader, parquet, named)
            table = reader.reader.read_row_groups(list(run), column_indices=leaves, use_threads=False)
    table = table.rename_columns(_in_order(named))
    _check_limits(parquet, named, run, table)
    return table


def read_batches(
    parquet: ParquetFooter, named: Mapping[str, Source], group: int, piece_bytes: int
) -> Iterator[pa.Table]:
    """Decode columns of a row group, in tables of about ``piece_bytes``; else as :func:`read_row_groups`."""
    names = _in_order(named)
    with _arrow_errors(parquet, _groups([group])):
        _check_int96(parquet, named, [group])
        with _arrow_reader(parquet) as reader:
            leaves = _leaves(reader, parquet, named)

            def batches(rows: int) -> Iterator[pa.RecordBatch]:
                return reader.reader.iter_batches(rows, [group], column_indices=leaves, use_threads=False)

            first = next(batches(_SAMPLE), None)
            # A footer does not say how large dictionaries become when they are decoded.
            row_bytes = max(1.0, first.nbytes / max(1, first.num_rows)) if first is not None else 1.0
            for batch in batches(max(1, int(piece_bytes / row_bytes))):
                table = pa.Table.from_batches([batch]).rename_columns(names)
                _check_limits(parquet, named, [group], table)
                yield table


def _groups(run: Sequence[int]) -> str:
    return f"row groups {run[0]} to {run[-1]}" if len(run) > 1 else f"row group {run[0]}"


@contextmanager
def _arrow_errors(parquet: ParquetFooter, part: str) -> Iterator[None]:
    try:
        yield
    except ScanError:
        raise
    except (OSError, pa.ArrowException, ValueError) as problem:
        raise ScanError(f"{parquet.path}: {part} cannot be read; truncated or corrupt? {problem}") from problem


@contextmanager
def _arrow_reader(parquet: ParquetFooter, unit: str = "us") -> Iterator[pq.ParquetFile]:
    """Open a file by its footer without claims; INT96 timestamps are decoded to microseconds, or another unit."""
    footer = pq.read_metadata(pa.BufferReader(parquet.without_claims()))
    with (
        open_binary(parquet.path) as file,
        pq.ParquetFile(
            file, metadata=footer, coerce_int96_timestamp_unit=unit, pre_buffer=not is_local(parquet.path),
            arrow_extensions_enabled=False,
        ) as reader,
    ):  # fmt: skip
        yield reader


def _in_order(named: Mapping[str, Source]) -> list[str]:
    """Names of columns in the order of the file, in which PyArrow returns them."""
    return sorted(named, key=lambda name: named[name].leaf)


def _leaves(reader: pq.ParquetFile, parquet: ParquetFooter, named: Mapping[str, Source]) -> list[int]:
    """Leaves of columns. Raises ``ScanError`` if PyArrow has a column of another type than the file."""
    places = {column.first: place for place, column in enumerate(parquet.columns) if column.leaves}
    schema = reader.schema_arrow
    for name, source in named.items():
        arrow_type = schema.field(places[source.leaf]).type
        if source.arrow is None or not _is_same(arrow_type, source.arrow):
            raise ScanError(f"{parquet.path}: column {name!r} is {source.arrow}, decoded as {arrow_type}")
    return [leaf for name in _in_order(named) for leaf in named[name].leaves]


def _is_same(arrow_type: pa.DataType, file_type: pa.DataType) -> bool:
    """Whether PyArrow decodes to a file's type. INT96 timestamps have no zone to PyArrow, names of elements differ.

    Integers of 8 and 16 bits are INT32 to it (`ParquetFooter.without_claims`).
    """
    if is_narrow(file_type):
        return bool(arrow_type == pa.int32())
    if pat.is_timestamp(file_type):
        return pat.is_timestamp(arrow_type) and arrow_type.unit == file_type.unit
    if not pat.is_nested(file_type):
        return bool(arrow_type == file_type or logical(arrow_type) == logical(file_type))
    if arrow_type.id != file_type.id or arrow_type.num_fields != file_type.num_fields:
        return False
    pairs = [(arrow_type.field(i), file_type.field(i)) for i in range(file_type.num_fields)]
    has_names = pat.is_struct(file_type)
    return all(_is_same(a.type, b.type) and (a.name == b.name or not has_names) for a, b in pairs)


def _check_limits(parquet: ParquetFooter, named: Mapping[str, Source], run: Sequence[int], table: pa.Table) -> None:
    """Raise ``ScanError`` if a number is beyond the limits of its type; statistics mostly tell that none is."""
    for name, source in named.items():
        if source.arrow is None or are_of_type(parquet, [source], run):
            continue
        if not all(_are_within_limits(chunk, source.arrow) for chunk in table[name].chunks):
            raise ScanError(beyond_type(parquet.path, source))


def _are_within_limits(values: pa.Array, dtype: pa.DataType) -> bool:
    """Whether numbers, or those in nested values, are such as a file's type has."""
    if pat.is_struct(dtype):
        return all(_are_within_limits(values.field(i), dtype.field(i).type) for i in range(dtype.num_fields))
    if pat.is_map(dtype):
        return _are_within_limits(values.keys, dtype.key_type) and _are_within_limits(values.items, dtype.item_type)
    if pat.is_list(dtype):
        return _are_within_limits(values.values, dtype.value_type)
    if pat.is_decimal(dtype):
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            return False
    elif (allowed := limits(dtype)) is not None:
        ends = pc.min_max(values).as_py().values()
        return all(end is None or end in allowed for end in ends)
    return True


def _check_int96(parquet: ParquetFooter, named: Mapping[str, Source], run: Sequence[int]) -> None:
    """Raise ``ScanError`` if an INT96 timestamp is before the first Julian day.

    PyArrow takes such a day for a large one, of which the microseconds exceed 64 bits; the seconds do not.
    """
    stamps = {name: source for name, source in named.items() if source.int96}
    if not stamps:
        return
    leaves = [leaf for name in _in_order(stamps) for leaf in stamps[name].leaves]
    with _arrow_reader(parquet, "s") as reader:
        seconds = reader.reader.read_row_groups(list(run), column_indices=leaves, use_threads=False)
    for name, column in zip(_in_order(stamps), seconds.columns, strict=True):
        if any(_latest(chunk) > _MOST_SECONDS for chunk in column.chunks):
            raise ScanError(
                f"{parquet.path}: column {name!r} has a timestamp before the year -4712, which is not read here"
            )


def _latest(values: pa.Array) -> int:
    """The greatest of the timestamps in seconds that are among the values, or in them; 0 if there are none."""
    if pat.is_struct(values.type):
        return max((_latest(values.field(i)) for i in range(values.type.num_fields)), default=0)
    if pat.is_map(values.type):
        return max(_latest(values.keys), _latest(values.items))
    if pat.is_list(values.type):
        return _latest(values.values)
    if not pat.is_timestamp(values.type) or values.type.unit != "s":
        return 0
    return pc.max(values.cast(pa.int64())).as_py() or 0
