"""Runs the tests of mutants in a copy of the sources, each mutant in a process of its own with a deadline."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import java
from tests.mutants.edits import Mutant

ROOT = Path(__file__).resolve().parents[2]
_COPIED = ("gpujoin", "tests", "kernels", "benchmarks", "scripts", "docs", "startup", "docker")
_PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-n", "0")


@dataclass(frozen=True)
class Outcome:
    """What the tests said of a mutant.

    Attributes
    ----------
    verdict : str
        ``caught``, ``survived`` or ``untested``: no test calls the function.
    by : str
        The test that failed, or ``time``.
    seconds : float
        Of the clock.
    """

    verdict: str
    by: str = ""
    seconds: float = 0.0


class Copy:
    """A copy of the sources, in which one file at a time is broken."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        for name in _COPIED:
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored, symlinks=True)
        for path in ROOT.iterdir():
            if path.is_file() and path.name != ".git":
                shutil.copy2(path, folder / path.name)

    def judge(self, mutant: Mutant, tests: Sequence[str], deadline: float) -> Outcome:
        """Run tests on the broken sources."""
        if not tests:
            return Outcome("untested")
        source = self._folder / "gpujoin" / mutant.file
        before = source.read_text(encoding="utf-8")
        started = time.monotonic()
        self._write(source, mutant.text)
        try:
            by = self._failing(tests, deadline)
        finally:
            self._write(source, before)
        return Outcome("survived" if by is None else "caught", by or "", time.monotonic() - started)

    def _write(self, source: Path, text: str) -> None:
        source.write_text(text, encoding="utf-8")
        # Python tells sources apart by their size and the second of their change.
        for compiled in (source.parent / "__pycache__").glob(f"{source.stem}.*.pyc"):
            compiled.unlink()

    def _failing(self, tests: Sequence[str], deadline: float) -> str | None:
        listed = self._folder / "tests.txt"
        listed.write_text("\n".join(tests), encoding="utf-8")
        environment = {
            **os.environ, "PYTHONPATH": str(self._folder), "PYSPARK_PYTHON": sys.executable,
            "SPARK_SUBMIT_OPTS": _java_options(),
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, *_PYTEST, f"@{listed}"], cwd=self._folder,
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=deadline)
        except subprocess.TimeoutExpired:
            return "time"
        finally:
            # The process, and what it started: a JVM, workers.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode == 0:
            return None
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
        return failed[1] if failed else f"pytest ended with {process.returncode}: {said[-300:]}"


def _java_options() -> str:
    """Those of the tests, with the archive of classes that they have made."""
    archive = java.archive_path(ROOT / ".pytest_cache" / "d" / "classes")
    taken = "" if archive is None or not archive.is_file() else java.from_archive(archive)
    return f"{java.options()} {taken}".strip()
