"""The TPC-H benchmark: its queries, its arithmetic, and a run of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.data import tpch_directory
from benchmarks.queries.coverage import Operations
from benchmarks.queries.measure import Measured
from benchmarks.queries.report import totals
from benchmarks.queries.sources import Source, read_tables
from benchmarks.tpch import answers
from benchmarks.tpch.__main__ import main

ROOT = Path(__file__).parents[2]


def test_queries_and_published_answers() -> None:
    with answers.SUITE.connect(tpch_directory(0.01)) as connection:
        texts = answers.SUITE.texts(connection)
        assert sorted(texts) == list(range(1, 23))
        assert [number for number in texts if not answers.published(connection, number, 1.0)] == [13]
        assert answers.published(connection, 1, 0.01) is None
        assert connection.execute(texts[6]).fetchall()


def test_columns_of_random_text_are_left_out() -> None:
    assert answers.without_texts([(1, "a", 2, "b")], ["k", "s_address", "v", "s_comment"]) == [[1, 2]]


def test_totals() -> None:
    faster = Measured(
        1,
        (4.0, 2.0, 3.0),
        (1.0, 1.5, 2.0),
        (6.0,),
        (2.0,),
        (0.1, 0.2, 0.1),
        False,
        Operations(2, 1),
        Operations(1),
        "",
        (),
        3,
    )
    slower = Measured(2, (1.0,), (2.0,), (1.0,), (1.0,), (0.1,), True, Operations(), Operations(), "", (), 3)
    assert faster.medians == (3.0, 1.5)
    assert totals([faster, slower]) == {
        "spark_seconds": 4.0,
        "accelerated_seconds": 3.5,
        "ratio": 4.0 / 3.5,
        "geometric_mean": 1.0,
        "least": 0.5,
        "processor_ratio": 7.0 / 3.0,
        "least_processor": 1.0,
    }


@pytest.mark.parametrize("arguments", [["--queries", "0"], ["--queries", "a"], ["--repeats", "-1"], ["tpcc"]])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "benchmarks.tpch: error" in capsys.readouterr().err


def test_tables_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path)]) == 1
    assert "lineitem.parquet" in capsys.readouterr().err


@pytest.mark.spark
def test_every_source_has_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    names = ("nation", "region")
    for name in names:
        shutil.copy(tpch_directory(0.01) / f"{name}.parquet", tmp_path)
    expected = {
        name: sorted(frame.collect()) for name, frame in read_tables(spark, tmp_path, names, Source.PARQUET).items()
    }
    for source in (Source.CSV, Source.CACHED, Source.V2, Source.RDD):
        frames = read_tables(spark, tmp_path, names, source)
        assert {name: sorted(frame.collect()) for name, frame in frames.items()} == expected, source
        plans = [frame._jdf.queryExecution().optimizedPlan() for frame in frames.values()]
        is_read_here = [
            plan.getClass().getSimpleName() == "LogicalRelation" and "parquet" in plan.toString() for plan in plans
        ]
        assert set(is_read_here) == {source is Source.PARQUET}, source
    spark.catalog.clearCache()


@pytest.mark.spark
@pytest.mark.slow
def test_a_run_checks_times_and_writes(tmp_path: Path) -> None:
    """Query 12 has a join; query 6 has none. In a process of its own, since it stops its Spark."""
    out = tmp_path / "results"
    arguments = [
        "--sf",
        "0.01",
        "--queries",
        "6,12",
        "--repeats",
        "1",
        "--master",
        "local[1]",
        "--out",
        str(out),
        "--name",
        "few",
        "--data",
        str(tpch_directory(0.01)),
    ]
    command = [sys.executable, "-m", "benchmarks.tpch", *arguments]
    done = subprocess.run(
        [*command, "--conf", "spark.sql.shuffle.partitions=2"],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 answers equal" in done.stdout
    record = json.loads((out / "few.json").read_text())
    assert [query["number"] for query in record["queries"]] == [6, 12]
    assert all(query["spark"] and query["accelerated"] and not query["differences"] for query in record["queries"])
    assert record["queries"][1]["all"] == {"joins": 1, "aggregations": 1, "windows": 0}
    assert record["settings"] == {"spark.sql.shuffle.partitions": "2"}
    assert record["machine"]["versions"]["pyspark"]
    assert (out / "few.png").read_bytes().startswith(b"\x89PNG")
    assert "Query 12" in (out / "few.md").read_text()
    assert "<svg" in (out / "few.svg").read_text()
