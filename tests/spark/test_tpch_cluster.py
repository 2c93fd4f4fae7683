"""All queries of TPC-H on a standalone cluster, exchanged; in ten of them a task fails, and an executor is killed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpujoin.cli.demo.data import tpch_directory
from tests.spark.standalone import Cluster

pytest.importorskip("duckdb_extension_tpch", reason="no TPC-H queries: pip install gpujoin[bench]")
from tests.spark.tpch_cluster_app import DISTURBED, SHARED, SPLIT

APP = Path(__file__).with_name("tpch_cluster_app.py")
WITHOUT_EXCHANGE = (1, 6, 16)
"""Queries with nothing to join by key, or with NOT IN, whose tables are divided all the same."""

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """What the application printed, by query."""
    data = tpch_directory(0.01, tmp_path_factory.mktemp("tpch"))
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    flags = cluster.base / "flags"
    flags.mkdir()
    try:
        cluster.start()
        done = subprocess.run(
            [sys.executable, str(APP), cluster.master, str(data), str(flags)], cwd=cluster.base, capture_output=True,
            text=True, env=cluster.environment, timeout=1800, check=False,
        )  # fmt: skip
    finally:
        cluster.stop()
    assert done.returncode == 0, done.stderr[-5000:]
    return {line["query"]: line for line in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("number", range(1, 25))
def test_answers_are_sparks_whatever_happens_to_tasks(told: dict[int, dict[str, Any]], number: int) -> None:
    found = told[number]
    assert not found["difference"]
    assert "scan " in found["explain"], "it ran in workers"
    assert found["tasks"]
    if number not in WITHOUT_EXCHANGE:
        assert "exchange by" in found["explain"]
    if number == SHARED:
        assert "computed once with an exchange alike" in found["explain"]
    if number == SPLIT:
        assert "a heavy partition of a join is computed by several tasks" in found["explain"]
        assert re.search(r"[2-8] tasks: a share of the left rows of a heavy partition", found["metrics"])
        assert "1 task: the right rows of a heavy partition that have no match" in found["metrics"]
    assert found["faults"] == ([f"fail-{number}", f"kill-{number}"] if number in DISTURBED else [])
