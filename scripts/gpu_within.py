#!/usr/bin/env python3
"""Run pytest for some seconds, then stop after the test at hand: for tests under tools that slow them down.

Usage: ``python scripts/gpu_within.py SECONDS [pytest arguments ...]``. Tests come in turns, one of each function before
the second of any, so that what was reached is some of everything. The last line says how many of them ran. Exit
status: 0 if those passed, whether or not there was time for all.
"""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

import pytest


class Within:
    """Stops a run in time.

    Parameters
    ----------
    seconds : float
        After which no test is begun.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.collected = 0
        self.ran = 0
        self.failed = 0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the tests in turns, once those left out are gone."""
        functions: dict[tuple[str, str], list[pytest.Item]] = {}
        for item in items:
            functions.setdefault((str(item.path), getattr(item, "originalname", item.name)), []).append(item)
        turns = itertools.zip_longest(*functions.values())
        items[:] = [item for turn in turns for item in turn if item is not None]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count what is to run."""
        self.collected = len(session.items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count what ran."""
        self.failed += report.failed
        self.ran += report.when == "call"

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Stop after a test that ends late."""
        yield
        if time.monotonic() > self._end:
            item.session.shouldstop = "the time is over"


def main(arguments: list[str]) -> int:
    """Run; see the head of this file."""
    within = Within(float(arguments[0]))
    status = int(pytest.main(arguments[1:], plugins=[within]))
    print(f"{within.ran} of {within.collected} tests ran in time")
    stopped = status == pytest.ExitCode.INTERRUPTED and not within.failed and within.ran
    return 0 if stopped else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
