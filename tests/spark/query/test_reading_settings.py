"""Settings of Spark's that change what files hold: each keeps with Spark what it changes, and no more."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import gpujoin
from gpujoin.spark.query import reading
from gpujoin.spark.query.accelerate import rewrite
from tests.spark.query.queries import check

FORCED = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "silent"}
pytestmark = pytest.mark.spark
forced = pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])
Maker = Callable[[SparkSession, Path], DataFrame]

OLD = dt.datetime(1500, 1, 1, tzinfo=dt.UTC)


def by_id(spark: SparkSession, folder: Path) -> DataFrame:
    """Column ``a`` has a number, which the file gives to a column of another name; ``s`` one within; ``v`` has none."""
    inner = pa.struct([pa.field("n", pa.int64(), metadata={"PARQUET:field_id": "9"})])
    fields = [
        pa.field("z", pa.int64(), metadata={"PARQUET:field_id": "7"}),
        pa.field("v", pa.int64()),
        pa.field("s", inner),
    ]
    rows = [[1, 2, 3], [4, 5, 6], [{"n": 1}, {"n": 2}, {"n": 3}]]
    pq.write_table(pa.table(rows, schema=pa.schema(fields)), folder / "ids.parquet")
    numbered = StructField("m", LongType(), metadata={"parquet.field.id": 9})
    schema = [StructField("a", LongType(), metadata={"parquet.field.id": 7}), StructField("v", LongType())]
    return spark.read.schema(StructType([*schema, StructField("s", StructType([numbered]))])).parquet(str(folder))


def of_two_cases(spark: SparkSession, folder: Path) -> DataFrame:
    """Column ``X`` is not in the file, but ``x`` is; and so is field ``N`` of ``s``."""
    table = pa.table({"x": [1, 2, 3], "v": [4, 5, 6], "s": [{"n": 1}, {"n": 2}, {"n": 3}]})
    pq.write_table(table, folder / "cases.parquet")
    return spark.read.schema("X long, v long, s struct<N: long>").parquet(str(folder))


def plain(spark: SparkSession, folder: Path) -> DataFrame:
    pq.write_table(pa.table({"v": [4, 5, 6]}), folder / "plain.parquet")
    return spark.read.parquet(str(folder))


def int96_of_others(spark: SparkSession, folder: Path) -> DataFrame:
    """Timestamps as Impala writes them."""
    table = pa.table({"t": pa.array([dt.datetime(2020, 1, 1, 5, tzinfo=dt.UTC)], pa.timestamp("us")), "v": [1]})
    pq.write_table(table, folder / "old.parquet", use_deprecated_int96_timestamps=True)
    return spark.read.parquet(str(folder))


def dates_of_others(spark: SparkSession, folder: Path) -> DataFrame:
    table = pa.table({"d": [OLD.date()], "t": pa.array([OLD], pa.timestamp("us", "UTC")), "v": [1]})
    pq.write_table(table, folder / "old.parquet")
    return spark.read.parquet(str(folder))


def of_spark(spark: SparkSession, folder: Path) -> DataFrame:
    """Timestamps as INT96, and dates, as Spark writes both."""
    rows = spark.sql("select timestamp'1500-01-01 00:00:00' t, date'1500-01-01' d, 1 v")
    with configured(spark, {"spark.sql.parquet.outputTimestampType": "INT96"}):
        rows.write.mode("overwrite").parquet(str(folder))
    return spark.read.parquet(str(folder))


def bare_bytes(spark: SparkSession, folder: Path) -> DataFrame:
    """Bytes of which the file does not say that they are text, and text."""
    pq.write_table(pa.table({"b": [b"x", b"y", b"y"], "v": ["p", "q", "q"]}), folder / "bytes.parquet")
    return spark.read.parquet(str(folder))


def nanoseconds(spark: SparkSession, folder: Path) -> DataFrame:
    table = pa.table({"n": pa.array([5, 6, 7], pa.timestamp("ns")), "v": [1, 2, 3]})
    pq.write_table(table, folder / "nanos.parquet", version="2.6")
    return spark.read.parquet(str(folder))


@dataclass(frozen=True)
class Case:
    """A setting, the files that show what it changes, and what of them is Spark's and what is read here."""

    key: str
    value: str
    changes: str
    files: Maker
    sparks: tuple[str, ...]
    here: tuple[str, ...]
    says: str | None = None
    """In the reason; ``None``: the setting."""


ID = "columns that have a number are found by it, in the file's columns and in structs"
CASES = "names are matched as written"
ZONE = "INT96 of other writers are moved by the zone of the session"
CALENDAR = "values of other writers are moved to the calendar in use before 1582, or refused"
SETTINGS = [
    Case(reading.FIELD_IDS, "true", ID, by_id, ("max(a)", "max(s.m)"), ("max(v)",)),
    Case(reading.CASE_SENSITIVE, "true", CASES, of_two_cases, ("max(s.N)",), ("max(X)", "max(v)")),
    Case(reading.IGNORES_CORRUPT, "true", "what the reader fails at is left out", plain, ("max(v)",), ()),
    Case(reading.IGNORES_MISSING, "true", "files that are gone are left out", plain, (), ("max(v)",)),
    Case("spark.sql.parquet.int96TimestampConversion", "true", ZONE, int96_of_others, ("max(t)",), ("max(v)",)),
    Case("spark.sql.parquet.int96TimestampConversion", "true", ZONE, of_spark, (), ("max(t)", "max(d)")),
    Case("spark.sql.parquet.int96RebaseModeInRead", "LEGACY", CALENDAR, int96_of_others, ("max(t)",), ("max(v)",)),
    Case("spark.sql.parquet.int96RebaseModeInRead", "LEGACY", CALENDAR, dates_of_others, (), ("max(t)", "max(d)")),
    Case("spark.sql.parquet.int96RebaseModeInRead", "EXCEPTION", CALENDAR, of_spark, (), ("max(t)", "max(d)")),
    Case("spark.sql.parquet.datetimeRebaseModeInRead", "LEGACY", CALENDAR, dates_of_others,
         ("max(t)", "max(d)"), ("max(v)",)),
    Case("spark.sql.parquet.datetimeRebaseModeInRead", "LEGACY", CALENDAR, int96_of_others, (), ("max(t)",)),
    Case("spark.sql.parquet.datetimeRebaseModeInRead", "EXCEPTION", CALENDAR, of_spark, (), ("max(t)", "max(d)")),
    Case("spark.sql.parquet.binaryAsString", "true", "bytes of no declared kind are text", bare_bytes,
         ("max(b)",), ("max(v)",), "column 'b' is binary"),
    Case("spark.sql.legacy.parquet.nanosAsLong", "true", "nanoseconds are numbers", nanoseconds,
         ("max(n)",), ("max(v)",), "column 'n' is timestamp_ntz(nanoseconds) (INT64)"),
]  # fmt: skip


@contextmanager
def configured(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    before = {key: str(spark.conf.get(key)) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)


@forced
@pytest.mark.parametrize("case", SETTINGS, ids=lambda case: f"{case.key.rpartition('.')[2]}-{case.files.__name__}")
def test_a_setting_keeps_what_it_changes_with_spark(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    with configured(spark, {case.key: case.value, "spark.sql.session.timeZone": "America/New_York"}):
        table = case.files(spark, tmp_path / "table" if case.files is of_spark else tmp_path)
        for value in case.sparks:
            found = rewrite(table.selectExpr(f"{value} x")).explanation
            assert not found.islands, value
            assert (case.says or case.key) in str(found)
        if case.here:
            found = check(table.selectExpr(*(f"{value} x{n}" for n, value in enumerate(case.here))))
            assert found.islands, str(found)


def test_every_setting_that_is_an_obstacle_is_listed() -> None:
    keys = {case.key for case in SETTINGS}
    named = {value for name, value in vars(reading).items() if name.isupper() and isinstance(value, str)}
    legacy = {key for key in reading.BY_COLUMN if key.startswith("spark.sql.legacy.")}
    assert {key for key in named | set(reading.BY_COLUMN) if key.startswith("spark.sql")} - legacy <= keys


@forced
def test_a_file_that_is_gone_is_left_out_where_spark_leaves_it_out(spark: SparkSession, tmp_path: Path) -> None:
    for n in range(3):
        pq.write_table(pa.table({"v": [n, 10 * n], "k": [n, 1]}), tmp_path / f"{n}.parquet")
    with configured(spark, {reading.IGNORES_MISSING: "true"}):
        gpujoin.enable(spark)
        try:
            table = spark.read.parquet(str(tmp_path))
            query = table.groupBy("k").agg({"v": "sum"})
            assert "gpujoin" in query._jdf.queryExecution().executedPlan().toString()
            (tmp_path / "1.parquet").unlink()
            rows = query.toArrow()
        finally:
            gpujoin.disable(spark)
        assert sorted(zip(*rows.to_pydict().values(), strict=True)) == [(0, 0), (1, 20), (2, 2)]
