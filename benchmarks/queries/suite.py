"""A set of queries over generated tables, such as TPC-H, whose texts DuckDB's extensions hold."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from benchmarks.answers import Row, create_views, quoted
from benchmarks.queries.sources import Source, read_tables
from gpujoin.errors import BackendUnavailableError, pip_install

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import DataFrame, SparkSession


def _no_further_answers(
    connection: duckdb.DuckDBPyConnection, number: int, text: str, scale: float, rows: Sequence[Row]
) -> Mapping[str, str | None]:
    del connection, number, text, scale, rows
    return {}


FurtherAnswers: TypeAlias = (
    "Callable[[duckdb.DuckDBPyConnection, int, str, float, Sequence[Row]], Mapping[str, str | None]]"
)
"""Compares the rows of a query, given by number, text and scale, with answers that are not Spark's.

The result says for each further answer, by its name, what differs from it; ``None``: nothing.
"""


@dataclass(frozen=True)
class Suite:
    """Queries over tables of one scale."""

    name: str
    """In the names of programs, files and DuckDB's extension."""
    title: str
    """In texts."""
    tables: tuple[str, ...]
    """Names of the tables."""
    queries: int
    """How many queries there are; they are numbered from 1."""
    at_scale: Callable[[float], Path]
    """Gives the folder with ``<table>.parquet`` of a scale, written first where it is not there yet."""
    in_spark: Callable[[str], str] = str
    """Writes the text of a query as Spark's SQL has it."""
    further: FurtherAnswers = _no_further_answers
    """Compares with further answers."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the queries."""
        return tuple(range(1, self.queries + 1))

    def connect(self, data: Path) -> duckdb.DuckDBPyConnection:
        """A DuckDB with the suite's extension, and the tables of a folder as views.

        Raises
        ------
        BackendUnavailableError
            DuckDB or the extension is not installed.
        """
        connection = connect(self.name)
        create_views(connection, data, self.tables)
        return connection

    def texts(self, connection: duckdb.DuckDBPyConnection) -> dict[int, str]:
        """The texts of the queries for Spark, by number."""
        rows = connection.execute(f"SELECT query_nr, query FROM {self.name}_queries()").fetchall()
        return {number: self.in_spark(text.rstrip().rstrip(";")) for number, text in rows}

    def register(self, spark: SparkSession, data: Path, source: Source = Source.PARQUET) -> dict[str, DataFrame]:
        """Make the tables of a folder known to a session as views of their names."""
        frames = read_tables(spark, data, self.tables, source)
        for table, frame in frames.items():
            frame.createOrReplaceTempView(table)
        return frames


def connect(extension: str) -> duckdb.DuckDBPyConnection:
    """A DuckDB with an extension from PyPI.

    Raises
    ------
    BackendUnavailableError
        DuckDB or the extension is not installed.
    """
    install = pip_install("bench")
    try:
        import duckdb
    except ModuleNotFoundError:
        raise BackendUnavailableError(f"DuckDB is not installed: {install}") from None
    package = importlib.util.find_spec(f"duckdb_extension_{extension}")
    if package is None or package.origin is None:
        raise BackendUnavailableError(f"DuckDB's extension {extension} is not installed: {install}")
    files = sorted(Path(package.origin).parent.rglob(f"{extension}.duckdb_extension"))
    connection = duckdb.connect()
    connection.execute(f"LOAD '{quoted(files[-1])}'")
    return connection
