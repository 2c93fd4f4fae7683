"""What type checkers make of programs that use the public names."""

from __future__ import annotations

import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import pytest

from gpujoin.config import BackendChoice, BackendChoiceName, Strategy, StrategyName
from gpujoin.model.jointype import JoinName, JoinType, SparkJoinName
from gpujoin.model.spec import Direction, DirectionName

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("names", "values"), [(BackendChoiceName, BackendChoice), (StrategyName, Strategy), (DirectionName, Direction)]
)
def test_literal_types_list_the_values_of_their_enum(names: Any, values: type[Enum]) -> None:
    assert list(get_args(names)) == [value.value for value in values]


def test_literal_types_of_joins_list_what_is_parsed() -> None:
    names = [name for part in get_args(JoinName) for name in get_args(part)]
    assert set(get_args(SparkJoinName)) < set(names)
    assert {JoinType.parse(name) for name in names} == set(JoinType)


PROGRAM = """
import pyarrow as pa
from pyspark.sql import DataFrame
from gpujoin import asof_join_tables, gpu_asof_join, gpu_join, join_tables

def right(a: DataFrame, b: DataFrame, t: pa.Table) -> None:
    gpu_join(a, b, "id", "left_outer", strategy="shuffle", backend="cpu")
    gpu_join(a, b, a["id"] == b["id"], how="anti")
    gpu_asof_join(a, b, "t", direction="nearest", backend="auto")
    join_tables(t, t, on=("id",), how="existence", backend="gpu")

def wrong(a: DataFrame, b: DataFrame, t: pa.Table) -> None:
    gpu_join(a, b, "id", how="lefft")
    gpu_join(a, b, on=("id",))
    gpu_join(a, b, on=True)
    gpu_join(a, b, left_on="id")
    gpu_join(a, b, "id", strategy="brodcast")
    gpu_asof_join(a, b, "t", direction="back")
    join_tables(t, t, on="id", how="iner")
    asof_join_tables(t, t, "t", backend="tpu")
"""


@pytest.mark.extra
def test_mypy_finds_wrong_words_and_arguments(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="no mypy, which the extra dev brings")
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(tmp_path / "program.py")],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error: " in line}
    first_wrong = PROGRAM.splitlines().index('    gpu_join(a, b, "id", how="lefft")') + 1
    assert found == set(range(first_wrong, first_wrong + 8)), done.stdout
