"""The pipeline benchmark checks what it times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("tpch")
    tool = Path(sys.executable).with_name("tpchgen-cli")
    subprocess.run([tool, "parquet", "-s", "0.01", "--output-dir", into], check=True, capture_output=True)
    return into


@pytest.mark.extra
def test_it_runs_and_writes_a_page(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "pipeline.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.pipeline", "--data", folder, "--repeats", "1", "--queries", "q1,q5,q6",
         "--out", out],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout.count("| q") == 4
    assert "| q6 | 1 |" in out.with_suffix(".md").read_text()


def test_a_wrong_answer_stops_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    from benchmarks.pipeline import tpch
    from gpujoin.engine.pipeline import run
    from gpujoin.model.relations import PartialAggregate
    from tests.oracle.aggregates import assert_same_groups, merged

    tree = tpch.QUERIES["q6"].tree(folder).relation
    assert isinstance(tree, PartialAggregate)
    found = merged(tree, pa.Table.from_batches(run(tree), tree.schema))
    wrong = tpch.QUERIES["q6"].sql.replace("< 24", "< 25")
    with pytest.raises(AssertionError, match="1 of 1 groups differ"):
        assert_same_groups(found, tpch.finals_of_duckdb(folder, wrong, tree))
