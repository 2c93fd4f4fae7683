"""Generated queries with windows: rows equal to Spark's, in one task, in several, and where memory is short."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from pyspark.sql import SparkSession

from gpujoin import FallbackError
from gpujoin.spark.query.accelerate import rewrite
from gpujoin.testing import assert_same_rows
from tests.spark.query.generated_windows import NUMBERED, WindowGenerator, write_numbered_table
from tests.spark.query.queries import EXCHANGED, FORCED

pytestmark = pytest.mark.spark

QUICK, ALL = 2, 300


@pytest.fixture(scope="module")
def generated(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[None]:
    write_numbered_table(spark_session, tmp_path_factory.mktemp("windows"), np.random.default_rng(seed))
    yield
    for name in (NUMBERED, "t0", "t2"):
        spark_session.catalog.dropTempView(name)


def numbers() -> list[object]:
    quick: list[object] = list(range(QUICK))
    return quick + [pytest.param(n, marks=pytest.mark.slow) for n in range(QUICK, ALL)]


@pytest.mark.parametrize("number", numbers())
def test_generated_windows(generated: None, spark: SparkSession, seed: int, number: int) -> None:
    settings = (EXCHANGED if number % 3 == 0 else FORCED) | {"spark.sql.ansi.enabled": str(number % 2 == 0).lower()}
    if number % 4 == 0:
        settings |= {"spark.gpujoin.memoryBudget": "100000"}
    for name, value in settings.items():
        spark.conf.set(name, value)
    text = WindowGenerator(np.random.default_rng([seed, number])).query()
    frame = spark.sql(text)
    try:
        rewritten = rewrite(frame)
    except FallbackError as problem:
        pytest.skip(f"left to Spark: {problem}")
    try:
        expected = frame.toArrow()
    except Exception as problem:  # noqa: BLE001 - any error of the query itself
        with pytest.raises(Exception):  # noqa: B017, PT011 - its class depends on where it is met
            rewritten.frame.toArrow()
        pytest.skip(f"fails in Spark too: {type(problem).__name__}: {text}")
    assert_same_rows(rewritten.frame.toArrow(), expected, allow_empty=True, check_nullability=True, context=text)
