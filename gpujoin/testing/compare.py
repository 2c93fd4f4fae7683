"""Equality of tables as multisets of rows, which cannot hold by accident."""

from __future__ import annotations

import math
from collections import Counter
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.testing.cells import Cell, cells, float_bits


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
    """Whether cells of a type are equal just if Python says so: there is no float at any depth."""
    if isinstance(dtype, pa.BaseExtensionType):
        return _is_exact(dtype.storage_type)
    if pat.is_dictionary(dtype) or pat.is_run_end_encoded(dtype):
        return _is_exact(dtype.value_type)
    return not pat.is_floating(dtype) and all(_is_exact(dtype.field(i).type) for i in range(dtype.num_fields))


class _Float(float):
    """A float that equals by bits, so that a counter tells NaNs and zeros as wanted, and prints as itself."""

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
    for got, wanted in zip(actual, expected, strict=True):
        if check_types and not got.type.equals(wanted.type):
            raise AssertionError(f"{head}column {got.name!r} has type {got.type}, expected {wanted.type}")
        if check_nullability and got.nullable is not wanted.nullable:
            raise AssertionError(f"{head}column {got.name!r} has nullable={got.nullable}, expected {wanted.nullable}")


def _difference(what: str, rows: Counter[Any], most: int = 8) -> list[str]:
    total = rows.total()
    shown = sorted(rows.items(), key=lambda item: repr(item[0]))[:most]
    lines = [f"{what}: {total} row{'' if total == 1 else 's'}"] if total else []
    lines += [f"  {count} × {_short(row)}" for row, count in shown]
    if len(rows) > most:
        lines.append(f"  … and {len(rows) - most} other rows")
    return lines


def _short(row: tuple[Cell, ...]) -> str:
    text = repr(row)
    return text if len(text) <= 400 else f"{text[:300]} … {text[-80:]}"
