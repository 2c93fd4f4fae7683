"""``scripts/gpu_check.sh`` rehearsed, with a stand-in for a GPU, which is counted and on which nothing works.

Python has what the GPU backend needs, DuckDB and pytest, and nothing else.
All of it must come to its end in time, skip what cannot be tried, and leave a report and an archive of each command.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gpujoin.backends.cudf import unavailable

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
MISSING = ("duckdb_extension_tpch", "hypothesis", "matplotlib", "pandas", "pyspark", "xdist", "yaml")

ABSENT = f"""
import sys
from importlib.machinery import PathFinder

class Installed:
    find_distributions = staticmethod(PathFinder.find_distributions)
    invalidate_caches = staticmethod(PathFinder.invalidate_caches)

    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in {MISSING!r} else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Installed
"""

COUNTED = """
from cuda.bindings import runtime

runtime.cudaGetDeviceCount = lambda: (runtime.cudaError_t.cudaSuccess, 1)
"""

NVIDIA_SMI = """#!/bin/sh
case "$*" in
*memory.total*) echo "0, NVIDIA H200, GPU-0, 143771, 0, 580.65, 9.0, Default" ;;
*--query-gpu*) echo "0, NVIDIA H200" ;;
*) echo "CUDA Version: 13.0" ;;
esac
"""

LIBRARIES = {
    "libnvidia-ml.so.1": """
        int nvmlInit_v2(void) { return 0; }
        int nvmlShutdown(void) { return 0; }
        int nvmlDeviceGetCount_v2(unsigned* count) { *count = 1; return 0; }
    """,
    "libcuda.so.1": """
        int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
        int cuInit(unsigned flags) { (void)flags; return 100; }
    """,
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables of a machine with the stand-in, and without what a GPU machine may lack."""
    pytest.importorskip("pylibcudf", reason='no cuDF: pip install ".[cu13]"')
    if unavailable() is None:
        pytest.skip("this machine has a GPU")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folders = {name: tmp_path / name for name in ("bin", "lib", "site", "home")}
    for folder in folders.values():
        folder.mkdir()
    for name, text in LIBRARIES.items():
        source = folders["lib"] / f"{name}.c"
        source.write_text(text)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", folders["lib"] / name, source], check=True)
    (folders["bin"] / "nvidia-smi").write_text(NVIDIA_SMI)
    (folders["bin"] / "nvidia-smi").chmod(0o755)
    (folders["site"] / "sitecustomize.py").write_text(ABSENT)
    (folders["site"] / "counted.py").write_text(COUNTED)
    return {
        "HOME": str(folders["home"]), "PATH": f"{folders['bin']}:/usr/bin:/bin", "PYTHON": sys.executable,
        "LD_LIBRARY_PATH": str(folders["lib"]), "PYTHONPATH": str(folders["site"]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "GPU_CHECK_OUT": str(tmp_path / "out"),
    }  # fmt: skip


def rehearsed(environment: dict[str, str], command: str, seconds: int) -> tuple[dict[str, Any], str]:
    """The record of a command and its report."""
    given = {**environment, "GPU_CHECK_SECONDS": str(seconds)}
    script = ["/bin/sh", "scripts/gpu_check.sh", command, "-p", "counted"]
    done = subprocess.run(script, cwd=ROOT, env=given, capture_output=True, text=True, timeout=2 * seconds + 60)
    assert done.returncode == 1, done.stdout + done.stderr
    out = Path(environment["GPU_CHECK_OUT"])
    with tarfile.open(out / f"gpu-check-{command}.tar.gz") as archive:
        packed = archive.extractfile(f"gpu-check-{command}/report.json")
        assert packed is not None
        return json.load(packed), (out / f"gpu-check-{command}.md").read_text()


def outcomes(record: dict[str, Any]) -> dict[str, str]:
    return {phase["name"]: phase["outcome"] for phase in record["phases"]}


def messages_of(record: dict[str, Any], name: str) -> dict[str, set[str]]:
    """Messages of the tests of a part by their outcome."""
    (phase,) = (phase for phase in record["phases"] if phase["name"] == name)
    assert phase["details"] is not None, phase
    messages: dict[str, set[str]] = {}
    for test in phase["details"]["tests"]:
        messages.setdefault(test["outcome"], set()).add(test["message"])
    return messages


def test_kernels(environment: dict[str, str]) -> None:
    record, report = rehearsed(environment, "kernels", 300)
    assert outcomes(record)["kernel tests"] == "failed"
    messages = messages_of(record, "kernel tests")
    assert all("no CUDA-capable device" in message for message in messages["failed"]), messages["failed"]
    assert "passed" not in messages
    assert "NVIDIA H200" in report


def test_table(environment: dict[str, str]) -> None:
    record, report = rehearsed(environment, "table", 120)
    assert outcomes(record) == {"kernels": "failed"}
    assert "cudaErrorNoDevice" in report


def test_engine(environment: dict[str, str]) -> None:
    """No test is left without an answer: what there is no time for is skipped, and so is what needs another package."""
    record, report = rehearsed(environment, "engine", 300)
    assert outcomes(record) == {
        "tests": "failed", "memory faults": "failed", "memcheck": outcomes(record)["memcheck"],
        "smoke benchmark": "failed", "TPC-H": "skipped", "TPC-H at scale 10": "skipped",
    }  # fmt: skip
    messages = messages_of(record, "tests")
    assert "collection failure" not in messages["failed"]
    assert any("no CUDA-capable device" in message for message in messages["failed"])
    assert "PySpark is not installed" in report
    assert os.environ.get("GPU_CHECK_OUT") is None
