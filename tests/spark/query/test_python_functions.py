"""Python functions within islands: the rows, what the functions see, and what they raise, are Spark's."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyspark
import pytest
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import Column, DataFrame, SparkSession, Window, WindowSpec, functions

from gpujoin import disable, enable
from gpujoin.model.switches import node_switch
from gpujoin.report.explanation import Explanation
from gpujoin.report.operations import OperationKind
from gpujoin.spark.query.accelerate import Purpose, rewrite
from gpujoin.spark.query.trees.python_calls import CALLS, ROWS
from tests.spark.query import python_functions as f
from tests.spark.query.bulk import NESTED
from tests.spark.query.queries import EXCHANGED, FORCED, check_all

sf: Any = functions  # whose types do not tell of all functions
pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not pyspark.__version__.startswith("4.3."), reason="other versions leave functions to Spark"),
]
forced = pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])
ways = pytest.mark.parametrize(
    "spark",
    [FORCED, pytest.param(EXCHANGED, marks=pytest.mark.extra)],
    indirect=True,
    ids=["cpu", "exchanged"],
)
SILENT = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "silent"}
silent = pytest.mark.parametrize("spark", [SILENT], indirect=True, ids=["silent"])


def pandas(function: Callable[..., Any], kind: str, how: str | None = None) -> Callable[..., Column]:
    """Make a function of pandas' series; ``how``: an iterator of them."""
    return sf.pandas_udf(function, kind, None if how is None else getattr(sf.PandasUDFType, how))


def joined(spark: SparkSession) -> DataFrame:
    """Give a join whose rows functions are called for."""
    return spark.sql("select s.*, i.item, i.cost, struct(s.id a, i.s b) st from sales s join items i on s.k = i.k")


Query = Callable[[SparkSession], DataFrame]

QUERIES: dict[str, Query] = {
    "of a column": lambda spark: joined(spark).select("id", "item", pandas(f.doubled, "double")("weight")),
    "of two columns": lambda spark: joined(spark).select("id", "item", pandas(f.plus, "long")("id", "item")),
    "of one column twice": lambda spark: joined(spark).select("id", pandas(f.plus, "long")("id", "id")),
    "of expressions": lambda spark: joined(spark).select(
        "id", pandas(f.plus, "double")(sf.col("id") * 3, sf.length("s") + 0.5)
    ),
    "of a constant": lambda spark: joined(spark).select("id", pandas(f.plus, "long")("id", sf.lit(7))),
    "of names": lambda spark: joined(spark).select("id", pandas(f.plus, "long")(right=sf.col("item"), left="id")),
    "of a value": lambda spark: joined(spark).select("id", sf.udf(f.label, "string")("k", "s")),
    "of a value by name": lambda spark: joined(spark).select("id", sf.udf(f.label, "string")("k", text="s")),
    "of nothing": lambda spark: joined(spark).select("id", sf.udf(f.three, "int")()),
    "of parts": lambda spark: joined(spark).select("id", pandas(f.doubled_parts, "long", "SCALAR_ITER")("item")),
    "of parts of two columns": lambda spark: joined(spark).select(
        "id", pandas(f.sums_of_parts, "long", "SCALAR_ITER")("id", "item")
    ),
    "of parts in halves": lambda spark: joined(spark).select("id", pandas(f.in_halves, "long", "SCALAR_ITER")("item")),
    "to a struct": lambda spark: joined(spark).select("id", pandas(f.split, "length int, upper string")("s").upper),
    "to a whole struct": lambda spark: joined(spark).select("id", pandas(f.split, "length int, upper string")("s")),
    "of a struct": lambda spark: joined(spark).select("id", pandas(f.text_of_struct, "string")("st")),
    "of a function": lambda spark: joined(spark).select(
        "id", pandas(f.doubled, "long")(pandas(f.plus, "long")("id", "item"))
    ),
    "of a value's function": lambda spark: joined(spark).select(
        "id", sf.udf(f.label, "string")(sf.udf(f.label, "string")("k"))
    ),
    "of arrays": lambda spark: joined(spark).select("id", sf.arrow_udf(f.negated, "bigint")("item")),
    "of parts of arrays": lambda spark: joined(spark).select(
        "id", sf.arrow_udf(f.negated_parts, "bigint", sf.ArrowUDFType.SCALAR_ITER)("item")
    ),
    "several": lambda spark: joined(spark).select(
        "id",
        pandas(f.plus, "long")("id", "item"),
        pandas(f.doubled, "long")("id"),
        pandas(f.split, "upper string")("s"),
    ),
    "two kinds": lambda spark: joined(spark).select(
        "id", pandas(f.plus, "long")("id", "item"), sf.udf(f.label, "string")("k")
    ),
    "in a condition": lambda spark: joined(spark).where(pandas(f.plus, "long")("id", "item") > 25).select("id", "item"),
    "in a column and a condition": lambda spark: (
        joined(spark).withColumn("p", pandas(f.plus, "long")("id", "item")).where("p % 2 = 0").select("id", "p")
    ),
    "in a case": lambda spark: joined(spark).select(
        "id", sf.when(sf.col("k") > 1, pandas(f.doubled, "long")("id")).otherwise(0)
    ),
    "of a group": lambda spark: (
        joined(spark)
        .groupBy("k")
        .agg(sf.sum(pandas(f.plus, "long")("id", "item")), sf.max(sf.udf(f.label, "string")("s")))
    ),
    "as a group's key": lambda spark: joined(spark).groupBy(sf.udf(f.label, "string")("k", "flag")).count(),
    "above an aggregation": lambda spark: (
        joined(spark).groupBy("k").agg(sf.sum("item").alias("n")).select("k", pandas(f.doubled, "long")("n"))
    ),
    "below a join": lambda spark: (
        spark.table("sales")
        .select("k", "id", sf.udf(f.label, "string")("k", "s").alias("l"))
        .join(spark.table("items"), "k")
        .select("id", "l", "item")
    ),
    "as a join's key": lambda spark: (
        spark.table("sales")
        .select("id", pandas(f.doubled, "int")("k").alias("d"))
        .join(spark.table("items").select("item", (sf.col("k") + 1).alias("d")), "d")
    ),
    "below both sides": lambda spark: (
        spark.table("sales")
        .select("id", pandas(f.doubled, "int")("k").alias("d"))
        .join(spark.table("items").select("item", pandas(f.doubled, "int")("k").alias("d")), "d", "left")
    ),
    "above a union": lambda spark: (
        joined(spark)
        .select("id", "item")
        .union(joined(spark).select("item", "id"))
        .select(pandas(f.plus, "long")("id", "item").alias("p"))
        .groupBy("p")
        .count()
    ),
    "above a window": lambda spark: spark.sql(
        "select id, k, row_number() over (partition by k order by id) n from sales"
    ).select("id", pandas(f.plus, "long")("id", "n")),
    "over no rows": lambda spark: spark.sql("select n.id, i.item from none n join items i using (k)").select(
        pandas(f.plus, "long")("id", "item")
    ),
}
BRIEF = (
    "of two columns", "of expressions", "of a value by name", "of parts in halves", "to a whole struct",
    "of a function", "of arrays", "in a column and a condition", "of a group", "below both sides",
)  # fmt: skip


def explained(frame: DataFrame) -> Explanation:
    """Say what becomes of a query."""
    return rewrite(frame, Purpose.EXPLAIN).explanation


def run_here(frame: DataFrame) -> bool:
    """Whether an island calls the functions of a query."""
    return any(each.kind is OperationKind.PYTHON for each in explained(frame).walk())


@ways
def test_functions_are_called_within_islands(tables: SparkSession) -> None:
    frames = {name: QUERIES[name](tables) for name in BRIEF}
    assert all(map(run_here, frames.values()))
    check_all(frames)


@pytest.mark.extra
@pytest.mark.parametrize("spark", [FORCED, EXCHANGED], indirect=True, ids=["cpu", "exchanged"])
@pytest.mark.parametrize("name", [name for name in QUERIES if name not in BRIEF])
def test_more_functions_are_called_within_islands(tables: SparkSession, name: str) -> None:
    frame = QUERIES[name](tables)
    assert run_here(frame)
    check_all({name: frame}, empty=["over no rows"])


# -- rows of a task, and of groups -----------------------------------------------------------------------------------

OF_ROWS: dict[str, Query] = {
    "of pandas' frames": lambda spark: (
        joined(spark).select("id", "item", "s").mapInPandas(f.large_rows, "item long, label string")
    ),
    "of batches": lambda spark: (
        joined(spark).select("id", "item", "s").mapInArrow(f.large_batches, "item int, s string")
    ),
    "of an aggregation's rows": lambda spark: (
        joined(spark)
        .groupBy("k")
        .agg(sf.sum("item").alias("item"), sf.max("s").alias("s"))
        .mapInPandas(f.large_rows, "item long, label string")
    ),
    "of groups of frames": lambda spark: joined(spark).groupBy("k").applyInPandas(f.spread, "k int, n long, s double"),
    "of groups with their key": lambda spark: (
        joined(spark).groupBy("k", sf.length("s")).applyInPandas(f.spread_of_key, "k int, l int, n long")
    ),
    "of groups of arrays": lambda spark: (
        joined(spark).select("k", "item").groupBy("k").applyInArrow(f.counted_table, "k int, n long")
    ),
    "of groups by texts": lambda spark: (
        joined(spark).select("s", "item").groupBy("s").applyInPandas(f.of_text, "s string, n long")
    ),
}


def cogrouped(spark: SparkSession, left: Any = "k", right: Any = "k") -> Any:
    """Cogroup both tables by columns or lists of them."""
    items = spark.table("items")
    if not isinstance(right, str):
        items = items.withColumnsRenamed({"k": "j", "s": "t"})
    return spark.table("sales").groupBy(left).cogroup(items.groupBy(right))


OF_ROWS |= {
    "of cogroups": lambda spark: cogrouped(spark).applyInPandas(f.sizes, "n long, m long, columns string"),
    "of cogroups with their key": lambda spark: cogrouped(spark, ["k", "s"], ["j", "t"]).applyInPandas(
        f.sizes_of_key, "s string, n long, m long, types string"
    ),
    "of cogroups of arrays": lambda spark: cogrouped(spark).applyInArrow(f.sizes_of_tables, "k int, n long, m long"),
    "of cogroups by expressions": lambda spark: cogrouped(
        spark, [sf.col("k") + 1, sf.length("s")], [sf.col("j") + 1, sf.length("t")]
    ).applyInPandas(f.sizes, "n long, m long, columns string"),
    "of cogroups of a join and an aggregation": lambda spark: (
        joined(spark)
        .select("k", "id", "item", "day")
        .groupBy("k")
        .cogroup(spark.table("items").groupBy("k").agg(sf.sum("item").alias("total")).groupBy("k"))
        .applyInPandas(f.sizes, "n long, m long, columns string")
    ),
    "of cogroups that join": lambda spark: (
        spark.table("sales")
        .select("k", "id")
        .groupBy("k")
        .cogroup(spark.table("items").select("k", "item").groupBy("k"))
        .applyInPandas(f.merged, "k int, id int, item int")
    ),
    "of cogroups with rows of the program": lambda spark: (
        spark.table("sales")
        .groupBy("k")
        .cogroup(spark.createDataFrame([(1, "a"), (7, "b"), (1, "c")], "k int, z string").groupBy("k"))
        .applyInPandas(f.sizes, "n long, m long, columns string")
    ),
}


@ways
def test_functions_of_rows_are_the_last_step_of_an_island(tables: SparkSession) -> None:
    names = ("of pandas' frames", "of groups with their key", "of cogroups with their key")
    frames = {name: OF_ROWS[name](tables) for name in names}
    assert all(map(run_here, frames.values()))
    check_all(frames)


@pytest.mark.extra
@pytest.mark.parametrize("spark", [FORCED, EXCHANGED], indirect=True, ids=["cpu", "exchanged"])
@pytest.mark.parametrize("name", [*OF_ROWS])
def test_more_functions_of_rows_are_the_last_step_of_an_island(tables: SparkSession, name: str) -> None:
    frame = OF_ROWS[name](tables)
    assert run_here(frame)
    check_all({name: frame})


# -- aggregate functions -----------------------------------------------------------------------------------------------


def grouped(spark: SparkSession, *keys: Any) -> Any:
    """Group a join whose rows aggregate functions are called for."""
    return joined(spark).groupBy(*keys)


AGGREGATES: dict[str, Query] = {
    "of a column": lambda spark: grouped(spark, "k").agg(pandas(f.mean, "double")("item")),
    "of expressions, to one": lambda spark: (
        grouped(spark, sf.length("s").alias("l"), "k")
        .agg((pandas(f.weighted, "double")(sf.col("item") * 2, sf.col("id") + 1) + 1).alias("w"), sf.col("l"))
        .where("w > 3")
    ),
    "several": lambda spark: grouped(spark, "k").agg(
        pandas(f.mean, "double")("item"),
        pandas(f.weighted, "double")("item", "id"),
        pandas(f.weighted, "double")(weights="item", values="id"),
        pandas(f.mean, "double")("item").alias("again"),
    ),
    "of all rows": lambda spark: grouped(spark).agg(pandas(f.mean, "double")("item")),
    "of no rows": lambda spark: joined(spark).where("id < 0").groupBy().agg(pandas(f.mean, "double")("item")),
    "of no rows by a key": lambda spark: joined(spark).where("id < 0").groupBy("k").agg(pandas(f.five, "int")()),
    "of nothing": lambda spark: grouped(spark, "k").agg(pandas(f.five, "int")()),
    "of parts": lambda spark: grouped(spark, "k").agg(pandas(f.size_of_parts, "int")("item")),
    "of parts of two columns": lambda spark: grouped(spark, "k").agg(pandas(f.sum_of_products, "long")("item", "id")),
    "of arrays": lambda spark: grouped(spark, "k").agg(
        sf.arrow_udf(f.greatest, "int")("item"), sf.arrow_udf(f.greatest, "string")("s")
    ),
    "of parts of arrays": lambda spark: grouped(spark, "k").agg(sf.arrow_udf(f.greatest_of_parts, "int")("item")),
    "of a function's results": lambda spark: grouped(spark, "k").agg(
        pandas(f.mean, "double")(pandas(f.plus, "long")("id", "item"))
    ),
    "in a function": lambda spark: grouped(spark, "k").agg(
        pandas(f.doubled, "double")(pandas(f.mean, "double")("item"))
    ),
    "below a join": lambda spark: (
        grouped(spark, "k").agg(pandas(f.mean, "double")("item").alias("m")).join(spark.table("items"), "k")
    ),
    "below an aggregation": lambda spark: (
        grouped(spark, "k", "s")
        .agg(pandas(f.mean, "double")("item").alias("m"))
        .groupBy("k")
        .agg(sf.max("m"), sf.count("*"))
    ),
    "of grouping sets": lambda spark: joined(spark).rollup("k", "s").agg(pandas(f.mean, "double")("item")),
    **{
        f"by {key}": lambda spark, key=key: (  # type: ignore[misc]
            spark.sql("select s.*, i.item from sales s left join items i on s.k = i.k")
            .groupBy(key)
            .agg(pandas(f.weighted, "double")("id", "id"))
        )
        for key in ("k", "s", "price", "day", "flag")
    },
}
BRIEF_AGGREGATES = ("of expressions, to one", "several", "of all rows", "of no rows", "below a join", "by s")


@ways
def test_aggregate_functions_are_called_within_islands(tables: SparkSession) -> None:
    frames = {name: AGGREGATES[name](tables) for name in BRIEF_AGGREGATES}
    assert all(map(run_here, frames.values()))
    check_all(frames, empty=["of no rows"])


@pytest.mark.extra
@pytest.mark.parametrize("spark", [FORCED, EXCHANGED], indirect=True, ids=["cpu", "exchanged"])
@pytest.mark.parametrize("name", [name for name in AGGREGATES if name not in BRIEF_AGGREGATES])
def test_more_aggregate_functions_are_called_within_islands(tables: SparkSession, name: str) -> None:
    frame = AGGREGATES[name](tables)
    assert run_here(frame)
    check_all({name: frame}, empty=["of no rows by a key"])


@silent
def test_a_subquery_of_a_function_over_no_rows_is_null(tables: SparkSession) -> None:
    """An aggregation without keys has no row then, if its functions are Python's; a scalar subquery is null."""
    tables.udf.register("mean_", pandas(f.mean, "double"))
    frame = tables.sql(
        "select s.id from sales s join items i on s.k = i.k"
        " where coalesce((select mean_(n.item) from items n where n.item < 0), 0D) < i.item"
    )
    expected = sorted(map(tuple, frame.collect()))
    enable(tables)
    try:
        assert sorted(map(tuple, frame.select("*").collect())) == expected != []
    finally:
        disable(tables)


@pytest.mark.parametrize("spark", [EXCHANGED], indirect=True, ids=["exchanged"])
def test_rows_of_one_group_are_read_by_several_tasks(tables: SparkSession) -> None:
    assert "sent to 1 task" in str(explained(AGGREGATES["of all rows"](tables)))


@silent
def test_functions_of_groups_are_switched_off_with_all_others(tables: SparkSession) -> None:
    assert {node_switch(name) for name in (*ROWS, CALLS)} == {"python"}
    frames = [AGGREGATES["several"](tables), WINDOWS["of rows"](tables), OF_ROWS["of cogroups"](tables)]
    assert all(map(run_here, frames))
    tables.conf.set("spark.gpujoin.disable", "python")
    try:
        assert not any(map(run_here, frames))
        assert all("python is switched off" in str(explained(frame)) for frame in frames)
    finally:
        tables.conf.unset("spark.gpujoin.disable")


# -- windows -----------------------------------------------------------------------------------------------------------


def windowed(spark: SparkSession) -> DataFrame:
    """Give rows whose partitions have nulls and peers."""
    return spark.sql("select s.*, i.item from sales s left join items i on s.k = i.k")


BEFORE, AFTER = Window.unboundedPreceding, Window.unboundedFollowing


def partition() -> WindowSpec:
    return Window.partitionBy("k")


def order() -> WindowSpec:
    return partition().orderBy(sf.col("id").desc(), "item")


WINDOWS: dict[str, Query] = {
    "of partitions": lambda spark: windowed(spark).select(
        "id", (pandas(f.mean, "double")("id").over(partition()) + 1).alias("m"), sf.col("k") * 2
    ),
    "of rows": lambda spark: windowed(spark).select(
        "id",
        "item",
        pandas(f.shown_in_order, "string")("id").over(order().rowsBetween(-1, 1)),
        pandas(f.shown_in_order, "string")("id").over(order().rowsBetween(2, 3)),
        pandas(f.mean, "double")("id").over(order().rowsBetween(BEFORE, 0)),
        sf.sum("id").over(order()),
    ),
    "of ordered partitions": lambda spark: windowed(spark).select(
        "id", "item", pandas(f.shown_in_order, "string")("item").over(order().rowsBetween(BEFORE, AFTER))
    ),
    "of ranges": lambda spark: windowed(spark).select(
        "id",
        "item",
        pandas(f.shown_group, "string")("id").over(partition().orderBy("id").rangeBetween(-3, 2)),
        pandas(f.shown_group, "string")("id").over(partition().orderBy("day")),
        pandas(f.shown_group, "string")("id").over(partition().orderBy("day").rangeBetween(0, AFTER)),
    ),
    "of two columns": lambda spark: windowed(spark).select(
        "id", "item", pandas(f.weighted, "double")(weights="item", values="id").over(order().rowsBetween(-2, 0))
    ),
    "of arrays": lambda spark: windowed(spark).select(
        "id",
        "item",
        sf.arrow_udf(f.greatest, "int")("item").over(order().rowsBetween(-2, 0)),
        sf.arrow_udf(f.greatest, "int")("id").over(order().rowsBetween(BEFORE, AFTER)),
    ),
    "of all rows": lambda spark: windowed(spark).select(
        "id", "item", pandas(f.mean, "double")("item").over(Window.orderBy("id", "item").rowsBetween(-2, 0))
    ),
    "of expressions": lambda spark: windowed(spark).select(
        "id",
        "item",
        pandas(f.mean, "double")(sf.col("item") * 2).over(
            Window.partitionBy(sf.length("s")).orderBy(sf.col("id") % 3, "id", "item").rowsBetween(-1, 0)
        ),
    ),
    "of a function's results": lambda spark: windowed(spark).select(
        "id", pandas(f.mean, "double")(pandas(f.doubled, "long")("id")).over(partition())
    ),
    "below an aggregation": lambda spark: (
        windowed(spark)
        .withColumn("m", pandas(f.mean, "double")("item").over(partition()))
        .where("item >= m")
        .groupBy("k")
        .agg(sf.count("*"), sf.max("m"))
    ),
    "of no rows": lambda spark: (
        windowed(spark).where("id < 0").select(pandas(f.mean, "double")("id").over(order().rowsBetween(-1, 1)))
    ),
}
BRIEF_WINDOWS = ("of partitions", "of rows", "below an aggregation")


@ways
def test_functions_of_windows_are_called_within_islands(tables: SparkSession) -> None:
    frames = {name: WINDOWS[name](tables) for name in BRIEF_WINDOWS}
    assert all(map(run_here, frames.values()))
    check_all(frames)


@pytest.mark.extra
@pytest.mark.parametrize("spark", [FORCED, EXCHANGED], indirect=True, ids=["cpu", "exchanged"])
@pytest.mark.parametrize("name", [name for name in WINDOWS if name not in BRIEF_WINDOWS])
def test_more_functions_of_windows_are_called_within_islands(tables: SparkSession, name: str) -> None:
    frame = WINDOWS[name](tables)
    assert run_here(frame)
    check_all({name: frame}, empty=["of no rows"])


# -- values of all types -------------------------------------------------------------------------------------------

_COLUMNS = (
    "o",
    "y",
    "h",
    "i",
    "l",
    "f",
    "d",
    "m",
    "n",
    "s",
    "a",
    "t",
    "u",
    "ds",
    "ss",
    "xs",
    "mp",
    "st",
    "deep",
    "sts",
)
_BYTES = "cast(b.s as binary)"
_WAYS: dict[str, Callable[[str], Callable[..., Column]]] = {
    "pandas": lambda kind: pandas(f.same_frame if kind.startswith("struct") else f.same_series, kind),
    "parts": lambda kind: pandas(f.same_parts, kind, "SCALAR_ITER"),
    "values": lambda kind: sf.udf(f.same, kind),
    "arrow": lambda kind: sf.arrow_udf(f.same_array, kind),
    "shown pandas": lambda kind: pandas(f.shown_frame if kind.startswith("struct") else f.shown, "string"),
    "shown values": lambda kind: sf.udf(f.shown_value, "string"),
    "shown arrow": lambda kind: sf.arrow_udf(f.shown_array, "string"),
}


@pytest.mark.extra
@pytest.mark.parametrize(
    "spark",
    [
        SILENT | {"spark.sql.session.timeZone": "America/Sao_Paulo"},
        SILENT | {"spark.sql.execution.arrow.useLargeVarTypes": "true"},
        SILENT | {"spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": "true"},
        SILENT | {"spark.sql.legacy.execution.pythonUDF.pandas.conversion.enabled": "true"},
        SILENT | {"spark.sql.execution.pyspark.binaryAsBytes": "false"},
    ],
    indirect=True,
    ids=["zone", "large", "extension", "legacy", "bytearray"],
)
@pytest.mark.parametrize("way", _WAYS)
def test_values_of_all_types_are_given_and_taken_as_spark_does(bulk: None, tables: SparkSession, way: str) -> None:
    rows = tables.sql(f"select b.*, {_BYTES} bin, i.item from bulk b left join items i on b.g = i.k")
    outcomes = {}
    for column in (*_COLUMNS, "bin"):
        kind = rows.schema[column].dataType.simpleString()
        frame = rows.select("id", "item", _WAYS[way](kind)(column).alias("r"))
        outcomes[column] = _compared(frame)
    different = {column: outcome for column, outcome in outcomes.items() if outcome is not None}
    assert not different


_WAYS_OF_GROUPS: dict[str, Callable[[str], Callable[..., Column]]] = {
    "pandas": lambda kind: pandas(f.first, kind),
    "pandas or null": lambda kind: pandas(f.first_or_none, kind),
    "arrow": lambda kind: sf.arrow_udf(f.first_of_array, kind),
    "shown pandas": lambda kind: pandas(
        f.shown_group_of_frame if kind.startswith("struct") else f.shown_group, "string"
    ),
    "shown arrow": lambda kind: sf.arrow_udf(f.shown_group_of_array, "string", sf.ArrowUDFType.GROUPED_AGG),
}


@pytest.mark.extra
@pytest.mark.parametrize(
    "spark",
    [
        SILENT | {"spark.sql.session.timeZone": "America/Sao_Paulo"},
        SILENT | {"spark.sql.execution.arrow.useLargeVarTypes": "true"},
        SILENT | {"spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": "true"},
    ],
    indirect=True,
    ids=["zone", "large", "extension"],
)
@pytest.mark.parametrize("way", _WAYS_OF_GROUPS)
def test_groups_of_values_of_all_types_are_given_and_taken_as_spark_does(
    bulk: None, tables: SparkSession, way: str
) -> None:
    rows = tables.sql(f"select b.*, {_BYTES} bin, i.item from bulk b left join items i on b.g = i.k")
    outcomes = {}
    for column in (*_COLUMNS, "bin"):
        kind = rows.schema[column].dataType.simpleString()
        try:
            function = _WAYS_OF_GROUPS[way](kind)
        except NotImplementedError:  # which PySpark has no such functions of
            continue
        keys = ("id", "item") if way.startswith(("pandas", "arrow")) else ("g",)
        outcomes[column] = _compared(rows.groupBy(*keys).agg(function(column).alias("r")))
    different = {column: outcome for column, outcome in outcomes.items() if outcome is not None}
    assert not different


def _compared(frame: DataFrame) -> str | None:
    """Compare a query with Spark's own run, and say how they differ."""
    spark = frame.sparkSession
    expected, wrong = _outcome(frame)
    enable(spark)
    try:
        if not run_here(frame):
            return f"left to Spark: {explained(frame)}"
        rows, error = _outcome(frame)
    finally:
        disable(spark)
    if error != wrong:
        return f"{error} instead of {wrong}"
    pairs = zip(rows, expected, strict=True)
    return next((f"{one} instead of {two}" for one, two in pairs if one != two), None)


def _outcome(frame: DataFrame) -> tuple[list[str], str | None]:
    try:
        return sorted(map(repr, frame.collect())), None
    except (PySparkException, ValueError) as problem:  # of years that Python lacks
        return [], f"{type(problem).__name__}: {str(problem).strip().splitlines()[-1]}"


def test_the_table_of_values_has_every_column() -> None:
    assert all(re.search(rf"\b{column}\b", NESTED) or column in "oyhilfdmnsatu" for column in _COLUMNS)


# -- errors --------------------------------------------------------------------------------------------------------

FAILING: dict[str, Callable[[], Callable[..., Column]]] = {
    "raises": lambda: pandas(f.fails, "long"),
    "raises for a value": lambda: sf.udf(f.fails_for_value, "long"),
    "raises after the rows": lambda: pandas(f.fails_later, "long", "SCALAR_ITER"),
    "raises from another error": lambda: pandas(f.chained_failure, "long"),
    "gives too few": lambda: pandas(f.too_short, "long"),
    "gives too many": lambda: pandas(f.too_long_parts, "long", "SCALAR_ITER"),
    "gives one number": lambda: pandas(f.one_number, "long"),
    "gives texts": lambda: pandas(f.texts, "long"),
    "gives no iterator": lambda: pandas(f.no_iterator, "long", "SCALAR_ITER"),
    "stops": lambda: sf.udf(f.stops, "long"),
    "gives another array": lambda: sf.arrow_udf(f.other_array, "long"),
    "cannot be read": lambda: pandas(f.with_unreadable(), "long"),
}
FAILING_OF_GROUPS: dict[str, Callable[[], Callable[..., Column]]] = {
    "raises for a group": lambda: pandas(f.fails_for_group, "double"),
    "gives a text for a group": lambda: pandas(f.text_of_group, "int"),
    "gives a series for a group": lambda: pandas(f.series_of_group, "double"),
    "gives a text for arrays": lambda: sf.arrow_udf(f.text_of_arrays, "int"),
}
_OF_PYSPARK = re.compile(r'^  File "[^"]*[/\\]pyspark[/\\][^\n]*\n(?:    [^\n]*\n)*', re.MULTILINE)


def _raised(frame: DataFrame) -> tuple[str, str]:
    """Give the class and the text of what a query raises, without PySpark's own frames."""
    with pytest.raises(PythonException) as raised:
        frame.collect()
    return type(raised.value).__name__, _OF_PYSPARK.sub("", str(raised.value))


FAILING_WINDOWS: dict[str, Callable[[], Column]] = {
    "raises for a partition": lambda: pandas(f.fails_for_group, "double")("id").over(partition()),
    "raises for a frame": lambda: pandas(f.fails_for_group, "double")("id").over(order().rowsBetween(-1, 1)),
    "gives a text for a frame": lambda: pandas(f.text_of_group, "int")("id").over(order().rowsBetween(-1, 1)),
}
FAILING_COGROUPS = {"a cogroup raises": f.fails_for_cogroup, "a cogroup has other columns": f.other_columns_of_cogroup}


def _check_failures(spark: SparkSession, names: list[str]) -> None:
    frames = {
        name: cogrouped(spark).applyInPandas(function, "n long, m long")
        for name, function in FAILING_COGROUPS.items()
        if name in names
    }
    frames |= {
        name: grouped(spark, "k").agg(FAILING_OF_GROUPS[name]()("id"))
        if name in FAILING_OF_GROUPS
        else joined(spark).select("k", FAILING[name]()("id").alias("r"))
        for name in names
        if name not in FAILING_COGROUPS and name not in FAILING_WINDOWS
    }
    frames |= {name: windowed(spark).select("k", FAILING_WINDOWS[name]()) for name in FAILING_WINDOWS if name in names}
    expected = {name: _raised(frame) for name, frame in frames.items()}
    enable(spark)
    try:
        assert all(map(run_here, frames.values()))
        assert {name: _raised(frame) for name, frame in frames.items()} == expected
    finally:
        disable(spark)


@pytest.mark.parametrize(
    "spark",
    [
        SILENT,
        EXCHANGED | SILENT,
        SILENT | {"spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false"},
        EXCHANGED | SILENT | {"spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false"},
    ],
    indirect=True,
    ids=["silent", "bytes", "all frames", "bytes, all frames"],
)
def test_errors_of_functions_are_sparks_word_for_word(tables: SparkSession) -> None:
    _check_failures(tables, ["raises", "gives too few", "raises for a group"])


@pytest.mark.parametrize(
    "spark",
    [EXCHANGED | SILENT, SILENT | {"spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false"}],
    indirect=True,
    ids=["bytes", "all frames"],
)
@pytest.mark.parametrize("with_function", [False, True])
def test_a_task_of_ours_that_fails_has_spark_run_the_query(
    tables: SparkSession, tmp_path: Path, *, with_function: bool
) -> None:
    """Also where nothing leaves the frames of PySpark out of what the worker tells."""
    tables.table("items").write.parquet(str(tmp_path / "items"))
    items = tables.read.parquet(str(tmp_path / "items"))
    joined_items = tables.table("sales").join(items, "k").select("id", "item")
    frame = joined_items
    if with_function:
        frame = joined_items.select("id", pandas(f.doubled, "long")("item").alias("r"))
    expected = sorted(map(tuple, frame.collect()))
    enable(tables)
    try:
        for file in (tmp_path / "items").glob("*.parquet"):
            os.utime(file, (1, 1))  # gpujoin's worker takes it for another file
        assert sorted(map(tuple, frame.select("*").collect())) == expected
    finally:
        disable(tables)


@silent
@pytest.mark.extra
def test_more_errors_of_functions_are_sparks_word_for_word(tables: SparkSession) -> None:
    _check_failures(tables, [name for name in FAILING if name not in ("raises", "gives too few")])
    _check_failures(tables, [*FAILING_OF_GROUPS, *FAILING_COGROUPS, *FAILING_WINDOWS])


@silent
@pytest.mark.parametrize("name", ["raises", pytest.param("gives too few", marks=pytest.mark.extra)])
def test_a_function_that_fails_is_not_called_again(tables: SparkSession, tmp_path: Path, name: str) -> None:
    def noted(values: pd.Series) -> pd.Series:
        with (tmp_path / "calls").open("a") as file:
            file.write("called\n")
        return f.fails(values) if name == "raises" else f.too_short(values)

    frame = joined(tables).select("k", pandas(noted, "long")("id").alias("r"))
    enable(tables)
    try:
        assert run_here(frame)
        _raised(frame)
    finally:
        disable(tables)
    assert len((tmp_path / "calls").read_text().splitlines()) <= 2  # one in each task that has begun


# -- what functions see and do -------------------------------------------------------------------------------------


@forced
def test_broadcasts_and_accumulators_are_those_of_the_program(tables: SparkSession) -> None:
    factor, rows = tables.sparkContext.broadcast({"factor": 3}), tables.sparkContext.accumulator(0)

    def counted(values: pd.Series) -> pd.Series:
        rows.add(len(values))
        return values * factor.value["factor"]

    frame = joined(tables).select("id", pandas(counted, "long")("item").alias("r"))
    found = rewrite(frame)
    assert found.explanation.islands
    expected = [(row.id, 3 * row.item) for row in joined(tables).collect()]
    assert sorted(map(tuple, found.frame.collect())) == sorted(expected)
    assert rows.value == len(expected)


@pytest.mark.parametrize("spark", [EXCHANGED | {"spark.gpujoin.broadcastThreshold": "10m"}], indirect=True, ids=["cpu"])
def test_a_side_that_every_task_needs_is_called_for_once(tables: SparkSession) -> None:
    rows = tables.sparkContext.accumulator(0)

    def counted(values: pd.Series) -> pd.Series:
        rows.add(len(values))
        return values

    items = tables.table("items").where("k is not null").select("k", "item", pandas(counted, "int")("item").alias("r"))
    found = rewrite(tables.table("sales").join(items.hint("broadcast"), "k"))
    assert found.explanation.islands
    assert found.frame.count() > 0
    assert rows.value == tables.table("items").where("k is not null").count()


@forced
def test_few_rows_are_asked_for_and_few_are_computed(tables: SparkSession, tmp_path: Path) -> None:
    tables.range(0, 200_000, 1, 1).selectExpr("id", "id % 9 k").write.parquet(str(tmp_path / "many"))

    def counted(values: pd.Series) -> pd.Series:
        with (tmp_path / "calls").open("a") as file:
            file.write(f"{len(values)}\n")
        return values

    many = tables.read.parquet(str(tmp_path / "many")).join(tables.table("items"), "k")
    found = rewrite(many.select(pandas(counted, "long")("id").alias("r")).limit(3))
    assert found.explanation.islands
    assert found.frame.count() == 3
    assert 0 < sum(map(int, (tmp_path / "calls").read_text().split())) <= 40_000


# -- what is left to Spark -----------------------------------------------------------------------------------------

_ROWS_LEFT: dict[str, tuple[Query, str]] = {
    "groups by floating-point numbers": (
        lambda spark: joined(spark).groupBy("weight").applyInPandas(f.of_weight, "n long"),
        "weight has type double",
    ),
    "one group": (lambda spark: joined(spark).groupBy().applyInPandas(f.of_weight, "n long"), "all rows as one group"),
    "sorted rows of cogroups": (
        lambda spark: (
            spark.table("sales")
            .repartition("k")
            .sortWithinPartitions("k", "id")
            .groupBy("k")
            .cogroup(spark.table("items").groupBy("k"))
            .applyInPandas(f.sizes, "n long, m long, columns string")
        ),
        "are sorted below it",
    ),
    "sorted rows of aggregates": (
        lambda spark: (
            joined(spark)
            .repartition("k")
            .sortWithinPartitions("k", "id")
            .where("id > 0")
            .groupBy("k")
            .agg(pandas(f.mean, "double")("id"))
        ),
        "are sorted below it",
    ),
    "cached rows in an order": (
        lambda spark: (
            spark.table("sales")
            .repartition("k")
            .sortWithinPartitions("k", "id")
            .cache()
            .join(spark.table("items").hint("broadcast"), "k")
            .groupBy("k")
            .agg(pandas(f.mean, "double")("id"))
        ),
        "are sorted below it",
    ),
    "several frames of several columns": (
        lambda spark: windowed(spark).select(
            pandas(f.mean, "double")("id").over(order().rowsBetween(-1, 1)),
            pandas(f.mean, "double")("item").over(order().rowsBetween(-1, 0)),
        ),
        "over several frames",
    ),
    "windows by floating-point numbers": (
        lambda spark: windowed(spark).select(pandas(f.mean, "double")("id").over(Window.partitionBy("weight"))),
        "weight has type double",
    ),
    "windows without order": (
        lambda spark: windowed(spark).select(pandas(f.mean, "double")("id").over(partition().rowsBetween(-1, 1))),
        "without an order by",
    ),
    "cogroups by several types": (
        lambda spark: cogrouped(spark, "k", sf.col("j").cast("long")).applyInPandas(f.sizes, "n long"),
        "keys of several types",
    ),
    "cogroups of all rows": (
        lambda spark: cogrouped(spark, [], []).applyInPandas(f.sizes, "n long"),
        "all rows as one group",
    ),
    "groups in parts": (
        lambda spark: joined(spark).select("k", "item").groupBy("k").applyInArrow(f.parts_of_group, "k int, n long"),
        "functions of kind",
    ),
    "aggregates of floating-point numbers": (
        lambda spark: joined(spark).groupBy("weight").agg(pandas(f.mean, "double")("id")),
        "weight has type double",
    ),
    "aggregates of groups of bytes": (
        lambda spark: joined(spark).groupBy(sf.col("s").cast("binary")).agg(pandas(f.mean, "double")("id")),
        "has type binary",
    ),
    "a barrier": (
        lambda spark: joined(spark).select("id").mapInPandas(f.same_parts, "id int", barrier=True),
        "barriers",
    ),
}


@silent
@pytest.mark.extra
@pytest.mark.parametrize("name", _ROWS_LEFT)
def test_other_functions_of_rows_are_left_to_spark_with_a_reason(tables: SparkSession, name: str) -> None:
    query, why = _ROWS_LEFT[name]
    assert why in str(explained(query(tables)))
    assert not run_here(query(tables))


_LEFT: dict[str, tuple[dict[str, str], Callable[[], Callable[..., Column]], str]] = {
    "another result each time": (
        {},
        lambda: pandas(f.doubled, "long").asNondeterministic(),  # type: ignore[attr-defined]
        "depends on which rows share a partition",
    ),
    "pickled values": ({}, lambda: sf.udf(f.label, "string", useArrow=False), "Spark runs Python UDFs"),
    "batches of any size": (
        {"spark.sql.execution.arrow.maxRecordsPerBatch": "0"},
        lambda: pandas(f.doubled, "long"),
        "batches are of any size",
    ),
    "another Python": (
        {"spark.sql.execution.pyspark.python": "python3"},
        lambda: pandas(f.doubled, "long"),
        "names another Python",
    ),
    "a profile": (
        {"spark.sql.pyspark.udf.profiler": "perf"},
        lambda: pandas(f.doubled, "long"),
        "profiles of functions are asked for",
    ),
}


@silent
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.extra) for name in _LEFT])
def test_other_functions_are_left_to_spark_with_a_reason(tables: SparkSession, name: str) -> None:
    settings, function, why = _LEFT[name]
    for key, value in settings.items():
        tables.conf.set(key, value)
    try:
        frame = joined(tables).select("k", function()("id").alias("r")).groupBy("r").count()
        assert why in str(explained(frame))
        assert not run_here(frame)
    finally:
        for key in settings:
            tables.conf.unset(key)


@silent
def test_a_function_of_another_environment_is_left_to_spark(tables: SparkSession) -> None:
    context, function = tables.sparkContext, pandas(f.doubled, "long")
    context.environment["GPUJOIN_TEST"] = "here"
    try:
        frame = joined(tables).select("k", function("id").alias("r")).groupBy("r").count()
        assert run_here(frame)
    finally:
        del context.environment["GPUJOIN_TEST"]
    assert "other environment variables" in str(explained(frame))
