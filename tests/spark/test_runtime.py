"""The runtime beneath ``gpu_join``: both strategies against Spark's own joins."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from gpujoin.config import Options, Strategy
from gpujoin.errors import JoinSpecError
from gpujoin.model.expressions import left as left_column
from gpujoin.model.expressions import right as right_column
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import NullEquality
from gpujoin.plan.resolve import resolve
from gpujoin.plan.strategy import marked_side
from gpujoin.spark.broadcast import can_broadcast
from gpujoin.spark.compat import arrow_schema
from gpujoin.spark.runtime import PARTITION_BYTES, exchange_partitions
from gpujoin.testing import assert_same_rows
from tests.spark.joins import arrow_of, join, renamed, request, spark_join

pytestmark = pytest.mark.spark
TYPES = [how for how in JoinType if how is not JoinType.CROSS and not how.null_aware]


def legal(strategy: Strategy, how: JoinType, side: Side) -> bool:
    return strategy is Strategy.SHUFFLE or can_broadcast(how, side)


Answers = Callable[[JoinType, str], pa.Table]


@pytest.fixture(scope="module")
def sides(spark_session: SparkSession, seed: int) -> tuple[DataFrame, DataFrame]:
    """Two small frames: duplicates, nulls, keys of one side only, text."""
    rng = np.random.default_rng(seed)

    def frame(letter: str, rows: int, low: int, high: int) -> DataFrame:
        keys = rng.integers(low, high, rows)
        data = [
            (None if rng.random() < 0.1 else int(key), f"{letter}é{n % 13}", float(n), None if n % 5 else n)
            for n, key in enumerate(keys)
        ]
        made = spark_session.createDataFrame(
            data, f"{letter}0 int, {letter}1 string, {letter}2 double, {letter}3 long"
        )
        return made.repartition(3).localCheckpoint()

    return frame("l", 700, 0, 300), frame("r", 400, 100, 400)


def without_rows_of(empty: str, sides: tuple[DataFrame, DataFrame]) -> tuple[DataFrame, DataFrame]:
    """The frames, that of the side named, or both, without rows."""
    left, right = sides
    return (
        left.where("l2 < 0") if empty in ("left", "both") else left,
        right.where("r2 < 0") if empty in ("right", "both") else right,
    )


@pytest.fixture(scope="module")
def answers(sides: tuple[DataFrame, DataFrame]) -> Answers:
    """Spark's own join of the frames, computed once for each type and empty side."""
    return cache(lambda how, empty: arrow_of(spark_join(*without_rows_of(empty, sides), how)))


CASES = [
    pytest.param(strategy, how, side, id=f"{strategy.value}-{how.value}-{side.value}")
    for strategy, how, side in product((Strategy.SHUFFLE, Strategy.BROADCAST), TYPES, Side)
    if legal(strategy, how, side)
]


@pytest.mark.parametrize(("strategy", "how", "side"), CASES)
def test_equals_sparks_join(
    strategy: Strategy, how: JoinType, side: Side, sides: tuple[DataFrame, DataFrame], answers: Answers
) -> None:
    left, right = sides
    ours = join(left, right, how, strategy, build_side=side, partitions=3)
    theirs = spark_join(left, right, how)
    assert [(f.name, f.dataType, f.nullable) for f in ours.schema] == [
        (f.name, f.dataType, f.nullable if f.name != "exists" else False) for f in theirs.schema
    ]
    plan = ours._jdf.queryExecution().executedPlan().toString()
    assert "gpujoin_test" in plan
    assert "Join" not in plan
    assert_same_rows(arrow_of(ours), answers(how, ""), check_types=False)


@pytest.mark.parametrize(
    "spark",
    [{"spark.sql.adaptive.enabled": "false"}, {"spark.sql.shuffle.partitions": "1"},
     {"spark.sql.execution.arrow.maxRecordsPerBatch": "3"}, {"spark.sql.execution.arrow.maxBytesPerBatch": "2047m"},
     {"spark.sql.execution.arrow.useLargeVarTypes": "true"}],
    indirect=True, ids=["not adaptive", "one partition", "tiny batches", "huge batches", "large types"],
)  # fmt: skip
@pytest.mark.parametrize("strategy", [Strategy.SHUFFLE, Strategy.BROADCAST], ids=lambda s: s.value)
def test_under_other_settings(
    spark: SparkSession, strategy: Strategy, sides: tuple[DataFrame, DataFrame], answers: Answers
) -> None:
    left, right = sides
    how = JoinType.FULL if strategy is Strategy.SHUFFLE else JoinType.LEFT
    options = Options(exchange_blob_bytes=2000, batch_bytes=1000, fallback="raise")  # type: ignore[arg-type]
    ours = join(left, right, how, strategy, options=options)
    assert_same_rows(arrow_of(ours), answers(how, ""), check_types=False)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_null_safe_keys_and_compression(compression: str, sides: tuple[DataFrame, DataFrame]) -> None:
    left, right = sides
    options = Options(exchange_compression=compression)  # type: ignore[arg-type]
    for strategy in (Strategy.SHUFFLE, Strategy.BROADCAST):
        ours = join(left, right, JoinType.INNER, strategy, nulls=NullEquality.EQUAL, options=options)
        theirs = spark_join(left, right, JoinType.INNER, NullEquality.EQUAL)
        assert_same_rows(arrow_of(ours), arrow_of(theirs), check_types=False)


@pytest.mark.parametrize("strategy", [Strategy.SHUFFLE, Strategy.BROADCAST], ids=lambda s: s.value)
@pytest.mark.parametrize("empty", ["left", "right", "both"])
def test_empty_sides(
    strategy: Strategy, empty: str, sides: tuple[DataFrame, DataFrame], answers: Answers
) -> None:
    left, right = without_rows_of(empty, sides)
    for how in (JoinType.INNER, JoinType.LEFT, JoinType.LEFT_ANTI):
        ours = arrow_of(join(left, right, how, strategy))
        assert_same_rows(ours, answers(how, empty), check_types=False, allow_empty=True)


@pytest.mark.parametrize("side", Side, ids=lambda s: s.value)
def test_nested_loops(side: Side, sides: tuple[DataFrame, DataFrame]) -> None:
    left, right = sides[0].where("l2 < 60"), sides[1].where("r2 < 40")
    condition = resolve(
        left_column("l0") < right_column("r0"), arrow_schema(left.schema), arrow_schema(right.schema)
    )
    how = JoinType.LEFT if side is Side.RIGHT else JoinType.RIGHT
    ours = join(left, right, how, Strategy.NESTED_LOOP, keys=(), condition=condition, build_side=side)
    theirs = left.join(right, sf.col("l0") < sf.col("r0"), how.value)
    assert_same_rows(arrow_of(ours), arrow_of(theirs), check_types=False)
    # Both sides preserved and no key: one partition, through the exchange.
    ours = join(left, right, JoinType.FULL, Strategy.SHUFFLE, keys=(), condition=condition, build_side=side)
    theirs = left.join(right, sf.col("l0") < sf.col("r0"), "full")
    assert_same_rows(arrow_of(ours), arrow_of(theirs), check_types=False)


@pytest.mark.parametrize("strategy", [Strategy.SHUFFLE, Strategy.NESTED_LOOP], ids=lambda s: s.value)
def test_sides_and_results_without_columns(spark: SparkSession, strategy: Strategy) -> None:
    left, right = spark.range(23).select(), spark.range(11).select()
    crossed = join(left, right, JoinType.CROSS, strategy, keys=())
    assert crossed.columns == []
    assert crossed.count() == 23 * 11
    numbered = renamed(spark.range(5), "r")
    mixed = join(left, numbered, JoinType.CROSS, strategy, keys=())
    assert mixed.columns == ["r0"]
    assert sorted(row.r0 for row in mixed.collect()) == sorted(list(range(5)) * 23)


@pytest.mark.parametrize("strategy", [Strategy.SHUFFLE, Strategy.BROADCAST], ids=lambda s: s.value)
@pytest.mark.parametrize("inner", ["", "0", "0,null", "1,1,7"])
def test_not_in(spark: SparkSession, strategy: Strategy, inner: str) -> None:
    left = spark.createDataFrame([(0,), (1,), (None,), (5,)], "l0 int").repartition(2)
    values = [(None if v == "null" else int(v),) for v in inner.split(",") if v]
    right = spark.createDataFrame(values, "r0 int")
    ours = join(left, right, JoinType.NULL_AWARE_ANTI, strategy)
    left.createOrReplaceTempView("outer_rows")
    right.createOrReplaceTempView("inner_rows")
    theirs = spark.sql("select l0 from outer_rows where l0 not in (select r0 from inner_rows)")
    assert_same_rows(arrow_of(ours), arrow_of(theirs), allow_empty=True)


def test_a_build_side_over_its_budget_spills(sides: tuple[DataFrame, DataFrame]) -> None:
    left, right = sides
    options = Options(memory_budget=4000, fallback="raise")  # type: ignore[arg-type]
    for strategy in (Strategy.SHUFFLE, Strategy.BROADCAST):
        ours = join(left, right, JoinType.INNER, strategy, options=options, partitions=1)
        assert_same_rows(arrow_of(ours), arrow_of(spark_join(left, right, JoinType.INNER)), check_types=False)


def test_joins_nest_and_run_again(sides: tuple[DataFrame, DataFrame]) -> None:
    left, right = sides
    once = join(left, right, JoinType.INNER, Strategy.SHUFFLE, output=((0, 1), (2,)))
    twice = join(renamed(once, "l"), renamed(right, "r"), JoinType.LEFT, Strategy.BROADCAST)
    expected = spark_join(left, right, JoinType.INNER).select("l0", "l1", "r2").toDF("l0", "l1", "l2")
    theirs = arrow_of(spark_join(expected, right, JoinType.LEFT))
    for _ in range(2):
        assert_same_rows(arrow_of(twice), theirs, check_types=False)


def test_illegal_broadcasts_are_refused_before_any_work(sides: tuple[DataFrame, DataFrame]) -> None:
    left, right = sides
    for how, side in product(JoinType, Side):
        marked = marked_side(how) is side
        if not can_broadcast(how, side) and not marked and how is not JoinType.NULL_AWARE_ANTI:
            with pytest.raises(JoinSpecError, match="cannot broadcast"):
                join(left, right, how, Strategy.BROADCAST, build_side=side)


def test_what_can_be_broadcast() -> None:
    allowed = {(how, side) for how, side in product(JoinType, Side) if can_broadcast(how, side)}
    assert allowed == {
        (JoinType.INNER, Side.LEFT), (JoinType.INNER, Side.RIGHT), (JoinType.CROSS, Side.LEFT),
        (JoinType.CROSS, Side.RIGHT), (JoinType.LEFT, Side.RIGHT), (JoinType.RIGHT, Side.LEFT),
        (JoinType.LEFT_SEMI, Side.RIGHT), (JoinType.LEFT_ANTI, Side.RIGHT),
        (JoinType.EXISTENCE, Side.RIGHT), (JoinType.NULL_AWARE_ANTI, Side.RIGHT),
        (JoinType.NULL_AWARE_EXISTENCE, Side.RIGHT),
    }  # fmt: skip


@pytest.mark.parametrize("spark", [{"spark.sql.shuffle.partitions": "40"}], indirect=True)
def test_partitions_follow_the_data(spark: SparkSession, sides: tuple[DataFrame, DataFrame]) -> None:
    cores = spark.sparkContext.defaultParallelism

    def count(*sizes: int | None, **more: object) -> int:
        pair = (sizes[0], sizes[1])
        asked = request(*sides, JoinType.INNER, Strategy.SHUFFLE, sizes=pair, **more)  # type: ignore[arg-type]
        return exchange_partitions(asked, spark)

    assert count(1000, 1000) == 1
    assert count(PARTITION_BYTES, 1) == cores
    assert count(10 * PARTITION_BYTES, 5 * PARTITION_BYTES) == max(15, cores)
    assert count(1 << 50, 1) == 40
    assert count(None, 1000) == min(40, 4 * cores)
    assert count(1000, 1000, partitions=9) == 9
    assert count(1000, 1000, options=Options(exchange_partitions=6)) == 6
    assert count(1 << 50, 1, partitions=9, keys=()) == 1


def test_all_partitions_are_used_and_none_is_merged(spark: SparkSession) -> None:
    left, right = renamed(spark.range(0, 4000, 1, 4), "l"), renamed(spark.range(0, 4000, 1, 4), "r")
    joined = join(left, right, JoinType.INNER, Strategy.SHUFFLE, partitions=7)
    parts = joined.groupBy(sf.spark_partition_id()).count().collect()
    assert sorted(row[0] for row in parts) == list(range(7))
    assert sum(row["count"] for row in parts) == 4000
