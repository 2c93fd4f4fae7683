"""A Spark application for the tests of exchanged bytes under settings that a running session cannot change.

Run as ``python transport_app.py FOLDER [KEY=VALUE …]``; prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from gpujoin import enable
from gpujoin.testing import assert_same_rows
from tests.spark.query.queries import EXCHANGED, write_tables

SQL = "select a.id, a.s, b.item, b.cost, a.day from sales a join items b on a.k = b.k"
LARGE = "select b.k, length(b.s) n, sha(b.s) h from large b join sales a on a.id = b.k"
LARGE_BYTES = 90 << 20
"""More than Kryo's buffer may grow to by default."""


def main(folder: str, settings: Sequence[str]) -> None:
    builder = SparkSession.builder.master("local[2]")
    given = dict(setting.split("=", 1) for setting in settings)
    for key, value in {**EXCHANGED, "spark.ui.enabled": "false", "spark.driver.memory": "2g", **given}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    write_tables(session, Path(folder))
    long = f"repeat('x', if(id = 1, {LARGE_BYTES}, 1)) s"
    session.range(1, 3).selectExpr("id k", long).write.parquet(f"{folder}/large")
    session.read.parquet(f"{folder}/large").createOrReplaceTempView("large")
    expected = [session.sql(text).toArrow() for text in (SQL, LARGE)]
    enable(session)
    frames = [session.sql(text) for text in (SQL, LARGE)]
    plans = [str(frame._jdf.queryExecution().executedPlan().toString()) for frame in frames]
    for frame, rows in zip(frames, expected, strict=True):
        assert_same_rows(frame.toArrow(), rows)
    print(json.dumps({"bytes": ["of stages that exchange bytes" in plan for plan in plans]}), flush=True)
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
