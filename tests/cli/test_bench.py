from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpujoin import cli
from gpujoin.cli.bench import answers
from gpujoin.cli.bench.measured import Measured
from gpujoin.cli.bench.report import totals
from gpujoin.cli.demo.data import tpch_directory

D = Decimal
ROWS = [
    ("a", 1, D("2.50"), dt.date(1998, 9, 2)),
    ("b", None, None, None),
    ("a", 1, D("2.50"), dt.date(1998, 9, 2)),
]


@pytest.mark.parametrize(
    ("ours", "other"),
    [
        (ROWS, ROWS[::-1]),
        ([("a", D("2.5"))], [("a", D("2.500"))]),
        ([("a", D("2.333333"))], [("a", 2.3333333333)]),
        ([(1e12,)], [(1e12 * (1 + 1e-9),)]),
        ([(D("3.14"), 7, dt.date(1998, 9, 2), "x")], [["3.14", "7", "1998-09-02", "x"]]),
        ([], []),
    ],
    ids=["order", "scale", "average", "large", "text", "empty"],
)
def test_equal_answers(ours: list[Any], other: list[Any]) -> None:
    assert answers.difference(ours, other, answers.TOLERANCE) is None
    assert answers.difference(ours, [list(row) for row in other], answers.TOLERANCE) is None


@pytest.mark.parametrize(
    ("ours", "other", "said"),
    [
        (ROWS, ROWS[:2], "3 rows instead of 2"),
        ([ROWS[0], ROWS[0], ROWS[1]], [ROWS[0], ROWS[1], ROWS[1]], "instead of"),
        ([(1, 2)], [(1,)], "2 columns instead of 1"),
        ([("a", D("2.50"))], [("a", D("2.51"))], "2.51"),
        ([("a", 1)], [("a", None)], "None"),
        ([("a", D("1"))], [("a", 1.00001)], "1.00001"),
        ([(None,)], [(0.0,)], "0.0"),
        ([(1, "x"), (2, "y")], [(1, "y"), (2, "x")], "instead of"),
        ([(7,)], [["8"]], "8"),
    ],
    ids=["count", "multiplicity", "columns", "decimal", "null", "average", "null-average", "pairing", "text"],
)
def test_any_difference_is_found(ours: list[Any], other: list[Any], said: str) -> None:
    found = answers.difference(ours, other, answers.TOLERANCE)
    assert found is not None
    assert said in found


def test_queries_and_published_answers() -> None:
    with answers.connect(tpch_directory(0.01)) as connection:
        texts = answers.queries(connection)
        assert sorted(texts) == list(range(1, 23))
        assert [number for number in texts if not answers.published(connection, number, 1.0)] == [13]
        assert answers.published(connection, 1, 0.01) is None
        assert connection.execute(texts[6]).fetchall()


def test_columns_of_random_text_are_left_out() -> None:
    assert answers.without_texts([(1, "a", 2, "b")], ["k", "s_address", "v", "s_comment"]) == [[1, 2]]


def test_totals() -> None:
    one = Measured(1, (4.0, 2.0, 3.0), (1.0, 1.5, 2.0), 2, 1, "", ())
    two = Measured(2, (1.0,), (2.0,), 0, 0, "", ())
    assert one.medians == (3.0, 1.5)
    assert totals([one, two]) == {
        "spark_seconds": 4.0,
        "accelerated_seconds": 3.5,
        "ratio": 4.0 / 3.5,
        "geometric_mean": 1.0,
        "least": 0.5,
    }


@pytest.mark.parametrize("arguments", [["--queries", "0"], ["--queries", "a"], ["--repeats", "-1"], []])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    suite = ["tpch"] if arguments else ["tpcc"]
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", *suite, *arguments])
    assert stopped.value.code == 2
    assert "gpujoin bench: error" in capsys.readouterr().err


def test_tables_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "tpch", "--data", str(tmp_path)]) != 0
    assert "lineitem.parquet" in capsys.readouterr().err


@pytest.mark.spark
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
    command = [sys.executable, "-m", "gpujoin", "bench", "tpch", *arguments]
    done = subprocess.run(
        [*command, "--conf", "spark.sql.shuffle.partitions=2"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 answers equal" in done.stdout
    record = json.loads((out / "few.json").read_text())
    assert [query["number"] for query in record["queries"]] == [6, 12]
    assert all(
        query["spark"] and query["accelerated"] and not query["differences"] for query in record["queries"]
    )
    assert record["queries"][1]["joins"] == 1
    assert record["settings"] == {"spark.sql.shuffle.partitions": "2"}
    assert record["machine"]["versions"]["pyspark"]
    assert (out / "few.png").read_bytes().startswith(b"\x89PNG")
    assert "Query 12" in (out / "few.md").read_text()
    assert "<svg" in (out / "few.svg").read_text()
