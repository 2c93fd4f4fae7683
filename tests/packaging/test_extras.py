"""Each extra, installed by pip from the wheel into an empty environment of each Python, and used. Needs an index."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.packaging.test_installs import ROOT, run

pytestmark = pytest.mark.slow

ENGINE = """
import pyarrow as pa
from gpujoin import Options, join_tables
left = pa.table({"k": range(200_000), "x": range(200_000)})
right = pa.table({"k": range(100_000, 300_000), "y": range(200_000)})
options = Options(memory_budget="1m", spill_encryption=ENCRYPTED)
rows = join_tables(left, right, on="k", how="full", options=options).num_rows
assert rows == 300_000, rows
print("joined")
"""
SPARK = """
import os, sys
import gpujoin
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.gpujoin.backend", "cpu").getOrCreate()
)
spark.range(1000).selectExpr("id k", "id % 7 v").coalesce(1).write.parquet("left")
spark.range(500, 1500).selectExpr("id k", "id % 3 w").coalesce(1).write.parquet("right")
gpujoin.enable(spark)
frame = spark.read.parquet("left").join(spark.read.parquet("right"), "k").groupBy("v").sum("w")
rows = sorted(map(tuple, frame.collect()))
counted = {}
for k in range(500, 1000):
    counted[k % 7] = counted.get(k % 7, 0) + k % 3
assert rows == sorted(counted.items()), rows
assert all(join.accelerated for join in gpujoin.explain(frame).joins), gpujoin.explain(frame)
assert any(report.runs for report in gpujoin.metrics(frame)), gpujoin.explain(frame)
spark.stop()
print("joined")
"""
CONNECT = """
import gpujoin
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.conf.set("spark.gpujoin.fallback", "raise")
left, right = spark.range(100).selectExpr("id k", "id x"), spark.range(50, 150).selectExpr("id k", "id y")
joined = gpujoin.gpu_join(left, right, "k", strategy="shuffle", backend="cpu")
assert sorted(row.k for row in joined.collect()) == list(range(50, 100))
assert [join.strategy.value for join in gpujoin.explain(joined).joins] == ["shuffle"]
spark.stop()
print("joined")
"""


VERSIONS = ("3.11", "3.12", "3.13")


def python_of(version: str) -> str:
    """A Python of a version: on PATH, or one of pyenv's; skips where there is none."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for candidate in (shutil.which(f"python{version}"), *map(str, pyenv.glob(f"{version}.*/bin/python{version}"))):
        if candidate and subprocess.run([candidate, "--version"], capture_output=True, check=False).returncode == 0:
            return candidate
    pytest.skip(f"no Python {version}")


def variables() -> dict[str, str]:
    """The environment of programs: that of a shell in which no virtual environment is activated."""
    hidden = ("PYSPARK_", "PYTEST_", "PYTHON", "VIRTUAL_ENV", "SPARK_")
    shown = ("SPARK_SUBMIT_OPTS",)  # how fast Java starts
    kept = {name: value for name, value in os.environ.items() if name in shown or not name.startswith(hidden)}
    return {**kept, "SPARK_LOCAL_IP": "127.0.0.1"}


Install = Callable[[str, str], Path]


@pytest.fixture
def install(distributions: tuple[Path, Path], tmp_path: Path) -> Iterator[Install]:
    """Makes an environment with nothing but what pip takes for an extra of the wheel; gives its Python."""
    home = tmp_path / "environment"

    def made(extra: str, version: str) -> Path:
        run(python_of(version), "-m", "venv", home)
        python = home / "bin" / "python"
        wanted = f"{distributions[1]}[{extra}]" if extra else distributions[1]
        run(python, "-m", "pip", "install", "-q", wanted, env=variables())
        return python

    yield made
    shutil.rmtree(home, ignore_errors=True)  # most of them have more than 1 GB


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("extra", "program"),
    [
        pytest.param("", ENGINE.replace("ENCRYPTED", "False"), id="none"),
        pytest.param("encryption", ENGINE.replace("ENCRYPTED", "True"), id="encryption"),
        pytest.param("spark", SPARK, id="spark", marks=pytest.mark.spark),
        pytest.param("connect", CONNECT, id="connect", marks=pytest.mark.spark),
    ],
)
def test_a_program_joins(install: Install, tmp_path: Path, extra: str, program: str, version: str) -> None:
    python = install(extra, version)
    # The server that a Connect program starts is Spark's: it is told the Python of its workers as any other is.
    told = {"PYSPARK_PYTHON": str(python)} if extra == "connect" else {}
    assert run(python, "-c", program, cwd=tmp_path, env=variables() | told).splitlines()[-1] == "joined"
    assert "site-packages" in run(
        python, "-c", "import gpujoin; print(gpujoin.__file__)", cwd=tmp_path, env=variables()
    )


@pytest.mark.spark
@pytest.mark.parametrize("version", VERSIONS)
def test_the_demo_runs(install: Install, tmp_path: Path, version: str) -> None:
    python = install("spark", version)
    command = [python, "-m", "gpujoin", "demo", "--sf", "0.001", "--only", "customers"]
    told = run(*command, cwd=tmp_path, env={**variables(), "GPUJOIN_CACHE": str(tmp_path / "data")})
    assert re.search(r"^(\d+) of \1 results equal$", told, re.MULTILINE), told


@pytest.mark.spark
@pytest.mark.parametrize("version", VERSIONS)
def test_the_benchmark_runs(install: Install, tmp_path: Path, version: str) -> None:
    """Benchmarks are no part of the wheel, and need what its extra brings."""
    python = install("bench", version)
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    command = f"{python} -m benchmarks.tpch --sf 0.01 --queries 12 --repeats 0 --out results".split()
    told = run(*command, cwd=tmp_path, env={**variables(), "GPUJOIN_CACHE": str(tmp_path / "data")})
    assert "1 of 1 answers equal" in told
    assert (tmp_path / "results" / "tpch.svg").is_file()


@pytest.mark.spark
@pytest.mark.parametrize("version", VERSIONS)
def test_tests_run(install: Install, tmp_path: Path, version: str) -> None:
    """Those that start Spark, and the notebook of the tutorial, among them."""
    python = install("test", version)
    chosen = ["tests/test_config.py", "tests/docs/test_tutorial.py", "tests/docs/test_pages.py"]
    options = ["-q", "-p", "no:cacheprovider", "--basetemp", tmp_path / "folders"]
    told = run(python, "-m", "pytest", *options, *chosen, cwd=ROOT, env=variables())
    assert re.search(r"^\d+ passed", told.splitlines()[-1]), told
    imported = "build, flask, flask_cors, hatchling, hypothesis, moto.server, nbclient, xdist, yaml"
    run(python, "-c", f"import {imported}", cwd=tmp_path, env=variables())


@pytest.mark.parametrize("version", VERSIONS)
def test_the_site_is_built(install: Install, tmp_path: Path, version: str) -> None:
    python = install("docs", version)
    command = [python, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", tmp_path / "site"]
    run(*command, cwd=ROOT, env={**variables(), "NO_MKDOCS_2_WARNING": "1"})
    assert (tmp_path / "site" / "index.html").is_file()
    assert run(python.parent / "mike", "--version", cwd=tmp_path, env=variables()).startswith("mike")


TOGETHER = "spark,connect,encryption,bench"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("extra", [f"{TOGETHER},cu12", f"{TOGETHER},cu13"])
def test_extras_resolve_together(distributions: tuple[Path, Path], tmp_path: Path, extra: str, version: str) -> None:
    """With the GPU libraries that are imported, and without cuDF's Python package, compiler and pandas 3."""
    run(python_of(version), "-m", "venv", tmp_path / "environment")
    pip = [tmp_path / "environment" / "bin" / "python", "-m", "pip", "install", "-q", "--dry-run"]
    run(*pip, "--report", tmp_path / "report", f"{distributions[1]}[{extra}]", env=variables())
    installed = json.loads((tmp_path / "report").read_text())["install"]
    chosen = {entry["metadata"]["name"].lower(): entry["metadata"]["version"] for entry in installed}
    assert chosen[f"pylibcudf-{extra[-4:]}"].startswith("26.10.")
    assert chosen["pandas"].startswith("2.")
    unused = ("cudf-", "numba", "nvidia-cublas", "nvidia-cusolver", "nvidia-cuda-nvcc")
    assert not [name for name in chosen if name.startswith(unused)]
