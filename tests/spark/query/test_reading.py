"""Tables and settings with another meaning of the same files: left to Spark, with the reason."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.spark.query.queries import check

FORCED = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "silent"}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])]


def test_defaults_of_columns_added_later(spark: SparkSession) -> None:
    spark.sql("create table grown (g int, a int) using parquet")
    try:
        spark.sql("insert into grown values (1, 1), (1, 2)")
        spark.sql("alter table grown add column b int default 7")
        spark.sql("insert into grown values (2, 3, 9)")
        found = check(spark.sql("select g, sum(b), count(b) from grown group by g"))
    finally:
        spark.sql("drop table grown")
    assert not found.islands
    assert "default" in str(found)


def test_names_that_differ_in_case(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2, 3], "k": [1, 1, 2]}), tmp_path / "cases.parquet")
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        read = spark.read.schema("X long, k long").parquet(str(tmp_path))
        found = check(read.groupBy("k").agg({"X": "sum"}))
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert not found.islands
    assert "spark.sql.caseSensitive" in str(found)


def test_old_timestamps_that_spark_shifts(spark: SparkSession, tmp_path: Path) -> None:
    times = pa.array(["2020-01-01T05:00:00"]).cast(pa.timestamp("us"))
    pq.write_table(
        pa.table({"t": times, "k": [1]}), tmp_path / "old.parquet", use_deprecated_int96_timestamps=True
    )
    settings = {
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.parquet.int96TimestampConversion": "true",
    }
    before = {key: str(spark.conf.get(key)) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        found = check(spark.read.parquet(str(tmp_path)).groupBy("k").agg({"t": "max"}))
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)
    assert not found.islands
    assert "int96TimestampConversion" in str(found)
