"""Generated queries: rows equal to Spark's, whatever runs where."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from gpujoin import FallbackError
from gpujoin.model.reasons import ReasonKind
from gpujoin.spark.query.accelerate import Accelerated, rewrite
from gpujoin.testing import assert_same_rows
from tests.spark.query.generated import TABLES, Generator, write_tables

pytestmark = pytest.mark.spark

QUICK, ALL = 3, 320


@pytest.fixture(scope="module")
def generated(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[None]:
    write_tables(spark_session, tmp_path_factory.mktemp("generated"), np.random.default_rng(seed))
    yield
    for name in TABLES:
        spark_session.catalog.dropTempView(name)


def numbers() -> list[object]:
    quick: list[object] = list(range(QUICK))
    return quick + [pytest.param(n, marks=pytest.mark.slow) for n in range(QUICK, ALL)]


@pytest.mark.parametrize("number", numbers())
def test_generated_queries(generated: None, spark: SparkSession, seed: int, number: int) -> None:
    spark.conf.set("spark.sql.ansi.enabled", str(number % 2 == 0).lower())
    spark.conf.set("spark.gpujoin.backend", "cpu")
    spark.conf.set("spark.gpujoin.fallback", "silent")
    text = Generator(np.random.default_rng([seed, number])).query()
    frame = spark.sql(text)
    try:
        expected = frame.toArrow()
    except Exception as problem:  # noqa: BLE001 - any error of the query itself
        with pytest.raises(Exception):  # noqa: B017, PT011 - its class depends on where it is met
            rewrite(frame).frame.toArrow()
        pytest.skip(f"fails in Spark too: {type(problem).__name__}: {text}")
    found = _equal(frame, text, expected)
    here = found.changed and not found.explanation.reasons
    spark.conf.set("spark.gpujoin.fallback", "raise")
    if here and all(join.accelerated for join in found.explanation.joins):
        assert _equal(frame, text, expected).changed
        return
    reasons = [*found.explanation.reasons, *(r for join in found.explanation.joins for r in join.reasons)]
    if any(reason.kind not in (ReasonKind.CONFIGURED, ReasonKind.SLOWER) for reason in reasons):
        with pytest.raises(FallbackError):
            rewrite(frame)


def _equal(frame: DataFrame, text: str, expected: pa.Table) -> Accelerated:
    found = rewrite(frame)
    assert found.frame.schema == frame.schema, text
    try:
        assert_same_rows(found.frame.toArrow(), expected, allow_empty=True, check_nullability=True)
    except Exception as problem:
        raise AssertionError(f"{text}\n{found.explanation}") from problem
    return found
