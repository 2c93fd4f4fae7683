"""Whether two results hold the same rows, as multisets, over all rows and columns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpujoin.cli.demo.data import TABLES

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of comparing two relations.

    Attributes
    ----------
    rows, other_rows : int
        Rows of either side.
    differences : tuple of str
        What differs, a few rows at most; empty when the two are equal.
    """

    rows: int
    other_rows: int
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether both sides hold the same rows equally often, and at least one row."""
        return not self.differences


def parquet(path: Path) -> str:
    """A DuckDB relation over the Parquet files that Spark wrote.

    Parameters
    ----------
    path : pathlib.Path
        Folder of ``*.parquet`` files.

    Returns
    -------
    str
        For use after ``FROM``.
    """
    return f"read_parquet('{quoted(path / '*.parquet')}')"


def quoted(path: Path) -> str:
    """A path as it stands between the quotes of a string in SQL."""
    return str(path).replace("'", "''")


def create_views(connection: duckdb.DuckDBPyConnection, data: Path) -> None:
    """Make each table of a folder of ``<table>.parquet`` known to DuckDB as a view of that name."""
    for name in TABLES:
        connection.execute(f"CREATE VIEW {name} AS FROM read_parquet('{quoted(data / f'{name}.parquet')}')")


def compare(connection: duckdb.DuckDBPyConnection, ours: str, other: str, *, shown: int = 3) -> Comparison:
    """Compare two relations by counting each distinct row, over all columns, nulls equal to nulls.

    An empty result counts as a difference: two results with no rows prove nothing.

    Parameters
    ----------
    connection : duckdb.DuckDBPyConnection
        Where the relations are known.
    ours, other : str
        What stands after ``FROM``. Columns are matched by position.
    shown : int
        How many differing rows to show.

    Returns
    -------
    Comparison
        Counts and differences.
    """
    rows, other_rows = (_count(connection, relation) for relation in (ours, other))
    columns, other_columns = (_columns(connection, relation) for relation in (ours, other))
    if len(columns) != len(other_columns):
        return Comparison(rows, other_rows, (f"{len(columns)} columns instead of {len(other_columns)}",))
    if rows == 0 or other_rows == 0:
        return Comparison(
            rows, other_rows, (f"{rows} rows against {other_rows}: an empty result proves nothing",)
        )
    names = ", ".join(f"c{i}" for i in range(len(columns)))
    surplus = connection.execute(
        f"SELECT sum(w), {names} FROM ("  # noqa: S608  # the relations are this program's own
        f"SELECT {names}, 1 AS w FROM (SELECT * FROM {ours}) AS a({names}) UNION ALL "
        f"SELECT {names}, -1 AS w FROM (SELECT * FROM {other}) AS b({names})"
        f") GROUP BY {names} HAVING sum(w) <> 0 LIMIT {shown}"
    ).fetchall()
    return Comparison(rows, other_rows, tuple(_describe(*row) for row in surplus))


def _describe(surplus: int, *row: object) -> str:
    return f"{abs(surplus)} times too {'often' if surplus > 0 else 'rarely'}: {row}"


def _count(connection: duckdb.DuckDBPyConnection, relation: str) -> int:
    (count,) = connection.execute(f"SELECT count(*) FROM {relation}").fetchall()[0]  # noqa: S608
    return int(count)


def _columns(connection: duckdb.DuckDBPyConnection, relation: str) -> list[str]:
    connection.execute(f"SELECT * FROM {relation} LIMIT 0")  # noqa: S608
    return [column[0] for column in connection.description or ()]
