"""Late columns: those of types that Polars does not hold, such as arrays, maps and calendar intervals.

Their values stay in Arrow arrays, and a piece has numbers in their place: a gather map and the rows that it points to.
Polars filters, joins and sorts the numbers. Values are gathered where an expression reads them, and once more when rows
leave the pipeline. A number has that of an array in its upper half, and that of a row in its lower one::

    k  tags                         array 7   row 0  [a]
    2  7, 1                                   row 1  []
    9  7, 2   a join repeats rows             row 2  [b, c]
    9  7, 2
    4  null   and pads others

Expressions that pass values on, as ``CASE WHEN k > 3 THEN tags END``, are computed over numbers too.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from gpujoin.backends.cpu.pipeline.columns import column_of, series_of
from gpujoin.backends.cpu.pipeline.offers import is_late, passes_on
from gpujoin.functions.lowered import INT64, Column, LazyBounds, polars_type
from gpujoin.model.expressions import Case, ColumnRef, Expression
from gpujoin.model.hostgather import most_values, row_bytes, take
from gpujoin.model.layouts import in_type, nulls
from gpujoin.model.types import logical

NUMBER = pa.int64()
"""Type of the numbers that a piece has in place of values."""
_ROW_BITS = 32
MOST_TOGETHER = 1 << 30
"""Most bytes, and items of lists, of one array of concatenated values; offsets reach to twice as many."""
_LEAST_TOGETHER = 8 << 20
"""Arrays of one piece are concatenated up to so many bytes: a piece of 64 MiB then has some eight of them."""
_SPARSE = 4
"""A column with so many times more values in memory than rows is gathered, so that memory follows its rows."""
_numbers = itertools.count()


def held_type(dtype: pa.DataType) -> pl.DataType | type[pl.DataType]:
    """Type of a column in a frame: that of its values, or of numbers for a late column."""
    return pl.Int64() if is_late(dtype) else polars_type(dtype)


@dataclass(frozen=True)
class _Values:
    """An array of a late column."""

    array: pa.Array

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64] | None:
        """Bytes of variable width in each row; ``None`` if there are none."""
        return row_bytes(self.array)

    @cached_property
    def largest(self) -> int:
        """The most bytes of variable width that a row has."""
        return 0 if self.sizes is None else int(self.sizes.max(initial=0))


@dataclass(frozen=True)
class LateColumn(Column):
    """A column of a piece whose values are in arrays."""

    arrays: Mapping[int, _Values] = field(default_factory=dict, compare=False, repr=False)
    """The arrays that its numbers name."""

    @property
    def stored_rows(self) -> int:
        """Rows of its arrays."""
        return sum(len(values.array) for values in self.arrays.values())

    def nbytes(self, rows: int) -> int:
        """Bytes of the values of some rows, by their mean."""
        total = sum(values.array.nbytes for values in self.arrays.values())
        return int(total * rows / max(1, self.stored_rows))

    def fits(self, numbers: pl.Series, most: int) -> bool:
        """Whether the values of rows have at most so many bytes of variable width."""
        words = _words(numbers)
        is_each_once = bool((words[1:] > words[:-1]).all())
        if is_each_once and sum(values.array.nbytes for values in self.arrays.values()) <= most:
            return True
        if len(words) * max((values.largest for values in self.arrays.values()), default=0) <= most:
            return True
        sizes = [(self.arrays[number].sizes, rows) for number, _, rows in self._by_array(words) if number is not None]
        return sum(int(of_array[rows].sum()) for of_array, rows in sizes if of_array is not None) <= most

    def gather(self, numbers: pl.Series, dtype: pa.DataType | None = None) -> pa.Array:
        """Gather the values of rows, in the column's type or another layout of it."""
        dtype = self.dtype if dtype is None else dtype
        parts: list[pa.Array] = []
        places: list[npt.NDArray[np.int64]] = []
        for number, at, rows in self._by_array(_words(numbers)):
            part = nulls(len(rows), dtype) if number is None else _rows_of(self.arrays[number].array, rows)
            parts.append(in_type(part, dtype))
            places.append(at)
        if len(parts) < 2:
            return parts[0] if parts else nulls(0, dtype)
        order = np.concatenate(places)
        values = pa.concat_arrays(parts)
        if bool((order[1:] > order[:-1]).all()):
            return values
        inverse = np.empty(len(order), np.int64)
        inverse[order] = np.arange(len(order))
        return in_type(take(values, pa.array(inverse)), dtype)

    def distinct(
        self, numbers: pl.Series, dtype: pa.DataType, *, copy: bool
    ) -> tuple[list[pa.Array], npt.NDArray[np.int64] | None]:
        """Distinct values of rows, and each row's place among them: ``None`` if they are those of the rows in order.

        Without ``copy``, rows that follow one another are slices, so that their whole array stays in memory.
        """
        words = _words(numbers)
        parts: list[pa.Array] = []
        places, count = np.empty(len(words), np.int64), 0
        for number, at, rows in self._by_array(words):
            if number is None:
                part, among = nulls(1, dtype), np.zeros(len(rows), np.int64)
            else:
                array = self.arrays[number].array
                distinct_rows, among = _each_once(rows, len(array))
                part = take(array, pa.array(distinct_rows)) if copy else _rows_of(array, distinct_rows)
            parts.append(in_type(part, dtype))
            places[at] = count + among
            count += len(part)
        return parts, None if np.array_equal(places, np.arange(count)) else places

    def _by_array(
        self, words: npt.NDArray[np.int64]
    ) -> Iterator[tuple[int | None, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Divide numbers by array (``None`` for nulls): its number, the places of the numbers, and their rows in it.

        Raises ``AssertionError`` if the column has no such array.
        """
        if not len(words):
            return
        first, last = int(words.min()) >> _ROW_BITS, int(words.max()) >> _ROW_BITS
        if first == last and (first == _NULL or first in self.arrays):
            yield first if first >= 0 else None, np.arange(len(words)), words - (first << _ROW_BITS)
            return
        owners, missing = words >> _ROW_BITS, len(words)
        for owner in (_NULL, *self.arrays):
            at = np.flatnonzero(owners == owner) if first <= owner <= last else owners[:0]
            if len(at):
                missing -= len(at)
                yield owner if owner >= 0 else None, at, words[at] - (owner << _ROW_BITS)
        if missing:
            raise AssertionError(f"{missing} rows of a late column have numbers of an array that it does not have")


def _rows_of(array: pa.Array, rows: npt.NDArray[np.int64]) -> pa.Array:
    """Values of rows of an array: a slice of it, which is no copy, if the rows follow one another."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first == len(rows) - 1 and last < len(array) and bool((rows[1:] > rows[:-1]).all()):
        return array.slice(first, len(rows))
    return take(array, pa.array(rows))


def _each_once(rows: npt.NDArray[np.int64], most: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The distinct ones of numbers below ``most``, ascending, and the place of each number among them."""
    if bool((rows[1:] > rows[:-1]).all()):
        return rows, np.arange(len(rows))
    is_there = np.zeros(most, np.bool_)
    is_there[rows] = True
    return np.flatnonzero(is_there), (np.cumsum(is_there) - 1)[rows]


_NULL = -1
"""Stands for the array of null."""


def _words(numbers: pl.Series) -> npt.NDArray[np.int64]:
    return (numbers.fill_null(_NULL) if numbers.null_count() else numbers).to_numpy()


def from_arrow(
    name: str, values: pa.Array | pa.ChunkedArray, dtype: pa.DataType, *, checked: bool = False
) -> tuple[pl.Series, Column]:
    """Make a column of a piece of Arrow data in any layout; ``checked`` is that of :func:`series_of`."""
    if is_late(dtype):
        return late_from_arrow(name, values, dtype)
    series, wide = series_of(values, dtype, checked=checked)
    series = series.alias(name)
    return series, column_of(name, series, dtype, wide=wide)


def late_from_arrow(
    name: str,
    values: pa.Array | pa.ChunkedArray,
    dtype: pa.DataType,
    together: int = _LEAST_TOGETHER,
    places: npt.NDArray[np.int64] | None = None,
) -> tuple[pl.Series, LateColumn]:
    """Make a late column of Arrow data in any layout; arrays of fewer bytes than ``together`` are concatenated.

    With ``places``, rows have the values that are there.
    """
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    arrays: dict[int, _Values] = {}
    numbers: list[npt.NDArray[np.int64]] = []
    for array in _concatenated([in_type(chunk, dtype) for chunk in chunks], together):
        number = next(_numbers)
        arrays[number] = _Values(array)
        first = number << _ROW_BITS
        numbers.append(np.arange(first, first + len(array)))
    words = numbers[0] if len(numbers) == 1 else np.concatenate([*numbers, np.zeros(0, np.int64)])
    return pl.Series(name, words if places is None else words[places]), late_column(name, dtype, arrays)


def late_column(name: str, dtype: pa.DataType, arrays: Mapping[int, Any] | None = None) -> LateColumn:
    """Describe a late column; without arrays it has nothing but nulls."""
    return LateColumn(name, logical(dtype), LazyBounds(NUMBER, lambda: INT64), arrays=arrays or {})


def _concatenated(arrays: Sequence[pa.Array], together: int) -> Iterator[pa.Array]:
    """Concatenate neighbouring arrays, up to so many bytes and items.

    Items may take less than a byte each, but the offsets of lists count them.
    """
    waiting: list[pa.Array] = []
    size = 0
    for array in arrays:
        own = max(array.nbytes, most_values(array))
        if waiting and size + own > together:
            yield waiting[0] if len(waiting) == 1 else pa.concat_arrays(waiting)
            waiting, size = [], 0
        waiting.append(array)
        size += own
    if waiting:
        yield waiting[0] if len(waiting) == 1 else pa.concat_arrays(waiting)


def compacted(column: LateColumn, numbers: pl.Series) -> tuple[pl.Series, LateColumn] | None:
    """Copy the values of a late column, if many more are in memory than its rows need; else ``None``.

    A value that several rows have is copied once, so that there are never more of them than before.
    """
    if column.stored_rows <= _SPARSE * len(numbers):
        return None
    parts, places = column.distinct(numbers, column.dtype, copy=True)
    return late_from_arrow(column.name, pa.chunked_array(parts, column.dtype), column.dtype, places=places)


def portions(frame: pl.DataFrame, late: Mapping[str, LateColumn], most: int) -> Iterator[pl.DataFrame]:
    """Halve rows until the values of each late column have at most so many bytes."""
    if frame.height < 2 or all(column.fits(frame[name], most) for name, column in late.items()):
        yield frame
        return
    half = frame.height // 2
    yield from portions(frame.slice(0, half), late, most)
    yield from portions(frame.slice(half), late, most)


# -- expressions -------------------------------------------------------------------------------------------------


def over_numbers(node: Expression, width: int) -> Expression:
    """Rewrite an expression over ``width`` columns to pass on numbers, those of late column ``i`` as ``width + i``."""
    if not passes_on(node):
        return node
    if isinstance(node, Case):
        values = tuple(over_numbers(value, width) for value in node.values)
        return dataclasses.replace(node, values=values, otherwise=over_numbers(node.otherwise, width), type=NUMBER)
    if isinstance(node, ColumnRef):
        return dataclasses.replace(node, index=width + node.index, type=NUMBER)
    return dataclasses.replace(node, type=NUMBER)


def reads_late(node: Expression) -> bool:
    """Whether an expression reads the values of a late column."""
    return any(ref.type is not None and is_late(ref.type) for ref in node.columns())
