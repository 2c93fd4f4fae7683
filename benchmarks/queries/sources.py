"""Sources from which Spark reads the tables of a suite: Parquet, which gpujoin reads too, and others.

``parquet`` is read here. Of the others Spark computes the rows: ``csv`` (text, whose size tells little of its rows),
``cached`` (Spark's own columns in memory), ``v2`` (the same Parquet files through a connector of Spark's DataSource V2,
as tables of Iceberg come) and ``rdd`` (rows whose size Spark does not know, as of a JDBC query).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

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
