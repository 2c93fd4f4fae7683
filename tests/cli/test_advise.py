"""``gpujoin advise app.py``: the queries of a program, planned and not run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpujoin import cli
from gpujoin.cli import checks
from gpujoin.cli.advise.findings import Advice, Query
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.report.explanation import Explanation
from gpujoin.report.operations import Amounts, IslandOperation, spark_join

PROGRAM = """
import sys
from pyspark.sql import SparkSession, functions as f

spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR").getOrCreate())
print("what the program prints")
sales = spark.read.parquet(sys.argv[1] + "/sales.parquet")
sales.createOrReplaceTempView("sales")
spark.sql("create or replace temporary view large as select * from sales where v > 3")
spark.conf.set("spark.gpujoin.backend", "cpu")
rows = spark.sql("select a.k, count(*) n from sales a join large b on a.k = b.k group by a.k").collect()
assert rows == []
half = f.udf(lambda v: v / 2, "double", useArrow=False)
sales.withColumn("h", half("v")).groupBy("h").count().write.mode("overwrite").parquet(sys.argv[1] + "/out")
spark.conf.set("spark.gpujoin.backend", "auto"); spark.conf.set("spark.gpujoin.costs", "query=100")
assert sales.join(sales.withColumnRenamed("v", "w"), "k").count() == 0
assert list(sales.limit(3).toPandas().columns) == ["k", "v"]
spark.sql("create table kept as select k, max(v) m from sales group by k")
spark.sql("drop table if exists other")
assert sales.first() is None
sales.foreach(print)
spark.conf.set("spark.gpujoin.backend", "cpu"); spark.conf.unset("spark.gpujoin.costs")
assert sales.where("v > 1").count() == 0
rows[0]
sales.count()
"""


@pytest.fixture(scope="module")
def advised(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """The folder of a program, and the advice on it."""
    folder = tmp_path_factory.mktemp("advise")
    pq.write_table(pa.table({"k": list(range(1000)), "v": [float(n) for n in range(1000)]}), folder / "sales.parquet")
    (folder / "app.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "gpujoin", "advise", "--json", "app.py", str(folder)]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    import os

    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    given: dict[str, Any] = json.loads(done.stdout)
    return folder, given, done.stderr


@pytest.mark.extra
@pytest.mark.spark
def test_every_query_is_planned_at_its_line_and_none_runs(advised: tuple[Path, dict[str, Any], str]) -> None:
    folder, advice, stderr = advised
    lines = PROGRAM.splitlines()
    words = {
        "collect": ("collect", "first"), "parquet": ("parquet",), "count": ("count",), "toPandas": ("toPandas",),
        "CreateTableAsSelect": ("create table",), "foreach": ("foreach",),
    }  # fmt: skip
    queries = advice["queries"]
    assert [query["action"] for query in queries] == [
        "collect", "parquet", "count", "toPandas", "CreateTableAsSelect", "collect", "foreach", "count",
    ]  # fmt: skip
    for query in queries:
        line = lines[int(query["place"].removeprefix("app.py:")) - 1]
        assert any(word in line for word in words[query["action"]]), line
    assert {path.name for path in folder.iterdir()} <= {"app.py", "sales.parquet", "spark-warehouse", "artifacts"}
    assert not list((folder / "spark-warehouse").glob("*"))
    assert "what the program prints" in stderr
    assert advice["skipped"] == ["drop table if exists other at app.py:20"]
    assert advice["stopped"] == "IndexError at app.py:25: list index out of range"


@pytest.mark.extra
@pytest.mark.spark
def test_what_would_run_here_and_what_not(advised: tuple[Path, dict[str, Any], str]) -> None:
    _, advice, _ = advised
    joined, computed, left = advice["queries"][:3]
    assert (joined["joins"], joined["joins_left_to_spark"]) == (1, 0)
    assert joined["report"]["operations"][0]["kind"] == "island"
    assert 0 < joined["predicted_seconds"] < 1
    assert "the Python UDF" in str(computed["report"])
    assert left["joins_left_to_spark"] == 1
    assert [each["kind"] for each in advice["queries"][-1]["report"]["operations"]] == ["island"]  # of the count
    texts = [obstacle["text"] for obstacle in advice["obstacles"]]
    nothing = next(
        each
        for each in advice["obstacles"]
        if each["text"] == "neither a join nor an aggregation, nor first rows in an order"
    )
    assert nothing["queries"] == [4, 6, 7]
    assert texts[-2:] == [
        "it is predicted to be faster there",
        "neither a join nor an aggregation, nor first rows in an order",
    ]


def test_a_program_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["advise", "none.py"]) == 1
    assert "the program cannot be read" in capsys.readouterr().err


def test_only_the_program_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["advise"])
    assert capsys.readouterr().err.endswith("the following arguments are required: PROGRAM.py|LOG\n")


def left(reason: Reason, nbytes: int) -> Explanation:
    return Explanation((spark_join("inner", reason, left_bytes=nbytes),))


def test_what_would_help_most_comes_first() -> None:
    udf = Reason(ReasonKind.UNSUPPORTED, "the Python UDF f(x)", "Spark runs Python UDFs", "functions of Spark's own")
    text = Reason(ReasonKind.UNSUPPORTED, "the CSV files a.csv", "only Parquet and ORC files are read here")
    slower = [
        Reason(ReasonKind.SLOWER, "cost", f"{n} s are predicted here, 1 s in Spark", "spark.gpujoin.backend=cpu")
        for n in (2, 3)
    ]
    explained = [left(text, 10), left(udf, 1000), left(slower[0], 10_000), left(slower[1], 10_000), left(text, 20)]
    queries = tuple(
        Query(number=n, action="collect", place=f"app.py:{n}", explanation=each) for n, each in enumerate(explained, 1)
    )
    advice = Advice(program="app.py", queries=queries)
    assert [(each.queries, each.joins, each.input_bytes) for each in advice.obstacles] == [
        ((2,), 1, 1000), ((1, 5), 2, 30), ((3, 4), 2, 20_000),
    ]  # fmt: skip
    assert str(advice).splitlines()[-3:] == [
        "  query 2, 1 join: the Python UDF f(x): Spark runs Python UDFs (change with functions of Spark's own)",
        "  queries 1, 5, 2 joins: the CSV files a.csv: only Parquet and ORC files are read here",
        "  queries 3, 4, 2 joins: it is predicted to be faster there (change with spark.gpujoin.backend=cpu)",
    ]
    assert str(advice).splitlines()[3].split() == ["1", "in", "Spark", "collect", "at", "app.py:1"]


def test_what_a_program_spends_once_is_told_of_both_sides() -> None:
    island = IslandOperation(operation="", tasks=1, predicted=Amounts(seconds=0.3), predicted_spark_seconds=1.3)
    query = Query(number=1, action="show", place="app.py:3", explanation=Explanation((island,)))
    advice = Advice(program="app.py", queries=(query,), start_seconds=1.0, spark_start_seconds=0.8)
    assert str(advice).splitlines()[-3:] == [
        "predicted to be saved: 1 s in all",
        "not in these seconds, once in a program: 1 s here to start workers,",
        "  0.8 s in Spark to compile its first code, so small first queries stay in Spark",
    ]
    given = advice.to_dict()
    assert (given["start_seconds"], given["spark_start_seconds"]) == (1.0, 0.8)


def test_a_program_needs_pyspark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text("print(1)")
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    assert cli.main(["advise", str(program)]) == 1
    assert "gpujoin: pyspark: not installed. pip install" in capsys.readouterr().err
