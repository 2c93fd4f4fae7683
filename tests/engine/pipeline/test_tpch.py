"""TPC-H queries as trees, against DuckDB over the same files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.pipeline.tpch import QUERIES, finals_of_duckdb
from gpujoin.config import Options
from gpujoin.engine.pipeline import supports
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import PartialAggregate
from tests.engine.pipeline.places import everywhere, run
from tests.oracle.aggregates import assert_same_groups, merged


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("tpch")
    beside = Path(sys.executable).with_name("tpchgen-cli")
    tool = beside if beside.is_file() else Path(shutil.which("tpchgen-cli") or beside)
    if not tool.is_file():
        pytest.skip('no tpchgen-cli: pip install "gpujoin[bench]"')
    subprocess.run([tool, "parquet", "-s", "0.01", "--output-dir", into], check=True, capture_output=True)
    return into


def result(tree: PartialAggregate, **kwargs: Any) -> pa.Table:
    return pa.Table.from_batches(run(tree, **kwargs), tree.schema)


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize(
    ("piece_bytes", "memory_budget"), [(64 << 20, 2 << 30), (100_000, 2 << 30), (100_000, 60_000)],
    ids=["one piece", "pieces", "little memory"],
)  # fmt: skip
def test_a_query_equals_duckdb(name: str, piece_bytes: int, memory_budget: int, folder: Path, tmp_path: Path) -> None:
    query = QUERIES[name]
    tree = query.tree(folder).relation
    assert isinstance(tree, PartialAggregate)
    assert supports(tree) == ()
    metrics = PipelineMetrics()
    options = Options(memory_budget=memory_budget, spill_dir=str(tmp_path))
    actual = merged(tree, result(tree, options=options, metrics=metrics, piece_bytes=piece_bytes))
    assert_same_groups(actual, finals_of_duckdb(folder, query.sql, tree), name)
    assert metrics.evaluated == 0, "an expression was not lowered"
    if name in ("q3", "q5", "q10", "q12", "q14", "q19"):
        assert metrics.query_joins + metrics.gather_joins > 0
    if memory_budget < 1 << 20 and name == "q18":
        assert metrics.early_groups > 0
