"""Tests of what a branch has not changed: of kernels a few cases are left in `make test`, of tools none.

Tools are what tests, documentation and measurements are made with: the emulator, stand-ins of libraries, generators,
scripts, benchmarks. Nothing else that is tested depends on them, so that they break when they are changed. Kernels are
compiled and run by an emulator that is slow. `make test-tools` and `make test-all` run all of them.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

_CUDA = ("kernels", "gpujoin/launch", "gpujoin/backends/cudf", "tests/kernels", "tests/launch")
KERNELS = ("tests/kernels/", "tests/launch/")
"""Where the tests of kernels are."""
TOOLS: dict[str, tuple[str, ...]] = {
    "tests/kernels/test_emulator": ("tests/kernels/emulator",),
    "tests/kernels/test_machine": ("tests/kernels/emulator",),
    "tests/kernels/test_mutation": ("tests/kernels/mutation", "scripts/mutate_kernels.py"),
    "tests/kernels/test_traffic": ("tests/kernels", "benchmarks/kernels"),
    "tests/kernels/test_benchmark": ("benchmarks/kernels",),
    "tests/backends/cudf/test_libraries": ("tests/backends/cudf",),
    "tests/backends/cudf/test_counters": ("tests/backends/cudf",),
    "tests/benchmarks/": ("benchmarks", "tests/benchmarks"),
    "tests/docs/": ("docs", "scripts", "tests/docs", "README.md", "mkdocs.yml"),
    "tests/expressions/test_judge": ("tests/expressions",),
    "tests/mutants/": ("tests/mutants", "scripts/mutate_package.py"),
    "tests/oracle/": ("tests/oracle",),
    "tests/scripts/": ("scripts", "tests/scripts", "Makefile", ".ci"),
    "tests/test_brief": ("tests/brief.py",),
    "tests/test_fallbacks": ("tests/fallbacks.py", "tests/conftest.py"),
    "tests/test_footers": ("tests/footers.py",),
    "tests/test_generate": ("tests/generate.py",),
    "tests/test_java": ("tests/java.py",),
    "tests/test_schedule": ("tests/schedule.py",),
}
"""Tests of tools, by how their paths begin, and the files on which they depend."""


def leave_out(items: Sequence[pytest.Item], root: Path) -> None:
    """Mark tests of tools, and as extra those of what has not changed, but for a first case of each test of kernels."""
    seen: set[str] = set()
    for item in items:
        path = item.path.relative_to(root).as_posix()
        sources = next((sources for start, sources in TOOLS.items() if path.startswith(start)), None)
        if sources is not None:
            item.add_marker("tools")
            if not changed(root, sources):
                item.add_marker("extra")
        elif path.startswith(KERNELS) and not {mark.name for mark in item.iter_markers()} & {"slow", "extra", "gpu"}:
            test = item.nodeid.partition("[")[0]
            if test in seen and not changed(root, _CUDA):
                item.add_marker("extra")
            seen.add(test)


@functools.cache
def changed(root: Path, paths: tuple[str, ...]) -> bool:
    """Whether files differ from where the branch left main, on main from the commit before, or git cannot tell."""
    head = _git(root, "rev-parse", "HEAD")
    base = _git(root, "merge-base", "HEAD", "origin/main") or _git(root, "merge-base", "HEAD", "main")
    if base and base == head:
        base = _git(root, "rev-parse", "HEAD^")
    return not base or bool(_git(root, "diff", "--name-only", base, "--", *paths))


def _git(root: Path, *arguments: str) -> str:
    """What git prints; nothing where it fails."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
