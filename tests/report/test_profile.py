"""profile(): a query run both ways."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import gpujoin
from gpujoin.report.operations import NoteKind, OperationKind
from gpujoin.report.profile import Activity, Equality
from tests.spark.query.queries import views, write_tables

pytestmark = pytest.mark.spark
SQL = "select b.s, sum(a.price), count(*) from sales a join items b on a.k = b.k group by b.s"


@pytest.fixture(scope="module")
def table_files(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    write_tables(spark_session, folder)
    return folder


@pytest.fixture
def tables(spark: SparkSession, table_files: Path) -> Iterator[SparkSession]:
    with views(spark, table_files, dict.fromkeys(("sales", "items", "none"))):
        yield spark


@pytest.mark.parametrize(
    "enabled", [True, pytest.param(False, marks=pytest.mark.extra)], ids=["enabled", "not enabled"]
)
def test_both_ways_give_the_same_rows(tables: SparkSession, enabled: bool) -> None:
    tables.conf.set("spark.gpujoin.backend", "cpu")
    if enabled:
        gpujoin.enable(tables)
    try:
        given = gpujoin.profile(tables.sql(SQL), repeats=2)
    finally:
        gpujoin.disable(tables)
    assert (given.rows, given.equality, given.difference) == (3, Equality.EQUAL, None)
    assert (len(given.spark_seconds), len(given.gpujoin_seconds)) == (2, 2)
    assert given.ran_here
    assert next(given.report.walk()).kind is OperationKind.ISLAND
    assert given.activities[Activity.PLANNING] > 0
    assert given.activities[Activity.TRANSFER] > 0
    assert sum(given.activities.values()) >= 0.99 * min(given.gpujoin_seconds)
    assert "joining" in str(given)


def test_a_query_left_to_spark_says_why(tables: SparkSession) -> None:
    tables.conf.set("spark.gpujoin.costs", "query=100")
    given = gpujoin.profile(tables.sql(SQL), repeats=1)
    assert not given.ran_here
    assert given.equality is Equality.EQUAL
    assert any(note.kind is NoteKind.LEFT_TO_SPARK for each in given.report.walk() for note in each.notes)
    assert "gpujoin ran nothing of it" in str(given)


def test_a_query_that_is_another_each_time_differs(tables: SparkSession) -> None:
    drawn = sf.udf(lambda: uuid.uuid4().hex).asNondeterministic()
    given = gpujoin.profile(tables.table("sales").select("id", drawn().alias("u")), repeats=1)
    assert given.equality is Equality.DIFFERENT
    assert given.difference is not None
    assert "missing" in given.difference


def test_joins_of_gpu_join(tables: SparkSession) -> None:
    frame = gpujoin.gpu_join(tables.table("sales"), tables.table("items"), "k", backend="cpu").groupBy("k").count()
    given = gpujoin.profile(frame, repeats=1)
    assert given.ran_here
    assert given.equality is Equality.EQUAL


def stream(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load()


def command(spark: SparkSession) -> DataFrame:
    return spark.sql("show tables")


def accelerated(spark: SparkSession) -> DataFrame:
    spark.conf.set("spark.gpujoin.backend", "cpu")
    return gpujoin.accelerate(spark.sql(SQL))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (stream, "this DataFrame is a stream. explain"), (command, "this is a command"),
        (accelerated, "takes the query itself"), (lambda _: "orders", "takes a Spark DataFrame, got str"),
    ],
    ids=["stream", "command", "accelerated", "text"],
)  # fmt: skip
def test_what_cannot_be_profiled_is_refused(tables: SparkSession, make, why: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(gpujoin.GpuJoinError, match=why):
        gpujoin.profile(make(tables))


@pytest.mark.parametrize("repeats", [0, -1, 1.5, True, "2"])
def test_repeats_that_are_no_number(spark: SparkSession, repeats: object) -> None:
    with pytest.raises(gpujoin.GpuJoinError, match="a whole number from 1 on"):
        gpujoin.profile(spark.range(3), repeats=repeats)  # type: ignore[arg-type]
