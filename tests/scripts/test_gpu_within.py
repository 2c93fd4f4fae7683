"""Running some of the tests within a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest

@pytest.mark.parametrize("n", range(8))
def test_many(n):
    pass

def test_one():
    assert {right}
"""

CLOCK = """
import itertools, time

clock = itertools.count(time.time(), 100)
time.time = lambda: next(clock)
"""
"""A clock that goes on by a hundred seconds whenever somebody looks at it."""


def within(folder: Path, seconds: int, *arguments: str, right: bool = True) -> tuple[int, str]:
    """Exit status and last line."""
    (folder / "test_case.py").write_text(TESTS.format(right=right))
    command = [sys.executable, str(ROOT / "scripts" / "gpu_within.py"), str(seconds), "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *arguments, "."], cwd=folder, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout.splitlines()[-1]


@pytest.mark.parametrize(("right", "status"), [(True, 0), (False, 1)])
def test_what_there_is_time_for_is_some_of_each_function(tmp_path: Path, right: bool, status: int) -> None:
    (tmp_path / "conftest.py").write_text(CLOCK)
    ended, told = within(tmp_path, 600, right=right)
    ran, _, collected, *_ = told.split()
    assert 2 <= int(ran) < int(collected) == 9
    assert ended == status


@pytest.mark.parametrize(("seconds", "ran", "status"), [(600, 9, 0), (0, 0, 1)])
def test_the_time_holds_for_all_processes(tmp_path: Path, seconds: int, ran: int, status: int) -> None:
    assert within(tmp_path, seconds, "-n", "2") == (status, f"{ran} of 9 tests ran in time")
