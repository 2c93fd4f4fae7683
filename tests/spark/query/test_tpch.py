"""Every TPC-H query, planned over its Parquet files: which of its joins run here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from gpujoin.cli.demo.data import TABLES, tpch_directory
from gpujoin.spark.query.accelerate import Purpose, rewrite

answers = pytest.importorskip("gpujoin.cli.bench.answers")
pytest.importorskip("duckdb_extension_tpch", reason="no TPC-H queries: pip install gpujoin[bench]")

FORCED = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "raise"}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])]


@pytest.fixture(scope="module")
def texts(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, str]]:
    data = tpch_directory(0.01, tmp_path_factory.mktemp("tpch"))
    for table in TABLES:
        spark_session.read.parquet(str(data / f"{table}.parquet")).createOrReplaceTempView(table)
    with answers.connect(data) as connection:
        yield answers.queries(connection)
    for table in TABLES:
        spark_session.catalog.dropTempView(table)


def test_all_joins_of_all_queries_run_here(spark: SparkSession, texts: dict[int, str]) -> None:
    assert sorted(texts) == list(range(1, 23))
    for number, text in texts.items():
        found = rewrite(spark.sql(text), Purpose.EXPLAIN).explanation
        assert found.islands, number
        assert not found.reasons, f"query {number}: {found}"
        assert all(join.accelerated for join in found.joins), f"query {number}: {found}"
