#!/usr/bin/env python3
"""Run pytest for some seconds; tests for which no time is left are skipped, so that every report is written.

Usage: ``python scripts/gpu_within.py SECONDS [pytest arguments ...]``. Tests come in turns, one of each function before
the second of any, so that what was reached is some of everything. With pytest-xdist the time holds for all workers. The
last line says how many tests ran. Exit status: 0 if at least one ran and those passed, whether or not there was time
for all.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path

import pytest

END_VARIABLE = "GPUJOIN_TESTS_END"
"""Environment variable with the time, in seconds since 1970, after which no test is begun."""

NO_TIME = "no time was left"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests in turns, once those left out are gone."""
    functions: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        functions.setdefault((str(item.path), getattr(item, "originalname", item.name)), []).append(item)
    turns = itertools.zip_longest(*functions.values())
    items[:] = [item for turn in turns for item in turn if item is not None]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out a test that would begin too late."""
    del item
    if time.time() > float(os.environ[END_VARIABLE]):
        pytest.skip(NO_TIME)


class Counts:
    """Counts the tests of a run, those of all workers."""

    def __init__(self) -> None:
        self.collected = 0
        self.ran = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test at its first report, and once more if it ran."""
        self.collected += report.when == "setup"
        self.ran += report.when == "call" and not report.skipped


def main(arguments: list[str]) -> int:
    """Run; see the head of this file."""
    seconds, *rest = arguments
    os.environ[END_VARIABLE] = str(time.time() + float(seconds))
    # Workers of pytest-xdist take plugins by name, from where this process does.
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    counts = Counts()
    status = int(pytest.main(["-p", "gpu_within", *rest], plugins=[counts]))
    print(f"{counts.ran} of {counts.collected} tests ran in time")
    return status or (0 if counts.ran else 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
