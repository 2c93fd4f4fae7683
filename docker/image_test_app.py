"""A program for spark-submit that does not name gpujoin: a join of two tables, aggregated, of known sums.

`scripts/image_test.sh` runs it in containers of the image. The argument is a folder that it writes, and that executors
see under the same path.
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf


def main(folder: str) -> None:
    """Write two tables, join and aggregate them, and check the sums."""
    os.umask(0)
    spark = SparkSession.builder.appName("image test").config("spark.gpujoin.backend", "cpu").getOrCreate()
    rows = 100_000
    orders = spark.range(rows).selectExpr("id", "id % 100 as customer", "id % 7 as cents")
    orders.write.mode("overwrite").parquet(f"{folder}/orders")
    spark.range(100).selectExpr("id as customer", "id % 4 as segment").write.mode("overwrite").parquet(
        f"{folder}/customers"
    )
    frame = (
        spark.read.parquet(f"{folder}/orders")
        .join(spark.read.parquet(f"{folder}/customers"), "customer")
        .groupBy("segment")
        .agg(sf.sum("cents").alias("cents"), sf.count("*").alias("rows"))
    )
    collected = sorted((row.segment, row.rows, row.cents) for row in frame.collect())
    sums = dict.fromkeys(range(4), 0)
    for number in range(rows):
        sums[number % 100 % 4] += number % 7
    assert collected == [(segment, rows // 4, sums[segment]) for segment in range(4)], collected
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "MapInArrow island" in plan, plan
    print("image-test: gpujoin ran the join, and the sums are right")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
