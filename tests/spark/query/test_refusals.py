"""A query that met a value which only Spark computes costs twice once: the operation is then left to Spark alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from gpujoin import disable, enable
from gpujoin.spark.query import refusals
from gpujoin.spark.query.accelerate import PlannedQuery
from tests.brief import each_once

FORCED = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "warn"}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])]

EXCHANGED = {
    "spark.gpujoin.scan.oneTaskBytes": "1", "spark.gpujoin.scan.taskBytes": "1",
    "spark.gpujoin.broadcastThreshold": "1", "spark.gpujoin.exchange.partitions": "2",
}  # fmt: skip
STAGES: dict[str, dict[str, str]] = {
    "exchanged": EXCHANGED,
    "one stage": {},
    "exchanged as rows": {**EXCHANGED, "spark.gpujoin.exchange.transport": "rows"},
}
GIVEN_BACK = "Spark runs the query itself"


@pytest.fixture(scope="module")
def odd_values(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Texts that functions leave to Spark, in the last row of many; and a table to join them with."""
    folder = str(tmp_path_factory.mktemp("odd"))
    rows = spark_session.range(40).selectExpr(
        "id",
        "if(id = 37, '8000000000000000', cast(id as string)) as digits",
        "if(id = 37, cast(unhex('61FF') as string), concat('t', id)) as bytes",
        "if(id = 37, '2024-01-01 00:00:00 Europe/Paris', '2024-01-01 00:00:00') as time",
        "if(id = 37, 'ɤ', 'abc') as word",
    )
    rows.coalesce(1).write.parquet(f"{folder}/odd")
    rows.select("id").selectExpr("id", "id % 3 as g").write.parquet(f"{folder}/plain")
    return folder


@pytest.fixture
def session(spark: SparkSession, odd_values: str) -> Iterator[SparkSession]:
    for name in ("odd", "plain"):
        spark.read.parquet(f"{odd_values}/{name}").createOrReplaceTempView(name)
    yield spark
    disable(spark)
    for name in ("odd", "plain"):
        spark.catalog.dropTempView(name)


VALUES = {
    "a number of 64 digits": "conv(digits, 16, -2)",
    "text that is no UTF-8": "length(bytes)",
    "a zone in a text": "cast(time as timestamp)",
    "a letter of no settled case": "upper(word)",
}
RARE = ("a zone in a text", "a letter of no settled case")


def rows_of(frame: DataFrame) -> list[str]:
    return sorted(map(str, frame.collect()))


@pytest.mark.parametrize(("value", "stages"), each_once(VALUES, STAGES, extra=(*RARE, "exchanged as rows")))
def test_only_the_first_run_of_a_query_is_given_back(
    session: SparkSession, planned: list[PlannedQuery], caplog: pytest.LogCaptureFixture, value: str, stages: str
) -> None:
    for key, setting in STAGES[stages].items():
        session.conf.set(key, setting)
    expression = VALUES[value]
    query = f"select {expression} x, g from odd join plain using (id)"
    expected = rows_of(session.sql(query))
    enable(session)
    for number in range(3):
        caplog.clear()
        assert rows_of(session.sql(query)) == expected
        told = [record.getMessage() for record in caplog.records if GIVEN_BACK in record.getMessage()]
        assert len(told) == (number == 0)
        # The task's own error, whatever was met while it was handled.
        assert not any(word in message for message in told for word in ("An error occurred", "blob", "SQLSTATE"))
        assert bool(planned[-1].explanation.islands)  # the join runs here, whoever computes the function
    other = f"select count({expression}) n, g from odd join plain using (id) group by g"
    caplog.clear()
    assert rows_of(session.sql(other))
    assert GIVEN_BACK not in caplog.text, "another query over the same tables would meet the same values"


def test_other_tables_are_not_concerned(session: SparkSession, tmp_path: Path, planned: list[PlannedQuery]) -> None:
    plain = str(tmp_path / "others")
    session.sql("select id, cast(id as string) digits from range(40)").write.parquet(plain)
    session.read.parquet(plain).createOrReplaceTempView("others")
    query = "select conv(digits, 16, -2) x, g from {} join plain using (id)"
    enable(session)
    for table in ("odd", "others"):
        rows_of(session.sql(query.format(table)))
    assert refusals._refused
    assert [bool(each.explanation.islands and not each.explanation.reasons) for each in planned] == [True, True]
    session.catalog.dropTempView("others")
