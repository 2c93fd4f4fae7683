"""Broadcast build sides: the payload, the cache of hash tables, and what Spark's workers do with them."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.serializers import pickle_protocol
from pyspark.sql import SparkSession

from gpujoin.config import Options, Strategy
from gpujoin.engine.join.hash_join import HashJoin
from gpujoin.errors import CorruptBlobError, GpuJoinError
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.spark import broadcast
from gpujoin.spark.blobrows import BlobCounts, BlobFormat, Role
from gpujoin.spark.broadcast import BuildCache, make_payload, open_payload, read_payload
from gpujoin.spark.exchange import pack_all
from gpujoin.spark.metrics import Part, TaskRecord
from gpujoin.spark.worker import JoinBroadcast, JoinTerms, Task
from gpujoin.testing import assert_same_rows
from tests.spark.joins import arrow_of, join, join_reports, renamed, spark_join

SCHEMA = pa.schema([pa.field("r0", pa.int64()), pa.field("r1", pa.string())])
FORM = BlobFormat(SCHEMA, Role.BUILD)


def rows(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(np.arange(count)), pa.array([f"ü{n}" for n in range(count)])], schema=SCHEMA
    )


def payload(count: int, blob_bytes: int = 1 << 12) -> broadcast.Payload:
    packed = pack_all([rows(count)] if count else [], FORM, blob_bytes, BlobCounts())
    return make_payload(value.as_buffer() for batch in packed for value in batch.column(2))


class Sent:
    """Looks like a broadcast variable of PySpark in a worker, over a file that PySpark's pickling wrote."""

    def __init__(self, path: Path, value: bytes) -> None:
        with path.open("wb") as file:
            pickle.dump(value, file, pickle_protocol)
        self._path = str(path)


@pytest.mark.parametrize("count", [0, 1, 1000, 100_000])
def test_a_payload_is_mapped_in_place_and_aligned(count: int, tmp_path: Path) -> None:
    sent = payload(count)
    assert sent.rows == count
    buffer = open_payload(Sent(tmp_path / "broadcast", sent.data))
    batches = list(read_payload(buffer, FORM))
    assert sum(batch.num_rows for batch in batches) == count
    if count:
        assert pa.Table.from_batches(batches).to_batches()[0].schema == SCHEMA
        assert pa.Table.from_batches(batches).sort_by("r0").equals(pa.Table.from_batches([rows(count)]))
    if count >= 100_000:  # shorter values are framed by pickle, and cost nothing to copy
        start = buffer.address
        for batch in batches:
            for column in batch.columns:
                for part in column.buffers():
                    if part is not None and part.size:
                        assert start <= part.address < start + buffer.size, "a column was copied"
                        assert part.address % 8 == 0


def test_a_payload_in_a_closure_reads_the_same() -> None:
    batches = list(read_payload(open_payload(payload(500).data), FORM))
    assert pa.Table.from_batches(batches).equals(pa.Table.from_batches([rows(500)]))


def test_every_payload_has_its_own_key() -> None:
    assert payload(1).key != payload(1).key


@pytest.mark.parametrize("damage", ["cut", "flip", "foreign", "empty"])
def test_a_damaged_payload_is_refused(damage: str, tmp_path: Path) -> None:
    data = bytearray(payload(50_000).data)
    if damage == "cut":
        del data[-4096:]
    elif damage == "flip":
        data[len(data) // 2] ^= 1
    else:
        data = bytearray(200_000 if damage == "foreign" else 0)
    with pytest.raises(CorruptBlobError):
        list(read_payload(open_payload(Sent(tmp_path / "broadcast", bytes(data))), FORM))


def test_another_schema_is_refused() -> None:
    other = BlobFormat(pa.schema([pa.field("r0", pa.int64())]), Role.BUILD)
    with pytest.raises(CorruptBlobError, match="schema"):
        list(read_payload(open_payload(payload(5).data), other))


def test_too_large_a_build_side_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "MAX_PAYLOAD_BYTES", 1000)
    with pytest.raises(GpuJoinError, match="shuffle"):
        payload(1000)


# -- the cache ---------------------------------------------------------------------------------------------


def built(count: int) -> Callable[[], HashJoin]:
    def make() -> HashJoin:
        spec = JoinSpec(JoinType.INNER, (KeyPair(0, 0),), left_output=(0,), right_output=(1,))
        made = HashJoin(spec, SCHEMA, SCHEMA)
        made.build([rows(count)])
        return made

    return make


def test_a_hash_table_is_built_once_for_all_threads() -> None:
    cache = BuildCache(1 << 30)
    made: list[HashJoin] = []

    def make() -> HashJoin:
        time.sleep(0.05)
        made.append(built(100)())
        return made[-1]

    found: list[int] = []

    def use() -> None:
        with cache.borrow("k", make) as shared:
            found.append(sum(b.num_rows for b in shared.start().probe([rows(60)])))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert found == [60] * 8


def test_the_least_recently_used_goes_first_and_none_in_use() -> None:
    size = built(1000)().built_bytes
    assert size > 0
    cache = BuildCache(int(2.5 * size))
    with cache.borrow("held", built(1000)):
        for key in ("a", "b"):
            with cache.borrow(key, built(1000)):
                pass
        assert cache.keys() == ("held", "b")
        with cache.borrow("huge", built(10_000)):
            assert "huge" in cache.keys()  # noqa: SIM118
        assert cache.keys() == ("held",)
    cache.drop(lambda key: key == "held")
    assert cache.keys() == ()


def test_a_failed_build_is_not_kept() -> None:
    cache = BuildCache(1 << 30)

    def fail() -> HashJoin:
        raise CorruptBlobError("broken")

    for _ in range(2):
        with pytest.raises(CorruptBlobError, match="broken"), cache.borrow("k", fail):
            pass
    with cache.borrow("k", built(5)) as shared:
        assert shared.built_bytes > 0


# -- in Spark ----------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_every_run_is_reported_by_itself(spark: SparkSession) -> None:
    left = renamed(spark.range(0, 8000, 1, 16), "l")
    right = renamed(spark.range(0, 9000, 3, 4), "r")
    joined = join(left, right, JoinType.INNER, Strategy.BROADCAST)
    for _ in range(2):
        assert_same_rows(arrow_of(joined), arrow_of(spark_join(left, right, JoinType.INNER)))
    (report,) = join_reports(joined)
    assert len(report.runs) == 2
    assert [run.tasks for run in report.runs] == [16, 16]
    assert [run.metrics.output_rows for run in report.runs] == [2667, 2667]
    # How many processes take part is Spark's affair; each of them builds the whole side, or has it already.
    assert report.runs[0].metrics.build_rows > 0
    assert {run.metrics.build_rows % 3000 for run in report.runs} == {0}
    assert report.exchanges[Part.BROADCAST].rows == 3000


@pytest.mark.spark
def test_a_hash_table_is_built_once_per_worker(spark: SparkSession) -> None:
    sent = payload(3000)
    carried = spark.sparkContext.broadcast(sent.data)
    spec = JoinSpec(JoinType.INNER, (KeyPair(0, 0),), left_output=(0,), right_output=(1,))
    work = JoinBroadcast(JoinTerms("once", spec, SCHEMA, SCHEMA, Side.RIGHT, Options(), 1 << 12), sent.key)
    stream = rows(500)

    def twice(_: object) -> list[tuple[int, int, int, int]]:
        records: list[TaskRecord] = []
        task = Task(report=records.append, payload=carried)
        found = [sum(batch.num_rows for batch in work.run([stream], task)) for _ in range(2)]
        first, second = (record.measured.build_rows for record in records)  # type: ignore[union-attr]
        return [(os.getpid(), sum(found), first, second)]

    told = spark.sparkContext.parallelize(range(8), 8).mapPartitions(twice).collect()
    carried.destroy()
    assert [found for _, found, _, _ in told] == [1000] * 8
    assert [second for *_, second in told] == [0] * 8
    built_rows = Counter[int]()
    for process, _, first, _ in told:
        built_rows[process] += first
    assert set(built_rows.values()) == {3000}


@pytest.mark.spark
def test_workers_map_sparks_own_file(spark: SparkSession) -> None:
    """A worker is handed a path in Spark's directories, holding the payload as it was sent."""
    sent = payload(50_000)
    carried = spark.sparkContext.broadcast(sent.data)

    def look(_: object) -> list[tuple[str, bool, int]]:
        buffer = open_payload(carried)
        mapped = carried._path in Path("/proc/self/maps").read_text()
        return [(carried._path, mapped, sum(b.num_rows for b in read_payload(buffer, FORM)))]

    path, mapped, count = spark.sparkContext.parallelize([0], 1).mapPartitions(look).first()
    assert mapped
    assert count == 50_000
    assert Path(path).exists()
    carried.destroy()
    assert not Path(path).exists()


@pytest.mark.spark
def test_null_keys_of_the_build_side_are_not_sent(spark: SparkSession) -> None:
    left = renamed(spark.range(10), "l")
    right = spark.createDataFrame([(1, "a"), (None, "b"), (None, None), (2, None)], "r0 long, r1 string")
    joined = join(left, right, JoinType.LEFT, Strategy.BROADCAST)
    assert_same_rows(arrow_of(joined), arrow_of(spark_join(left, right, JoinType.LEFT)))
    (report,) = join_reports(joined)
    assert report.exchanges[Part.BROADCAST].dropped == 2
    assert report.metrics.build_rows % 2 == 0
