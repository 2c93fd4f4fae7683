"""Semi, anti and existence joins whose left side is broadcast: rows and path, against Spark."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from gpujoin import accelerate, explain, gpu_join
from gpujoin.config import Options, Strategy
from gpujoin.model.expressions import Expression, lit
from gpujoin.model.expressions import left as l_
from gpujoin.model.expressions import right as r_
from gpujoin.model.jointype import JoinType, Side
from gpujoin.plan.ranges import Shape
from gpujoin.plan.resolve import resolve
from gpujoin.spark.compat import arrow_schema
from gpujoin.spark.metrics import Part
from gpujoin.testing import assert_same_rows
from tests.spark.joins import arrow_of, join, join_reports

pytestmark = pytest.mark.spark

CONDITIONS: dict[str, tuple[Expression, str]] = {
    "range": ((l_("l0") <= r_("r0")) & (r_("r0") <= l_("l0") + lit(4)), "r0 between l0 and l0 + 4"),
    "free": ((l_("l1") + r_("r1")) % lit(41) == lit(0), "(l1 + r1) % 41 = 0"),
}


@pytest.fixture
def sides(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    left = spark.range(0, 60, 1, 3).selectExpr("if(id % 11 = 0, null, id * 7 % 120) as l0", "id as l1")
    right = spark.range(0, 500, 1, 4).selectExpr(
        "if(id % 13 = 0, null, id * 17 % 150 * 2) as r0", "id % 30 as r1"
    )
    left.createOrReplaceTempView("marked")
    right.createOrReplaceTempView("met")
    return left, right


def in_spark(spark: SparkSession, how: JoinType, condition: str) -> DataFrame:
    inner = f"(select 1 from met where {condition})"
    if how is JoinType.EXISTENCE:
        return spark.sql(f"select *, exists {inner} or l1 is null as exists from marked")
    word = "exists" if how is JoinType.LEFT_SEMI else "not exists"
    return spark.sql(f"select * from marked where {word} {inner}")


@pytest.mark.parametrize(
    ("how", "condition"),
    [(JoinType.LEFT_SEMI, "free"), (JoinType.LEFT_ANTI, "range"), (JoinType.EXISTENCE, "range")],
    ids=["semi", "anti, spilled", "existence"],
)
def test_rows(spark: SparkSession, how: JoinType, condition: str, sides: tuple[DataFrame, DataFrame]) -> None:
    left, right = sides
    ours, text = CONDITIONS[condition]
    resolved = resolve(ours, arrow_schema(left.schema), arrow_schema(right.schema))
    expected = arrow_of(in_spark(spark, how, text))
    spilled = how is JoinType.LEFT_ANTI
    options = Options(fallback="raise", memory_budget=300 if spilled else 1 << 30)  # type: ignore[arg-type]
    more = {"keys": (), "condition": resolved, "build_side": Side.LEFT, "options": options}
    found = join(left, right, how, Strategy.NESTED_LOOP, **more)
    assert_same_rows(arrow_of(found), expected, check_types=False)
    (report,) = join_reports(found)
    assert report.runs[-1].tasks == 4
    assert report.exchanges[Part.MARKS].rows == 60
    assert (report.metrics.spills > 0) is spilled
    if spilled:
        counted = join(left, right, how, Strategy.NESTED_LOOP, output=((), ()), **more)
        assert counted.columns == []
        assert counted.count() == expected.num_rows


def test_by_keys_and_without_rows(spark: SparkSession, sides: tuple[DataFrame, DataFrame]) -> None:
    left, right = sides
    keyed = join(left, right, JoinType.LEFT_ANTI, Strategy.BROADCAST, build_side=Side.LEFT)
    expected = arrow_of(in_spark(spark, JoinType.LEFT_ANTI, "l0 = r0"))
    assert_same_rows(arrow_of(keyed), expected, check_types=False)
    condition = resolve(CONDITIONS["range"][0], arrow_schema(left.schema), arrow_schema(right.schema))
    how = {"keys": (), "condition": condition, "build_side": Side.LEFT}
    for none in (right.where("false"), right.where("r1 < 0")):
        assert join(left, none, JoinType.LEFT_ANTI, Strategy.NESTED_LOOP, **how).count() == 60
    none = left.where("l1 < 0")
    assert join(none, right, JoinType.LEFT_ANTI, Strategy.NESTED_LOOP, **how).count() == 0


def test_chosen_where_the_left_side_is_much_smaller(
    spark: SparkSession, sides: tuple[DataFrame, DataFrame]
) -> None:
    left, right = sides
    many = right.unionAll(right).unionAll(right)
    on = (left.l0 > many.r0) & ((left.l1 + many.r1) % 3 == 0)
    spark.conf.set("spark.gpujoin.scan.fuse", "false")
    found = gpu_join(left, many, on, "left_anti", backend="cpu")
    (made,) = explain(found).joins
    assert (made.strategy, made.build_side) == (Strategy.NESTED_LOOP, Side.LEFT)
    assert made.shape == Shape.RANGE.value
    assert "tasks mark which left rows have a match" in str(explain(found))
    assert_same_rows(found.toArrow(), left.join(many, on, "left_anti").toArrow())
    for frames in ((many, left), (left, many.hint("broadcast"))):
        other = gpu_join(*frames, frames[0][frames[0].columns[0]] > 3, "left_semi", backend="cpu")
        assert explain(other).joins[0].build_side is Side.RIGHT
    spark.conf.set("spark.gpujoin.backend", "cpu")
    many.createOrReplaceTempView("met")
    try:
        native = in_spark(spark, JoinType.EXISTENCE, "r0 between l0 and l0 + 4")
        whole = accelerate(native)
        (existence,) = explain(whole).joins
        assert (existence.join_type, existence.build_side) == ("existence", Side.LEFT)
        assert_same_rows(whole.toArrow(), native.toArrow())
    finally:
        spark.conf.unset("spark.gpujoin.backend")
