"""Enabled sessions: unchanged programs, PySpark's own results, and everything put back."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkTypeError
from pyspark.sql import Row, SparkSession
from pyspark.sql.classic.dataframe import DataFrame

import gpujoin
from gpujoin import ConfigurationError, disable, enable, explain
from gpujoin.spark.query import hooks
from gpujoin.spark.query.accelerate import PlannedQuery
from tests.spark.query.queries import jobs_begun
from tests.spark.query.test_row_joins import ROWS

pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [ROWS], indirect=True, ids=["rows"])]

SQL = "select a.id, b.item, b.cost from sales a join items b on a.k = b.k order by a.id, b.item"
WRAPPED = (
    "collect",
    "count",
    "toPandas",
    "toArrow",
    "toLocalIterator",
    "tail",
    "foreach",
    "write",
    "_show_string",
)


def changed(planned: list[PlannedQuery]) -> list[bool]:
    """Whether each query was replaced."""
    return [query.changed for query in planned]


def stop(context: Any) -> None:
    context._jsc = None
    raise ValueError("the application has ended")


def test_the_error_of_an_application_that_has_ended_is_not_hidden(spark: SparkSession) -> None:
    context: Any = SimpleNamespace(_jsc=spark.sparkContext._jsc)
    with pytest.raises(ValueError, match="has ended"), hooks._CallSite(context, "write"):
        stop(context)


def test_actions_return_what_spark_returns(enabled: SparkSession, planned: list[PlannedQuery], capsys: Any) -> None:
    with_gpujoin = _results(enabled, capsys)
    ran = changed(planned)
    disable(enabled)
    assert with_gpujoin == _results(enabled, capsys)
    assert ran == [True] * len(ran)
    assert len(ran) >= 8
    assert len(planned) == len(ran)


def test_jobs_are_named_after_the_programs_line(enabled: SparkSession, tables: SparkSession) -> None:
    frame = tables.sql(SQL)
    named = {}
    for action in (frame.collect, frame.first, frame.toArrow):
        named[action.__name__] = _job_names(enabled, action)
    disable(enabled)
    for action in (frame.collect, frame.first, frame.toArrow):
        assert named[action.__name__] == _job_names(enabled, action)
    assert all(Path(__file__).name in name for names in named.values() for name in names)


def test_an_aggregation_of_cached_rows_alone_is_nothing_that_might_run_here(enabled: SparkSession) -> None:
    cached = enabled.sql("select k from sales").cache()
    enabled.conf.set("spark.gpujoin.fallback", "raise")
    try:
        assert cached.groupBy("k").count().count() > 0
    finally:
        enabled.conf.unset("spark.gpujoin.fallback")
        cached.unpersist()


def _job_names(session: SparkSession, action: Callable[[], object]) -> set[str]:
    """Names of the jobs of an action that are named by Python; Spark keeps the latest thousand, newest first."""
    store = session.sparkContext._jsc.sc().statusStore()
    known = store.jobsList(None)
    latest = known.apply(0).jobId() if known.size() else -1
    action()
    session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    jobs = store.jobsList(None)
    new = itertools.takewhile(lambda job: job.jobId() > latest, map(jobs.apply, range(jobs.size())))
    return {name for name in (str(job.name()) for job in new) if ".py" in name}


def _results(session: SparkSession, capsys: Any) -> list[Any]:
    frame = session.sql(SQL)
    capsys.readouterr()
    frame.show()
    frame.show(2, truncate=3, vertical=True)
    shown = capsys.readouterr().out
    return [
        frame.collect(), frame.count(), shown, frame.take(2), frame.first(), frame.head(3), frame.tail(2),
        str(frame.toPandas()), frame.toArrow(), list(frame.toLocalIterator()), frame.schema,
        frame.isEmpty(),
    ]  # fmt: skip


def test_foreach_sees_every_row(enabled: SparkSession, planned: list[PlannedQuery], tmp_path: Path) -> None:
    folder = str(tmp_path)

    def note(row: Row) -> None:
        Path(folder, f"{row.id}-{row.item}").touch()

    enabled.sql(SQL).foreach(note)
    assert changed(planned) == [True]
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {f"{row.id}-{row.item}" for row in enabled.sql(SQL).collect()}


def test_errors_are_sparks_own(enabled: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        enabled.sql("select * from nowhere join items using (k)").collect()
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        enabled.sql("select a.id / (b.k - b.k) from sales a join items b on a.k = b.k").collect()
    with pytest.raises(PySparkTypeError):
        enabled.sql(SQL).show("2")  # type: ignore[arg-type]


def test_sessions_are_apart_and_everything_is_put_back(tables: SparkSession, planned: list[PlannedQuery]) -> None:
    before = {name: DataFrame.__dict__.get(name) for name in WRAPPED}
    other = tables.newSession()
    other.conf.set("spark.gpujoin.disable", "scan")
    other.conf.set("spark.gpujoin.strategy", "broadcast")
    enable(tables)
    enable(tables)
    other.range(3).join(other.range(4), "id").collect()
    assert changed(planned) == []
    enable(other)
    disable(tables)
    tables.range(3).join(tables.range(4), "id").collect()
    assert changed(planned) == []
    assert other.range(3).join(other.range(4), "id").count() == 3
    assert changed(planned) == [True]
    disable(other)
    disable(other)
    assert {name: DataFrame.__dict__.get(name) for name in WRAPPED} == before


def test_settings_switch_off_and_are_checked(enabled: SparkSession, planned: list[PlannedQuery]) -> None:
    enabled.conf.set("spark.gpujoin.enabled", "false")
    enabled.sql(SQL).collect()
    assert changed(planned) == [False]
    assert "switched off" in str(explain(enabled.sql(SQL)))
    enabled.conf.set("spark.gpujoin.stratgy", "broadcast")
    with pytest.raises(ConfigurationError, match=r"spark\.gpujoin\.strategy"):
        enabled.sql(SQL).collect()
    with pytest.raises(ConfigurationError, match=r"spark\.gpujoin\.strategy"):
        enable(enabled)


def test_explain_of_an_enabled_session_runs_nothing(enabled: SparkSession) -> None:
    before = jobs_begun(enabled)
    found = explain(enabled.sql(SQL))
    assert [join.accelerated for join in found.joins] == [True]
    assert jobs_begun(enabled) == before


def test_notebooks(tables: SparkSession, planned: list[PlannedQuery]) -> None:
    gpujoin.load_ipython_extension(None)
    try:
        assert tables.sql(SQL).count() == 11
        assert changed(planned) == [True]
        made = tables.newSession()
        assert hooks.is_enabled(made)
    finally:
        gpujoin.unload_ipython_extension(None)
    assert not hooks.is_enabled(made)
    assert not hooks._originals


@pytest.mark.parametrize("given", ["spark", 1])
def test_what_is_no_session_is_refused(spark: SparkSession, given: Any) -> None:
    for function in (enable, disable):
        with pytest.raises(gpujoin.GpuJoinError, match=f"must be a SparkSession, got {type(given).__name__}"):
            function(given)


def test_explain_lists_joins_that_gpu_join_made(enabled: SparkSession) -> None:
    sales, items = enabled.table("sales"), enabled.table("items").select("k", "item")
    enabled.conf.set("spark.gpujoin.strategy", "auto")
    streamed = gpujoin.gpu_join(sales, items, "k", strategy="shuffle", backend="cpu")
    built = gpujoin.gpu_join(items, sales.select("k"), "k", "left_semi", strategy="shuffle", backend="cpu")
    joined = gpujoin.gpu_join(streamed, built.drop("item"), "k", "left_anti", strategy="broadcast", backend="cpu")
    found = explain(joined.where("id > 0"))
    shown = sorted((join.join_type, join.strategy.value) for join in found.joins)
    assert shown == [("inner", "shuffle"), ("left_anti", "broadcast"), ("left_semi", "shuffle")]
    assert len(found.islands) == 1
    (join,) = explain(gpujoin.gpu_join(sales, items, "k", strategy="spark")).joins
    assert not join.accelerated
    assert [reason.what for reason in join.reasons] == ["strategy"]
