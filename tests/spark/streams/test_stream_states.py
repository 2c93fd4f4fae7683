"""Who goes on with the state of a stream: restarts, other settings, other joins, sessions with and without gpujoin."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

import gpujoin
from gpujoin import gpu_join
from gpujoin.errors import StreamStateError
from gpujoin.streams.microbatches import OPERATOR
from tests.spark.streams.queries import (
    FORMS,
    SPARKS_OPERATOR,
    Output,
    Streams,
    assert_equal,
    progress_of,
    started,
)

pytestmark = pytest.mark.spark


@pytest.fixture
def streams(tmp_path: Path, request: pytest.FixtureRequest) -> Streams:
    """Two streams of two micro-batches."""
    return Streams.drawn(random.Random(request.node.name), tmp_path, FORMS["range"], "inner", batches=2)


def begun(streams: Streams, spark: SparkSession, name: str = "begun") -> Path:
    """Run the first micro-batch of the query; gives the folder of its files, in which its checkpoint is."""
    source = streams.folder / name
    streams.write(source, 0, 1)
    started(streams.joined(spark, source), source / "checkpoint")
    streams.write(source, 1, 2)
    return source


def test_state_that_spark_has_written_stays_sparks(
    streaming: SparkSession, streams: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    source = begun(streams, streaming)
    gpujoin.enable(streaming)
    with caplog.at_level(logging.WARNING, logger="gpujoin"):
        output = started(streams.joined(streaming, source), source / "checkpoint")
    assert output.operators == {SPARKS_OPERATOR}
    told = [record.getMessage() for record in caplog.records if "its state was written by Spark" in record.getMessage()]
    assert len(told) == 1
    assert SPARKS_OPERATOR in told[0]
    assert "a new checkpoint" in told[0]


@pytest.mark.extra
def test_sessions_without_gpujoin_refuse_state_that_was_written_here(streaming: SparkSession, streams: Streams) -> None:
    gpujoin.enable(streaming)
    source = begun(streams, streaming)
    gpujoin.disable(streaming)
    with pytest.raises(StreamingQueryException, match=f"(?i){OPERATOR}"):
        started(streams.joined(streaming, source), source / "checkpoint")
    gpujoin.enable(streaming)
    assert started(streams.joined(streaming, source), source / "checkpoint").operators == {OPERATOR}


@pytest.mark.slow
def test_a_stream_goes_on_when_gpujoin_is_disabled(streaming: SparkSession, streams: Streams) -> None:
    expected = streams.run(streaming, "spark", restarts=[1])
    gpujoin.enable(streaming)
    source = streams.folder / "here"
    streams.write(source, 0, 1)
    output = Output()

    def collect(frame: DataFrame, batch: int) -> None:
        frame.toArrow()
        gpujoin.disable(streaming)

    writer = streams.joined(streaming, source).writeStream.foreachBatch(collect)
    query = writer.option("checkpointLocation", str(source / "checkpoint")).start()
    try:
        query.processAllAvailable()
        streams.write(source, 1, 2)
        query.processAllAvailable()
        output.progress = progress_of(query)
    finally:
        query.stop()
    assert output.operators == {OPERATOR}
    counted = [step["observedMetrics"]["gpujoin"]["output_rows"] for step in output.progress if step["observedMetrics"]]
    assert sum(counted) == expected.total > 0


@pytest.mark.extra
def test_another_join_is_refused(streaming: SparkSession, streams: Streams) -> None:
    gpujoin.enable(streaming)
    source = begun(streams, streaming)
    streams.form = FORMS["range, strict"]
    with pytest.raises(StreamingQueryException, match="of another join") as problem:
        started(streams.joined(streaming, source), source / "checkpoint")
    text = str(problem.value)
    assert "micro-batch 1" in text or "micro-batch 2" in text
    assert "partition" in text
    assert "query " in text


@pytest.mark.extra
def test_settings_that_state_of_gpujoin_cannot_go_on_with_are_refused(
    streaming: SparkSession, streams: Streams
) -> None:
    gpujoin.enable(streaming)
    source = begun(streams, streaming)
    streaming.conf.set("spark.gpujoin.disable", "streams")
    with pytest.raises(StreamStateError, match=r"cannot go on with it: .*spark\.gpujoin\.disable"):
        started(streams.joined(streaming, source), source / "checkpoint")


@pytest.mark.slow
def test_the_checkpoint_keeps_the_number_of_partitions(streaming: SparkSession, streams: Streams) -> None:
    expected = streams.run(streaming, "spark", restarts=[1])
    gpujoin.enable(streaming)
    source = begun(streams, streaming, "here")
    streaming.conf.set("spark.sql.shuffle.partitions", "5")
    output = started(streams.joined(streaming, source), source / "checkpoint")
    assert output.operators == {OPERATOR}
    last = max(expected.rows)
    assert output.rows[last - 1] == expected.rows[last - 1]
    assert output.rows[last] == expected.rows[last]


@pytest.mark.extra
def test_a_checkpoint_with_another_number_of_partitions_is_refused(streaming: SparkSession, streams: Streams) -> None:
    """Spark moves the state to other partitions by the key of a group; rows of a key would go to another group."""
    manager = getattr(streaming, "_streamingCheckpointManager", None)
    if manager is None:
        pytest.skip("Spark 4.2 and newer give a checkpoint another number of partitions")
    gpujoin.enable(streaming)
    source = begun(streams, streaming)
    manager.repartition(str(source / "checkpoint"), 3)
    with pytest.raises(StreamingQueryException, match="begun with 2 partitions, and the query has 3 now"):
        started(streams.joined(streaming, source), source / "checkpoint")


@pytest.mark.extra
def test_gpu_join_in_a_session_that_is_not_enabled(streaming: SparkSession, streams: Streams) -> None:
    expected = streams.run(streaming, "spark")
    assert_equal(streams.run(streaming, "here", join=gpu_join), expected, "gpu_join")


@pytest.mark.slow
def test_update_mode_and_tables(streaming: SparkSession, streams: Streams) -> None:
    expected = streams.run(streaming, "spark")
    gpujoin.enable(streaming)
    source = streams.folder / "update"
    streams.write(source, 0, 2)
    output = started(streams.joined(streaming, source), source / "checkpoint", "update")
    assert output.operators == {OPERATOR}
    assert output.total == expected.total
    query = (
        streams.joined(streaming, source)
        .writeStream.option("checkpointLocation", str(source / "table"))
        .trigger(availableNow=True)
        .toTable("joined_streams")
    )
    try:
        query.awaitTermination(300)
        assert query.lastProgress is not None
        assert query.lastProgress["stateOperators"][0]["operatorName"] == OPERATOR
        assert streaming.table("joined_streams").count() == expected.total
    finally:
        query.stop()
        streaming.sql("drop table joined_streams")


@pytest.mark.slow
def test_a_failed_micro_batch_is_run_again(streaming: SparkSession, streams: Streams) -> None:
    """The sink fails after the join has written its state, which is of no micro-batch that was committed."""
    expected = streams.run(streaming, "spark")
    gpujoin.enable(streaming)
    source = streams.folder / "here"
    streams.write(source, 0, 2)
    failed: list[int] = []

    def fail_once(frame: DataFrame, batch: int) -> None:
        frame.toArrow()
        if batch == 1 and not failed:
            failed.append(batch)
            raise RuntimeError("the sink is full")

    writer = streams.joined(streaming, source).writeStream.foreachBatch(fail_once)
    query = writer.option("checkpointLocation", str(source / "checkpoint")).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        query.awaitTermination(300)
    rest = started(streams.joined(streaming, source), source / "checkpoint")
    assert {batch: rows for batch, rows in expected.rows.items() if batch >= 1} == rest.rows


@pytest.mark.slow
@pytest.mark.parametrize("how", ["inner", "left"])
def test_unions_and_tables_below_the_join(streaming: SparkSession, streams: Streams, how: str) -> None:
    """A union of streams on the left, a table joined on the right: neither keeps state."""
    streams.how = how
    names = streaming.createDataFrame([(1, "one"), (2, "two")], "k long, name string")

    def around(left: DataFrame, right: DataFrame, on: Column, how: str) -> DataFrame:
        both = left.unionByName(left.withColumn("s", f.lit("again"))).alias("l")
        return both.join(right.join(names, "k", "left").alias("r"), on, how)

    expected = streams.run(streaming, "spark", join=around)
    gpujoin.enable(streaming)
    assert_equal(streams.run(streaming, "here", join=around), expected, how)


@pytest.mark.slow
def test_columns_of_every_type_in_another_time_zone(streaming: SparkSession, tmp_path: Path) -> None:
    streaming.conf.set("spark.sql.session.timeZone", "America/New_York")
    columns = (
        "id as k", "timestamp_micros(1000000000000000 + id * 1000001) as t", "cast(id as byte) as a", "id % 2 = 0 as b",
        "cast(id as decimal(38, 10)) as c", "date_add(date'2026-01-01', cast(id as int)) as d",
        "timestamp_ntz'2026-03-08 02:30:00' as e", "array(id, null) as f", "map('x', id) as g",
        "named_struct('p', id, 'q', array(cast(id as string))) as h", "cast('z' as binary) as i",
        "make_dt_interval(0, 0, 0, id) as j", "cast(if(id = 3, null, id) as float) as l",
    )  # fmt: skip
    for name in ("l", "r"):
        streaming.range(0, 20, 1, 1).selectExpr(*columns).write.parquet(str(tmp_path / name))
    given = streaming.read.parquet(str(tmp_path / "l")).schema

    def joined() -> DataFrame:
        sides = [
            streaming.readStream.schema(given).parquet(str(tmp_path / name)).withWatermark("t", "5 seconds")
            for name in ("l", "r")
        ]
        on = f.expr("l.k = r.k + 2 and r.t >= l.t - interval 10 seconds and r.t <= l.t")
        return sides[0].alias("l").join(sides[1].alias("r"), on, "full")

    expected = started(joined(), tmp_path / "spark")
    gpujoin.enable(streaming)
    assert_equal(started(joined(), tmp_path / "here"), expected, "types")
    assert expected.total >= 15
