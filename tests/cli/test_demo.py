from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from gpujoin import cli
from gpujoin.cli.demo import data, queries, runner, streams
from gpujoin.cli.demo.check import compare
from gpujoin.cli.demo.joins import JOINS
from gpujoin.cli.demo.show import Progress, table
from gpujoin.errors import ConfigurationError, GpuJoinError
from gpujoin.streams import microbatches

ONE_JOIN = "customers without orders"
HOWS = {"inner", "left", "right", "full", "left_semi", "left_anti", "cross"}


@pytest.fixture
def connection() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def rows(*values: str) -> str:
    return f"(VALUES {', '.join(values)}) AS t"


@pytest.mark.parametrize(
    ("ours", "other"),
    [
        (rows("(1, 'a')", "(2, 'b')"), rows("(2, 'b')", "(1, 'a')")),
        (rows("(1, 'a')", "(1, 'a')", "(2, NULL)"), rows("(1, 'a')", "(2, NULL)", "(1, 'a')")),
        (rows("(NULL, 'nan'::double)"), rows("(NULL, 'nan'::double)")),
        (rows("(1, 1.10::decimal(15,2))"), rows("(1, 1.1::decimal(15,2))")),
    ],
    ids=["order", "duplicates", "nan-and-null", "decimal"],
)
def test_equal_multisets_are_equal(connection: duckdb.DuckDBPyConnection, ours: str, other: str) -> None:
    assert compare(connection, ours, other).equal


@pytest.mark.parametrize(
    ("ours", "other", "said"),
    [
        (rows("(1, 'a')", "(2, 'b')"), rows("(1, 'a')", "(2, 'c')"), "too often: (2, 'b')"),
        (rows("(1, 'a')", "(1, 'a')", "(2, 'b')"), rows("(1, 'a')", "(2, 'b')", "(2, 'b')"), "1 times too often: (1,"),
        (rows("(1, 'a')"), rows("(1, 'a')", "(1, 'a')"), "1 times too rarely: (1, 'a')"),
        (rows("(1, NULL)"), rows("(1, '')"), "too"),
        (rows("(1, 0.1::double)"), rows("(1, 0.1::double + 1e-17 + 2e-17)"), "too"),
        (rows("(1, 1.10::decimal(15,2))"), rows("(1, 1.101::decimal(15,3))"), "too"),
        (rows("(1, 2)"), rows("(2, 1)"), "too"),
        (rows("(1, 2)"), rows("(1, 2, 3)"), "2 columns instead of 3"),
        ("(SELECT 1 WHERE false)", "(SELECT 1 WHERE false)", "proves nothing"),
    ],
    ids=["value", "counts", "missing", "null", "last-bit", "scale", "columns-swapped", "column-count", "empty"],
)  # fmt: skip
def test_any_difference_is_found(connection: duckdb.DuckDBPyConnection, ours: str, other: str, said: str) -> None:
    found = compare(connection, ours, other)
    assert not found.equal
    assert any(said in difference for difference in found.differences), found


def test_the_joins_cover_types() -> None:
    assert {join.how for join in JOINS} == HOWS
    assert len({join.title for join in JOINS}) == len(JOINS) >= 8


def test_tables_are_aligned() -> None:
    assert table(("a", "bb"), [("xyz", "1"), ("x", "22")], right=(1,)) == "a    bb\n---  --\nxyz   1\nx    22"


def test_progress_is_plain_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(3) as shown:
        shown.step("one")
        shown.line("done")
    assert capsys.readouterr().err == "done\n"


def test_data_is_written_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = data.tpch_directory(0.001, tmp_path)
    assert {file.name for file in first.iterdir()} == {f"{name}.parquet" for name in data.TABLES}
    monkeypatch.setattr(data, "_generate", lambda scale, into: pytest.fail("written twice"))
    assert data.tpch_directory(0.001, tmp_path) == first
    assert list(tmp_path.iterdir()) == [first]


def test_a_failed_generation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(scale: float, into: Path) -> None:
        (into / "customer.parquet").write_text("half")
        raise GpuJoinError("no space left")

    monkeypatch.setattr(data, "_generate", half)
    with pytest.raises(GpuJoinError, match="no space left"):
        data.tpch_directory(0.001, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.delenv("GPUJOIN_CACHE", raising=False)
    assert data.cache_directory() == Path("/x/gpujoin")
    monkeypatch.setenv("GPUJOIN_CACHE", "/y")
    assert data.cache_directory() == Path("/y")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sf", "-1"], "scale is -1"),
        (["--sf", "0"], "scale is 0"),
        (["--sf", "nan"], "scale is nan"),
        (["--only", "no such join"], "no join's title"),
        (["--conf", "novalue"], "not of the form KEY=VALUE"),
    ],
)
def test_bad_arguments_are_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", *arguments]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.extra
@pytest.mark.spark
def test_a_master_that_spark_does_not_know_is_one_line() -> None:
    done = demo("--sf", "0.001", "--master", "local[x]")
    assert done.returncode == 1
    assert "gpujoin: Spark does not start with master 'local[x]': " in done.stderr.splitlines()[-1]
    assert "Could not parse Master URL" in done.stderr.splitlines()[-1]


def test_missing_java_is_one_line_before_any_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(runner, "tpch_directory", lambda scale: pytest.fail("work was begun"))
    assert cli.main(["demo"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("gpujoin: java: ")
    assert "openjdk-17" in said


def test_the_generator_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ConfigurationError, match=re.escape(data.EXTRA)):
        data.tpch_directory(0.001, tmp_path / "cache")


@pytest.mark.parametrize("module", ["duckdb", "tqdm"])
def test_without_its_extra_the_demo_says_in_a_line_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: str
) -> None:
    monkeypatch.setattr(runner, "find_spec", lambda name: None if name == module else object())
    assert cli.main(["demo"]) == 1
    assert capsys.readouterr().err == f'gpujoin: the demo needs {module}: pip install "gpujoin[demo]"\n'


def demo(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    code = f"import sys, gpujoin\n{before}\nfrom gpujoin.cli import main\nsys.exit(main(['demo', *{arguments!r}]))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)


@pytest.mark.spark
@pytest.mark.parametrize(
    "only",
    [
        pytest.param("customers ", marks=pytest.mark.extra, id="joins-of-customers"),
        pytest.param("", marks=pytest.mark.slow, id="all-joins"),
    ],
)
def test_results_are_equal_and_joins_run_here(only: str) -> None:
    joins = [join for join in JOINS if only in join.title]
    assert len(joins) >= 2
    done = demo("--sf", "0.01", "--master", "local[2]", "--backend", "cpu", "--only", only)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(joins)} of {len(joins)} results equal" in done.stdout
    lines = done.stdout.splitlines()
    for join in joins:
        (line,) = (line for line in lines if line.startswith(f"{join.title}  "))
        how, backend, *_, equal = line.removeprefix(join.title).split()
        assert (how, backend, equal) == (join.how, "cpu", "yes")
    assert "Traceback" not in done.stderr
    assert ("3 of 3 queries equal" in done.stdout) == (not only)
    assert ("5 of 5 micro-batches equal" in done.stdout) == (not only)


@pytest.fixture
def session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The tests' session, which the demo has in place of one of its own."""
    spark.conf.set("spark.gpujoin.backend", "cpu")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    monkeypatch.setattr(runner, "open_session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    return spark


@pytest.mark.spark
def test_joins_and_queries_are_shown_and_equal(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A join, and a query with an outer join; the slow test has all."""
    before = session.conf.getAll
    (join,) = (join for join in JOINS if join.title == ONE_JOIN)
    monkeypatch.setattr(runner, "JOINS", [join])
    chosen = ("customers by number of orders",)
    monkeypatch.setattr(queries, "QUERIES", {title: queries.QUERIES[title] for title in chosen})
    monkeypatch.setattr(runner, "run_stream", lambda *_: streams.StreamResult())
    assert cli.main(["demo", "--sf", "0.001", "--backend", "cpu"]) == 0
    assert session.conf.getAll == before
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    lines = [line.split("  ") for line in told.out.splitlines()]
    cells = {line[0]: [cell.strip() for cell in line[1:] if cell.strip()] for line in lines}
    assert (cells[join.title][:2], cells[join.title][-1]) == ([join.how, "cpu"], "yes")
    assert [cells[title][0] for title in chosen] == ["1 of 1"]
    for count, what in ((1, "results"), (1, "queries")):
        assert f"{count} of {count} {what} equal" in told.out


@pytest.mark.extra
@pytest.mark.spark
def test_micro_batches_are_shown_and_equal(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two micro-batches; the slow test has five."""
    before = session.conf.getAll
    monkeypatch.setattr(runner, "JOINS", [join for join in JOINS if join.title == ONE_JOIN])
    monkeypatch.setattr(runner, "run_queries", lambda *_: [])
    results = []

    def one_file(*given: Any) -> streams.StreamResult:
        results.append(streams.run_stream(*given, batches=1))
        return results[0]

    monkeypatch.setattr(runner, "run_stream", one_file)
    assert cli.main(["demo", "--sf", "0.001", "--backend", "cpu"]) == 0
    assert session.conf.getAll == before
    assert "2 of 2 micro-batches equal" in capsys.readouterr().out
    (stream,) = results
    assert not stream.left_out
    assert [outcome.labels[0] for outcome in stream.outcomes] == ["0", "1"]
    assert stream.outcomes[-1].labels[1] == "0"
    assert all(outcome.rows and outcome.seconds and outcome.spark_seconds for outcome in stream.outcomes)


@pytest.mark.spark
def test_the_stream_is_left_out_with_the_reason_where_a_module_is_missing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(microbatches, "_FURTHER", ("no_such_module",))
    result = streams.run_stream(spark, data.tpch_directory(0.001), tmp_path, batches=1)
    assert result.outcomes == ()
    assert "no_such_module" in result.left_out


def test_differences_of_micro_batches_are_told(connection: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    for batch, here, in_spark in (("0", "1", "2"), ("1", "1 WHERE false", "1 WHERE false"), ("2", "1", "1")):
        for where, query in (("here", here), ("spark", in_spark)):
            (tmp_path / where / batch).mkdir(parents=True)
            connection.execute(f"COPY (SELECT {query}) TO '{tmp_path / where / batch / 'rows.parquet'}'")
    report = streams.MicroBatch(5, 0.5)
    told = [
        streams.compare_batch(connection, tmp_path, batch, {0: report, 1: report, 2: report}, {0: report, 1: report})
        for batch in range(3)
    ]
    different, empty, missing = (outcome.differences for outcome in told)
    assert any("1 times too often" in difference for difference in different)
    assert empty == ()
    assert missing == ("only one of both had this micro-batch",)


def test_differences_of_queries_are_told() -> None:
    rows = [("a", 1), ("b", 2)]
    assert queries._differences(rows, rows, rows[::-1]) == ()
    assert queries._differences(rows, rows[::-1], rows) == ("against Spark: the order of rows",)
    assert queries._differences(rows, [("a", 1), ("b", 3)], rows)[0].startswith("against Spark: ('b', 2)")
    assert queries._differences(rows, rows, rows[:1]) == ("against DuckDB: 2 rows instead of 1",)
    assert queries._differences([], [], []) == ("no rows, which proves nothing",)


SABOTAGE = """
from pyspark.sql import functions as F
class Chosen: strategy, backend, reasons = "shuffle", "cpu", ()
class Explained: joins = [Chosen]
def wrong(left, right, on, how, **options):
    joined = left.join(right, on, how)
    if how == "left":
        return joined.limit(joined.count() - 1)
    if how == "right":
        return joined.withColumn("o_orderkey", F.col("o_orderkey") + (F.col("o_orderkey") == 1).cast("bigint"))
    if how == "full":
        return joined.withColumnRenamed("c_name", "name")
    raise ZeroDivisionError("broken")
gpujoin.gpu_join, gpujoin.explain = wrong, lambda frame: Explained
"""


@pytest.mark.spark
@pytest.mark.slow
def test_wrong_results_are_told_and_exit_1() -> None:
    done = demo("--sf", "0.01", "--only", "customer", before=SABOTAGE)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "0 of 4 results equal" in done.stdout
    told = re.split(r"^\[\d/4\] ", done.stderr, flags=re.MULTILINE)[1:]
    assert all("NOT EQUAL" in one for one in told)
    row_lost, value_changed, column_renamed, exception = told
    assert "8564 rows instead of Spark's 8565" in row_lost
    assert "against DuckDB: 1 times too rarely" in row_lost
    assert "against Spark: 1 times too often" in value_changed
    assert "against DuckDB: 1 times too often" in value_changed
    assert "instead of Spark's struct<c_custkey:bigint,c_name" in column_renamed
    assert "failed with ZeroDivisionError: broken" in exception
