"""The TPC-DS benchmark: its tables, its queries, what of them runs where, and a run of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

suite = pytest.importorskip("benchmarks.tpcds.suite")
pytest.importorskip("duckdb_extension_tpcds", reason="no TPC-DS queries: pip install gpujoin[bench]")

from benchmarks.queries.coverage import Operations, coverage  # noqa: E402
from benchmarks.tpcds.__main__ import main  # noqa: E402
from tests.spark.leaks import leaks  # noqa: E402

ROOT = Path(__file__).parents[2]
SCALE = 0.01
FORCED = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "silent"}


@pytest.fixture(scope="module")
def data() -> Path:
    folder: Path = suite.tpcds_directory(SCALE)
    return folder


@pytest.fixture(scope="module")
def texts(data: Path) -> dict[int, str]:
    with suite.SUITE.connect(data) as connection:
        queries: dict[int, str] = suite.SUITE.texts(connection)
    return queries


def test_tables_and_queries(data: Path, texts: dict[int, str]) -> None:
    assert {file.stem for file in data.iterdir()} == set(suite.TABLES)
    assert sorted(texts) == list(range(1, 100))
    assert "as `order count`" in texts[16].replace("AS", "as")
    assert not any('"' in text for text in texts.values())


@pytest.mark.parametrize("arguments", [["--queries", "0"], ["--queries", "100"], ["--repeats", "x"]])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "benchmarks.tpcds: error" in capsys.readouterr().err


@pytest.mark.extra
@pytest.mark.spark
@pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])
def test_operations_are_counted_with_those_of_subqueries(
    spark: SparkSession, data: Path, texts: dict[int, str]
) -> None:
    """Query 9 has five subqueries, three times each; query 44 has ranks, and a subquery twice."""
    suite.SUITE.register(spark, data)
    expected = {
        9: Operations(aggregations=5),
        44: Operations(joins=3, aggregations=3, windows=2),
        96: Operations(joins=3, aggregations=1),
    }
    for number, operations in expected.items():
        covered = coverage(spark.sql(texts[number]))
        assert covered.all == operations
        assert covered.here == operations, covered.explanation
        assert not covered.reasons


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])
def test_every_join_and_nine_of_ten_aggregations_run_here(
    spark: SparkSession, data: Path, texts: dict[int, str]
) -> None:
    suite.SUITE.register(spark, data)
    every, here = Operations(), Operations()
    for number, text in texts.items():
        covered = coverage(spark.sql(text))
        assert covered.here.joins == covered.all.joins, f"query {number}: {covered.explanation}"
        every, here = every + covered.all, here + covered.here
        assert leaks(str(covered.explanation)) == [], f"query {number}: {covered.explanation}"
    assert here.aggregations >= 0.9 * every.aggregations


@pytest.mark.spark
@pytest.mark.slow
def test_a_run_checks_times_and_writes(tmp_path: Path, data: Path) -> None:
    """In a process of its own, since it stops its Spark."""
    arguments = ["--sf", str(SCALE), "--queries", "16,52", "--repeats", "0", "--master", "local[1]"]
    command = [sys.executable, "-m", "benchmarks.tpcds", *arguments, "--data", str(data), "--out", str(tmp_path)]
    done = subprocess.run(
        [*command, "--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.gpujoin.backend=cpu"],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 answers equal" in done.stdout
    record = json.loads((tmp_path / "tpcds.json").read_text())
    assert record["benchmark"] == "tpcds"
    assert [query["number"] for query in record["queries"]] == [16, 52]
    assert all(query["all"] == query["here"] and not query["differences"] for query in record["queries"])
    assert "--conf spark.gpujoin.backend=cpu" in (tmp_path / "tpcds.md").read_text()
    assert "<svg" in (tmp_path / "tpcds.svg").read_text()
