"""Run by test_connect.py: joins that a client runs itself, the findings as JSON on the last line.

Arguments: the address of the server, and the names of joins.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import gpujoin
from gpujoin import FallbackError, explain, gpu_asof_join, gpu_join
from gpujoin.testing import assert_same_rows

CASES = {"shuffle": ("one", "several"), "broadcast": ("widths", "one")}
KINDS = ("inner", "cross", "left", "right", "full", "left_semi", "left_anti")


def chosen(how: str, strategy: str) -> str:
    """Which keys a type of join is run over with a strategy: in turn, as a round trip costs more than a join."""
    names = CASES[strategy]
    return names[KINDS.index(how) % len(names)]


def sides(spark: SparkSession) -> tuple[DataFrame, DataFrame, DataFrame]:
    left = spark.sql(
        "select * from values (1, 'x', 0.0D, array(1)), (1, 'ü', -0.0D, null), (2, 'x', double('NaN'), array()), "
        "(null, null, null, null), (3, '', 1.0D, array(null)) as v(K, s, d, payload)"
    )
    right = spark.sql(
        "select * from values (10, 1, 'x', 0.0D), (20, 2, 'x', double('NaN')), (30, 2, 'ü', 1.0D), "
        "(40, null, null, null), (60, 8, '', 2.0D) as v(rid, k, s, d)"
    )
    return left, right, right.selectExpr("rid", "cast(k as bigint) k", "s")


def compare(left: DataFrame, right: DataFrame, on: Any, how: Any, strategy: Any) -> dict[str, Any]:
    expected = left.join(right, on, how)
    rows, error, strategies = 0, None, []
    try:
        actual = gpu_join(left, right, on, how, strategy=strategy, backend="cpu")
        if actual.schema != expected.schema:
            error = f"{actual.schema} is not {expected.schema}"
        table = actual.toArrow()
        assert_same_rows(table, expected.toArrow())
        rows = table.num_rows
        strategies = [join.strategy.value for join in explain(actual.limit(3)).joins]
    except Exception as problem:  # noqa: BLE001 - told to the test
        error = repr(problem)
    return {"rows": rows, "error": error, "strategy": strategies}


def quoted(spark: SparkSession, strategy: Any) -> list[Any]:
    """The quote of each of some trades, and how they are joined."""
    trades = spark.sql("select * from values (1, 'a', 5), (2, 'a', 1), (3, 'b', 9), (4, null, 9) as v(trade, s, t)")
    quotes = spark.sql("select * from values (10, 'a', 2), (20, 'a', 4), (30, 'b', 9), (40, 'c', 1) as v(quote, s, t)")
    frame = gpu_asof_join(trades, quotes, "t", "s", strategy=strategy, backend="cpu")
    rows = sorted((row.trade, row.quote) for row in frame.where("trade > 1").collect())
    return [frame.columns, rows, [join.strategy.value for join in explain(frame).joins]]


def refusal(*given: Any, **options: Any) -> str:
    try:
        gpu_join(*given, **options)
    except FallbackError as problem:
        return str(problem)
    return "not refused"


def main() -> None:
    spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    spark.conf.set("spark.gpujoin.fallback", "raise")
    left, right, wide = sides(spark)
    found: dict[str, Any] = {"joins": {}}
    cases = {"one": (left, right, "k"), "several": (left, right, ["s", "d"]), "widths": (left, wide, ["k"])}
    for how in KINDS:
        for strategy in ("shuffle", "broadcast"):
            if f"{how} {strategy}" in sys.argv[1:] and (how, strategy) != ("full", "broadcast"):
                one, two, on = cases[chosen(how, strategy)]
                found["joins"][f"{how} {strategy}"] = compare(one, two, on, how, strategy)
    refused: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "condition": ((left, right, right.k == left.K), {"backend": "cpu"}),
        "product": ((left, right), {"backend": "cpu"}),
        "types": ((left, right.selectExpr("cast(k as string) k"), "k"), {"backend": "cpu"}),
        "auto": ((left, right, "k"), {}),
    }
    found["refused"] = {name: refusal(*given, **options) for name, (given, options) in refused.items()}
    spark.conf.set("spark.gpujoin.fallback", "silent")
    found["reasons"] = {
        name: [str(reason) for join in explain(gpu_join(*given, **options)).joins for reason in join.reasons]
        for name, (given, options) in refused.items()
    }
    try:
        gpu_join(left, right, "nowhere")
    except AnalysisException as problem:
        found["unknown column"] = problem.getCondition()
    first = gpu_join(left.drop("d"), right.drop("s"), "k", "full", strategy="shuffle")
    second = gpu_join(first, wide.drop("s", "rid"), "k", strategy="shuffle").where("k > 0")
    third = second.join(right.select("k", "d").toDF("k", "e"), "k")
    found["tree"] = [[join.join_type, join.strategy.value] for join in explain(third).joins]
    failing = right.selectExpr("cast(raise_error('computed') as int) k", "rid")
    found["lazy"] = gpu_join(left, failing, "k", strategy="broadcast").columns
    strategies = [strategy for strategy in ("shuffle", "broadcast") if f"as-of {strategy}" in sys.argv[1:]]
    found["as-of"] = {strategy: quoted(spark, strategy) for strategy in strategies}
    try:
        gpujoin.profile(third)
    except gpujoin.GpuJoinError as problem:
        found["profile"] = str(problem)
    tables: tuple[Any, Any] = (left.select("K", "s"), right.select("k"))
    if not hasattr(DataFrame, "__arrow_c_stream__"):  # before PySpark 4.2
        tables = tables[0].toArrow(), tables[1].toArrow()
    found["in the client"] = gpujoin.join_tables(*tables, left_on="K", right_on="k", backend="cpu").num_rows
    spark.conf.set("spark.gpujoin.enabled", "false")
    found["off"] = [join.backend for join in explain(gpu_join(left, right, "k", strategy="shuffle")).joins]
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
