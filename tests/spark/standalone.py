"""A standalone cluster of two workers, on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

ROOT = Path(__file__).parents[2]


@dataclass
class Cluster:
    """A master and workers as processes of this machine, each worker with directories of its own."""

    base: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
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

    def local_dirs(self) -> list[Path]:
        return [self.base / f"worker{number}" / "local" for number in range(2)]

    def start(self) -> None:
        log = self._launch("master", ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0",
                                      "--webui-port", "0"], {})  # fmt: skip
        self.master = wait_for(log, r"Starting Spark master at (spark://\S+)")
        for number, local in enumerate(self.local_dirs()):
            local.mkdir(parents=True)
            worker = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "2", "--memory", "1g",
                      "--webui-port", "0", "--work-dir", str(local.parent / "work"), self.master]  # fmt: skip
            log = self._launch(f"worker{number}", worker, {"SPARK_LOCAL_DIRS": str(local)})
            wait_for(log, r"(Successfully registered with master)")

    def _launch(self, name: str, command: list[str], more: dict[str, str]) -> Path:
        environment = {**self.environment, **more, "SPARK_DAEMON_MEMORY": "256m"}
        spark_class = Path(environment["SPARK_HOME"]) / "bin" / "spark-class"
        log = self.base / f"{name}.log"
        with log.open("wb") as out:
            self.processes.append(subprocess.Popen([spark_class, *command], stdout=out, stderr=out, env=environment))
        return log

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(log: Path, pattern: str, seconds: float = 90) -> str:
    """Wait until a log has what a pattern matches, and give its first group."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found:
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"{log.name} never said {pattern!r}:\n{log.read_text(errors='replace')[-3000:]}")
