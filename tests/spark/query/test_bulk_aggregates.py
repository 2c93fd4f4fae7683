"""Every aggregate function and type over 10,000 seeded rows, extremes and many nulls among them, against Spark."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from gpujoin.spark.query.accelerate import rewrite
from tests.spark.query.generated import COLUMNS, _nasty_column
from tests.spark.query.queries import EXCHANGED, FORCED

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = 10_000
_ALL = "".join(COLUMNS)
_NUMBERS = "yhilfdmn"
_WHOLE = "yhil"
_SCALES = {"m": "cast(m as decimal(20,0)) * 0.01", "n": "cast(n as decimal(20,0)) * 0.0001"}
_TAME = "cast({0} % 1000 as double)"
"""Of a number: what has a mean and squares."""

FUNCTIONS: dict[str, tuple[str, str]] = {
    "count({0})": (_ALL, "exact"),
    "count_if({0} is null)": (_ALL, "exact"),
    "min({0})": (_ALL, "exact"),
    "max({0})": (_ALL, "exact"),
    "max_by({0}, id)": (_ALL, "exact"),
    "min_by({0}, id) filter (where o)": (_ALL, "exact"),
    "sum({0})": ("yhim", "exact"),
    "try_sum({0})": ("yhimn", "exact"),
    "try_sum({0} div 1000)": ("l", "exact"),
    "avg({0})": ("yhimn", "close"),
    "try_avg({0})": ("yhimn", "close"),
    "avg({0} / 4)": ("fd", "close"),
    "bit_and({0})": (_WHOLE, "exact"),
    "bit_or({0})": (_WHOLE, "exact"),
    "bit_xor({0})": (_WHOLE, "exact"),
    "bool_and({0} is null)": (_ALL, "exact"),
    "count(distinct {0})": (_ALL, "exact"),
    "sum(distinct {0})": ("yhim", "exact"),
    "approx_count_distinct({0})": (_ALL, "exact"),
    "approx_count_distinct({0}, 0.01) filter (where o)": ("ilsmda", "exact"),
    "mode({0}, true)": ("oyhilmnsatu", "exact"),
    "mode() within group (order by {0} desc)": ("oyhilmnsatu", "exact"),
    "median({0})": ("yhilm", "close"),
    "percentile({0}, array(0.0, 0.25, 0.7, 1.0))": ("yhilm", "close"),
    "percentile_cont(0.4) within group (order by {0} desc)": ("yhilm", "close"),
    "percentile_disc(0.3) within group (order by {0})": ("yhilm", "close"),
    "listagg({0}, ',') within group (order by {0})": ("s", "exact"),
    "listagg({0}, '|') within group (order by id desc)": ("s", "exact"),
    "string_agg(cast({0} as string), ';') within group (order by n nulls last, d desc, id)": ("yhil", "exact"),
    "collect_list({0})": ("oyhilmnsatu", "list"),
    "collect_set({0})": ("oyhilmnsatu", "list"),
} | {
    f"{function}({_TAME})": ("yhil", "close")
    for function in ("stddev", "stddev_pop", "variance", "var_pop", "std", "skewness", "kurtosis")
} | {
    f"{function}({_TAME}, cast(id % 17 as double))": ("yhil", "close")
    for function in (
        "covar_pop", "covar_samp", "corr", "regr_count", "regr_avgx", "regr_avgy", "regr_sxx", "regr_syy", "regr_sxy",
        "regr_slope", "regr_intercept", "regr_r2",
    )
}  # fmt: skip
"""Call, over which columns, and how results are compared."""
_FINAL = re.compile("mode|median|percentile|listagg|string_agg|collect")


@pytest.fixture(scope="module")
def bulk(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[None]:
    folder, rng = tmp_path_factory.mktemp("bulk"), np.random.default_rng(seed)
    columns = {name: _nasty_column(name, ROWS, rng) for name in COLUMNS}
    columns |= {"id": pa.array(rng.permutation(ROWS)), "g": pa.array(rng.integers(0, 150, ROWS), pa.int32())}
    casts = ", ".join(f"cast({_SCALES.get(c, c)} as {kind}) {c}" for c, kind in COLUMNS.items())
    spark_session.createDataFrame(pa.table(columns)).createOrReplaceTempView("gpujoin_raw")
    written = spark_session.sql(f"select {casts}, id, if(g = 0, null, g) g from gpujoin_raw").repartition(3)
    written.write.parquet(str(folder / "bulk"))
    spark_session.read.parquet(str(folder / "bulk")).createOrReplaceTempView("bulk")
    yield
    for name in ("bulk", "gpujoin_raw"):
        spark_session.catalog.dropTempView(name)


SPILLED = FORCED | {"spark.gpujoin.memoryBudget": "300000"}
PLACES = {
    "one task": (FORCED, "g"), "exchanged": (EXCHANGED, "g"), "spilled": (SPILLED, "g"),
    "no keys": (FORCED, ""), "no keys, several tasks": (EXCHANGED, ""),
}  # fmt: skip


@pytest.mark.parametrize(("spark", "by"), PLACES.values(), indirect=["spark"], ids=PLACES.keys())
@pytest.mark.parametrize("call", FUNCTIONS)
def test_aggregates(bulk: None, spark: SparkSession, call: str, by: str) -> None:
    kinds, compared = FUNCTIONS[call]
    if "percentile" in call and spark.version < "4.3":
        pytest.skip("Spark interpolates in other steps")
    if not by and spark.conf.get("spark.gpujoin.exchange.partitions", "") and _FINAL.match(call):
        pytest.skip("several tasks leave the only group to Spark")
    for columns in [*kinds] if call.startswith("approx") else [kinds]:
        calls = ", ".join(f"{call.format(column)} as {column}" for column in columns)
        frame = spark.sql(f"select {calls} from bulk" if not by else f"select {by}, {calls} from bulk group by {by}")
        rewritten = rewrite(frame)
        assert rewritten.explanation.islands
        assert rewritten.frame.schema == frame.schema
        compare(rewritten.frame, frame, compared)


def compare(actual: DataFrame, expected: DataFrame, compared: str) -> None:
    """Check rows: floats up to rounding where the order of rows decides it, and lists in any order."""
    tables = [sorted(_rows(frame), key=_group) for frame in (actual, expected)]
    assert len(tables[0]) == len(tables[1])
    for row, wanted in zip(*tables, strict=True):
        for value, other in zip(row, wanted, strict=True):
            assert _same(value, other, compared), (row, wanted)


def _rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Rows with texts as bytes, since not all are UTF-8."""
    columns = []
    for column in frame.toArrow().columns:
        kind = column.type
        if pa.types.is_string(kind):
            kind = pa.binary()
        elif pa.types.is_list(kind) and pa.types.is_string(kind.value_type):
            kind = pa.list_(pa.binary())
        columns.append(column.cast(kind).to_pylist())
    return list(zip(*columns, strict=True))


def _group(row: tuple[Any, ...]) -> tuple[bool, str]:
    return row[0] is None, repr(row[0])


def _same(value: Any, other: Any, compared: str) -> bool:
    if isinstance(value, list) and isinstance(other, list):
        if compared == "list":
            return sorted(map(repr, value)) == sorted(map(repr, other))
        return len(value) == len(other) and all(_same(a, b, compared) for a, b in zip(value, other, strict=True))
    if isinstance(value, float) and isinstance(other, float):
        if math.isnan(value) or math.isnan(other):
            return math.isnan(value) and math.isnan(other)
        return math.isclose(value, other, rel_tol=1e-9, abs_tol=1e-9) if compared == "close" else value == other
    return bool(value == other)
