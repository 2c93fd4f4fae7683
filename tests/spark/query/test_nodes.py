"""The nodes of islands in Spark's physical plans, their metrics, and what the event log has of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from gpujoin import accelerate, disable, enable
from gpujoin.report.metrics import metrics
from tests.spark.query.queries import EXCHANGED, FORCED

pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["one task"])]

SQL = "select b.k, count(*) c, sum(a.id) s from sales a join items b on a.k = b.k group by b.k"
SHOWN = {
    "islandRows": "rows of the island", "islandBytes": "bytes of the island's rows",
    "islandCpuTasks": "tasks on the CPU",
}  # fmt: skip


def plan_text(frame: DataFrame, mode: str = "simple") -> str:
    return str(frame._jdf.queryExecution().explainString(
        frame.sparkSession._jvm.org.apache.spark.sql.execution.ExplainMode.fromString(mode)  # type: ignore[union-attr]
    ))  # fmt: skip


def shown_metrics(spark: SparkSession) -> list[dict[str, str]]:
    """Names and values of the metrics of the last execution that the UI shows, by node."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    store = spark._jsparkSession.sharedState().statusStore()
    execution = store.executionsList().apply(int(store.executionsCount()) - 1).executionId()
    values = store.executionMetrics(execution)
    nodes = store.planGraph(execution).allNodes()
    found = []
    for place in range(nodes.size()):
        node = nodes.apply(place)
        if node.name() != "GpuJoinIsland":
            continue
        each = {}
        for number in range(node.metrics().size()):
            metric = node.metrics().apply(number)
            value = values.get(metric.accumulatorId())
            if value.isDefined():
                each[str(metric.name())] = str(value.get())
        found.append(each)
    return found


def test_plans_show_what_an_island_does(enabled: SparkSession) -> None:
    frame = enabled.sql(SQL)
    simple, formatted = plan_text(frame), plan_text(frame, "formatted")
    assert re.search(r"GpuJoinIsland island_\w+gpujoin_[0-9a-f]{12}\n", simple)
    for text in (simple, formatted):
        assert "+- aggregate count(*), sum(id) by k\n" in text
        assert "+- inner join, " in text
        assert text.count("scan /") >= 2
        assert "unknown" not in text
    assert "Operations:\n  aggregate count(*), sum(id) by k\n    inner join, " in formatted
    (row,) = enabled.sql(f"explain formatted {SQL}").collect()
    assert "Operations:\n  aggregate count(*)" in row[0]


def test_the_ui_has_metrics_of_each_run(enabled: SparkSession) -> None:
    frame = enabled.sql(SQL)
    rows = frame.collect()
    for again in (False, True):
        assert not again or len(frame.collect()) == len(rows)
        (shown,) = shown_metrics(enabled)
        assert shown[SHOWN["islandRows"]] == str(len(rows))
        assert shown[SHOWN["islandCpuTasks"]] == "1"
        assert shown[SHOWN["islandBytes"]].endswith(" B")
        assert "tasks on the GPU" not in shown
    (report,) = metrics(frame)
    assert report.metrics.pipeline.output_rows == len(rows)


@pytest.mark.parametrize("transport", ["bytes", "rows"])
def test_stages_that_exchange_rows_are_counted(enabled: SparkSession, transport: str) -> None:
    for key, value in {**EXCHANGED, "spark.gpujoin.exchange.transport": transport}.items():
        enabled.conf.set(key, value)
    frame = enabled.sql(SQL)
    rows = frame.collect()
    shown = shown_metrics(enabled)
    assert len(shown) == (1 if transport == "bytes" else plan_text(frame).count("GpuJoinIsland island_") // 2)
    assert str(len(rows)) in [each.get(SHOWN["islandRows"]) for each in shown]
    tasks = sum(int(each[SHOWN["islandCpuTasks"]]) for each in shown)
    assert tasks == sum(report.tasks for report in metrics(frame))
    assert tasks > 3


TWICE = "with t as (select k, count(*) c from sales group by k) select * from t x join t y on x.c = y.c"


def test_an_island_may_be_there_twice(enabled: SparkSession) -> None:
    enabled.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    enabled.conf.set("spark.gpujoin.disable", "inner join")
    frame = enabled.sql(TWICE)
    got = sorted(map(str, frame.collect()))
    assert plan_text(frame).count("GpuJoinIsland island_") >= 2
    disable(enabled)
    assert got == sorted(map(str, enabled.sql(TWICE).collect()))


@pytest.mark.parametrize(
    ("codegen", "adaptive"),
    [
        ("false", "false"),
        pytest.param("true", "true", marks=pytest.mark.extra),
        pytest.param("true", "false", marks=pytest.mark.extra),
        pytest.param("false", "true", marks=pytest.mark.extra),
    ],
)
def test_operators_above_take_the_rows(enabled: SparkSession, codegen: str, adaptive: str) -> None:
    """Functions of theirs hold the plan below them, and go to tasks with it."""
    texts = [
        f"select * from ({SQL}) order by c, k",
        f"select c, count(distinct s), collect_list(k) from ({SQL}) group by c",
        f"select k, sum(c) over (order by k rows between 1 preceding and current row) from ({SQL})",
    ]
    enabled.conf.set("spark.sql.codegen.wholeStage", codegen)
    enabled.conf.set("spark.sql.adaptive.enabled", adaptive)
    enabled.conf.set("spark.gpujoin.disable", "window")
    enabled.conf.set("spark.gpujoin.fallback", "silent")
    for transport in ("bytes", "rows"):
        for key, value in {**EXCHANGED, "spark.gpujoin.fallback": "silent"}.items():
            enabled.conf.set(key, value)
        enabled.conf.set("spark.gpujoin.exchange.transport", transport)
        frames = [enabled.sql(text) for text in texts]
        got = [sorted(map(str, frame.collect())) for frame in frames]
        assert all("GpuJoinIsland" in plan_text(frame) for frame in frames)
        disable(enabled)
        assert got == [sorted(map(str, enabled.sql(text).collect())) for text in texts]
        enable(enabled)


def test_cached_islands_keep_their_nodes(enabled: SparkSession) -> None:
    cached = enabled.sql(SQL).cache()
    try:
        count = cached.count()
        assert cached.where("c > 0").count() == count
        assert "GpuJoinIsland island_" in plan_text(cached)
    finally:
        cached.unpersist()


def test_sessions_without_the_rule_have_sparks_own_nodes(tables: SparkSession) -> None:
    frame = accelerate(tables.sql(SQL))
    assert "MapInArrow island_" in plan_text(frame)
    assert frame.count() > 0


@pytest.fixture
def event_log(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """What Spark's listener of event logs writes while a test runs."""
    context, jvm = spark.sparkContext._jsc.sc(), spark._jvm
    conf = context.getConf().clone().set("spark.eventLog.compress", "false")
    conf = conf.set("spark.eventLog.rolling.enabled", "false")
    hadoop: Any = context.hadoopConfiguration()
    assert jvm is not None
    listener = jvm.org.apache.spark.scheduler.EventLoggingListener(
        "test", jvm.scala.Option.empty(), jvm.java.net.URI(tmp_path.as_uri()), conf, hadoop
    )
    listener.start()
    context.addSparkListener(listener)
    yield tmp_path
    context.removeSparkListener(listener)


def test_the_event_log_has_the_node_and_its_metrics(enabled: SparkSession, event_log: Path) -> None:
    rows = enabled.sql(SQL).collect()
    enabled.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    (path,) = event_log.iterdir()
    events = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    nodes = [node for event in events if "sparkPlanInfo" in event for node in nodes_of(event["sparkPlanInfo"])]
    island = next(node for node in nodes if node["nodeName"] == "GpuJoinIsland")
    ids = {metric["name"]: metric["accumulatorId"] for metric in island["metrics"]}
    updates = [update for event in events for update in event.get("accumUpdates", ()) if isinstance(update, list)]
    assert [ids[SHOWN["islandRows"]], len(rows)] in updates
    assert any("Operations:" in event.get("physicalPlanDescription", "") for event in events)
    assert "gpujoin.Gpu" not in path.read_text(), "no class of gpujoin's is named"


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan["children"]:
        yield from nodes_of(child)
