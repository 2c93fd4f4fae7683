"""Floors of row groups: the least value of a column in all that are read after them, by the statistics of files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any, TypeAlias

from gpujoin.backends.parquet.footers import FileColumns, footer_of, row_groups, statistics_of
from gpujoin.backends.parquet.metadata import ParquetFooter
from gpujoin.errors import ScanError
from gpujoin.model.files import FileSlice, Floor
from gpujoin.model.relations import Scan
from gpujoin.storage.locations import is_local

_MOST_SLICES = 64
"""Slices of a scan whose footers are read before the first row."""
_SAMPLE = 16
"""Row groups by which it is judged whether the files are in the order of a column."""
_MOST_FALLS = 0.25
"""Most row groups of the sample that may begin with a lesser value than the one before, for each with a greater one."""


class NoMinimum(Enum):
    """Why rows have no least value."""

    ONLY_NULLS = "all of them are null"
    NOT_KNOWN = "the file does not say"


@dataclass(frozen=True)
class Minimum:
    """The least value of some rows."""

    value: Any


Least: TypeAlias = Minimum | NoMinimum
RowGroup: TypeAlias = tuple[int, int]
"""A row group of a scan, by the position of its slice and its own number."""


def floors_of(scan: Scan) -> Mapping[FileSlice, Mapping[int, Floor]]:
    """Floors after the row groups of each slice, for the column in whose order the files are.

    That is the first such one among the scan's ``ascending`` columns.

    There are none of files in stores, whose footers would be read twice, of scans with very many slices, or one slice
    twice, and where a file is not as planned, which reading it tells.
    """
    slices = scan.slices or ()
    if not scan.ascending or len(slices) > _MOST_SLICES or len(set(slices)) < len(slices):
        return {}
    if not all(is_local(part.path) for part in slices):
        return {}
    try:
        return _floors_of(scan, slices)
    except ScanError:
        return {}


def _floors_of(scan: Scan, slices: Sequence[FileSlice]) -> Mapping[FileSlice, Mapping[int, Floor]]:
    footers = [footer_of(part.path, part.size) for part in slices]
    groups = [
        (n, group)
        for n, (part, parquet) in enumerate(zip(slices, footers, strict=True))
        for group in row_groups(part, parquet)
    ]
    for column in scan.ascending:
        least = _least_of(scan, column, footers)
        if _are_rising([least(group) for group in groups[:: max(1, len(groups) // _SAMPLE)]]):
            after: list[Least] = [NoMinimum.ONLY_NULLS]
            for group in reversed(groups[1:]):
                after.append(_lesser(least(group), after[-1]))
            floors: defaultdict[FileSlice, dict[int, Floor]] = defaultdict(dict)
            for (place, number), value in zip(groups, reversed(after), strict=True):
                if isinstance(value, Minimum):
                    floors[slices[place]][number] = Floor(column, value.value)
            return floors
    return {}


def _least_of(scan: Scan, column: int, footers: Sequence[ParquetFooter]) -> Callable[[RowGroup], Least]:
    """Make what tells the least value of a column in a row group, by the footers of the slices."""
    slices = scan.slices or ()
    constant = column - len(scan.file_columns)
    if constant >= 0:
        return lambda group: _least(slices[group[0]].constants[constant])
    sources = [FileColumns(parquet, scan).source_of(column) for parquet in footers]

    def least(group: RowGroup) -> Least:
        place, number = group
        about = statistics_of(sources[place], footers[place], number)
        if about is None or (about.low is None and about.nulls != about.rows):
            return NoMinimum.NOT_KNOWN
        return _least(about.low)

    return least


def _least(value: Any) -> Least:
    return NoMinimum.ONLY_NULLS if value is None else Minimum(value)


def _lesser(*parts: Least) -> Least:
    """Give the least value of rows that are in several parts."""
    if NoMinimum.NOT_KNOWN in parts:
        return NoMinimum.NOT_KNOWN
    values = [part.value for part in parts if isinstance(part, Minimum)]
    return Minimum(min(values)) if values else NoMinimum.ONLY_NULLS


def _are_rising(least: Sequence[Least]) -> bool:
    values = [part.value for part in least if isinstance(part, Minimum)]
    rises = sum(before < after for before, after in pairwise(values))
    falls = sum(before > after for before, after in pairwise(values))
    return rises > 0 and falls <= _MOST_FALLS * rises
