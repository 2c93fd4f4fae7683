"""Sources from which Spark reads the tables of a suite: Parquet, which gpujoin reads too, and others.

``parquet`` is read here, and so are tables of Delta and Iceberg: ``delta`` and ``iceberg`` have the same rows,
``delta-deletes`` and ``iceberg-deletes`` a twentieth of them less in the two largest tables, marked as deleted beside
the files that hold them. They need the PySpark and the jars of ``make test-lake``.

Of the others Spark computes the rows: ``csv`` (text, whose size tells little of its rows), ``cached`` (Spark's own
columns in memory), ``v2`` (the same Parquet files through a connector of Spark's DataSource V2) and ``rdd`` (rows whose
size Spark does not know, as of a JDBC query).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from gpujoin.errors import ConfigurationError
from tests.lake.jars import why_missing
from tests.lake.sessions import session_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_V1_SOURCES = "spark.sql.sources.useV1SourceList"


class Source(Enum):
    """What holds the tables."""

    PARQUET = "parquet"
    CSV = "csv"
    CACHED = "cached"
    V2 = "v2"
    RDD = "rdd"
    DELTA = "delta"
    DELTA_DELETES = "delta-deletes"
    ICEBERG = "iceberg"
    ICEBERG_DELETES = "iceberg-deletes"

    @property
    def settings(self) -> dict[str, str]:
        """What a session needs that reads it.

        Raises ``ConfigurationError`` where the jars, or the PySpark that they are for, are missing.
        """
        if self not in _FORMATS:
            return {}
        missing = why_missing()
        if missing is not None:
            raise ConfigurationError(missing)
        return session_settings(_FORMATS[self])

    @property
    def lacks_rows(self) -> bool:
        """Whether rows of the suite are deleted, so that only Spark knows the answers."""
        return self in (Source.DELTA_DELETES, Source.ICEBERG_DELETES)


_FORMATS = {
    Source.DELTA: "delta",
    Source.DELTA_DELETES: "delta",
    Source.ICEBERG: "iceberg",
    Source.ICEBERG_DELETES: "iceberg",
}
_DELETED = {"lineitem": "l_orderkey, l_linenumber", "orders": "o_orderkey"}
"""Tables with deleted rows, by the columns that choose them."""


def read_tables(spark: SparkSession, data: Path, tables: Sequence[str], source: Source) -> dict[str, DataFrame]:
    """Give the tables of a folder with ``<table>.parquet``, by name; CSV files are written beside them first."""
    match source:
        case Source.CSV:
            return {table: _csv(spark, data, table) for table in tables}
        case Source.CACHED:
            return {table: _cached(_parquet(spark, data, table)) for table in tables}
        case Source.V2:
            return _through_v2(spark, data, tables)
        case Source.RDD:
            return {table: _rows(spark, _parquet(spark, data, table)) for table in tables}
        case Source.DELTA | Source.DELTA_DELETES:
            return {table: _delta(spark, data, table, source) for table in tables}
        case Source.ICEBERG | Source.ICEBERG_DELETES:
            spark.conf.set("spark.sql.catalog.ice.warehouse", str(data / source.value))
            return {table: _iceberg(spark, data, table, source) for table in tables}
        case _:
            return {table: _parquet(spark, data, table) for table in tables}


def _parquet(spark: SparkSession, data: Path, table: str) -> DataFrame:
    return spark.read.parquet(str(data / f"{table}.parquet"))


def _csv(spark: SparkSession, data: Path, table: str) -> DataFrame:
    frame, folder = _parquet(spark, data, table), data / f"{table}.csv"
    if not (folder / "_SUCCESS").exists():
        spaces = {"ignoreLeadingWhiteSpace": False, "ignoreTrailingWhiteSpace": False}  # by default they get lost
        frame.write.mode("overwrite").options(**spaces).csv(str(folder))
    return spark.read.schema(frame.schema).csv(str(folder))


def _delta(spark: SparkSession, data: Path, table: str, source: Source) -> DataFrame:
    folder = data / source.value / table
    if not (folder / "_delta_log").exists():
        vectors = {"delta.enableDeletionVectors": "true"} if source.lacks_rows else {}
        _parquet(spark, data, table).write.format("delta").options(**vectors).save(str(folder))
        _delete(spark, f"delta.`{folder}`", table, source)
    return spark.read.format("delta").load(str(folder))


def _iceberg(spark: SparkSession, data: Path, table: str, source: Source) -> DataFrame:
    name = f"ice.suite.{table}"
    if not (data / source.value / "suite" / table).exists():
        properties = {"format-version": "2", "write.delete.mode": "merge-on-read"}
        writer = _parquet(spark, data, table).writeTo(name)
        for key, value in properties.items():
            writer = writer.tableProperty(key, value)
        writer.create()
        _delete(spark, name, table, source)
    return spark.table(name)


def _delete(spark: SparkSession, name: str, table: str, source: Source) -> None:
    if source.lacks_rows and table in _DELETED:
        spark.sql(f"delete from {name} where pmod(hash({_DELETED[table]}), 20) = 0")


def _cached(frame: DataFrame) -> DataFrame:
    frame.cache().count()
    return frame


def _through_v2(spark: SparkSession, data: Path, tables: Sequence[str]) -> dict[str, DataFrame]:
    """Read the tables by Spark's second API, which the setting decides while a path is resolved."""
    before = spark.conf.get(_V1_SOURCES)
    spark.conf.set(_V1_SOURCES, "")
    try:
        return {table: _parquet(spark, data, table) for table in tables}
    finally:
        spark.conf.set(_V1_SOURCES, str(before))


def _rows(spark: SparkSession, frame: DataFrame) -> DataFrame:
    """Give the rows of a table as Spark gets those of an RDD."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    session, table = spark._jsparkSession, frame._jdf  # noqa: SLF001
    return ClassicDataFrame(session.createDataFrame(table.toJavaRDD(), table.schema()), spark)
