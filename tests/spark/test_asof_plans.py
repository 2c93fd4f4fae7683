"""gpu_asof_join inside of larger queries: one island with what is around it, or Spark's operators; one answer."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

import gpujoin
from gpujoin import explain, gpu_asof_join
from gpujoin.errors import FallbackError
from gpujoin.spark.jvm.gateway import session_of
from gpujoin.spark.query import planner, running
from gpujoin.spark.query.native import native_frame, rule_of
from gpujoin.testing import assert_same_rows
from tests.brief import brief
from tests.spark.query.faults import KilledStage

pytestmark = pytest.mark.spark

TRADES = """
select cast(id as int) trade, if(id % 29 = 0, null, timestamp_seconds(id * 37 % 1000)) time,
  if(id % 23 = 0, null, concat('s', id % 5)) symbol, id % 9 size, repeat('x', 20) note from range(240)
"""
QUOTES = """
select timestamp_seconds(id * 53 % 1000 + 1) time, if(id % 31 = 0, null, concat('s', id % 6)) symbol,
  cast(id as int) quote, if(id % 4 = 0, null, id * 1.5D) bid, repeat('y', 20) note, id % 9 size from range(200)
"""
"""No two quotes of a symbol have one time, and null is among the symbols, the times and the bids."""
SYMBOLS = "select concat('s', id) symbol, if(id < 3, 'x', 'y') venue from range(4)"
WITHIN = dt.timedelta(seconds=40)


@pytest.fixture(scope="module")
def folder(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables as Parquet files."""
    path = tmp_path_factory.mktemp("asof")
    for name, text in (("trades", TRADES), ("quotes", QUOTES), ("symbols", SYMBOLS)):
        spark_session.sql(text).repartition(2).write.parquet(str(path / name))
    return path


@pytest.fixture
def tables(spark: SparkSession, folder: Path) -> dict[str, DataFrame]:
    spark.conf.set("spark.gpujoin.backend", "cpu")
    spark.conf.set("spark.gpujoin.fallback", "raise")
    return {name: spark.read.parquet(str(folder / name)) for name in ("trades", "quotes", "symbols")}


@pytest.fixture(params=["enabled", pytest.param("not enabled", marks=pytest.mark.extra)])
def session(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[SparkSession]:
    if request.param == "enabled":
        gpujoin.enable(spark)
    yield spark
    gpujoin.disable(spark)


Join = Callable[[DataFrame, DataFrame], DataFrame]


_searched: list[tuple[DataFrame, DataFrame, DataFrame]] = []


def searched(left: DataFrame, right: DataFrame) -> DataFrame:
    """The as-of join by a loop over the rows: by symbol and time, backward, within 40 seconds.

    Of the same two sides it is made once.
    """
    for known_left, known_right, result in _searched:
        pairs = ((known_left, left), (known_right, right))
        if all(known.schema == side.schema and known.sameSemantics(side) for known, side in pairs):
            return result
    result = _search(left, right)
    _searched.append((left, right, result))
    return result


def _search(left: DataFrame, right: DataFrame) -> DataFrame:
    fields = [*left.schema, *(field for field in right.schema if field.name not in ("time", "symbol"))]
    known = right.collect()
    rows = []
    for row in left.collect():
        matches = [
            one
            for one in known
            if row.time is not None and one.time is not None and row.symbol is not None
            and one.symbol == row.symbol and dt.timedelta(0) <= row.time - one.time <= WITHIN
        ]  # fmt: skip
        nearest = max(matches, key=lambda one: one.time, default=None)
        kept = right.drop("time", "symbol").columns
        rows.append((*row, *(None if nearest is None else nearest[name] for name in kept)))
    clash = set(left.columns) & {field.name for field in fields[len(left.columns) :]}
    names = [f.name + "_right" * (n >= len(left.columns) and f.name in clash) for n, f in enumerate(fields)]
    session = left.sparkSession
    return session.createDataFrame(rows, StructType(fields)).toDF(*names)


joined = partial(gpu_asof_join, on="time", by="symbol", tolerance=WITHIN)


def test_a_query_over_files_is_one_island(session: SparkSession, tables: dict[str, DataFrame]) -> None:
    def query(join: Join) -> DataFrame:
        found = join(tables["trades"].where("size < 8"), tables["quotes"])
        late = found.where("trade > 20 and symbol in ('s1', 's2', 's3')").where("bid is not null")
        counted = late.join(tables["symbols"], "symbol").groupBy("venue")
        return counted.agg(sf.sum("bid"), sf.max("size"), sf.count("*"))

    frame = query(joined)
    explained = explain(frame)
    (island,) = explained.islands
    written = [join for join in explained.joins if join.join_type != "left_semi"]  # without a runtime filter
    assert [join.shape for join in written] == ["equality: n + m", "as-of: n log n"], str(explained)
    assert all(join.accelerated for join in explained.joins)
    scans = {name: line for line in island.tree for name in tables if f"/{name} (" in line}
    assert "columns trade, time, symbol, size where" in scans["trades"]
    for condition in ("size < 8", "trade > 20", "symbol in ('s1', 's2', 's3')"):
        assert condition in scans["trades"]
    assert "columns time, symbol, bid where" in scans["quotes"]
    assert "symbol in ('s1', 's2', 's3')" in scans["quotes"]
    assert_same_rows(frame.toArrow(), query(searched).toArrow())
    assert len(gpujoin.metrics(frame)) == 1


Query = Callable[[Join, DataFrame, DataFrame], DataFrame]


def twice(frame: DataFrame, query: Callable[[DataFrame, DataFrame], DataFrame]) -> DataFrame:
    return query(frame, frame)


def in_a_subquery(join: Join, trades: DataFrame, quotes: DataFrame) -> DataFrame:
    join(trades, quotes).createOrReplaceTempView("quoted")
    trades.createOrReplaceTempView("traded")
    return trades.sparkSession.sql(
        "select trade, size + (select max(quote) from quoted where bid > 4) n from traded where trade in"
        " (select trade from quoted where bid > 4)"
    )


QUERIES: dict[str, Query] = {
    "all columns": lambda j, a, b: j(a, b),
    "a filter of left rows": lambda j, a, b: j(a, b).where("size > 3"),
    "a filter of keys": lambda j, a, b: j(a, b).where("symbol like 's1%' or symbol is null"),
    "a filter that rejects nulls of the right side": lambda j, a, b: j(a, b).where("bid > 100"),
    "a filter of rows without a match": lambda j, a, b: j(a, b).where("quote is null and trade > 3"),
    "a filter of both sides": lambda j, a, b: j(a, b).where("size > size_right or bid > 100"),
    "a filter that the other side may not see": lambda j, a, b: j(a, b).where(
        "size = 4 and size_right = 4 and bid > 2"
    ),
    "a computed filter": lambda j, a, b: (
        j(a, b).withColumn("s", sf.col("size") * 2).where("s > 7").drop("size")
    ),
    "left columns alone": lambda j, a, b: j(a, b).select("trade", "size"),
    "right columns alone": lambda j, a, b: j(a, b).select("bid", "note_right"),
    "no column": lambda j, a, b: j(a, b).where("trade > 7").groupBy().count(),
    "a side that is filtered, projected and joined": lambda j, a, b: j(
        a.where("size > 2").select("symbol", "time", "trade", sf.lit(1).alias("one")),
        b.join(b.groupBy("symbol").agg(sf.max("bid").alias("most")), "symbol", "left").drop("note"),
    ),
    "an aggregation": lambda j, a, b: j(a, b).groupBy("size", "symbol").agg(sf.sum("bid"), sf.max("quote")),
    "a union with itself": lambda j, a, b: twice(j(a, b), lambda q, r: q.union(r)),
    "a join with itself": lambda j, a, b: twice(
        j(a, b).where("size = 3"), lambda q, r: q.alias("q").join(r.alias("r"), "trade").select("q.bid", "r.bid")
    ),
    "an as-of join of one": lambda j, a, b: j(
        j(a, b), b.select("time", "symbol", sf.col("quote").alias("again"))
    ).where("size < 4 and quote is not null"),
    "a window": lambda j, a, b: j(a, b).withColumn(
        "n", sf.row_number().over(Window.partitionBy("symbol").orderBy("trade"))
    ),
    "an order and a limit": lambda j, a, b: j(a, b).orderBy("trade").limit(7),
    "distinct rows": lambda j, a, b: j(a, b).select("size", "symbol").distinct(),
    "a semi join": lambda j, a, b: j(a, b).join(b.where("bid > 50"), "quote", "left_semi"),
    "a cached table": lambda j, a, b: j(a, b).cache().where("size > 3"),
    "a subquery": in_a_subquery,
    "a filter by a subquery's value": lambda j, a, b: j(a, b).where(
        sf.col("trade") > b.select(sf.min("quote") + 5).scalar()
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    brief(
        QUERIES, "a side that is filtered, projected and joined", "a subquery",
    ),
)  # fmt: skip
def test_queries(spark: SparkSession, tables: dict[str, DataFrame], name: str) -> None:
    """The rows of an island and those of Spark's own plan are those of a loop."""
    sides = tables["trades"], tables["quotes"]
    try:
        frame = QUERIES[name](joined, *sides)
        explained = explain(frame)
        shapes = [join.shape for join in explained.joins]
        assert "as-of: n log n" in shapes or name == "a cached table", str(explained)
        assert not any(join.strategy.value == "spark" and join.by_gpu_join for join in explained.joins)
        found = frame.toArrow()
        native = native_frame(frame, rule_of(spark))
        text = native._jdf.queryExecution().optimizedPlan().toString()
        assert "Window [last(" in text
        assert "MapInArrow" not in text
        by_spark = native.toArrow()
    finally:
        spark.catalog.clearCache()
    expected = QUERIES[name](searched, *sides).toArrow()
    spark.catalog.clearCache()
    assert_same_rows(found, expected)
    assert_same_rows(by_spark, expected)


def test_both_sides_of_one_table(spark: SparkSession, tables: dict[str, DataFrame]) -> None:
    """Columns that it computes keep apart, and so do those of the result joined with itself."""
    trades = tables["trades"].withColumn("double", sf.col("size") * 2)
    frame = joined(trades, trades.where("size > 4")).select("trade", "trade_right", "double", "double_right")
    expected = searched(trades, trades.where("size > 4")).select(*frame.columns)
    assert [island.tasks for island in explain(frame).islands] == [1]
    assert_same_rows(frame.toArrow(), expected.toArrow())
    assert_same_rows(native_frame(frame, rule_of(spark)).toArrow(), expected.toArrow())


def test_columns_of_the_left_side_go_on_to_resolve(tables: dict[str, DataFrame]) -> None:
    trades, quotes = tables["trades"], tables["quotes"]
    frame = joined(trades, quotes).where(trades.size > 3).select(trades.trade, "quote")
    expected = searched(trades, quotes).where("size > 3").select("trade", "quote")
    assert_same_rows(frame.toArrow(), expected.toArrow())


def test_the_schema_is_that_of_the_sides(spark: SparkSession, tables: dict[str, DataFrame]) -> None:
    left = tables["trades"].select(
        sf.col("time").alias("t", metadata={"of": "trades"}), sf.lit(1).alias("one"), "symbol", "size"
    )
    right = tables["quotes"].select(
        "time", "symbol", sf.col("bid").alias("bid", metadata={"of": "quotes"}), sf.lit(2).alias("size")
    )
    frame = gpu_asof_join(left, right, left_on="t", right_on="time", by="symbol", suffixes=("_l", "_r"))
    assert frame.columns == ["t", "one", "symbol", "size_l", "time", "bid", "size_r"]
    schema = {field.name: field for field in frame.schema}
    assert (schema["t"].metadata, schema["bid"].metadata) == ({"of": "trades"}, {"of": "quotes"})
    assert [schema[name].nullable for name in ("one", "size_r", "bid")] == [False, True, True]
    assert frame.toArrow().num_rows == 240
    assert native_frame(frame, rule_of(spark)).schema == frame.schema


# -- Spark's own operators ---------------------------------------------------------------------------------------

DOUBLES = "(double('NaN')), (-0.0D), (null), (double('infinity')), (double('-infinity')), (1.5D), (3.25D), (-7.0D)"
LONGS = "(-9223372036854775808L), (9223372036854775807L), (0L), (null), (5L), (6L), (-40L)"
DAYS = "(date'2024-02-28'), (date'2024-03-01'), (null), (date'1899-12-31'), (date'2024-03-04')"
MOMENTS = "(timestamp'2024-03-31 00:30:00'), (timestamp'2024-03-31 03:30:00'), (null), (timestamp'1890-01-01 00:00:00')"
TEXTS = "(''), ('a'), ('b'), (null), ('ü'), ('aa')"
TYPES: dict[str, tuple[str, str, Any]] = {
    "doubles": (DOUBLES, "double", 2.5),
    "floats": (DOUBLES, "float", 2.5),
    "longs": (LONGS, "bigint", 45),
    "longs and ints": ("(7L), (2147483648L), (null), (-3L)", "bigint", 4),
    "decimals": ("(1.5), (null), (-2.25), (99.0)", "decimal(10, 2)", Decimal("3.75")),
    "dates": (DAYS, "date", dt.timedelta(days=2)),
    "timestamps": (MOMENTS, "timestamp", dt.timedelta(hours=2, microseconds=1)),
    "timestamps without a zone": (MOMENTS, "timestamp_ntz", dt.timedelta(hours=2, minutes=59)),
    "intervals": (
        "(interval '1' second), (null), (interval '3' day)",
        "interval day to second",
        dt.timedelta(3),
    ),
    "bytes": (TEXTS, "binary", None),
}
BRIEF = ("longs and ints",)
"""Of these types `make test` takes the nearest row."""


def marks(kind: str, direction: str) -> list[pytest.MarkDecorator]:
    if direction != ("forward" if kind == "bytes" else "nearest"):
        return [pytest.mark.slow]
    return [] if kind in BRIEF else [pytest.mark.extra]


OTHERS = {"longs and ints": ("(5), (null), (-8), (2147483647)", "int")}


@pytest.mark.parametrize(
    ("kind", "direction"),
    [
        pytest.param(kind, direction, marks=marks(kind, direction))
        for kind in TYPES
        for direction in ("backward", "forward", *["nearest"] * (kind != "bytes"))
    ],
)
@pytest.mark.parametrize("spark", [{"spark.sql.session.timeZone": "Europe/Berlin"}], indirect=True, ids=[""])
def test_spark_finds_the_same(spark: SparkSession, kind: Any, direction: Any) -> None:
    """Of equal order keys only one is on the right: which is taken is not said."""
    spark.conf.set("spark.gpujoin.fallback", "raise")  # a task that fails is not run by Spark
    values, dtype, tolerance = TYPES[kind]
    others, other_type = OTHERS.get(kind, (values, dtype))
    left = spark.sql(
        f"select cast(t as {dtype}) t, g, cast(t as string) shown"
        f" from (values {values} as v(t)), (values (1), (2), (null) as w(g))"
    )
    one = spark.sql(f"select cast(t as {other_type}) t, 1 g, cast(t as string) j from values {others} as v(t)")
    right = one.union(one.selectExpr("t", "int(null)", "j")).union(one.limit(2).selectExpr("t", "2", "j"))
    right = spark.createDataFrame(right.collect(), right.schema)
    rows = left.count()
    for exact, within, by in ((True, None, "g"), (False, tolerance, "g"), (True, tolerance, None)):
        searched_side = right if by else right.where("g = 1").drop("g")
        frame = gpu_asof_join(
            left,
            searched_side,
            "t",
            by,
            direction=direction,
            tolerance=within,
            allow_exact=exact,
            backend="cpu",
        )
        assert len(explain(frame).islands) == 1
        here = frame.toArrow()
        assert here.num_rows == rows
        assert within is not None or here["j"].null_count < here.num_rows
        assert_same_rows(native_frame(frame, rule_of(spark)).toArrow(), here, context=f"{exact}, {within}, {by}")


@pytest.mark.extra
def test_a_killed_worker_gives_the_query_back(
    spark: SparkSession, tables: dict[str, DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = tables["trades"], tables["quotes"]
    spark.conf.set("spark.gpujoin.fallback", "silent")
    expected = searched(*sides).where("size > 3").toArrow()
    monkeypatch.setattr(running, "RunStage", KilledStage)
    assert_same_rows(joined(*sides).where("size > 3").toArrow(), expected)


def test_left_to_spark_with_a_reason(
    spark: SparkSession, tables: dict[str, DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = tables["trades"], tables["quotes"]
    spark.conf.set("spark.gpujoin.fallback", "silent")
    expected = searched(*sides).toArrow()
    refused = gpujoin.model.reasons.Reason(gpujoin.model.reasons.ReasonKind.UNAVAILABLE, "workers", "they lack polars")
    monkeypatch.setattr(planner, "refusal", lambda *_: refused)
    (join,) = explain(joined(*sides)).joins
    assert (join.strategy.value, join.condition) == (
        "spark",
        "backward, right.time <= left.time, within interval 40 seconds",
    )
    assert [reason.why for reason in join.reasons] == ["they lack polars"]
    assert_same_rows(joined(*sides).toArrow(), expected)
    spark.conf.set("spark.gpujoin.fallback", "raise")
    with pytest.raises(FallbackError, match="they lack polars"):
        joined(*sides).toArrow()


@pytest.mark.parametrize("switch", brief(("disable", "spark.gpujoin.enabled", "no rule"), "no rule"))
def test_switched_off(spark: SparkSession, tables: dict[str, DataFrame], switch: str) -> None:
    sides = tables["trades"], tables["quotes"]
    frame = joined(*sides).where("size > 3")
    if switch == "disable":
        gpujoin.disable(spark)
        (join,) = explain(frame).joins
        assert (join.strategy.value, join.condition) == (
            "spark",
            "backward, right.time <= left.time, within interval 40 seconds",
        )
    elif switch == "no rule":
        rule_of(spark).removeFrom(spark._jsparkSession)
    else:
        spark.conf.set(switch, "false")
    assert "MapInArrow" not in frame._jdf.queryExecution().optimizedPlan().toString()
    assert_same_rows(frame.toArrow(), searched(*sides).where("size > 3").toArrow())


OTHER_SESSIONS = ("made before", "made after", "made after enable and disable", "made by the JVM")


@pytest.mark.parametrize("how", brief(OTHER_SESSIONS, "made by the JVM"))
def test_a_global_view_in_another_session(spark: SparkSession, tables: dict[str, DataFrame], how: str) -> None:
    """Sessions share views, and so must know of as-of joins, whoever has made them, and when."""
    sides = tables["trades"], tables["quotes"]
    before = spark.newSession()
    frame = joined(*sides)
    frame.createOrReplaceGlobalTempView("quoted")
    if how == "made after enable and disable":
        gpujoin.enable(spark)
        gpujoin.disable(spark)
    made = before if how == "made before" else spark.newSession()
    if how == "made by the JVM":
        made = session_of(spark, spark._jsparkSession.newSession())
    expected = searched(*sides)
    queries = {
        "select (select max(quote) from global_temp.quoted) m, trade from global_temp.quoted": expected.crossJoin(
            expected.selectExpr("max(quote) m")
        ).select("m", "trade"),
        "select * from global_temp.quoted where size > 3": expected.where("size > 3"),
    }
    try:
        for text, rows in queries.items():
            assert_same_rows(made.sql(text).toArrow(), rows.toArrow())
    finally:
        spark.catalog.dropGlobalTempView("quoted")
        gpujoin.disable(made)


@pytest.mark.extra
def test_writes(spark: SparkSession, tables: dict[str, DataFrame], tmp_path: Path) -> None:
    sides = tables["trades"], tables["quotes"]
    joined(*sides).where("size > 3").write.parquet(str(tmp_path / "out"))
    found = spark.read.parquet(str(tmp_path / "out")).toArrow()
    assert_same_rows(found, searched(*sides).where("size > 3").toArrow())


# -- how it is run -----------------------------------------------------------------------------------------------


@pytest.mark.extra
@pytest.mark.parametrize(
    ("given", "strategy"),
    [({"strategy": "shuffle"}, "shuffle"), ({"strategy": "broadcast"}, "broadcast"), ({}, "broadcast")],
    ids=["shuffle", "broadcast", "auto"],
)
def test_the_strategy_holds_in_an_island(
    spark: SparkSession, tables: dict[str, DataFrame], given: Mapping[str, Any], strategy: str
) -> None:
    frame = joined(tables["trades"], tables["quotes"], **given).where("size > 3").groupBy("symbol").count()
    (join,) = explain(frame).joins
    assert join.strategy.value == strategy
    expected = tables["trades"].where("size > 3").groupBy("symbol").count()
    assert_same_rows(frame.toArrow(), expected.toArrow())


def test_rows_that_are_others_each_time(spark: SparkSession, tables: dict[str, DataFrame]) -> None:
    """They are exchanged by key, as Spark's own shuffles do."""
    left = tables["trades"].withColumn("u", sf.rand())
    for key, value in (("exchange.partitions", "3"), ("broadcastThreshold", "1"), ("scan.oneTaskBytes", "1")):
        spark.conf.set(f"spark.gpujoin.{key}", value)
    frame = joined(left, tables["quotes"], strategy="shuffle")
    (island,) = explain(frame).islands
    assert any("exchanged by key" in note.text for note in island.notes), str(island)
    expected = searched(tables["trades"], tables["quotes"])
    assert_same_rows(frame.drop("u").toArrow(), expected.toArrow())


def test_payload_of_any_type(spark: SparkSession) -> None:
    left = spark.sql(
        "select id t, array(id, null) l, map('k', id) m, named_struct('a', id, 'b', null) s, interval '1' day d,"
        " 'X' collate utf8_lcase c, parse_json('{\"v\": 1}') v from range(4)"
    )
    frame = gpu_asof_join(left, left, "t", allow_exact=False, backend="cpu").drop("v", "v_right")
    assert len(explain(frame).islands) == 1
    rows = frame.orderBy("t").collect()
    assert rows == native_frame(frame, rule_of(spark)).orderBy("t").collect()
    assert [row.l_right for row in rows] == [None, [0, None], [1, None], [2, None]]
