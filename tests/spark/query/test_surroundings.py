"""What programs do around joins: functions of theirs above, views that come and go, tables that change underneath."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.java_gateway import GatewayClient
from pyspark import RDD
from pyspark.errors import AnalysisException, ArithmeticException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from gpujoin import disable, enable
from gpujoin.spark.jvm.gateway import client_of, java_session, session_of
from gpujoin.spark.query.accelerate import PlannedQuery
from gpujoin.spark.query.planner import QueryPlanner
from tests.spark.query.queries import check

FORCED = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "silent"}
SEND_COMMAND = GatewayClient.send_command
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])]

ABOVE = {
    "explode": """select id, e from (select a.id, collect_list(b.item) l from sales a join items b on a.k = b.k
        group by a.id) lateral view explode(array_sort(l)) x as e""",
    "pivot": """select * from (select a.s, b.k, b.cost from sales a join items b on a.k = b.k)
        pivot (sum(cost) for k in (1, 2, 3))""",
    "grouped after": """select x, count(*) from (select distinct k, upper(b.s) x from sales a join items b using (k))
        group by x""",
    "intersect": "select k from sales intersect select k from items",
    "except all": "select k, s from sales except all select k, s from items",
    "natural": "select * from sales natural join items",
    "offset": "select a.id from sales a join items b on a.k = b.k order by a.id, b.item limit 5 offset 2",
    "quoted names": "select a.id as `a.b`, b.item as `x``y`, a.id as `a.b` from sales a join items b on a.k = b.k",
    "window over windows": """select k, sum(r) from (select k, rank() over (partition by k order by c) r from
        (select a.k, a.id, count(*) c from sales a join items b using (k) group by a.k, a.id)) group by k""",
}


SHORT = frozenset({"explode", "quoted names", "except all"})
"""The others are in the long sweeps."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in SHORT)) for name in ABOVE])
def test_operations_above(tables: SparkSession, name: str) -> None:
    assert check(tables.sql(ABOVE[name])).islands


def test_functions_of_the_user(tables: SparkSession) -> None:
    twice = sf.udf(lambda v: None if v is None else v * 2, "int")
    joined = tables.sql("select a.id, a.k, b.item from sales a join items b on a.k = b.k")
    assert check(joined.select("id", twice("item").alias("t"))).islands


def test_cached_results_and_views(tables: SparkSession) -> None:
    joined = tables.sql("select a.id, a.k, b.item from sales a join items b on a.k = b.k")
    joined.createOrReplaceTempView("joined_view")
    tables.sql("cache table kept as select * from joined_view where id > 1")
    try:
        assert check(tables.sql("select x.id, y.item from joined_view x join joined_view y using (id)")).islands
        found = check(tables.sql("select k.id, s.price from kept k join sales s using (id)"))
        (island,) = found.islands
        assert "rows from Spark" in "\n".join(island.tree)
    finally:
        tables.sql("uncache table kept")
        tables.catalog.dropTempView("kept")
        tables.catalog.dropTempView("joined_view")
    joined.cache()
    try:
        assert not check(joined).islands
    finally:
        joined.unpersist()


@pytest.fixture
def watched(tables: SparkSession, planned: list[PlannedQuery]) -> Iterator[list[PlannedQuery]]:
    """An enabled session, and what became of each query."""
    enable(tables)
    yield planned
    disable(tables)


def test_a_view_that_was_dropped(tables: SparkSession, watched: list[PlannedQuery]) -> None:
    tables.table("sales").createOrReplaceTempView("passing")
    frame = tables.sql("select p.id, b.item from passing p join items b on p.k = b.k")
    tables.catalog.dropTempView("passing")
    assert len(frame.collect()) == frame.count() == 11
    assert all(one.changed for one in watched)
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        tables.sql("select * from passing")


def test_settings_that_change_between_a_query_and_its_action(tables: SparkSession, watched: list[PlannedQuery]) -> None:
    """What an expression does on overflow was settled when it was made."""
    tables.conf.set("spark.sql.ansi.enabled", "true")
    strict = tables.sql("select k, sum(id + 2147483647) from sales group by k")
    tables.conf.set("spark.sql.ansi.enabled", "false")
    loose = tables.sql("select k, sum(id + 2147483647) s from sales group by k")
    with pytest.raises(ArithmeticException, match="ARITHMETIC_OVERFLOW"):
        strict.collect()
    tables.conf.set("spark.sql.ansi.enabled", "true")
    assert min(row.s for row in loose.collect()) < 0
    assert [one.changed for one in watched] == [True, True]


@pytest.fixture
def changing(tables: SparkSession, tmp_path: Path) -> tuple[DataFrame, Path]:
    """A query over a folder of one file, and the folder."""
    folder = tmp_path / "changing"
    tables.range(10).selectExpr("id % 2 k", "id v").coalesce(1).write.parquet(str(folder))
    return tables.read.parquet(str(folder)).groupBy("k").sum("v"), folder


def test_a_table_overwritten_before_the_action(
    tables: SparkSession, changing: tuple[DataFrame, Path], watched: list[PlannedQuery]
) -> None:
    frame, folder = changing
    frame.collect()
    tables.range(4).selectExpr("id % 2 k", "id v").coalesce(1).write.mode("overwrite").parquet(str(folder))
    disable(tables)
    own = _outcome(frame.select("*"))
    enable(tables)
    assert _outcome(frame) == own
    assert _outcome(frame.select("*")) == own
    assert [one.changed for one in watched if one.explanation.islands] == [True]


def test_a_file_rewritten_in_place_before_the_action(
    tables: SparkSession, changing: tuple[DataFrame, Path], watched: list[PlannedQuery]
) -> None:
    """A plan that was made before fails, and is given back. Footers that were kept are of no use to the next one."""
    frame, folder = changing
    frame.collect()
    (file,) = (one for one in folder.iterdir() if one.suffix == ".parquet")
    before, data = file.stat(), file.read_bytes()
    file.write_bytes(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 5_000_000_000))
    assert sorted(frame.collect()) == [(0, 20), (1, 25)]
    assert sorted(frame.select("*").collect()) == [(0, 20), (1, 25)]
    assert [one.changed for one in watched] == [True, False]
    assert "has changed since" in str(watched[-1].explanation)


def _outcome(frame: DataFrame) -> str:
    """Rows, or which error it is."""
    try:
        return str(sorted(frame.collect()))
    except Exception as problem:  # noqa: BLE001 - compared by what Spark calls it
        found = re.search(r"\[([A-Z_.]+)\]", str(problem))
        return f"{type(problem).__name__} {found.group(1) if found else ''}"


def test_what_fails_here_is_sparks(tables: SparkSession, watched: list[PlannedQuery], tmp_path: Path) -> None:
    """A task of ours that fails has Spark run the query: its own error, or its own rows."""
    bytes_of = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.array([0, 1, 3], pa.int32()).buffers()[1], pa.py_buffer(b"\xffok")]
    )
    pq.write_table(pa.table({"k": [1, 2], "s": bytes_of}), tmp_path / "bytes.parquet")
    frame = tables.read.parquet(str(tmp_path)).groupBy("s").agg(sf.sum("k").alias("v")).selectExpr("hex(s) h", "v")
    assert sorted(frame.collect()) == [("6F6B", 2), ("FF", 1)]
    assert frame.count() == 2
    divided = tables.sql("select a.id / (b.item - 10) from sales a join items b using (k)")
    with pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO"):
        divided.collect()
    assert all(one.changed for one in watched)
    tables.conf.set("spark.gpujoin.fallback", "raise")
    with pytest.raises(Exception, match="ExpressionEvaluationError"):
        divided.collect()


@pytest.mark.slow
def test_writing_by_every_way(tables: SparkSession, watched: list[PlannedQuery], tmp_path: Path) -> None:
    frame = tables.sql("select a.id, b.item, b.cost from sales a join items b on a.k = b.k")
    names = ("by_insert", "by_select", "by_table")
    tables.sql("create table by_insert (id int, item int, cost decimal(5, 3)) using parquet")
    try:
        frame.createOrReplaceTempView("to_write")
        tables.sql("insert into by_insert select * from to_write")
        tables.sql("create table by_select using parquet as select * from to_write")
        frame.write.saveAsTable("by_table")
        frame.write.mode("append").insertInto("by_insert")
        counts = {name: tables.table(name).count() for name in names}
        assert counts == {"by_insert": 22, "by_select": 11, "by_table": 11}
        rows = {name: sorted(set(tables.table(name).collect())) for name in names}
        assert rows["by_insert"] == rows["by_select"] == rows["by_table"]
    finally:
        tables.catalog.dropTempView("to_write")
        for name in names:
            tables.sql(f"drop table if exists {name}")
    assert sum(bool(one.explanation.islands) for one in watched) >= 4


def test_the_collector_of_the_program_runs_while_a_query_is_planned(
    tables: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    rewrite = QueryPlanner.rewrite

    def watched(planner: QueryPlanner, plan: object) -> object:
        seen.append(gc.isenabled())
        return rewrite(planner, plan)

    monkeypatch.setattr(QueryPlanner, "rewrite", watched)
    assert check(tables.sql("select a.id, b.item from sales a join items b on a.k = b.k")).islands
    assert seen
    assert all(seen)


def test_py4j_is_as_ever_for_other_gateways(tables: SparkSession) -> None:
    """Of the client of an enabled session alone calls are watched, and until it is disabled."""
    other = GatewayClient()
    enable(tables)
    assert "send_command" in vars(client_of(tables))
    assert "send_command" not in vars(other)
    assert type(other).send_command is SEND_COMMAND
    disable(tables)
    assert "send_command" not in vars(client_of(tables))


def test_the_object_of_another_session_takes_nobodys_place(tables: SparkSession) -> None:
    before = RDD.toDF, SparkSession._instantiatedSession, SparkSession._activeSession
    other = session_of(tables, java_session(tables).newSession())
    assert before == (RDD.toDF, SparkSession._instantiatedSession, SparkSession._activeSession)
    assert java_session(other) is not java_session(tables)
    assert other.range(3).count() == 3
