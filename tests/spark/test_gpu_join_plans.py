"""gpu_join inside of larger queries: whatever is done with its result must resolve as after Spark's own join."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from gpujoin import gpu_join
from gpujoin.config import Strategy
from tests.brief import brief
from tests.spark.front import Join, accelerated, check, left_side, native, right_side

pytestmark = pytest.mark.spark

Query = Callable[[Join, DataFrame, DataFrame], DataFrame]


def twice(frame: DataFrame, query: Callable[[DataFrame, DataFrame], DataFrame]) -> DataFrame:
    return query(frame, frame)


def computed(join: Join, left: DataFrame, right: DataFrame) -> DataFrame:
    joined = join(left, right, left.k == right.k, "full")
    again = join(joined, right.select("v").distinct(), "v", "left_semi")
    return again.select(left.u, right.v, left["k"], right["k"])


QUERIES: dict[str, Query] = {
    "columns of either side": lambda j, a, b: j(a, b, a.k == b.k).select(a["k"], b.s, a.s.alias("z"), b["k"]),
    "columns by alias": lambda j, a, b: (
        j(a.alias("a"), b.alias("b"), sf.expr("a.k = b.k"), "left").select("a.*", "b.d").where("b.d > 0 or a.k is null")
    ),
    "hidden key of a USING join": lambda j, a, b: j(a.alias("a"), b.alias("b"), "k", "left").select(
        "a.k", "b.k", "k", "b.s"
    ),
    "hidden keys of two USING joins": lambda j, a, b: j(
        j(a.alias("a"), b.alias("b"), "k", "left"), b.select("k", "rid").alias("c"), "k", "left"
    ).select("a.k", "b.k", "c.k", "c.rid"),
    "columns of a chain": lambda j, a, b: j(
        j(a, b, a.k == b.k, "left"), a.withColumnRenamed("k", "o"), b.rid == sf.col("o"), "full"
    ).select(a.k, b.k, b.s, sf.col("o"), b.rid),
    "columns of a chain by name": lambda j, a, b: j(
        b.drop("s"), j(b.drop("s", "n"), a.select("id", "k", "s"), "k"), "k", "left"
    ).select("k", "s", "id"),
    "columns that the inputs compute": lambda j, a, b: computed(
        j, a.withColumn("u", sf.upper("s")), b.withColumn("v", sf.col("rid") + 1)
    ),
    "aggregates as inputs": lambda j, a, b: computed(
        j, a.groupBy("k").agg(sf.max("s").alias("u")), b.groupBy("k").agg(sf.sum("rid").alias("v"))
    ),
    "dropped columns": lambda j, a, b: j(a, b, a.k == b.k, "left").drop(b.k).drop("s"),
    "self join by alias": lambda j, a, b: j(a.alias("x"), a.alias("y"), sf.expr("x.k = y.k")).select(
        "x.s", "y.s", "x.id"
    ),
    "self join by name": lambda j, a, b: j(a, a, "k", "full"),
    "join of a join": lambda j, a, b: j(j(a, b, "k"), b.withColumnRenamed("s", "w"), "k", "left").groupBy("k").count(),
    "join of a join with itself": lambda j, a, b: twice(j(a, b, "k"), lambda q, r: j(q, r, "k")),
    "Spark's join of a join with itself": lambda j, a, b: twice(j(a, b, "k", "full"), lambda q, r: q.join(r, "k")),
    "union with itself": lambda j, a, b: twice(j(a, b, "k", "left"), lambda q, r: q.union(r)),
    "aggregate": lambda j, a, b: j(a, b, "k", "left").groupBy("k").agg(sf.sum("rid"), sf.count("*")),
    "window": lambda j, a, b: j(a, b, "k").withColumn(
        "rank", sf.row_number().over(Window.partitionBy("k").orderBy("id", "rid"))
    ),
    "sort and limit": lambda j, a, b: j(a, b, "k").orderBy("id", "rid").limit(3),
    "of a cached side": lambda j, a, b: j(a.cache(), b, "k", "left"),
    "metadata": lambda j, a, b: j(a.select("k", sf.col("s").alias("s", metadata={"comment": "ü"})), b, "k", "right"),
    "columns that are never null": lambda j, a, b: j(
        a.sparkSession.range(5).withColumn("v", sf.lit(1)),
        a.sparkSession.range(3).withColumn("w", sf.lit("x")),
        "id",
    ),
    "columns that are never null, outer": lambda j, a, b: j(
        a.sparkSession.range(5).withColumn("v", sf.lit(1)),
        a.sparkSession.range(1, 9).withColumn("w", sf.lit("x")),
        "id",
        "full",
    ),
    "key null on one side only": lambda j, a, b: twice(a.sparkSession.range(5), lambda r, _: j(r, b, r.id == b.k)),
    "nested payload": lambda j, a, b: j(
        a.withColumn("m", sf.create_map("id", sf.array("s", sf.lit(None)))), b, "k", "full"
    ),
    "variant and interval payload": lambda j, a, b: j(
        a.selectExpr("k", "parse_json('{\"a\": 1}') v", "make_dt_interval(id) i", "t::timestamp_ntz"),
        b,
        "k",
        "left",
    ),
    "condition that is always true": lambda j, a, b: j(a, b, sf.lit(True) & (a.k == b.k)),
}


@pytest.mark.parametrize(
    "name",
    brief(
        QUERIES, "hidden keys of two USING joins", "Spark's join of a join with itself", "variant and interval payload",
    ),
)  # fmt: skip
def test_query(spark: SparkSession, name: str) -> None:
    left, right = left_side(spark), right_side(spark)
    check(spark, lambda join: QUERIES[name](join, left, right), strategy="shuffle")


def test_sql_over_a_view_of_the_result(spark: SparkSession) -> None:
    left, right = left_side(spark), right_side(spark)

    def query(join: Join) -> DataFrame:
        join(left, right, "k", "left").createOrReplaceTempView("joined")
        return spark.sql("select k, count(rid) as n from joined group by k having count(*) > 0")

    assert [join.strategy for join in check(spark, query, strategy="broadcast").joins] == [Strategy.BROADCAST]


def test_sides_without_columns(spark: SparkSession) -> None:
    left, right = left_side(spark).select(), right_side(spark).select()
    spark.conf.set("spark.gpujoin.fallback", "raise")
    joined = gpu_join(left, right, strategy="nested_loop")
    assert joined.columns == []
    assert joined.count() == 42
    assert gpu_join(left, right.limit(0), how="semi", strategy="nested_loop").count() == 0


def branches(join: Join, one: DataFrame, two: DataFrame) -> DataFrame:
    return join(one, two, "k").select(one.s)


AMBIGUOUS: dict[str, Query] = {
    "name": lambda j, a, b: j(a, b, a.k == b.k).select("s"),
    "self join": lambda j, a, b: j(a, a.where("k > 0"), "k").select(a.s),
    "filter of a self join": lambda j, a, b: j(a, a.where("k > 0"), "k", "left").where(a.s == "x"),
    "self join of a join": lambda j, a, b: j(j(a, b.drop("s"), "k"), a.where("k > 0").drop("d"), "k").select(a.s),
    "Spark's join on top": lambda j, a, b: j(a, b.drop("s"), "k").join(a.drop("d"), "k").select(a.s),
    "not ambiguous: one parent": lambda j, a, b: twice(
        a, lambda p, _: j(p.where("k > 0"), p.where("k > 1"), "k")
    ).select("k"),
    "not ambiguous: other branch": lambda j, a, b: branches(j, a.where("k > 0"), a.where("k > 1")),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_what_is_ambiguous_in_spark_is_ambiguous_here(spark: SparkSession, name: str) -> None:
    left, right = left_side(spark), right_side(spark)
    outcomes: list[list[str] | str | None] = []
    for join in (native, accelerated(strategy="shuffle")):
        try:
            outcomes.append(AMBIGUOUS[name](join, left, right).columns)
        except AnalysisException as problem:
            outcomes.append(problem.getCondition())
    assert outcomes[0] == outcomes[1]
    assert isinstance(outcomes[0], list) == name.startswith("not ambiguous")


def test_files_as_sources(spark: SparkSession, tmp_path: object) -> None:
    left_side(spark).drop("z").write.parquet(f"{tmp_path}/left")
    right_side(spark).drop("z").write.parquet(f"{tmp_path}/right")
    left, right = spark.read.parquet(f"{tmp_path}/left"), spark.read.parquet(f"{tmp_path}/right")
    found = check(spark, lambda join: join(left, right, "k", "left").where("id < 7"), strategy="shuffle")
    (island,) = found.islands
    assert str(island.tree).count("scan ") == 2


def test_result_without_columns_has_rows(spark: SparkSession) -> None:
    left, right = left_side(spark), right_side(spark)
    joined = gpu_join(left, right, "k", strategy="shuffle", backend="cpu").select()
    assert joined.count() == left.join(right, "k").count() > 0
