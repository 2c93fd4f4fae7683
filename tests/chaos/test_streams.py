"""A join of streams whose drivers, executors, tasks and workers are killed: no row is lost, and none comes twice."""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpujoin.streams.microbatches import OPERATOR
from gpujoin.testing import row_counts
from tests.chaos.outcomes import Outcomes
from tests.chaos.processes import Role, with_role
from tests.chaos.streamprogram import Point
from tests.spark.standalone import Cluster

pytestmark = pytest.mark.spark

BATCHES, ROWS, SECONDS = 16, 400, 10
KILLS = {Role.JVM: 4, Role.WORKER: 8}
"""How many of each are killed; a driver is killed with everything that it has started."""
PATIENCE = 900
"""Seconds without a new micro-batch after which a program is taken to hang."""
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


TASKS = "tasks"
"""Killed by Spark, as a task of a stage that was given up is."""
KILLED_ON_CLUSTER: dict[Role | str, int] = {Role.EXECUTOR: 6, Role.DAEMON: 2, Role.WORKER: 3, TASKS: 5}
POINTS = [f"{2 * place + 1}:{point.value}" for place, point in enumerate([*Point] * 2)]
"""Points at which a driver is killed: each kind in an early micro-batch and in a later one."""


def test_streams_whose_drivers_and_workers_are_killed(tmp_path: Path, dice: random.Random, outcomes: Outcomes) -> None:
    write_sides(tmp_path, dice)
    expected = answer(tmp_path)
    victims = [role for role, count in KILLS.items() for _ in range(count)]
    here = Program(tmp_path, "here")
    killed = disturbed(here, victims, dice)
    assert killed[Role.JVM] >= KILLS[Role.JVM] // 2
    assert killed[Role.WORKER] >= KILLS[Role.WORKER] // 2
    judge(outcomes, here, expected, killed)


def test_streams_whose_executors_and_tasks_are_killed(
    cluster: Cluster, tmp_path: Path, dice: random.Random, outcomes: Outcomes
) -> None:
    write_sides(tmp_path, dice)
    expected = answer(tmp_path)
    victims = [victim for victim, count in KILLED_ON_CLUSTER.items() for _ in range(count)]
    here = Program(tmp_path, "here", cluster.master, cluster.workers)
    killed = disturbed(here, victims, dice)
    assert killed[Role.EXECUTOR] >= KILLED_ON_CLUSTER[Role.EXECUTOR] // 2
    assert killed[TASKS] >= KILLED_ON_CLUSTER[TASKS] // 2
    assert "tasks" in here.log()
    judge(outcomes, here, expected, killed)


def test_streams_whose_drivers_are_killed_at_each_point_of_a_micro_batch(
    tmp_path: Path, dice: random.Random, outcomes: Outcomes
) -> None:
    write_sides(tmp_path, dice)
    expected = answer(tmp_path)
    here = Program(tmp_path, "here", points=POINTS)
    here.run_to_the_end()
    killed = Counter(file.name.removeprefix("killed ") for file in tmp_path.glob("killed *"))
    assert sorted(killed) == sorted(POINTS)
    judge(outcomes, here, expected, killed)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    with Cluster(folder) as started:
        yield started


def answer(folder: Path) -> Counter[Any]:
    """Rows of the query in Spark."""
    spark = Program(folder, "spark")
    spark.run_to_the_end()
    expected = row_counts(spark.rows())
    assert expected.total() > BATCHES * ROWS // 2
    return expected


def disturbed(here: Program, victims: Sequence[Role | str], dice: random.Random) -> Counter[Role | str]:
    """Run a program to its end, and kill; gives what was killed."""
    victims = dice.sample(victims, len(victims))
    killed: Counter[Role | str] = Counter()
    while victims and here.run_for(dice.uniform(0.2, 2.5), batches=len(here.batches()) + 1):
        victim = victims.pop()
        if here.kill(victim, dice):
            killed[victim] += 1
        else:
            victims.insert(0, victim)
    here.run_to_the_end()
    return killed


def judge(outcomes: Outcomes, here: Program, expected: Counter[Any], killed: Counter[Any]) -> None:
    """Count what became of the kills."""
    assert OPERATOR in here.log()
    actual = row_counts(here.rows())
    outcomes.tried += killed.total()
    outcomes.recovered += killed.total() - 1
    told = {getattr(victim, "value", victim): count for victim, count in killed.items()}
    outcomes.note((actual - expected).total(), (expected - actual).total(), f"killed {told}")


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

    def __init__(
        self,
        folder: Path,
        name: str,
        master: str = "local[2,4]",
        roots: Sequence[int] = (),
        points: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._name = name
        self._master = master
        self._roots = roots
        self._points = points
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
        return pa.concat_tables(pq.read_table(file) for file in sorted((self._folder / self._name).glob("*.parquet")))

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

    def kill(self, victim: Role | str, dice: random.Random) -> bool:
        """Kill a process, tasks, or the driver with everything that it has started; whether there was one."""
        assert self._process is not None
        if victim == TASKS:
            (self._folder / "kill tasks").touch()
            return True
        assert isinstance(victim, Role)
        found = with_role([self._process.pid, *self._roots], victim)
        if not found:
            return False
        if victim is not Role.JVM:
            dice.choice(found).send(signal.SIGKILL)
        else:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        return True

    def _start(self) -> None:
        with self._log.open("ab") as out, (self._folder / "stderr").open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.streamprogram", str(self._folder), self._name, self._name,
                 self._master, *self._points],
                stdout=out, stderr=errors, cwd=Path(__file__).parents[2], start_new_session=True,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            )  # fmt: skip

    def _end(self) -> None:
        if self._process is not None:
            self._process.wait(PATIENCE)

    def _errors(self) -> str:
        return (self._folder / "stderr").read_text()[-2000:]
