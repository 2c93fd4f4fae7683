"""Ctrl-C and SIGTERM at random moments of a driver: it ends at once, with its workers, and leaves no spill behind.

The table that it overwrites has the rows of before or of after. Only between Spark's removal of the old rows and its
mark of success (the file ``_SUCCESS``) there is neither, as without gpujoin.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.chaos.outcomes import Outcomes
from tests.chaos.processes import all_gone, below
from tests.chaos.tables import ITEMS, LINES

pytestmark = pytest.mark.spark

START_SECONDS = 600
SECONDS = 240
"""Within which a driver has ended, which otherwise runs for ever: Spark's own shutdown takes some, and a loaded machine
may not run it for minutes."""


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_driver_that_is_told_to_end(
    number: signal.Signals, turn: int, tmp_path: Path, dice: random.Random, outcomes: Outcomes
) -> None:
    log = tmp_path / "stdout"
    with log.open("wb") as out, (tmp_path / "stderr").open("wb") as errors:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.driverprogram", str(tmp_path)], stdout=out, stderr=errors,
            cwd=Path(__file__).parents[2], env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            # A run in the background has Ctrl-C ignored, and would hand that on.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )  # fmt: skip
    try:
        deadline = time.monotonic() + START_SECONDS
        while b"ready" not in log.read_bytes():
            assert driver.poll() is None, (tmp_path / "stderr").read_text()[-2000:]
            assert time.monotonic() < deadline, (tmp_path / "stderr").read_text()[-2000:]
            time.sleep(0.1)
        time.sleep(dice.uniform(0, 12))
        everybody = below([driver.pid])
        outcomes.tried += 1
        start = time.monotonic()
        driver.send_signal(number)
        try:
            driver.wait(SECONDS)
        except subprocess.TimeoutExpired:
            context = f"{number.name} during {doing(log)!r}"
            driver.send_signal(signal.SIGUSR1)
            time.sleep(2)
            stacks = (tmp_path / "stderr").read_text(errors="replace")[-4000:]
            outcomes.problems.append(f"{context}: the driver still runs after {SECONDS} s:\n{stacks}")
            return
        at = doing(log)
        context = f"{number.name} during {at!r}"
        left = all_gone(everybody, SECONDS)
        took = time.monotonic() - start
        if left:
            outcomes.problems.append(f"{context}: processes left after {took:.0f} s: {left}")
        elif files := [path for path in (tmp_path / "spill").rglob("*") if path.is_file()]:
            outcomes.problems.append(f"{context}: files left: {files[:3]}")
        elif problem := broken_table(tmp_path, at):
            outcomes.problems.append(f"{context}: {problem}")
        else:
            outcomes.refused += 1
    finally:
        for process in [*below([driver.pid])]:
            process.send(signal.SIGKILL)
        driver.kill()
        driver.wait()


def doing(log: Path) -> str:
    """What a driver printed last: what it has been doing since then, or was when it ended."""
    return log.read_text().splitlines()[-1]


def broken_table(folder: Path, at: str) -> str | None:
    """What is wrong with the table that the driver overwrites, if it is neither old nor new nor being written."""
    if not (folder / "out" / "_SUCCESS").exists():
        return None if at.startswith("overwrite") else "the table is gone, though nothing was writing it"
    table = pq.read_table(folder / "out")
    numbers = set(table.column("number").to_pylist())
    if len(numbers) != 1:
        return f"the table has rows of several versions: {numbers}"
    number = numbers.pop()
    last = int(at.split()[1]) if at.startswith("overwrite") else None
    if last is not None and number not in (last, last - 1):
        return f"the table has version {number} during {at}"
    rows, expected = Counter(table.column("id").to_pylist()), joined_ids(folder, number)
    wrong, lost = (rows - expected).total(), (expected - rows).total()
    return f"version {number}: {wrong} wrong rows, {lost} lost rows" if wrong or lost else None


def joined_ids(folder: Path, number: int) -> Counter[int]:
    """How often each line is in the table, reckoned from the files that were joined."""
    items = Counter(pq.read_table(folder / "items").column("k").to_pylist())
    del items[None]
    lines = pq.read_table(folder / "lines", columns=["id", "k"]).to_pylist()
    assert (len(lines), items.total() < ITEMS) == (LINES, True)
    chosen = (line for line in lines if line["id"] % 3 == number % 3)
    return +Counter({line["id"]: items[line["k"]] for line in chosen})
