"""The TPC-H queries and their published answers."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.answers import TOLERANCE, Row, difference
from benchmarks.data import TABLES, tpch_directory
from benchmarks.queries.suite import Suite

if TYPE_CHECKING:
    import duckdb

OFFICIAL_SCALE = 1.0
"""The scale for which TPC publishes answers."""

_TEXTS = ("_address", "_comment")
_DECIDED_BY_TEXTS = (13,)

PUBLISHED_TOLERANCE = 0.01
"""Published answers are rounded, some of them to cents."""


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


def _further(
    connection: duckdb.DuckDBPyConnection, number: int, text: str, scale: float, rows: Sequence[Row]
) -> Mapping[str, str | None]:
    """Compare rows with DuckDB's and the published ones."""
    result = connection.execute(text)
    names = [column[0] for column in result.description or ()]
    compared = {"DuckDB": difference(rows, result.fetchall(), TOLERANCE)}
    answer = published(connection, number, scale)
    if answer is not None:
        compared["the published answer"] = difference(
            without_texts(rows, names), without_texts(answer, names), PUBLISHED_TOLERANCE
        )
    return compared


SUITE = Suite(
    name="tpch", title="TPC-H", tables=TABLES, queries=22, at_scale=tpch_directory, further=_further,
)  # fmt: skip
"""The 22 queries of TPC-H."""
