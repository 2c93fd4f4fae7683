"""Joins of DataFrames in stages that public methods place, against Spark's own joins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from gpujoin.config import Strategy
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import NullEquality
from gpujoin.model.stages import DeterminismLevel, Distribution
from gpujoin.plan.distribution import DIVIDES
from gpujoin.report.metrics import metrics
from gpujoin.testing import assert_same_rows
from tests.brief import brief, each_once
from tests.spark.checkpoints import checkpoints_dropped
from tests.spark.joins import frame_join, joined, spark_join

pytestmark = pytest.mark.spark
KINDS = (
    JoinType.INNER, JoinType.LEFT, JoinType.RIGHT, JoinType.FULL, JoinType.LEFT_SEMI, JoinType.LEFT_ANTI
)  # fmt: skip
REPLICATED = {Side.LEFT: Distribution.LEFT_REPLICATED, Side.RIGHT: Distribution.RIGHT_REPLICATED}
SELDOM_REPLICATED = (
    (JoinType.INNER, Side.RIGHT), (JoinType.RIGHT, Side.LEFT), (JoinType.LEFT_SEMI, Side.RIGHT)
)  # fmt: skip
WAYS = [
    pytest.param(
        how, distribution, side, id=f"{how.value}-{distribution.value}-{side.value} built",
        # Either side of a shuffled join is built, of one type of join and the next, for which test_gpu_join.py has the
        # types between; of an inner join the left side is replicated, of some others the right one.
        marks=pytest.mark.extra
        if (
            how is not JoinType.FULL or (number % 2 == 0) is (side is Side.LEFT)
            if distribution is Distribution.PARTITIONED
            else (how, side) in SELDOM_REPLICATED
        )
        else [],
    )
    for number, how in enumerate(KINDS)
    for distribution, side in (
        *((REPLICATED[side], side) for side in Side if how in DIVIDES[side.other]),
        *((Distribution.PARTITIONED, side) for side in Side),
    )
]  # fmt: skip
Answers = Callable[[JoinType, str], pa.Table]


@pytest.fixture(scope="module")
def sides(spark_session: SparkSession, seed: int) -> Iterator[tuple[DataFrame, DataFrame]]:
    """Two small frames: duplicates, nulls, keys of one side only, text."""
    rng = np.random.default_rng(seed)

    def frame(letter: str, rows: int, low: int, high: int) -> DataFrame:
        keys = rng.integers(low, high, rows)
        data = [
            (None if rng.random() < 0.1 else int(key), f"{letter}é{n % 13}", float(n), None if n % 5 else n)
            for n, key in enumerate(keys)
        ]
        schema = f"{letter}0 int, {letter}1 string, {letter}2 double, {letter}3 long"
        return spark_session.createDataFrame(data, schema).repartition(3).localCheckpoint()

    with checkpoints_dropped(spark_session):
        yield frame("l", 700, 0, 300), frame("r", 400, 100, 400)


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
    return cache(lambda how, empty: spark_join(*without_rows_of(empty, sides), how).toArrow())


@pytest.mark.parametrize(("how", "distribution", "side"), WAYS)
def test_equals_sparks_join(
    how: JoinType, distribution: Distribution, side: Side, sides: tuple[DataFrame, DataFrame], answers: Answers
) -> None:  # fmt: skip
    planned = frame_join(*sides, how, distribution, side)
    ours, theirs = planned.execute(), spark_join(*sides, how)
    assert [(f.name, f.dataType, f.nullable) for f in ours.schema] == [
        (f.name, f.dataType, f.nullable) for f in theirs.schema
    ]
    plan = ours._jdf.queryExecution().executedPlan().toString()
    assert planned.join_id in plan
    assert "Join" not in plan
    assert_same_rows(ours.toArrow(), answers(how, ""), check_types=False)
    (join,) = planned.explained().joins
    partitioned = distribution is Distribution.PARTITIONED
    assert join.strategy is (Strategy.SHUFFLE if partitioned else Strategy.BROADCAST)
    report = metrics(ours)[-1]
    assert report.metrics.pipeline.output_rows == answers(how, "").num_rows


@pytest.mark.parametrize(
    "spark",
    [
        pytest.param({"spark.sql.adaptive.enabled": "false"}, id="not adaptive", marks=pytest.mark.extra),
        pytest.param({"spark.sql.shuffle.partitions": "1"}, id="one partition", marks=pytest.mark.extra),
        pytest.param({"spark.sql.execution.arrow.maxRecordsPerBatch": "3"}, id="tiny batches"),
        pytest.param(
            {"spark.sql.execution.arrow.maxBytesPerBatch": "2047m"}, id="huge batches", marks=pytest.mark.extra
        ),
        pytest.param(
            {"spark.sql.execution.arrow.useLargeVarTypes": "true"}, id="large types", marks=pytest.mark.extra
        ),
    ],
    indirect=True,
)  # fmt: skip
def test_under_other_settings(spark: SparkSession, sides: tuple[DataFrame, DataFrame], answers: Answers) -> None:
    ours = joined(*sides, JoinType.FULL, partitions=None, exchange_blob_bytes=2000, batch_bytes=1000)
    assert_same_rows(ours.toArrow(), answers(JoinType.FULL, ""), check_types=False)


@pytest.mark.parametrize("compression", brief(("lz4", "zstd"), "lz4"))
def test_null_safe_keys_and_compression(compression: str, sides: tuple[DataFrame, DataFrame]) -> None:
    ours = joined(*sides, JoinType.INNER, nulls=NullEquality.EQUAL, exchange_compression=compression)
    theirs = spark_join(*sides, JoinType.INNER, NullEquality.EQUAL)
    assert_same_rows(ours.toArrow(), theirs.toArrow(), check_types=False)


@pytest.mark.parametrize(
    ("empty", "way"),
    each_once(
        ("left", "right", "both"),
        (Distribution.PARTITIONED.value, Distribution.RIGHT_REPLICATED.value),
        extra=["left"],
    ),
)
def test_empty_sides(empty: str, way: str, sides: tuple[DataFrame, DataFrame], answers: Answers) -> None:
    distribution = Distribution(way)
    for how in (JoinType.LEFT,) if empty == "both" else (JoinType.LEFT, JoinType.LEFT_ANTI):
        ours = joined(*without_rows_of(empty, sides), how, distribution)
        assert_same_rows(ours.toArrow(), answers(how, empty), check_types=False, allow_empty=True)


def test_rows_that_may_be_others_when_computed_again(sides: tuple[DataFrame, DataFrame], answers: Answers) -> None:
    """What is asked for is done, with rows of which nothing is known, as by Spark's own shuffle."""
    planned = frame_join(*sides, JoinType.FULL, level=DeterminismLevel.INDETERMINATE)
    assert [join.strategy for join in planned.explained().joins] == [Strategy.SHUFFLE]
    assert_same_rows(planned.execute().toArrow(), answers(JoinType.FULL, ""), check_types=False)


def test_a_build_side_over_its_budget_spills(sides: tuple[DataFrame, DataFrame], answers: Answers) -> None:
    ours = joined(*sides, JoinType.INNER, partitions=1, memory_budget=4000)
    assert_same_rows(ours.toArrow(), answers(JoinType.INNER, ""), check_types=False)
    report = metrics(ours)[-1]
    assert report.metrics.joins.spills


@pytest.mark.extra
def test_joins_nest_and_run_again(sides: tuple[DataFrame, DataFrame]) -> None:
    left, right = sides
    once = joined(left, right, JoinType.INNER).select("l0", "l1", "r2")
    twice = joined(once.toDF("l0", "l1", "l2"), right, JoinType.LEFT, Distribution.RIGHT_REPLICATED)
    expected = spark_join(left, right, JoinType.INNER).select("l0", "l1", "r2").toDF("l0", "l1", "l2")
    theirs = spark_join(expected, right, JoinType.LEFT).toArrow()
    for _ in range(2):
        assert_same_rows(twice.toArrow(), theirs, check_types=False)


def test_all_partitions_are_used_and_none_is_merged(spark: SparkSession) -> None:
    left, right = (spark.range(0, 4000, 1, 4).toDF(name) for name in ("l0", "r0"))
    parts = joined(left, right, JoinType.INNER, partitions=7).groupBy(sf.spark_partition_id()).count()
    counts = {row[0]: row["count"] for row in parts.collect()}
    assert sorted(counts) == list(range(7))
    assert sum(counts.values()) == 4000


@pytest.mark.parametrize("spark", [{"spark.sql.shuffle.partitions": "40"}], indirect=True)
def test_partitions_follow_the_estimated_rows(spark: SparkSession, sides: tuple[DataFrame, DataFrame]) -> None:
    cores = spark.sparkContext.defaultParallelism

    def tasks(rows: float | None, partitions: int | None = None) -> int:
        return frame_join(*sides, JoinType.INNER, rows=rows, partitions=partitions).explained().tasks

    assert tasks(1000) == cores
    assert cores < tasks(2e7) < 40
    assert tasks(1e12) == 40
    assert tasks(None) == min(40, 4 * cores)
    assert tasks(1000, 9) == 9


@pytest.mark.parametrize("letters", [("x", "x"), ("x", "y")], ids=["same", "different"])
def test_columns_that_share_a_name(spark: SparkSession, letters: tuple[str, str]) -> None:
    frame = spark.sql(f"select id, id + 1 as {letters[0]}, id + 2 as {letters[1]} from range(9)")
    rows = joined(frame, frame, JoinType.INNER).collect()
    assert sorted(tuple(row) for row in rows) == [(n, n + 1, n + 2) * 2 for n in range(9)]


def test_keys_that_cannot_be_compared_are_told(spark: SparkSession) -> None:
    frame = spark.sql("select map(id, id) m, id from range(3)")
    planned = frame_join(frame, frame, JoinType.INNER)
    assert "map" in str(planned.obstacles[0])
