"""A driver that runs accelerated queries and overwrites a table until it is told to end by a signal.

Run as ``python -m tests.chaos.driverprogram FOLDER``; prints a line when it has begun, and one before each query.
"""

from __future__ import annotations

import faulthandler
import itertools
import signal
import sys

from pyspark.sql import SparkSession

from gpujoin import enable
from tests.chaos.tables import EXCHANGED, QUERIES, joined_rows, register, write_tables


def main(folder: str) -> None:
    """Run queries until the process ends."""
    faulthandler.register(signal.SIGUSR1)  # tells where it is, if it does not end
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.local.dir", f"{folder}/local")
    session = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "OFF").getOrCreate()
    write_tables(session, folder)
    register(session, folder)
    joined_rows(session, 0).write.parquet(f"{folder}/out")
    for key, value in {
        **EXCHANGED,
        "spark.gpujoin.memoryBudget": "50k",
        "spark.gpujoin.spillDir": f"{folder}/spill",
    }.items():
        session.conf.set(key, value)
    enable(session)
    print("ready", flush=True)
    for number in itertools.count(1):
        for name, text in QUERIES.items():
            print(name, flush=True)
            session.sql(text).toArrow()
        print(f"overwrite {number}", flush=True)
        joined_rows(session, number).write.mode("overwrite").parquet(f"{folder}/out")


if __name__ == "__main__":
    main(sys.argv[1])
