"""Writes of enabled sessions: the target is as Spark's own write leaves it, whatever fails here."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, DataFrameWriterV2, Row, SparkSession
from pyspark.sql import functions as sf

import gpujoin
from gpujoin.spark.query import running
from tests.spark.query.failing_stages import StageHangingAtItsStart, StageKilledAtItsEnd

CPU = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "warn"}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [CPU], indirect=True, ids=["cpu"])]

ROWS = 3000
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
    frame.repartition(3).write.parquet(str(folder / "many"))
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
    monkeypatch.setattr(running, "RunStage", StageKilledAtItsEnd)


def query(session: SparkSession) -> DataFrame:
    """A query that becomes an island."""
    return session.sql("select m.id, m.v, m.s, f.w, m.part from many m join few f on m.k = f.k")


def old_rows(session: SparkSession) -> DataFrame:
    """What the target holds before, with some partitions that the query does not have."""
    return session.sql(
        "select id + 100000 as id, cast(id as double) as v, 'old' as s, id as w, id % 3 + 5 as part from range(500)"
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
    return bool(session._jsparkSession.sharedState().cacheManager().isEmpty())


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


@pytest.mark.usefixtures("killed", "derby")
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_no_table_is_lost_with_the_worker(
    session: SparkSession, kind: Kind, target: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    expected, rows, _ = both(session, kind, target)
    assert len(expected) > 1000
    assert rows == expected
    assert [record.levelno for record in caplog.records if GIVEN_BACK in record.message] == [logging.WARNING]
    assert nothing_is_kept(session)


@pytest.mark.usefixtures("derby")
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_is_staged_is_written_as_spark_writes_it(
    session: SparkSession, kind: Kind, target: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    expected, rows, frame = both(session, kind, target)
    assert rows == expected
    (report,) = gpujoin.metrics(frame)
    assert report.runs == 1
    assert report.metrics.pipeline.output_rows > 1000
    assert GIVEN_BACK not in caplog.text
    assert nothing_is_kept(session)
