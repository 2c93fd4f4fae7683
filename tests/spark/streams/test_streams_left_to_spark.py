"""Which joins of streams run here and which are left to Spark, with what reason; nothing is run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import gpujoin
from gpujoin import gpu_join
from gpujoin.model.reasons import ReasonKind
from gpujoin.report.explanation import Explanation
from tests.spark.streams.queries import PROVIDER, WITHIN

pytestmark = pytest.mark.spark

HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
SCHEMA = "k long, t timestamp, v int, s string, n struct<x: int>, i interval day to second"


@pytest.fixture
def sides(streaming: SparkSession, tmp_path: Path) -> tuple[DataFrame, DataFrame]:
    """Two streams with watermarks, in an enabled session."""
    gpujoin.enable(streaming)
    left, right = (
        streaming.readStream.schema(SCHEMA).parquet(str(tmp_path)).withWatermark("t", "5 seconds").alias(name)
        for name in ("l", "r")
    )
    return left, right


def reason(explanation: Explanation) -> str:
    """The reason for which the only join is left to Spark."""
    (join,) = explanation.joins
    assert not join.accelerated
    (only,) = join.reasons
    return str(only)


def joined(sides: tuple[DataFrame, DataFrame], condition: str = WITHIN, how: str = "left") -> DataFrame:
    return sides[0].join(sides[1], f.expr(condition), how)


def explained(sides: tuple[DataFrame, DataFrame], condition: str = WITHIN, how: str = "left") -> Explanation:
    return gpujoin.explain(joined(sides, condition, how))


def test_explain_tells_how_long_rows_are_kept(sides: tuple[DataFrame, DataFrame]) -> None:
    (join,) = explained(sides).joins
    assert join.accelerated
    assert join.backend == "cpu"
    assert join.keys == ("k = k",)
    text = str(Explanation((join,)))
    assert "left rows are kept until t <= watermark - 5.001 s" in text
    assert "right rows are kept until t <= watermark - 0.001 s" in text
    assert "left rows are late, and dropped, where t <= watermark before" in text
    assert "right.t <= timestamp_add(left.t, interval 5 seconds)" in text
    assert not join.warnings


def test_explain_warns_of_rows_that_are_kept_for_ever(sides: tuple[DataFrame, DataFrame]) -> None:
    (join,) = explained(sides, "l.k = r.k", "inner").joins
    assert join.accelerated
    assert [warning.split(" rows are kept for ever")[0] for warning in join.warnings] == ["left", "right"]


def test_keys_in_time_are_named(sides: tuple[DataFrame, DataFrame]) -> None:
    (join,) = explained(sides, "l.k = r.k and l.t = r.t", "full").joins
    assert "right rows are kept until t <= watermark, a key" in str(Explanation((join,)))


@pytest.mark.parametrize(
    "condition",
    [
        WITHIN + " and try_url_decode(l.s) < '5'",
        WITHIN + " and l.n = r.n",
        WITHIN + " and r.t <= l.t + r.i",
        "l.k + 1 = r.k and l.s like r.s and r.t > l.t - interval 3 hours and r.t < l.t + interval 1 day",
        WITHIN + " and l.k <=> r.v",
    ],
)
def test_conditions_that_run_here(sides: tuple[DataFrame, DataFrame], condition: str) -> None:
    assert explained(sides, condition, "inner").accelerated


_BOTH = "concat(l.s, r.s)"
"""What Spark does not compute for the join beforehand, since it is of both sides."""
_PARTIAL = [
    f"upper({_BOTH})", f"url_decode({_BOTH})", f"mask({_BOTH})", f"space(length({_BOTH}))", f"lpad({_BOTH}, 9, ' ')",
    f"string(unbase64({_BOTH}))", f"conv({_BOTH}, 10, 16)", f"string(to_timestamp_ntz({_BOTH}))",
]  # fmt: skip
"""Calls that fail in a task for some values, where Spark computes them."""


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("l.k = r.k and date_trunc('hour', l.t) <= r.t", "time zone"),
        (WITHIN + " and length(cast(l.t as string)) > 3", "time zone"),
        (
            "l.k = r.k and r.t >= l.t and r.t <= l.t + interval 1 month",
            "is not computed here",
        ),
        ("l.k = r.k and l.t <=> r.t", "compared by <=>"),
        (WITHIN + " and format_string('%s%s', l.s, r.s) < 'x'", "format_string"),
        *((WITHIN + f" and {call} < 'x'", "of some values is known to spark alone") for call in _PARTIAL),
        (WITHIN + " and concat(l.s, r.s) rlike '(?<=a)b'", "rlike"),
        ("l.k = r.k and try_cast(l.s as timestamp) >= r.t - interval 5 seconds", "how long rows are kept"),
        (WITHIN + " and l.v < unix_timestamp()", "the current time"),
    ],
)
def test_conditions_that_are_left_to_spark(sides: tuple[DataFrame, DataFrame], condition: str, why: str) -> None:
    assert why in reason(explained(sides, condition, "left")).lower()


def test_a_day_is_24_hours_only_where_clocks_stay(sides: tuple[DataFrame, DataFrame], streaming: SparkSession) -> None:
    condition = "l.k = r.k and r.t >= l.t and r.t <= l.t + interval 2 days"
    assert explained(sides, condition).accelerated
    streaming.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    assert "not always 24 hours in Europe/Berlin" in reason(explained(sides, condition))
    assert explained(sides, WITHIN).accelerated


@pytest.mark.parametrize(
    ("above", "why"),
    [
        (lambda rows: rows.groupBy("v").count(), "it has another operator that keeps state: Aggregate"),
        (lambda rows: rows.dropDuplicates(["s"]), "it has another operator that keeps state"),
        (lambda rows: rows.limit(3), "it has another operator that keeps state"),
    ],
)
def test_other_state_is_left_to_spark(
    sides: tuple[DataFrame, DataFrame], above: Callable[[DataFrame], DataFrame], why: str
) -> None:
    rows = joined(sides, how="inner").select("l.v", "l.s")
    assert why in reason(gpujoin.explain(above(rows)))


def test_several_joins_are_left_to_spark(sides: tuple[DataFrame, DataFrame]) -> None:
    first = joined(sides, how="inner").select("l.k", f.col("l.t").alias("first"))
    both = first.alias("f").join(sides[1], f.expr("f.k = r.k and r.t >= f.first"), "inner")
    explanation = gpujoin.explain(both)
    assert len(explanation.joins) == 2
    assert all("it has several joins of streams" in str(join.reasons[0]) for join in explanation.joins)


@pytest.mark.parametrize(
    ("setting", "value", "why", "kind"),
    [
        (PROVIDER, HDFS, "its provider is not RocksDB", ReasonKind.UNSUPPORTED),
        ("spark.gpujoin.disable", "streams", "streams is switched off", ReasonKind.CONFIGURED),
        ("spark.gpujoin.disable", "left join", "left_join is switched off", ReasonKind.CONFIGURED),
        ("spark.gpujoin.enabled", "false", "spark.gpujoin.enabled", ReasonKind.CONFIGURED),
        ("spark.gpujoin.strategy", "spark", "Spark was asked for", ReasonKind.CONFIGURED),
    ],
)
def test_settings_leave_joins_to_spark(
    sides: tuple[DataFrame, DataFrame],
    streaming: SparkSession,
    setting: str,
    value: str,
    why: str,
    kind: ReasonKind,
) -> None:
    streaming.conf.set(setting, value)
    explanation = explained(sides)
    assert why in reason(explanation)
    assert explanation.joins[0].reasons[0].kind is kind


def test_a_gpu_that_was_asked_for(streaming: SparkSession, sides: tuple[DataFrame, DataFrame]) -> None:
    streaming.conf.set("spark.gpujoin.backend", "gpu")
    assert "streams are joined on the CPU only" in reason(explained(sides))


def test_rows_that_are_others_each_time(sides: tuple[DataFrame, DataFrame]) -> None:
    left, right = sides
    drawn = left.withColumn("x", f.rand()).alias("l"), right
    assert "other ones each time" in reason(explained(drawn))


def test_two_event_times_of_one_side(streaming: SparkSession, sides: tuple[DataFrame, DataFrame]) -> None:
    left, right = sides
    twice = left.select("*", f.col("t").alias("again")).alias("l"), right
    assert "several event times" in reason(explained(twice))
    streaming.conf.set("spark.sql.streaming.statefulOperator.allowMultiple", "false")
    assert explained(twice).accelerated


def test_current_times_apart_from_the_condition(sides: tuple[DataFrame, DataFrame]) -> None:
    assert gpujoin.explain(joined(sides).select("l.k", f.current_timestamp().alias("now"))).accelerated


def test_joins_that_nobody_asked_for_are_sparks(streaming: SparkSession, tmp_path: Path) -> None:
    reader = streaming.readStream.schema(SCHEMA)
    left, right = (reader.parquet(str(tmp_path)).withWatermark("t", "5 seconds").alias(name) for name in ("l", "r"))
    assert not gpujoin.explain(left.join(right, f.expr(WITHIN))).accelerated
    assert gpujoin.explain(gpu_join(left, right, f.expr(WITHIN), "inner")).accelerated


def test_tables_beside_a_join_of_streams_are_sparks(
    streaming: SparkSession, sides: tuple[DataFrame, DataFrame]
) -> None:
    static = streaming.range(5).selectExpr("id as static")
    with_table = joined(sides, how="inner").join(static, f.expr("l.v < static"))
    of_streams, of_table = gpujoin.explain(with_table).joins
    assert of_streams.accelerated
    assert [reason.why for reason in of_table.reasons] == ["it joins streams with one another too"]


@pytest.mark.parametrize("strategy", ["auto", "shuffle", "broadcast", "nested_loop", "spark"])
def test_strategies_of_a_gpu_join(sides: tuple[DataFrame, DataFrame], strategy: Any) -> None:
    """Streams are joined in one way, whichever strategy is named; only Spark's own is another."""
    left, right = sides
    explanation = gpujoin.explain(gpu_join(left, right, f.expr(WITHIN), "full", strategy=strategy))
    assert explanation.accelerated is (strategy != "spark")
    if strategy != "spark":
        assert [join.strategy.value for join in explanation.joins] == ["shuffle"]
