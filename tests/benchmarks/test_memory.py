"""The memory of whole queries: what a process and those that it started hold."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.memory.queries import held_bytes, main

_CHUNK = 64 << 20
_FAMILY = f"""
import subprocess, sys
held = b"x" * {_CHUNK}
code = f"held = b'y' * {_CHUNK}; print('ready', flush=True); input()"
child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
input()
child.communicate(b"end")
"""


def test_what_children_hold_counts() -> None:
    family = subprocess.Popen(
        [sys.executable, "-c", _FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    try:
        assert family.stdout is not None
        assert family.stdout.readline() == "ready\n"
        assert 2 * _CHUNK <= held_bytes(family.pid) < 3 * _CHUNK
    finally:
        family.communicate("end")
    assert held_bytes(family.pid) == 0


@pytest.mark.spark
@pytest.mark.slow
def test_both_ways_are_measured(tmp_path: Path) -> None:
    arguments = ["--sf", "0.01", "--queries", "6,14", "--out", str(tmp_path), "--name", "page"]
    assert main([*arguments, "--conf", "spark.gpujoin.backend=cpu"]) == 0
    page = (tmp_path / "page.md").read_text()
    most = re.search(r"most: Spark ([\d,]+) MiB, here ([\d,]+) MiB", page)
    assert most is not None
    assert all(int(number.replace(",", "")) > 200 for number in most.groups())
    assert len(re.findall(r"^\| (6|14|start) \|", page, re.MULTILINE)) == 3
