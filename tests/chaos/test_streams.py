"""Drivers and workers of a join of streams killed at random moments: no row is lost, and none comes twice."""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpujoin.spark.streaming.checkpoints import OPERATOR
from gpujoin.testing.compare import row_counts
from tests.chaos.outcomes import Outcomes
from tests.chaos.processes import Role, with_role

pytestmark = pytest.mark.spark

BATCHES, ROWS, SECONDS = 16, 400, 10
KILLS = {Role.JVM: 4, Role.WORKER: 8}
"""How many of each are killed; a driver is killed with everything that it has started."""
PATIENCE = 300
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def test_streams_whose_drivers_and_workers_are_killed(
    tmp_path: Path, dice: random.Random, outcomes: Outcomes
) -> None:
    write_sides(tmp_path, dice)
    spark = Program(tmp_path, "spark")
    spark.run_to_the_end()
    victims = [role for role, count in KILLS.items() for _ in range(count)]
    dice.shuffle(victims)
    here = Program(tmp_path, "here")
    killed: Counter[Role] = Counter()
    while victims and here.run_for(dice.uniform(0.2, 2.5), batches=len(here.batches()) + 1):
        role = victims.pop()
        if here.kill(role, dice):
            killed[role] += 1
        else:
            victims.insert(0, role)
    here.run_to_the_end()
    assert OPERATOR in here.log()
    assert killed[Role.JVM] >= KILLS[Role.JVM] // 2
    assert killed[Role.WORKER] >= KILLS[Role.WORKER] // 2
    expected, actual = row_counts(spark.rows()), row_counts(here.rows())
    assert expected.total() > BATCHES * ROWS // 2
    outcomes.tried += killed.total()
    outcomes.recovered += killed.total() - 1
    outcomes.note((actual - expected).total(), (expected - actual).total(), f"killed {dict(killed)}")


def write_sides(folder: Path, dice: random.Random) -> None:
    """Write a file of each side for each micro-batch; no row comes late."""
    for side, names in (("left", ("k", "t", "v")), ("right", ("j", "u", "x"))):
        (folder / side).mkdir()
        for batch in range(BATCHES):
            times = [
                START + dt.timedelta(seconds=batch * SECONDS, microseconds=dice.randrange(SECONDS * 10**6))
                for _ in range(ROWS)
            ]
            columns = [
                pa.array([dice.randrange(300) for _ in times], pa.int64()),
                pa.array(times, pa.timestamp("us", "UTC")),
                pa.array([dice.randrange(10**6) for _ in times], pa.int32()),
            ]
            file = folder / side / f"{batch:02}.parquet"
            pq.write_table(pa.table(columns, names=list(names)), file)
            os.utime(file, (1_700_000_000 + batch,) * 2)


class Program:
    """The stream program, started again whenever it has been killed."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def log(self) -> str:
        """Give what all runs have printed."""
        return self._log.read_text() if self._log.exists() else ""

    def batches(self) -> set[str]:
        """Name the micro-batches that were written."""
        return {line for line in self.log().splitlines() if line.isdigit()}

    def rows(self) -> pa.Table:
        """Give the rows of all micro-batches."""
        return pa.concat_tables(
            pq.read_table(file) for file in sorted((self._folder / self._name).glob("*.parquet"))
        )

    def run_to_the_end(self) -> None:
        """Run until all files are joined."""
        while self.run_for(PATIENCE, batches=10**6):
            pass
        assert "done" in self.log(), self._errors()

    def run_for(self, seconds: float, *, batches: int) -> bool:
        """Run until so many micro-batches are written, and some seconds more; whether it still runs, or was stopped."""
        deadline = time.monotonic() + PATIENCE
        until: float | None = None
        while True:
            if "done" in self.log():
                self._end()
                return False
            if self._process is None or self._process.poll() is not None:
                self._start()
            now = time.monotonic()
            assert now < deadline, self._errors()
            if until is None and len(self.batches()) >= batches:
                until = now + seconds
            if until is not None and now >= until:
                return True
            time.sleep(0.05)

    def kill(self, role: Role, dice: random.Random) -> bool:
        """Kill a worker, or the driver with everything that it has started; whether there was one."""
        assert self._process is not None
        found = with_role([self._process.pid], role)
        if not found:
            return False
        if role is Role.WORKER:
            dice.choice(found).send(signal.SIGKILL)
        else:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        return True

    def _start(self) -> None:
        with self._log.open("ab") as out, (self._folder / "stderr").open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.streamprogram", str(self._folder), self._name, self._name],
                stdout=out, stderr=errors, cwd=Path(__file__).parents[2], start_new_session=True,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            )  # fmt: skip

    def _end(self) -> None:
        if self._process is not None:
            self._process.wait(60)

    def _errors(self) -> str:
        return (self._folder / "stderr").read_text()[-2000:]
