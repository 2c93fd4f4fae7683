"""How exchanged rows go from worker to worker: as bytes through RDDs, or as rows of Spark's SQL; answers and paths."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf

from gpujoin import disable, enable, metrics
from gpujoin.config import Transport
from gpujoin.errors import GpuJoinError
from gpujoin.spark.jvm import compiled
from gpujoin.spark.query import running
from gpujoin.testing import assert_same_rows
from tests.brief import each_once
from tests.spark.query.queries import EXCHANGED

pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [EXCHANGED], indirect=True, ids=["cpu"])]

SQL = "select a.id, b.item, b.cost, a.s from sales a join items b on a.k = b.k"
THREE = "select a.id, c.id other, b.item from sales a join items b on a.k = b.k join sales c on b.s = c.s"
BYTES = "of stages that exchange bytes"
"""How a plan shows an island whose stages exchange bytes."""
ROWS = "REPARTITION_BY_NUM"


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def native(session: SparkSession, text: str) -> pa.Table:
    disable(session)
    expected = session.sql(text).toArrow()
    enable(session)
    return expected


@pytest.mark.few
@pytest.mark.parametrize("text", [SQL, THREE], ids=["one exchange", "two exchanges"])
@pytest.mark.parametrize("transport", Transport, ids=lambda t: t.value)
def test_both_give_sparks_rows(enabled: SparkSession, text: str, transport: Transport) -> None:
    enabled.conf.set("spark.gpujoin.exchange.transport", transport.value)
    frame = enabled.sql(text)
    plan = plan_of(frame)
    if transport is Transport.BYTES:
        assert BYTES in plan
        assert "Exchange" not in plan
        assert plan.count("GpuJoinIsland island_") == 1
    else:
        assert plan.count("GpuJoinIsland island_") == (3 if text == SQL else 5)
        assert ROWS in plan
        assert BYTES not in plan
    assert_same_rows(frame.toArrow(), native(enabled, text))
    reports = metrics(frame)
    assert len(reports) == (3 if text == SQL else 5)
    assert sum(report.metrics.sent.blobs for report in reports) > 0
    assert all(report.tasks for report in reports)


TYPES = {
    "boolean": "id % 2 = 0", "tinyint": "cast(id as tinyint)", "smallint": "cast(id as smallint)",
    "int": "cast(id as int)",
    "bigint": "id * 5000000000", "float": "cast(id as float) / 3", "double": "double(id) / 7",
    "decimal(9,2)": "cast(id as decimal(9,2))", "decimal(38,10)": "cast(id as decimal(38,10)) * 10000000000",
    "string": "repeat('ß', int(id))", "binary": "cast(concat('b', id) as binary)",
    "date": "date_add(date'1960-01-01', int(id))",
    "timestamp": "timestamp'1960-01-01 01:02:03.000004' + make_dt_interval(int(id))",
    "timestamp_ntz": "timestamp_ntz'2200-01-01 01:02:03.000004' + make_dt_interval(int(id))",
    "array<int>": "array(int(id), null)", "map<string,int>": "map(string(id), int(id))",
    "struct<a:int,b:array<string>>": "named_struct('a', int(id), 'b', array('x', null))",
    "interval day to second": "make_dt_interval(int(id))",
}  # fmt: skip


def test_columns_of_every_type(enabled: SparkSession, tmp_path: Path) -> None:
    columns = ", ".join(f"if(id % 5 = 3, null, {text}) c{n}" for n, text in enumerate(TYPES.values()))
    disable(enabled)
    enabled.range(40).selectExpr("id k", "id").createOrReplaceTempView("ids")
    enabled.sql(f"select k, {columns} from ids").repartition(2).write.parquet(str(tmp_path / "typed"))
    enabled.read.parquet(str(tmp_path / "typed")).createOrReplaceTempView("typed")
    enable(enabled)
    plain = [f"c{n}" for n, name in enumerate(TYPES) if not name.startswith("interval")]
    text = "select b.k, {} from sales a join typed b on a.id = b.k"
    frame = enabled.sql(text.format(", ".join(plain)))
    assert BYTES in plan_of(frame)
    assert_same_rows(frame.toArrow(), native(enabled, text.format(", ".join(plain))), check_nullability=True)
    others = enabled.sql(text.format(f"c{len(TYPES) - 1}"))
    assert BYTES not in plan_of(others), "intervals are not known to have one Arrow form here and in the JVM"
    assert_same_rows(others.toArrow(), native(enabled, text.format(f"c{len(TYPES) - 1}")))
    for view in ("ids", "typed"):
        enabled.catalog.dropTempView(view)


def test_nothing_runs_before_an_action_and_plans_run_again(enabled: SparkSession) -> None:
    tracker = enabled.sparkContext.statusTracker()
    context = enabled.sparkContext
    context.setJobGroup("transport", "planning")
    frame = enabled.sql(SQL)
    assert BYTES in plan_of(frame)
    assert not tracker.getJobIdsForGroup("transport")
    expected = native(enabled, SQL)
    assert_same_rows(frame.toArrow(), expected)
    assert tracker.getJobIdsForGroup("transport"), "the query's jobs belong to the group of its thread"
    assert_same_rows(frame.toArrow(), expected)
    assert frame.where("item > 10").count() == sum(item > 10 for item in expected["item"].to_pylist())
    cached = frame.cache()
    assert_same_rows(cached.toArrow(), expected)
    assert_same_rows(cached.toArrow(), expected)
    cached.unpersist()
    assert sorted(frame.rdd.map(lambda row: row.id).collect()) == sorted(expected["id"].to_pylist())
    pair = frame.alias("x").join(frame.alias("y"), "item")
    assert pair.count() == len(pair.collect()) > 0
    context._jsc.clearJobGroup()


def test_partitions_of_a_part_have_their_own_numbers_below_a_union_and_a_coalesce(enabled: SparkSession) -> None:
    """Spark's task then has another number than the partition that it computes, or computes several."""
    groups = "select k, count(*) as n from {} group by k having n > 0"
    for text in (
        f"{groups.format('sales')} union all {groups.format('items')}",
        f"select /*+ coalesce(1) */ * from ({groups.format('sales')})",
    ):
        expected = native(enabled, text)
        frame = enabled.sql(text)
        assert BYTES in plan_of(frame)
        assert_same_rows(frame.toArrow(), expected)


def test_parts_that_take_rows_from_spark_exchange_rows(enabled: SparkSession) -> None:
    enabled.range(50).selectExpr("id as k").cache().createOrReplaceTempView("cached")
    text = "select a.id, c.k from sales a join cached c on a.k = c.k"
    enabled.conf.set("spark.gpujoin.strategy", "shuffle")
    frame = enabled.sql(text)
    plan = plan_of(frame)
    assert "GpuJoinIsland island_" in plan
    assert BYTES not in plan
    assert_same_rows(frame.toArrow(), native(enabled, text))
    enabled.catalog.uncacheTable("cached")
    enabled.catalog.dropTempView("cached")


def test_a_spark_that_lacks_a_class_exchanges_rows(enabled: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = compiled.new_instance

    def lacking(names: Any, name: str, *arguments: Any) -> Any:
        if name == "ByteExchange":
            raise GpuJoinError("Spark's driver refuses gpujoin's ByteExchange.java")
        return plain(names, name, *arguments)

    monkeypatch.setattr(compiled, "new_instance", lacking)
    monkeypatch.setattr(running, "byte_exchange", inspect.unwrap(compiled.byte_exchange))
    frame = enabled.sql(SQL)
    assert ROWS in plan_of(frame)
    assert_same_rows(frame.toArrow(), native(enabled, SQL))


# -- memory outside of the heap ----------------------------------------------------------------------------------

LETTERS = 400


def _written(frame: DataFrame) -> int:
    seen = Observation()
    frame.observe(seen, sf.count("*").alias("n")).write.format("noop").mode("overwrite").save()
    return int(seen.get["n"])


def _of_greatest(frame: DataFrame) -> int:
    """Count the rows, with the least and the greatest text of all batches beside them."""
    ((rows, least, greatest),) = frame.selectExpr("count(*)", "min(s)", "max(s)").collect()
    assert (least, greatest) == (f"{0:0{LETTERS}}", f"{199:0{LETTERS}}")
    return int(rows)


def _cached(frame: DataFrame) -> int:
    frame.cache()
    try:
        return frame.count()
    finally:
        frame.unpersist()


ACTIONS: dict[str, Callable[[DataFrame], int]] = {
    "write": _written,
    "toArrow": lambda frame: frame.toArrow().num_rows,
    "greatest text": _of_greatest,
    "coalesced": lambda frame: frame.coalesce(1).selectExpr("max(s)", "count(*)").collect()[0][1],
    "collect": lambda frame: len(frame.collect()),
    "toLocalIterator": lambda frame: sum(1 for _ in frame.toLocalIterator()),
    "cache": _cached,
    "sort": lambda frame: frame.sort("s", "k").count(),
    "python": lambda frame: frame.mapInArrow(lambda batches: batches, frame.schema).count(),
}


@contextmanager
def direct_memory_limited(session: SparkSession, further: int) -> Iterator[None]:
    """Let Arrow take only so many bytes outside of the JVM's heap beyond what it has; more is an error of the task."""
    jvm: Any = session._jvm
    allocator = jvm.org.apache.spark.sql.util.ArrowUtils.rootAllocator()
    before = allocator.getAllocatedMemory()
    allocator.setLimit(before + further)
    try:
        yield
        assert allocator.getAllocatedMemory() == before, "batches were not closed"
    finally:
        allocator.setLimit((1 << 63) - 1)


def write_texts(path: Path, rows: int) -> None:
    """Write rows whose long texts are a dictionary's, so that the file is small."""
    texts = pa.array([f"{n:0{LETTERS}}" for n in range(200)])
    codes = pa.array((n % 200 for n in range(rows)), pa.int32())
    table = pa.table({"k": pa.array(range(rows), pa.int64()), "s": pa.DictionaryArray.from_arrays(codes, texts)})
    pq.write_table(table.cast(pa.schema({"k": pa.int64(), "s": pa.string()})), path)


@pytest.mark.parametrize(
    ("action", "transport"),
    each_once(
        list(ACTIONS),
        [each.value for each in Transport],
        extra=[*(ACTIONS.keys() - {"write", "greatest text"}), Transport.ROWS.value],
    ),
)
def test_a_task_has_few_of_its_batches_outside_of_the_heap(
    enabled: SparkSession, tmp_path: Path, action: str, transport: str
) -> None:
    rows = 40_000
    write_texts(tmp_path / "texts.parquet", rows)
    for key, value in {
        "spark.gpujoin.exchange.transport": transport,
        "spark.gpujoin.batchBytes": "1m",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    }.items():
        enabled.conf.set(key, value)
    texts = enabled.read.parquet(str(tmp_path / "texts.parquet"))
    frame = texts.join(texts.select("k"), "k")
    assert (BYTES not in plan_of(frame)) is (transport == Transport.ROWS.value)
    with direct_memory_limited(enabled, further=9 << 20):
        assert ACTIONS[action](frame) == rows


@pytest.mark.slow
def test_a_task_that_gives_a_gigabyte_has_few_of_its_batches_outside_of_the_heap(
    enabled: SparkSession, tmp_path: Path
) -> None:
    rows = (1 << 30) // LETTERS
    write_texts(tmp_path / "texts.parquet", rows)
    enabled.conf.set("spark.gpujoin.exchange.partitions", "1")
    texts = enabled.read.parquet(str(tmp_path / "texts.parquet"))
    frame = texts.join(texts.select("k"), "k")
    assert BYTES in plan_of(frame)
    with direct_memory_limited(enabled, further=96 << 20):
        assert _written(frame) == rows


@pytest.mark.slow
def test_more_partitions_than_spark_writes_a_file_for_each(enabled: SparkSession) -> None:
    enabled.conf.set("spark.gpujoin.exchange.partitions", "230")
    enabled.conf.set("spark.gpujoin.strategy", "shuffle")
    text = "select count(*) n, sum(a.id) s from sales a join items b on a.k = b.k"
    frame = enabled.sql(text)
    assert BYTES in plan_of(frame)
    assert_same_rows(frame.toArrow(), native(enabled, text))
