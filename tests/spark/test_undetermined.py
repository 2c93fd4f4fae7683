"""What Spark leaves open: the examples of docs/undetermined.md give two answers in Spark alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

BIG = "9" * 38
EXAMPLES: dict[str, tuple[str, str, Sequence[str], Sequence[str]]] = {
    "ties of a window's order": (
        "int",
        "select v, row_number() over (partition by v % 1 order by v % 1) n from {rows}",
        ("1", "2"),
        ("{1: 1, 2: 2}", "{1: 2, 2: 1}"),
    ),
    "mode of equal counts": ("int", "select mode(v) from {rows}", ("10", "3", "7"), ("3", "7")),
    "the sign of a zero": ("double", "select cast(min(v) as string) from {rows}", ("0.0", "-0.0"), ("0.0", "-0.0")),
    "a sum that passes its limit and comes back": (
        "decimal(38,0)",
        "select sum(v) from {rows} group by v is null",
        (BIG, BIG, f"-{BIG}"),
        ("None", BIG),
    ),
    "a sum of doubles": ("double", "select sum(v) from {rows}", ("1e16", "-1e16", "1.0"), ("1.0", "0.0")),
    "the first value": ("int", "select first(v) from {rows}", ("1", "2"), ("1", "2")),
}
"""The type of a column, a query over it, and its values; the two answers for these and for their mirror image."""


def answer(spark: SparkSession, dtype: str, query: str, values: Sequence[str]) -> str:
    """What a query gives over rows that come in an order, from one partition."""
    rows = spark.createDataFrame([(value,) for value in values], "v string").coalesce(1)
    answers = spark.sql(query, rows=rows.selectExpr(f"cast(v as {dtype}) v")).collect()
    return str(dict(sorted(map(tuple, answers))) if len(answers[0]) > 1 else answers[0][0])


@pytest.mark.parametrize("spark", [{"spark.sql.ansi.enabled": "false"}], indirect=True, ids=["legacy"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_order_of_rows_chooses_between_answers(spark: SparkSession, name: str) -> None:
    dtype, query, values, answers = EXAMPLES[name]
    for order, wanted in zip((values, values[::-1]), answers, strict=True):
        assert answer(spark, dtype, query, order) == wanted
