"""Whether two answers hold the same rows, as multisets, over all rows and columns."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.data import TABLES

if TYPE_CHECKING:
    import duckdb

Row = Sequence[Any]

TOLERANCE = 1e-6
"""Averages of decimals: Spark rounds them to six digits after the point, DuckDB makes doubles of them."""


def quoted(path: Path) -> str:
    """A path as it stands between the quotes of a string in SQL."""
    return str(path).replace("'", "''")


def create_views(connection: duckdb.DuckDBPyConnection, data: Path, tables: Sequence[str] = TABLES) -> None:
    """Make each table of a folder of ``<table>.parquet`` known to DuckDB as a view of that name."""
    for name in tables:
        connection.execute(f"CREATE VIEW {name} AS FROM read_parquet('{quoted(data / f'{name}.parquet')}')")


def difference(actual: Sequence[Row], expected: Sequence[Row], tolerance: float) -> str | None:
    """What differs between two results as multisets of rows, or ``None``.

    Numbers are compared by value where either side holds a double or text, within a tolerance that is absolute below
    one and relative above; all else exactly. Text that is expected is read as a value of the type that is there.
    """
    if len(actual) != len(expected):
        return f"{len(actual)} rows instead of {len(expected)}"
    if not actual:
        return None
    if len(actual[0]) != len(expected[0]):
        return f"{len(actual[0])} columns instead of {len(expected[0])}"
    loose = [
        any(
            isinstance(value, float) or (isinstance(value, str) and isinstance(cell, (Decimal, float)))
            for cell, value in zip((row[i] for row in actual), (row[i] for row in expected), strict=True)
        )
        or any(isinstance(row[i], float) for row in actual)
        for i in range(len(actual[0]))
    ]
    left, right = _in_order(actual, loose), _in_order([_like(row, actual[0]) for row in expected], loose)
    for left_row, right_row in zip(left, right, strict=True):
        for a, b, about in zip(left_row, right_row, loose, strict=True):
            if not (_close(a, b, tolerance) if about else a == b):
                return f"{tuple(left_row)} instead of {tuple(right_row)}"
    return None


def _like(row: Row, pattern: Row) -> list[Any]:
    return [_read(value, like) if isinstance(value, str) else value for value, like in zip(row, pattern, strict=True)]


def _read(text: str, like: Any) -> Any:
    if isinstance(like, bool) or like is None or isinstance(like, str):
        return text
    if isinstance(like, dt.date):
        return dt.date.fromisoformat(text)
    return type(like)(text)


def _in_order(rows: Sequence[Row], loose: Sequence[bool]) -> list[Row]:
    """Rows sorted by their exact columns, then by the others."""

    def key(row: Row) -> tuple[list[tuple[bool, Any]], list[tuple[bool, float]]]:
        cells = list(zip(row, loose, strict=True))
        exact = [(v is not None, "" if v is None else str(v)) for v, about in cells if not about]
        return exact, [(v is not None, 0.0 if v is None else float(v)) for v, about in cells if about]

    return sorted(([_plain(v) for v in row] for row in rows), key=key)


def _plain(value: Any) -> Any:
    """Equal numbers of different scales as one."""
    return value.normalize() if isinstance(value, Decimal) else value


def _close(a: Any, b: Any, tolerance: float) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(float(a), float(b), rel_tol=tolerance, abs_tol=tolerance)
