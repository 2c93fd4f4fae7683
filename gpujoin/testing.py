"""Equality of tables as multisets of rows, for anyone's own tests of joins.

Examples
--------
>>> import pyarrow as pa
>>> from gpujoin import join_tables
>>> from gpujoin.testing import assert_same_rows
>>> orders = pa.table({"customer": [1, 2, None, 3], "price": [5, 7, 8, 9]})
>>> customers = pa.table({"customer": [1, 3, 4]})
>>> semi, anti = (
...     join_tables(orders, customers, on="customer", how=how, backend="cpu") for how in ("left_semi", "left_anti")
... )
>>> assert_same_rows(pa.concat_tables([semi, anti]), orders)
"""

from __future__ import annotations

import bisect
import itertools
import math
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

__all__ = ["Cell", "Zeros", "assert_same_rows", "cells", "row_counts"]

Cell = Any
"""``None``, bool, int, float, Decimal, str, bytes, or a tuple of cells.

Bytes of a text that are not valid UTF-8 are lone surrogates: ``b"a\\xff"`` is ``"a\\udcff"``, as Python's error handler
``surrogateescape`` has it. Different bytes are different cells.
"""


class Zeros(Enum):
    """Whether -0.0 and 0.0 are the same value."""

    SAME = "same"
    DISTINCT = "distinct"


def assert_same_rows(
    actual: pa.Table,
    expected: pa.Table,
    *,
    zeros: Zeros = Zeros.DISTINCT,
    allow_empty: bool = False,
    check_types: bool = True,
    check_nullability: bool = False,
    context: str = "",
) -> None:
    """Check that two tables hold the same rows, each as often, in any order.

    All columns take part, by position. NaN equals NaN whatever its bits, null equals only null, and a null list,
    struct or map differs from an empty one and from one of nulls.

    Parameters
    ----------
    actual, expected : pyarrow.Table
        Any types. Without columns the row counts are compared.
    zeros : Zeros
        Whether -0.0 and 0.0 are told apart, at any depth.
    allow_empty : bool
        Two empty tables fail unless this is set: a test that compares nothing shows nothing.
    check_types : bool
        Whether column types must be identical; else values are compared as they are, so that for example an int32
        column may equal an int64 one, and a dictionary-encoded column its values.
    check_nullability : bool
        Whether the fields' ``nullable`` must agree too.
    context : str
        Told at the head of a failure: the seed, the case.

    Raises
    ------
    AssertionError
        With row counts and the first rows that one table has more often than the other.
    """
    head = f"{context}\n" if context else ""
    _same_schema(actual.schema, expected.schema, head, check_types, check_nullability)
    if actual.num_rows == 0 and expected.num_rows == 0:
        if not allow_empty:
            raise AssertionError(f"{head}both tables are empty: pass allow_empty=True if that is meant")
        return
    if not expected.schema.names:
        if actual.num_rows != expected.num_rows:
            raise AssertionError(f"{head}{actual.num_rows} rows of no columns, expected {expected.num_rows}")
        return
    floats = _Floats(zeros)
    actual_counts, expected_counts = _counts(actual, floats), _counts(expected, floats)
    if actual_counts == expected_counts:
        return
    lines = [
        f"{head}the tables hold different rows: {actual.num_rows} actual, {expected.num_rows} expected",
        f"columns: {', '.join(f'{f.name} {f.type}' for f in expected.schema)}",
        *_difference("missing", expected_counts - actual_counts),
        *_difference("unexpected", actual_counts - expected_counts),
    ]
    raise AssertionError("\n".join(lines))


def row_counts(table: pa.Table, *, zeros: Zeros = Zeros.DISTINCT) -> Counter[tuple[Cell, ...]]:
    """How often each row occurs, as a counter of tuples of hashable values.

    Parameters
    ----------
    table : pyarrow.Table
        With at least one column.
    zeros : Zeros
        Whether -0.0 and 0.0 are told apart.
    """
    return _counts(table, _Floats(zeros))


def _counts(table: pa.Table, floats: _Floats) -> Counter[tuple[Cell, ...]]:
    return Counter(zip(*(_hashable_cells(column, floats) for column in table.columns), strict=True))


def _hashable_cells(column: pa.ChunkedArray[Any], floats: _Floats) -> list[Cell]:
    if _is_exact(column.type):
        return cells(column)
    if pat.is_floating(column.type):
        return floats.of(cells(column))
    return [_hashable(cell, floats) for cell in cells(column)]


def _is_exact(dtype: pa.DataType) -> bool:
    """Whether Python's equality is that of a type's cells: it has no float at any depth."""
    if isinstance(dtype, pa.BaseExtensionType):
        return _is_exact(dtype.storage_type)
    if pat.is_dictionary(dtype) or pat.is_run_end_encoded(dtype):
        return _is_exact(dtype.value_type)
    return not pat.is_floating(dtype) and all(_is_exact(dtype.field(i).type) for i in range(dtype.num_fields))


class _Float(float):
    """A float that is equal by bits, or with NaNs or zeros alike, and prints as itself."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and float_bits(self) == float_bits(other)

    __hash__ = float.__hash__


class _Nan:
    def __repr__(self) -> str:
        return "nan"


_NAN = _Nan()


class _Floats(dict[float, Cell]):
    """Hashable values of floats; equal floats give the same object, which Python finds equal without a call."""

    def __init__(self, zeros: Zeros) -> None:
        super().__init__()
        self._distinct = zeros is Zeros.DISTINCT
        self._zero: Cell = _Float(0.0) if self._distinct else 0.0
        self._negative_zero: Cell = _Float(-0.0) if self._distinct else 0.0

    def of(self, column: list[Cell]) -> list[Cell]:
        """Map floats, and nulls to themselves."""
        return [self[cell] if cell else self._without_value(cell) for cell in column]

    def __missing__(self, value: float) -> Cell:
        if value != value:
            return _NAN
        self[value] = hashable = _Float(value) if self._distinct else value
        return hashable

    def _without_value(self, cell: float | None) -> Cell:
        """Map what is false: null and the two zeros, which are one key of a dict."""
        if cell is None:
            return None
        return self._zero if math.copysign(1.0, cell) > 0 else self._negative_zero


def _hashable(cell: Cell, floats: _Floats) -> Cell:
    if isinstance(cell, tuple):
        return tuple([_hashable(item, floats) for item in cell])
    return floats.of([cell])[0] if isinstance(cell, float) else cell


def _same_schema(actual: pa.Schema, expected: pa.Schema, head: str, check_types: bool, check_nullability: bool) -> None:
    if actual.names != expected.names:
        raise AssertionError(f"{head}columns {actual.names}, expected {expected.names}")
    for got, field in zip(actual, expected, strict=True):
        if check_types and not got.type.equals(field.type):
            raise AssertionError(f"{head}column {got.name!r} has type {got.type}, expected {field.type}")
        if check_nullability and got.nullable is not field.nullable:
            raise AssertionError(f"{head}column {got.name!r} has nullable={got.nullable}, expected {field.nullable}")


def _difference(what: str, rows: Counter[Any], most: int = 8) -> list[str]:
    total = rows.total()
    examples = sorted(rows.items(), key=lambda item: repr(item[0]))[:most]
    lines = [f"{what}: {total} row{'' if total == 1 else 's'}"] if total else []
    lines += [f"  {count} × {_short(row)}" for row, count in examples]
    if len(rows) > most:
        lines.append(f"  … and {len(rows) - most} other rows")
    return lines


def _short(row: tuple[Cell, ...]) -> str:
    text = repr(row)
    return text if len(text) <= 400 else f"{text[:300]} … {text[-80:]}"


# -- rows as Python values ---------------------------------------------------------------------------------


def cells(values: pa.Array[Any] | pa.ChunkedArray[Any]) -> list[Cell]:
    """Convert a column to plain, hashable Python values, one a row.

    Dates become days, times, timestamps and durations become integers in the unit of their type, month-day-nano
    intervals triples, lists and structs tuples of cells, maps tuples of ``(key, value)`` pairs in stored order.
    Dictionary-encoded, run-end encoded and extension columns count as their values.
    """
    if isinstance(values, pa.ChunkedArray):
        return [cell for chunk in values.chunks for cell in cells(chunk)]
    return _reader(values.type)(values)


def float_bits(value: float) -> int:
    """Give the 64 bits of a double: what tells NaNs and zeros apart."""
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits


def _reader(dtype: pa.DataType) -> Callable[[Any], list[Cell]]:
    for test, reader in _READERS:
        if test(dtype):
            return reader
    raise NotImplementedError(f"no plain Python values for columns of type {dtype}")


def _plain(values: Any) -> list[Cell]:
    listed: list[Cell] = values.to_pylist()
    return listed


def _text(values: Any) -> list[Cell]:
    """Text; bytes that are no UTF-8 as the surrogates by which Python escapes them."""
    try:
        return _plain(values)
    except UnicodeDecodeError:
        binary = values.cast(pa.large_binary()).to_pylist()
        return [None if v is None else v.decode(errors="surrogateescape") for v in binary]


def _storage(values: Any) -> list[Cell]:
    return cells(values.storage)


def _decoded(values: Any) -> list[Cell]:
    return cells(values.dictionary_decode())


def _run_ends(values: Any) -> list[Cell]:
    runs, ends = cells(values.values), values.run_ends.to_pylist()
    rows = range(values.offset, values.offset + len(values))
    return [runs[bisect.bisect_right(ends, row)] for row in rows]


def _whole_32(values: Any) -> list[Cell]:
    return _plain(values.view(pa.int32()))


def _whole_64(values: Any) -> list[Cell]:
    return _plain(values.view(pa.int64()))


def _interval(values: Any) -> list[Cell]:
    return [None if v is None else (v.months, v.days, v.nanoseconds) for v in values.to_pylist()]


def _struct(values: Any) -> list[Cell]:
    fields = [cells(values.field(i)) for i in range(values.type.num_fields)]
    rows = zip(*fields, strict=True) if fields else itertools.repeat((), len(values))
    return [row if ok else None for ok, row in zip(values.is_valid().to_pylist(), rows, strict=True)]


def _list(values: Any) -> list[Cell]:
    spans = _spans(values)
    items = _between(values.values, spans)
    return [None if span is None else tuple(items(*span)) for span in spans]


def _map(values: Any) -> list[Cell]:
    spans = _spans(values)
    pairs = values.values
    keys, mapped = _between(pairs.field(0), spans), _between(pairs.field(1), spans)
    return [None if s is None else tuple(zip(keys(*s), mapped(*s), strict=True)) for s in spans]


def _spans(values: Any) -> list[tuple[int, int] | None]:
    """Give where each row's items begin and end among all items; ``None`` for a null row."""
    if pat.is_fixed_size_list(values.type):
        size = values.type.list_size
        starts: list[int] = [size * row for row in range(values.offset, values.offset + len(values))]
        ends = [start + size for start in starts]
    elif pat.is_list_view(values.type) or pat.is_large_list_view(values.type):
        starts = values.offsets.to_pylist()
        ends = [start + size for start, size in zip(starts, values.sizes.to_pylist(), strict=True)]
    else:
        offsets = values.offsets.to_pylist()
        starts, ends = offsets[:-1], offsets[1:]
    valid = values.is_valid().to_pylist()
    return [(start, end) if ok else None for ok, start, end in zip(valid, starts, ends, strict=True)]


def _between(items: Any, spans: Sequence[tuple[int, int] | None]) -> Callable[[int, int], list[Cell]]:
    """Give the function from a span to its cells; all that spans need are converted at once."""
    ranges = [span for span in spans if span is not None]
    first = min((start for start, _ in ranges), default=0)
    converted = cells(items.slice(first, max((end for _, end in ranges), default=0) - first))
    return lambda start, end: converted[start - first : end - first]


_Test = Callable[[pa.DataType], bool]


def _any(*tests: _Test) -> _Test:
    return lambda dtype: any(test(dtype) for test in tests)


_READERS: Sequence[tuple[_Test, Callable[[Any], list[Cell]]]] = (
    (lambda dtype: isinstance(dtype, pa.BaseExtensionType), _storage),
    (pat.is_dictionary, _decoded),
    (pat.is_run_end_encoded, _run_ends),
    (_any(pat.is_null, pat.is_boolean, pat.is_integer, pat.is_floating), _plain),
    (_any(pat.is_string, pat.is_large_string, pat.is_string_view), _text),
    (_any(pat.is_binary, pat.is_large_binary, pat.is_binary_view, pat.is_fixed_size_binary), _plain),
    (pat.is_decimal, _plain),
    (_any(pat.is_date32, pat.is_time32), _whole_32),
    (_any(pat.is_date64, pat.is_time64, pat.is_timestamp, pat.is_duration), _whole_64),
    (pat.is_interval, _interval),
    (pat.is_struct, _struct),
    (pat.is_map, _map),
    (
        _any(
            pat.is_list,
            pat.is_large_list,
            pat.is_fixed_size_list,
            pat.is_list_view,
            pat.is_large_list_view,
        ),
        _list,
    ),
)
