"""C sources of tests as shared libraries."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def shared_library(source: Path, made: Path) -> Path:
    """Compile a C source; without a compiler the test skips."""
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C compiler")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-x", "c", "-o", str(made), str(source), "-ldl"], check=True)
    return made
