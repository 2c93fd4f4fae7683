"""Mistakes that only a device shows, made on purpose: a test without a device catches each.

A device loses its context, or gives wrong rows now and then, where its memory is freed while another thread uses it, a
call is on another stream, a module is unloaded under a running kernel, memory is read that nothing has written, a read
is not aligned, a number out of range is converted, or C++ gets an exception of Python's. Each mutant makes one of
these mistakes in a copy of the sources.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kernels.conftest import emulator_cache
from tests.kernels.emulator.device import CACHE_VARIABLE

__all__ = ["emulator_cache"]

ROOT = Path(__file__).parents[3]
PARTS = ("gpujoin", "kernels", "tests", "benchmarks", "scripts")


@dataclass(frozen=True)
class Mutant:
    """A mistake: a text of a source in the place of another, and the test that catches it."""

    source: str
    text: str
    mistake: str
    test: tuple[str, ...]


MUTANTS = {
    "memory of other threads": Mutant(
        "gpujoin/backends/cudf/device.py",
        "                    STREAM.synchronize()\n",
        "                    pass\n",
        ("tests/backends/cudf/test_libraries.py", "-k", "freed_by_another_thread"),
    ),
    "another stream": Mutant(
        "gpujoin/backends/cudf/adoption.py",
        "column.copy(stream=STREAM)",
        "plc.unary.is_valid(column)",
        ("tests/backends/cudf/test_calls.py", "-k", "takes_a_stream"),
    ),
    "modules of other threads": Mutant(
        "gpujoin/launch/cuda.py",
        "        with self._loading:\n",
        "        if self._loading:\n",
        ("tests/launch/test_images.py", "-k", "threads_load_a_module"),
    ),
    "memory that is not written": Mutant(
        "gpujoin/launch/rows.py",
        "device.zeros(length, np.bool_) if nullable else None",
        "device.empty(length, np.bool_) if nullable else None",
        ("tests/kernels/test_fetching.py",),
    ),
    "reads that are not aligned": Mutant(
        "gpujoin/backends/cudf/adoption.py",
        "return column if _is_aligned(column) else",
        "return column if column.size() else",
        ("tests/backends/cudf/test_libraries.py", "-k", "begin_between_two_values"),
    ),
    "numbers out of range": Mutant(
        "gpujoin/functions/casts.py",
        'xp.clip(whole, -(1 << 31), (1 << 31) - 1).astype("int32")',
        'whole.astype("int32")',
        ("tests/backends/cudf/test_pipeline.py", "-k", "numbers_become_integers"),
    ),
    "exceptions in C++": Mutant(
        "gpujoin/backends/cudf/device.py",
        "except Exception as problem:  # noqa: BLE001 - C++ calls this",
        "except KeyError as problem:  # noqa: BLE001 - C++ calls this",
        ("tests/backends/cudf/test_device.py", "-k", "cannot_be_let_go"),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_can_be_made(name: str) -> None:
    """Its text stands in its source once."""
    mutant = MUTANTS[name]
    assert (ROOT / mutant.source).read_text().count(mutant.text) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_caught(name: str, tmp_path: Path, emulator_cache: Path) -> None:
    for library in ("pylibcudf", "cupy", "rmm"):
        pytest.importorskip(library, reason='no GPU libraries: pip install ".[cu13]"')
    mutant = MUTANTS[name]
    for part in PARTS:
        shutil.copytree(
            ROOT / part, tmp_path / part, copy_function=os.link, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    source = tmp_path / mutant.source
    text = source.read_text()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), CACHE_VARIABLE: str(emulator_cache)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=short", *mutant.test]
    passed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert passed.returncode == 0, passed.stdout[-3000:]
    source.unlink()
    source.write_text(text.replace(mutant.text, mutant.mistake))
    caught = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert caught.returncode == 1, caught.stdout[-3000:]
    assert "1 failed" in caught.stdout
