"""Joins that Spark runs as nested loops or products, through gpu_join and whole queries: the answer and the path."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import IntegerType, StructField, StructType

from gpujoin import accelerate, explain, gpu_join
from gpujoin.config import Strategy
from gpujoin.errors import ProductSizeError
from gpujoin.plan.ranges import Shape
from gpujoin.testing import assert_same_rows
from tests.brief import brief

pytestmark = pytest.mark.spark

QUADRATIC = ("BroadcastNestedLoopJoin", "CartesianProduct")


@pytest.fixture
def tables(spark: SparkSession) -> SparkSession:
    spark.sql(
        "select cast(id as int) as i, cast(id * 37 % 1000 as int) as x,"
        " if(id % 17 = 0, null, cast(id % 12 as int)) as a, if(id % 23 = 0, null, cast(id % 10 as int)) as b,"
        " cast(id % 3 as int) as c from range(150)"
    ).createOrReplaceTempView("l")
    spark.sql(
        "select cast(id as int) as j, cast(id * 53 % 1000 as int) as y, cast(id % 9 as int) as p,"
        " if(id = 60, null, cast(id % 7 as int)) as q, cast(id % 3 as int) as r from range(1, 90)"
    ).createOrReplaceTempView("r")
    return spark


_TIMES = """(select i, ts t, cast(ts as timestamp_ntz) n, date_add(date'2024-01-01', x) d
  from (select i, x, timestamp_seconds(1711841800 + x * 10) ts from l))
  join (select j, ts u, cast(ts as timestamp_ntz) v, date_add(date'2024-01-02', y) e
  from (select j, y, timestamp_millis(1711841800499 + y * 10001) ts from r))"""
"""Moments around the change to summer time in Europe."""
QUERIES = {
    "two columns NOT IN": ("select * from l where (a, b) not in (select p, q from r)", Shape.NOT_IN),
    "three columns NOT IN, one without nulls": (
        "select * from l where (a, b, c) not in (select p, q, r from r)", Shape.NOT_IN,
    ),
    "two columns NOT IN under OR": (
        "select * from l where (a, b) not in (select p, q from r where y > 300) or c = 1", Shape.NOT_IN,
    ),
    "NOT IN in the select list": ("select i, a not in (select q from r where j < 9) as n from l", Shape.NOT_IN),
    "between": ("select i, j from l join r on x between y - 5 and y + 5", Shape.RANGE),
    "between, full outer": ("select i, j from l full join r on x >= y - 5 and x <= y + 5", Shape.RANGE),
    "less, left outer, with a rest": ("select i, j from l left join r on x < y and (i + j) % 2 = 0", Shape.RANGE),
    "within a distance": ("select i, j from l join r on abs(x - y) <= 5", Shape.RANGE),
    "within a distance, left outer": ("select i, j from l left join r on abs(y - x) < 7", Shape.RANGE),
    "within a distance given by a column": (
        "select i, j from l left join r on abs(x - y) <= l.a and l.i > 3", Shape.RANGE,
    ),
    "within a distance of decimals, full outer": (
        "select i, j from l full join r on abs(x / 10bd - y / 10bd) <= 0.4", Shape.RANGE,
    ),
    "within days": (
        "select i, j from l join r on abs(datediff(date_add(date'2024-01-01', x), date_add(date'2024-01-01', y))) < 3",
        Shape.RANGE,
    ),
    "within an interval": (
        """select i, j from (select i, timestamp_seconds(x) t from l) join (select j, timestamp_seconds(y) u from r)
        on t between u - interval 5 seconds and u + interval 5 seconds""", Shape.RANGE,
    ),
    "within seconds": (
        """select i, j from (select i, timestamp_seconds(x) t from l) join (select j, timestamp_seconds(y) u from r)
        on abs(unix_timestamp(t) - unix_timestamp(u)) <= 5 and cast(t as bigint) >= cast(u as bigint)""", Shape.RANGE,
    ),
    "apart by an interval": (f"select i, j from {_TIMES} on abs(t - u) <= interval 5 seconds", Shape.RANGE),
    "apart by less than an interval, full outer": (
        f"select i, j from {_TIMES.replace(' join', ' full join')} on abs(v - n) < interval '3' second", Shape.RANGE,
    ),
    "apart by an interval to one side, left outer": (
        f"""select i, j from {_TIMES.replace(' join', ' left join')}
        on t - u <= interval 5 seconds and t - u > interval -2 seconds""", Shape.RANGE,
    ),
    "days apart by an interval": (f"select i, j from {_TIMES} on abs(d - e) <= interval 50 hours", Shape.RANGE),
    "casts apart": (f"select i, j from {_TIMES} on abs(cast(t as double) - cast(u as double)) < 2.5D", Shape.RANGE),
    "exists or, a range": (
        "select i from l where exists (select 1 from r where y between x - 5 and x + 5) or c = 1", Shape.RANGE,
    ),
    "not exists or, less": ("select i from l where not exists (select 1 from r where y < x - 9) or a = 3", Shape.RANGE),
    "overlap, right outer": ("select i, j from l right join r on x <= y + 3 and x + 4 >= y", Shape.RANGE),
    "anti by range": ("select i from l left anti join r on x between y - 2 and y + 2", Shape.RANGE),
    "less, semi": ("select i from l left semi join r on x < y", Shape.RANGE),
}  # fmt: skip


def explained(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.mark.parametrize(
    "name",
    brief(
        QUERIES, "two columns NOT IN under OR", "less, left outer, with a rest",
        "within a distance of decimals, full outer", "days apart by an interval", "anti by range",
    ),
)  # fmt: skip
def test_queries(tables: SparkSession, name: str) -> None:
    text, shape = QUERIES[name]
    tables.conf.set("spark.gpujoin.backend", "cpu")
    try:
        native = tables.sql(text)
        assert any(node in explained(native) for node in QUADRATIC)
        found = accelerate(native)
        (join,) = explain(found).joins
        assert join.accelerated, str(explain(found))
        assert join.shape == shape.value
        assert not any(node in explained(found) for node in QUADRATIC)
        assert_same_rows(found.toArrow(), native.toArrow())
    finally:
        tables.conf.unset("spark.gpujoin.backend")


def test_intervals_are_those_of_local_clocks(tables: SparkSession) -> None:
    """At the change to summer time a second is an hour and a second, as Spark subtracts timestamps."""
    text = f"select i, j from {_TIMES} on abs(t - u) <= interval 3 minutes"
    zone = str(tables.conf.get("spark.sql.session.timeZone"))
    tables.conf.set("spark.gpujoin.backend", "cpu")
    rows = {}
    try:
        for other in ("UTC", "Europe/Berlin"):
            tables.conf.set("spark.sql.session.timeZone", other)
            native = tables.sql(text)
            found = accelerate(native)
            assert [join.shape for join in explain(found).joins if join.accelerated] == [Shape.RANGE.value]
            rows[other] = found.toArrow()
            assert_same_rows(rows[other], native.toArrow())
    finally:
        tables.conf.set("spark.sql.session.timeZone", zone)
        tables.conf.unset("spark.gpujoin.backend")
    assert rows["Europe/Berlin"].num_rows < rows["UTC"].num_rows


def test_in_under_or(tables: SparkSession) -> None:
    """An existence join by equality, which Spark hashes too."""
    text = "select i from l where a in (select p from r where q > 2) or b = 3"
    tables.conf.set("spark.gpujoin.backend", "cpu")
    try:
        native = tables.sql(text)
        assert "ExistenceJoin" in explained(native)
        found = accelerate(native)
        (join,) = explain(found).joins
        assert join.accelerated, str(explain(found))
        assert (join.join_type, join.shape) == ("existence", Shape.EQUALITY.value)
        assert_same_rows(found.toArrow(), native.toArrow())
    finally:
        tables.conf.unset("spark.gpujoin.backend")


def test_correlated_not_in_is_joined_by_its_correlation(tables: SparkSession) -> None:
    text = "select * from l where a not in (select p from r where r.q = l.b)"
    tables.conf.set("spark.gpujoin.backend", "cpu")
    try:
        native = tables.sql(text)
        found = accelerate(native)
        (join,) = explain(found).joins
        assert join.accelerated
        assert join.shape == Shape.NOT_IN.value
        assert_same_rows(found.toArrow(), native.toArrow())
    finally:
        tables.conf.unset("spark.gpujoin.backend")


def test_the_cost_rule_takes_large_ones(tables: SparkSession) -> None:
    many = tables.range(200_000).selectExpr("id as x", "id % 100 as a", "if(id % 9 = 0, null, id) as b")
    other = tables.range(200_000).selectExpr("id as y", "id % 100 as p", "if(id % 7 = 0, null, id) as q")
    ranged = gpu_join(many, other, (many.x > other.y - 5) & (many.x < other.y + 5), "full")
    (join,) = explain(ranged).joins
    assert join.accelerated
    assert "range: n log n" in str(explain(ranged))
    left_to_spark = gpu_join(many.limit(10), other.limit(10), many.x > other.y, "inner")
    assert not explain(left_to_spark).joins[0].accelerated


def test_products_over_the_limit_are_refused(tables: SparkSession) -> None:
    left, right = tables.table("l"), tables.table("r")
    tables.conf.set("spark.gpujoin.maxProductRows", "1000")
    try:
        product = gpu_join(left, right, (left.x + right.y) % 2 == 0, strategy="nested_loop")
        for action in (product.count, lambda: explain(product)):
            with pytest.raises(ProductSizeError, match="maxProductRows"):
                action()
        assert gpu_join(left, right, left.x < right.y, strategy="nested_loop").count() > 0
    finally:
        tables.conf.unset("spark.gpujoin.maxProductRows")


def test_products_of_unknown_size_are_refused_once_it_is_known(
    tables: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    schema = StructType([StructField("k", IntegerType())])
    rows = tables.sparkContext.parallelize([Row(k=n) for n in range(40)], 2)
    frame = tables.createDataFrame(rows, schema)
    few = gpu_join(frame.where("k < 5"), frame.where("k < 5"), strategy="nested_loop")
    tables.conf.set("spark.gpujoin.maxProductRows", "1000")
    try:
        assert few.count() == 25
        assert not any("without keys or ranges" in message for message in caplog.messages)
        with pytest.raises(ProductSizeError, match=r"40 × 40 rows .* more than spark\.gpujoin\.maxProductRows"):
            gpu_join(frame, frame, backend="cpu").count()  # in one task
    finally:
        tables.conf.unset("spark.gpujoin.maxProductRows")


@pytest.mark.extra
def test_products_are_warned_of(tables: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    left, right = tables.table("l"), tables.table("r")
    tables.conf.set("spark.gpujoin.warnProductRows", "1000")
    try:
        joined = gpu_join(left, right, (left.x + right.y) % 2 == 0, strategy="nested_loop")
        ranged = gpu_join(left, right, left.x < right.y, strategy="nested_loop")
        assert joined.count() > 0
        assert ranged.count() > 0
        assert "warning: about" in str(explain(joined))
        assert "warning" not in str(explain(ranged))
    finally:
        tables.conf.unset("spark.gpujoin.warnProductRows")
    warned = [message for message in caplog.messages if "without keys or ranges" in message]
    assert len(warned) == 1


def test_products_of_files(tables: SparkSession, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Inside islands too: warned of, and refused before a task starts."""
    settings = {"backend": "cpu", "costs": "start=0", "warnProductRows": "1000"}
    for name in ("l", "r"):
        tables.table(name).write.parquet(str(tmp_path / name))
    one, two = (tables.read.parquet(str(tmp_path / name)) for name in ("l", "r"))
    native = one.join(two, (one.x + two.y) % 7 == 0, "left_semi").agg({"i": "sum"})
    for name, value in settings.items():
        tables.conf.set(f"spark.gpujoin.{name}", value)
    try:
        found = accelerate(native)
        (island,) = explain(found).islands
        assert "warning: about 150 × 89 rows without keys or ranges are 1.34e+04 pairs" in str(explain(found))
        assert any("without keys or ranges" in message for message in caplog.messages)
        assert island.joins[0].shape == Shape.PRODUCT.value
        assert found.collect() == native.collect()
        tables.conf.set("spark.gpujoin.maxProductRows", "13349")
        with pytest.raises(ProductSizeError, match="maxProductRows"):
            accelerate(native)
        tables.conf.set("spark.gpujoin.maxProductRows", "13350")
        accelerate(native)
    finally:
        for name in (*settings, "maxProductRows"):
            tables.conf.unset(f"spark.gpujoin.{name}")


@pytest.mark.parametrize("strategy", brief(("broadcast", "shuffle"), "shuffle"))
def test_not_in_over_columns_in_both_forms(tables: SparkSession, strategy: str) -> None:
    """Rows with every pattern of nulls on both sides, in many batches; with a correlation and without."""
    values = "(values (null), (1), (2)) as"
    tables.sql(f"select a, b, c from {values} t(a), {values} u(b), {values} v(c)").createOrReplaceTempView("every")
    some = "select p, q, r from (values (1, 1, 1), (2, null, 2), (null, 1, 2), (2, 2, null)) as s(p, q, r)"
    tables.sql(f"{some} where p is not null or q is not null").createOrReplaceTempView("some")
    rows = tables.sql("select every.*, id as i from every, range(0, 40, 1, 3)")
    rows.createOrReplaceTempView("many_patterns")
    queries = (
        "select * from many_patterns where (a, b, c) not in (select p, q, r from some)",
        "select * from many_patterns where (a, b) not in (select q, p from some where r = c and p < i)",
        "select * from many_patterns where (a, b) not in (select p, q from some where r < i % 3)",
    )
    settings = {
        "spark.gpujoin.backend": "cpu", "spark.gpujoin.strategy": strategy, "spark.gpujoin.exchange.partitions": "3",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
    }  # fmt: skip
    for name, value in settings.items():
        tables.conf.set(name, value)
    try:
        for text in queries:
            native = tables.sql(text)
            found = accelerate(native)
            (join,) = [join for join in explain(found).joins if join.join_type.endswith("anti")]
            assert (join.accelerated, join.strategy) == (True, Strategy(strategy)), str(explain(found))
            assert join.shape == Shape.NOT_IN.value
            assert_same_rows(found.toArrow(), native.toArrow(), allow_empty=True)
    finally:
        for name in settings:
            tables.conf.unset(name)
