"""Joins on a standalone cluster of two workers, with failing, hanging and killed tasks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpujoin.cli.demo.joins import JOINS
from tests.spark.cluster_app import ISLANDS, SKEWED

ROOT = Path(__file__).parents[2]
APP = Path(__file__).with_name("cluster_app.py")

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@dataclass
class Cluster:
    """A master and workers as processes of this machine, each worker with directories of its own."""

    base: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    master: str = ""

    @property
    def environment(self) -> dict[str, str]:
        import pyspark

        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {
            **os.environ,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": path,
            "SPARK_LOG_DIR": str(self.base),
        }

    def local_dirs(self) -> list[Path]:
        return [self.base / f"worker{number}" / "local" for number in range(2)]

    def start(self) -> None:
        log = self._launch("master", ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0",
                                      "--webui-port", "0"], {})  # fmt: skip
        self.master = _wait_for(log, r"Starting Spark master at (spark://\S+)")
        for number, local in enumerate(self.local_dirs()):
            local.mkdir(parents=True)
            worker = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "2", "--memory", "1g",
                      "--webui-port", "0", "--work-dir", str(local.parent / "work"), self.master]  # fmt: skip
            log = self._launch(f"worker{number}", worker, {"SPARK_LOCAL_DIRS": str(local)})
            _wait_for(log, r"(Successfully registered with master)")

    def _launch(self, name: str, command: list[str], more: dict[str, str]) -> Path:
        environment = {**self.environment, **more, "SPARK_DAEMON_MEMORY": "256m"}
        spark_class = Path(environment["SPARK_HOME"]) / "bin" / "spark-class"
        log = self.base / f"{name}.log"
        with log.open("wb") as out:
            self.processes.append(subprocess.Popen([spark_class, *command], stdout=out, stderr=out, env=environment))
        return log

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(log: Path, pattern: str, seconds: float = 90) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found:
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"{log.name} never said {pattern!r}:\n{log.read_text(errors='replace')[-3000:]}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


def run_app(cluster: Cluster, *scenarios: str, **settings: str) -> dict[str, dict[str, Any]]:
    """Run the application on the cluster; what it printed, by scenario."""
    flags = cluster.base / "-".join(["flags", *settings])
    flags.mkdir()
    done = subprocess.run(
        [sys.executable, str(APP), cluster.master, str(flags), *scenarios], cwd=cluster.base, capture_output=True,
        text=True, env={**cluster.environment, **settings}, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    return {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}


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


@pytest.mark.parametrize("name", SKEWED)
def test_heavy_keys(told: dict[str, dict[str, Any]], name: str) -> None:
    """Rows that are alike go where they went before when their mapper runs again elsewhere."""
    found = told[name]
    assert found["equal"]
    assert found["rows"] == 5 * 20_001 + 39_999
    assert ("a heavy key is split" if name.endswith("island") else "20,001 of heavy keys") in found["text"]
    assert found["disturbed"], "the disturbance never happened"


def test_nothing_is_left_behind(cluster: Cluster, told: dict[str, dict[str, Any]]) -> None:
    assert set(told) == {"executors", *SCENARIOS, *ISLANDS, *SKEWED}
    deadline = time.monotonic() + 30
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
    done = subprocess.run(
        [sys.executable, "-m", "gpujoin", "demo", "--scale", "0.01", "--master", cluster.master, *conf],
        cwd=cluster.base, capture_output=True, text=True, env=cluster.environment, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    assert f"{len(JOINS)} of {len(JOINS)} results equal" in done.stdout
