"""All of this folder is marked ``chaos``, counts its faults, and prints one summary at the end."""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gpujoin import disable, enable
from tests.chaos.outcomes import Outcomes
from tests.chaos.tables import EXCHANGED, Sessions, register, write_tables

HERE = Path(__file__).parent
_KEY = "chaos"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and item.path.name != "test_harness.py":
            item.add_marker(pytest.mark.chaos)


@pytest.fixture
def outcomes(request: pytest.FixtureRequest) -> Iterator[Outcomes]:
    """The count of a test's faults; the test fails if rows were wrong or lost, or an error unclear."""
    counted = Outcomes()
    yield counted
    request.node.user_properties.append((_KEY, dataclasses.asdict(counted)))
    if request.node.get_closest_marker("chaos") is not None:
        counted.check()


@pytest.fixture
def dice(seed: int, request: pytest.FixtureRequest) -> random.Random:
    """Random choices that depend on the run's seed and on the test."""
    return random.Random(f"{seed} {request.node.nodeid}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    total = Outcomes()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "teardown":
                for key, counted in report.user_properties:
                    if key == _KEY:
                        total.add(Outcomes(**counted))
    if total.tried:
        terminalreporter.section("faults")
        terminalreporter.line(f"seed {os.environ['GPUJOIN_TEST_SEED']}: {total}")


@pytest.fixture(scope="module")
def sessions(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    """An enabled and a native session over the same tables."""
    folder = tmp_path_factory.mktemp("chaos")
    here, native = spark_session.newSession(), spark_session.newSession()
    write_tables(native, str(folder))
    for session in (here, native):
        register(session, str(folder))
    for key, value in EXCHANGED.items():
        here.conf.set(key, value)
    enable(here)
    yield Sessions(here, native, folder)
    disable(here)
