"""The Python of workers on this machine: a session whose workers could not join leaves joins to Spark, and says why."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest
from pyspark import SparkConf
from pyspark.sql import SparkSession

from gpujoin import FallbackError, explain, gpu_join
from gpujoin.config import Strategy
from gpujoin.model.reasons import ReasonKind
from gpujoin.spark.worker.python import REQUIRED_MODULES, use_this_python, worker_python
from tests.spark.front import left_side, right_side


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """This interpreter without the libraries of its environment."""
    return script(tmp_path / "bare python", f'exec "{sys.executable}" -I -S "$@"')


def test_this_python_can_join_whatever_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worker_python(sys.executable, ("no_such_module",)).obstacle == ""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    found = worker_python(Path(sys.executable).name, ("gpujoin", *REQUIRED_MODULES))
    assert found.path == sys.executable
    assert found.obstacle == ""


def test_another_python_is_asked(bare: Path, tmp_path: Path) -> None:
    assert worker_python(str(bare), ("json", "polars", "numpy")).obstacle == "lacks polars, numpy"
    same = script(tmp_path / "same", f'exec "{sys.executable}" "$@"')
    assert worker_python(str(same), REQUIRED_MODULES).obstacle == ""
    old = script(tmp_path / "old", "echo 3.8 numpy")
    assert worker_python(str(old), REQUIRED_MODULES).obstacle.startswith("is Python 3.8, not 3.")
    broken = script(tmp_path / "broken", "echo pyenv: python3: command not found >&2; exit 127")
    assert worker_python(str(broken), REQUIRED_MODULES).obstacle == "cannot be run: pyenv: python3: command not found"
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    empty.chmod(0o755)
    assert worker_python(str(empty), REQUIRED_MODULES).obstacle.startswith("cannot be run")


def test_a_folder_of_that_name_is_no_package(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "polars").mkdir()
    monkeypatch.chdir(tmp_path)
    assert worker_python(str(bare), ("json", "polars")).obstacle == "lacks polars"


def test_what_is_not_found_here_is_not_judged() -> None:
    found = worker_python("./environment/bin/python", REQUIRED_MODULES)
    assert found.path is None
    assert found.obstacle == ""


@pytest.mark.spark
def test_a_join_is_left_to_spark_if_its_workers_lack_libraries(
    spark: SparkSession, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = left_side(spark), right_side(spark)
    assert explain(gpu_join(left, right, "k", strategy="shuffle")).joins[0].strategy is Strategy.SHUFFLE
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(bare))
    joined = gpu_join(left, right, "k", strategy="shuffle")
    (join,) = explain(joined).joins
    assert join.backend == "spark"
    (reason,) = join.reasons
    assert reason.kind is ReasonKind.UNAVAILABLE
    assert f"{bare}, which lacks gpujoin, numpy, polars, pyarrow" in reason.why
    assert reason.setting is not None
    assert f"PYSPARK_PYTHON={sys.executable}" in reason.setting
    assert sorted(map(str, joined.collect())) == sorted(map(str, left.join(right, "k").collect()))
    spark.conf.set("spark.gpujoin.fallback", "raise")
    with pytest.raises(FallbackError, match="PYSPARK_PYTHON="):
        gpu_join(left, right, "k", strategy="shuffle").collect()


@pytest.mark.spark
def test_sessions_of_enabled_programs_run_this_python(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    context = spark.sparkContext
    monkeypatch.setattr(context, "pythonExec", "python3")
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    use_this_python(context)
    assert context.pythonExec == "python3"
    monkeypatch.delenv("PYSPARK_PYTHON")
    with monkeypatch.context() as patch:
        patch.setattr(context, "getConf", lambda: SparkConf(loadDefaults=False).set("spark.pyspark.python", "python3"))
        use_this_python(context)
        assert context.pythonExec == "python3"
    with monkeypatch.context() as patch:
        patch.setattr(context, "master", "spark://host:7077")
        use_this_python(context)
        assert context.pythonExec == "python3"
    use_this_python(context)
    assert context.pythonExec == sys.executable


@pytest.mark.spark
def test_files_shipped_with_the_job_may_hold_gpujoin(
    spark: SparkSession, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(bare))
    monkeypatch.setattr(spark.sparkContext, "_python_includes", ["gpujoin.zip"])
    (join,) = explain(gpu_join(left_side(spark), right_side(spark), "k", backend="cpu")).joins
    assert "which lacks numpy, polars, pyarrow" in str(join.reasons[0])
