"""What the tests of the front end share: comparing gpu_join with Spark's own join, the path asserted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from gpujoin import Explanation, explain, gpu_join
from gpujoin.config import Strategy
from gpujoin.testing import assert_same_rows
from tests.spark.query.queries import plain_stages

Join = Callable[..., DataFrame]

LEFT_DDL = "id int, k int, s string, d double, n decimal(10,2), t timestamp, z struct<a:int,b:string>"
RIGHT_DDL = "rid int, k int, s string, d double, n decimal(12,3), t timestamp, z struct<a:int,b:string>"


def left_side(spark: SparkSession) -> DataFrame:
    """Rows with nulls, NaN, both zeros, duplicates and unicode in every key column."""
    return _of_the_program(
        spark,
        f"""select * from values
        (1, 1, 'x', 0.0D, 1.50, timestamp'2020-01-01 00:00:00', named_struct('a', 1, 'b', 'p')),
        (2, 1, 'ü', -0.0D, 2.00, timestamp'2020-01-02 00:00:00', named_struct('a', 2, 'b', 'q')),
        (3, 2, 'x', double('NaN'), -1.50, timestamp'1890-05-05 05:05:05', named_struct('a', 1, 'b', null)),
        (4, null, null, null, null, null, null),
        (5, 3, '', 3.5D, 99999999.99, timestamp'2020-01-01 00:00:00', named_struct('a', null, 'b', 'p')),
        (6, 2147483647, 'ﬀ', double('infinity'), 0.00, timestamp'9999-12-31 23:59:59', named_struct('a', 3, 'b', '')),
        (7, 2, 'y', 1.0D, 1.50, null, named_struct('a', 1, 'b', 'p'))
        as v({_names(LEFT_DDL)})""",
    )


def right_side(spark: SparkSession) -> DataFrame:
    """Partners for some of the left rows, several for some, none for others."""
    return _of_the_program(
        spark,
        f"""select * from values
        (10, 1, 'x', -0.0D, 1.500, timestamp'2020-01-01 00:00:00', named_struct('a', 1, 'b', 'p')),
        (20, 2, 'x', double('NaN'), 2.000, timestamp'2020-01-03 00:00:00', named_struct('a', 1, 'b', null)),
        (30, 2, 'ü', 1.0D, -1.500, timestamp'1890-05-05 05:05:05', named_struct('a', 9, 'b', 'q')),
        (40, null, null, null, null, null, null),
        (50, null, 'z', 2.5D, 1.501, timestamp'2020-01-01 00:00:00', null),
        (60, 8, '', double('-infinity'), 0.000, null, named_struct('a', null, 'b', 'p'))
        as v({_names(RIGHT_DDL)})""",
    )


_collected: dict[tuple[str, str], list[Row]] = {}


def _of_the_program(spark: SparkSession, query: str) -> DataFrame:
    """Rows that the program gives to Spark, which are not part of the query; they are collected once."""
    rows = spark.sql(query)
    asked = query, str(spark.conf.get("spark.sql.session.timeZone"))
    if asked not in _collected:
        _collected[asked] = rows.collect()
    return spark.createDataFrame(_collected[asked], rows.schema)


def _names(ddl: str) -> str:
    return "id, k, s, d, n, t, z" if ddl is LEFT_DDL else "rid, k, s, d, n, t, z"


def accelerated(**arguments: Any) -> Join:
    """Make a ``join`` that insists on gpujoin's engine."""

    def join(left: DataFrame, right: DataFrame, on: Any = None, how: Any = None) -> DataFrame:
        return gpu_join(left, right, on, how, backend="cpu", **arguments)

    return join


def native(left: DataFrame, right: DataFrame, on: Any = None, how: Any = None) -> DataFrame:
    """Spark's own join."""
    return left.join(right, on, how)


def check(
    spark: SparkSession, query: Callable[[Join], DataFrame], *, allow_empty: bool = False, **arguments: Any
) -> Explanation:
    """Check that a query over joins gives the rows and the schema that it gives with Spark's own joins.

    Fallback is an error; the strategies met are returned for the test to assert.
    """
    spark.conf.set("spark.gpujoin.fallback", "raise")
    expected, actual = query(native), query(accelerated(**arguments))
    assert actual.schema == expected.schema
    assert actual.columns == expected.columns
    with plain_stages(spark):
        rows = expected.toArrow()
    assert_same_rows(actual.toArrow(), rows, allow_empty=allow_empty, check_nullability=True)
    found = explain(actual)
    assert any(join.accelerated for join in found.joins)
    return found


def only(found: Explanation) -> Strategy:
    """Give the strategy of the one join of a plan."""
    (join,) = found.joins
    assert join.backend == "cpu"
    assert not join.reasons
    return join.strategy
