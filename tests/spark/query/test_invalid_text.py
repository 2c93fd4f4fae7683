"""Text that is no UTF-8, which Spark keeps as the bytes it is, from files to rows: answers and paths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

import gpujoin
from gpujoin import gpu_join
from gpujoin.model.pipeline import Rung
from gpujoin.spark.query.accelerate import rewrite
from tests.brief import each_once
from tests.spark.query.queries import EXCHANGED, FORCED, views

pytestmark = pytest.mark.spark
STAGES = {"one stage": FORCED, "exchanged": EXCHANGED}
rows_in = pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])

HEX = [
    "FF",
    "61",
    None,
    "C328",
    "",
    "6120746578742074686174206973206F7574206F66206C696E65FE",
    "EDA080",
    "C3",
    "62FF",
    None,
]
"""Bytes of the texts; null-heavy, with and without UTF-8."""


@pytest.fixture(scope="module")
def texts(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Files of two tables that Spark has written; the first of their row groups is valid text."""
    folder = tmp_path_factory.mktemp("texts")
    for name, times, factor in (("notes", 8, 3), ("tags", 2, 7)):
        rows = [(i, HEX[i % 10], HEX[i * factor % 10]) for i in range(10 * times)]
        rows += [(-i, "61", "62") for i in range(1, 6)]
        frame = spark_session.createDataFrame(rows, "id long, a string, b string")
        frame = frame.selectExpr("id", "cast(unhex(a) as string) s", "cast(unhex(b) as string) t")
        frame.repartition(2, "id").write.parquet(str(folder / name))
    with views(spark_session, folder, {"notes": None, "tags": None}):
        yield


QUERIES = {
    "output": "select a.id, hex(a.s), hex(b.t) from notes a left join tags b on a.id = b.id where a.id > 3",
    "join": "select a.id, b.id, hex(a.t), hex(b.t) from notes a join tags b on a.s = b.s",
    "join and condition": "select a.id, hex(b.t) from notes a join tags b on a.s = b.s and a.t < b.t",
    "full join": "select a.id, b.id, hex(a.s), hex(b.s) from notes a full join tags b on a.s = b.t",
    "anti join": "select id, hex(t) from notes a where not exists (select 1 from tags b where a.s = b.t)",
    "groups": "select hex(s), count(*), hex(min(t)), hex(max(t)) from notes group by s",
    "groups over a join": "select hex(a.t), count(*) from notes a join tags b on a.s = b.s group by a.t",
    "distinct": "select hex(s), hex(t) from (select distinct s, t from notes)",
    "filter": """select a.id, hex(a.s) from notes a join tags b on a.id = b.id
        where a.s > 'b' and (a.t < a.s or startswith(a.t, 'a') or b.t like 'b%')""",
    "top": """select hex(s), id from
        (select a.s, a.id from notes a join tags b on a.id = b.id order by a.s desc, a.id limit 7)""",
}  # fmt: skip


def counted(frame: DataFrame) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row) for row in frame.collect())


@pytest.mark.parametrize(("name", "stages"), each_once(QUERIES, STAGES, extra=("distinct", "top")))
def test_islands(texts: None, spark: SparkSession, name: str, stages: str) -> None:
    for key, value in STAGES[stages].items():
        spark.conf.set(key, value)
    frame = spark.sql(QUERIES[name])
    expected = counted(frame)
    found = rewrite(frame)
    assert found.explanation.islands
    assert counted(found.frame) == expected
    assert expected
    reports = gpujoin.metrics(found.frame)
    again = f"computed again {Rung.ARROW_SCANS.value}, after DecodeError {Rung.FAST.value}"
    assert {note for report in reports for note in report.notes} == {again}
    assert any(again in str(report) for report in reports)


@rows_in
@pytest.mark.few
@pytest.mark.parametrize("strategy", ["broadcast", "shuffle"])
@pytest.mark.parametrize("how", ["inner", "left"])
def test_joins_fed_by_rows(texts: None, spark: SparkSession, strategy: Any, how: Any) -> None:
    one, two = spark.table("notes").alias("a"), spark.table("tags").alias("b")
    from pyspark.sql import functions as sf

    condition = (sf.col("a.s") == sf.col("b.s")) & (sf.col("a.t") <= sf.col("b.t"))
    shown = ("a.id", "b.id", "hex(a.s)", "hex(b.t)")
    expected = counted(one.join(two, condition, how).selectExpr(*shown))
    joined = gpu_join(one, two, condition, how, strategy=strategy).selectExpr(*shown)
    assert counted(joined) == expected
    assert gpujoin.metrics(joined)


@rows_in
def test_functions_that_read_characters_are_left_to_spark(texts: None, spark: SparkSession) -> None:
    spark.conf.set("spark.gpujoin.fallback", "silent")
    frame = spark.sql("select a.id, length(a.s) from notes a join tags b on a.id = b.id where length(a.s) > 0")
    expected = counted(frame)
    assert rewrite(frame).explanation.islands
    gpujoin.enable(spark)
    try:
        assert counted(frame) == expected
    finally:
        gpujoin.disable(spark)


@rows_in
def test_characters_without_a_settled_case_are_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.gpujoin.fallback", "silent")
    rows = [("abc",), ("straße",), ("ɤ",), ("ΟΔΟΣ",), (None,)]
    spark.createDataFrame(rows, "s string").write.parquet(str(tmp_path / "words"))
    frame = spark.read.parquet(str(tmp_path / "words")).selectExpr("upper(s) u", "lower(s) l").distinct()
    expected = counted(frame)
    rewritten = rewrite(frame)
    assert rewritten.explanation.islands
    with pytest.raises(PythonException, match="UnsupportedValueError"):
        rewritten.frame.collect()
    gpujoin.enable(spark)
    try:
        assert counted(frame) == expected
    finally:
        gpujoin.disable(spark)
