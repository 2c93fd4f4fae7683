"""Joins on a standalone cluster of two workers, with failing, hanging and killed tasks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpujoin.cli.demo import QUERIES
from tests.spark.cluster_app import ISLANDS
from tests.spark.standalone import Cluster, objects

APP = Path(__file__).with_name("cluster_app.py")

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def run_app(cluster: Cluster, *scenarios: str, **settings: str) -> dict[str, dict[str, Any]]:
    """Run the application on the cluster; what it printed, by scenario."""
    flags = cluster.base / "-".join(["flags", *settings])
    flags.mkdir()
    printed = cluster.run(str(APP), cluster.master, str(flags), *scenarios, variables=settings)
    return {line["name"]: line for line in objects(printed)}


@pytest.fixture(scope="module")
def told(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """What the application printed, by scenario."""
    return run_app(cluster)


SCENARIOS = [
    "nothing-shuffle",
    "fail-shuffle",
    "fail-broadcast",
    "hang-shuffle",
    "kill-shuffle",
    "kill-broadcast",
]


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_result_is_right_and_counted_once(told: dict[str, dict[str, Any]], name: str) -> None:
    found = told[name]
    assert told["executors"]["count"] == 2
    assert found["disturbed"], "the disturbance never happened"
    assert found["equal"]
    assert found["rows"] > 10_000
    assert found["tasks"] == 4
    assert found["output_rows"] == found["rows"]
    if name in ("fail-shuffle", "kill-shuffle"):
        assert found["spills"] > 0
    assert found["sent"] == [40_000, 60_000]


@pytest.mark.parametrize("name", ISLANDS)
def test_islands_of_several_stages(told: dict[str, dict[str, Any]], name: str) -> None:
    found = told[name]
    assert found["equal"]
    assert found["rows"] == 80_000
    assert found["strategies"] == ["shuffle"]
    assert found["tasks"] == [4]
    assert found["text"].count("exchange by") == 2
    assert found["disturbed"], "the disturbance never happened"


def test_nothing_is_left_behind(cluster: Cluster, told: dict[str, dict[str, Any]]) -> None:
    assert set(told) == {"executors", *SCENARIOS, *ISLANDS}
    deadline = time.monotonic() + 300
    left: list[Path] = []
    while time.monotonic() < deadline:
        left = [path for local in cluster.local_dirs() for path in local.rglob("*") if path.is_file()]
        if not left:
            return
        time.sleep(0.5)
    pytest.fail(f"files left in Spark's local directories: {[str(path) for path in left[:10]]}")


def test_encrypted_broadcasts_and_shuffles_and_our_daemon(cluster: Cluster) -> None:
    settings = {"CLUSTER_APP_ENCRYPTION": "true", "CLUSTER_APP_DAEMON": "gpujoin.spark.daemon"}
    found = run_app(cluster, "nothing-shuffle", "fail-broadcast", **settings)
    assert found["nothing-shuffle"]["equal"]
    assert found["fail-broadcast"]["equal"]
    assert found["fail-broadcast"]["output_rows"] == 60_000


def test_the_demo_runs_on_the_cluster(cluster: Cluster) -> None:
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.cores": "2",
        "spark.executor.memory": "700m",
    }
    conf = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    printed = cluster.run("-m", "gpujoin", "demo", "--sf", "0.01", "--master", cluster.master, *conf)
    assert f"{len(QUERIES)} of {len(QUERIES)} results equal" in printed
