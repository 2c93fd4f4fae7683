from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpujoin.errors import BackendUnavailableError
from gpujoin.spark import discovery

SCRIPT = Path(__file__).resolve().parents[2] / "docker" / "discover-gpus.sh"

TWO_GPUS = """\
0, NVIDIA H200, GPU-11111111-2222-3333-4444-555555555555, 143771, 4, 580.65.06, 9.0, Default
1, NVIDIA H200, GPU-66666666-7777-8888-9999-000000000000, 143771, 1024, 580.65.06, 9.0, Exclusive_Process
"""

FakeSmi = Callable[..., None]


@pytest.fixture
def fake_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSmi:
    """Puts an nvidia-smi on PATH that answers the module's query and the script's."""

    def install(answer: str, *, status: int = 0) -> None:
        (tmp_path / "answer").write_text(answer)
        command = tmp_path / "nvidia-smi"
        command.write_text(
            "#!/bin/sh\n"
            f'case "$1" in --query-gpu=index) cut -d, -f1 {tmp_path}/answer;; *) cat {tmp_path}/answer;; esac\n'
            f"exit {status}\n"
        )
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


@pytest.fixture
def no_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH with the few commands the script uses, and no nvidia-smi."""
    for name in ("sed", "paste"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path))


def run_script() -> subprocess.CompletedProcess[str]:
    return subprocess.run(["/bin/sh", str(SCRIPT)], capture_output=True, text=True)


def test_gpus_are_read_with_their_facts(fake_smi: FakeSmi) -> None:
    fake_smi(TWO_GPUS)
    first, second = discovery.list_gpus()
    assert (first.index, first.name, first.memory_total) == ("0", "NVIDIA H200", 143771 << 20)
    assert (first.driver_version, first.compute_capability, first.exclusive) == ("580.65.06", "9.0", False)
    assert (second.index, second.memory_used, second.exclusive) == ("1", 1 << 30, True)


@pytest.mark.parametrize(("answer", "addresses"), [(TWO_GPUS, ["0", "1"]), (TWO_GPUS.splitlines()[0], ["0"])])
def test_command_and_script_print_the_same_resource(
    fake_smi: FakeSmi, capsys: pytest.CaptureFixture[str], answer: str, addresses: list[str]
) -> None:
    fake_smi(answer)
    assert discovery.main([]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"name": "gpu", "addresses": addresses}
    script = run_script()
    assert (script.returncode, script.stdout) == (0, printed)


@pytest.mark.usefixtures("no_smi")
def test_a_missing_nvidia_smi_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert discovery.main([]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "nvidia-smi is not on PATH" in captured.err
    script = run_script()
    assert script.returncode == 1
    assert script.stdout == ""
    assert "nvidia-smi is not on PATH" in script.stderr


def test_a_failing_driver_is_told_in_its_own_words(fake_smi: FakeSmi) -> None:
    fake_smi("NVIDIA-SMI has failed because it couldn't communicate with the driver.\n", status=9)
    with pytest.raises(BackendUnavailableError, match=r"status 9: NVIDIA-SMI has failed.*Check that the driver"):
        discovery.list_gpus()
    script = run_script()
    assert script.returncode == 1
    assert "NVIDIA-SMI has failed" in script.stderr


def test_no_gpu_is_an_error(fake_smi: FakeSmi) -> None:
    fake_smi("")
    with pytest.raises(BackendUnavailableError, match="lists no GPU"):
        discovery.list_gpus()
    assert run_script().returncode == 1


def test_unexpected_answers_and_missing_memory(fake_smi: FakeSmi) -> None:
    fake_smi("0, GPU, uuid, [N/A], [N/A], 1, 8.7, Default\n")
    assert discovery.list_gpus()[0].memory_total == 0
    fake_smi("0, GPU\n")
    with pytest.raises(BackendUnavailableError, match="8 values were expected"):
        discovery.list_gpus()


def test_a_hanging_driver_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*arguments: object, **options: object) -> None:
        raise subprocess.TimeoutExpired("nvidia-smi", 30)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(BackendUnavailableError, match="did not answer within"):
        discovery.list_gpus()


def test_discovery_imports_neither_pyspark_nor_a_gpu_library() -> None:
    code = "import sys, gpujoin.spark.discovery; print(sorted({'pyspark', 'cudf', 'cupy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
