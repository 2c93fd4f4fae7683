"""The Dockerfile and the compose file, as far as they can be tried without Docker."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
HADOLINT = shutil.which("hadolint", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as (keyword, arguments), continued lines joined, comments gone."""
    lines = [line for line in (DOCKER / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


def arguments(keyword: str) -> list[str]:
    return [rest for found, rest in instructions() if found == keyword]


def environment() -> dict[str, str]:
    pairs = (part.partition("=") for rest in arguments("ENV") for part in shlex.split(rest))
    return {name: value for name, _, value in pairs}


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    return found


def test_everything_copied_exists_and_reaches_the_builder() -> None:
    ignore = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in ignore if line.startswith("!")}
    assert "*" in ignore
    sources = [
        source for rest in arguments("COPY") if not rest.startswith("--from") for source in shlex.split(rest)[:-1]
    ]
    assert sources
    for source in sources:
        assert list(ROOT.glob(source)), source
        assert source in allowed, source
    assert {path for path in allowed if not list(ROOT.glob(path))} == set()


def build_arguments() -> dict[str, str]:
    """The arguments of the build that have a default."""
    return {name: value for name, equals, value in (rest.partition("=") for rest in arguments("ARG")) if equals}


def test_the_base_is_pinned_and_the_user_is_not_root() -> None:
    assert re.fullmatch(r"ubuntu:\d+\.04", build_arguments()["BASE"])
    assert arguments("FROM") == ["${BASE} AS build", "${BASE}"]
    assert arguments("USER") == ["185"]
    assert instructions()[-1][0] == "CMD"


def test_the_image_installs_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (install,) = (rest for rest in arguments("RUN") if "pip install" in rest)
    extras = re.search(r'"\.\[([^\]]+)\$\{EXTRA:\+,\$\{EXTRA\}\}\]"', install)
    assert extras is not None
    assert {*extras[1].split(","), build_arguments()["EXTRA"]} <= set(project["optional-dependencies"])
    assert (ROOT / build_arguments()["CONSTRAINTS"]).is_file()


def test_arguments_of_the_build_are_those_of_the_page() -> None:
    page = (DOCKER / "README.md").read_text()
    rows = dict(re.findall(r"^\| `([A-Z]+)` \| `([^`]+)` \|", page, re.MULTILINE))
    assert rows == build_arguments()
    python = f"python{build_arguments()['PYTHON']}"
    assert (
        environment()["SPARK_HOME"].replace("python${PYTHON}", python).endswith(f"/lib/{python}/site-packages/pyspark")
    )


def test_the_image_test_is_skipped_with_a_reason_where_no_tool_works() -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "image_test.sh"], capture_output=True, text=True, env={**os.environ, "TOOL": "no-such-tool"}
    )
    assert done.returncode == 77
    assert "image-test: skipped: no-such-tool is not here" in done.stderr


def test_settings_files_and_scripts_lie_where_the_settings_say() -> None:
    copies = {shlex.split(rest)[-1].rstrip("/"): shlex.split(rest)[:-1] for rest in arguments("COPY")}
    assert copies["/opt/spark/conf"] == ["docker/spark-conf"]
    assert set(copies["/opt/gpujoin"]) == {"docker/entrypoint.sh", "docker/discover-gpus.sh"}
    assert environment()["SPARK_CONF_DIR"] == "/opt/spark/conf"
    defaults = (DOCKER / "spark-conf" / "spark-defaults.conf").read_text()
    scripts = set(re.findall(r"discoveryScript\s+(\S+)", defaults))
    assert scripts == {"/opt/gpujoin/discover-gpus.sh"}
    # A session in local mode that has them from here never starts a task.
    assert "spark.task.resource" not in re.sub(r"^#.*", "", defaults, flags=re.MULTILINE)
    assert arguments("ENTRYPOINT") == ['["/opt/gpujoin/entrypoint.sh"]']


def test_scripts_can_be_run() -> None:
    for script in DOCKER.rglob("*.sh"):
        assert script.stat().st_mode & 0o111, script


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed; make lint installs and runs it")
def test_hadolint_is_content() -> None:
    done = subprocess.run([str(HADOLINT), DOCKER / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_compose_builds_this_image() -> None:
    for service in compose()["services"].values():
        build = service["build"]
        assert (DOCKER / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]).is_file()


def test_compose_commands_are_those_of_the_entrypoint() -> None:
    services = compose()["services"]
    assert services["master"]["command"] == ["master"]
    for name in ("worker-0", "worker-1"):
        command = services[name]["command"]
        assert command[:2] == ["worker", "spark://master:7077"]
        assert services[name]["depends_on"] == {"master": {"condition": "service_healthy"}}


def test_compose_workers_reserve_a_gpu_and_share_its_slots() -> None:
    found = compose()
    for number in (0, 1):
        worker = found["services"][f"worker-{number}"]
        (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
        assert device == {
            "driver": "nvidia",
            "device_ids": [f"${{GPU_{number}:-0}}"],
            "capabilities": ["gpu"],
        }
        assert f"slots-{number}:/slots" in worker["volumes"]
        assert found["volumes"][f"slots-{number}"]["name"] == f"gpujoin-slots-gpu-${{GPU_{number}:-0}}"
    assert environment()["GPUJOIN_SLOT_DIR"] == "/slots"


def test_compose_volumes_are_declared_and_ports_are_local() -> None:
    found = compose()
    for service in found["services"].values():
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in found["volumes"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def docker_compose_works() -> bool:
    try:
        return subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not docker_compose_works(), reason="docker compose is not installed")
def test_docker_compose_accepts_the_file() -> None:
    done = subprocess.run(
        ["docker", "compose", "-f", DOCKER / "compose.yaml", "config", "--quiet"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
