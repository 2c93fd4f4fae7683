"""The scripts that set up a machine, with stand-ins for Python, pip, apt-get and java."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PYTHON = """
case "$1 $2" in
"-c import ensurepip, venv") [ ! -e "$STAND_INS/no-venv" ];;
"-c "*) echo 3.12;;
"--version "*) echo Python 3.12;;
"-m venv") mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; echo "venv $3" >>"$STAND_INS/log";;
"-m pip") shift 2; [ "$1" = --version ] || echo "pip $*" >>"$STAND_INS/log"; [ ! -e "$STAND_INS/pip-fails" ];;
esac
"""


@pytest.fixture
def stand_ins(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    script(folder / "python3", PYTHON)
    script(folder / "id", "echo 1000\n")
    return folder


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


def run(name: str, stand_ins: Path, *arguments: str, **given: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{stand_ins}{os.pathsep}/usr/bin:/bin", "STAND_INS": str(stand_ins), **given}
    return subprocess.run(
        ["/bin/sh", ROOT / "scripts" / name, *arguments], capture_output=True, text=True, env=environment
    )


def log(stand_ins: Path) -> list[str]:
    path = stand_ins / "log"
    return path.read_text().splitlines() if path.exists() else []


def test_an_environment_is_made_once_and_used_again(stand_ins: Path, tmp_path: Path) -> None:
    venv = str(tmp_path / "venv")
    first = run("setup_env.sh", stand_ins, "test", VENV=venv)
    assert first.returncode == 0, first.stderr
    made, installed = log(stand_ins)
    assert made == f"venv {venv}"
    assert "--constraint constraints.txt --editable .[test]" in installed
    again = run("setup_env.sh", stand_ins, "test", VENV=venv)
    assert (again.returncode, again.stderr) == (0, "")
    assert len(log(stand_ins)) == 2


def test_other_extras_and_constraints_install_anew_but_keep_the_environment(stand_ins: Path, tmp_path: Path) -> None:
    venv = str(tmp_path / "venv")
    run("setup_env.sh", stand_ins, "test", VENV=venv)
    run("setup_env.sh", stand_ins, "bench", "test", VENV=venv)
    run("setup_env.sh", stand_ins, "test", VENV=venv, CONSTRAINTS="constraints-oldest.txt")
    made, *installs = log(stand_ins)
    assert made.startswith("venv ")
    assert [line.split()[-1] for line in installs] == [".[test]", ".[bench,test]", ".[test]"]
    assert "constraints-oldest.txt" in installs[2]


def test_a_broken_environment_is_made_anew(stand_ins: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    run("setup_env.sh", stand_ins, "test", VENV=str(venv))
    script(venv / "bin" / "python", "exit 1\n")
    run("setup_env.sh", stand_ins, "test", VENV=str(venv))
    assert [line.split()[0] for line in log(stand_ins)] == ["venv", "pip", "venv", "pip"]


def test_a_failed_install_is_tried_again(stand_ins: Path, tmp_path: Path) -> None:
    (stand_ins / "pip-fails").touch()
    failed = run("setup_env.sh", stand_ins, "test", VENV=str(tmp_path / "venv"))
    assert failed.returncode == 1
    assert "pip could not install gpujoin[test]" in failed.stderr or "no venv" in failed.stderr
    (stand_ins / "pip-fails").unlink()
    assert run("setup_env.sh", stand_ins, "test", VENV=str(tmp_path / "venv")).returncode == 0


def test_a_missing_venv_module_is_installed_by_root_only(stand_ins: Path, tmp_path: Path) -> None:
    (stand_ins / "no-venv").touch()
    refused = run("setup_env.sh", stand_ins, "test", VENV=str(tmp_path / "venv"))
    assert refused.returncode == 1
    assert "sudo apt-get install python3.12-venv" in refused.stderr
    script(stand_ins / "id", "echo 0\n")
    script(stand_ins / "apt-get", 'echo "apt-get $*" >>"$STAND_INS/log"\n')
    made = run("setup_env.sh", stand_ins, "test", VENV=str(tmp_path / "venv"))
    assert made.returncode == 0, made.stderr
    assert any("install" in line and "python3.12-venv" in line for line in log(stand_ins))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"PYTHON": "/nonexistent/python"},
            "PYTHON=/nonexistent/python is not a working Python 3.11 or newer",
        ),
        ({"CONSTRAINTS": "nothing.txt"}, "CONSTRAINTS=nothing.txt is not a file. Name one of: constraints"),
    ],
)
def test_wrong_settings_are_one_clear_line(stand_ins: Path, tmp_path: Path, given: dict[str, str], said: str) -> None:
    done = run("setup_env.sh", stand_ins, "test", VENV=str(tmp_path / "venv"), **given)
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_machine_without_a_new_python(stand_ins: Path, tmp_path: Path) -> None:
    for name in ("python3", "python3.11", "python3.12", "python3.13"):
        script(stand_ins / name, "exit 1\n")
    done = run("setup_env.sh", stand_ins, "test", VENV=str(tmp_path / "venv"))
    assert done.returncode == 1
    assert "no Python 3.11 or newer on PATH" in done.stderr


def java(version: str) -> str:
    return f"echo 'openjdk version \"{version}\" 2025-01-01' >&2\n"


def test_java_home_wins_where_it_is_new_enough(stand_ins: Path, tmp_path: Path) -> None:
    script(tmp_path / "jdk" / "bin" / "java", java("21.0.1"))
    script(stand_ins / "java", java("17.0.1"))
    done = run("java_home.sh", stand_ins, JAVA_HOME=str(tmp_path / "jdk"))
    assert done.stdout == f"{tmp_path / 'jdk'}\n"


@pytest.mark.parametrize("old", ["1.8.0_392", "11.0.2", "9"])
def test_an_old_java_home_is_passed_over(stand_ins: Path, tmp_path: Path, old: str) -> None:
    script(tmp_path / "jdk" / "bin" / "java", java(old))
    script(stand_ins / "java", java("17"))
    done = run("java_home.sh", stand_ins, JAVA_HOME=str(tmp_path / "jdk"))
    # A java on PATH counts by where it really lies: its home is the folder above its bin.
    assert done.stdout == f"{stand_ins.parent}\n"


def test_links_to_java_are_followed(stand_ins: Path, tmp_path: Path) -> None:
    script(tmp_path / "jdk" / "bin" / "java", java("17.0.9"))
    (stand_ins / "java").symlink_to(tmp_path / "jdk" / "bin" / "java")
    assert run("java_home.sh", stand_ins).stdout == f"{tmp_path / 'jdk'}\n"


def test_settings_page_is_up_to_date() -> None:
    import sys

    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "gen_settings.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_make_lists_its_targets() -> None:
    done = subprocess.run(["make", "-C", ROOT, "--no-print-directory"], capture_output=True, text=True)
    for target in ("help", "demo", "test", "test-all", "lint", "bench", "gpu-check", "clean"):
        assert f"\n  {target} " in done.stdout


def test_continuous_integration_runs_the_command_of_the_readme() -> None:
    assert "exec make test\n" in (ROOT / ".ci" / "run").read_text()
    assert "\nmake test " in (ROOT / "README.md").read_text()


APT = 'echo "apt-get $*" >>"$STAND_INS/log"; case "$1" in install) : >"$STAND_INS/installed";; esac\n'


def test_a_compiler_that_is_there_is_left_alone(stand_ins: Path) -> None:
    for tool in ("nm", "addr2line"):
        script(stand_ins / tool, "")
    script(stand_ins / "g++", "echo 14\n")
    done = run("find_gxx.sh", stand_ins)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("version", ["", "echo 11\n"])
def test_root_installs_a_compiler(stand_ins: Path, version: str) -> None:
    for tool in ("nm", "addr2line"):
        script(stand_ins / tool, "")
    script(stand_ins / "g++", f'[ ! -e "$STAND_INS/installed" ] || {{ echo 12; exit; }}\n{version or "exit 1"}')
    script(stand_ins / "id", "echo 0\n")
    script(stand_ins / "apt-get", APT)
    done = run("find_gxx.sh", stand_ins)
    assert done.returncode == 0
    assert "installing one with apt-get" in done.stderr
    assert "skip" not in done.stderr
    assert log(stand_ins)[-1].startswith("apt-get install")


def test_without_a_compiler_the_tests_skip_and_it_is_said(stand_ins: Path) -> None:
    script(stand_ins / "g++", "exit 1")
    done = run("find_gxx.sh", stand_ins)
    assert done.returncode == 0
    assert "will skip" in done.stderr
    assert "apt-get install g++" in done.stderr
