"""``scripts/gpu_peers.py`` with the engines that need no GPU, and with gpujoin's GPU backend under the stand-ins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kernels.conftest import emulator_cache
from tests.kernels.emulator.device import CACHE_VARIABLE
from tests.scripts.test_gpu_check import load

__all__ = ["emulator_cache"]

ROOT = Path(__file__).resolve().parents[2]
STAND_INS = "from tests.backends.cudf.libraries.plugin import install\ninstall()\n"

pytest.importorskip("duckdb_extension_tpch", reason='no texts of the queries: pip install ".[bench]"')
peers = load("gpu_peers")


def run_peers(out: Path, *arguments: str, **environment: str) -> tuple[int, dict[str, Any], str]:
    """Exit status, record and page of a run at scale 0.01."""
    command = [sys.executable, "scripts/gpu_peers.py", "--sf", "0.01", "--out", str(out), *arguments]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
    assert (out / "peers-tpch.json").exists(), done.stdout + done.stderr
    return done.returncode, json.loads((out / "peers-tpch.json").read_text()), (out / "peers-tpch.md").read_text()


def answered(record: dict[str, Any], way: str, run: str) -> set[int]:
    return {t["query"] for t in record["runs"] if (t["way"], t["run"], t["problem"]) == (way, run, "")}


def test_duckdb_and_polars_agree(tmp_path: Path) -> None:
    """Polars' own queries are right: all of them, by DuckDB's answers to the SQL texts."""
    status, record, page = run_peers(tmp_path, "--ways", "duckdb,polars")
    assert (status, record["problems"]) == (0, [])
    for way in ("duckdb", "polars"):
        assert answered(record, way, "first") == answered(record, way, "warm") == set(range(1, 23))
    assert "**All answers are equal.**" in page
    assert "sum of the 22 that all answered" in page
    assert str(Path.home()) not in page


@pytest.mark.slow
@pytest.mark.spark
def test_spark_and_gpujoin_agree_with_duckdb(tmp_path: Path) -> None:
    status, record, _ = run_peers(tmp_path, "--ways", "duckdb,cpu,spark", "--seconds", "400")
    assert (status, record["problems"]) == (0, [])
    for way in ("cpu", "spark"):
        assert answered(record, way, "warm") == set(range(1, 23))


@pytest.mark.slow
@pytest.mark.spark
def test_gpu_agrees_under_the_stand_ins(tmp_path: Path, emulator_cache: Path) -> None:
    """The way ``gpu`` to its end, with workers that have the stand-ins, and the command as on a device."""
    pytest.importorskip("pylibcudf", reason='no GPU libraries: pip install ".[cu13]"')
    (tmp_path / "sitecustomize.py").write_text(STAND_INS)
    status, record, _ = run_peers(
        tmp_path / "out", "--ways", "gpu,duckdb", "--queries", "1,6", "--seconds", "400",
        PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}", CUDA_VISIBLE_DEVICES="0", PYSPARK_PYTHON=sys.executable,
        **{CACHE_VARIABLE: str(emulator_cache)},
    )  # fmt: skip
    assert (status, record["problems"]) == (0, [])
    assert answered(record, "gpu", "warm") == {1, 6}


def outcome(way: str, *timings: tuple[int, str, int, float, str]) -> Any:
    """An outcome with runs of queries: number, run, rows, checksum and problem."""
    kind = peers.Way(way)
    runs = (peers.Timing(kind, number, peers.Run(run), 0.5, *rest) for number, run, *rest in timings)
    return peers.Outcome(kind, tuple(runs))


def test_answers_that_differ_are_problems(tmp_path: Path) -> None:
    answers = {"duckdb": [["a", 1.0]], "cpu": [["a", 1.0]], "gpu": [["a", 1.1]]}
    for way, rows in answers.items():
        (tmp_path / f"{way}-1.json").write_text(json.dumps(rows))
    outcomes = [
        outcome("gpu", (1, "first", 1, 2.1, "")),
        outcome("cpu", (1, "first", 1, 2.0, ""), (1, "warm", 1, 2.5, "")),
        outcome("duckdb", (1, "first", 1, 2.0, ""), (2, "first", 0, 0.0, "out of memory")),
    ]
    problems = peers.differences(outcomes, tmp_path)
    assert len(problems) == 3
    assert any("gpujoin, GPU is not as DuckDB" in problem for problem in problems)
    assert any("gpujoin, CPU: the warm run" in problem for problem in problems)
    assert any("DuckDB: the first run failed: out of memory" in problem for problem in problems)


def test_a_way_ends_with_its_time_and_keeps_what_it_has(tmp_path: Path) -> None:
    status, record, page = run_peers(tmp_path, "--ways", "polars,duckdb", "--seconds", "0")
    assert (status, record["runs"]) == (1, [])
    assert "There was no time for any." in page
    assert "its time was over" in page


@pytest.mark.parametrize("arguments", [["--ways", "dukdb"], ["--queries", "23"], ["--conf", "spark.x"]])
def test_wrong_arguments_are_told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        peers.main(arguments)
    assert stop.value.code == 2
    assert arguments[1] in capsys.readouterr().err or "no query 23" in arguments[1]
