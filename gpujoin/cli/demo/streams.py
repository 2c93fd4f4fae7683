"""The demo's join of two streams: orders and the lines that are shipped of them, by Spark's operator and here.

The tables become files, one of each side for each stretch of time. Spark reads one file of each side in a micro-batch,
and what a micro-batch returns is written by both ways and compared.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpujoin.cli.demo.check import compare, create_views, parquet, quoted
from gpujoin.cli.demo.show import Outcome, Progress, failed

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import DataFrame, SparkSession

TITLE = "orders, and lines shipped in 60 days"
HOW = "left"
BATCHES = 4
"""Files of each side."""
_ON = "l_orderkey = o_orderkey AND shipped BETWEEN ordered AND ordered + INTERVAL 60 DAYS"
_DELAY = "730 days"
_LAST_ORDER_KEY = 600_000
"""That of scale 0.1: at larger scales the stream has as many orders, so that it takes no longer."""
_BEGIN, _END = dt.date(1992, 1, 1), dt.date(1998, 12, 31)
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass(frozen=True, slots=True)
class _Side:
    """A table that is read as a stream."""

    table: str
    columns: str
    """What is read of it, as a schema in SQL."""
    key: str
    date: str
    time: str
    """The column by whose dates the table is cut into files, and the event time that is made of it."""

    def frame(self, spark: SparkSession, folder: Path) -> DataFrame:
        """The stream of the files of a folder."""
        from pyspark.sql import functions as sf

        reader = spark.readStream.schema(self.columns).option("maxFilesPerTrigger", 1)
        rows = reader.parquet(str(folder / self.table))
        return rows.withColumn(self.time, sf.col(self.date).cast("timestamp")).withWatermark(self.time, _DELAY)

    def write(self, connection: duckdb.DuckDBPyConnection, folder: Path, batches: int) -> None:
        """Write the files of the table, which is known to DuckDB."""
        (folder / self.table).mkdir(parents=True)
        names = ", ".join(column.split()[0] for column in self.columns.split(", "))
        days = (_END - _BEGIN).days // batches + 1
        for batch in range(batches):
            file = folder / self.table / f"{batch}.parquet"
            first, end = (_BEGIN + dt.timedelta(days * number) for number in (batch, batch + 1))
            connection.execute(
                f"COPY (SELECT {names} FROM {self.table} WHERE {self.key} <= {_LAST_ORDER_KEY} "  # noqa: S608
                f"AND {self.date} >= DATE '{first}' AND {self.date} < DATE '{end}') "
                f"TO '{quoted(file)}' (FORMAT parquet)"
            )
            os.utime(file, (1_700_000_000 + batch,) * 2)  # Spark takes the oldest first


_ORDERS = _Side(
    "orders", "o_orderkey bigint, o_custkey bigint, o_orderpriority string, o_orderdate date",
    "o_orderkey", "o_orderdate", "ordered",
)  # fmt: skip
_LINES = _Side(
    "lineitem", "l_orderkey bigint, l_linenumber int, l_partkey bigint, l_shipmode string, l_shipdate date",
    "l_orderkey", "l_shipdate", "shipped",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StreamResult:
    """What came of the stream."""

    outcomes: tuple[Outcome, ...] = ()
    """One for each micro-batch."""
    left_out: str = ""
    """Why the stream was not run, if so."""


def run_stream(spark: SparkSession, data: Path, work: Path, *, batches: int = BATCHES) -> StreamResult:
    """Run the stream by Spark, then with the session enabled, and compare the rows of each micro-batch.

    Parameters
    ----------
    spark : SparkSession
        The session, which is not enabled.
    data : Path
        Folder of the tables.
    work : Path
        Folder for the streams' files, their checkpoints and the rows; executors see it too.
    batches : int
        Files of each side.
    """
    import duckdb

    with duckdb.connect() as connection, Progress(3) as shown:
        shown.step(f"{TITLE}: files")
        create_views(connection, data)
        for side in (_ORDERS, _LINES):
            side.write(connection, work / "files", batches)
        with _enabled(spark):
            reasons = _reasons(_joined(spark, work / "files"))
        if reasons:
            return StreamResult(left_out=reasons)
        try:
            shown.step(f"{TITLE}: Spark")
            in_spark = _run(spark, work, "spark")
            shown.step(f"{TITLE}: gpujoin")
            with _enabled(spark):
                here = _run(spark, work, "here")
        except Exception as problem:  # noqa: BLE001  # a stream that fails is a finding
            outcomes = [failed(("-", "-"), problem)]
        else:
            outcomes = [
                compare_batch(connection, work, batch, here, in_spark) for batch in sorted(here.keys() | in_spark)
            ]
        for outcome in outcomes:
            shown.outcome("stream", f"micro-batch {outcome.labels[0]}", outcome)
    return StreamResult(tuple(outcomes))


@contextmanager
def _enabled(spark: SparkSession) -> Iterator[None]:
    """Have streams that start meanwhile joined here, with their state in RocksDB."""
    import gpujoin

    before = spark.conf.get(_PROVIDER, None)
    spark.conf.set(_PROVIDER, _ROCKSDB)
    gpujoin.enable(spark)
    try:
        yield
    finally:
        gpujoin.disable(spark)
        if before is None:
            spark.conf.unset(_PROVIDER)
        else:
            spark.conf.set(_PROVIDER, before)


def _reasons(joined: DataFrame) -> str:
    """Why Spark would run a join of streams; empty if gpujoin does."""
    import gpujoin

    (join,) = gpujoin.explain(joined).joins
    return "" if join.accelerated else "; ".join(map(str, join.reasons))


def _joined(spark: SparkSession, files: Path) -> DataFrame:
    from pyspark.sql import functions as sf

    return _ORDERS.frame(spark, files).join(_LINES.frame(spark, files), sf.expr(_ON), HOW)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What Spark reports of a micro-batch."""

    new_rows: int
    seconds: float


def _run(spark: SparkSession, work: Path, where: str) -> dict[int, MicroBatch]:
    """Run the stream to the end of its files, and write the rows of each micro-batch."""

    def write(rows: DataFrame, batch: int) -> None:
        rows.write.parquet(str(_written(work, where, batch)), compression="none")

    writer = _joined(spark, work / "files").writeStream.foreachBatch(write).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(work / f"checkpoint-{where}")).start()
    try:
        query.awaitTermination()
        return {
            step["batchId"]: MicroBatch(step["numInputRows"], step["durationMs"]["triggerExecution"] / 1000)
            for step in query.recentProgress
        }
    finally:
        query.stop()


def _written(work: Path, where: str, batch: int) -> Path:
    return work / where / str(batch)


def compare_batch(
    connection: duckdb.DuckDBPyConnection,
    work: Path,
    batch: int,
    here: dict[int, MicroBatch],
    in_spark: dict[int, MicroBatch],
) -> Outcome:
    """Compare the rows of one micro-batch; both may have none."""
    if batch not in here or batch not in in_spark:
        return Outcome((str(batch), "-"), 0, 0.0, 0.0, ("only one of both had this micro-batch",))
    ours, sparks = (parquet(_written(work, where, batch)) for where in ("here", "spark"))
    comparison = compare(connection, ours, sparks)
    return Outcome(
        labels=(str(batch), f"{here[batch].new_rows:,}"),
        rows=comparison.rows,
        seconds=here[batch].seconds,
        spark_seconds=in_spark[batch].seconds,
        differences=comparison.differences if comparison.rows or comparison.other_rows else (),
    )
