"""Tables of the catalog: what ANALYZE TABLE has counted, and tables in buckets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from gpujoin.spark.query.accelerate import rewrite
from tests.spark.query.queries import EXCHANGED, FORCED, check

pytestmark = pytest.mark.spark
ROWS, KEYS = 2_000, 20


@pytest.fixture(scope="module")
def catalog(spark_session: SparkSession) -> Iterator[None]:
    session = spark_session
    source = session.range(ROWS).selectExpr(
        "id", f"id % {KEYS} k", f"concat('key ', id % {KEYS}) s", "cast(id as decimal(9, 2)) price"
    )
    source.write.mode("overwrite").saveAsTable("many")
    source.selectExpr("id", "s").write.format("csv").mode("overwrite").saveAsTable("lines")
    source.write.mode("overwrite").bucketBy(4, "k").sortBy("k").saveAsTable("bucketed")
    source.where("id < 100").write.mode("overwrite").bucketBy(4, "k").saveAsTable("bucketed_too")
    yield
    for name in ("many", "lines", "bucketed", "bucketed_too"):
        session.sql(f"drop table {name}")


def predicted(spark: SparkSession, text: str) -> list[float]:
    """Rows that the operations of an island are predicted to give, from the top."""
    (island,) = rewrite(spark.sql(text)).explanation.islands
    rows = list(island.inputs)
    while rows[-1].inputs:
        rows.append(rows[-1].inputs[0])
    return [operation.predicted.rows or 0 for operation in rows]


@pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])
def test_least_and_greatest_values_of_files_bound_pairs_and_groups(catalog: None, spark: SparkSession) -> None:
    joined = "select a.id, b.id from many a join many b on a.k = b.k"
    assert predicted(spark, joined)[0] == pytest.approx(ROWS * ROWS / KEYS)
    assert KEYS in predicted(spark, "select k, count(*) from many group by k")


@pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])
def test_numbers_of_values_are_taken_from_the_catalog(catalog: None, spark: SparkSession) -> None:
    texts = "select a.id, b.id from many a join many b on a.s = b.s"
    by_dictionaries = ROWS * ROWS / predicted(spark, texts)[0]
    assert KEYS / 3 < by_dictionaries < KEYS, "the dictionaries are compressed"
    spark.sql("analyze table many compute statistics for columns s")
    check(spark.sql(texts))
    assert predicted(spark, texts)[0] == pytest.approx(ROWS * ROWS / KEYS, rel=0.1)
    assert predicted(spark, "select s, count(*) from many group by s")[0] == pytest.approx(KEYS, rel=0.1)


@pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])
def test_numbers_of_rows_are_taken_from_the_catalog(catalog: None, spark: SparkSession) -> None:
    spark.sql("analyze table lines compute statistics")
    joined = "select m.id, x.s from many m join (select * from lines where s is not null) x on m.id = x.id"
    (island,) = check(spark.sql(joined)).islands
    (lines,) = (line for line in island.inputs[0].inputs if "rows from Spark" in "".join(line.lines()))
    while lines.inputs:
        (lines,) = lines.inputs
    assert lines.predicted.rows == ROWS


@pytest.mark.parametrize(
    "spark", [pytest.param(FORCED, marks=pytest.mark.extra), EXCHANGED], indirect=True, ids=["one task", "exchanged"]
)
def test_tables_in_buckets_are_read_here(catalog: None, spark: SparkSession) -> None:
    found = check(
        spark.sql("select a.k, count(*), sum(b.price) from bucketed a join bucketed_too b using (k) group by a.k")
    )
    (island,) = found.islands
    assert not any("rows from Spark" in line for line in island.tree)
