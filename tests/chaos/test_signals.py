"""Ctrl-C and SIGTERM at random moments of a driver: it ends at once, with its workers, and leaves no spill behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.chaos.outcomes import Outcomes
from tests.chaos.processes import all_gone, below

pytestmark = pytest.mark.spark

SECONDS = 20
"""Within which a driver has ended: Spark's own shutdown takes some, on a loaded machine."""


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
        deadline = time.monotonic() + 180
        while b"ready" not in log.read_bytes():
            assert driver.poll() is None, (tmp_path / "stderr").read_text()[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(dice.uniform(0, 12))
        everybody = below([driver.pid])
        at = log.read_text().splitlines()[-1]
        outcomes.tried += 1
        context = f"{number.name} during {at!r}"
        start = time.monotonic()
        driver.send_signal(number)
        try:
            driver.wait(SECONDS)
        except subprocess.TimeoutExpired:
            outcomes.problems.append(f"{context}: the driver still runs after {SECONDS} s")
            return
        left = all_gone(everybody, SECONDS)
        took = time.monotonic() - start
        if left:
            outcomes.problems.append(f"{context}: processes left after {took:.0f} s: {left}")
        elif files := [path for path in (tmp_path / "spill").rglob("*") if path.is_file()]:
            outcomes.problems.append(f"{context}: files left: {files[:3]}")
        else:
            outcomes.refused += 1
    finally:
        for process in [*below([driver.pid])]:
            process.send(signal.SIGKILL)
        driver.kill()
        driver.wait()
