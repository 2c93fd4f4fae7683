"""The steps that docs/gpu.md has for a GPU at hand for minutes, run word for word without one, under the stand-ins."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.tpch.answers import SUITE
from tests.kernels.conftest import emulator_cache
from tests.kernels.emulator.device import CACHE_VARIABLE
from tests.scripts.test_gpu_check import load
from tests.scripts.test_gpu_rehearsal import NVIDIA_SMI

__all__ = ["emulator_cache"]

ROOT = Path(__file__).resolve().parents[2]
STAND_INS = "from tests.backends.cudf.libraries.plugin import install\ninstall()\n"
_STEPS = re.compile(r"<!-- steps -->\n```sh\n(.*?)```\n<!-- end of steps -->", re.DOTALL)
MOST_CHARACTERS = 2000

first = load("gpu_first")


def steps() -> list[str]:
    found = _STEPS.search((ROOT / "docs" / "gpu.md").read_text(encoding="utf-8"))
    assert found is not None
    return found[1].splitlines()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, emulator_cache: Path) -> dict[str, str]:
    """Variables of a machine whose Python has the stand-ins, small workloads, and an nvidia-smi that tells of a GPU."""
    pytest.importorskip("pylibcudf", reason='no GPU libraries: pip install ".[cu13]"')
    pytest.importorskip("duckdb_extension_tpch", reason='no texts of the queries: pip install ".[bench]"')
    folder = tmp_path_factory.mktemp("machine")
    for name in ("bin", "site", "out"):
        (folder / name).mkdir()
    (folder / "site" / "sitecustomize.py").write_text(STAND_INS)
    for name, text in {"nvidia-smi": NVIDIA_SMI, "python3": f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'}.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    (folder / "gpu-first.txt").write_text("tests/backends/cudf/test_rowmaps.py")
    return {
        **os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "OUT": str(folder / "out"),
        "DATA": str(SUITE.at_scale(0.01)), "PYTHONPATH": f"{folder / 'site'}:{ROOT}", "CUDA_VISIBLE_DEVICES": "0",
        "GPU_CHECK_SMALLER": "20", "PYSPARK_PYTHON": sys.executable, CACHE_VARIABLE: str(emulator_cache),
    }  # fmt: skip


def test_every_step_is_one_short_command() -> None:
    assert len(steps()) == 6
    assert all(len(step) < MOST_CHARACTERS for step in steps())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "results"),
    [
        (1, ["kernels-gpu.json", "kernels-gpu.md"]), (2, ["kernels-gpu-launches.json"]),
        (3, ["kernels-gpu-trials.json"]), (5, ["profile-gpu.jsonl"]),
    ],
    ids=["kernels", "launches", "trials", "profile"],
)  # fmt: skip
def test_a_step_comes_to_its_end(number: int, results: list[str], machine: dict[str, str]) -> None:
    start = time.perf_counter()
    done = subprocess.run(["bash", "-c", steps()[number]], cwd=ROOT, env=machine, capture_output=True, text=True)
    print(f"step {number + 1}: {time.perf_counter() - start:.0f} s under the stand-ins")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for name in results:
        assert (Path(machine["OUT"]) / name).stat().st_size > 0


@pytest.mark.slow
@pytest.mark.spark
def test_peers_come_to_their_end(machine: dict[str, str]) -> None:
    """Step 5. An emulated GPU takes long, so that time may be over, but no answer is wrong."""
    subprocess.run(["bash", "-c", steps()[4]], cwd=ROOT, env=machine, capture_output=True, text=True, check=False)
    record = json.loads((Path(machine["OUT"]) / "peers-tpch-sf10.json").read_text())
    assert record["problems"] == []
    assert {run["way"] for run in record["runs"]} >= {"gpu", "cpu", "duckdb", "polars", "spark"}


@pytest.mark.slow
def test_the_tests_of_changed_files_come_first(machine: dict[str, str]) -> None:
    """Step 1, with the word for the tests that are about what has changed."""
    environment = {**machine, "PYTEST_ADDOPTS": "-p tests.backends.cudf.libraries.plugin -k rowmaps"}
    command = steps()[0].replace(
        "$(cat gpu-first.txt)", "tests/backends/cudf/test_rowmaps.py tests/kernels/test_direct.py"
    )
    subprocess.run(["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    report = (Path(machine["OUT"]) / "gpu-check-first.md").read_text()
    assert report.index("| changed tests |") < report.index("| kernel tests |")


def test_what_is_about_a_change_is_named(tmp_path: Path) -> None:
    for name, text in {
        "tests/backends/cudf/test_index.py": "pytest.mark.gpu", "tests/backends/cudf/test_other.py": "pytest.mark.gpu",
        "tests/kernels/test_direct.py": "def test(device: RecordingDevice)", "tests/kernels/test_host.py": "nothing",
        "tests/engine/test_spill.py": "def test(backend)",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def about(*changed: str) -> list[str]:
        return list(first.files_about(changed, tmp_path))

    assert about("kernels/direct.cu", "gpujoin/backends/cudf/index.py") == [
        "tests/kernels/test_direct.py", "tests/backends/cudf/test_index.py",
    ]  # fmt: skip
    assert about("gpujoin/backends/cudf/unknown.py") == [
        "tests/backends/cudf/test_index.py", "tests/backends/cudf/test_other.py",
    ]  # fmt: skip
    assert about("gpujoin/engine/unknown.py", "README.md", "tests/kernels/test_host.py") == []
    assert about("gpujoin/engine/spill.py", "tests/kernels/test_direct.py") == [
        "tests/kernels/test_direct.py", "tests/engine/test_spill.py",
    ]  # fmt: skip


def test_without_a_gpu_there_is_nothing_to_profile(capsys: pytest.CaptureFixture[str]) -> None:
    profile = load("gpu_profile")
    if profile.main(["--data", "nowhere"]) == 2:
        assert "nothing to profile here" in capsys.readouterr().err
