"""Where and with what a benchmark ran."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from gpujoin._version import __version__
from gpujoin.errors import BackendUnavailableError
from gpujoin.spark.discovery import list_gpus


def describe() -> dict[str, Any]:
    """Processor, memory, GPUs, versions and revision."""
    return {
        "processor": _first("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "gpus": list(_gpus()),
        "memory": _first("/proc/meminfo", "MemTotal"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions(),
        "revision": _revision(),
        "load": os.getloadavg(),
    }


def _gpus() -> Iterator[str]:
    with suppress(BackendUnavailableError):
        yield from (gpu.name for gpu in list_gpus())


PACKAGES = (
    "cupy-cuda12x", "cupy-cuda13x", "duckdb", "numpy", "polars", "pyarrow", "pylibcudf-cu12",
    "pylibcudf-cu13", "pyspark", "rmm-cu12", "rmm-cu13",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Versions of the packages that matter and are installed, as their metadata have them, and gpujoin's own."""
    installed = {"gpujoin": __version__}  # a checkout that is not installed has no metadata
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def _first(path: str, field: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(field):
            return line.partition(":")[2].strip()
    return "unknown"


def _revision() -> str:
    if shutil.which("git") is None:
        return "unknown"
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
