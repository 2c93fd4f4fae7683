from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ENTRYPOINT = Path(__file__).resolve().parents[2] / "docker" / "entrypoint.sh"
SPARK = {"SPARK_HOME": "/spark", "JAVA_HOME": "/java", "SPARK_CONF_DIR": "/conf"}


@pytest.fixture
def tini(tmp_path: Path) -> Path:
    """A tini that prints what it is told to start, one word a line."""
    command = tmp_path / "tini"
    command.write_text('#!/bin/sh\n[ "$1 $2" = "-s --" ] || exit 99\nshift 2\nprintf "%s\\n" "$@"\n')
    command.chmod(0o755)
    return tmp_path


def started(tini: Path, *arguments: str, **environment: str) -> list[str]:
    done = run(tini, *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def run(tini: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    clean["PATH"] = f"{tini}{os.pathsep}{clean['PATH']}"
    return subprocess.run(
        [ENTRYPOINT, *arguments], capture_output=True, text=True, env={**clean, **SPARK, **environment}
    )


@pytest.mark.parametrize("asked", ["--help", "-h", "help"])
def test_help_lists_the_commands(tini: Path, asked: str) -> None:
    told = "\n".join(started(tini, asked))
    assert told.startswith("Usage: docker run")
    for command in ("doctor", "demo", "master", "worker"):
        assert command in told


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ([], ["gpujoin", "doctor"]),
        (["doctor", "--json"], ["gpujoin", "doctor", "--json"]),
        (["demo", "--sf", "1"], ["gpujoin", "demo", "--sf", "1"]),
        (["python", "my app.py", "*"], ["python", "my app.py", "*"]),
    ],
)
def test_commands_reach_gpujoin_or_pass_through(tini: Path, arguments: list[str], command: list[str]) -> None:
    assert started(tini, *arguments) == command


def test_master_and_worker(tini: Path) -> None:
    master = started(tini, "master", "--port", "7078", SPARK_MASTER_HOST="here")
    assert master[:2] == ["/spark/bin/spark-class", "org.apache.spark.deploy.master.Master"]
    assert master[2:] == ["--host", "here", "--port", "7078"]
    worker = started(tini, "worker", "spark://here:7078", "--cores", "2")
    assert worker[1:] == ["org.apache.spark.deploy.worker.Worker", "spark://here:7078", "--cores", "2"]


def test_a_worker_offers_no_gpu_where_there_is_none(tini: Path, tmp_path: Path) -> None:
    conf, tools = tmp_path / "conf", tmp_path / "tools"
    conf.mkdir()
    tools.mkdir()
    gpu = "spark.worker.resource.gpu.amount 1"
    (conf / "spark-defaults.conf").write_text(f"spark.worker.cleanup.enabled true\n{gpu}\n")
    for name in ("bash", "grep", "mktemp", "sh"):
        (tools / name).symlink_to(str(shutil.which(name)))
    where = {"SPARK_CONF_DIR": str(conf), "PATH": f"{tini}{os.pathsep}{tools}", "TMPDIR": str(tmp_path)}
    worker = started(tini, "worker", "spark://here:7078", **where)
    assert worker[2] == "--properties-file"
    assert Path(worker[3]).read_text() == "spark.worker.cleanup.enabled true\n"
    (tools / "nvidia-smi").symlink_to(str(shutil.which("true")))
    assert started(tini, "worker", "spark://here:7078", **where)[2:] == ["spark://here:7078"]


def test_a_worker_without_its_master_is_an_error(tini: Path) -> None:
    done = run(tini, "worker")
    assert done.returncode == 2
    assert "worker needs the URL of its master" in done.stderr


def test_the_driver_of_kubernetes(tini: Path) -> None:
    told = started(tini, "driver", "--class", "X", "local:///a.py", SPARK_DRIVER_BIND_ADDRESS="10.0.0.1")
    assert told[0] == "/spark/bin/spark-submit"
    assert "spark.driver.bindAddress=10.0.0.1" in told
    assert told[-5:] == ["--deploy-mode", "client", "--class", "X", "local:///a.py"]


def test_the_executor_of_kubernetes_keeps_its_options_in_order(tini: Path) -> None:
    options = {f"SPARK_JAVA_OPT_{i}": f"-Dn={i} x" for i in range(12)}
    told = started(
        tini, "executor", **options, SPARK_EXECUTOR_MEMORY="4096m", SPARK_DRIVER_URL="spark://d:1",
        SPARK_EXECUTOR_ID="7", SPARK_EXECUTOR_CORES="4", SPARK_APPLICATION_ID="app", SPARK_EXECUTOR_POD_IP="10.0.0.2",
        SPARK_RESOURCE_PROFILE_ID="0", SPARK_EXECUTOR_POD_NAME="pod",
    )  # fmt: skip
    assert told[0] == "/java/bin/java"
    assert told[1:13] == [f"-Dn={i} x" for i in range(12)]
    assert told[13:17] == ["-Xms4096m", "-Xmx4096m", "-cp", "/conf::/spark/jars/*"]
    assert told[17] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    pairs = dict(zip(told[18::2], told[19::2], strict=True))
    assert pairs == {
        "--driver-url": "spark://d:1", "--executor-id": "7", "--cores": "4", "--app-id": "app",
        "--hostname": "10.0.0.2", "--resourceProfileId": "0", "--podName": "pod",
    }  # fmt: skip


def test_the_executor_says_which_variable_is_missing(tini: Path) -> None:
    done = run(tini, "executor", SPARK_EXECUTOR_MEMORY="1g")
    assert done.returncode != 0
    assert "SPARK_DRIVER_URL" in done.stderr
