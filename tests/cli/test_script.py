"""``python -m gpujoin app.py``: the program sees what it would see without."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

PROGRAM = """
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.gpujoin.strategy", "broadcast").config("spark.log.level", "ERROR")
    .config("spark.sql.shuffle.partitions", "1").getOrCreate())
spark.range(6).createOrReplaceTempView("a")
frame = spark.sql("select a.id, count(*) n from a join range(2, 9) b on a.id = b.id group by a.id order by a.id")
frame.show()
import gpujoin
print(gpujoin.explain(frame))
spark.stop()
"""
SHOWN = """\
+---+---+
| id|  n|
+---+---+
|  2|  1|
|  3|  1|
|  4|  1|
|  5|  1|
+---+---+

#  ~rows  ~size      ~s  plan (~ predicted)
1      """
LOOKING = """
import sys, __main__
print(sys.argv, __name__, __main__.__file__ == __file__, sys.path[0])
sys.exit(3)
"""
FAILING = """
def fail():
    raise ValueError("a reason")


fail()
"""


def run(*command: str, cwd: Path, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {
        **(os.environ if environment is None else environment), "PYTHONPATH": str(Path(__file__).parents[2]),
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def unchosen(folder: Path) -> dict[str, str]:
    """An environment in which nobody chose the workers' Python, and the first on the path has no libraries."""
    bare = folder / "python3"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if key != "PYSPARK_PYTHON"}
    return {**kept, "PATH": f"{folder}{os.pathsep}{kept['PATH']}"}


@pytest.mark.spark
def test_an_unchanged_program_is_accelerated(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    here = run("-m", "gpujoin", "app.py", cwd=tmp_path, environment=unchosen(tmp_path))
    assert here.returncode == 0, here.stderr
    assert here.stdout.startswith(SHOWN), here.stdout


def test_a_program_sees_what_it_would_see_without(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(LOOKING)
    plain = run("app.py", "x", cwd=tmp_path)
    here = run("-m", "gpujoin", "app.py", "x", cwd=tmp_path)
    assert "['app.py', 'x'] __main__ True" in plain.stdout
    assert here.stdout == plain.stdout
    assert plain.returncode == here.returncode == 3


@pytest.mark.program
def test_an_error_is_told_as_python_tells_it(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(FAILING)
    plain = run(str(tmp_path / "app.py"), cwd=tmp_path)
    here = run("-m", "gpujoin", str(tmp_path / "app.py"), cwd=tmp_path)
    assert here.stderr == plain.stderr
    assert "ValueError: a reason" in here.stderr
    assert here.returncode == plain.returncode == 1


@pytest.mark.program
def test_a_program_that_does_not_compile(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("x = = 1\n")
    plain = run("app.py", cwd=tmp_path)
    here = run("-m", "gpujoin", "app.py", cwd=tmp_path)
    assert here.returncode == plain.returncode == 1
    assert here.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1]


@pytest.mark.program
def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    plain = run("none.py", cwd=tmp_path)
    here = run("-m", "gpujoin", "none.py", cwd=tmp_path)
    assert here.stderr == plain.stderr
    assert here.returncode == plain.returncode == 2


def test_subcommands_are_still_there(tmp_path: Path) -> None:
    found = run("-m", "gpujoin", "version", cwd=tmp_path)
    assert found.returncode == 0
    assert found.stdout.strip()
