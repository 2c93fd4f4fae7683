"""The TPC-H queries, their answers, and whether two answers are the same."""

from __future__ import annotations

import csv
import datetime as dt
import importlib.util
import io
import math
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpujoin.cli.demo.check import create_views, quoted
from gpujoin.errors import BackendUnavailableError

if TYPE_CHECKING:
    import duckdb

Row = Sequence[Any]

OFFICIAL_SCALE = 1.0
"""The scale for which TPC publishes answers."""

_TEXTS = ("_address", "_comment")
_DECIDED_BY_TEXTS = (13,)

PUBLISHED_TOLERANCE = 0.01
"""Published answers are rounded, some of them to cents."""

TOLERANCE = 1e-6
"""Averages of decimals: Spark rounds them to six digits after the point, DuckDB makes doubles of them."""


def connect(data: Path) -> duckdb.DuckDBPyConnection:
    """A DuckDB with the TPC-H tables as views, and the TPC-H extension.

    Parameters
    ----------
    data : pathlib.Path
        Folder of ``<table>.parquet``.

    Raises
    ------
    BackendUnavailableError
        DuckDB or its extension is not installed.
    """
    install = 'pip install "gpujoin[bench]"'
    try:
        import duckdb
    except ModuleNotFoundError:
        raise BackendUnavailableError(f"DuckDB is not installed: {install}") from None
    found = importlib.util.find_spec("duckdb_extension_tpch")
    if found is None or found.origin is None:
        raise BackendUnavailableError(f"DuckDB's TPC-H extension is not installed: {install}")
    files = sorted(Path(found.origin).parent.rglob("tpch.duckdb_extension"))
    connection = duckdb.connect()
    connection.execute(f"LOAD '{quoted(files[-1])}'")
    create_views(connection, data)
    return connection


def queries(connection: duckdb.DuckDBPyConnection) -> dict[int, str]:
    """The texts of the 22 queries, by number."""
    rows = connection.execute("SELECT query_nr, query FROM tpch_queries()").fetchall()
    return {number: text.rstrip().rstrip(";") for number, text in rows}


def published(connection: duckdb.DuckDBPyConnection, number: int, scale: float) -> list[list[str]] | None:
    """The published answer of a query as text, or ``None`` where there is none for this data.

    Only scale 1 has official answers. DuckDB holds them as its own generator makes the data, whose random texts are not
    those of ``tpchgen-cli``: query 13, which searches them, has no answer here, and others have to be compared without
    their texts (:func:`without_texts`).
    """
    if scale != OFFICIAL_SCALE or number in _DECIDED_BY_TEXTS:
        return None
    found = connection.execute(
        "SELECT answer FROM tpch_answers() WHERE query_nr = ? AND scale_factor = ?", [number, scale]
    ).fetchone()
    return None if found is None else list(csv.reader(io.StringIO(found[0]), delimiter="|"))[1:]


def without_texts(rows: Sequence[Row], names: Sequence[str]) -> list[list[Any]]:
    """Rows without their columns of random text."""
    kept = [i for i, name in enumerate(names) if not name.endswith(_TEXTS)]
    return [[row[i] for i in kept] for row in rows]


def difference(ours: Sequence[Row], other: Sequence[Row], tolerance: float) -> str | None:
    """What differs between two results as multisets of rows, or ``None``.

    Numbers are compared by value where either side holds a double or text, within a tolerance that is absolute below
    one and relative above; all else exactly. Text on the other side is read as what stands on this side.

    Parameters
    ----------
    ours, other : sequence of rows
        The results.
    tolerance : float
        See above.
    """
    if len(ours) != len(other):
        return f"{len(ours)} rows instead of {len(other)}"
    if not ours:
        return None
    if len(ours[0]) != len(other[0]):
        return f"{len(ours[0])} columns instead of {len(other[0])}"
    loose = [
        any(
            isinstance(value, float) or (isinstance(value, str) and isinstance(mine, (Decimal, float)))
            for mine, value in zip((row[i] for row in ours), (row[i] for row in other), strict=True)
        )
        or any(isinstance(row[i], float) for row in ours)
        for i in range(len(ours[0]))
    ]
    left, right = _in_order(ours, loose), _in_order([_like(row, ours[0]) for row in other], loose)
    for mine, theirs in zip(left, right, strict=True):
        for a, b, about in zip(mine, theirs, loose, strict=True):
            if not (_close(a, b, tolerance) if about else a == b):
                return f"{tuple(mine)} instead of {tuple(theirs)}"
    return None


def _like(row: Row, pattern: Row) -> list[Any]:
    return [
        _read(value, like) if isinstance(value, str) else value
        for value, like in zip(row, pattern, strict=True)
    ]


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
