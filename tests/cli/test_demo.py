"""The demo: its arguments, and what it says of queries whose rows are equal, and of those whose rows are not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gpujoin import cli
from gpujoin.cli import demo
from gpujoin.cli.demo import QUERIES
from gpujoin.report.profile import Equality


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--sf", "-1"], 2, "-1 is no scale between 0.001 and 1000"),
        (["--sf", "0"], 2, "0 is no scale"),
        (["--sf", "nan"], 2, "nan is no scale"),
        (["--sf", "much"], 2, "invalid scale_factor value: 'much'"),
        (["--conf", "novalue"], 2, "not of the form KEY=VALUE"),
        (["--only", "no such query"], 1, "no title holds 'no such query'. Titles: 'revenue by country', "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_said_before_any_work(
    arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "open_session", lambda *_: pytest.fail("work was begun"))
    with pytest.raises(SystemExit) as stop:
        sys.exit(cli.main(["demo", *arguments]))
    assert stop.value.code == status
    assert said in capsys.readouterr().err


def test_missing_java_is_one_line_before_any_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(demo, "open_session", lambda *_: pytest.fail("work was begun"))
    assert cli.main(["demo"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("gpujoin: java: ")
    assert "openjdk-17" in said


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpujoin", "demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.extra
@pytest.mark.spark
def test_a_master_that_spark_does_not_know_is_one_line() -> None:
    done = program("--sf", "0.001", "--master", "local[x]")
    assert done.returncode == 1
    assert "gpujoin: Spark does not start with master 'local[x]': " in done.stderr.splitlines()[-1]
    assert "Could not parse Master URL" in done.stderr.splitlines()[-1]


@pytest.mark.spark
@pytest.mark.slow
def test_all_queries_run_here_and_are_equal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUJOIN_CACHE", str(tmp_path))
    done = program("--sf", "0.01", "--master", "local[2]", "--backend", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    heading, *lines, blank, last = done.stdout.splitlines()
    assert heading.split("  ")[0] == "query"
    assert [line[:42].strip() for line in lines] == list(QUERIES)
    assert all("  here      " in line and line.endswith(", equal") for line in lines)
    assert (blank, last) == ("", f"{len(QUERIES)} of {len(QUERIES)} results equal")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SparkSession]:
    """The tests' session, which the demo has in place of one of its own."""
    spark.conf.set("spark.gpujoin.backend", "cpu")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    monkeypatch.setenv("GPUJOIN_CACHE", str(tmp_path))
    monkeypatch.setattr(demo, "open_session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    yield spark
    for name in demo._TABLES:
        spark.catalog.dropTempView(name)


@pytest.mark.extra
@pytest.mark.spark
def test_rows_that_differ_are_shown_and_the_exit_status_is_1(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    different = Equality.DIFFERENT, "the tables hold different rows: 24 actual, 25 expected"
    monkeypatch.setattr("gpujoin.report.profile.compare", lambda *_: different)
    assert cli.main(["demo", "--sf", "0.001", "--only", "without orders"]) == 1
    said = capsys.readouterr().out
    assert ", different\nthe tables hold different rows: 24 actual, 25 expected\n" in said
    assert "0 of 1 results equal" in said


@pytest.mark.spark
def test_a_query_that_fails_ends_no_other(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = {"a query of nothing": "select * from nothing", **QUERIES}
    monkeypatch.setattr(demo, "QUERIES", {title: failing[title] for title in (next(iter(failing)), list(QUERIES)[3])})
    assert cli.main(["demo", "--sf", "0.001"]) == 1
    _, failed, other, _, last = capsys.readouterr().out.splitlines()
    assert "failed: [TABLE_OR_VIEW_NOT_FOUND]" in failed
    here, in_spark, times, runs, *rows = other.removeprefix(list(QUERIES)[3]).split()
    assert min(float(here), float(in_spark), float(times)) > 0
    assert (runs, rows[-1]) == ("here", "equal")
    assert last == "1 of 2 results equal"
