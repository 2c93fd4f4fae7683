"""A Spark application for the tests of a real cluster: the queries of TPC-H, in some of which tasks are disturbed.

Run as ``python tpch_cluster_app.py MASTER DATA FLAGS [QUERY …]``; prints one line of JSON for each query.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock
from unittest.mock import patch

from pyspark.sql import SparkSession

from benchmarks.data import TABLES
from benchmarks.tpch.answers import SUITE
from gpujoin import disable, enable, explain, metrics
from gpujoin.plan import join_parts, late_broadcast, parts
from gpujoin.spark.query import running
from gpujoin.spark.worker.stage import RunStage
from gpujoin.testing import assert_same_rows
from tests.spark.query import faults
from tests.spark.query.faults import DisturbedShare, DisturbedStage

ADAPTIVE = "spark.gpujoin.exchange.adaptive"
SETTINGS = {
    "spark.executor.memory": "700m",
    "spark.executor.cores": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.network.timeout": "600s",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.task.reaper.enabled": "true",
    ADAPTIVE: "off",
    "spark.gpujoin.backend": "cpu",
    "spark.gpujoin.fallback": "raise",
    "spark.gpujoin.scan.oneTaskBytes": "1",
    "spark.gpujoin.scan.taskBytes": "1",
    "spark.gpujoin.broadcastThreshold": "1",
    "spark.gpujoin.exchange.partitions": "4",
}
SPLITTING = {
    ADAPTIVE: "on",
    "spark.gpujoin.exchange.partitions": "8",
    "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "2",
    "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "16k",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16k",
}
"""Settings by which partitions of a few thousand rows are heavy."""
LATE_BYTES = 20_000
"""Most bytes, as Spark compresses them, of an input that proves small."""


@dataclass(frozen=True)
class Case:
    """A query, and which of its tasks are disturbed; ``None``: none is."""

    text: str
    stage: Callable[..., DisturbedStage] | None = DisturbedStage
    where: Callable[[RunStage], bool] = faults.is_any
    settings: Mapping[str, str] = field(default_factory=dict)
    cheap_keys: bool = False
    """Whether it is planned as if it cost nothing to send keys before rows."""


OTHERS = {
    "shared": Case(
        """with sums as (select l_suppkey s, l_linenumber n, sum(l_quantity) q from lineitem group by l_suppkey,
        l_linenumber)
        select a.s, a.n, a.q, b.q as before from sums a full join (select s + 1 as s, n, q from sums) b
        on a.s = b.s and a.n = b.n""",
        settings={ADAPTIVE: "on"},
    ),
    "split": Case(
        """with o as (select if(o_orderkey % 2 = 0, 7, o_custkey) k, o_orderkey, o_totalprice from orders
        where o_orderkey > 0)
        select o.o_orderkey, o.o_totalprice, c.c_name, c.c_acctbal from o full join customer c
        on o.k = c.c_custkey and o.o_totalprice > c.c_acctbal * 10""",
        DisturbedShare,
        settings=SPLITTING,
    ),
    "keys": Case(
        """select l.l_orderkey, l.l_linenumber, l.l_comment, o.o_totalprice from lineitem l join
        (select * from orders where o_orderpriority = '1-URGENT' and o_orderstatus = 'P') o
        on l.l_orderkey = o.o_orderkey""",
        where=faults.drops_rows_by_keys,
        cheap_keys=True,
    ),
    "small": Case(
        """select l.l_orderkey, l.l_linenumber, l.l_comment, o.o_orderpriority p from lineitem l left join
        (select * from orders where o_totalprice > 400000) o on l.l_orderkey = o.o_orderkey""",
        where=faults.joins_what_proved_small,
        settings={ADAPTIVE: "on"},
    ),
    "coalesced": Case(
        """select o.o_orderkey, l.n, l.q from orders o full join (select l_orderkey + 5 k, count(*) n, sum(l_quantity) q
        from lineitem group by l_orderkey) l on o.o_orderkey = l.k""",
        where=faults.is_last_of_several,
        settings={ADAPTIVE: "on", "spark.gpujoin.exchange.partitions": "16"},
    ),
}
"""Queries that TPC-H has not, by what they are for: a stage gives its rows to two others; many orders are of one
customer, so that a partition is heavy; keys are sent before rows are exchanged; a table proves small; partitions do."""
DISTURBED = (3, 4, 5, 7, 9, 10, 12, 14, 18, 21)
"""In each of these a task fails, and an executor is killed."""


def cases(texts: Mapping[int, str]) -> Iterator[tuple[str, Case]]:
    """Give the queries of TPC-H, which is given by number, and the others."""
    for number, text in texts.items():
        adaptive = {ADAPTIVE: "on" if number % 2 else "off"}
        yield str(number), Case(text, DisturbedStage if number in DISTURBED else None, settings=adaptive)
    yield from OTHERS.items()


@contextmanager
def planning_of(session: SparkSession, case: Case) -> Iterator[None]:
    """Have a query planned as it is to be."""
    before = {key: str(session.conf.get(key)) for key in case.settings}
    for key, value in case.settings.items():
        session.conf.set(key, value)
    try:
        with ExitStack() as patches:
            if case.cheap_keys:
                patches.enter_context(mock.patch.multiple(join_parts, WAITING=0, BUILDING=0.0, EXCHANGED=0.0))
                patches.enter_context(mock.patch.multiple(parts, EXCHANGED=1e9))
            yield
    finally:
        for key, value in before.items():
            session.conf.set(key, value)


@contextmanager
def faults_of(case: Case, flags: str, name: str) -> Iterator[None]:
    """Have tasks of what is planned disturbed."""
    if case.stage is not None:
        stage = partial(case.stage, flags=flags, query=name, where=case.where)
        with patch.object(running, "RunStage", stage):
            yield
    else:
        yield


def told(session: SparkSession, flags: str, name: str, case: Case) -> dict[str, Any]:
    """Run a query here and in Spark, and tell what happened."""
    disable(session)
    expected = session.sql(case.text).toArrow()
    enable(session)
    start = time.monotonic()
    with planning_of(session, case):
        with faults_of(case, flags, name):
            frame = session.sql(case.text)
            actual = frame.toArrow()
        seconds = time.monotonic() - start
        measured = metrics(frame)
        try:
            assert_same_rows(actual, expected, allow_empty=True)
            assert_same_rows(frame.toArrow(), expected, allow_empty=True)  # of the same plan, after what was lost
            difference = ""
        except AssertionError as problem:
            difference = str(problem)
        return {
            "query": name,
            "difference": difference,
            "rows": actual.num_rows,
            "seconds": round(seconds, 1),
            "faults": sorted(path.name for path in Path(flags).glob(f"*-{name}")),
            "explain": str(explain(session.sql(case.text))),
            "tasks": sum(part.tasks for part in measured),
            "output": sum(part.metrics.pipeline.output_rows for part in measured if part.island is not None),
            "metrics": str(measured),
        }


def main(master: str, data: str, flags: str, wanted: Sequence[str]) -> None:
    builder = SparkSession.builder.master(master).appName("gpujoin TPC-H on a cluster")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    late_broadcast.STAGE_BYTES = 0  # type: ignore[attr-defined]  # so that inputs as small as these may prove small
    late_broadcast.LateBroadcast.limit = lambda *_: LATE_BYTES  # type: ignore[method-assign]
    SUITE.register(session, Path(data))
    for table in TABLES:  # in files that can be divided among tasks
        folder = str(Path(flags).parent / "tables" / table)
        session.table(table).repartition(4).write.parquet(folder)
        session.read.parquet(folder).createOrReplaceTempView(table)
    with SUITE.connect(Path(data)) as connection:
        texts = SUITE.texts(connection)
    for name, case in cases(texts):
        if not wanted or name in wanted:
            print(json.dumps(told(session, flags, name, case)), flush=True)
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
