"""Log lines: a regular expression of Python's, for the lines of some services, by status.

A plain function of Python (`udf`) parses the lines of services that an owner is responsible for. The join leaves a
tenth of the lines, and the function is called for these.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from benchmarks.recipes.files import put, texts

TABLES = ("lines", "services")


def write(folder: Path, rows: int) -> None:
    """Write the tables; ``rows`` are those of the lines."""
    rng = np.random.default_rng(12)
    status, millis = rng.choice([200, 200, 200, 404, 500], rows), rng.integers(1, 900, rows)
    parts = zip(rng.integers(0, 5000, rows), status, millis, strict=True)
    lines = [f'GET /item/{item} HTTP/1.1" {code} rt={time}ms' for item, code, time in parts]
    put(folder, "lines", pa.table({"service": rng.integers(0, 200, rows), "line": lines}), files=4)
    put(folder, "services", pa.table({"service": np.arange(200), "owner": texts("team", 200, 10)}))


def run(spark: SparkSession, folder: Path) -> Sequence[DataFrame]:  # noqa: ARG001 - every recipe takes it
    """Give how many requests there were, and how long they took, by status."""
    import re

    pattern = re.compile(r'/item/(\d+) .*" (\d{3}) rt=(\d+)ms')

    @sf.udf("status int, millis int")
    def parsed(line: str) -> tuple[int, int] | None:
        found = pattern.search(line)
        return None if found is None else (int(found[2]), int(found[3]))

    ours = spark.table("services").where("owner = 'team 3'")
    lines = spark.table("lines").join(ours, "service").select(parsed("line").alias("p"))
    return [lines.groupBy("p.status").agg(sf.count("*"), sf.avg("p.millis"))]
