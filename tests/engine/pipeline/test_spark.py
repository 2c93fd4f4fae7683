"""Partial aggregation against Spark: the same buffers, and after merging the same results."""

from __future__ import annotations

import decimal
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpujoin.engine.pipeline import run
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.expressions import EvalMode, left, lit
from gpujoin.model.relations import PartialAggregate
from gpujoin.testing import cells
from tests.expressions.values import VALUES
from tests.oracle.aggregates import Finals, assert_same_groups, group_key, merged
from tests.trees import Aggregate, Tree, average, count, total

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

KINDS = ("i32", "i64", "f64", "d9_2", "d18_6", "d38_18", "str", "date", "ts", "bool")
SUMMED = ("i32", "f64", "d9_2", "d18_6", "d38_18")
EXACT = decimal.Context(prec=100, rounding=decimal.ROUND_HALF_UP)


def data(rng: np.random.Generator, rows: int = 400) -> pa.Table:
    columns: dict[str, Any] = {"g": pa.array(rng.integers(0, 9, rows), pa.int32())}
    for kind in KINDS:
        dtype, values = VALUES[kind]
        # Sums of the largest values overflow or round as the order of rows will have it: in Spark too.
        most = {"f64": 1e6, "d38_18": 1e12}.get(kind)
        known = [v for v in values if most is None or v is None or abs(v) < most]
        columns[kind] = pa.array([known[i] for i in rng.integers(0, len(known), rows)], dtype)
    return pa.table(columns)


def frame_of(spark: SparkSession, table: pa.Table, folder: Path) -> DataFrame:
    pq.write_table(table, folder / "data.parquet")
    return spark.read.parquet(str(folder / "data.parquet"))


CALLS: dict[str, tuple[Aggregate, str]] = {
    "n": (count(), "count(*)"),
    "m": (count(left("i32"), left("str")), "count(i32, str)"),
    "f": (count(where=left("i32") > 0), "count(*) filter (where i32 > 0)"),
    **{f"s_{k}": (total(left(k)), f"sum({k})") for k in SUMMED},
    **{f"w_{k}": (total(left(k), left("bool")), f"sum({k}) filter (where bool)") for k in ("d9_2", "i32")},
    **{f"a_{k}": (average(left(k)), f"avg({k})") for k in SUMMED},
    **{f"lo_{k}": (Aggregate(AggregateFunction.MIN, (left(k),)), f"min({k})") for k in KINDS},
    **{f"hi_{k}": (Aggregate(AggregateFunction.MAX, (left(k),)), f"max({k})") for k in KINDS},
    **{
        f.value: (Aggregate(f, (left("d9_2").cast(pa.float64()),)), f"{f.value}(cast(d9_2 as double))")
        for f in (
            AggregateFunction.STDDEV_POP, AggregateFunction.STDDEV_SAMP, AggregateFunction.VAR_POP,
            AggregateFunction.VAR_SAMP,
        )
    },
}  # fmt: skip


def finals(node: PartialAggregate, partial: pa.Table) -> Finals:
    """Merged results in Spark's final form: decimal averages rounded, overflow as null."""
    result = merged(node, partial)
    return {group: tuple(map(_final, node.aggregates, values)) for group, values in result.items()}


def _final(call: Any, value: Any) -> Any:
    if value == "overflow":
        return None
    if call.function is AggregateFunction.AVG and isinstance(value, tuple):
        whole, number = value
        dtype = call.dtype
        if not number:
            return None
        scale = min(dtype.scale + 4, 38)
        return EXACT.quantize(EXACT.divide(whole, Decimal(number)), Decimal(1).scaleb(-scale))
    return value


@pytest.mark.parametrize("ansi", ["true", pytest.param("false", marks=pytest.mark.extra)])
def test_results_are_sparks(
    ansi: str, spark: SparkSession, rng: np.random.Generator, seed: int, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    mode = EvalMode.ANSI if ansi == "true" else EvalMode.LEGACY
    table = data(rng)
    calls = {name: call for name, (call, _) in CALLS.items()}
    columns = [f"{CALLS[name][1]} as `{name}`" for name in calls]
    frame = frame_of(spark, table, tmp_path)
    spark_result = frame.selectExpr("*").groupBy("g").agg(*_columns(columns)).toArrow()
    node = Tree.scan(tmp_path / "data.parquet", mode=mode).group("g", **calls).relation
    assert isinstance(node, PartialAggregate)
    partial = pa.Table.from_batches(run(node), node.schema)
    listed = [cells(column) for column in spark_result.columns]
    expected = {(group_key(row[0]),): tuple(row[1:]) for row in zip(*listed, strict=True)}
    assert_same_groups(_unsigned(finals(node, partial)), _unsigned(expected), f"seed {seed}")


def _columns(expressions: list[str]) -> list[Any]:
    from pyspark.sql.functions import expr

    return [expr(e) for e in expressions]


def _unsigned(finals: Finals) -> Finals:
    """Which zero is an extreme is not said."""
    return {k: tuple(v + 0.0 if isinstance(v, float) else v for v in values) for k, values in finals.items()}


@pytest.mark.parametrize("spark", [{"spark.sql.adaptive.enabled": "false"}], indirect=True)
def test_buffers_are_sparks(spark: SparkSession, rng: np.random.Generator, tmp_path: Path) -> None:
    """The types of the partial aggregate's output, taken from Spark's own physical plan."""
    table = data(rng, 20)
    frame = frame_of(spark, table, tmp_path)
    # Spark rewrites sums and averages of small decimals to longs; the buffers are those of the functions as written.
    spark.conf.set("spark.sql.optimizer.excludedRules", "org.apache.spark.sql.catalyst.optimizer.DecimalAggregates")
    for name, (call, sql) in CALLS.items():
        if "str" in name or ("bool" in name and name.startswith(("lo", "hi"))):
            pass
        plan = frame.groupBy("g").agg(*_columns([sql]))._jdf.queryExecution().executedPlan()
        partial = _partial(plan)
        types = [partial.output().apply(i).dataType().json() for i in range(partial.output().size())][1:]
        node = Tree.scan(tmp_path / "data.parquet").group("g", x=call).relation
        assert isinstance(node, PartialAggregate)
        buffer_types = [_json(field.type) for field in list(node.schema)[1:]]
        assert types == buffer_types, (name, sql)


def _partial(plan: Any) -> Any:
    """The lowest aggregate of a physical plan."""
    partial = plan if "Aggregate" in plan.nodeName() else None
    children = plan.children()
    for i in range(children.size()):
        partial = _partial(children.apply(i)) or partial
    return partial


def _json(dtype: pa.DataType) -> str:
    if pa.types.is_decimal(dtype):
        return f'"decimal({dtype.precision},{dtype.scale})"'
    names = {
        pa.int64(): "long", pa.int32(): "integer", pa.float64(): "double", pa.bool_(): "boolean", pa.string(): "string",
        pa.date32(): "date", pa.timestamp("us", "UTC"): "timestamp",
    }  # fmt: skip
    return f'"{names[dtype]}"'


@pytest.mark.parametrize("spark", [{"spark.sql.ansi.enabled": "true"}], indirect=True)
@pytest.mark.parametrize("sql", ["sum(i64)", "sum(i32 + 2147483647)", "sum(100 / i32)"])
def test_errors_are_sparks(sql: str, spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    top = (1 << 63) - 1
    table = pa.table({"i64": pa.array([top, top]), "i32": pa.array([0, 5], pa.int32())})
    frame = frame_of(spark, table, tmp_path)
    with pytest.raises(PySparkException):
        frame.selectExpr(sql).collect()
    expression = {
        "sum(i64)": left("i64"),
        "sum(i32 + 2147483647)": left("i32") + lit(2147483647),
        "sum(100 / i32)": 100 / left("i32"),
    }[sql]
    node = Tree.scan(tmp_path / "data.parquet").group(s=total(expression)).relation
    with pytest.raises(ExpressionEvaluationError):
        list(run(node))


def test_group_keys_are_sparks(spark: SparkSession, rng: np.random.Generator, seed: int, tmp_path: Path) -> None:
    dtype, values = VALUES["f64"]
    table = pa.table({
        "x": pa.array([values[i] for i in rng.integers(0, len(values), 300)], dtype),
        "d": pa.array([VALUES["d38_18"][1][i] for i in rng.integers(0, 14, 300)], VALUES["d38_18"][0]),
    })  # fmt: skip
    spark_result = frame_of(spark, table, tmp_path).groupBy("x", "d").count().toArrow()
    node = Tree.scan(tmp_path / "data.parquet").group("x", "d", n=count()).relation
    assert isinstance(node, PartialAggregate)
    partial = pa.Table.from_batches(run(node), node.schema)
    own_rows = sorted(map(repr, zip(*(cells(c) for c in partial.columns), strict=True)))
    spark_rows = sorted(map(repr, zip(*(cells(c) for c in spark_result.columns), strict=True)))
    assert own_rows == spark_rows, f"seed {seed}"
