"""Opens Parquet files: finds the columns and row groups to read, and whether they can be read as Spark reads them.

A file must be the one that was planned: its size and modification time are compared before and after reading. Every
problem is a :class:`ScanError` that names the file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.parquet.deletions import NO_ROWS, deleted_positions
from gpujoin.backends.parquet.metadata import FileColumn, Leaf, ParquetFooter, Physical, id_of, read_footer
from gpujoin.backends.parquet.pruning import Lookup, Statistics, may_hold, may_match
from gpujoin.backends.parquet.roaring import Numbers
from gpujoin.backends.parquet.statistics import NULLS, decoded, limits, stored_bounds
from gpujoin.cache import Cache
from gpujoin.errors import ScanError
from gpujoin.model.files import Bounds, ForeignColumn, StoredField
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import Constant, FileFooter, FileSlice, Scan
from gpujoin.model.sqltext import show_type
from gpujoin.model.types import is_bytes, is_text, is_whole, logical
from gpujoin.storage.locations import check_unchanged, facts, is_local, open_binary

_LEGACY_KEYS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_SPARK_VERSION = b"org.apache.spark.version"
_PROLEPTIC_SINCE = (3, 1)
_DELTA_BINARY_PACKED = 5


@dataclass(frozen=True)
class Source:
    """A column of a scan in one file."""

    name: str | None
    """Name in the file; ``None``: the file has no such column, or no value in it, and all are null."""
    leaf: int = -1
    """Number of the column chunk in a row group; of a nested column, that of the first."""
    arrow: pa.DataType | None = None
    """Type in the file."""
    int96: bool = False
    """Whether values, or some within nested ones, are stored as INT96."""
    integers: bool = False
    """Whether values are stored as INT32 or INT64."""
    converted: bool = False
    """Whether the values are of a type that Spark has not, or reads as a wider one: unsigned numbers, bytes of one
    length, floats as doubles."""
    count: int = 1
    """Column chunks that it consists of."""

    @property
    def leaves(self) -> range:
        """Numbers of its column chunks."""
        return range(self.leaf, self.leaf + self.count if self.name is not None else self.leaf)


def footer(scan: Scan, path: str) -> FileFooter:
    """Read the facts of a file that planning needs.

    Raises ``ScanError`` if the file cannot be opened or is no Parquet file.
    """
    now = facts(path)
    parquet = footer_of(path, now.size)
    problems = []
    if (legacy := legacy_calendar(parquet, scan.file_columns)) is not None:
        problems.append(legacy)
    columns = FileColumns(parquet, scan)
    sources = []
    for number in range(len(scan.file_columns)):
        try:
            sources.append(columns.source_of(number))
        except ScanError as problem:
            problems.append(str(problem))
    if (by_setting := setting_obstacle(parquet, scan, sources)) is not None:
        problems.append(by_setting)
    leaves = {leaf for source in sources for leaf in source.leaves}
    groups = range(len(parquet.groups))
    sizes: tuple[int, ...] = ()
    try:
        sizes = tuple(sum(parquet.chunk(g, leaf).compressed for leaf in leaves) for g in groups)
    except ScanError as problem:
        problems.append(str(problem))
    if not problems:
        problems += [beyond_type(path, source) for source in sources if _has_values_beyond(parquet, source)]
    rows = tuple(group.rows for group in parquet.groups)
    bounds = () if problems else tuple(_bounds(source, parquet) for source in sources)
    different = () if problems else tuple(_different_values(source, parquet) for source in sources)
    return FileFooter(path, now.size, now.modified_ms, rows, sizes, bounds, tuple(problems), different)


def _bounds(source: Source, parquet: ParquetFooter) -> Bounds | None:
    """Least and greatest value of a column in a file; ``None`` of text, or if a row group does not say."""
    if source.arrow is None or is_text(source.arrow) or is_bytes(source.arrow):
        return None
    statistics = [statistics_of(source, parquet, group) for group in range(len(parquet.groups))]
    statistics = [each for each in statistics if each is None or each.nulls != each.rows]
    if not statistics or any(each is None or each.low is None or each.high is None for each in statistics):
        return None
    return min(each.low for each in statistics if each), max(each.high for each in statistics if each)


_PAGE_HEADER = 15
_TEXT_DICTIONARY = 64 << 10
_NUMBER_DICTIONARY = 2 << 10
"""Dictionaries of texts and of numbers that tell how many values there are, in bytes. Larger ones are compressed well,
and beyond 1 MiB writers give them up: then a column has other values too."""
_LENGTH = 4
"""Bytes of a text's length in a dictionary."""
_USUAL_TEXT = 12
_GROUPS_LOOKED_AT = 4


def _different_values(source: Source, parquet: ParquetFooter) -> float | None:
    """About how many different values a column has, by the sizes of its dictionaries; ``None`` where these do not tell.

    Texts are taken to be as long as the least and the greatest are on average, and values not to be compressed::

        l_shipmode    dictionary 69 bytes, AIR to TRUCK    (69 - 15) / (4 + 4) = 7
    """
    if source.arrow is None or pat.is_nested(source.arrow):
        return None
    limit = _TEXT_DICTIONARY if is_text(source.arrow) else _NUMBER_DICTIONARY
    most = None
    for group in range(min(len(parquet.groups), _GROUPS_LOOKED_AT)):
        about = statistics_of(source, parquet, group)
        if about is not None and about.nulls == about.rows:
            continue
        nbytes = parquet.chunk(group, source.leaf).dictionary
        if not _PAGE_HEADER < nbytes <= limit:
            return None
        most = max(most or 1.0, (nbytes - _PAGE_HEADER) / _value_bytes(parquet.leaves[source.leaf], about))
    return most


def _value_bytes(leaf: Leaf, about: Statistics | None) -> float:
    """About how many bytes a value takes in a dictionary."""
    if leaf.width is not None:
        return leaf.width
    ends = [] if about is None else [end for end in (about.low, about.high) if isinstance(end, bytes)]
    return _LENGTH + (sum(map(len, ends)) / len(ends) if ends else _USUAL_TEXT)


@contextmanager
def opened(
    scan: Scan, part: FileSlice, metrics: PipelineMetrics
) -> Iterator[tuple[ParquetFooter, list[Source], list[int], Numbers]]:
    """Open the file of a slice, with its columns, the row groups that may pass the filters, and its deleted rows.

    Raises ``ScanError`` if the file is not the planned one, before or after, a column cannot be read as Spark reads it,
    or it cannot be told which rows are deleted.
    """
    check_unchanged(part)
    parquet = footer_of(part.path, part.size)
    legacy = legacy_calendar(parquet, scan.file_columns)
    if legacy is not None:
        raise ScanError(legacy)
    sources = sources_of(scan, parquet)
    by_setting = setting_obstacle(parquet, scan, sources)
    if by_setting is not None:
        raise ScanError(by_setting)
    planned = row_groups(part, parquet)
    groups = [g for g in planned if group_may_match(scan, part, sources, parquet, g)]
    metrics.row_groups += len(groups)
    metrics.skipped_row_groups += len(planned) - len(groups)
    yield parquet, sources, groups, deleted_positions(part, parquet.rows) if groups else NO_ROWS
    check_unchanged(part)


# -- files -------------------------------------------------------------------------------------------------------


def footer_of(path: str, size: int) -> ParquetFooter:
    """Open a file and read its footer.

    Raises ``ScanError`` if the file is missing, no Parquet file, encrypted, truncated or corrupt.
    """
    try:
        with open_binary(path) as file:
            version = _Version.from_stat(path, os.fstat(file.fileno())) if is_local(path) else None
            if version is None or version.size != size:
                return read_footer(path, file, size)
            footer = _footers.get(version)
            if footer is None:
                footer = read_footer(path, file, size)
                if version.is_settled:
                    _footers.put(version, footer)
            return footer
    except ScanError:
        raise
    except FileNotFoundError as problem:
        raise ScanError(f"{path}: there is no such file; was it removed?") from problem
    except (OSError, pa.ArrowException) as problem:
        raise ScanError(f"{path}: cannot be read: {problem}") from problem


@dataclass(frozen=True, slots=True)
class _Version:
    """A local file as it is: no other file, and no other content, has all of these in common with it.

    Two changes within the resolution of the file system's clock have the same times, so a file that has just been
    changed has no version that can be told from the next.
    """

    path: str
    size: int
    inode: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def from_stat(cls, path: str, stat: os.stat_result) -> _Version:
        return cls(path, stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)

    @property
    def is_settled(self) -> bool:
        return time.time_ns() - max(self.modified_ns, self.changed_ns) > _SETTLED_NS


_SETTLED_NS = 2_000_000_000
"""Longer than the resolution of the clock of any file system."""
_KEPT_BYTES = 16 << 20
"""Bytes of footers that are kept, as they are in their files."""


_footers: Cache[_Version, ParquetFooter] = Cache(_KEPT_BYTES, lambda footer: footer.nbytes)
"""Footers of the local files that this process has read last: parsing one takes milliseconds."""


def row_groups(part: FileSlice, parquet: ParquetFooter) -> list[int]:
    """Row groups of a slice of a Parquet file, as :func:`chosen_groups` has them."""
    return chosen_groups(part, len(parquet.groups), partial(_middle, parquet))


def chosen_groups(part: FileSlice, count: int, middle: Callable[[int], int]) -> list[int]:
    """Row groups, or stripes, of a slice, by number, or by the byte range that their middle lies in.

    ``count`` are those of the file. Raises ``ScanError`` if it has fewer than planned.
    """
    if part.row_groups is not None:
        missing = [g for g in part.row_groups if g >= count]
        if missing:
            raise ScanError(f"{part.path}: has {count} row groups, planned was to read number {missing[0]}")
        return list(part.row_groups)
    if part.byte_range is None:
        return list(range(count))
    first, last = part.byte_range
    # Every group is in one of the ranges of a file, whatever the file says of where it is.
    return [g for g in range(count) if first <= min(middle(g), part.size - 1) < last]


def _middle(parquet: ParquetFooter, group: int) -> int:
    """Middle byte of a row group, of which the file tells, and so perhaps beyond its end."""
    chunks = [parquet.chunk(group, leaf) for leaf in range(len(parquet.leaves))]
    start = min((chunk.start for chunk in chunks), default=0)
    return start + sum(chunk.compressed for chunk in chunks) // 2


def runs(
    groups: Sequence[int], sources: Sequence[Source], parquet: ParquetFooter, piece_bytes: int
) -> Iterator[tuple[int, ...]]:
    """Join neighbouring row groups to runs near a size."""
    leaves = [leaf for source in sources for leaf in source.leaves]
    run: list[int] = []
    size = 0
    for group in groups:
        least = parquet.groups[group].rows * 8
        more = sum(max(parquet.chunk(group, leaf).uncompressed, least) for leaf in leaves)
        if run and (group != run[-1] + 1 or size + more > piece_bytes):
            yield tuple(run)
            run, size = [], 0
        run.append(group)
        size += more
    if run:
        yield tuple(run)


# -- types -------------------------------------------------------------------------------------------------------


def legacy_calendar(parquet: ParquetFooter, columns: pa.Schema) -> str | None:
    """Reason why dates of a file may be in the old calendar; ``None`` if they are not."""
    if not any(_has_dates(f.type) for f in columns):
        return None
    version = parquet.facts.get(_SPARK_VERSION)
    if version is not None:
        numbers = [part.decode("utf-8", "replace") for part in version.split(b".")[:2]]
        if not all(number.isdecimal() for number in numbers):
            return f"{parquet.path}: was written by Spark of the unknown version {version!r}"
        if tuple(int(number) for number in numbers) < _PROLEPTIC_SINCE:
            return f"{parquet.path}: {_OLD_CALENDAR}"
    if any(key in parquet.facts for key in _LEGACY_KEYS):
        return f"{parquet.path}: {_OLD_CALENDAR}"
    return None


def setting_obstacle(parquet: ParquetFooter, scan: Scan, sources: Sequence[Source]) -> str | None:
    """Give the reason if a setting, and not the bytes, decides on the values of a file's columns."""
    if _SPARK_VERSION in parquet.facts:
        return None
    kinds = {kind for source in sources for kind in _foreign_kinds(source)}
    for kind, setting in scan.by_setting:
        if kind in kinds:
            return f"{parquet.path}: no Spark has written it, and of its {kind.value} {setting}"
    return None


def _foreign_kinds(source: Source) -> Iterator[ForeignColumn]:
    if source.int96:
        yield ForeignColumn.INT96
    if source.arrow is not None and _has_dates(source.arrow) and (pat.is_nested(source.arrow) or not source.int96):
        yield ForeignColumn.DATES


def _has_dates(dtype: pa.DataType) -> bool:
    if pat.is_nested(dtype):
        return any(_has_dates(dtype.field(i).type) for i in range(dtype.num_fields))
    return bool(pat.is_date(dtype) or pat.is_timestamp(dtype))


_OLD_CALENDAR = "its dates were written in the old calendar, by Spark before 3.1 or in legacy mode"


def sources_of(scan: Scan, parquet: ParquetFooter) -> list[Source]:
    """Find the columns of a scan in a file. Raises ``ScanError`` as :meth:`FileColumns.source_of` does."""
    columns = FileColumns(parquet, scan)
    return [columns.source_of(number) for number in range(len(scan.file_columns))]


@dataclass(frozen=True)
class FieldFinder:
    """How columns, and fields within them, are found in a file."""

    case_sensitive: bool
    has_ids: bool
    """Whether the file has ids."""

    def key(self, field: pa.Field, stored_field: StoredField) -> str | int:
        """What a field of the table is looked up by: its id, or its name."""
        if stored_field.field_id is not None and (self.has_ids or stored_field.name is None):
            return stored_field.field_id
        return self._name(stored_field.name or field.name)

    def places(self, fields: Iterable[tuple[str, int | None]]) -> dict[str | int, list[int]]:
        """Places of fields with some names and ids, by what they are looked up by."""
        places: dict[str | int, list[int]] = {}
        for place, (name, field_id) in enumerate(fields):
            places.setdefault(self._name(name), []).append(place)
            if field_id is not None:
                places.setdefault(field_id, []).append(place)
        return places

    def places_in(self, struct: pa.DataType, dtype: pa.DataType, stored_field: StoredField) -> list[int | None] | None:
        """Places of the fields of a planned struct in that of a file, ``None`` for those that it lacks.

        ``None`` alone: fields of the file have one name or id, or none fits any of the table, so that nothing would
        tell which structs are null.
        """
        places = self.places((field.name, id_of(field)) for field in struct)
        if any(len(alike) > 1 for alike in places.values()):
            return None
        pairs = zip(fields_of(dtype), within(stored_field, dtype), strict=True)
        fitting = [places.get(self.key(field, inner), [None])[0] for field, inner in pairs]
        return None if fitting and all(place is None for place in fitting) else fitting

    def _name(self, name: str) -> str:
        return name if self.case_sensitive else name.lower()


def within(stored_field: StoredField, dtype: pa.DataType) -> tuple[StoredField, ...]:
    """How what a type consists of is found in files."""
    return stored_field.fields or (StoredField(),) * len(fields_of(dtype))


def fields_of(dtype: pa.DataType) -> list[pa.Field]:
    """What a type consists of: fields of a struct, the element of a list, the key and the value of a map."""
    if pat.is_map(dtype):
        return [dtype.key_field, dtype.item_field]
    return [dtype.field(number) for number in range(dtype.num_fields)]


class FileColumns:
    """The columns of a scan in a file."""

    def __init__(self, parquet: ParquetFooter, scan: Scan) -> None:
        self._parquet = parquet
        self._finder = FieldFinder(scan.case_sensitive, parquet.has_ids)
        self._fields = list(scan.file_columns)
        self._stored_fields = scan.stored_fields or (StoredField(),) * len(self._fields)
        self._places = self._finder.places((column.name, column.field_id) for column in parquet.columns)

    def source_of(self, number: int) -> Source:
        """Find a column of the scan, by its number, in the file.

        Raises ``ScanError`` if several columns fit it, or its type cannot be read as Spark reads it.
        """
        path, field, stored_field = self._parquet.path, self._fields[number], self._stored_fields[number]
        if stored_field.field_id is not None and stored_field.name is None and not self._finder.has_ids:
            raise ScanError(f"{path}: column {field.name!r} is found by its id, and the file has none")
        places = self._places.get(self._finder.key(field, stored_field), ())
        fitting = [self._parquet.columns[place] for place in places]
        if len(fitting) > 1:
            names = [column.name for column in fitting]
            raise ScanError(f"{path}: columns {names} all fit the name {field.name!r}")
        if not fitting and stored_field.required:
            raise ScanError(f"{path}: lacks column {field.name!r}, whose values are not null")
        if not fitting:
            return Source(None)
        [column] = fitting
        self._check_packing(column)
        if pat.is_nested(logical(field.type)):
            if column.nested is None or not _readable_nested(column.nested, field.type, stored_field, self._finder):
                file_type = "not laid out as it should be" if column.nested is None else column.nested
                raise ScanError(
                    f"{path}: column {field.name!r} is {show_type(file_type)}, planned as {show_type(field.type)}"
                )
            leaves = self._parquet.leaves[column.first : column.first + column.leaves]
            int96 = any(leaf.physical is Physical.INT96 for leaf in leaves)
            return Source(column.name, column.first, column.nested, int96, count=column.leaves)
        leaf = self._parquet.leaves[column.first] if column.leaves else None
        if leaf is None or not leaf.flat:
            raise ScanError(f"{path}: column {field.name!r} is nested, planned as {show_type(field.type)}")
        if leaf.arrow is not None and pat.is_null(leaf.arrow) and not pat.is_null(field.type):
            raise ScanError(
                f"{path}: column {field.name!r} ({leaf.physical.name}) is annotated as UNKNOWN, by which all its "
                f"values are null, and planned as {show_type(field.type)}"
            )
        if leaf.arrow is None or not _readable(leaf.arrow, logical(field.type)):
            file_type = "of an unknown or contradictory type" if leaf.arrow is None else leaf.arrow
            raise ScanError(
                f"{path}: column {field.name!r} is {show_type(file_type)} ({leaf.physical.name}), planned as "
                f"{show_type(field.type)}; has the table's schema changed? Set spark.gpujoin.disable to scan to let "
                "Spark read it"
            )
        if pat.is_null(leaf.arrow):
            return Source(None)
        integers = leaf.physical in (Physical.INT32, Physical.INT64)
        int96 = leaf.physical is Physical.INT96
        return Source(column.name, column.first, leaf.arrow, int96, integers, _is_converted(leaf.arrow, field.type))

    def _check_packing(self, column: FileColumn) -> None:
        """Raise ``ScanError`` if PyArrow does not decode a column's packing.

        DuckDB packs the differences of 32-bit numbers in up to 33 bits; PyArrow takes 32, as other writers let them
        overflow to. Whether a column has such a difference only its pages tell.
        """
        parquet = self._parquet
        if not parquet.writer.startswith(b"DuckDB") or not parquet.groups:
            return
        for leaf in range(column.first, column.first + column.leaves):
            is_packed = _DELTA_BINARY_PACKED in parquet.chunk(0, leaf).encodings
            if is_packed and parquet.leaves[leaf].physical is Physical.INT32:
                raise ScanError(
                    f"{parquet.path}: column {column.name!r} is packed by DuckDB as differences (DELTA_BINARY_PACKED) "
                    "of up to 33 bits, which are not read here"
                )


def _is_converted(file_type: pa.DataType, dtype: pa.DataType) -> bool:
    unsigned = pat.is_unsigned_integer(file_type) or pat.is_fixed_size_binary(file_type)
    return unsigned or (pat.is_float32(file_type) and pat.is_float64(dtype))


def _readable(file_type: pa.DataType, dtype: pa.DataType) -> bool:
    if pat.is_decimal(dtype):
        if pat.is_uint64(file_type):
            return dtype == pa.decimal128(20, 0)
        return bool(
            pat.is_decimal128(file_type) and file_type.scale == dtype.scale and file_type.precision <= dtype.precision
        )
    if pat.is_timestamp(dtype):
        if not pat.is_timestamp(file_type):
            return False
        return file_type.unit in ("ms", "us") and (file_type.tz is None) == (dtype.tz is None)
    if is_text(dtype):
        return is_text(file_type)
    if is_bytes(dtype):
        return is_bytes(file_type)
    if is_whole(dtype):
        narrower = pat.is_unsigned_integer(file_type) and file_type.bit_width < dtype.bit_width
        return bool(narrower or (is_whole(file_type) and file_type.bit_width <= dtype.bit_width))
    if pat.is_float64(dtype) and pat.is_float32(file_type):
        return True
    return bool(file_type == dtype)


def _readable_nested(
    file_type: pa.DataType, dtype: pa.DataType, stored_field: StoredField, finder: FieldFinder
) -> bool:
    """Whether nested values are read as in Spark: they have the same types, and a field at least of each struct."""
    if not pat.is_nested(dtype):
        return bool(logical(file_type) == logical(dtype))
    if file_type.id != dtype.id:
        return False
    parts = fields_of(file_type)
    places = finder.places_in(file_type, dtype, stored_field) if pat.is_struct(dtype) else range(len(parts))
    return places is not None and all(
        place is None or _readable_nested(parts[place].type, field.type, inner, finder)
        for place, field, inner in zip(places, fields_of(dtype), within(stored_field, dtype), strict=True)
    )


# -- numbers beyond a column's type ------------------------------------------------------------------------------


def are_of_type(parquet: ParquetFooter, sources: Iterable[Source], groups: Iterable[int]) -> bool:
    """Whether the numbers of columns are within their types, by the statistics of row groups.

    A file may annotate 32-bit integers as UINT_8 and store 300, or unscaled decimals with more digits than it says.
    """
    leaves = [leaf for source in sources for leaf in source.leaves if limits(parquet.leaves[leaf].arrow) is not None]
    return all(_is_within_limits(parquet, group, leaf) for group in groups for leaf in leaves)


def beyond_type(path: str, source: Source) -> str:
    """Reason why a column is not read here of which some numbers are beyond the limits of its type."""
    return (
        f"{path}: column {source.name!r} stores numbers that its type in the file, {show_type(source.arrow)}, has not"
    )


def _has_values_beyond(parquet: ParquetFooter, source: Source) -> bool:
    """Whether a column has integers beyond the limits of its type, by statistics.

    Decimals beyond them cannot be taken from Spark either, as Arrow holds none: the task that reads them fails, and
    Spark runs the query.
    """
    leaves = [leaf for leaf in source.leaves if parquet.leaves[leaf].is_narrow]
    return any(
        stored_bounds(parquet.leaves[leaf], parquet.chunk(group, leaf).statistics) is not None
        and not _is_within_limits(parquet, group, leaf)
        for group in range(len(parquet.groups))
        for leaf in leaves
    )


def _is_within_limits(parquet: ParquetFooter, group: int, leaf: int) -> bool:
    about, chunk = parquet.leaves[leaf], parquet.chunk(group, leaf)
    if chunk.statistics.get(NULLS) == chunk.values:
        return True
    allowed, bounds = limits(about.arrow), stored_bounds(about, chunk.statistics)
    return allowed is None or (bounds is not None and all(bound in allowed for bound in bounds))


# -- statistics --------------------------------------------------------------------------------------------------


def group_may_match(scan: Scan, part: FileSlice, sources: Sequence[Source], parquet: ParquetFooter, group: int) -> bool:
    """Whether rows of a group may pass the scan's filters, by the statistics."""
    return rows_may_match(scan, part, lambda column: statistics_of(sources[column], parquet, group))


def rows_may_match(scan: Scan, part: FileSlice, statistics_of_column: Lookup) -> bool:
    """Whether rows of a slice may pass the scan's filters, by the statistics of the columns of its file."""
    first = len(scan.file_columns)

    def statistics(index: int) -> Statistics | None:
        if index >= first:
            return _of_constant(part.constants[index - first])
        return statistics_of_column(index) if scan.by_statistics else None

    return all(may_match(condition, statistics) for condition in scan.filters) and all(
        may_hold(statistics(column), ranges) for column, ranges in scan.match_ranges
    )


def matching_slices(scan: Scan, metrics: PipelineMetrics) -> Iterator[FileSlice]:
    """Slices of a scan whose constants are wanted; the others are not opened."""
    first = len(scan.file_columns)
    ranges_of_constants = [(column - first, ranges) for column, ranges in scan.match_ranges if column >= first]
    for part in scan.slices or ():
        constants = [(part.constants[place], ranges) for place, ranges in ranges_of_constants]
        if all(may_hold(_of_constant(value), ranges) for value, ranges in constants):
            metrics.files += 1
            yield part
        else:
            metrics.skipped_files += 1


def _of_constant(value: Constant) -> Statistics:
    return Statistics(value, value, nulls=int(value is None), rows=1)


def statistics_of(source: Source, parquet: ParquetFooter, group: int) -> Statistics | None:
    """Statistics of a column in a row group, if there are any."""
    rows = parquet.groups[group].rows
    if source.name is None:
        return Statistics(None, None, nulls=rows, rows=rows)
    if source.arrow is not None and pat.is_nested(source.arrow):
        return None
    place = group, source.leaf
    if place not in parquet.statistics:
        parquet.statistics[place] = decoded(parquet.leaves[source.leaf], parquet.chunk(*place).statistics, rows)
    return parquet.statistics[place]
