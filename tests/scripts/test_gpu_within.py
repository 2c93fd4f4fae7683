"""Running some of the tests within a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import time, pytest

@pytest.mark.parametrize("n", range(50))
def test_many(n):
    time.sleep(0.1)

def test_one():
    assert {right}
"""


@pytest.mark.parametrize(("right", "status"), [(True, 0), (False, 1)])
def test_what_there_is_time_for_is_some_of_each_function(tmp_path: Path, right: bool, status: int) -> None:
    (tmp_path / "test_case.py").write_text(TESTS.format(right=right))
    command = [
        sys.executable,
        str(ROOT / "scripts" / "gpu_within.py"),
        "0.4",
        "-q",
        "-p",
        "no:cacheprovider",
        ".",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    ran, _, collected, *_ = done.stdout.splitlines()[-1].split()
    assert 2 <= int(ran) < int(collected) == 51, done.stdout
    assert (done.returncode == 0) == (status == 0)


@pytest.mark.parametrize(("seconds", "ran", "status"), [("600", 9, 0), ("0", 0, 1)])
def test_the_time_holds_for_all_processes(tmp_path: Path, seconds: str, ran: int, status: int) -> None:
    (tmp_path / "test_case.py").write_text(TESTS.format(right=True).replace("50", "8"))
    command = [sys.executable, str(ROOT / "scripts" / "gpu_within.py"), seconds, "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, "-n", "2", "."], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.stdout.splitlines()[-1] == f"{ran} of 9 tests ran in time", done.stdout
    assert done.returncode == status
