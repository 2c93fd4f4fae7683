"""Disks that are full, broken or read-only, at every call that writes or reads what was spilled."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.diskfaults import CODES
from tests.chaos.outcomes import Outcomes
from tests.chaos.tables import QUERIES, Sessions
from tests.chaos.works import WORKS
from tests.compiling import shared_library
from tests.disks import Mount

ROOT = Path(__file__).parents[2]
FAULTS = 150
FAULTS_OF_QUERIES = 14
"""Each takes a new process that forks workers."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calls of the C library that fail when told to."""
    return compiled(tmp_path_factory.mktemp("library"))


def compiled(folder: Path) -> Path:
    return shared_library(Path(__file__).with_name("disk.c"), folder / "disk.so")


def inject(library: Path, folder: Path, name: str, seed: int, faults: int) -> Outcomes:
    """Count what became of faults in one kind of work."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.diskfaults", str(seed), str(faults), str(folder), name],
        env={**os.environ, "LD_PRELOAD": str(library)}, cwd=ROOT, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{name}, seed {seed}: {done.stdout[-500:]}{done.stderr[-3000:]}"
    return Outcomes(**json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", WORKS)
def test_calls_that_fail(name: str, library: Path, tmp_path: Path, seed: int, outcomes: Outcomes) -> None:
    outcomes.add(inject(library, tmp_path, name, seed, FAULTS))


@pytest.mark.spark
@pytest.mark.parametrize("disk", ["size=4k", "size=200k", "ro,size=1m"])
def test_queries_spill_to_a_disk_that_takes_little_or_nothing(
    sessions: Sessions, tmpfs: Mount, disk: str, outcomes: Outcomes
) -> None:
    place, here = tmpfs(disk), sessions.here
    here.conf.set("spark.gpujoin.spillDir", str(place))
    here.conf.set("spark.gpujoin.memoryBudget", "50k")
    try:
        for name, text in QUERIES.items():
            expected = sessions.native.sql(text).toArrow()
            outcomes.judge_query(here, text, expected, f"{name} spilling to {disk}")
        assert not list(place.iterdir())
    finally:
        here.conf.unset("spark.gpujoin.spillDir")
        here.conf.unset("spark.gpujoin.memoryBudget")


@pytest.mark.spark
def test_queries_spill_to_a_disk_that_breaks(
    sessions: Sessions, library: Path, tmp_path: Path, dice: random.Random, outcomes: Outcomes
) -> None:
    here, environment = sessions.here, sessions.here.sparkContext.environment
    place = tmp_path / "spill"
    place.mkdir(mode=0o700)
    here.conf.set("spark.gpujoin.spillDir", str(place))
    here.conf.set("spark.gpujoin.memoryBudget", "50k")
    expected = {name: sessions.native.sql(text).toArrow() for name, text in QUERIES.items()}
    names = [name for name in QUERIES if "join" in name or "groups" in name]
    reached = 0
    try:
        for number in range(FAULTS_OF_QUERIES):
            name, told = dice.choice(names), dice.choice(list(CODES))
            code, operations = CODES[told]
            at, lasting, log = dice.choice([1, 1, 2, 4]), dice.random() < 0.5, tmp_path / f"log{number}"
            environment["LD_PRELOAD"] = str(library)
            environment["DISK_FAULT"] = f"{operations} {code} {at} {int(lasting)} {log} {place}"
            context = f"{name}: {told} at call {at} of each worker{' and later' * lasting}"
            outcomes.judge_query(here, QUERIES[name], expected[name], context)
            reached += log.exists()
        assert reached >= FAULTS_OF_QUERIES // 3, f"only {reached} faults were reached"
        assert not list(place.iterdir())
    finally:
        environment.pop("LD_PRELOAD", None)
        environment.pop("DISK_FAULT", None)
        here.conf.unset("spark.gpujoin.spillDir")
        here.conf.unset("spark.gpujoin.memoryBudget")
