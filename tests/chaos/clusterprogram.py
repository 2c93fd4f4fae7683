"""A driver on a cluster whose workers and executors are killed or stopped at random moments under its queries.

Run as ``python -m tests.chaos.clusterprogram MASTER FOLDER SEED ROUNDS PID …``, where the numbers are the processes of
Spark's workers on this machine. Prints one line of JSON a round.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from gpujoin import disable, enable, gpu_join
from gpujoin.testing import Zeros, row_counts
from tests.chaos.outcomes import is_clear
from tests.chaos.processes import Role, with_role
from tests.chaos.tables import EXCHANGED, QUERIES, joined_rows, register, write_tables

FAULTS = {
    "kill a worker": (Role.WORKER, signal.SIGKILL),
    "abort a worker": (Role.WORKER, signal.SIGABRT),
    "stop a worker": (Role.WORKER, signal.SIGSTOP),
    "kill the largest worker": (Role.WORKER, signal.SIGKILL),
    "kill a daemon": (Role.DAEMON, signal.SIGKILL),
    "kill an executor": (Role.EXECUTOR, signal.SIGKILL),
    "stop an executor": (Role.EXECUTOR, signal.SIGSTOP),
}
"""Who gets which signal. The system's out-of-memory killer sends SIGKILL to the largest process."""
STOPPED_SECONDS = {Role.WORKER: 25.0, Role.EXECUTOR: 6.0}
"""After these a stopped process goes on: of a task's two attempts the one that was not stopped has won by then."""

_LATEST = 0.7
"""Share of the seconds that a work takes without faults, within which a fault comes."""


class Disturber(threading.Thread):
    """Waits, then does something to a process below some others, as soon as there is one."""

    def __init__(self, roots: Collection[int], fault: str, delay: float, dice: random.Random) -> None:
        super().__init__(daemon=True)
        self.roots, self.fault, self.delay, self.dice = roots, fault, delay, dice
        self.victim = 0
        self.over = threading.Event()

    def run(self) -> None:
        role, number = FAULTS[self.fault]
        time.sleep(self.delay)
        victims = with_role(self.roots, role)
        while not victims and not self.over.wait(0.05):
            victims = with_role(self.roots, role)
        if not victims or self.over.is_set():
            return
        largest = "largest" in self.fault
        victim = max(victims, key=lambda process: process.resident) if largest else self.dice.choice(victims)
        victim.send(number)
        self.victim = victim.pid
        if number is signal.SIGSTOP:
            self.over.wait(STOPPED_SECONDS[role])
            victim.send(signal.SIGCONT)


def started(master: str) -> SparkSession:
    builder = SparkSession.builder.master(master).appName("gpujoin chaos")
    settings = {
        "spark.executor.memory": "700m", "spark.executor.cores": "2", "spark.driver.memory": "1g",
        "spark.network.timeout": "600s",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4", "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.speculation": "true", "spark.speculation.interval": "200ms", "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.5", "spark.speculation.minTaskRuntime": "2s",
        "spark.speculation.efficiency.enabled": "false", "spark.task.reaper.enabled": "true",
        "spark.task.maxFailures": "4", "spark.stage.maxConsecutiveAttempts": "10",
    }  # fmt: skip
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def differences(actual: pa.Table, expected: pa.Table) -> tuple[int, int]:
    """Rows that should not be there, and rows that are missing."""
    here, right = row_counts(actual, zeros=Zeros.SAME), row_counts(expected, zeros=Zeros.SAME)
    return (here - right).total(), (right - here).total()


class Rounds:
    """Queries, and what they should give."""

    def __init__(self, session: SparkSession, folder: str) -> None:
        self.session, self.folder = session, folder
        write_tables(session, folder)
        register(session, folder)
        self.answers = {name: session.sql(text).toArrow() for name, text in QUERIES.items()}
        self.written = [joined_rows(session, number).toArrow() for number in range(3)]
        self.rounds = 0
        for key, value in EXCHANGED.items():
            session.conf.set(key, value)
        enable(session)

    def query(self, name: str) -> Callable[[], tuple[int, int]]:
        """Run a query and compare."""
        return lambda: differences(self.session.sql(QUERIES[name]).toArrow(), self.answers[name])

    def gpu_join(self) -> tuple[int, int]:
        """Join two tables by name, fed by Spark's rows."""
        items = self.session.table("items").withColumnRenamed("kind", "item_kind")
        joined = gpu_join(self.session.table("lines"), items, "k", "inner", strategy="shuffle", backend="cpu")
        rows = joined.where("amount < 40").select("id", "text", "name").toArrow()
        return differences(rows, self.answers["join"])

    def overwrite(self) -> tuple[int, int]:
        """Write a table over another one; where that fails, see that it says so and leaves nothing half done."""
        return self._write("overwrite")

    def append(self) -> tuple[int, int]:
        """Write rows behind others."""
        return self._write("append")

    def _write(self, mode: str) -> tuple[int, int]:
        self.rounds += 1
        path = f"{self.folder}/out{self.rounds}"
        disable(self.session)
        joined_rows(self.session, 0).write.parquet(path)
        enable(self.session)
        problem = None
        try:
            joined_rows(self.session, 1).write.mode(mode).parquet(path)
        except Exception as raised:  # noqa: BLE001 - the table is looked at before it is raised again
            problem = raised
        rows = self.session.read.schema(joined_rows(self.session, 0).schema).parquet(path).toArrow()
        wanted = [self.written[0]] * (mode == "append") + [self.written[1]] * (problem is None)
        if problem is not None and mode == "overwrite":
            wanted = [self.written[0]]
        wrong, lost = differences(rows, pa.concat_tables(wanted))
        if problem is not None and not wrong and not lost:
            raise problem
        return wrong, lost


def main(master: str, folder: str, seed: int, count: int, roots: Collection[int]) -> None:
    """Run rounds of queries under faults."""
    session = started(master)
    rounds, dice = Rounds(session, folder), random.Random(seed)
    works: dict[str, Callable[[], tuple[int, int]]] = {name: rounds.query(name) for name in QUERIES}
    works |= {"gpu_join": rounds.gpu_join, "overwrite": rounds.overwrite, "append": rounds.append}
    seconds = {}
    for name, work in [*works.items()] * 2:  # the first time all is new, and takes longer than under faults
        start = time.monotonic()
        assert work() == (0, 0), f"{name} is wrong without any fault"
        seconds[name] = time.monotonic() - start
        print(json.dumps({"quiet": name, "seconds": round(seconds[name], 1)}), flush=True)
    names, faults = list(works), list(FAULTS)
    for number in range(count):
        name, fault = names[number % len(names)], faults[number % len(faults)]
        disturber = Disturber(roots, fault, dice.uniform(0, _LATEST) * seconds[name], dice)
        line: dict[str, Any] = {
            "round": number,
            "work": name,
            "fault": fault,
            "delay": round(disturber.delay, 2),
        }
        disturber.start()
        start = time.monotonic()
        try:
            line["wrong"], line["lost"] = works[name]()
        except Exception as problem:  # noqa: BLE001 - whatever is raised is judged
            line |= {"error": f"{type(problem).__name__}: {str(problem)[:1500]}", "clear": is_clear(problem)}
        disturber.over.set()
        disturber.join()
        line |= {"victim": disturber.victim, "seconds": round(time.monotonic() - start, 1)}
        print(json.dumps(line), flush=True)
    session.stop()


if __name__ == "__main__":
    Path(sys.argv[2]).mkdir(exist_ok=True)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), [int(text) for text in sys.argv[5:]])
