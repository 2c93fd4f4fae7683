"""Payload of every type that Spark hands to Python rides through the joins of islands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, types
from pyspark.testing.objects import ExamplePoint, ExamplePointUDT

from gpujoin import FallbackError, explain, gpu_join
from gpujoin.report.explanation import Explanation
from gpujoin.spark.query.accelerate import rewrite
from tests.brief import brief, each_once
from tests.spark.query.queries import EXCHANGED, FORCED, plain_stages

NEW_TYPES = {"spark.sql.timeType.enabled": "true", "spark.sql.geospatial.enabled": "true"}
pytestmark = pytest.mark.spark
WAYS = {"one task": FORCED | NEW_TYPES, "exchanged": EXCHANGED | NEW_TYPES}
one_task = pytest.mark.parametrize("spark", [FORCED | NEW_TYPES], indirect=True, ids=["one task"])

PAYLOAD = {
    "array": "array(id, null, id * 2)",
    "array_without_nulls": "array(id)",
    "array_of_arrays": "array(array(cast(id as string)), null, array())",
    "map": "map('a', array(id), 'b', null)",
    "map_of_decimals": "map(id, cast(id as decimal(38, 18)))",
    "struct": "named_struct('x', id, 'y', named_struct('z', cast(id as string), 'x', null))",
    "struct_without_nulls": "named_struct('x', 1, 'y', 'text')",
    "struct_of_times": "struct(timestamp'1900-01-01 00:00:00', timestamp_ntz'9999-12-31 23:59:59.999999')",
    "empty_struct": "struct()",
    "interval": "make_dt_interval(cast(id as int))",
    "interval_of_days": "cast(make_dt_interval(cast(id as int)) as interval day)",
    "array_of_intervals": "array(cast(make_dt_interval(cast(id as int)) as interval day to hour))",
    "variant": "parse_json(cast(id as string))",
    "array_of_variants": "array(parse_json('1'), null)",
    "void": "null",
    "array_of_voids": "array(null)",
    "collated": "cast(id as string) collate utf8_lcase",
    "array_of_collated": "array(cast(id as string) collate utf8_lcase)",
    "struct_of_collated": "struct(id, cast(id as string) collate unicode)",
}
if hasattr(types, "TimeType"):
    PAYLOAD["time"] = "make_time(10, cast(id as int), 1.25)"
if hasattr(types, "GeometryType"):
    PAYLOAD["geometry"] = "st_geomfromwkb(X'0101000000000000000000F03F0000000000000040')"
JOINS = {
    "inner": "select * from l join r on l.k = r.k",
    "left": "select * from l left join r on l.k = r.k and l.n <= r.m",
    "full": "select * from l full join r on l.k = r.k",
    "semi": "select * from l where k in (select k from r)",
    "anti": "select * from l where not exists (select 1 from r where l.k = r.k)",
    "existence": "select * from l where k in (select k from r) or n = 11",
}


def payload_rows(spark: SparkSession, number: str, key: str, rows: int) -> DataFrame:
    """A number, a key that is sometimes null, and payload of every type, a third of it null."""
    columns = [f"if(id % 3 = 0, null, {value}) {number}_{name}" for name, value in PAYLOAD.items()]
    key = f"if(id % 7 = 0, null, {key}) k"
    numbers = spark.createDataFrame([(n,) for n in range(rows)], "id long")
    return numbers.selectExpr(f"id {number}", key, *columns)


@pytest.fixture(scope="module")
def payload_views(spark_session: SparkSession) -> Iterator[None]:
    """Views ``l`` and ``r``."""
    for name, value in NEW_TYPES.items():
        spark_session.conf.set(name, value)
    payload_rows(spark_session, "n", "id % 5", 13).createOrReplaceTempView("l")
    payload_rows(spark_session, "m", "id % 5 + 2", 9).createOrReplaceTempView("r")
    yield
    for name in "lr":
        spark_session.catalog.dropTempView(name)
    for name in NEW_TYPES:
        spark_session.conf.unset(name)


@pytest.fixture
def payload(payload_views: None, spark: SparkSession) -> SparkSession:
    """A session with the views."""
    return spark


def rows_of(frame: DataFrame) -> list[str]:
    # PySpark's toArrow cannot cast null structs whose fields are never null.
    return sorted(map(str, frame.collect()))


def check(frame: DataFrame) -> Explanation:
    """Check that a rewritten query gives the rows and the schema of the query itself."""
    found = rewrite(frame)
    assert found.frame.schema == frame.schema
    # Python forgets collations within arrays.
    assert found.frame._jdf.schema().sql() == frame._jdf.schema().sql()
    with plain_stages(frame.sparkSession):
        expected = rows_of(frame)
    assert rows_of(found.frame) == expected
    return found.explanation


def in_one_island(found: Explanation, *, spark_rows: int = 2) -> None:
    (island,) = found.islands
    assert len(island.joins) == len(found.joins)
    assert "\n".join(island.tree).count("rows from Spark") == spark_rows


@pytest.mark.parametrize(("how", "way"), each_once(JOINS, WAYS, extra=("left", "inner", "semi")))
def test_every_type_through_every_join(payload: SparkSession, how: str, way: str) -> None:
    for key, value in WAYS[way].items():
        payload.conf.set(key, value)
    in_one_island(check(payload.sql(JOINS[how])))


@one_task
@pytest.mark.parametrize("strategy", brief(["broadcast", "shuffle"], "shuffle"))
def test_a_strategy_that_is_asked_for(payload: SparkSession, strategy: Any) -> None:
    left, right = payload.table("l"), payload.table("r")
    query = gpu_join(left, right, left.k == right.k, "left", strategy=strategy, backend="cpu")
    native = left.join(right, left.k == right.k, "left")
    in_one_island(explain(query))
    assert query.schema == native.schema
    assert rows_of(query) == rows_of(native)


QUERIES = {
    "filter": "select n, n_map, m_variant from l left join r on l.k = r.k where m is null or m + n > 5",
    "projection": "select n + m s, n_map, concat(n_array, m_array) a from l join r on l.k = r.k",
    "aggregation": "select l.k, count(*), sum(m) from l join r on l.k = r.k group by l.k",
    "count": "select count(*) from (select n_array, n_map, k from l) l join r on l.k = r.k",
    "first rows": "select n, m, n_map, m_struct from l join r on l.k = r.k order by n, m limit 3",
    "two joins": "select a.n_map, r.m_array, b.n_variant, b.n from l a join r on a.k = r.k left join l b on b.n = r.m",
    "fields as keys": "select n, m, n_struct, m_map from l join r on l.n_struct.x = r.m_struct.x",
    "structs as keys": "select n, m, m_map from l join r on l.n_struct = r.m_struct",
    "condition": "select n, m, n_array, m_map from l join r on l.k = r.k and size(n_array) > 2 and n_collated = '7'",
    "nearest": """select n, s.m_struct, s.m_array from l left join lateral (
        select * from r where r.k = l.k and r.m <= l.n order by r.m desc limit 1) s""",
    "nearest, within a distance": """select n, m_struct, m_map from (
        select l.n, r.m_struct, r.m_map, row_number() over (partition by l.n order by r.m desc) i
        from l left join r on r.k = l.k and r.m <= l.n and r.m > l.n - 4) where i = 1""",
}


@one_task
@pytest.mark.parametrize("name", brief(QUERIES, "first rows", "structs as keys", "nearest"))
def test_queries_around_payload(payload: SparkSession, name: str) -> None:
    found = check(payload.sql(QUERIES[name]))
    assert all(join.accelerated for join in found.joins)


@one_task
def test_nested_columns_of_files_are_rows_from_spark(payload: SparkSession, tmp_path: Path) -> None:
    for name, columns in {"l": "n, k, n_map, n_array_of_intervals", "r": "m, k"}.items():
        payload.sql(f"select {columns} from {name}").write.parquet(str(tmp_path / name))
    left, right = (payload.read.parquet(str(tmp_path / name)) for name in "lr")
    in_one_island(check(left.join(right, "k", "left")), spark_rows=1)


REFUSED = {
    "year-month interval": (
        "make_ym_interval(1, cast(id as int))",
        "interval year to month has no Arrow form",
    ),
    "calendar interval": ("make_interval(1, 2, 3, cast(id as int))", "interval has no Arrow form"),
    "two fields of one name": (
        "named_struct('x', id, 'x', id)",
        "struct<x:bigint,x:bigint> has no Arrow form",
    ),
}


@one_task
@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_arrow_form_is_left_to_spark(spark: SparkSession, name: str) -> None:
    value, word = REFUSED[name]
    left, right = spark.range(5).selectExpr("id k", f"{value} p"), spark.range(3).selectExpr("id k", "id m")
    query = gpu_join(left, right, "k", "left", backend="cpu").selectExpr("k", "cast(p as string) p", "m")
    with pytest.raises(FallbackError, match=word):
        query.collect()
    spark.conf.set("spark.gpujoin.fallback", "silent")
    again = gpu_join(left, right, "k", "left", backend="cpu").selectExpr("k", "cast(p as string) p", "m")
    assert rows_of(again) == rows_of(left.join(right, "k", "left").selectExpr("k", "cast(p as string) p", "m"))


@one_task
def test_user_defined_types(spark: SparkSession) -> None:
    schema = types.StructType().add("k", types.LongType()).add("p", ExamplePointUDT())
    point: Callable[[float, float], ExamplePoint] = ExamplePoint  # its constructor has no types
    points = spark.createDataFrame([(1, point(1.0, 2.0)), (2, None), (None, point(0.0, 0.0))], schema)
    found = check(points.join(spark.range(3).withColumnRenamed("id", "k"), "k", "left"))
    assert all(join.accelerated for join in found.joins)


@one_task
def test_collated_keys_are_compared_by_the_keys_that_spark_makes_of_them(payload: SparkSession) -> None:
    in_one_island(check(payload.sql("select n, m, n_map from l join r on l.n_collated = r.m_collated")))


@one_task
def test_arrays_are_keys(payload: SparkSession) -> None:
    found = check(payload.sql("select n, m from l join r on l.n_array = r.m_array"))
    assert all(join.accelerated for join in found.joins)


@one_task
def test_keys_that_are_intervals_are_left_to_spark(payload: SparkSession) -> None:
    payload.conf.set("spark.gpujoin.fallback", "silent")
    frame = payload.sql("select n, m from l join r on l.n_interval = r.m_interval")
    found = rewrite(frame)
    assert not any(join.accelerated for join in found.explanation.joins)
    assert rows_of(found.frame) == rows_of(frame)
