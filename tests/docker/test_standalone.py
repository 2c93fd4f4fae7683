"""The cluster of compose.yaml, started here by the image's own entrypoint, with an nvidia-smi that claims one GPU."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.java import SHORT_LIVED

DOCKER = Path(__file__).resolve().parents[2] / "docker"

JOB = """
from pyspark import TaskContext
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
def gpus(_):
    yield ",".join(TaskContext.get().resources()["gpu"].addresses)
print("addresses:", spark.sparkContext.parallelize(range(4), 4).mapPartitions(gpus).collect())
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def executable(path: Path, text: str) -> None:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """What the image sets, with this machine's paths."""
    import pyspark

    commands = tmp_path / "bin"
    commands.mkdir()
    executable(commands / "tini", 'shift 2\nexec "$@"\n')
    executable(commands / "nvidia-smi", "echo 0\n")
    conf = tmp_path / "conf"
    conf.mkdir()
    defaults = (DOCKER / "spark-conf" / "spark-defaults.conf").read_text()
    (conf / "spark-defaults.conf").write_text(defaults.replace("/opt/gpujoin", str(DOCKER)))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    return {
        **clean,
        "SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
        "SPARK_DAEMON_JAVA_OPTS": " ".join(SHORT_LIVED),
        "PATH": os.pathsep.join([str(commands), str(Path(sys.executable).parent), clean["PATH"]]),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_CONF_DIR": str(conf),
        "SPARK_LOCAL_DIRS": str(tmp_path / "local"),
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_MASTER_HOST": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }


@pytest.fixture
def master(environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    started = []
    with (tmp_path / "cluster.log").open("w") as log:

        def start(*arguments: str) -> None:
            started.append(
                subprocess.Popen([DOCKER / "entrypoint.sh", *arguments], env=environment, stdout=log, stderr=log)
            )

        start("master", "--port", str(port), "--webui-port", "0")
        deadline = time.monotonic() + 300
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, (tmp_path / "cluster.log").read_text()
                time.sleep(0.1)
        start("worker", url, "--cores", "2", "--memory", "2g", "--webui-port", "0")
        yield url
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(120)


@pytest.mark.spark
@pytest.mark.slow
def test_every_task_is_told_its_gpu(master: str, environment: dict[str, str], tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB)
    done = subprocess.run(
        ["spark-submit", "--master", master, "--conf", "spark.ui.enabled=false",
         "--conf", "spark.executor.resource.gpu.amount=1", "--conf", "spark.task.resource.gpu.amount=0.01",
         "--conf", f"spark.executor.extraJavaOptions={' '.join(SHORT_LIVED)}", str(job)],
        env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    log = (tmp_path / "cluster.log").read_text()
    assert "addresses: ['0', '0', '0', '0']" in done.stdout, done.stderr + log
