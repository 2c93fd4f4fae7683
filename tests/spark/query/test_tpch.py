"""Every TPC-H query, planned over its Parquet files: which of its joins run here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from benchmarks.data import TABLES, tpch_directory
from gpujoin.spark.query.accelerate import Purpose, rewrite
from gpujoin.testing import assert_same_rows
from tests.spark.leaks import leaks

answers = pytest.importorskip("benchmarks.tpch.answers")
pytest.importorskip("duckdb_extension_tpch", reason="no TPC-H queries: pip install gpujoin[bench]")

FORCED = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "raise"}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])]


@pytest.fixture(scope="module")
def texts(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, str]]:
    data = tpch_directory(0.01, tmp_path_factory.mktemp("tpch"))
    answers.SUITE.register(spark_session, data)
    with answers.SUITE.connect(data) as connection:
        yield answers.SUITE.texts(connection)
    for table in TABLES:
        spark_session.catalog.dropTempView(table)


def test_all_joins_of_all_queries_run_here(spark: SparkSession, texts: dict[int, str]) -> None:
    assert sorted(texts) == list(range(1, 23))
    for number, text in texts.items():
        found = rewrite(spark.sql(text), Purpose.EXPLAIN).explanation
        assert found.islands, number
        assert not found.reasons, f"query {number}: {found}"
        assert all(join.accelerated for join in found.joins), f"query {number}: {found}"
        assert leaks(str(found)) == [], f"query {number}: {found}"


EXCHANGED = {
    "spark.gpujoin.scan.oneTaskBytes": "1",
    "spark.gpujoin.scan.taskBytes": "1m",
    "spark.gpujoin.broadcastThreshold": "1",
    "spark.gpujoin.exchange.partitions": "3",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}
WAYS = {
    "not adaptive": {"spark.sql.adaptive.enabled": "false"},
    "not ansi": {"spark.sql.ansi.enabled": "false"},
    "exchanged": EXCHANGED,
    "exchanged, not adaptive": {**EXCHANGED, "spark.sql.adaptive.enabled": "false"},
}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 23))
@pytest.mark.parametrize("way", WAYS)
def test_answers_are_sparks(spark: SparkSession, texts: dict[int, str], way: str, number: int) -> None:
    for key, value in WAYS[way].items():
        spark.conf.set(key, value)
    frame = spark.sql(texts[number])
    found = rewrite(frame)
    assert found.changed
    assert_same_rows(found.frame.toArrow(), frame.toArrow(), allow_empty=True, check_nullability=True)
    if "exchanged" in way and number not in (1, 6, 16):  # nothing to join, or NOT IN
        assert "exchange by" in str(found.explanation)
