"""The TPC-H queries and their published answers."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpujoin.cli.demo.check import Row, create_views, quoted
from gpujoin.errors import BackendUnavailableError

if TYPE_CHECKING:
    import duckdb

OFFICIAL_SCALE = 1.0
"""The scale for which TPC publishes answers."""

_TEXTS = ("_address", "_comment")
_DECIDED_BY_TEXTS = (13,)

PUBLISHED_TOLERANCE = 0.01
"""Published answers are rounded, some of them to cents."""


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
    extension = importlib.util.find_spec("duckdb_extension_tpch")
    if extension is None or extension.origin is None:
        raise BackendUnavailableError(f"DuckDB's TPC-H extension is not installed: {install}")
    files = sorted(Path(extension.origin).parent.rglob("tpch.duckdb_extension"))
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
    answer = connection.execute(
        "SELECT answer FROM tpch_answers() WHERE query_nr = ? AND scale_factor = ?", [number, scale]
    ).fetchone()
    return None if answer is None else list(csv.reader(io.StringIO(answer[0]), delimiter="|"))[1:]


def without_texts(rows: Sequence[Row], names: Sequence[str]) -> list[list[Any]]:
    """Rows without their columns of random text."""
    kept = [i for i, name in enumerate(names) if not name.endswith(_TEXTS)]
    return [[row[i] for i in kept] for row in rows]
