"""A driver that joins two streams of files to their end and writes each micro-batch to a file of its own.

Run as ``python -m tests.chaos.streamprogram FOLDER NAME here|spark``; prints the number of each micro-batch, then
``done``. Started again it goes on from its checkpoint; a micro-batch that was written may be written again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from gpujoin import enable
from tests.spark.streaming.queries import PROVIDER, ROCKSDB


def main(folder: Path, name: str, where: str) -> None:
    """Run the query until its files end."""
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.local.dir", f"{folder}/local")
    builder = builder.config(PROVIDER, ROCKSDB).config("spark.sql.shuffle.partitions", "2")
    spark = (
        builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "OFF").getOrCreate()
    )
    if where == "here":
        enable(spark)
    sides = [
        spark.readStream.schema(f"{key} long, {time} timestamp, {value} int")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / side))
        .withWatermark(time, "10 seconds")
        for side, key, time, value in (("left", "k", "t", "v"), ("right", "j", "u", "x"))
    ]
    on = f.expr("k = j and u >= t and u <= t + interval 15 seconds")
    output = folder / name

    def write(frame: DataFrame, batch: int) -> None:
        pq.write_table(frame.toArrow(), output / f"{batch}.tmp")
        (output / f"{batch}.tmp").rename(output / f"{batch}.parquet")
        print(batch, flush=True)

    output.mkdir(exist_ok=True)
    writer = sides[0].join(sides[1], on, "left").writeStream.foreachBatch(write)
    query = (
        writer.option("checkpointLocation", str(folder / f"{name}-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    operators = {o["operatorName"] for step in query.recentProgress for o in step["stateOperators"]}
    print("operators", *sorted(operators), flush=True)
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
