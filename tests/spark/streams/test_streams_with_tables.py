"""Joins of a stream with tables in enabled sessions, against Spark's own: rows of every micro-batch, and watermarks."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import gpujoin
from gpujoin.model.reasons import ReasonKind
from gpujoin.report.metrics import store_of
from gpujoin.spark.query import planner
from gpujoin.spark.query.choice import Outlay
from tests.brief import brief
from tests.spark.streams.tables import Between, Query, Readings, Run

pytestmark = pytest.mark.spark

BETWEEN = "v between lo and hi"


@pytest.fixture
def session(streaming: SparkSession) -> SparkSession:
    """A session, not enabled yet, in which gpujoin takes what it can, and tells what it cannot."""
    streaming.conf.set("spark.gpujoin.backend", "cpu")
    streaming.conf.set("spark.gpujoin.fallback", "raise")
    return streaming


def banded(how: str, condition: str = BETWEEN) -> Query:
    """Join readings with the bands that they are in."""
    return lambda stream, given: stream.join(given.bands(), f.expr(condition), how)


def per_window(stream: DataFrame, given: Readings) -> DataFrame:
    """Count readings by window and band."""
    joined = banded("left")(stream, given)
    return joined.groupBy(f.window("t", "10 seconds"), "band").agg(f.count("v"), f.max("hi"))


def assert_equal(here: Run, spark: Run) -> None:
    """Compare rows and watermarks of every micro-batch, and who joined in the last."""
    assert (here.error, spark.error) == (None, None)
    assert all(here.here)
    assert not any(spark.here)
    assert here.watermarks() == spark.watermarks()
    assert [step["numInputRows"] for step in here.progress] == [step["numInputRows"] for step in spark.progress]
    assert here.rows == spark.rows
    assert spark.total > 0


def both(session: SparkSession, folder: Path, query: Query, mode: str = "append") -> tuple[Run, Run]:
    """Run a query in Spark and here, each over the same files."""
    given = Readings(session, folder)
    spark = given.run(query, "spark", mode=mode)
    gpujoin.enable(session)
    return given.run(query, "here", mode=mode), spark


@pytest.mark.parametrize("how", brief(("inner", "left", "left_semi", "left_anti"), "left_anti"))
def test_ranges_return_sparks_rows_in_every_micro_batch(session: SparkSession, tmp_path: Path, how: str) -> None:
    assert_equal(*both(session, tmp_path, banded(how)))


@pytest.mark.extra
@pytest.mark.parametrize(
    "condition",
    [
        "k = kb and v >= lo", "k <=> kb", "v < lo - 90 or k = kb", "k + v > lo + kb", "v not in (lo, hi)",
        "k = kb and v = lo and hi > 10",
    ],
)  # fmt: skip
@pytest.mark.parametrize("how", ["inner", "left", "left_semi", "left_anti"])
def test_conditions_return_sparks_rows(session: SparkSession, tmp_path: Path, condition: str, how: str) -> None:
    assert_equal(*both(session, tmp_path, banded(how, condition)))


@pytest.mark.extra
@pytest.mark.parametrize("negated", ["", "not "])
def test_subqueries_over_tables(session: SparkSession, tmp_path: Path, negated: str) -> None:
    def query(stream: DataFrame, given: Readings) -> DataFrame:
        stream.createOrReplaceTempView("readings")
        given.bands().createOrReplaceTempView("bands")
        within = f"v {negated}in (select lo from bands where lo is not null)"
        above = "v > (select min(lo) from bands)"
        return session.sql(f"select * from readings where {within} and {above}")

    assert_equal(*both(session, tmp_path, query))


@pytest.mark.extra
def test_several_tables_are_joined_in_one_stage(session: SparkSession, tmp_path: Path) -> None:
    def query(stream: DataFrame, given: Readings) -> DataFrame:
        bands = given.bands()
        filtered = bands.where("lo > 10").selectExpr("kb as key", "band as other")
        named = stream.join(bands, f.expr(BETWEEN), "left").join(filtered, f.expr("k = key"), "left")
        return named.join(bands.selectExpr("hi as most", "lo as least"), f.expr("v > least and v < most"), "left_semi")

    here, spark = both(session, tmp_path, query)
    assert_equal(here, spark)
    plan = here.plans[0]
    assert (plan.count("GpuJoinIsland"), plan.count("FileScan")) == (1, 1)
    assert "FileScan" in plan.split("GpuJoinIsland")[1], "the stream is read by Spark, below the stage"


@pytest.mark.extra
def test_a_stateful_operator_above_keeps_its_state_and_watermarks(session: SparkSession, tmp_path: Path) -> None:
    here, spark = both(session, tmp_path, per_window)
    assert_equal(here, spark)
    assert here.operators == spark.operators == {"stateStoreSave"}
    assert [step["stateOperators"][0]["numRowsTotal"] for step in here.progress] == [
        step["stateOperators"][0]["numRowsTotal"] for step in spark.progress
    ]
    assert [step["stateOperators"][0]["numRowsDroppedByWatermark"] for step in here.progress] == [
        step["stateOperators"][0]["numRowsDroppedByWatermark"] for step in spark.progress
    ]


def marked_above(stream: DataFrame, given: Readings) -> DataFrame:
    """Count readings by window, whose watermark is above the join."""
    joined = banded("inner")(given.unmarked(), given).withWatermark("t", "5 seconds")
    return joined.groupBy(f.window("t", "10 seconds"), "band").count()


def distinct(stream: DataFrame, given: Readings) -> DataFrame:
    """Give each key and band once in a time; which of its rows, with what time, is nobody's to say."""
    joined = banded("left")(stream, given).select("k", "t", "band")
    return joined.dropDuplicatesWithinWatermark(["k", "band"]).drop("t")


def first_ones(stream: DataFrame, given: Readings) -> DataFrame:
    """Give the first rows of all micro-batches, of which there is one value."""
    return banded("left")(stream, given).selectExpr("1 as one").limit(100)


@pytest.mark.extra
@pytest.mark.parametrize(
    ("query", "mode"),
    [
        (marked_above, "append"), (marked_above, "update"), (per_window, "update"), (distinct, "append"),
        (distinct, "update"), (first_ones, "append"),
    ],
)  # fmt: skip
def test_operators_that_keep_state_above(session: SparkSession, tmp_path: Path, query: Query, mode: str) -> None:
    assert_equal(*both(session, tmp_path, query, mode))


@pytest.mark.extra
@pytest.mark.parametrize("query", [banded("left"), per_window], ids=["stateless", "aggregated"])
def test_a_checkpoint_goes_on_with_and_without_gpujoin(session: SparkSession, tmp_path: Path, query: Query) -> None:
    given = Readings(session, tmp_path, batches=4)
    spark = given.run(query, "spark")
    first = given.run(query, "mixed", most=1)
    gpujoin.enable(session)
    second = given.run(query, "mixed", most=2)
    gpujoin.disable(session)
    last = given.run(query, "mixed")
    assert [set(run.here) for run in (first, second, last)] == [{False}, {True}, {False}]
    assert first.rows | second.rows | last.rows == spark.rows
    assert last.error is None
    assert spark.total > 0


def test_tables_are_read_once_by_each_worker(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(session.sparkContext.environment, "GPUJOIN_TEST_POOL", "stream")  # workers of its own
    given = Readings(session, tmp_path, batches=3)
    gpujoin.enable(session)
    store = store_of(session.sparkContext)
    before = {report.name for report in store.reports()}
    assert all(given.run(banded("left"), "here").here)
    reports = [report for report in store.reports() if report.name not in before]
    assert len(reports) == 3
    reading = [report for report in reports if report.metrics.pipeline.scanned_rows]
    keeping = [report for report in reports if report.metrics.pipeline.tables_kept]
    assert 1 <= len(reading) <= 2, "there are two tasks at a time at most"
    assert len(keeping) == 3 - len(reading)
    assert all("1 table kept from an earlier task" in str(report) for report in keeping)


def _writes_bands(readings: Readings) -> Between:
    return lambda _batch: readings.write_bands("1", 20)


@pytest.mark.extra
def test_new_files_of_a_table_are_seen_when_the_stream_starts_again(session: SparkSession, tmp_path: Path) -> None:
    """Spark lists the files of a DataFrame when it is made."""
    runs = []
    for name in ("spark", "here"):
        given = Readings(session, tmp_path / name, batches=4)
        if name == "here":
            gpujoin.enable(session)
        first = given.run(banded("left"), name, between=_writes_bands(given), most=2)
        second = given.run(banded("left"), name)
        assert (set(first.rows), set(second.rows)) == ({0, 1}, {2, 3})
        assert {*first.here, second.here[1]} == {name == "here"}
        runs.append((first.rows, second.rows))
    assert runs[0] == runs[1]
    assert any("'1-" in row for row in runs[0][1][3]), "of the new file"
    assert not any("'1-" in row for row in runs[0][0][1])


@pytest.mark.extra
def test_files_that_were_written_anew_are_read_by_spark(session: SparkSession, tmp_path: Path) -> None:
    runs = []
    for name in ("spark", "here"):
        given = Readings(session, tmp_path / name)
        if name == "here":
            session.conf.set("spark.gpujoin.fallback", "silent")
            gpujoin.enable(session)

        def rewrite(batch: int, given: Readings = given) -> None:
            if batch == 0:
                given.write_bands("0", 40)

        runs.append(given.run(banded("left"), name, between=rewrite))
    spark, here = runs
    assert [plan.count("FileScan") > 1 for plan in here.plans.values()] == [False, True, True]
    assert here.rows == spark.rows
    assert (here.error is None) == (spark.error is None)


@pytest.mark.extra
def test_deleted_files_are_sparks_error(session: SparkSession, tmp_path: Path) -> None:
    given = Readings(session, tmp_path)
    session.conf.set("spark.gpujoin.fallback", "silent")
    gpujoin.enable(session)
    run = given.run(banded("left"), "here", between=lambda _: (given.table / "0.parquet").unlink())
    assert run.here == [True]
    assert "FAILED_READ_FILE" in str(run.error)


@pytest.mark.extra
def test_a_micro_batch_that_failed_is_sparks_when_the_stream_starts_again(
    session: SparkSession, tmp_path: Path
) -> None:
    given = Readings(session, tmp_path)
    spark = given.run(banded("left"), "spark")
    gpujoin.enable(session)

    def fail(batch: int) -> None:
        raise RuntimeError("of the program")

    first = given.run(banded("left"), "here", between=fail)
    assert first.here == [True]
    second = given.run(banded("left"), "here")
    assert second.here == [False, True, True]
    assert second.rows == spark.rows


def explained(given: Readings, condition: str, how: str = "left") -> str:
    gpujoin.enable(given.spark)
    return str(gpujoin.explain(banded(how, condition)(given.readings(), given)))


@pytest.mark.extra
def test_tables_that_spark_broadcasts_stay_there(session: SparkSession, tmp_path: Path) -> None:
    session.conf.set("spark.gpujoin.backend", "auto")
    given = Readings(session, tmp_path)
    assert "Spark broadcasts the tables" in explained(given, "k = kb")
    run = given.run(banded("left", "k = kb"), "here")
    assert run.error is None
    assert not any(run.here)


@pytest.mark.extra
def test_reading_tables_is_paid_for_by_what_micro_batches_would_have_gained(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "_start", Outlay())
    monkeypatch.setattr(planner, "_tables", Outlay())
    session.conf.set("spark.gpujoin.backend", "auto")
    session.conf.set("spark.gpujoin.costs", "start=0, query=0, spark_query=1, stage=0, sort_row=0.004")
    given = Readings(session, tmp_path, batches=4)
    assert "of them to read the tables, once" in explained(given, BETWEEN)
    here = given.run(banded("left"), "here").here
    assert (here[0], here[-1]) == (False, True)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.gpujoin.disable", "streams"),
        pytest.param("spark.gpujoin.enabled", "false", marks=pytest.mark.extra),
    ],
)
def test_settings_leave_tables_to_spark(session: SparkSession, tmp_path: Path, setting: str, value: str) -> None:
    given = Readings(session, tmp_path)
    gpujoin.enable(session)
    session.conf.set(setting, value)
    (join,) = gpujoin.explain(banded("left")(given.readings(), given)).joins
    assert [reason.kind for reason in join.reasons] == [ReasonKind.CONFIGURED]
    if value == "streams":
        assert not any(given.run(banded("left"), "here", most=1).here)


def nearest(stream: DataFrame, given: Readings) -> DataFrame:
    """Give each reading the band of its key that begins nearest below it."""
    return gpujoin.gpu_asof_join(stream, given.bands(), left_on="v", right_on="lo", left_by="k", right_by="kb")


def test_as_of_joins_with_tables(session: SparkSession, tmp_path: Path) -> None:
    """Bands that begin at the same value differ in nothing else: which of them is the nearest is nobody's to say."""

    def query(stream: DataFrame, given: Readings) -> DataFrame:
        bands = given.bands().select("kb", "lo").distinct().withColumn("twice", f.expr("2 * lo"))
        return gpujoin.gpu_asof_join(stream, bands, left_on="v", right_on="lo", left_by="k", right_by="kb")

    given = Readings(session, tmp_path)
    session.conf.set("spark.gpujoin.disable", "streams")
    spark = given.run(query, "spark")
    session.conf.unset("spark.gpujoin.disable")
    assert_equal(given.run(query, "here"), spark)


def test_as_of_joins_are_explained(session: SparkSession, tmp_path: Path) -> None:
    given = Readings(session, tmp_path)
    (island,) = gpujoin.explain(nearest(given.readings(), given)).islands
    assert "as-of" in str(island)
    session.conf.set("spark.gpujoin.disable", "streams")
    (join,) = gpujoin.explain(nearest(given.readings(), given)).joins
    assert [reason.kind for reason in join.reasons] == [ReasonKind.CONFIGURED]
