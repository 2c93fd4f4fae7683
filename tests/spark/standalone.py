"""A standalone cluster of two workers, on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyspark

from tests.chaos.processes import all_gone, below

ROOT = Path(__file__).parents[2]
START_SECONDS = 300
"""Within which a daemon has started, on a machine that has much else to do."""
DAEMON_OPTIONS = ("-Dspark.worker.timeout=900", "-Dspark.deploy.maxExecutorRetries=-1")
"""The master takes a worker that was silent for a minute for lost, and gives an application up after ten executors that
ended in a row. Here a worker may have been stopped for a while, and executors are killed on purpose."""


@dataclass
class Daemon:
    """A master or a worker, and the log that it writes."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait_for(self, pattern: str, seconds: float = START_SECONDS) -> str:
        """Wait until the log has what a pattern matches, and give its first group.

        Raises
        ------
        AssertionError
            With the log's last lines, once the process has ended, or after some seconds.
        """
        deadline = time.monotonic() + seconds
        while True:
            status, waited = self.process.poll(), time.monotonic() >= deadline
            logged = self.log.read_text(errors="replace")
            match = re.search(pattern, logged)
            if match:
                return match[1]
            if status is not None or waited:
                happened = f"had {seconds:.0f} s" if status is None else f"ended with {status}"
                raise AssertionError(f"{self.log.stem} {happened}, and never logged {pattern!r}:\n{tail(logged)}")
            time.sleep(0.1)


@dataclass
class Cluster:
    """A master and workers as processes of this machine, each worker with directories of its own.

    As a context manager it is started, and stopped whatever happens.
    """

    base: Path
    daemons: list[Daemon] = field(default_factory=list)
    """The master first."""
    master: str = ""

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {
            **os.environ,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": path,
            "SPARK_LOG_DIR": str(self.base),
        }

    @property
    def workers(self) -> list[int]:
        """Process numbers of the workers, below which executors run."""
        return [daemon.process.pid for daemon in self.daemons[1:]]

    def local_dirs(self) -> list[Path]:
        return [self.base / f"worker{number}" / "local" for number in range(2)]

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def run(self, *program: str, seconds: float = 1800, variables: Mapping[str, str] | None = None) -> str:
        """Run a driver, as arguments of Python, and give what it prints.

        Raises
        ------
        AssertionError
            If the program fails or takes longer, with the ends of what it printed and logged.
        """
        log = self.base / "driver.log"
        with log.open("wb") as errors:
            driver = subprocess.Popen(
                [sys.executable, *program], cwd=self.base, env={**self.environment, **(variables or {})},
                stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        try:
            printed, _ = driver.communicate(timeout=seconds)
            happened = f"ended with {driver.returncode}"
        except subprocess.TimeoutExpired:
            driver.kill()
            printed, _ = driver.communicate()
            happened = f"took over {seconds:.0f} s"
        logged = log.read_text(errors="replace")
        assert driver.returncode == 0, f"{program} {happened}:\n{tail(printed)}\n{tail(logged)}"
        return printed

    def _start(self) -> None:
        arguments = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        self.master = self._launch("master", arguments).wait_for(r"Starting Spark master at (spark://\S+)")
        started = []
        for number, local in enumerate(self.local_dirs()):
            local.mkdir(parents=True)
            arguments = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "2", "--memory",
                         "1g", "--webui-port", "0", "--work-dir", str(local.parent / "work"), self.master]  # fmt: skip
            started.append(self._launch(f"worker{number}", arguments, SPARK_LOCAL_DIRS=str(local)))
        for worker in started:
            worker.wait_for(r"(Successfully registered with master)")

    def _launch(self, name: str, command: list[str], **variables: str) -> Daemon:
        environment = {
            **self.environment, **variables, "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join(DAEMON_OPTIONS),
        }  # fmt: skip
        spark_class = Path(environment["SPARK_HOME"]) / "bin" / "spark-class"
        log = self.base / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen([spark_class, *command], stdout=out, stderr=out, env=environment)
        self.daemons.append(Daemon(process, log))
        return self.daemons[-1]

    def _stop(self) -> None:
        executors = below(self.workers)
        for daemon in reversed(self.daemons):
            daemon.process.terminate()
        for daemon in self.daemons:
            try:
                daemon.process.wait(20)
            except subprocess.TimeoutExpired:
                daemon.process.kill()
                daemon.process.wait()
        for process in all_gone(executors, 20):
            process.send(signal.SIGKILL)


def objects(printed: str) -> list[dict[str, Any]]:
    """Parse the lines that are objects of JSON, of what a program printed."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def tail(text: str) -> str:
    """Give the end of a log."""
    return text[-5000:]
