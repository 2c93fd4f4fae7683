"""A Spark application for the tests of a real cluster: the queries of TPC-H, in some of which tasks are disturbed.

Run as ``python tpch_cluster_app.py MASTER DATA FLAGS [QUERY …]``; prints one line of JSON for each query.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.tpch.answers import SUITE
from gpujoin import disable, enable, explain, metrics
from gpujoin.cli.demo.data import TABLES
from gpujoin.plan import late_broadcast
from gpujoin.spark.query import running
from gpujoin.testing import assert_same_rows
from tests.spark.query.faults import DisturbedShare, DisturbedStage

SHARED = 23
"""Number of a query that TPC-H has not: a stage gives its rows to two others."""
SHARED_TEXT = """
with sums as (select l_suppkey s, l_linenumber n, sum(l_quantity) q from lineitem group by l_suppkey, l_linenumber)
select a.s, a.n, a.q, b.q as before from sums a full join (select s + 1 as s, n, q from sums) b
on a.s = b.s and a.n = b.n
"""
SPLIT = 24
"""Another one: many orders are of one customer, so that a partition is heavy."""
SPLIT_TEXT = """
with o as (select if(o_orderkey % 2 = 0, 7, o_custkey) k, o_orderkey, o_totalprice from orders where o_orderkey > 0)
select o.o_orderkey, o.o_totalprice, c.c_name, c.c_acctbal from o full join customer c
on o.k = c.c_custkey and o.o_totalprice > c.c_acctbal * 10
"""
DISTURBED = (3, 4, 5, 7, 9, 10, 12, 14, 18, 21, SHARED, SPLIT)
"""In each of these a task fails, and an executor is killed."""
SETTINGS = {
    "spark.executor.memory": "700m",
    "spark.executor.cores": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.task.reaper.enabled": "true",
    "spark.gpujoin.backend": "cpu",
    "spark.gpujoin.fallback": "raise",
    "spark.gpujoin.scan.taskBytes": "1",
    "spark.gpujoin.broadcastThreshold": "1",
    "spark.gpujoin.exchange.partitions": "4",
}
SPLITTING = {
    "spark.gpujoin.exchange.adaptive": "on",
    "spark.gpujoin.exchange.partitions": "8",
    "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "2",
    "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "16k",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16k",
}
"""Settings by which that partition is split."""


def told(session: SparkSession, flags: str, number: int, text: str) -> dict[str, Any]:
    """Run a query here and in Spark, and tell what happened."""
    disable(session)
    expected = session.sql(text).toArrow()
    enable(session)
    session.conf.set("spark.gpujoin.exchange.adaptive", "on" if number % 2 else "off")
    late_broadcast.STAGE_BYTES = 0  # type: ignore[attr-defined]  # so that inputs as small as these may prove small
    late_broadcast.LateBroadcast.limit = lambda *_: 20_000  # type: ignore[method-assign]
    if number == SPLIT:
        for name, value in SPLITTING.items():
            session.conf.set(name, value)
    plain = running.RunStage
    if number in DISTURBED:
        stage = DisturbedShare if number == SPLIT else DisturbedStage
        running.RunStage = partial(stage, flags=flags, query=number)  # type: ignore[misc, assignment]
    start = time.monotonic()
    try:
        frame = session.sql(text)
        actual = frame.toArrow()
    finally:
        running.RunStage = plain  # type: ignore[misc]
    try:
        assert_same_rows(actual, expected, allow_empty=True)
        assert_same_rows(frame.toArrow(), expected, allow_empty=True)  # of the same plan, after what was lost
        difference = ""
    except AssertionError as problem:
        difference = str(problem)
    found = metrics(frame)
    return {
        "query": number,
        "difference": difference,
        "rows": actual.num_rows,
        "seconds": round(time.monotonic() - start, 1),
        "faults": sorted(path.name for path in Path(flags).glob(f"*-{number}")),
        "explain": str(explain(session.sql(text))),
        "tasks": sum(part.tasks for part in found),
        "metrics": str(found),
    }


def main(master: str, data: str, flags: str, wanted: Sequence[str]) -> None:
    builder = SparkSession.builder.master(master).appName("gpujoin TPC-H on a cluster")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    SUITE.register(session, Path(data))
    for table in TABLES:  # in files that can be divided among tasks
        folder = str(Path(flags).parent / "tables" / table)
        session.table(table).repartition(4).write.parquet(folder)
        session.read.parquet(folder).createOrReplaceTempView(table)
    with SUITE.connect(Path(data)) as connection:
        texts = {**SUITE.texts(connection), SHARED: SHARED_TEXT, SPLIT: SPLIT_TEXT}
    for number, text in texts.items():
        if not wanted or str(number) in wanted:
            print(json.dumps(told(session, flags, number, text)), flush=True)
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
