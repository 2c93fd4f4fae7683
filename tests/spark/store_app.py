"""A Spark application that reads tables in stores: Spark by a stand-in for Hadoop's client, workers from a server.

Run as ``python store_app.py SCHEME BUCKET``; prints lines of JSON among the logs, which have all that can be logged.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from gpujoin import disable, enable, explain, metrics

EXCHANGED = {
    "spark.gpujoin.backend": "cpu",
    "spark.gpujoin.scan.oneTaskBytes": "1",
    "spark.gpujoin.scan.taskBytes": "1",
    "spark.gpujoin.broadcastThreshold": "1",
    "spark.gpujoin.exchange.partitions": "2",
}
QUERY = "select b.s, count(*) n, sum(a.n) t from a join b on a.n = b.n where a.n > 10 group by b.s order by b.s"


def rows_of(frame: DataFrame) -> list[list[Any]]:
    return [list(row) for row in frame.collect()]


def told(name: str, value: object) -> None:
    sys.stdout.write(json.dumps({"name": name, "value": value}) + "\n")
    sys.stdout.flush()


def main(scheme: str, bucket: str) -> None:
    logging.basicConfig(level=logging.DEBUG)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in {**EXCHANGED, "spark.gpujoin.fallback": "raise", "spark.log.level": "DEBUG"}.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.gpujoin.scan.schemes", f"file,{scheme}").getOrCreate()
    try:
        for name in ("a", "b"):
            spark.read.parquet(f"{scheme}://{bucket}/{name}").createOrReplaceTempView(name)
        told("spark", rows_of(spark.sql(QUERY)))
        enable(spark)
        frame = spark.sql(QUERY)
        told("explain", str(explain(frame)))
        told("here", rows_of(frame))
        told("metrics", repr(metrics(frame)))
        frame.explain("extended")
        disable(spark)
        spark.conf.set("spark.gpujoin.fallback", "warn")
        enable(spark)
        frame = spark.sql(QUERY)
        frame._jdf.queryExecution().executedPlan()
        sys.stdin.readline()  # the test removes an object
        told("removed", rows_of(frame))
        disable(spark)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
