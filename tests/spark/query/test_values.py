"""Values that are easily got wrong, through Spark: zeros of both signs, NaN, strings that are not valid UTF-8."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from gpujoin import FallbackError, gpu_join
from gpujoin.spark.query.accelerate import rewrite
from tests.brief import brief, together
from tests.spark.query.queries import FORCED, check, check_all, views

pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])]

ROWS = 3_000
FLOATS = (0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -2.25, 5e-324, 1.7976931348623157e308, None)
WORDS = (
    "",
    "a",
    "\ufffd",
    "a\ufffdb",
    "ü",
    "\x00",
    "shared prefix " * 8,
    "shared prefix " * 8 + "x",
    "\uffff",
    None,
)


@pytest.fixture(scope="module")
def odd_tables(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("values")
    table = pa.table({
        "id": pa.array(range(ROWS), pa.int32()),
        "x": pa.array([FLOATS[i * 7 % 10] for i in range(ROWS)], pa.float64(), from_pandas=False),
        "f": pa.array([FLOATS[i * 3 % 7] for i in range(ROWS)], pa.float32(), from_pandas=False),
        "y": pa.array([FLOATS[i // 10 % 10] for i in range(ROWS)], pa.float64(), from_pandas=False),
        "s": pa.array([WORDS[i * 3 % 10] for i in range(ROWS)], pa.string()),
    })  # fmt: skip
    pq.write_table(table, folder / "odd", row_group_size=700)
    for value in ("0.0", "-0.0", "3.0"):
        part = folder / "parts" / f"p={value}"
        part.mkdir(parents=True)
        pq.write_table(table.slice(0, 100), part / "part.parquet")
    schema = "id int, x double, f float, y double, s string, p double"
    with views(spark_session, folder, {"odd": None, "parts": schema}):
        yield


ZEROS = {
    "group": "select x, count(*) from odd group by x order by x limit 5",
    "distinct": "select distinct x from odd",
    "distinct floats": "select distinct f from odd",
    "two keys": "select x, f, count(*), sum(id) from odd group by x, f",
    "count distinct": "select count(distinct x), count(distinct f), count(distinct x, y) from odd",
    "group below a join": """select a.id, b.x, b.n from odd a
        join (select x, count(*) n from odd group by x) b on a.x = b.x where a.id < 50""",
    "group above a join": "select a.x, count(*) from odd a join odd b on a.id = b.id group by a.x",
    "plus zero": "select a.id, a.x + 0.0D, 0.0D - a.x, a.f + cast(0 as float) from odd a join odd b on a.id = b.id",
    "minus": "select a.id, -a.x, a.x - -0.0D, a.x * -1, a.x - b.y from odd a join odd b on a.id = b.id",
    "partition column": """select a.id, b.x + b.p, b.p - b.x, b.x / nullif(b.p, 0.0D), b.p from odd a
        join parts b on a.id = b.id""",
    "filter": "select id from odd where x + 0.0D = y * 1.0D and x >= 0.0D",
    "is in": "select count(*) from odd where x in (0.0D, double('NaN'))",
    "top": "select x, id from odd order by x desc, id limit 700",
}  # fmt: skip


@pytest.mark.parametrize(
    "names",
    together(
        ZEROS, "two keys", "count distinct", "plus zero", "partition column", "is in", "top",
    ),
)  # fmt: skip
def test_zeros_and_nans(odd_tables: None, spark: SparkSession, names: tuple[str, ...]) -> None:
    spark.conf.set("spark.sql.ansi.enabled", "false")
    check_all({name: spark.sql(ZEROS[name]) for name in names})


VALID = {
    "replacement character": "select count(*) from odd where s = '\ufffd'",
    "list of them": "select count(*) from odd where s in ('\ufffd', 'a\ufffdb', 'none')",
    "long list": f"select count(*) from odd where s in ('\ufffd', {', '.join(repr(str(i)) for i in range(20))})",
    "nul": "select count(*) from odd where s = '\\0'",
    "greater": "select count(*) from odd where s > '\ufffd'",
    "like": "select count(*) from odd where s like 'a\ufffd%'",
    # Spark itself puts U+FFFD into the pattern.
    "like of invalid text": "select count(*) from odd where s like concat(cast(X'EFBF' as string), '%')",
    "long": f"select count(*) from odd where s <> '{'shared prefix ' * 5_000}'",
    "surrogate": "select count(*) from odd where s <> '\\ud800'",
}  # fmt: skip


@pytest.mark.parametrize("name", brief(VALID, "replacement character", "long list", "nul", "like of invalid text"))
def test_valid_strings_are_constants(odd_tables: None, spark: SparkSession, name: str) -> None:
    assert check(spark.sql(VALID[name])).islands


INVALID = {
    "equal": "select count(*) from odd where s = cast(X'FF' as string)",
    "in": "select count(*) from odd where s in (cast(X'FF' as string), 'a')",
    "long list": f"""select count(*) from odd
        where s in (cast(X'FF' as string), {', '.join(repr(str(i)) for i in range(20))})""",
    "greater": "select count(*) from odd where s > cast(X'FF' as string)",
    "starts with": "select count(*) from odd where startswith(s, cast(X'EFBF' as string))",
    "concat": "select concat(s, cast(X'FF' as string)) t, count(*) from odd group by 1",
    "case": "select case when id < 9 then cast(X'FF' as string) else s end t, count(*) from odd group by 1",
    "surrogate": "select count(*) from odd where s <> cast(X'EDA080' as string)",
    "subquery": "select count(*) from odd where s = (select max(cast(X'FF' as string)) from odd)",
}  # fmt: skip


@pytest.mark.parametrize("name", brief(INVALID, "equal", "long list", "concat", "surrogate", "subquery"))
def test_invalid_strings_are_left_to_spark(odd_tables: None, spark: SparkSession, name: str) -> None:
    frame = spark.sql(INVALID[name])
    with pytest.raises(FallbackError, match="UTF-8"):
        rewrite(frame)
    spark.conf.set("spark.gpujoin.fallback", "silent")
    as_bytes = frame.select(*(sf.col(c).cast("binary").alias(c) if t == "string" else c for c, t in frame.dtypes))
    assert sorted(map(str, rewrite(as_bytes).frame.collect())) == sorted(map(str, as_bytes.collect()))


@pytest.mark.parametrize("day", [-719_163, 2_932_897], ids=["before the year 1", "after 9999"])
def test_a_subquery_of_a_day_that_python_does_not_have_is_left_to_spark(
    odd_tables: None, spark: SparkSession, day: int
) -> None:
    """Planning asks for the value of a subquery where inputs are divided among tasks."""
    for setting in ("oneTaskBytes", "taskBytes"):
        spark.conf.set(f"spark.gpujoin.scan.{setting}", "1")
    query = f"""select count(*) from odd
        where date'2024-01-01' <> (select max(date_add(date'1970-01-01', {day} + cast(id * 0 as int))) from odd)"""
    frame = spark.sql(query)
    with pytest.raises(FallbackError, match="a scalar subquery gives a date before the year 1 or after 9999"):
        rewrite(frame)
    spark.conf.set("spark.gpujoin.fallback", "silent")
    assert rewrite(frame).frame.collect() == frame.collect()


def test_conditions_of_gpu_join(odd_tables: None, spark: SparkSession) -> None:
    one, two = spark.table("odd").alias("a"), spark.table("odd").alias("b")
    on = sf.expr("a.id = b.id and concat(a.s, b.s) <> concat(cast(X'FF' as string), cast(X'FE' as string))")
    with pytest.raises(FallbackError, match="not valid UTF-8"):
        gpu_join(one, two, on, "inner", backend="cpu").count()
    spark.conf.set("spark.gpujoin.fallback", "silent")
    assert gpu_join(one, two, on, "inner", backend="cpu").count() == one.join(two, on).count()
    spark.conf.set("spark.gpujoin.fallback", "raise")
    on = sf.expr("a.id = b.id and a.s <> concat(b.s, '\ufffd')")
    joined = gpu_join(one, two, on, "inner", backend="cpu").select("a.id")
    assert joined.count() == one.join(two, on).count()


def test_binary_constants(odd_tables: None, spark: SparkSession) -> None:
    texts = (
        "select count(*) from odd where cast(s as binary) = X'EFBFBD'",
        "select count(*) from odd where cast(s as binary) > X'EFBFBDFF'",
        "select X'FF00' b, s, count(*) from odd group by 1, 2",
    )
    check_all({text: spark.sql(text) for text in texts})


def test_statistics_that_lie(spark: SparkSession, tmp_path: Path) -> None:
    """The sums are those of the data; what statistics say of it is false."""
    from tests.engine.pipeline.test_values import lying_file

    lying_file(tmp_path / "lies", pa.decimal128(18, 2))
    with views(spark, tmp_path, {"lies": None}):
        assert check(spark.sql("select g, sum(a), sum(a * 3), avg(a), max(a) from lies group by g")).islands
