"""Tables whose Parquet files have other columns than the table: added, dropped, reordered, or of narrower types."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.spark.query.queries import FORCED, check, check_all

SILENT = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "silent"}
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:.*left to Spark")]
ROWS = 500


@pytest.fixture
def grown(spark: SparkSession) -> Iterator[None]:
    """A table of the catalog to which columns were added, in folders by a partition column."""
    spark.sql("create table grown (k int, a string, p string) using parquet partitioned by (p)")
    spark.sql(f"insert into grown select id % 7, concat('a', id % 50), 'old' from range({ROWS})")
    spark.sql("alter table grown add columns (b decimal(9, 2), c date)")
    spark.sql(
        f"insert into grown select id % 5, 'n', id / 4, date'2024-01-31' + int(id % 60), 'new' from range({ROWS})"
    )
    yield
    spark.sql("drop table grown")


@pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])
@pytest.mark.usefixtures("grown")
def test_columns_that_were_added_are_null_in_older_files(spark: SparkSession) -> None:
    texts = (
        "select p, k, count(*), count(b), sum(b), max(c), min(a) from grown group by p, k",
        "select k, count(*) from grown where b is null group by k",
        "select k, count(*) from grown where b > 20 or c < date'2024-02-15' group by k",
        "select x.c, count(*) from grown x left join grown y on x.c <=> y.c and x.k = y.k group by x.c",
        "select p, coalesce(c, date'2000-01-01') day, count(*) from grown group by 1, 2",
    )
    assert all(found.islands for found in check_all({text: spark.sql(text) for text in texts}).values())


NARROW = pa.table({
    "t": ["x", None, "y"] * 20, "I": pa.array([1, None, -(1 << 31)] * 20, pa.int32()),
    "f": pa.array([0.1, None, float("nan")] * 20, pa.float32()),
    "d": pa.array([Decimal("1.25"), None, Decimal("-99999.99")] * 20, pa.decimal128(7, 2)),
    "y": pa.array([1, -128, None] * 20, pa.int8()), "gone": [1] * 60,
})  # fmt: skip
WIDE = pa.table({
    "d": pa.array([Decimal("1234567890.25"), None] * 20, pa.decimal128(18, 2)),
    "i": pa.array([1 << 40, None] * 20, pa.int64()), "f": pa.array([1e300, -0.0] * 20, pa.float64()),
    "y": pa.array([300, None] * 20, pa.int32()), "t": ["x", "z"] * 20,
})  # fmt: skip
"""Files of one table, ``i bigint, f double, d decimal(18, 2), y int, t string, m date``; the table's last column is in
neither."""


@pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])
def test_narrower_types_and_other_orders_of_columns(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(NARROW, tmp_path / "narrow.parquet", row_group_size=25)
    pq.write_table(WIDE, tmp_path / "wide.parquet", row_group_size=15)
    spark.sql(
        "create table widened (i bigint, f double, d decimal(18, 2), y int, t string, m date) using parquet "
        f"location '{tmp_path}'"
    )
    try:
        for text in (
            "select t, count(*), sum(i), max(f), min(f), sum(d), max(y), count(m) from widened group by t",
            "select i, count(*) from widened where i > 3000000000 or i < -3000000000 or i = 1 group by i",
            "select f, count(*) from widened where f > 1e50 or f = 0.1 or f = cast(0.1F as double) group by f",
            "select d, count(*) from widened where d >= 100000.00 or d < -99999 group by d",
            "select y, count(*) from widened where y = 300 or y < 0 group by y",
            "select a.i, count(*) from widened a join widened b on a.i = b.i and a.d = b.d group by a.i",
        ):
            assert check(spark.sql(text)).islands, text
    finally:
        spark.sql("drop table widened")


@pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])
def test_schemas_that_spark_merges(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(50).selectExpr("id k", "concat('s', id) s").write.parquet(str(tmp_path / "p=1"))
    spark.range(50).selectExpr("id * 0.5D v", "id % 20 k").write.parquet(str(tmp_path / "p=2"))
    read = spark.read.option("mergeSchema", "true").parquet(str(tmp_path))
    assert set(read.columns) == {"k", "s", "v", "p"}
    assert check(read.groupBy("k", "p").agg({"s": "max", "v": "sum"})).islands


OTHER = {
    "days as timestamps": (pa.array([dt.date(2024, 1, 31)] * 9), "timestamp_ntz"),
    "whole numbers as decimals": (pa.array([1, 2, 3] * 3, pa.int32()), "decimal(12, 2)"),
    "whole numbers as doubles": (pa.array([1, 2, 3] * 3, pa.int32()), "double"),
    "decimals of another scale": (pa.array([Decimal("1.25")] * 9, pa.decimal128(7, 2)), "decimal(12, 4)"),
}


@pytest.mark.parametrize("spark", [SILENT], indirect=True, ids=["cpu"])
@pytest.mark.parametrize("name", OTHER)
def test_types_that_spark_converts_are_left_to_it(spark: SparkSession, tmp_path: Path, name: str) -> None:
    values, dtype = OTHER[name]
    pq.write_table(pa.table({"k": [1, 2, 3] * 3, "v": values}), tmp_path / "a.parquet")
    found = check(spark.read.schema(f"k bigint, v {dtype}").parquet(str(tmp_path)).groupBy("k").agg({"v": "max"}))
    assert not found.islands
    assert "planned as" in str(found)
