"""Islands of TPC-H ask no more of a device than is written down, under the stand-ins."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.cudf.counters import COMMITTED, QUERIES
from tests.kernels.conftest import emulator_cache
from tests.kernels.emulator.device import CACHE_VARIABLE

__all__ = ["emulator_cache"]

ROOT = Path(__file__).parents[3]
WRITE = "python -m tests.backends.cudf.counters --write"
FALLEN = 0.9
"""Share of a count below which the one that is written down no longer holds anything."""


@pytest.mark.usefixtures("emulator_cache")
def test_islands_ask_no_more_of_a_device_than_before(emulator_cache: Path) -> None:
    for library in ("pylibcudf", "cupy", "rmm"):
        pytest.importorskip(library, reason='no GPU libraries: pip install ".[cu13]"')
    if not Path(sys.executable).with_name("tpchgen-cli").is_file() and shutil.which("tpchgen-cli") is None:
        pytest.skip('no tpchgen-cli: pip install "gpujoin[bench]"')
    environment = {**os.environ, "PYTHONPATH": str(ROOT), CACHE_VARIABLE: str(emulator_cache)}
    command = [sys.executable, "-m", "tests.backends.cudf.counters"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    counts, committed = json.loads(done.stdout), json.loads(COMMITTED.read_text())
    assert counts.keys() == committed.keys() == set(QUERIES)
    risen = {
        (query, what): (before, counts[query][what])
        for query, before_by_name in committed.items()
        for what, before in before_by_name.items()
        if counts[query][what] > before
    }
    assert not risen, f"counts have risen, from and to: {risen}"
    fallen = {
        (query, what): (before, counts[query][what])
        for query, before_by_name in committed.items()
        for what, before in before_by_name.items()
        if counts[query][what] < FALLEN * before
    }
    assert not fallen, f"counts have fallen: write them down with `{WRITE}`: {fallen}"
