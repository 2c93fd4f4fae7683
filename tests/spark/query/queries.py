"""What the tests of whole queries share: tables, and comparing a rewritten query with Spark's own."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from gpujoin.report.explanation import Explanation
from gpujoin.spark.query.accelerate import Accelerated, rewrite
from gpujoin.testing import assert_same_rows

FORCED = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "raise"}
"""Everything that can be run here is, and an error where it is not."""
EXCHANGED = FORCED | {
    "spark.gpujoin.scan.oneTaskBytes": "1",
    "spark.gpujoin.scan.taskBytes": "1",
    "spark.gpujoin.broadcastThreshold": "1",
    "spark.gpujoin.exchange.partitions": "3",
}
"""Several tasks, and exchanges between all stages."""
PLAIN = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "1"}
"""Fewer jobs and tasks."""

SALES = """
select * from values
  (1, 1, 'x', 10.50, date'2024-01-31', 0.0D, true), (2, 1, 'ü', -2.25, date'2024-02-29', -0.0D, false),
  (3, 2, null, 99999999.99, date'1969-12-31', double('NaN'), null), (4, null, '', 0.00, null, null, true),
  (5, 3, 'x', null, date'2024-01-31', double('infinity'), false), (6, 9, 'y%z', 1.25, date'9999-12-31', 1.5D, true),
  (7, 2, 'x', 1.25, date'2024-05-05', double('NaN'), null), (8, 1, 'x', 3.00, date'2024-05-05', 0.0D, true)
  as t(id, k, s, price, day, weight, flag)
"""
ITEMS = """
select * from values
  (10, 1, 'x', 1.500), (20, 2, 'x', 2.000), (30, 2, 'ü', -1.500), (40, null, null, null), (50, 3, 'y%z', 1.250),
  (60, 8, '', 0.000), (70, 1, 'x', 10.500)
  as t(item, k, s, cost)
"""


def write_tables(spark: SparkSession, folder: Path) -> None:
    """Write the tables as Parquet files of several row groups, and make views of them."""
    for name, text in (("sales", SALES), ("items", ITEMS)):
        path = str(folder / name)
        spark.sql(text).repartition(2, "k").write.mode("overwrite").parquet(path)
        spark.read.parquet(path).createOrReplaceTempView(name)
    spark.read.parquet(str(folder / "sales")).limit(0).write.mode("overwrite").parquet(str(folder / "none"))
    spark.read.parquet(str(folder / "none")).createOrReplaceTempView("none")


@contextmanager
def views(spark: SparkSession, folder: Path, names: Mapping[str, str | None]) -> Iterator[None]:
    """Views of the Parquet files in a folder, by name, each with its schema where one is given."""
    for name, schema in names.items():
        reader = spark.read if schema is None else spark.read.schema(schema)
        reader.parquet(str(folder / name)).createOrReplaceTempView(name)
    try:
        yield
    finally:
        for name in names:
            spark.catalog.dropTempView(name)


def jobs_begun(spark: SparkSession) -> int:
    """How many jobs have begun in an application; PySpark's tracker asks the JVM for the number of each."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


@contextmanager
def plain_stages(spark: SparkSession) -> Iterator[None]:
    """Have Spark run what it answers by itself in fewer jobs and tasks."""
    before = {name: spark.conf.get(name) for name in PLAIN}
    for name, value in PLAIN.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, own in before.items():
            spark.conf.set(name, str(own))


def check_all(frames: Mapping[str, DataFrame], *, empty: Container[str] = ()) -> dict[str, Explanation]:
    """Check queries as :func:`check` does; those that are named may have no rows."""
    return {name: checked(frame, allow_empty=name in empty, context=name).explanation for name, frame in frames.items()}


def check(frame: DataFrame, *, allow_empty: bool = False) -> Explanation:
    """Check that a rewritten query gives the rows and the schema of the query itself; others are left as they are."""
    return checked(frame, allow_empty=allow_empty).explanation


def checked(frame: DataFrame, *, allow_empty: bool = False, context: str = "") -> Accelerated:
    """Give the rewritten query that :func:`check` has run."""
    found = rewrite(frame)
    if found.changed:
        assert found.frame.schema == frame.schema
        with plain_stages(frame.sparkSession):
            expected = frame.toArrow()
        assert_same_rows(
            found.frame.toArrow(), expected, allow_empty=allow_empty, check_nullability=True, context=context
        )
    else:
        assert found.frame is frame
    return found
