"""Generated files, whatever they claim of themselves: every column in every operation gives Spark's results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from tests.sweep.files import write_table
from tests.sweep.operations import Sessions, compare, sessions_of

pytestmark = pytest.mark.spark

QUICK, FILES = (1,), int(os.environ.get("GPUJOIN_TEST_FILES", "40"))
"""Tables of `make test`, by number, and how many the long sweep has; each is some 300 comparisons."""


@pytest.fixture(scope="module")
def sessions(spark_session: SparkSession) -> Iterator[Sessions]:
    with sessions_of(spark_session) as pair:
        yield pair


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in range(FILES)]
)
def test_every_column_of_generated_files_in_every_operation(
    sessions: Sessions, tmp_path: Path, seed: int, number: int, record_property: Any
) -> None:
    table = write_table(tmp_path, seed, number, sessions.native, columns=4 if number in QUICK else 8)
    report = compare(sessions, table, np.random.default_rng([seed, 43, number]))
    record_property("outcome", str(report))
    assert not report.problems, f"{len(report.problems)} of {report.compared}:\n" + "\n\n".join(report.problems[:9])
    assert report.compared or report.skipped
    assert report.here or report.reasons or report.skipped
