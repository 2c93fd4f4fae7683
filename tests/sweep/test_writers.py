"""Files of many writers, old and new: every column in every operation gives Spark's results, or is left to Spark.

`scripts/make_parquet_samples.py` has written them. `make test` reads them without Spark, by
``tests/engine/pipeline/test_samples.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from tests.sweep.operations import Sessions, Table, compare, sessions_of

pytestmark = pytest.mark.spark

SAMPLES = Path(__file__).parents[1] / "data" / "parquet"
NAMES = sorted(path.stem for path in SAMPLES.glob("*.parquet"))
MISREAD = ("parquet-mr-", "delta-none")
"""Uncompressed DELTA_BYTE_ARRAY pages of parquet-mr, which Spark's vectorized reader reads four bytes too early."""
REFUSED = {"encrypted-column", "encrypted-footer", "parquet-mr-1.6.0-impala-v2", "parquet-mr-1.6.0-converted-v2"}
"""Files of which Spark reads nothing: for want of keys, or as pages of an early second version."""


@pytest.fixture(scope="module")
def sessions(spark_session: SparkSession) -> Iterator[Sessions]:
    with sessions_of(spark_session) as pair:
        yield pair


@pytest.mark.extra
@pytest.mark.parametrize("name", NAMES)
def test_every_column_of_a_writer_in_every_operation(
    sessions: Sessions, name: str, seed: int, record_property: Any
) -> None:
    misread = any(part in name for part in MISREAD)
    table = Table(str(SAMPLES / f"{name}.parquet"), misread=misread)
    report = compare(sessions, table, np.random.default_rng([seed, NAMES.index(name)]))
    record_property("outcome", str(report))
    assert not report.problems, f"{len(report.problems)} of {report.compared}:\n" + "\n\n".join(report.problems[:9])
    assert bool(report.compared) is (name not in REFUSED), report.skipped
    assert report.here or report.reasons or name in REFUSED
