"""``gpujoin advise LOG``: the queries of Spark event logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpujoin import GpuJoinError, cli
from gpujoin.cli.advise.eventlog import LogAdvice, LoggedQuery, PlanNode, read_event_log

_ENDED = "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd"
PROGRAM = """
import sys
from pyspark.sql import SparkSession, functions as f

folder, compress = sys.argv[1:]
spark = (SparkSession.builder.master("local[2]").appName("sales").config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR").config("spark.sql.shuffle.partitions", "2")
    .config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", "file://" + folder + "/logs")
    .config("spark.eventLog.compress", compress).getOrCreate())
sales = spark.read.parquet(folder + "/sales.parquet")
sales.join(sales.withColumnRenamed("v", "w"), "k").groupBy("k").count().collect()
half = f.udf(lambda v: v / 2, "double")
sales.select(half("v").alias("h")).groupBy("h").count().collect()
sales.limit(3).collect()
texts = spark.read.schema("k long, t string").csv(folder + "/texts.csv")
sales.hint("merge").join(texts, "k").count()
sales.crossJoin(sales.selectExpr("v as w")).where("v < w").count()
spark.stop()
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rolling log of a program that ran."""
    folder = tmp_path_factory.mktemp("logs")
    (folder / "logs").mkdir()
    pq.write_table(pa.table({"k": list(range(200)), "v": [float(n) for n in range(200)]}), folder / "sales.parquet")
    (folder / "texts.csv").write_text("1,a\n2,b\n")
    (folder / "app.py").write_text(PROGRAM)
    subprocess.run(
        [sys.executable, "app.py", str(folder), "true"], cwd=folder, check=True, timeout=600, capture_output=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    (made,) = (folder / "logs").iterdir()
    return made


@pytest.mark.extra
@pytest.mark.spark
def test_queries_of_a_log(log: Path) -> None:
    advice = read_event_log(log)
    assert (advice.application, advice.failed) == ("sales", 0)
    joined, computed, limited, texts, ranged = advice.queries
    assert (len(joined.joins), joined.aggregations, joined.obstacles) == (1, 1, ())
    assert joined.runs == "here"
    assert computed.obstacles == ("the Python UDF <lambda>(v): Spark runs Python UDFs",)
    assert computed.runs == "here in part"
    assert not limited.concerned
    assert texts.joins == ("sort-merge",)
    assert texts.obstacles == ("csv: only Parquet and ORC files are read here",)
    assert ranged.joins[0] in ("nested-loop", "product")
    assert ranged.runs == "here"
    assert all(each.seconds > 0 for each in advice.queries)


@pytest.mark.extra
@pytest.mark.spark
def test_the_command_takes_a_folder_and_a_file(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["advise", str(log)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("sales: 5 queries, of which 4 have a join, an aggregation or a window\n")
    assert "the Python UDF <lambda>(v): Spark runs Python UDFs (change with functions of Spark's own" in text
    (events,) = log.glob("events_1_*")
    assert cli.main(["advise", "--json", str(events)]) == 0
    given = json.loads(capsys.readouterr().out)
    assert (given["queries"][0]["joins"], given["queries"][0]["runs"]) == (["broadcast"], "here")
    with pa.CompressedInputStream(pa.OSFile(str(events)), "zstd") as stream:
        plain = stream.read()
    for name, part in (("whole", plain), ("being.inprogress", plain[: len(plain) // 2])):
        (tmp_path / name).write_bytes(part)
        assert read_event_log(tmp_path / name).application == "sales"
    assert read_event_log(tmp_path / "whole") == read_event_log(log)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("empty", "", "has no events"), ("text", "hello\n", "is no event log"), ("list", "[1]\n", "is no event log"),
        ("a.lz4", "x", "spark.eventLog.compression.codec=zstd"), ("a.zstd", "x", "cannot be read"),
        ("half", f'{{"Event": "{_ENDED}"}}\n', "an event lacks 'time'"),
    ],
    ids=["empty", "text", "list", "lz4", "no zstd", "an event without its fields"],
)  # fmt: skip
def test_what_is_no_log_is_refused(tmp_path: Path, name: str, text: str, why: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(GpuJoinError, match=why):
        read_event_log(tmp_path / name)


def test_a_folder_of_several_logs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GpuJoinError, match="give the log of one application"):
        read_event_log(tmp_path)


def leaf(name: str) -> PlanNode:
    return PlanNode(name, f"{name} [a#1, b#2L]")


def above(name: str, *leaves: PlanNode, text: str = "…") -> tuple[PlanNode, ...]:
    return PlanNode(name, text, is_leaf=False), *leaves


def advised(*plans: tuple[PlanNode, ...]) -> LogAdvice:
    queries = tuple(
        LoggedQuery.from_plan(n, f"collect at app.py:{n}", 10.0 * (n + 1), plan) for n, plan in enumerate(plans)
    )
    return LogAdvice(application="app", queries=queries, failed=1)


def test_obstacles_are_ordered_by_the_seconds_of_their_queries() -> None:
    cached = above("SortMergeJoin", leaf("Scan parquet"), leaf("InMemoryTableScan"))
    text = above("BroadcastHashJoin", leaf("Scan csv"), leaf("Scan orc"))
    advice = advised(cached, text)
    assert [obstacle for obstacle, _, _ in advice.obstacles] == [
        "csv: only Parquet and ORC files are read here", "a cached table: Spark holds its rows",
    ]  # fmt: skip
    assert "without 1 query that failed or had not ended" in str(advice)
    assert str(advice).splitlines()[-2:] == [
        "  query 1, 20 s: csv: only Parquet and ORC files are read here (change with Parquet files)",
        "  query 0, 10 s: a cached table: Spark holds its rows",
    ]


def test_tables_of_iceberg_may_run_here() -> None:
    def scan(kind: str) -> tuple[PlanNode, ...]:
        text = f"BatchScan ice.db.t[a#1] Iceberg{kind}Scan(table=ice.db.t, …) RuntimeFilters: []"
        return above("SortMergeJoin", PlanNode("BatchScan ice.db.t", text), leaf("Scan parquet"))

    advice = advised(scan(""), scan("CopyOnWrite"))
    assert [query.runs for query in advice.queries] == ["here", "here in part"]
    assert [obstacle for obstacle, _, _ in advice.obstacles] == [
        "ice.db.t, a table of a data source of its own: only files are read here"
    ]


def test_what_ran_here_is_told() -> None:
    here = above("MapInArrow", leaf("Range"), text="MapInArrow island_join_2scans_gpujoin_0123456789ab(c#1)")
    (query,) = advised(above("HashAggregate", *here, text="HashAggregate(keys=[a#1])")).queries
    assert (query.runs, query.obstacles) == ("ran here", ())


def test_seconds_of_queries_without_obstacles_are_added_up() -> None:
    whole = above("SortMergeJoin", leaf("Scan parquet"), leaf("Scan orc"))
    part = above("SortMergeJoin", leaf("Scan parquet"), leaf("Scan csv"))
    lines = str(advised(whole, part)).splitlines()
    assert any(line.startswith("10 s of the 30 s are of queries that may run here as a whole; ") for line in lines)
