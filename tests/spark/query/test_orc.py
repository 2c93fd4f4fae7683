"""ORC files that islands read themselves, and those that are left to Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import orc
from pyspark.sql import SparkSession

from gpujoin.spark.query.accelerate import rewrite
from tests.brief import brief, together
from tests.spark.query.queries import EXCHANGED, FORCED, check, check_all

pytestmark = pytest.mark.spark
SILENT = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "silent"}
ROWS = 3_000
VALUES = f"""
select cast(id as int) id, cast(if(id % 13 = 0, null, id % 50) as int) k,
  element_at(array(cast(null as tinyint), 127Y, -128Y, 0Y), cast(id % 4 + 1 as int)) tiny,
  element_at(array(32767S, cast(null as smallint), -32768S), cast(id % 3 + 1 as int)) small,
  element_at(array(9223372036854775807L, -9223372036854775808L, cast(null as bigint), 0L, id), cast(id % 5 + 1 as int))
    large,
  element_at(array(0.0F, -0.0F, float('NaN'), float('-infinity'), cast(null as float)), cast(id % 5 + 1 as int)) f,
  element_at(array(0.0D, -0.0D, double('NaN'), double('infinity'), cast(null as double), 1.5D), cast(id % 6 + 1 as int))
    d,
  element_at(array(1.10BD, cast(null as decimal(9, 2)), -9999999.99BD, 0.00BD), cast(id % 4 + 1 as int)) price,
  cast(if(id % 7 = 0, null, id * 10000000000000000000BD) as decimal(38, 6)) wide,
  element_at(array('', null, 'ü', 'a b ', repeat('x', 300), concat('text ', id)), cast(id % 6 + 1 as int)) s,
  element_at(array(cast('' as binary), x'00ff', cast(null as binary)), cast(id % 3 + 1 as int)) raw,
  element_at(array(true, false, null), cast(id % 3 + 1 as int)) flag,
  element_at(array(date'1582-10-15', date'1969-12-31', date'9999-12-31', null), cast(id % 4 + 1 as int)) day,
  cast(null as int) nothing
from range({ROWS})
"""
COLUMNS = ("id", "k", "tiny", "small", "large", "f", "d", "price", "wide", "s", "raw", "flag", "day", "nothing")


@pytest.fixture(scope="module")
def folder(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with files of several compressions and stripes, and views of them."""
    folder = tmp_path_factory.mktemp("orc")
    values = spark_session.sql(VALUES)
    for number, compression in enumerate(("none", "snappy", "zlib", "zstd", "lz4")):
        part = values.where(f"id % 5 = {number}").repartition(1)
        part.write.option("orc.stripe.row.count", "200").option("compression", compression).mode("append").orc(
            str(folder / "special")
        )
    values.where("id < 60").selectExpr("id k", "s name", "day since").write.orc(str(folder / "few"))
    for name in ("special", "few"):
        spark_session.read.orc(str(folder / name)).createOrReplaceTempView(name)
    yield folder
    for name in ("special", "few"):
        spark_session.catalog.dropTempView(name)


QUERIES = {
    "groups": f"select {', '.join(COLUMNS)}, count(*), min(id), max(id) from special "
    f"group by grouping sets ({', '.join(f'({name})' for name in COLUMNS)})",
    "all values": f"select a.{', a.'.join(COLUMNS)}, b.name from special a left join few b on a.k = b.k",
    "least and greatest": "select flag, max(tiny), min(small), max(large), min(f), max(d), sum(price), max(wide), "
    "min(s), max(day), count(nothing) from special group by flag",
    "filters": "select k, count(*) from special where day > date'2000-01-01' and id between 100 and 2500 and "
    "s is not null and large <> 0 group by k",
    "no columns": "select count(*) from special",
    "no rows by statistics": "select count(*), max(s) from special where id > 1000000",
    "keys": "select b.name, count(*), max(a.day) from special a join few b on a.day = b.since and a.s = b.name "
    "group by b.name",
}


@pytest.mark.parametrize(
    "spark", [FORCED, pytest.param(EXCHANGED, marks=pytest.mark.extra)], indirect=True, ids=["one task", "exchanged"]
)
@pytest.mark.parametrize("names", together(QUERIES, "groups", "filters", "no columns", "no rows by statistics", "keys"))
def test_special_values_of_every_type(spark: SparkSession, folder: Path, names: tuple[str, ...]) -> None:
    for name, explanation in check_all({name: spark.sql(QUERIES[name]) for name in names}).items():
        assert explanation.islands, name
        assert not any("rows from Spark" in line for island in explanation.islands for line in island.tree), name


@pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])
def test_stripes_are_divided_among_tasks(spark: SparkSession, tmp_path: Path) -> None:
    rows = pa.table({"k": [n % 7 for n in range(5_000)], "s": [f"text {n * 7919 % 5_000}" for n in range(5_000)]})
    orc.write_table(rows, tmp_path / "t.orc", stripe_size=1024, batch_size=100, compression="uncompressed")
    spark.conf.set("spark.gpujoin.scan.oneTaskBytes", "1")
    spark.conf.set("spark.gpujoin.scan.taskBytes", "10000")
    spark.conf.set("spark.gpujoin.exchange.partitions", "2")
    (island,) = check(spark.read.orc(str(tmp_path)).groupBy("k").agg({"s": "max", "*": "count"})).islands
    (exchange,) = (line for line in island.tree if "exchange" in line)
    assert int(exchange.partition("from ")[2].partition(" ")[0]) > 5


@pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])
def test_partitions_and_columns_that_some_files_lack(spark: SparkSession, tmp_path: Path) -> None:
    old = spark.range(20).selectExpr("id % 4 k", "concat('s', id) S")
    new = spark.range(20).selectExpr("id + 0.5D v", "concat('t', id) s", "id % 3 k", "date'2024-01-31' day")
    old.write.orc(str(tmp_path / "region=eu" / "day_of=2024-02-29"))
    new.write.orc(str(tmp_path / "region=ü%2Fs" / "day_of=__HIVE_DEFAULT_PARTITION__"))
    schema = "k bigint, v double, s string, day date, region string, day_of date"
    read = spark.read.schema(schema).orc(str(tmp_path))
    merged = spark.read.option("mergeSchema", "true").orc(str(tmp_path))
    queries = {
        "partition columns as keys": read.groupBy("region", "day_of", "k").agg({"v": "sum", "s": "max", "day": "min"}),
        "partitions left out": read.where("region <> 'eu' and k = 1").groupBy("s").count(),
        "merged schemas": merged.groupBy("k").agg({"v": "max", "S": "max"}),
    }
    assert all(found.islands for found in check_all(queries).values())


@pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])
def test_tables_of_the_catalog(spark: SparkSession) -> None:
    spark.sql("create table grown (g int, a string) using orc")
    try:
        spark.sql("insert into grown values (1, 'x'), (1, null), (2, 'y')")
        spark.sql("alter table grown add columns (b decimal(9, 2), c date)")
        spark.sql("insert into grown values (2, 'z', 9.5, date'2024-01-31'), (3, null, null, null)")
        assert check(spark.sql("select g, max(a), sum(b), max(c), count(c) from grown group by g")).islands
        assert check(spark.sql("select g, count(*) from grown where b is null group by g")).islands
    finally:
        spark.sql("drop table grown")


LEFT = {
    "a timestamp": ("timestamp'2024-01-31 10:00:00' c", None, "a timestamp"),
    "a timestamp without a zone": ("timestamp_ntz'2024-01-31 10:00:00' c", None, "planned as timestamp"),
    "an array": ("array(id) c", None, "a list"),
    "an early date": ("date'1500-01-01' c", None, "in one of two calendars"),
    "another type": ("cast(id as int) c", "k bigint, c bigint", "planned as bigint"),
    "another scale": ("cast(id as decimal(9, 2)) c", "k bigint, c decimal(9, 3)", "planned as decimal"),
    "a number as text": ("id c", "k bigint, c string", "planned as string"),
    "a dotted name": ("id `c.c`", None, "has a name by which it is not read"),
}


@pytest.mark.parametrize("spark", [SILENT], indirect=True, ids=["cpu"])
@pytest.mark.parametrize("name", brief(LEFT, "a timestamp without a zone", "an early date", "a dotted name"))
def test_what_spark_reads_in_another_way_is_left_to_it(spark: SparkSession, tmp_path: Path, name: str) -> None:
    expression, schema, reason = LEFT[name]
    written = spark.range(30).selectExpr("id % 3 k", expression)
    written.write.orc(str(tmp_path / "t"))
    read = spark.read.schema(schema or written.schema).orc(str(tmp_path / "t"))
    found = rewrite(
        read.groupBy("k").agg({f"`{read.columns[1]}`": "max"}) if name != "an array" else read.groupBy("c").count()
    )
    assert reason in str(found.explanation)


@pytest.mark.parametrize("spark", [SILENT], indirect=True, ids=["cpu"])
def test_columns_without_names_are_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    orc.write_table(pa.table({"_col0": [1, 1, 2], "_col1": [5, 6, 7]}), tmp_path / "t.orc")
    read = spark.read.schema("k bigint, v bigint").orc(str(tmp_path))
    found = check(read.groupBy("k").agg({"v": "sum"}))
    assert "found by position" in str(found)
    spark.conf.set("orc.force.positional.evolution", "true")
    try:
        orc.write_table(pa.table({"v": [1, 1, 2], "k": [5, 6, 7]}), tmp_path / "t.orc")
        read = spark.read.schema("k bigint, v bigint").orc(str(tmp_path))
        found = check(read.groupBy("k").agg({"v": "sum"}))
    finally:
        spark.conf.unset("orc.force.positional.evolution")
    assert "orc.force.positional.evolution" in str(found)


@pytest.mark.parametrize("spark", [SILENT], indirect=True, ids=["cpu"])
def test_char_and_varchar_are_left_to_spark(spark: SparkSession) -> None:
    spark.sql("create table padded (k int, c char(5), v varchar(5)) using orc")
    try:
        spark.sql("insert into padded values (1, 'a', 'b'), (1, 'ab', 'c '), (2, null, null)")
        for column in "cv":
            found = check(spark.sql(f"select {column}, count(*) from padded where k > 0 group by {column}"))
            assert not found.islands or "planned as string" not in str(found)
    finally:
        spark.sql("drop table padded")


@pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])
def test_text_that_is_no_utf8(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(40).selectExpr("id % 4 k", "cast(if(id % 3 = 0, x'ff41', x'41') as string) s").write.orc(
        str(tmp_path / "t")
    )
    read = spark.read.orc(str(tmp_path / "t"))
    assert rewrite(read.groupBy("s").count()).explanation.islands
    counts = {row["n"]: row["count"] for row in read.selectExpr("hex(s) n").groupBy("n").count().collect()}
    here = rewrite(read.groupBy("s").count()).frame.selectExpr("hex(s) n", "count").collect()
    assert {row["n"]: row["count"] for row in here} == counts
