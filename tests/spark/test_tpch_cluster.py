"""All queries of TPC-H on a standalone cluster, exchanged; in ten of them a task fails, and an executor is killed.

So it is in queries whose tasks are made once sizes are known, or that send keys before rows: these very tasks fail.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.data import tpch_directory
from tests.spark.standalone import Cluster, objects

pytest.importorskip("duckdb_extension_tpch", reason="no TPC-H queries: pip install gpujoin[bench]")
from tests.spark.tpch_cluster_app import DISTURBED, OTHERS

APP = Path(__file__).with_name("tpch_cluster_app.py")
WITHOUT_EXCHANGE = (1, 6, 16)
"""Queries with nothing to join by key, or with NOT IN, whose tables are divided all the same."""
NUMBERS = range(1, 23)
EXPLAINED = {
    "shared": "computed once with an exchange alike",
    "split": "a heavy partition of a join is computed by several tasks",
    "keys": "keys of another input drop rows before they are exchanged",
    "small": "an input of a join that proves small is sent to every task",
    "coalesced": "small partitions are coalesced once their sizes are known",
}
MEASURED = {
    "shared": r"4 partitions planned, 1 run: their sizes were known",
    "split": r"[2-8] tasks: a share of the left rows of a heavy partition",
    "keys": r"those without a match for a join left out",
    "small": r"4 tasks: an input of a join proved small and was sent to every task",
    "coalesced": r"16 partitions planned, 1 run: their sizes were known",
}

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the application printed, by query."""
    data = tpch_directory(0.01, tmp_path_factory.mktemp("tpch"))
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        flags = cluster.base / "flags"
        flags.mkdir()
        printed = cluster.run(str(APP), cluster.master, str(data), str(flags), seconds=3000)
    return {line["query"]: line for line in objects(printed)}


@pytest.mark.parametrize("number", NUMBERS)
def test_answers_are_sparks_whatever_happens_to_tasks(told: dict[str, dict[str, Any]], number: int) -> None:
    query = told[str(number)]
    assert not query["difference"]
    assert "scan " in query["explain"], "it ran in workers"
    assert query["tasks"]
    if number not in WITHOUT_EXCHANGE:
        assert "exchange by" in query["explain"]
    assert query["faults"] == ([f"fail-{number}", f"kill-{number}"] if number in DISTURBED else [])


@pytest.mark.parametrize("name", OTHERS)
def test_what_depends_on_sizes_or_keys_is_right_after_a_failure(told: dict[str, dict[str, Any]], name: str) -> None:
    query = told[name]
    assert not query["difference"]
    assert EXPLAINED[name] in query["explain"]
    assert re.search(MEASURED[name], query["metrics"])
    assert query["faults"] == [f"fail-{name}", f"kill-{name}"]
    assert query["output"] == query["rows"] > 0, "tasks that were tried again count once"


def test_the_unmatched_rows_of_a_heavy_partition_come_once(told: dict[str, dict[str, Any]]) -> None:
    assert "1 task: the right rows of a heavy partition that have no match" in told["split"]["metrics"]


def test_all_queries_ran(told: dict[str, dict[str, Any]]) -> None:
    assert set(told) == {*map(str, NUMBERS), *OTHERS}
