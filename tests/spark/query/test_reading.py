"""Tables and settings with another meaning of the same files: left to Spark, with the reason."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from gpujoin.spark.query.accelerate import rewrite
from tests.brief import brief
from tests.spark.query.queries import check, check_all

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


OLD_STAMPS = """select k, named_struct('t', t, 'n', k) s, array(t, null, timestamp'1500-01-01 00:00:00') l, map(k, t) m,
    array(named_struct('t', t)) ls from (select id k, timestamp_micros(id * id * 777777777777 - 999999999999999) t
    from range(50))"""


@pytest.mark.parametrize("zone", brief(("UTC", "America/Los_Angeles"), "America/Los_Angeles"))
def test_nested_timestamps_that_spark_writes_as_int96(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    """Also of files that lack fields, and in a zone of moving offset; files in the old calendar are Spark's."""
    kinds = ("spark.sql.parquet.outputTimestampType", "spark.sql.session.timeZone")
    mode = "spark.sql.parquet.int96RebaseModeInWrite"
    before = {key: str(spark.conf.get(key)) for key in (*kinds, mode)}
    try:
        spark.conf.set(kinds[0], "INT96")
        spark.conf.set(kinds[1], zone)
        spark.sql(OLD_STAMPS).coalesce(1).write.parquet(str(tmp_path / "stamps"))
        [file] = (tmp_path / "stamps").glob("*.parquet")
        columns = pq.ParquetFile(file).schema
        assert [columns.column(n).physical_type for n in range(len(columns))].count("INT96") == 4
        read = spark.read.parquet(str(tmp_path / "stamps"))
        read.createOrReplaceTempView("stamps")
        queries = (
            "select a.*, b.s.n from stamps a join stamps b on a.k = b.s.n",
            "select m[k], l[2], s.t, ls[0].t, count(*) from stamps group by all",
            "select max(s), max(ls), min(l), count(m) from stamps",
            "select hour(s.t), count(*), max(date_trunc('month', s.t)) from stamps group by 1",
            "select e, count(*) from stamps lateral view explode(l) as e group by e",
        )
        for found in check_all({query: spark.sql(query) for query in queries}).values():
            assert found.islands, found
            assert "rows from Spark" not in str(found)
        spark.conf.set(mode, "LEGACY")
        spark.sql(OLD_STAMPS).write.parquet(str(tmp_path / "legacy"))
        for column in ("s.t", "l", "m"):
            found = check(spark.read.parquet(str(tmp_path / "legacy")).selectExpr(f"count({column})", "sum(k)"))
            assert not found.islands
            assert "old calendar" in str(found)
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)


COLLATED = """create table collated (s string collate utf8_lcase, k int) using parquet"""


def test_collated_columns(spark: SparkSession) -> None:
    spark.sql(COLLATED)
    try:
        spark.sql("insert into collated values ('A', 1), ('a', 1), ('B', 1), ('c', 2)")
        groups = "select n, count(*) from (select s, count(*) n from collated group by s) group by n"
        assert not check(spark.sql(groups)).islands
        assert check(spark.sql("select k, count(*) from collated group by k")).islands
        for condition in ("a.s < b.s", "trim(a.s) < trim(b.s)"):
            query = f"select count(*) from collated a join collated b on a.k = b.k and ({condition} or a.k > 5)"
            found = check(spark.sql(query))
            assert "compared by bytes" in str(found)
    finally:
        spark.sql("drop table collated")


def test_files_beside_the_data(spark: SparkSession, tmp_path: Path) -> None:
    """Summary files repeat the row groups of all others; Spark reads neither them nor hidden and empty files."""
    table = pa.table({"k": [1, 2, 3], "v": [1, 2, 3]})
    found: list[object] = []
    pq.write_to_dataset(table, tmp_path, metadata_collector=found)
    pq.write_metadata(table.schema, tmp_path / "_metadata", metadata_collector=found)
    (tmp_path / ".hidden.parquet").write_text("no Parquet")
    (tmp_path / "empty.parquet").touch()
    frame = spark.read.parquet(str(tmp_path))
    assert check(frame.groupBy().count()).islands
    assert check(frame.groupBy("k").sum("v")).islands


ODD = {
    "zone": pa.table({"k": [1, 2], "at": pa.array([1, 2], pa.timestamp("us", "+05:30"))}),
    "extension": pa.table({
        "k": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1], pa.int8())), "v": [1, 2],
    }),
    "pattern": pa.table({"^k$": [1, 2], "k": [3, 4], "*": [5, 6]}),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_files_that_polars_does_not_read(spark: SparkSession, tmp_path: Path, name: str) -> None:
    pq.write_table(ODD[name], tmp_path / "odd.parquet")
    column = ODD[name].schema.names[0]
    assert check(spark.read.parquet(str(tmp_path)).groupBy(f"`{column}`").count()).islands


@pytest.mark.slow
def test_variants_beside_what_is_read(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("select id % 2 k, parse_json('{}') v from range(5)").write.parquet(str(tmp_path / "v"))
    assert check(spark.read.parquet(str(tmp_path / "v")).groupBy("k").count()).islands


@pytest.mark.slow
def test_wide_tables(spark: SparkSession, tmp_path: Path) -> None:
    wide = spark.range(5).selectExpr("id", *(f"id + {n} c{n}" for n in range(1010)))
    wide.coalesce(1).write.parquet(str(tmp_path / "wide"))
    read = spark.read.parquet(str(tmp_path / "wide"))
    narrow = read.selectExpr("id", "c1 w")
    assert check(read.join(narrow, "id").where("c3 > 3").select("c1", "c1009", "w")).islands
    spark.conf.set("spark.gpujoin.backend", "auto")
    spark.conf.set("spark.gpujoin.costs", "start=0")
    assert "more than 1000" in str(rewrite(read.join(narrow, "id")).explanation)
