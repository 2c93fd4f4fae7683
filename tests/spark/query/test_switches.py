"""What ``spark.gpujoin.disable``, ``GPUJOIN_DISABLE`` and ``spark.gpujoin.require`` say."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import gpujoin
from gpujoin import Explanation, RequirementError, enable, explain, gpu_asof_join, gpu_join
from gpujoin.cache import Cache
from gpujoin.config import BackendChoice, Options
from gpujoin.logs import warn_once
from gpujoin.model.reasons import ReasonKind
from gpujoin.spark.query import hooks, requirements
from gpujoin.spark.query.accelerate import PlannedQuery, Purpose, rewrite
from gpujoin.spark.query.hooks import is_enabled, make_enabled
from gpujoin.spark.query.requirements import check_required
from gpujoin.spark.settings import session_conf
from tests.brief import brief
from tests.spark.query.queries import FORCED, check, jobs_begun

pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["forced"])]

JOIN = "select a.id, b.item from sales a join items b on a.k = b.k"
SWITCHES = {
    "scan": (JOIN, "scan /"),
    "parquet": (JOIN, "scan /"),
    "filter": (f"{JOIN} where a.id > 2 and b.cost < 9 and a.id + b.item > 15", " where "),
    "project": ("select x.y, i.item from (select k, id * 3 y from sales) x join items i on x.k = i.k", "project"),
    "join": (JOIN, "inner join"),
    "inner join": (JOIN, "inner join"),
    "left_semi_join": ("select id from sales where k in (select k from items)", "left_semi join"),
    "null-aware anti join": ("select id from sales where k not in (select item from items)", "null_aware_anti join"),
    "union": ("""select k, count(*) from (select k from sales join items using (k) union all
        select k from items join sales using (k)) group by k""", "union"),
    "aggregate": ("select k, sum(id) from sales group by k", "aggregate "),
    "expand": ("select k, s, count(*) from sales group by cube(k, s)", "expand "),
    "window": ("select id, rank() over (partition by k order by id) r from sales", "window "),
    "limit": ("select count(*) from (select k from sales join items using (k) limit 5)", "limit 5"),
    "explode": ("select a.id, e from (select id, explode(array(k, 7)) e from sales) a join items b on e = b.k",
        "explode"),
    "round": ("select k, sum(round(price, 1)) from sales group by k", "round("),
    "cast": ("select k, max(cast(price as string)) from sales group by k", "cast("),
    "case": ("select k, max(case when id > 3 then 1 else 2 end) from sales group by k", "case when"),
    "+": ("select k, max(id + 1) from sales group by k", "id + 1"),
    "sum": ("select k, sum(id), max(id) from sales group by k", "sum(id)"),
    "rank": ("select id, rank() over (partition by k order by id) r from sales", "rank()"),
}  # fmt: skip
"""A query that has what each name says, and what tells so in its explanation."""


def shows(explanation: Explanation, words: str) -> bool:
    """Whether an operation of an island is written so, those that say why rows come from Spark left aside."""
    lines = [line for island in explanation.islands for line in island.tree if "rows from Spark" not in line]
    return any(words in line for line in lines)


def test_what_is_switched_off_is_left_to_spark(tables: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    for name, (query, shown) in SWITCHES.items():
        tables.conf.unset("spark.gpujoin.disable")
        frame = tables.sql(query)
        before = rewrite(frame, Purpose.EXPLAIN).explanation
        assert shows(before, shown), f"{name}\n{before}"
        tables.conf.set("spark.gpujoin.disable", f"crc32, {name}")
        explanation = rewrite(frame, Purpose.EXPLAIN).explanation
        assert not shows(explanation, shown), f"{name}\n{explanation}"
        assert f"{name.replace(' ', '_').replace('-', '_')} is switched off" in str(explanation), str(explanation)
    assert not caplog.records, "what somebody has switched off is no news"


@pytest.mark.parametrize("name", brief(SWITCHES, "filter", "window"))
def test_rows_are_the_same(tables: SparkSession, name: str) -> None:
    tables.conf.set("spark.gpujoin.disable", name)
    assert "is switched off" in str(check(tables.sql(SWITCHES[name][0])))


def test_a_part_of_a_condition_is_computed_by_spark(tables: SparkSession) -> None:
    query = "select a.id, b.item from sales a join items b on round(a.price, 1) = b.cost"
    tables.conf.set("spark.gpujoin.disable", "round")
    explanation = check(tables.sql(query))
    assert [join.accelerated for join in explanation.joins] == [True]
    assert "rows from Spark" in str(explanation)


def test_as_of_joins_are_switched_off(tables: SparkSession) -> None:
    sales, items = tables.table("sales").select("k", "id"), tables.table("items").select("k", "item")
    joined = gpu_asof_join(sales, items, left_on="id", right_on="item", by="k")
    assert shows(explain(joined), "as-of (")
    expected = sorted(map(tuple, joined.collect()), key=str)
    tables.conf.set("spark.gpujoin.disable", "as-of join")
    again = gpu_asof_join(sales, items, left_on="id", right_on="item", by="k")
    (join,) = explain(again).joins
    assert [reason.kind for reason in join.reasons] == [ReasonKind.CONFIGURED]
    assert sorted(map(tuple, again.collect()), key=str) == expected


def test_joins_of_gpu_join_are_switched_off_too(tables: SparkSession) -> None:
    tables.conf.set("spark.gpujoin.disable", "left_join")
    joined = gpu_join(tables.table("sales"), tables.table("items").select("k", "item"), "k", "left", strategy="shuffle")
    (join,) = explain(joined).joins
    assert (join.accelerated, [reason.kind for reason in join.reasons]) == (False, [ReasonKind.CONFIGURED])
    assert joined.count() == 13


# -- GPUJOIN_DISABLE ----------------------------------------------------------------------------------------------


def test_an_operator_switches_all_off(
    tables: SparkSession, planned: list[PlannedQuery], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    monkeypatch.setenv("GPUJOIN_DISABLE", "1")
    monkeypatch.setattr(hooks, "OptimizerRule", None)  # none is made
    tables.conf.set("spark.gpujoin.require", "true")
    enable(tables)
    enable(tables)
    make_enabled(tables, lambda: None, session_conf(tables))
    joined = gpu_join(tables.table("sales"), tables.table("items").select("k", "item"), "k")
    assert joined.count() == 11
    assert (is_enabled(tables), planned, hooks._originals) == (False, [], [])
    frame = tables.sql(JOIN)
    assert gpujoin.accelerate(frame) is frame
    (message,) = {record.getMessage() for record in caplog.records}
    assert "GPUJOIN_DISABLE switches gpujoin off: Spark runs all queries" in message
    assert len(caplog.records) == 1


def test_sessions_that_are_enabled_already_are_switched_off(
    enabled: SparkSession, planned: list[PlannedQuery], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUJOIN_DISABLE", "true")
    assert enabled.sql(JOIN).count() == 11
    assert [query.changed for query in planned] == [False]
    assert "GPUJOIN_DISABLE switches gpujoin off" in str(explain(enabled.sql(JOIN)))
    monkeypatch.setenv("GPUJOIN_DISABLE", "0")
    enabled.sql(JOIN).count()
    assert [query.changed for query in planned] == [False, True]


# -- spark.gpujoin.require ----------------------------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """This interpreter without the libraries of its environment."""
    path = tmp_path / "bare"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_workers_without_gpujoin_are_an_error(tables: SparkSession, bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.conf.set("spark.gpujoin.require", "true")
    with monkeypatch.context() as patch:
        patch.setattr(tables.sparkContext, "pythonExec", bare)
        with pytest.raises(RequirementError, match=r"nothing can run here: workers: .*lacks gpujoin") as raised:
            enable(tables)
        assert raised.value.reason.kind is ReasonKind.UNAVAILABLE
        with pytest.raises(RequirementError, match=r"nothing can run here: workers: .*lacks gpujoin"):
            make_enabled(tables, lambda: None, session_conf(tables))
        assert not is_enabled(tables)
    enable(tables)  # all is well; then workers change
    monkeypatch.setattr(tables.sparkContext, "pythonExec", bare)
    with pytest.raises(RequirementError, match="lacks gpujoin"):
        tables.sql(JOIN).collect()
    assert tables.sql("select 1").collect()
    tables.conf.set("spark.gpujoin.require", "false")
    tables.conf.set("spark.gpujoin.fallback", "silent")
    assert tables.sql(JOIN).count() == 11


def test_workers_of_a_cluster_are_asked_by_a_task(
    spark: SparkSession, bare: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of this machine, which passes for a cluster's."""
    conf, context = {"spark.master": "spark://host:7077"}, spark.sparkContext
    required = Options(require=True)
    check_required(context, conf, required)
    before = jobs_begun(spark)
    check_required(context, conf, Options())
    check_required(context, conf, required)
    assert jobs_begun(spark) == before, "an application's workers are asked once"
    with pytest.raises(RequirementError, match=r"backend gpu: .*change with a GPU that workers see"):
        check_required(context, conf, Options(require=True, backend=BackendChoice.GPU))
    monkeypatch.setattr(context, "pythonExec", bare)
    monkeypatch.setattr(requirements, "_passed", Cache(1))
    with pytest.raises(
        RequirementError,
        match=r"workers: one that Spark started with .*bare has failed: .*No module named '(tests|pyspark)'",
    ):
        check_required(context, conf, required)


def test_a_gpu_that_is_not_there_is_an_error(tables: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    tables.conf.set("spark.gpujoin.require", "true")
    tables.conf.set("spark.gpujoin.backend", "gpu")
    with pytest.raises(RequirementError, match=r"backend gpu: .*change with a GPU that workers see"):
        enable(tables)
    tables.conf.set("spark.gpujoin.backend", "auto")
    enable(tables)
    assert is_enabled(tables)


def test_a_session_that_cannot_be_enabled_is_an_error(tables: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise gpujoin.GpuJoinError("another Spark")

    monkeypatch.setattr(hooks, "OptimizerRule", refuse)
    make_enabled(tables, lambda: None, session_conf(tables))
    tables.conf.set("spark.gpujoin.require", "true")
    with pytest.raises(RequirementError, match="it is not enabled: another Spark"):
        make_enabled(tables, lambda: None, session_conf(tables))
