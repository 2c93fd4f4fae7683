from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from gpujoin import _version, cli
from gpujoin.cli import doctor
from gpujoin.errors import ConfigurationError


def test_version_in_all_its_spellings(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out == f"{_version.__version__}\n"
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"gpujoin {_version.__version__}\n"
    done = subprocess.run([sys.executable, "-m", "gpujoin", "version"], capture_output=True, text=True)
    assert done.stdout == f"{_version.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "usage"),
    [
        (["no-such-command"], "usage: gpujoin [-h]"),
        (["--no-such-option"], "usage: gpujoin [-h]"),
        (["doctor", "--no-such-option"], "usage: gpujoin doctor [-h]"),
        (["demo", "--scale", "1"], "usage: gpujoin demo [-h]"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_status_2_with_usage(
    arguments: list[str], usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith(usage)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("docto", "unknown command 'docto'. Did you mean 'doctor'?"),
        ("xyz", "Known: 'advise', 'connect-server', 'demo'"),
    ],
)
def test_an_unknown_command_has_the_nearest_ones_named(
    command: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main([command])
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "say which queries of a program would run in gpujoin" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["demo", "doctor", "version"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    assert "usage: gpujoin" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("problem", "status", "said"),
    [
        (
            ConfigurationError("scale is -1. Give a positive one."),
            1,
            "gpujoin: scale is -1. Give a positive one.\n",
        ),
        (FileNotFoundError(2, "No such file", "/x"), 1, "gpujoin: [Errno 2] No such file: '/x'\n"),
        (KeyboardInterrupt(), 130, "gpujoin: interrupted\n"),
    ],
)
def test_problems_become_one_line_and_a_status(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    problem: BaseException,
    status: int,
    said: str,
) -> None:
    def run(arguments: argparse.Namespace) -> int:
        raise problem

    monkeypatch.setattr(doctor, "run", run)
    assert cli.main(["doctor"]) == status
    assert capsys.readouterr().err == said


def test_a_closed_pipe_is_no_traceback() -> None:
    script = f"(sleep 0.2; exec {sys.executable} -u -m gpujoin version) | true"
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True)
    assert done.stderr == ""
