"""Generated queries of enabled sessions over nasty tables: rows equal to Spark's own, whatever runs where."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gpujoin import disable, enable
from gpujoin.plan import runtime_filters
from gpujoin.spark.query.accelerate import PlannedQuery, rewrite
from gpujoin.testing import Zeros, assert_same_rows
from tests.spark.query.everyday import ZONES, everyday_query
from tests.spark.query.generated import NASTY_TABLES, NastyGenerator, write_nasty_tables

pytestmark = pytest.mark.spark

QUICK, QUERIES = 2, int(os.environ.get("GPUJOIN_TEST_QUERIES", "120"))
EVERYDAY = int(os.environ.get("GPUJOIN_TEST_EVERYDAY", "120"))
"""Queries of `make test`, and of the two long sweeps: set the latter for longer ones."""
KEYS_FIRST = QUERIES
WAYS = {
    "one task": {},
    "exchanged": {
        "spark.gpujoin.scan.oneTaskBytes": "1", "spark.gpujoin.scan.taskBytes": "1",
        "spark.gpujoin.broadcastThreshold": "1", "spark.gpujoin.exchange.partitions": "3",
    },
    "spilled": {"spark.gpujoin.memoryBudget": "20k"},
    "several tasks": {"spark.gpujoin.scan.oneTaskBytes": "1", "spark.gpujoin.scan.taskBytes": "32k"},
}  # fmt: skip
KEYS_FIRST_SETTINGS = {
    "spark.gpujoin.scan.oneTaskBytes": "1", "spark.gpujoin.scan.taskBytes": "1",
    "spark.gpujoin.exchange.partitions": "3", "spark.gpujoin.strategy": "shuffle",
}  # fmt: skip


@pytest.fixture(scope="module")
def sessions(
    spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> Iterator[tuple[SparkSession, SparkSession]]:
    """A session that is enabled, and one that is not, with views of the same files."""
    folder = tmp_path_factory.mktemp("nasty")
    here, native = spark_session.newSession(), spark_session.newSession()
    write_nasty_tables(native, folder, np.random.default_rng(seed))
    for session in (here, native):
        for name in NASTY_TABLES:
            session.read.parquet(str(folder / name)).createOrReplaceTempView(name)
    # Spark's own pushdown misses rows of NaN, and of constants that are not valid UTF-8.
    for session in (here, native):
        session.conf.set("spark.sql.parquet.filterPushdown", "false")
    here.conf.set("spark.gpujoin.backend", "cpu")
    here.conf.set("spark.gpujoin.fallback", "silent")
    enable(here)
    yield here, native
    disable(here)


BIGINT_SUM = re.compile(r"\bsum\((distinct )?(\w+)\.l\)")
"""A sum of a column of 64-bit integers, in a generated query."""


def outcome(session: SparkSession, text: str) -> tuple[pa.Table | None, Exception | None]:
    """The rows of a query, or the error it ends with."""
    try:
        return session.sql(text).toArrow(), None
    except Exception as problem:  # noqa: BLE001 - any error of the query itself
        return None, problem


def numbers(most: int) -> list[Any]:
    return [*range(QUICK), *(pytest.param(n, marks=pytest.mark.slow) for n in range(QUICK, most))]


@pytest.mark.parametrize("number", numbers(QUERIES))
def test_generated_queries_of_nasty_tables(
    sessions: tuple[SparkSession, SparkSession],
    planned: list[PlannedQuery],
    seed: int,
    number: int,
    record_property: Any,
) -> None:
    text = NastyGenerator(np.random.default_rng([seed, number])).query()
    record_property("outcome", compared(sessions, planned, text, seed, number, ZONES[0]))


@pytest.mark.parametrize("number", numbers(EVERYDAY))
def test_generated_queries_of_everyday_functions(
    sessions: tuple[SparkSession, SparkSession],
    planned: list[PlannedQuery],
    seed: int,
    number: int,
    record_property: Any,
) -> None:
    text = everyday_query(seed, number)
    record_property("outcome", compared(sessions, planned, text, seed, number, ZONES[number % len(ZONES)]))


@pytest.mark.parametrize("number", numbers(KEYS_FIRST))
def test_generated_queries_whose_rows_are_dropped_by_keys_before_they_are_exchanged(
    sessions: tuple[SparkSession, SparkSession],
    planned: list[PlannedQuery],
    monkeypatch: pytest.MonkeyPatch,
    cheap_keys: None,
    seed: int,
    number: int,
    record_property: Any,
) -> None:
    monkeypatch.setattr(runtime_filters, "SELECTIVE", 1.0)
    text = NastyGenerator(np.random.default_rng([seed, 7, number])).query()
    result = compared(sessions, planned, text, seed, number, ZONES[0], "keys first")
    dropped = any("drop rows before" in str(plan.explanation) for plan in planned)
    record_property("outcome", f"{result}, rows dropped by keys" if dropped else result)


def compared(
    sessions: tuple[SparkSession, SparkSession],
    planned: list[PlannedQuery],
    text: str,
    seed: int,
    number: int,
    zone: str,
    way: str | None = None,
) -> str:
    """Run a query both ways and compare the rows; tells what became of it. Its number chooses other settings."""
    here, native = sessions
    way = way or list(WAYS)[number // 4 % len(WAYS)]
    context = f"GPUJOIN_TEST_SEED={seed} query {number}, {way}, {zone}: {text}"
    for session in sessions:
        session.conf.set("spark.sql.ansi.enabled", str(number % 2 == 0).lower())
        session.conf.set("spark.sql.adaptive.enabled", str(number // 2 % 2 == 0).lower())
        session.conf.set("spark.sql.session.timeZone", zone)
    for settings in (*WAYS.values(), KEYS_FIRST_SETTINGS):
        for key in settings:
            here.conf.unset(key)
    for key, value in WAYS.get(way, KEYS_FIRST_SETTINGS).items():
        here.conf.set(key, value)
    expected, error = outcome(native, text)
    actual, error_here = outcome(here, text)
    # The sign of a zero that is a least or greatest value depends on the order of rows, in Spark too.
    zeros = Zeros.SAME if "min(" in text or "max(" in text else Zeros.DISTINCT
    context += "".join(f"\n{plan.explanation}" for plan in planned)
    if error is not None and error_here is not None:
        pytest.skip(f"fails in Spark too: {type(error).__name__}: {text}")
    assert error_here is None, f"{context}: only here: {type(error_here).__name__}: {error_here}"
    if error is not None:
        # Whether a sum overflows on the way depends on the order of rows; the sum itself must be one of 64 bits.
        exact = BIGINT_SUM.sub(r"sum(\1cast(\2.l as decimal(38, 0)))", text)
        assert "ARITHMETIC_OVERFLOW" in str(error), f"{context}: only in Spark: {error}"
        assert exact != text, f"{context}: only in Spark: {error}"
        expected = native.sql(exact).toArrow()
        assert_same_rows(actual, expected, allow_empty=True, check_types=False, zeros=zeros, context=context)
        return "overflows on the way in Spark"
    assert_same_rows(actual, expected, allow_empty=True, check_nullability=True, zeros=zeros, context=context)
    return "accelerated" if any(plan.changed for plan in planned) else "left to Spark"


def test_most_queries_are_accelerated(sessions: tuple[SparkSession, SparkSession], seed: int) -> None:
    here, _ = sessions
    frames = [here.sql(NastyGenerator(np.random.default_rng([seed, n])).query()) for n in range(8)]
    assert sum(rewrite(frame).changed for frame in frames) >= 4


def test_most_queries_of_everyday_functions_are_accelerated(
    sessions: tuple[SparkSession, SparkSession], seed: int
) -> None:
    here, _ = sessions
    changed = 0
    for number in range(10):
        here.conf.set("spark.sql.session.timeZone", ZONES[number % len(ZONES)])
        changed += rewrite(here.sql(everyday_query(seed, number))).changed
    assert changed >= 5
