"""docs/functions.md has every function of Spark, and says of each what the planner does with it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from gpujoin.functions.reference import FURTHER_CALLS, LEFT_TO_SPARK

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


def test_every_function_has_a_verdict(spark: SparkSession, generator: ModuleType) -> None:
    _needs_this_version(spark)
    names = [function.name for function in generator.listed(spark)]
    assert len(names) > 500
    assert not [name for name in names if generator.code(name) not in ROWS]


def test_what_is_left_to_spark_has_a_reason() -> None:
    assert not [name for name, cells in ROWS.items() if cells[1] == "left to Spark" and not cells[-1].strip(" |")]


def test_reasons_are_of_functions_that_are_left(spark: SparkSession, generator: ModuleType) -> None:
    _needs_this_version(spark)
    functions = generator.listed(spark)
    named = {name for row in LEFT_TO_SPARK for name in row.functions}
    assert named | FURTHER_CALLS.keys() <= {function.name for function in functions}
    assert {section for row in LEFT_TO_SPARK for section in row.sections} <= {function.group for function in functions}
    verdicts = {name: ROWS[generator.code(name)][1] for name in named}
    assert set(verdicts.values()) == {"left to Spark", "exact where"}, verdicts


@pytest.mark.parametrize("names", [SAMPLE, pytest.param((), marks=pytest.mark.slow)], ids=["sample", "all"])
def test_verdicts_are_true(spark: SparkSession, generator: ModuleType, tmp_path: Path, names: tuple[str, ...]) -> None:
    _needs_this_version(spark)
    planner = generator.Planner(spark, tmp_path)
    judged = [planner.judge(f) for f in generator.listed(spark) if f.name in names or not names]
    assert len(judged) >= len(SAMPLE)
    untrue = [line for j in judged if (line := generator.line_of(generator.cells_of(j))) not in PAGE]
    assert not untrue, "".join(untrue) + "Run: make docs"
