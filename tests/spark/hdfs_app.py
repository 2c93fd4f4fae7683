"""A Spark application that reads tables in HDFS: Spark by a stand-in for Hadoop's client, workers by one for libhdfs.

Run as ``python hdfs_app.py MODE``. Modes say where the library is found: ``everywhere``, on the ``driver`` alone, or
``nowhere``. Prints lines of JSON.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from gpujoin import disable, enable, explain
from tests.hdfs import FOLDER_VARIABLE, Hdfs
from tests.spark.store_app import EXCHANGED, QUERY, rows_of, told

NAME_NODE = "hdfs://nn:8020"
TABLES = {"a": f"{NAME_NODE}/tables/a", "b": "hdfs:///tables/b"}
"""By the name node's own name, and by that of the default file system."""
OTHERS = {
    "partitions": "select k, count(*) n, sum(n) t from p where k > 0 group by k order by k",
    "orc": "select o.s, count(*) n from o join b on o.n = b.n group by o.s order by o.s",
}


def main(mode: str) -> None:
    logging.basicConfig()
    library = os.environ["ARROW_LIBHDFS_DIR"] if mode == "everywhere" else os.environ.pop("ARROW_LIBHDFS_DIR")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in EXCHANGED.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.gpujoin.scan.schemes", "file,hdfs").getOrCreate()
    if mode == "driver":  # workers have the environment of the JVM
        os.environ["ARROW_LIBHDFS_DIR"] = library
    try:
        for name, path in TABLES.items():
            spark.read.parquet(path).createOrReplaceTempView(name)
        spark.read.parquet(f"{NAME_NODE}/tables/p").createOrReplaceTempView("p")
        spark.read.orc(f"{NAME_NODE}/tables/o").createOrReplaceTempView("o")
        told("spark", rows_of(spark.sql(QUERY)))
        told("others of spark", {name: rows_of(spark.sql(text)) for name, text in OTHERS.items()})
        spark.conf.set("spark.gpujoin.fallback", "raise" if mode == "everywhere" else "warn")
        enable(spark)
        frame = spark.sql(QUERY)
        told("explain", str(explain(frame)))
        told("here", rows_of(frame))
        if mode == "everywhere":
            told("others", {name: rows_of(spark.sql(text)) for name, text in OTHERS.items()})
            told("explain others", {name: str(explain(spark.sql(text))) for name, text in OTHERS.items()})
            with_faults(spark, Hdfs(Path(os.environ[FOLDER_VARIABLE])))
        disable(spark)
    finally:
        spark.stop()


def with_faults(spark: SparkSession, hdfs: Hdfs) -> None:
    frame = planned(spark)
    hdfs.fail("read", errno.EIO, position=600)
    told("a fault that ends the query", failure_of(frame))
    spark.conf.set("spark.gpujoin.fallback", "warn")
    told("a fault", rows_of(planned(spark)))
    hdfs.mend()
    told("after it", rows_of(spark.sql(QUERY)))
    frame = planned(spark)
    file = next(hdfs.root.glob("nn/tables/a/2*"))
    pq.write_table(pa.table({"n": range(30), "s": ["new"] * 30}), file)
    told("changed", rows_of(frame))
    disable(spark)
    told("changed of spark", rows_of(spark.sql(QUERY)))


def planned(spark: SparkSession) -> DataFrame:
    frame = spark.sql(QUERY)
    frame._jdf.queryExecution().executedPlan()
    return frame


def failure_of(frame: DataFrame) -> str:
    try:
        return f"no failure: {rows_of(frame)}"
    except Exception as problem:  # noqa: BLE001
        return str(problem)


if __name__ == "__main__":
    arguments: list[Any] = sys.argv[1:]
    main(*arguments)
