"""Moments of infinities, NaN, zeros of both signs and the least numbers, of few rows and of none: Spark's, each way."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import product

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from gpujoin.spark.query.accelerate import rewrite
from tests.spark.query.queries import EXCHANGED, FORCED, views

pytestmark = pytest.mark.spark

INF, NAN = math.inf, math.nan
FIRST = (None, 1.0, -0.0, INF, -INF, NAN, 5e-324)
SECOND = (2.0, -0.0, INF, 1e-323)
ROWS = [*((a,) for a in product(FIRST, SECOND)), *product(product(FIRST, SECOND), repeat=2)]
"""Groups of one row, and of two."""
LONGER = [
    [(1.0, 1.0), (2.0, 2.0), (INF, 9.0)], [(1.0, 1.0), (INF, 2.0), (3.0, 3.0)], [(1.0, 1.0), (INF, 2.0), (3.0, 0.0)],
    [(1.0, 1.0), (2.0, 3.0), (3.0, -INF), (4.0, 4.0)], [(1e200, 1.0), (-1e200, 2.0)], [(1.7e308, 1.0), (-1.7e308, 2.0)],
]  # fmt: skip
OF_ONE = ("stddev", "stddev_pop", "variance", "var_pop", "skewness", "kurtosis")
OF_TWO = (
    "covar_pop", "covar_samp", "corr", "regr_count", "regr_avgx", "regr_avgy", "regr_sxx", "regr_syy", "regr_sxy",
    "regr_slope", "regr_intercept", "regr_r2",
)  # fmt: skip
CALLS = [*(f"{name}({value})" for name in OF_ONE for value in "xy"), *(f"{name}(x, y)" for name in OF_TWO)]
CALLS += [f"{name}(y, x)" for name in ("covar_pop", "regr_sxy", "regr_slope", "regr_intercept")]


_UNFRAMED = re.compile("corr|regr_r2")
"""Functions that no window computes here."""


@pytest.fixture(scope="module")
def specials(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("moments")
    groups = [*ROWS, *LONGER]
    table = pa.table({
        "g": pa.array([g for g, rows in enumerate(groups) for _ in rows], pa.int32()),
        "x": pa.array([x for rows in groups for x, _ in rows], pa.float64()),
        "y": pa.array([y for rows in groups for _, y in rows], pa.float64()),
    })  # fmt: skip
    table = table.append_column("o", pa.array(range(table.num_rows), pa.int32()))
    pq.write_table(table, folder / "specials")
    with views(spark_session, folder, {"specials": None}):
        yield


QUERIES = {
    "groups": "select g, {calls} from specials group by g",
    "none": "select {calls} from specials where g < 0",
    "some": "select g, {filtered} from specials group by g",
    "windows": "select g, o, {framed} from specials",
}
FRAMES = ("partition by g order by o rows between 1 preceding and current row", "partition by g")
SETTINGS = {
    f"{where}, {mode}, {legacy}": place | {
        "spark.sql.ansi.enabled": str(mode == "ansi").lower(),
        "spark.sql.legacy.statisticalAggregate": str(legacy == "NaN").lower(),
    }
    for (where, place), mode, legacy in product(
        {"one task": FORCED, "exchanged": EXCHANGED}.items(), ("ansi", "not ansi"), ("null", "NaN")
    )
}  # fmt: skip


def _listed(text: str) -> str:
    return ", ".join(f"{text.format(call)} c{n}" for n, call in enumerate(CALLS))


_SHORT = {("groups", "one task, ansi, null")}
_CASES = [
    pytest.param(query, settings, id=f"{query}, {name}", marks=[] if (query, name) in _SHORT else pytest.mark.extra)
    for query, (name, settings) in product(QUERIES, SETTINGS.items())
]


@pytest.mark.parametrize(("query", "spark"), _CASES, indirect=["spark"])
def test_moments_of_special_values(specials: None, spark: SparkSession, query: str) -> None:
    windows = (f"{call} over ({FRAMES[n % 2]}) c{n}" for n, call in enumerate(CALLS) if not _UNFRAMED.match(call))
    framed = ", ".join(windows)
    texts = {"calls": _listed("{}"), "filtered": _listed("{} filter (where o % 5 <> 2)"), "framed": framed}
    frame = spark.sql(QUERIES[query].format(**texts))
    found = rewrite(frame)
    assert found.explanation.islands, found.explanation
    rows, expected = (sorted(map(tuple, each.collect()), key=_group) for each in (found.frame, frame))
    assert len(rows) == len(expected)
    for row, other in zip(rows, expected, strict=True):
        for name, value, wanted in zip(frame.columns, row, other, strict=True):
            call = CALLS[int(name[1:])] if name[1:] else name
            assert _same(value, wanted), (call, row[0], value, wanted)


def _group(row: tuple[object, ...]) -> tuple[str, ...]:
    return tuple(map(repr, row[:2] if isinstance(row[1], int) else row[:1]))


def _same(value: float | None, wanted: float | None) -> bool:
    if value is None or wanted is None or math.isnan(wanted) or math.isinf(wanted):
        return repr(value) == repr(wanted)
    return math.isclose(value, wanted, rel_tol=1e-9, abs_tol=1e-320)
