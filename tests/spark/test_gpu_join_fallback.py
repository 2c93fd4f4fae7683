"""What is left to Spark: the reasons, how they are told, and that the query is then Spark's own, untouched."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from gpujoin import (
    BackendUnavailableError,
    ConfigurationError,
    FallbackError,
    JoinSpecError,
    explain,
    gpu_join,
)
from gpujoin.backends.registry import unavailable
from gpujoin.model.backend import BackendName
from gpujoin.model.jointype import SparkJoinName
from gpujoin.model.reasons import ReasonKind
from tests.spark.front import left_side, right_side

pytestmark = pytest.mark.spark

REFUSED: dict[str, tuple[Callable[[DataFrame, DataFrame], Column | str | None], SparkJoinName, str]] = {
    "function over both sides": (
        lambda a, b: (a.k == b.k) & (sf.format_string("%S%s", a.s, b.s) < "x"), "inner", "format_string(",
    ),
    "key of an interval": (
        lambda a, b: sf.make_ym_interval(sf.lit(0), a.k) == sf.make_ym_interval(sf.lit(0), b.k), "inner",
        "nothing is joined here",
    ),
    "key with a collation": (
        lambda a, b: sf.collate(a.s, "UTF8_LCASE") == sf.collate(b.s, "UTF8_LCASE"), "inner", "collate",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(spark: SparkSession, name: str, caplog: pytest.LogCaptureFixture) -> None:
    condition, how, why = REFUSED[name]
    left, right = left_side(spark), right_side(spark)
    on = condition(left, right)
    joined = gpu_join(left, right, on, how, backend="cpu")
    with caplog.at_level(logging.WARNING, "gpujoin"):
        rows = joined.collect()
    assert why in caplog.text
    assert sorted(map(str, rows)) == sorted(map(str, left.join(right, on, how).collect()))
    (join,) = explain(joined.where("rid > 0")).joins
    assert join.backend == "spark"
    assert any(why in str(reason) for reason in join.reasons)
    spark.conf.set("spark.gpujoin.fallback", "raise")
    with pytest.raises(FallbackError, match="left to Spark") as caught:
        gpu_join(left, right, on, how, backend="cpu").where("rid > 0").collect()
    assert caught.value.reasons == join.reasons


def test_every_key_that_is_not_covered_is_told(spark: SparkSession) -> None:
    spark.conf.set("spark.gpujoin.fallback", "raise")
    left, right = left_side(spark), right_side(spark)
    on = (sf.make_ym_interval(left.k) == sf.make_ym_interval(right.k)) & (
        sf.make_dt_interval(left.k) == sf.make_dt_interval(right.k)
    )
    with pytest.raises(FallbackError) as caught:
        gpu_join(left, right, on, backend="cpu").collect()
    (reason,) = caught.value.reasons
    assert str(reason).count("nothing is joined here") == 2


def test_auto_leaves_a_plain_join_to_spark_without_a_gpu(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    if unavailable(BackendName.GPU) is None:
        pytest.skip("there is a GPU")
    left, right = left_side(spark), right_side(spark)
    with caplog.at_level(logging.WARNING, "gpujoin"):
        joined = gpu_join(left, right, "k")
        assert joined.count() == left.join(right, "k").count()
    assert len(caplog.records) == 1
    (join,) = explain(joined).joins
    assert [reason.kind for reason in join.reasons] == [ReasonKind.SLOWER]
    assert "strategy=" in str(join.reasons[0])
    spark.conf.set("spark.gpujoin.fallback", "raise")
    assert gpu_join(left, right, "k").count() == joined.count()


def test_silence(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    spark.conf.set("spark.gpujoin.fallback", "silent")
    with caplog.at_level(logging.WARNING, "gpujoin"):
        gpu_join(left_side(spark), right_side(spark), "k").collect()
    assert not caplog.records


@pytest.mark.parametrize("setting", [("spark.gpujoin.enabled", "false"), ("spark.gpujoin.strategy", "spark")])
def test_switched_off(spark: SparkSession, setting: tuple[str, str], caplog: pytest.LogCaptureFixture) -> None:
    spark.conf.set("spark.gpujoin.fallback", "raise")
    spark.conf.set(*setting)
    with caplog.at_level(logging.WARNING, "gpujoin"):
        joined = gpu_join(left_side(spark), right_side(spark), "k")
        assert joined.count() > 0
    assert not caplog.records
    found = explain(joined)
    reasons = [*found.reasons, *(reason for join in found.joins for reason in join.reasons)]
    assert [reason.kind for reason in reasons] == [ReasonKind.CONFIGURED]


def test_spark_raises_what_it_raises(spark: SparkSession) -> None:
    left, right = left_side(spark), right_side(spark)
    for given in ({"on": "nowhere"}, {"on": "k", "how": "runtime_filters"}, {"on": "id"},
                  {"on": "k", "how": "existence"}, {"on": "k", "how": "null_aware_anti"},
                  {"on": left.z == right.k}):  # fmt: skip
        with pytest.raises(AnalysisException) as expected:
            left.join(right, **given)
        with pytest.raises(AnalysisException) as actual:
            gpu_join(left, right, **given)
        assert actual.value.getCondition() == expected.value.getCondition()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on": ("k",)}, r"a list of either, got \('k',\); write on=\['k'\]"),
        ({"on": True}, "got True; for all pairs of rows leave it out and write how='cross'"),
        ({"on": ["k", 3]}, r"got \['k', 3\]$"),
        ({"left_on": "k", "right_on": "k"}, "takes no argument left_on, right_on; .* write on=left.a == right.b"),
        ({"on": "k", "suffixes": ("", "_r")}, "takes no argument suffixes$"),
        ({"on": []}, "on is an empty list; for all pairs of rows leave it out"),
        ({"on": "k", "how": 5}, "how must be the name of a join type such as 'left', got 5"),
    ],
    ids=["tuple", "True", "number", "left_on", "suffixes", "empty list", "number as type"],
)
def test_arguments_that_spark_does_not_understand(spark: SparkSession, arguments: Any, message: str) -> None:
    left, right = left_side(spark), right_side(spark)
    with pytest.raises(JoinSpecError, match=message):
        gpu_join(left, right, **arguments)


def test_bad_arguments(spark: SparkSession) -> None:
    left, right = left_side(spark), right_side(spark)
    with pytest.raises(ConfigurationError, match=r"strategy.*'brodcast'.*broadcast"):
        gpu_join(left, right, "k", strategy="brodcast")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"backend.*'tpu'"):
        gpu_join(left, right, "k", backend="tpu")  # type: ignore[arg-type]
    spark.conf.set("spark.gpujoin.batchBytes", "-5")
    with pytest.raises(ConfigurationError, match=r"spark\.gpujoin\.batchBytes"):
        gpu_join(left, right, "k")
    spark.conf.unset("spark.gpujoin.batchBytes")
    spark.conf.set("spark.gpujoin.strateg", "auto")
    with pytest.raises(ConfigurationError, match=r"Did you mean 'spark\.gpujoin\.strategy'"):
        gpu_join(left, right, "k")
    spark.conf.unset("spark.gpujoin.strateg")
    with pytest.raises(JoinSpecError, match="right must be a Spark DataFrame, got int"):
        gpu_join(left, 3, "k")  # type: ignore[arg-type]
    with pytest.raises(JoinSpecError, match=r"left must be a Spark DataFrame, got pandas\.DataFrame"):
        gpu_join(right.toPandas(), right, "k")


def test_a_gpu_that_cannot_be_there(spark: SparkSession) -> None:
    if unavailable(BackendName.GPU) is None:
        pytest.skip("there is a GPU")
    with pytest.raises(BackendUnavailableError, match="gpu"):
        gpu_join(left_side(spark), right_side(spark), "k", backend="gpu")
