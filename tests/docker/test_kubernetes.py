"""The Kubernetes example against an API server that only takes notes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

EXAMPLE = Path(__file__).resolve().parents[2] / "docker" / "kubernetes"
SUBMIT = EXAMPLE / "submit.sh"
NOT_FOUND = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound"}
NO_PODS = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}


class Notes(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pods: list[dict[str, Any]] = []
        self.posted = threading.Event()
        self.url = f"k8s://http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Notes

    def answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        return found

    def do_GET(self) -> None:
        self.answer(200, NO_PODS) if "/pods?" in self.path else self.answer(404, NOT_FOUND)

    def do_POST(self) -> None:
        body = self.body()
        body.setdefault("metadata", {})["uid"] = "1"
        if body.get("kind") == "Pod":
            self.server.pods.append(body)
        self.answer(201, body)
        if body.get("kind") == "Pod":
            self.server.posted.set()

    def do_PATCH(self) -> None:
        self.answer(200, self.body())

    def do_DELETE(self) -> None:
        self.body()
        self.answer(200, {})

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def api_server() -> Iterator[Notes]:
    server = Notes()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def environment(**given: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}"
    options = os.environ["SPARK_SUBMIT_OPTS"]
    return {**clean, "PATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_SUBMIT_OPTS": options, **given}


def submit(*arguments: str, **given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SUBMIT, *arguments], capture_output=True, text=True, env=environment(**given), timeout=600)


@pytest.mark.parametrize("name", ["driver-pod.yaml", "executor-pod.yaml"])
def test_pod_templates_are_pods_that_do_not_run_as_root(name: str) -> None:
    pod = yaml.safe_load((EXAMPLE / name).read_text())
    assert (pod["apiVersion"], pod["kind"]) == ("v1", "Pod")
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["spec"]["containers"]
    assert container["name"] == f"spark-kubernetes-{name.partition('-')[0]}"
    mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
    assert mounts == {volume["name"] for volume in pod["spec"].get("volumes", [])}


def test_rights_fit_the_account_that_submit_names() -> None:
    documents = {d["kind"]: d for d in yaml.safe_load_all((EXAMPLE / "rbac.yaml").read_text())}
    assert set(documents) == {"Namespace", "ServiceAccount", "Role", "RoleBinding"}
    account = documents["ServiceAccount"]["metadata"]
    assert documents["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", **account}]
    assert documents["RoleBinding"]["roleRef"]["name"] == documents["Role"]["metadata"]["name"]
    text = SUBMIT.read_text()
    assert f"serviceAccountName={account['name']}" in text
    assert f"NAMESPACE:-{account['namespace']}" in text
    (rule,) = documents["Role"]["rules"]
    assert "pods" in rule["resources"]
    assert {"create", "delete", "watch"} <= set(rule["verbs"])


@pytest.mark.parametrize(
    ("arguments", "given", "said"),
    [
        (["local:///a.py"], {"IMAGE": "i"}, "MASTER is not set"),
        (["local:///a.py"], {"MASTER": "k8s://x"}, "IMAGE is not set"),
        ([], {"MASTER": "k8s://x", "IMAGE": "i"}, "name an application"),
    ],
)
def test_what_is_missing_is_said(arguments: list[str], given: dict[str, str], said: str) -> None:
    done = submit(*arguments, **given)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.extra
@pytest.mark.spark
def test_submit_creates_the_driver_pod(api_server: Notes) -> None:
    done = submit(
        "local:///opt/app/job.py", "--day", "today", MASTER=api_server.url, IMAGE="example/gpujoin:test",
        SUBMIT_OPTIONS="--conf spark.kubernetes.submission.waitAppCompletion=false",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (pod,) = api_server.pods
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "example/gpujoin:test"
    assert container["args"][0] == "driver"
    assert container["args"][-3:] == ["local:///opt/app/job.py", "--day", "today"]
    assert pod["spec"]["serviceAccountName"] == "gpujoin"
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert "nvidia.com/gpu" not in container["resources"]["limits"]


@pytest.mark.extra
@pytest.mark.spark
def test_a_driver_with_these_settings_asks_for_gpu_executors(api_server: Notes, tmp_path: Path) -> None:
    echo = tmp_path / "spark-submit"
    echo.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    echo.chmod(0o755)
    words = submit("job.py", MASTER=api_server.url, IMAGE="example/gpujoin:test", SPARK_SUBMIT=str(echo))
    told = words.stdout.splitlines()
    settings = [word for index, word in enumerate(told) if told[index - 1] == "--conf"]
    job = tmp_path / "job.py"
    job.write_text(
        "import time\nfrom pyspark.sql import SparkSession\nSparkSession.builder.getOrCreate()\ntime.sleep(300)\n"
    )
    command = ["spark-submit", "--master", api_server.url, "--deploy-mode", "client", "--conf",
               "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false"]  # fmt: skip
    for setting in settings:
        command += ["--conf", setting]
    with (tmp_path / "log").open("w") as log:
        driver = subprocess.Popen([*command, str(job)], stdout=log, stderr=log, env=environment())
    try:
        assert api_server.posted.wait(300), (tmp_path / "log").read_text()
    finally:
        driver.terminate()
        driver.wait(120)
    spec = api_server.pods[0]["spec"]
    (container,) = spec["containers"]
    assert container["args"] == ["executor"]
    assert container["resources"]["limits"] == {"memory": "8192Mi", "nvidia.com/gpu": "1"}
    assert container["resources"]["requests"]["cpu"] == "4"
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert variables["SPARK_LOCAL_DIRS"] == "/local"
    assert {"mountPath": "/dev/shm", "name": "shared-memory"} in container["volumeMounts"]
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert spec["securityContext"]["runAsUser"] == 185
