"""What became of an application's queries: `gpujoin.summary`, and the line at its end."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql import SparkSession

import gpujoin
from gpujoin import ApplicationSummary, summary
from gpujoin.errors import GpuJoinError
from gpujoin.report.summary import ApplicationTally
from gpujoin.spark.query import running
from tests.spark.query.faults import CrashedStage
from tests.spark.query.queries import FORCED

SILENT = {**FORCED, "spark.gpujoin.fallback": "silent"}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [SILENT], indirect=True, ids=["silent"])]

HERE = "select k, count(*) from sales join items using (k) group by k"
IN_PART = "select try_url_decode(s) u, count(*) from (select a.s, b.k from sales a join items b using (k)) group by u"
IN_SPARK = "select try_url_decode(s), count(*) from sales group by try_url_decode(s)"


def since(spark: SparkSession, before: ApplicationSummary) -> dict[str, int]:
    """The numbers that have changed, and by how much."""
    now = summary(spark)
    names = ("here", "in_part", "in_spark", "given_back")
    changes = {name: getattr(now, name) - getattr(before, name) for name in names}
    return {name: change for name, change in changes.items() if change}


def test_queries_are_counted_where_they_ran(enabled: SparkSession) -> None:
    before = summary(enabled)
    frame = enabled.sql(HERE)
    gpujoin.explain(frame)
    frame.explain()
    assert since(enabled, before) == {}, "nothing has run"
    frame.collect()
    frame.collect()
    assert since(enabled, before) == {"here": 1}, "a DataFrame is planned once"
    enabled.sql(IN_PART).collect()
    for _ in range(2):
        enabled.sql(IN_SPARK).collect()
    enabled.sql("select id from sales").collect()
    assert since(enabled, before) == {"here": 1, "in_part": 1, "in_spark": 2}
    now = summary(enabled)
    assert now.predicted_seconds > before.predicted_seconds
    assert now.saved_seconds == now.predicted_spark_seconds - now.predicted_seconds
    text, count = now.reasons[0]
    assert count == max(count for _, count in now.reasons)
    assert any("url_decode" in text for text, _ in now.reasons), now.reasons
    assert f"{now.queries} queries: {now.here} ran here" in str(now)
    assert now.to_dict()["reasons"][0] == [text, count]


def test_settings_that_leave_queries_to_spark_are_among_the_reasons(enabled: SparkSession) -> None:
    before = summary(enabled)
    enabled.conf.set("spark.gpujoin.disable", "join, aggregate")
    enabled.sql(HERE).collect()
    assert since(enabled, before) == {"in_spark": 1}
    assert any("join is switched off" in text for text, _ in summary(enabled).reasons)


def test_queries_that_failed_here_are_told(enabled: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    before = summary(enabled)
    monkeypatch.setattr(running, "RunStage", CrashedStage)
    enabled.sql(HERE).collect()
    assert since(enabled, before)["given_back"] == 1
    assert "begun here, failed, and run by Spark" in str(summary(enabled))


def test_a_line_tells_at_the_end(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    tally = ApplicationTally()
    caplog.set_level(logging.INFO, "gpujoin")
    tally.tell(spark.sparkContext)
    assert not caplog.records, "nothing was planned"
    tally._summary = ApplicationSummary(
        here=6, in_part=1, in_spark=2, predicted_seconds=7.2, predicted_spark_seconds=38
    )
    tally._reasons.update({"the sort: no": 2, "it is predicted to be faster there": 1, "c": 1, "d": 1})
    tally.tell(spark.sparkContext)
    tally.tell(spark.sparkContext)
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert record.getMessage() == (
        "gpujoin: 9 queries: 6 ran here, 1 in part, 2 in Spark; some 31 s saved by prediction (7.2 s here, 38 s in "
        "Spark); left to Spark: 2 × the sort: no, 1 × it is predicted to be faster there, 1 × c, and 1 more reasons"
    )


@pytest.mark.parametrize("given", [1, None])
def test_what_is_no_session_is_refused(spark: SparkSession, given: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda cls: None))
    with pytest.raises(GpuJoinError, match=r"summary\(\) takes a classic SparkSession"):
        summary(given)  # type: ignore[arg-type]
