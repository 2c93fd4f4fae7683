"""explain(): every join of a plan, ours and Spark's, whatever was done with the result."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from gpujoin import Explanation, GpuJoinError, Side, explain, gpu_join
from gpujoin.config import Strategy
from tests.spark.front import left_side, right_side

pytestmark = pytest.mark.spark


def test_no_joins(spark: SparkSession) -> None:
    assert explain(spark.range(3)) == Explanation()
    assert (
        str(explain(spark.range(3)))
        == "nothing to run here: neither a join nor an aggregation, nor first rows in an order"
    )


def test_several_joins(spark: SparkSession) -> None:
    left, right = left_side(spark), right_side(spark).withColumnRenamed("s", "w")
    first = gpu_join(left, right, "k", "full", strategy="shuffle", backend="cpu")
    second = gpu_join(
        first.alias("f"),
        right.alias("b"),
        sf.expr("f.k = b.k and f.id < b.rid"),
        "left",
        strategy="broadcast",
        backend="cpu",
    )
    observed = second.select("f.id", "f.w").observe("seen", sf.count("*").alias("n"))
    third = observed.where("id > 1").join(left.select("id"), "id", "left_semi")
    found = explain(third.groupBy("w").count())
    assert [(j.join_type, j.strategy.value, j.backend) for j in found.joins] == [
        ("left_semi", "spark", "spark"),
        ("left", "broadcast", "cpu"),
        ("full", "shuffle", "cpu"),
    ]
    ours = found.joins[1]
    assert ours.build_side is Side.RIGHT
    assert ours.keys == ("k = k",)
    assert ours.condition == "left.id < right.rid"
    text = str(found)
    for part in ("left_semi join on id = id: left to Spark", "left join, right side built, k = k", "full join"):
        assert part in text


def test_the_driver_says_what_it_knows_of_gpus(spark: SparkSession) -> None:
    (island,) = explain(gpu_join(left_side(spark), right_side(spark), "k", strategy="shuffle")).islands
    assert island.backend in ("cpu", "gpu")
    assert any(note.text.startswith("backend auto") for note in island.notes) is (island.backend == "gpu")


@pytest.mark.parametrize("side", list(Side), ids=lambda side: side.value)
@pytest.mark.parametrize("hint", ["broadcast", "shuffle_hash", "merge", "shuffle_replicate_nl"])
def test_hints(spark: SparkSession, hint: str, side: Side) -> None:
    sides = {Side.LEFT: left_side(spark), Side.RIGHT: right_side(spark)}
    sides[side] = sides[side].hint(hint)
    for name in ("oneTaskBytes", "taskBytes"):
        spark.conf.set(f"spark.gpujoin.scan.{name}", "1")
    (join,) = explain(gpu_join(sides[Side.LEFT], sides[Side.RIGHT], "k", backend="cpu")).joins
    assert join.strategy is (Strategy.BROADCAST if hint == "broadcast" else Strategy.SHUFFLE)
    if hint in ("broadcast", "shuffle_hash"):
        assert join.build_side is side


def test_logging(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    spark.conf.set("spark.gpujoin.explain", "all")
    with caplog.at_level(logging.WARNING, "gpujoin"):
        gpu_join(left_side(spark), right_side(spark), "k", strategy="shuffle", backend="cpu").collect()
    assert "inner join, right side built, k = k" in caplog.text


def test_not_a_dataframe() -> None:
    with pytest.raises(GpuJoinError, match="got int"):
        explain(3)  # type: ignore[arg-type]
