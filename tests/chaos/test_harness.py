"""The harness of the faults itself: what it counts, and that it fails a run; a few faults of each kind, in seconds."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from gpujoin.errors import CorruptBlobError
from tests.chaos.outcomes import Outcome, Outcomes, is_clear
from tests.chaos.processes import Process, all_gone, below
from tests.chaos.test_damage import damage, spilled_files
from tests.chaos.test_disks import compiled, inject
from tests.chaos.works import WORKS

ROWS = pa.table({"k": [1, 2, 2, None], "v": ["a", "b", "b", "c"]})


def raising(problem: Exception) -> pa.Table:
    raise problem


def test_what_is_counted() -> None:
    outcomes = Outcomes()
    assert outcomes.judge(lambda: ROWS.take([3, 2, 1, 0]), ROWS, "right") is Outcome.RECOVERED
    assert outcomes.judge(lambda: raising(CorruptBlobError("it was altered")), ROWS, "refused") is Outcome.REFUSED
    outcomes.check()
    assert str(outcomes) == "2 faults tried, 1 recovered, 1 refused clearly, 0 wrong rows, 0 lost rows"


@pytest.mark.parametrize(
    ("rows", "wrong", "lost"),
    [([0, 1, 2], 0, 1), ([0, 1, 2, 3, 3], 1, 0), ([0, 0, 1, 3], 1, 1), ([], 0, 4)],
    ids=["one lost", "one twice", "one for another", "none"],
)
def test_wrong_and_lost_rows_fail(rows: list[int], wrong: int, lost: int) -> None:
    outcomes = Outcomes()
    assert outcomes.judge(lambda: ROWS.take(pa.array(rows, pa.int64())), ROWS, "seed 1") is None
    assert (outcomes.wrong_rows, outcomes.lost_rows) == (wrong, lost)
    with pytest.raises(AssertionError, match=f"seed 1: {wrong} wrong rows, {lost} lost rows"):
        outcomes.check()


def test_no_fault_and_an_unclear_error_fail() -> None:
    with pytest.raises(AssertionError, match="no fault was injected"):
        Outcomes().check()
    outcomes = Outcomes()
    outcomes.judge(lambda: raising(OSError(28, "No space left on device")), ROWS, "seed 2")
    with pytest.raises(AssertionError, match="seed 2: unclear OSError"):
        outcomes.check()


def test_errors_that_are_clear() -> None:
    assert is_clear(CorruptBlobError("spill file: its checksum does not match"))
    assert is_clear(RuntimeError("Job aborted: gpujoin.errors.SpillError: cannot spill 3 bytes"))
    assert is_clear(RuntimeError("[FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER] Encountered an error"))
    assert not is_clear(RuntimeError("pyo3_runtime.PanicException: index out of bounds"))
    assert not is_clear(EOFError())


@pytest.mark.parametrize("name", WORKS)
def test_spilled_files_are_found_and_damaged(name: str, tmp_path: Path, seed: int) -> None:
    work, dice, told = WORKS[name](seed), random.Random(seed), []

    def hurt() -> None:
        (file, *_) = spilled_files(tmp_path)
        told.append(damage(file, "empty", dice))

    with pytest.raises(CorruptBlobError):
        work.run(tmp_path, hurt)
    assert told == ["empty"]


def test_calls_fail_when_told_to(tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "spill"
    folder.mkdir()
    outcomes = inject(compiled(tmp_path), folder, "join", seed, 4)
    outcomes.check()
    assert outcomes.tried == 4


def test_processes_are_found_and_ended() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(900)'])"
    parent = subprocess.Popen([sys.executable, "-c", program])
    family: list[Process] = []
    deadline = time.monotonic() + 300
    while len(family) < 2:
        assert time.monotonic() < deadline, f"found only {family}"
        family = [process for process in below([os.getpid()]) if parent.pid in (process.pid, process.parent)]
    assert all(process.alive and process.resident and process.threads for process in family)
    for process in family:
        process.send(signal.SIGKILL)
    parent.wait()
    assert all_gone(family, 120) == []
