"""A program for spark-submit: how much each customer segment spends, printed. It does not know gpujoin.

Nothing in the program changes: `--conf spark.gpujoin.enabled=true` on the command line of `spark-submit`, or the same
line in `spark-defaults.conf`, enables its sessions. The seconds are those of the whole command, the starts of Java and
of the workers included.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(folder: str) -> None:
    """Read, join, aggregate, print."""
    spark = SparkSession.builder.getOrCreate()
    orders, customers = (spark.read.parquet(f"{folder}/{name}") for name in ("orders", "customers"))
    spending = orders.where("status != 'status 0'").join(customers, "customer").groupBy("segment", "status")
    for row in spending.agg({"cents": "sum", "customer": "count"}).orderBy("segment", "status").collect():
        print(*row)
    print("by gpujoin" if "gpujoin" in sys.modules else "by Spark")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
