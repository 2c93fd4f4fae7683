#!/usr/bin/env python3
"""Name the test files that are about what has changed since a revision, those that are themselves changed first.

Usage: ``python scripts/gpu_first.py REVISION``. What a GPU has not seen is tested there first:
``scripts/gpu_check.sh engine $(python scripts/gpu_first.py REVISION)``. A source file is tested by the files of its own
name in the folder of tests of its room; a source of the GPU backend, or of CUDA, that has none by all files of its
folder. Only files with a test marked ``gpu``, or one that takes each backend in turn, are named.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {
    "gpujoin/backends/cudf": "backends/cudf",
    "gpujoin/launch": "launch",
    "gpujoin/engine": "engine",
    "kernels": "kernels",
}
"""Folders of sources that a GPU runs, and of their tests."""
MARKS = ("mark.gpu", "backend", "device: RecordingDevice")
"""What a file with a test for a GPU has in it."""


def files_about(changed: Iterable[str], root: Path) -> Iterator[str]:
    """Test files about changed files, each once, in the order in which they are to run."""
    names = list(changed)
    candidates = [name for name in names if name.startswith("tests/") and PurePosixPath(name).name.startswith("test_")]
    for name in names:
        candidates += tests_of(PurePosixPath(name), root)
    for name in dict.fromkeys(candidates):
        path = root / name
        if path.is_file() and any(mark in path.read_text(encoding="utf-8") for mark in MARKS):
            yield name


def tests_of(source: PurePosixPath, root: Path) -> list[str]:
    """Test files of a source file."""
    for room, folder in ROOMS.items():
        if source.is_relative_to(room):
            inside = root / "tests" / folder
            fitting = sorted(inside.rglob(f"test_{source.stem}.py"))
            if not fitting and room in ("gpujoin/backends/cudf", "kernels"):
                fitting = sorted(inside.glob("test_*.py"))
            return [path.relative_to(root).as_posix() for path in fitting]
    return []


def main(arguments: list[str]) -> int:
    """Print the names on one line."""
    if len(arguments) != 1:
        print("usage: gpu_first.py REVISION", file=sys.stderr)
        return 2
    command = ["git", "diff", "--name-only", "--diff-filter=d", arguments[0], "--"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"gpu_first: {done.stderr.strip()}", file=sys.stderr)
        return 2
    print(*files_about(done.stdout.splitlines(), ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
