"""Writes of enabled sessions: the target is as Spark's own write leaves it, whatever fails here."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, DataFrameWriterV2, Row, SparkSession
from pyspark.sql import functions as sf

import gpujoin
from gpujoin.spark.query import running
from tests.brief import brief, each_once
from tests.spark.query.faults import HangingStage, KilledStage

CPU = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "warn"}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [CPU], indirect=True, ids=["cpu"])]

ROWS = 1500
GIVEN_BACK = "Spark runs the query itself"
JDBC = {"driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver"}


@pytest.fixture(scope="module")
def numbers(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with two tables to join."""
    folder = tmp_path_factory.mktemp("numbers")
    frame = spark_session.range(ROWS).selectExpr(
        "id",
        "id % 7 as part",
        "if(id % 11 = 0, null, id * 31 % 1000) as k",
        "case id % 13 when 0 then double('NaN') when 1 then -0.0D when 2 then null else id / 3 end as v",
        "if(id % 5 = 0, null, concat('ü', id % 50)) as s",
    )
    frame.repartition(2).write.parquet(str(folder / "many"))
    spark_session.range(500).selectExpr("id as k", "id * id as w").write.parquet(str(folder / "few"))
    return str(folder)


@pytest.fixture
def session(spark: SparkSession, numbers: str) -> Iterator[SparkSession]:
    for name in ("many", "few"):
        spark.read.parquet(f"{numbers}/{name}").createOrReplaceTempView(name)
    yield spark
    gpujoin.disable(spark)
    for name in ("many", "few"):
        spark.catalog.dropTempView(name)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every worker of an island is killed after it has given out its rows."""
    monkeypatch.setattr(running, "RunStage", KilledStage)


def query(session: SparkSession) -> DataFrame:
    """A query that becomes an island."""
    return session.sql("select m.id, m.v, m.s, f.w, m.part from many m join few f on m.k = f.k")


def old_rows(session: SparkSession) -> DataFrame:
    """What the target holds before, with some partitions that the query does not have."""
    return session.sql(
        "select id + 100000 as id, cast(id as double) as v, 'old' as s, id as w, id % 3 + 5 as part from range(300)"
    )


@dataclass(frozen=True)
class Kind:
    """A way to write.

    Attributes
    ----------
    prepare, write : callable (DataFrame, str)
        Writes the old rows; writes the rows of the query.
    read : callable (SparkSession, str)
        Reads what is there.
    chosen : callable (DataFrame)
        The columns that it can write.
    """

    prepare: Callable[[DataFrame, str], Any]
    write: Callable[[DataFrame, str], Any]
    read: Callable[[SparkSession, str], DataFrame]
    chosen: Callable[[DataFrame], DataFrame] = lambda frame: frame


def _file(kind: str, mode: str, chosen: Callable[[DataFrame], DataFrame] = lambda frame: frame) -> Kind:
    options = {"rowTag": "row"} if kind == "xml" else {}
    return Kind(
        lambda frame, target: frame.write.options(**options).format(kind).save(target),
        lambda frame, target: frame.write.mode(mode).options(**options).format(kind).save(target),
        lambda session, target: session.read.options(**options).format(kind).load(target),
        chosen,
    )


def _table(write: Callable[[DataFrame, str], Any], **prepared: Any) -> Kind:
    return Kind(
        lambda frame, target: frame.write.saveAsTable(Path(target).name, **prepared),
        lambda frame, target: write(frame, Path(target).name),
        lambda session, target: session.table(Path(target).name),
    )


def _derby(target: str) -> str:
    return f"jdbc:derby:memory:{Path(target).name};create=true"


def _no_nan(frame: DataFrame) -> DataFrame:
    return frame.withColumn("v", sf.nanvl("v", sf.lit(-1.0))).withColumn("s", sf.coalesce("s", sf.lit("none")))


def _v2(write: Callable[[DataFrameWriterV2], Any]) -> Kind:
    return Kind(
        lambda frame, target: frame.writeTo(f"derby.app.{Path(target).name}").create(),
        lambda frame, target: write(frame.writeTo(f"derby.app.{Path(target).name}")),
        lambda session, target: session.table(f"derby.app.{Path(target).name}"),
        _no_nan,
    )


def _dynamic(frame: DataFrame, target: str) -> None:
    frame.write.partitionBy("part").option("partitionOverwriteMode", "dynamic").parquet(target, mode="overwrite")


def _partitioned(frame: DataFrame, target: str) -> None:
    frame.write.partitionBy("part").parquet(target)


def _parquet(session: SparkSession, target: str) -> DataFrame:
    return session.read.parquet(target)


def _jdbc(frame: DataFrame, target: str, mode: str = "error") -> None:
    frame.write.jdbc(_derby(target), "target", mode, JDBC)


KINDS = {
    "parquet, overwrite": _file("parquet", "overwrite"),
    "parquet, append": _file("parquet", "append"),
    "json, overwrite": _file("json", "overwrite"),
    "csv, overwrite": _file("csv", "overwrite"),
    "orc, overwrite": _file("orc", "overwrite"),
    "xml, overwrite": _file("xml", "overwrite"),
    "text, overwrite": _file("text", "overwrite", lambda frame: frame.select("s")),
    "parquet, partitions": Kind(
        _partitioned, lambda frame, target: frame.write.mode("overwrite").partitionBy("part").parquet(target), _parquet
    ),
    "parquet, dynamic partitions": Kind(_partitioned, _dynamic, _parquet),
    "saveAsTable, overwrite": _table(lambda frame, table: frame.write.mode("overwrite").saveAsTable(table)),
    "saveAsTable, append": _table(lambda frame, table: frame.write.mode("append").saveAsTable(table)),
    "saveAsTable, buckets": _table(
        lambda frame, table: frame.write.mode("overwrite").bucketBy(3, "id").sortBy("w").saveAsTable(table)
    ),
    "insertInto, overwrite": _table(lambda frame, table: frame.write.insertInto(table, overwrite=True)),
    "insertInto, append": _table(lambda frame, table: frame.write.insertInto(table)),
    "insertInto, dynamic partitions": _table(
        lambda frame, table: frame.write.option("partitionOverwriteMode", "dynamic").insertInto(table, overwrite=True),
        partitionBy="part",
    ),
    "jdbc, overwrite": Kind(
        _jdbc,
        lambda frame, target: _jdbc(frame, target, "overwrite"),
        lambda session, target: session.read.jdbc(_derby(target), "target", properties=JDBC),
        _no_nan,
    ),
    "writeTo, append": _v2(lambda writer: writer.append()),
    "writeTo, overwrite": _v2(lambda writer: writer.overwrite(sf.lit(True))),
    "writeTo, replace": _v2(lambda writer: writer.replace()),
    "writeTo, createOrReplace": _v2(lambda writer: writer.createOrReplace()),
}  # fmt: skip


@pytest.fixture
def derby(spark: SparkSession) -> None:
    """A catalog of tables of the second version."""
    settings = {"url": _derby("catalog"), **JDBC}
    spark.conf.set("spark.sql.catalog.derby", "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog")
    for key, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.derby.{key}", value)


@pytest.fixture
def target(tmp_path: Path, session: SparkSession) -> Iterator[Callable[[str], str]]:
    """Makes names of targets: paths whose last part is a name of a table too."""
    names: list[str] = []

    def make(name: str) -> str:
        names.append(f"{name}_{tmp_path.name}".replace("-", "_").lower())
        return str(tmp_path / names[-1])

    yield make
    gpujoin.disable(session)
    for name in names:
        session.sql(f"drop table if exists {name}")


def state(session: SparkSession, kind: Kind, target: str) -> list[str]:
    session.catalog.refreshByPath(target)
    return sorted(map(str, kind.read(session, target).collect()))


def nothing_is_kept(session: SparkSession) -> bool:
    """Whether the rows of writes have gone, a moment after the write."""
    session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    persistent = session.sparkContext._jsc.getPersistentRDDs()
    return bool(session._jsparkSession.sharedState().cacheManager().isEmpty() and persistent.isEmpty())


def both(session: SparkSession, kind: Kind, target: Callable[[str], str]) -> tuple[list[str], list[str], DataFrame]:
    """What is in the target after Spark's write, and after one here, and the query that was written here."""
    spark_target, target_here = target("spark"), target("here")
    for path in (spark_target, target_here):
        kind.prepare(kind.chosen(old_rows(session)), path)
    kind.write(kind.chosen(query(session)), spark_target)
    expected = state(session, kind, spark_target)
    gpujoin.enable(session)
    frame = kind.chosen(query(session))
    kind.write(frame, target_here)
    gpujoin.disable(session)
    return expected, state(session, kind, target_here), frame


def kinds(*quick: str) -> pytest.MarkDecorator:
    """All kinds of writes; those that are not named are of the long sweeps."""
    assert KINDS.keys() >= set(quick)
    return pytest.mark.parametrize(
        "kind",
        [pytest.param(KINDS[name], id=name, marks=[] if name in quick else [pytest.mark.slow]) for name in KINDS],
    )


@pytest.mark.usefixtures("killed", "derby")
@kinds("saveAsTable, overwrite")
def test_no_table_is_lost_with_the_worker(
    session: SparkSession, kind: Kind, target: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    expected, rows, _ = both(session, kind, target)
    assert len(expected) > 400
    assert rows == expected
    assert [record.levelno for record in caplog.records if GIVEN_BACK in record.message] == [logging.WARNING]
    assert nothing_is_kept(session)


@pytest.mark.usefixtures("derby")
@kinds("parquet, partitions", "writeTo, append")
def test_what_is_staged_is_written_as_spark_writes_it(
    session: SparkSession, kind: Kind, target: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    expected, rows, frame = both(session, kind, target)
    assert rows == expected
    (report,) = gpujoin.metrics(frame)
    assert report.runs == 1
    assert report.metrics.pipeline.output_rows > 400
    assert GIVEN_BACK not in caplog.text
    assert nothing_is_kept(session)


@pytest.mark.parametrize("failure", brief(["killed", "divided by zero"], "divided by zero"))
def test_an_error_of_the_query_leaves_what_spark_leaves(
    session: SparkSession, failure: str, target: Callable[[str], str], request: pytest.FixtureRequest
) -> None:
    if failure == "killed":
        request.getfixturevalue("killed")
    outcomes = []
    for name in ("spark", "here"):
        path = target(name)
        old_rows(session).write.parquet(path)
        if name == "here":
            gpujoin.enable(session)
        failing = session.sql("select m.id, 1 div (f.w - f.w) as x from many m join few f on m.k = f.k")
        with pytest.raises(PySparkException) as caught:
            failing.write.mode("overwrite").parquet(path)
        # A task of Spark's that still runs when its job is aborted may make the folder of the attempt once more.
        left = sorted(file.suffix for file in Path(path).glob("[!_]*")) if Path(path).exists() else None
        outcomes.append((type(caught.value), caught.value.getCondition(), left))
    assert outcomes[0] == outcomes[1]
    assert nothing_is_kept(session)


def test_a_cancelled_write_touches_nothing(
    session: SparkSession, target: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flag = target("here"), tmp_path / "flag"
    old_rows(session).write.parquet(path)
    before = {file.name for file in Path(path).iterdir()}

    def cancel() -> None:
        while not flag.exists():
            stop.wait(0.05)
        session.sparkContext.cancelAllJobs()

    stop = threading.Event()
    monkeypatch.setattr(running, "RunStage", partial(HangingStage, flag=str(flag)))
    gpujoin.enable(session)
    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(Py4JJavaError, match="SPARK_JOB_CANCELLED"):
        query(session).write.mode("overwrite").parquet(path)
    canceller.join()
    assert {file.name for file in Path(path).iterdir()} == before
    assert nothing_is_kept(session)


def test_nothing_runs_for_a_target_that_spark_refuses(session: SparkSession, target: Callable[[str], str]) -> None:
    path = target("here")
    table = Path(path).name
    old_rows(session).write.parquet(path)
    old_rows(session).write.saveAsTable(table)
    gpujoin.enable(session)
    frame = query(session)
    with pytest.raises(AnalysisException, match="PATH_ALREADY_EXISTS"):
        frame.write.parquet(path)
    frame.write.mode("ignore").parquet(path)
    frame.write.format("parquet").option("PATH", path).save(mode="ignore")
    frame.write.mode("ignore").saveAsTable(table)
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        frame.writeTo(table).create()
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        frame.writeTo(f"{table}_2").append()
    assert not gpujoin.metrics(frame)
    gpujoin.disable(session)
    assert session.read.parquet(path).count() == session.table(table).count() == 300


def test_what_is_read_is_not_overwritten(session: SparkSession, target: Callable[[str], str]) -> None:
    table = Path(target("here")).name
    query(session).write.saveAsTable(table)
    gpujoin.enable(session)
    frame = session.sql(f"select t.* from {table} t join few f on t.w = f.k")
    writes: list[Callable[[DataFrameWriter], None]] = [
        lambda writer: writer.mode("overwrite").saveAsTable(table),
        lambda writer: writer.insertInto(table, overwrite=True),
    ]
    for write in writes:
        with pytest.raises(AnalysisException, match="UNSUPPORTED_OVERWRITE"):
            write(frame.write)
    gpujoin.disable(session)
    assert session.table(table).count() > 400
    assert nothing_is_kept(session)


def test_files_are_as_many_and_sorted_as_the_query_says(session: SparkSession, target: Callable[[str], str]) -> None:
    def files(name: str) -> dict[str, list[list[int]]]:
        flat, folders = target(f"flat_{name}"), target(f"folders_{name}")
        query(session).repartition(3, "id").sortWithinPartitions(sf.desc("id")).write.parquet(flat)
        by_part = query(session).repartition(1).sortWithinPartitions("part", sf.desc("id"))
        by_part.write.option("maxRecordsPerFile", 50).partitionBy("part").parquet(folders)
        return {
            path.removesuffix(name): sorted(
                pq.ParquetFile(file).read(["id"])["id"].to_pylist() for file in Path(path).rglob("*.parquet")
            )
            for path in (flat, folders)
        }

    expected = [*files("spark").values()]
    gpujoin.enable(session)
    found = [*files("here").values()]
    gpujoin.disable(session)
    assert [len(ids) for ids in found[0]] == [len(ids) for ids in expected[0]]
    assert found == expected
    assert len(found[0]) == 3
    assert all(ids == sorted(ids, reverse=True) for of_path in found for ids in of_path)


def test_writers_are_pysparks_and_write_twice(session: SparkSession, target: Callable[[str], str]) -> None:
    gpujoin.enable(session)
    frame = query(session)
    writer = frame.write
    assert type(writer) is DataFrameWriter
    assert type(frame.writeTo("t")) is DataFrameWriterV2
    assert writer.mode("overwrite").option("compression", "gzip") is writer
    first, second = target("first"), target("second")
    writer.parquet(first)
    writer.partitionBy("part").option("compression", "zstd").save(second)
    with pytest.raises(PySparkException, match="INVALID_SAVE_MODE"):
        writer.mode("sometimes")
    (report,) = gpujoin.metrics(frame)
    gpujoin.disable(session)
    assert report.runs == 1
    assert session.read.parquet(first).count() == session.read.parquet(second).count()
    assert {file.suffixes[-2] for file in Path(first).glob("part*")} == {".gz"}
    assert {file.suffixes[-2] for file in Path(second).glob("part=*/part*")} == {".zstd"}


@pytest.mark.parametrize(
    ("action", "worker"),
    each_once(("toLocalIterator", "foreachPartition", "foreach"), ("alive", "killed"), extra=["foreach"]),
)
def test_rows_come_once(
    session: SparkSession, action: str, worker: str, tmp_path: Path, request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    if worker == "killed":
        request.getfixturevalue("killed")
    expected = sorted(row.id for row in query(session).collect())
    noted = str(tmp_path / "noted")

    def note(row: Row) -> None:
        with Path(noted).open("a") as file:
            file.write(f"{row.id}\n")

    def note_all(rows: Iterator[Row]) -> None:
        for row in rows:
            note(row)

    gpujoin.enable(session)
    frame = query(session)
    if action == "toLocalIterator":
        ids = [row.id for row in frame.toLocalIterator()]
        next(frame.toLocalIterator())
    else:
        getattr(frame, action)(note if action == "foreach" else note_all)
        ids = list(map(int, Path(noted).read_text().split()))
    assert sorted(ids) == expected
    assert (GIVEN_BACK in caplog.text) is (worker == "killed")
    if worker == "alive":
        assert gpujoin.metrics(frame)[0].runs == (2 if action == "toLocalIterator" else 1)
    assert nothing_is_kept(session)
