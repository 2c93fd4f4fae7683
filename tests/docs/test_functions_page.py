"""docs/functions.md has every function of Spark, and says of each what the planner does with it."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession

from gpujoin.spark.query.accelerate import rewrite
from gpujoin.testing import assert_same_rows
from scripts.function_reference import FURTHER_CALLS, LEFT_TO_SPARK

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "functions.md").read_text(encoding="utf-8")
ROWS = {
    cells[0].removeprefix("| "): cells for line in PAGE.splitlines() if (cells := line.split(" | "))[0][:3] == "| `"
}
SAMPLE = (
    "<=>", "case", "nvl", "upper", "pow", "regexp_instr", "encode", "sin", "rand", "pi", "sum", "row_number",
    "from_xml",
)  # fmt: skip

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def generator() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("gen_functions", ROOT / "scripts" / "gen_functions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gen_functions"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gen_functions"]


def _needs_this_version(spark: SparkSession) -> None:
    if f"Spark {spark.version} " not in PAGE:
        pytest.skip("the page is of another version of Spark")


@pytest.fixture(scope="module")
def functions(spark_session: SparkSession, generator: ModuleType) -> list[Any]:
    """All functions of this Spark; to list them takes thousands of calls to the JVM."""
    listed: list[Any] = generator.listed(spark_session)
    return listed


def test_every_function_has_a_verdict(spark: SparkSession, generator: ModuleType, functions: list[Any]) -> None:
    _needs_this_version(spark)
    names = [function.name for function in functions]
    assert len(names) > 500
    assert not [name for name in names if generator.code(name) not in ROWS]


def test_what_is_left_to_spark_has_a_reason() -> None:
    assert not [name for name, cells in ROWS.items() if cells[1] == "left to Spark" and not cells[-1].strip(" |")]


def test_reasons_are_of_functions_that_are_left(
    spark: SparkSession, generator: ModuleType, functions: list[Any]
) -> None:
    _needs_this_version(spark)
    named = {name for row in LEFT_TO_SPARK for name in row.functions}
    assert named | FURTHER_CALLS.keys() <= {function.name for function in functions}
    assert {section for row in LEFT_TO_SPARK for section in row.sections} <= {function.group for function in functions}
    verdicts = {name: ROWS[generator.code(name)][1] for name in named}
    assert set(verdicts.values()) == {"left to Spark", "exact where"}, verdicts


@pytest.mark.parametrize("names", [SAMPLE, pytest.param((), marks=pytest.mark.slow)], ids=["sample", "all"])
def test_verdicts_are_true(
    spark: SparkSession, generator: ModuleType, functions: list[Any], tmp_path: Path, names: tuple[str, ...]
) -> None:
    _needs_this_version(spark)
    planner = generator.Planner(spark, tmp_path)
    judged = [planner.judge(f) for f in functions if f.name in names or not names]
    assert len(judged) >= len(SAMPLE)
    untrue = [line for j in judged if (line := generator.line_of(generator.cells_of(j))) not in PAGE]
    assert not untrue, "".join(untrue) + "Run: make docs"


ROWS_OF_VALUES = """
select * from values
  (0L, 'Spark SQL', 1, 10L, 1.5D, 2.50, true, X'4142', date'2024-02-29', timestamp'2024-02-29 10:20:30.500001', 0.5F,
    array(1, 2, 3), array('b', 'a', 'Spark'), map(1, 'a', 2, 'b'), named_struct('a', 1, 'b', 'x')),
  (1L, null, null, null, null, null, null, null, null, null, null, null, null, null, null),
  (2L, '2016-12-31', 3, -5L, -0.0D, -12.34, false, X'', date'1969-12-31', timestamp'1969-12-31 23:59:59.999999', -0.0F,
    array(null, 3, 3), array(null, 'x'), map(3, null), named_struct('a', null, 'b', 'ü')),
  (3L, 'ü,b,c', 0, 0L, double('NaN'), 0.00, true, X'00FF', date'0001-01-01', timestamp'9999-12-31 23:59:59', 1e10F,
    array(), array(), map(), named_struct('a', -7, 'b', null)),
  (4L, '10', 7, 9223372036854775807L, double('-infinity'), 99999999.99, null, X'E29C93', date'9999-12-31',
    timestamp'1582-10-04 00:00:00', float('NaN'), array(-1, 0), array(''), map(-1, ''), null)
"""
NULLS = 1
"""The row of nulls."""
AT_ONCE = 12
"""Calls in one query."""


def _values(spark: SparkSession, generator: ModuleType, folder: Path) -> None:
    """Put rows of special values in the place of the planner's table, whose types they have."""
    rows = spark.sql(f"{ROWS_OF_VALUES} as t(id, {', '.join(generator.COLUMNS)})")
    casts = [f"cast({name} as {dtype}) {name}" for name, dtype in generator.COLUMNS.items()]
    rows.selectExpr("id", *casts).coalesce(1).write.parquet(str(folder / "v"))
    spark.read.parquet(str(folder / "v")).createOrReplaceTempView("function_values")
    spark.range(5).selectExpr("id", "id w").write.parquet(str(folder / "o"))
    spark.read.parquet(str(folder / "o")).createOrReplaceTempView("function_others")


def _compared(spark: SparkSession, text: str) -> bool:
    """Compare a query that islands compute with Spark; false if either raises an error for some of its rows.

    Here that are values of which a function says that only Spark knows the result.
    """
    try:
        expected = spark.sql(text).toArrow()
    except (PySparkException, Py4JJavaError, pa.ArrowException):
        return False
    rewritten = rewrite(spark.sql(text))
    assert rewritten.explanation.islands, text
    try:
        actual = rewritten.frame.toArrow()
    except PythonException as problem:
        if not any(name in str(problem) for name in ("UnsupportedValueError", "InvalidTextError")):
            raise
        return False
    assert_same_rows(actual, expected, allow_empty=True)
    return True


def _is_compared_by_row(spark: SparkSession, text: str) -> bool:
    """Compare a query with Spark over each row alone; whether any but that of nulls was."""
    rows = [f"(select * from function_values where id = {n})" for n in range(5)]
    compared = [_compared(spark, text.replace("FROM function_values", f"FROM {row}")) for row in rows]
    return any(done for n, done in enumerate(compared) if n != NULLS)


def _calls_by_group(functions: list[Any], generator: ModuleType) -> dict[str, list[str]]:
    """The calls that the page says are computed here, by section."""
    calls: dict[str, list[str]] = {}
    for function in functions:
        shown = ROWS[generator.code(function.name)][2].replace("\\|", "|")
        calls.setdefault(function.group, []).extend(re.findall(r"`([^`]*)`", shown))
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("spark", [{"spark.sql.mapKeyDedupPolicy": "LAST_WIN"}], indirect=True, ids=["maps"])
def test_exact_functions_are_exact(
    spark: SparkSession, generator: ModuleType, functions: list[Any], tmp_path: Path
) -> None:
    """Every call that the page says is computed here, over special values; alone where calls beside it fail."""
    _needs_this_version(spark)
    planner = generator.Planner(spark, tmp_path)
    _values(spark, generator, tmp_path)
    uncompared: list[str] = []
    for group, calls in _calls_by_group(functions, generator).items():
        step = 1 if group == "generator_funcs" else AT_ONCE
        for start in range(0, len(calls), step):
            some = calls[start : start + step]
            named = some if step == 1 else [f"{call} AS c{n}" for n, call in enumerate(some)]
            if _compared(spark, planner.text(", ".join(named), group)):
                continue
            for call in some:
                text = planner.text(call, group)
                if not _compared(spark, text) and not _is_compared_by_row(spark, text):
                    uncompared.append(call)
    assert len(uncompared) < 10, uncompared
