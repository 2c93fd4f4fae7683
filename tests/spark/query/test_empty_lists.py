"""``IN`` of no values: false, or null of a null, as settings say, also where Spark's optimizer has left it."""

from __future__ import annotations

from itertools import product

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from tests.spark.query.queries import EXCHANGED, FORCED, check, check_all

_LEFT = {"spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.OptimizeIn"}
_LEGACY = "spark.sql.legacy.nullInEmptyListBehavior"
_CASES = {
    "ansi": {"spark.sql.ansi.enabled": "true"},
    "not ansi": {"spark.sql.ansi.enabled": "false"},
    "ansi, legacy": {"spark.sql.ansi.enabled": "true", _LEGACY: "true"},
    "not ansi, not legacy": {"spark.sql.ansi.enabled": "false", _LEGACY: "false"},
}
_NULL_OF_NULL = {"not ansi", "ansi, legacy"}
_PLACES = {"one task": FORCED, "exchanged": EXCHANGED}
_SHORT = {("ansi", "exchanged"), ("not ansi", "one task")}
_SETTINGS = [
    pytest.param(
        place | _LEFT | case,
        name in _NULL_OF_NULL,
        id=f"{name}-{where}",
        marks=[] if (name, where) in _SHORT else pytest.mark.extra,
    )
    for (name, case), (where, place) in product(_CASES.items(), _PLACES.items())
]

pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])]


def _conditions(spark: SparkSession) -> list[Column]:
    sales = spark.table("sales")
    operands = [*(sales[name] for name in sales.columns), sf.lit(None), sf.lit(7), sales["k"] + sf.lit(1)]
    return [turned for operand in operands for turned in (operand.isin([]), ~operand.isin([]))]


def _frames(spark: SparkSession, conditions: list[Column]) -> list[DataFrame]:
    sales = spark.table("sales")
    values = sales.select("k", *(condition.alias(f"c{n}") for n, condition in enumerate(conditions)))
    names = [f"c{n}" for n in range(len(conditions))]
    counts = [sf.count(name).alias(f"n{name}") for name in names]
    totals = [sf.count_if(name).alias(f"t{name}") for name in names]
    return [values.groupBy("k").agg(*counts, *totals), *(sales.filter(c).groupBy("k").count() for c in conditions[4:6])]


@pytest.mark.parametrize(("settings", "null_of_null"), _SETTINGS)
def test_membership_in_no_values(tables: SparkSession, settings: dict[str, str], null_of_null: bool) -> None:
    for key, value in settings.items():
        tables.conf.set(key, value)
    conditions = _conditions(tables)
    of_text = tables.table("sales").select(conditions[4].alias("c")).filter("c is null").count()
    assert (of_text == 1) is null_of_null, "the rule is off, and the settings decide"
    frames = {str(number): frame for number, frame in enumerate(_frames(tables, conditions))}
    assert all(found.islands for found in check_all(frames, empty=frames).values())


def test_an_operand_is_not_evaluated_where_it_does_not_matter(tables: SparkSession) -> None:
    """It would divide by zero."""
    for key, value in (_LEFT | _CASES["ansi"]).items():
        tables.conf.set(key, value)
    sales = tables.table("sales")
    frame = sales.groupBy((sales["id"] / (sales["k"] - 1)).isin([]).alias("c"), "k").count()
    assert check(frame).islands


def test_the_settings_are_those_of_when_the_query_runs(tables: SparkSession) -> None:
    tables.conf.set(*next(iter(_LEFT.items())))
    frames = []
    for null_of_null in ("true", "false"):
        tables.conf.set(_LEGACY, null_of_null)
        frames.append(tables.sql("select * from sales").groupBy(sf.col("s").isin([]).alias("c"), "k").count())
    assert frames[0].columns == frames[1].columns, "analyzed"
    for frame in frames:
        assert check(frame).islands
