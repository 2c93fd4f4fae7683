"""Islands that take rows from Spark: of any source, in one task, in Spark's own tasks, sent to all, exchanged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import gpujoin
from gpujoin.report.explanation import Explanation
from tests.brief import each_once, together
from tests.spark.query.queries import EXCHANGED, FORCED, check, check_all, write_tables

pytestmark = pytest.mark.spark
SENT = EXCHANGED | {"spark.gpujoin.broadcastThreshold": "1g"}
"""Several tasks that read their share of the files, each with all rows from Spark."""
ways = pytest.mark.parametrize(
    "spark",
    [
        pytest.param(FORCED, id="one task"),
        pytest.param(SENT, id="sent", marks=pytest.mark.slow),
        pytest.param(EXCHANGED, id="exchanged", marks=pytest.mark.slow),
    ],
    indirect=True,
)

SHOPS = """
select * from values (1, 'a', 5.5D), (2, 'b', double('NaN')), (2, 'ü', -0.0D), (null, 'n', 0.0D), (7, '', null)
  as t(k, shop, weight)
"""


@pytest.fixture(scope="module")
def written_sources(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tables of Parquet, and views of rows from sources that workers do not read."""
    spark, folder = spark_session, tmp_path_factory.mktemp("sources")
    write_tables(spark, folder)
    shops = spark.sql(SHOPS)
    schema = "k int, shop string, weight double"
    for name in ("json", "csv"):
        shops.write.format(name).save(str(folder / name))
        spark.read.schema(schema).format(name).load(str(folder / name)).createOrReplaceTempView(name)
    cached = spark.table("json").cache()
    cached.createOrReplaceTempView("cached")
    rows = [tuple(row) for row in shops.collect()]
    spark.createDataFrame(rows, schema).createOrReplaceTempView("made")
    upper = sf.udf(lambda text: text and text.upper())
    spark.table("csv").withColumn("shop", upper("shop")).createOrReplaceTempView("udf")
    yield
    cached.unpersist()
    for view in ("sales", "items", "none", "json", "cached", "csv", "made", "udf"):
        spark.catalog.dropTempView(view)


@pytest.fixture
def sources(written_sources: None, spark: SparkSession) -> SparkSession:
    """A session with the views."""
    return spark


def tree(explanation: Explanation) -> str:
    (island,) = explanation.islands
    return "\n".join(island.tree)


SOURCES = ("cached", "csv", "made", "udf")
WAYS = {"one task": FORCED, "sent": SENT, "exchanged": EXCHANGED}


@pytest.mark.parametrize(("source", "way"), each_once(SOURCES, WAYS, extra=["csv", "made"]))
def test_a_star_with_one_side_from_spark_is_one_island(sources: SparkSession, source: str, way: str) -> None:
    for key, value in WAYS[way].items():
        sources.conf.set(key, value)
    query = f"""select d.shop, i.s, count(*) n, sum(a.id) t, max(d.weight) w
        from sales a join {source} d on a.k = d.k left join items i on i.k = d.k and i.cost > 0
        where a.price > 0 group by d.shop, i.s"""
    found = check(sources.sql(query))
    assert tree(found).count("rows from Spark") == 1
    assert tree(found).count("scan ") == 2
    assert len(found.joins) == 2


JOINS = {
    "inner": "select a.id, d.shop from sales a join {0} d on a.k = d.k",
    "left": "select a.id, d.shop, d.weight from sales a left join {0} d on a.k = d.k",
    "right": "select a.id, d.shop from sales a right join {0} d on a.k = d.k",
    "full": "select a.id, d.shop from sales a full join {0} d on a.k = d.k",
    "left of it": "select a.id, d.shop from {0} d left join sales a on a.k = d.k",
    "semi": "select a.id, a.s from sales a where a.k in (select k from {0})",
    "anti": "select a.id from sales a where not exists (select 1 from {0} d where d.k = a.k)",
    "semi of it": "select d.shop from {0} d where exists (select 1 from sales a where d.k = a.k)",
    "not in": "select a.id from sales a where a.k not in (select k from {0} where k is not null)",
    "not in nothing": "select a.id from sales a where a.k not in (select k from {0} where k > 100)",
    "exists or": "select a.id, a.k in (select k from {0}) or a.id = 4 from sales a",
    "null-safe": "select a.id, d.shop from sales a join {0} d on a.k <=> d.k",
    "range": "select a.id, d.shop from sales a join {0} d on a.id between d.k and d.k + 3",
    "product": "select a.id, d.shop from sales a cross join {0} d where a.price > 1",
    "empty": "select a.id, d.shop from sales a left join (select * from {0} where k > 100) d on a.k = d.k",
    "of nothing": "select count(*), max(d.shop) from sales a join (select * from {0} where k > 100) d on a.k = d.k",
    "counted": "select count(*) from sales a join {0} d on a.k = d.k",
    "floats": "select a.id, d.shop from sales a join {0} d on a.weight = d.weight",
    "twice": "select a.id, d.shop, e.weight from sales a join {0} d on a.k = d.k join {0} e on e.k = a.k",
    "two": "select d.shop, c.weight from {0} d join cached c on d.k = c.k join sales a on a.k = c.k",
    "union": "select u.x, a.id from (select k x from {0} union all select k from items) u join sales a on u.x = a.k",
    "top": "select a.id, d.shop from sales a join {0} d on a.k = d.k order by a.id, d.shop limit 3",
    "scalar": "select a.id from sales a join {0} d on a.k = d.k where a.id > (select min(k) from {0})",
    "aggregated": "select g.k, a.id from (select k, count(*) n from {0} group by k) g join sales a on g.k = a.k",
}


EMPTY = [name for name, query in JOINS.items() if "{0} where k > 100" in query]


@ways
@pytest.mark.parametrize(
    "names",
    together(
        JOINS, "full", "not in nothing", "exists or", "twice",
    ),
)  # fmt: skip
def test_every_join_is_that_of_spark(sources: SparkSession, names: tuple[str, ...]) -> None:
    sources.conf.set("spark.gpujoin.fallback", "silent")
    queries = {name: sources.sql(JOINS[name].format("csv")) for name in names}
    for found in check_all(queries, empty=EMPTY).values():
        assert any(join.accelerated for join in found.joins)


def test_what_spark_computes_may_hold_islands_itself(sources: SparkSession) -> None:
    sources.conf.set("spark.gpujoin.backend", "cpu")
    sources.conf.set("spark.gpujoin.fallback", "silent")
    query = """select w.r, count(*) from items i join (
        select a.k, size(collect_list(a.id) over (partition by a.k)) r from sales a join items b on a.k = b.k
        ) w on i.k = w.k group by w.r"""
    found = check(sources.sql(query))
    outer, inner = found.islands
    assert "rows from Spark" in "\n".join(outer.tree)
    assert "the window collect_list(id)" in "\n".join(outer.tree)
    assert "rows from Spark" not in "\n".join(inner.tree)


@pytest.mark.parametrize("spark", [EXCHANGED], indirect=True, ids=["exchanged"])
def test_rows_that_may_be_others_are_not_sent_by_key(sources: SparkSession) -> None:
    sources.conf.set("spark.gpujoin.fallback", "silent")
    query = "select a.id from sales a join (select * from csv limit 4) d on a.k = d.k"
    assert not sources.sql(query).isEmpty()
    gpujoin.accelerate(sources.sql(query)).collect()
    for island in gpujoin.explain(gpujoin.accelerate(sources.sql(query))).islands:
        assert "exchange by" not in "\n".join(island.tree)


@ways
def test_columns_of_one_name_are_told_apart(sources: SparkSession) -> None:
    csv = sources.table("csv")
    rows = csv.select("k", sf.try_url_decode("shop").alias("x"), csv.weight.alias("x"), csv.k.alias("a.b `c`"))
    found = check(sources.table("sales").select("id", "k").join(rows, "k", "left"))
    assert tree(found).count("rows from Spark") == 1


def test_a_wild_guess_of_the_size_makes_no_more_partitions_than_spark_has(sources: SparkSession) -> None:
    sources.conf.set("spark.gpujoin.backend", "cpu")
    sources.conf.set("spark.sql.sources.fileCompressionFactor", "1e12")
    found = check(sources.sql("select a.id, d.shop from sales a full join csv d on a.k = d.k"))
    partitions = sources.conf.get("spark.sql.shuffle.partitions")
    assert f"exchanged by key into {partitions} partitions" in str(found)
