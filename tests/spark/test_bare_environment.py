"""The first try: a program that runs from a virtual environment that is not activated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.environments import environment_without
from tests.spark.standalone import Cluster

pytestmark = pytest.mark.spark

APP = """
import json, os, sys
import gpujoin
from pyspark.sql import SparkSession
from gpujoin.spark.query import running

if "FAULT" in os.environ:
    from tests.spark.query import faults
    running.RunStage = getattr(faults, os.environ["FAULT"])

session = (
    SparkSession.builder.master(sys.argv[1])
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.executor.memory", "700m")
    .config("spark.gpujoin.backend", "cpu")
    .config("spark.log.level", "OFF")
    .getOrCreate()
)
session.range(100).selectExpr("id % 3 k", "id v").coalesce(1).write.parquet(sys.argv[2])
gpujoin.enable(session)
for _ in range(int(os.environ.get("TIMES", "2"))):
    frame = session.read.parquet(sys.argv[2]).groupBy("k").sum("v")
    rows = sorted(map(tuple, frame.collect()))
    ran = sum(bool(report.runs) for report in gpujoin.metrics(frame))
    print(json.dumps({"rows": rows, "ran": ran, "explained": str(gpujoin.explain(frame))}))
session.stop()
"""
ROWS = [[0, 1683], [1, 1617], [2, 1650]]


@dataclass(frozen=True)
class Environment:
    """A virtual environment with everything, and a Python without anything that is first on ``PATH``."""

    python: Path
    bare: Path

    @property
    def variables(self) -> dict[str, str]:
        """What the program's environment is: the virtual environment shows nowhere in it."""
        hidden = ("PYSPARK_", "PYTHON", "VIRTUAL_ENV", "SPARK_HOME")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        return {**kept, "PATH": f"{self.bare.parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    base = tmp_path_factory.mktemp("environments")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(base / "bare")], check=True)
    return Environment(environment_without(base / "full"), base / "bare" / "bin" / "python3")


def run_app(environment: Environment, folder: Path, master: str, **variables: str) -> list[dict[str, Any]]:
    """What the program prints of one query, run twice unless ``TIMES`` says otherwise."""
    app = folder / "app.py"
    app.write_text(APP)
    done = subprocess.run(
        [environment.python, str(app), master, str(folder / "table")], cwd=folder, capture_output=True, text=True,
        env={**environment.variables, **variables}, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(line["rows"] == ROWS for line in lines)
    return lines


@pytest.mark.slow
def test_workers_run_the_environment_of_the_program(environment: Environment, tmp_path: Path) -> None:
    lines = run_app(environment, tmp_path, "local[2]")
    assert [line["ran"] for line in lines] == [1, 1], lines


@pytest.mark.slow
def test_islands_are_refused_where_a_bare_python_was_chosen(environment: Environment, tmp_path: Path) -> None:
    lines = run_app(environment, tmp_path, "local[2]", PYSPARK_PYTHON="python3")
    for line in lines:
        assert line["ran"] == 0
        assert f"Spark starts them with python3 ({environment.bare}), which lacks gpujoin" in line["explained"]
        assert f"PYSPARK_PYTHON={environment.python}" in line["explained"]


@pytest.mark.slow
@pytest.mark.parametrize(("library", "why"), [("pandas", "Pandas >= "), ("polars", "lacks polars")])
def test_a_driver_that_lacks_a_library_leaves_all_to_spark(
    environment: Environment, tmp_path: Path, library: str, why: str
) -> None:
    lacking = Environment(environment_without(tmp_path / "environment", library, f"_{library}"), environment.bare)
    for line in run_app(lacking, tmp_path, "local[2]"):
        assert line["ran"] == 0
        assert "left to Spark: driver: " in line["explained"]
        assert why in line["explained"]
        assert 'pip install ".[spark]" in a checkout of gpujoin' in line["explained"]


@pytest.fixture
def told(environment: Environment) -> dict[str, str]:
    """What tells a cluster's driver the Python of the workers."""
    return {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(environment.python)}


@pytest.fixture
def cluster(environment: Environment, tmp_path: Path) -> Iterator[Cluster]:
    made = BareCluster(tmp_path / "cluster", python=environment)
    made.base.mkdir()
    with made:
        yield made


@dataclass
class BareCluster(Cluster):
    """A cluster whose ``python3`` has nothing."""

    python: Environment | None = None

    @property
    def environment(self) -> dict[str, str]:
        assert self.python is not None
        named = {"SPARK_HOME", "SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_IP", "SPARK_LOG_DIR"}
        return self.python.variables | {name: value for name, value in super().environment.items() if name in named}


@pytest.mark.slow
def test_a_cluster_of_bare_pythons_gives_queries_back(
    cluster: Cluster, environment: Environment, tmp_path: Path
) -> None:
    """The first query fails in a worker, and Spark runs it; from then on the reason is known."""
    lines = run_app(environment, tmp_path, cluster.master, SPARK_LOCAL_IP="127.0.0.1")
    assert [line["ran"] for line in lines] == [0, 0]
    assert "No module named 'pyarrow'" in lines[1]["explained"]


@pytest.mark.slow
def test_a_cluster_that_is_told_its_python_runs_islands(
    cluster: Cluster, environment: Environment, told: dict[str, str], tmp_path: Path
) -> None:
    lines = run_app(environment, tmp_path, cluster.master, **told)
    assert [line["ran"] for line in lines] == [1, 1], lines


@pytest.mark.slow
def test_executors_that_are_lost_give_queries_back(
    cluster: Cluster, environment: Environment, told: dict[str, str], tmp_path: Path
) -> None:
    lines = run_app(environment, tmp_path, cluster.master, **told, FAULT="LostExecutorStage", TIMES="1")
    assert [line["ran"] for line in lines] == [0]
    assert "island" in lines[0]["explained"]
