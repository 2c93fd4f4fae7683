"""gpu_join against ``DataFrame.join``: every join type, strategy, spelling and setting, the path asserted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import cycle
from typing import Any

import pytest
from pyspark.errors import ArithmeticException, PythonException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from gpujoin import explain, gpu_join
from gpujoin.config import Strategy
from tests.brief import brief
from tests.spark.front import Join, check, left_side, only, right_side

pytestmark = pytest.mark.spark

TYPES = ("inner", "left", "right", "full", "left_semi", "left_anti")
FULL_BROADCAST = ("full", "broadcast")
"""No side of a full outer join may be broadcast."""

SETTINGS = [
    {"spark.sql.adaptive.enabled": adaptive, "spark.sql.ansi.enabled": ansi}
    for adaptive, ansi in (("true", "true"), ("false", "false"), ("true", "false"), ("false", "true"))
]


def under_settings(cases: Sequence[tuple[str, ...]], each: int = 4) -> list[Any]:
    """Cases under each of the settings: under one of the first two, in turn, is one of ``each`` not left out."""
    return [
        pytest.param(
            setting, *case, id="-".join([f"adaptive={adaptive}-ansi={ansi}", *case]),
            marks=pytest.mark.slow if rank != turn % 2 else [pytest.mark.extra] * (turn % each > 0),
        )
        for turn, case in enumerate(cases)
        for rank, setting in enumerate(SETTINGS)
        for adaptive, ansi in [setting.values()]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("spark", "how", "strategy"),
    under_settings(
        [(how, way) for how in TYPES for way in ("broadcast", "shuffle") if (how, way) != FULL_BROADCAST], each=5
    ),
    indirect=["spark"],
)
def test_equality_and_condition(spark: SparkSession, how: str, strategy: str) -> None:
    left, right = left_side(spark).alias("a"), right_side(spark).alias("b")

    def query(join: Join) -> DataFrame:
        on = (
            (sf.col("a.k") == sf.col("b.k"))
            & (sf.col("a.d") >= sf.col("b.d"))
            & (sf.col("a.s") != "y")
            & (sf.col("b.rid") > 5)
        )
        return join(left, right, on, how)

    assert only(check(spark, query, strategy=strategy)) is Strategy(strategy)


@pytest.mark.parametrize(
    ("spark", "how"), under_settings([(how,) for how in TYPES if how != "full"]), indirect=["spark"]
)
def test_no_equality(spark: SparkSession, how: str) -> None:
    left, right = left_side(spark), right_side(spark)
    found = check(
        spark,
        lambda join: join(left, right, (left.d < right.d) | (left.n > right.n), how),
        strategy="nested_loop",
    )
    assert only(found) is Strategy.NESTED_LOOP


@pytest.mark.parametrize(
    "how",
    brief(
        (
            None, "inner", "cross", "outer", "full", "fullouter", "full_outer", "left", "leftouter", "left_outer",
            "right", "rightouter", "right_outer", "semi", "leftsemi", "left_semi", "anti", "leftanti", "left_anti",
            "LEFT_Outer",
        ),
        None, "cross", "outer", "rightouter", "leftsemi", "anti", "LEFT_Outer",
    ),
)  # fmt: skip
def test_every_spelling(spark: SparkSession, how: Any) -> None:
    left, right = left_side(spark), right_side(spark)
    # Spark reads the word, and the rows of what it reads there are compared above.
    expected, found = (
        left.join(right, "k", how),
        gpu_join(left, right, "k", how, strategy="shuffle", backend="cpu"),
    )
    assert found.schema == expected.schema
    (chosen,) = explain(found).joins
    (plain,) = explain(expected).joins
    assert chosen.accelerated
    assert not plain.accelerated
    assert chosen.join_type == plain.join_type or (plain.join_type, chosen.join_type) == ("cross", "inner")


NAMES: list[Any] = ["k", "s", "d", "t", "z", ["k", "s"], ["s", "d", "z"]]


def marks_of(how: str, key: Any, other: str) -> list[pytest.MarkDecorator]:
    """How often ``test_names`` has a case; ``other`` is the type beside a full join that a key has."""
    if (how, key) in (("inner", "k"), ("full", ["s", "d", "z"])):
        return []
    return [pytest.mark.extra if how in (other, "full") else pytest.mark.slow]


@pytest.mark.parametrize(
    ("how", "key"),
    [
        # Every key in a full join and one of the others as extra; in both of them in the long sweeps.
        pytest.param(how, key, id=f"{how}-{key}", marks=marks_of(how, key, other))
        for key, other in zip(NAMES, cycle(("inner", "left_semi")), strict=False)
        for how in ("inner", "full", "left_semi")
    ],
)
def test_names(spark: SparkSession, how: str, key: Any) -> None:
    left, right = left_side(spark), right_side(spark)
    check(spark, lambda join: join(left, right, key, how), strategy="shuffle", allow_empty=how == "inner")


@pytest.mark.parametrize("how", brief(("inner", "left", "full"), "full"))
def test_keys_that_spark_casts_or_computes(spark: SparkSession, how: str) -> None:
    left, right = left_side(spark), right_side(spark)
    on = [
        left.n == right.n,  # decimals of two scales
        left.id + 1 == right.k.cast("bigint") + 1,
        sf.upper(left.s).eqNullSafe(sf.upper(right.s)),
    ]
    for part in on if how != "full" else ():
        check(spark, partial(_join_on, left, right, part, how), strategy="shuffle")
    check(spark, lambda join: join(left, right, on, how), strategy="shuffle", allow_empty=True)


def _join_on(left: DataFrame, right: DataFrame, on: Column, how: str, join: Join) -> DataFrame:
    return join(left, right, on, how)


@pytest.mark.parametrize("how", brief(TYPES, "full"))
def test_null_safe_equality(spark: SparkSession, how: str) -> None:
    left, right = left_side(spark), right_side(spark)
    check(spark, lambda join: join(left, right, left.k.eqNullSafe(right.k), how), strategy="shuffle")


@pytest.mark.parametrize(
    "how",
    [pytest.param(None, marks=pytest.mark.extra), pytest.param("inner", marks=pytest.mark.extra), "cross"],
)
def test_product(spark: SparkSession, how: str | None) -> None:
    left, right = left_side(spark), right_side(spark)
    found = check(spark, lambda join: join(left, right, None, how), strategy="nested_loop")
    assert only(found) is Strategy.NESTED_LOOP
    counted = check(spark, lambda join: join(left, right, None, how).select(sf.count("*")), strategy="nested_loop")
    assert len(counted.joins) == 1


CONDITIONS = [
    "a.d between b.d - 1 and b.d + 1",
    "a.n * b.n > 1",
    "a.s like concat(b.s, '%') or b.s is null",
    "a.t < b.t + interval 36 hours",
    "coalesce(a.k, b.k) > 1 and not (a.s <=> b.s)",
    "case when a.k > b.k then a.d > 0 when a.k < b.k then b.d > 0 else a.n = b.n end",
    "a.k in (b.k, b.rid, 3)",
    "nvl(a.k, b.k) = 2 or nullif(a.s, b.s) is null",
    "a.z.a < b.z.a or a.z.b = b.s",
    "greatest(a.k, b.k) = 2 and least(a.d, b.d) < 5",
    "try_add(a.k, b.k) is not null",
    "startswith(a.s, b.s) or contains(b.s, a.s)",
    "upper(a.s) = b.s and a.k is distinct from b.k",
    "datediff(a.t, date'2020-01-01') < b.k",
]


@pytest.mark.parametrize(("spark", "condition"), under_settings([(c,) for c in CONDITIONS], each=8), indirect=["spark"])
def test_conditions(spark: SparkSession, condition: str) -> None:
    left, right = left_side(spark).alias("a"), right_side(spark).alias("b")
    check(spark, lambda join: join(left, right, sf.expr(condition), "left"), strategy="nested_loop")


@pytest.mark.extra
@pytest.mark.parametrize("spark", [{"spark.sql.ansi.enabled": "true"}], indirect=True)
def test_an_error_on_data_is_an_error_here_too(spark: SparkSession) -> None:
    left, right = left_side(spark).alias("a"), right_side(spark).alias("b")
    on = sf.expr("a.k + b.k > 3")
    for joined in (left.join(right, on), gpu_join(left, right, on, strategy="nested_loop", backend="cpu")):
        with pytest.raises(ArithmeticException, match=r"ARITHMETIC_OVERFLOW(?s:.)*a\.k \+ b\.k > 3"):
            joined.collect()
    spark.conf.set("spark.gpujoin.fallback", "raise")
    # The message has the user's names, not those of the columns that workers are sent.
    with pytest.raises(PythonException, match=r"left\.k \+ right\.k: (?s:.)*overflow"):
        gpu_join(left, right, on, strategy="nested_loop", backend="cpu").collect()


def test_a_filter_guards_a_key_that_may_fail(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.ansi.enabled", "true")
    left = spark.createDataFrame([("1", True), ("x", False)], "s string, number boolean")
    right = spark.range(3)
    on = left.number & (left.s.cast("int") == right.id)
    check(spark, lambda join: join(left, right, on), strategy="shuffle")


def test_a_decimal_that_overflows_without_a_partner_is_no_error(spark: SparkSession) -> None:
    """Sums of one side are computed before the join only if they cannot fail; those of decimals can, in ANSI mode."""
    spark.conf.set("spark.sql.ansi.enabled", "true")
    left = spark.createDataFrame([(1, "1"), (7, "9" * 38)], "k int, x string").selectExpr(
        "k", "cast(x as decimal(38, 0)) as x"
    )
    right = spark.range(3).selectExpr("cast(id as int) as k", "id as y")
    on = (left.k == right.k) & (left.x + left.x > right.y)
    check(spark, lambda join: join(left, right, on), strategy="shuffle")


@pytest.mark.parametrize("value", brief(("-x", "abs(x)", "x div y", "x % y"), "x div y"))
def test_a_decimal_of_too_many_digits_without_a_partner_is_no_error(spark: SparkSession, value: str) -> None:
    """Spark negates decimals with 34 digits and divides them with 39; a longer result is an error in every mode."""
    spark.conf.set("spark.sql.ansi.enabled", "false")
    left = spark.createDataFrame([(1, "-7", "0.5"), (7, "-" + "9" * 38, "7E-38")], "k int, x string, y string")
    left = left.selectExpr("k", "cast(x as decimal(38, 0)) as x", "cast(y as decimal(38, 38)) as y")
    right = spark.range(3).selectExpr("cast(id as int) as k", "id as z")
    on = (left.k == right.k) & (sf.expr(value) < right.z * 1000)
    check(spark, lambda join: join(left, right, on), strategy="shuffle")
