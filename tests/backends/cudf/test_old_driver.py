"""A driver that is too old for the installed libraries: a shared library that says so, under the real ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpujoin.backends.cudf import discovery

for library in ("pylibcudf", "cupy", "rmm"):
    pytest.importorskip(library, reason='no GPU libraries: pip install ".[cu13]"')

LIBRARIES = {
    "libnvidia-ml.so.1": """
        int nvmlInit_v2(void) { return 0; }
        int nvmlShutdown(void) { return 0; }
        int nvmlDeviceGetCount_v2(unsigned* count) { *count = 1; return 0; }
    """,
    "libcuda.so.1": "int cuDriverGetVersion(int* version) { *version = VERSION; return 0; }",
}

PROGRAM = """
import json, logging, sys
import pyarrow as pa
from gpujoin import JoinMetrics, Options, join_tables
from gpujoin.backends.registry import unavailable
from gpujoin.errors import BackendUnavailableError
from gpujoin.model.backend import BackendName
from gpujoin.spark.worker.devices import allocate_backend

warned = []
class Kept(logging.Handler):
    def emit(self, entry): warned.append(entry.getMessage())
logging.getLogger("gpujoin").addHandler(Kept())
a, b = pa.table({"k": [1, 2]}), pa.table({"k": [2], "v": [5]})
metrics = JoinMetrics()
told = {"seems to be there": unavailable(BackendName.GPU) is None, "rows": []}
for _ in range(2):
    told["rows"] += join_tables(a, b, on="k", metrics=metrics).to_pylist()
try:
    join_tables(a, b, on="k", backend="gpu")
except BackendUnavailableError as problem:
    told["error"] = str(problem)
with allocate_backend(Options(gpu_slot_timeout=600), ["0"]) as chosen:
    told["task"] = [chosen.backend.name.value, *chosen.notes]
told |= {"reasons": metrics.fallback_reasons, "warned": warned}
told["imported"] = sorted({"pylibcudf", "cupy", "rmm"} & sys.modules.keys())
print(json.dumps(told))
"""


def make_driver(folder: Path, version: int) -> None:
    """Compile a driver that runs a version of CUDA, and counts one GPU, into a folder."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    for name, text in LIBRARIES.items():
        (folder / f"{name}.c").write_text(text)
        command = [compiler, "-shared", "-fPIC", f"-DVERSION={version}", "-o", name, f"{name}.c"]
        subprocess.run(command, cwd=folder, check=True)


def told_with_driver(tmp_path: Path, version: int) -> Any:
    """What the program says where the driver runs a version of CUDA."""
    make_driver(tmp_path, version)
    environment = {
        **os.environ, "LD_LIBRARY_PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0",
        "GPUJOIN_SLOT_DIR": str(tmp_path / "slots"), "PYTHONPATH": str(Path(__file__).parents[3]),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(discovery.why_unavailable() is None, reason="this machine has a GPU")
def test_a_driver_that_is_too_old(tmp_path: Path) -> None:
    """Is told with what to do: with ``auto`` by one warning, in the metrics and in the notes of a task."""
    extra = discovery.installed_extra()
    assert extra is not None
    major, minor = discovery.OLDEST_CUDA[extra]
    told = told_with_driver(tmp_path, 11080)
    why = f"the NVIDIA driver is too old: it runs CUDA 11.8, and the packages of the extra {extra} need {major}.{minor}"
    assert told["seems to be there"]
    assert told["rows"] == [{"k": 2, "v": 5}] * 2
    assert told["error"] == f"{why}; update it"
    note = f"on the CPU: {why}; update it"
    assert told["reasons"] == {note: 2}
    assert told["task"] == ["cpu", note]
    assert told["warned"] == [f"gpujoin: {note}"]
    assert told["imported"] == [], "no library is imported that could not be used"


@pytest.mark.skipif(discovery.installed_extra() != "cu13", reason="the packages are not those for CUDA 13")
@pytest.mark.skipif(discovery.why_unavailable() is None, reason="this machine has a GPU")
def test_a_driver_for_the_other_packages(tmp_path: Path) -> None:
    told = told_with_driver(tmp_path, 12090)
    assert "CUDA 12.9" in told["error"]
    assert "pylibcudf-cu12" in told["error"] or ".[cu12]" in told["error"]


@pytest.mark.skipif(discovery.why_unavailable() is None, reason="this machine has a GPU")
def test_what_cuda_says_of_a_driver_that_it_does_not_know(tmp_path: Path) -> None:
    """A version that is new enough, of a library that is no driver: CUDA's own words."""
    told = told_with_driver(tmp_path, 99990)
    assert "GPU 0 cannot be used" in told["error"] or "CUDA does not start" in told["error"]
    assert told["task"][0] == "cpu"
    assert told["rows"] == [{"k": 2, "v": 5}] * 2
