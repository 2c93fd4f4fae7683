"""What programs do around a join of streams: below and above it, in sinks, and when they are started again."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import gpujoin
from tests.spark.streams.queries import FORMS, WITHIN, Output, Streams, as_it_is, assert_equal, started

pytestmark = pytest.mark.spark

Sides = tuple[DataFrame, DataFrame]
BOTH = ("l.k as lk", "l.t as lt", "l.v as lv", "r.k as rk", "r.t as rt", "r.v as rv")
TIMES = "r.t >= l.t and r.t <= l.t + interval 5 seconds"
SEVERAL = "several joins of streams"
STATE = "another operator that keeps state"


def joined(sides: Sides, on: str = WITHIN, how: str = "full") -> DataFrame:
    return sides[0].alias("l").join(sides[1].alias("r"), f.expr(on), how).selectExpr(*BOTH)


def with_text(sides: Sides, text: str) -> DataFrame:
    """Join by a text."""
    left, right = (side.withColumn("x", f.expr(text)) for side in sides)
    both = left.alias("l").join(right.alias("r"), f.expr(f"l.x = r.x and {TIMES}"), "full")
    return both.selectExpr(*BOTH, "md5(cast(l.x as binary)) as lx", "md5(cast(r.x as binary)) as rx")


def by_window(sides: Sides, window: str) -> DataFrame:
    """Join by key and window."""
    left, right = (side.selectExpr("k", "v", f"{window} as w") for side in sides)
    both = left.alias("l").join(right.alias("r"), f.expr("l.k = r.k and l.w = r.w"), "full")
    return both.selectExpr("l.k as lk", "r.k as rk", "l.v as lv", "r.v as rv")


def chained(sides: Sides) -> DataFrame:
    first = joined(sides, how="inner").select("lk", "lt", "rv").alias("l")
    last = sides[1].alias("r")
    near = "l.lk = r.k and r.t >= l.lt and r.t <= l.lt + interval 5 seconds"
    return first.join(last, f.expr(near), "inner").selectExpr("lk", "rv", "v")


def grouped(sides: Sides) -> DataFrame:
    return joined(sides, how="left").groupBy(f.window("lt", "10 seconds")).agg(f.sum("lv"), f.count("rv"))


def looked_at(rows: DataFrame) -> DataFrame:
    """Run parts of a micro-batch, and all of it, before its rows are taken."""
    assert rows.isEmpty() == (not rows.take(1))
    assert rows.count() >= len(rows.take(1))
    return rows


JOINED_HERE: dict[str, Callable[[Sides], DataFrame]] = {
    "coalesced": lambda sides: joined(sides).coalesce(1),
    "in a union with a stream": lambda sides: joined(sides).union(sides[0].selectExpr(*["k", "t", "v"] * 2)),
    "below a generator": lambda sides: joined(sides).selectExpr("lk", "explode(array(lv, rv)) as v").where("v > 1"),
    "of texts that are not valid UTF-8": lambda sides: with_text(
        sides, "cast(unhex(if(v % 2 = 0, 'ff41', 'fe41')) as string)"
    ),
    "of texts of a megabyte": lambda sides: with_text(sides, "repeat(coalesce(s, 'n'), 1000000)"),
    "by sliding windows": lambda sides: by_window(sides, "window(t, '10 seconds', '5 seconds')"),
    "by windows that begin late": lambda sides: by_window(sides, "window(t, '10 seconds', '10 seconds', '3 seconds')"),
    "of a stream with itself": lambda sides: joined((sides[0], sides[0]), how="inner"),
    "of a union": lambda sides: joined((sides[0].union(sides[0].where("v > 3")), sides[1])),
    "named by both sides": lambda sides: sides[0].drop("s", "t2").join(sides[1].drop("s", "t2"), ["k", "t"], "full"),
}
LEFT_TO_SPARK: dict[str, tuple[Callable[[Sides], DataFrame], str]] = {
    "a join of a join": (chained, SEVERAL),
    "two joins in a union": (lambda sides: joined(sides, how="inner").union(joined(sides, how="left")), SEVERAL),
    "below an aggregation": (grouped, STATE),
    "above an aggregation": (
        lambda sides: joined((sides[0], sides[1].dropDuplicatesWithinWatermark(["k"])), how="left"), STATE
    ),
    "above session windows": (
        lambda sides: by_window(
            tuple(side.groupBy(f.session_window("t", "5 seconds").alias("w"), "k").agg(f.sum("v").alias("v"))
                  for side in sides),  # type: ignore[arg-type]
            "w",
        ), STATE,
    ),
}  # fmt: skip
SINKS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "coalesced": lambda rows: rows.coalesce(1),
    "repartitioned": lambda rows: rows.repartition(3),
    "looked at before": looked_at,
    "kept, and joined with itself": lambda rows: rows.persist().alias("x").join(rows.alias("y"), "lk"),
}
RESTARTS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "renamed columns": lambda rows: rows.toDF(*"abcdef"),
    "columns in another order": lambda rows: rows.select(*reversed(rows.columns)),
    "a column more": lambda rows: rows.withColumn("more", f.expr("lv + 1")),
}


@pytest.fixture
def streams(tmp_path: Path, request: pytest.FixtureRequest) -> Streams:
    """Two streams of two micro-batches."""
    return Streams.drawn(random.Random(request.node.name), tmp_path, FORMS["range"], "full", batches=2)


def run(
    streams: Streams,
    spark: SparkSession,
    name: str,
    query: Callable[[Sides], DataFrame],
    sink: Callable[[DataFrame], DataFrame] = as_it_is,
) -> Output:
    source = streams.folder / name
    streams.write(source, 0, streams.batches)
    left, right = streams.frames(spark, source)
    return started(query((left, right)), source / "checkpoint", sink=sink)


@pytest.mark.extra
@pytest.mark.parametrize("name", JOINED_HERE)
def test_around_a_join_that_runs_here(streaming: SparkSession, streams: Streams, name: str) -> None:
    expected = run(streams, streaming, "spark", JOINED_HERE[name])
    assert expected.total
    gpujoin.enable(streaming)
    assert_equal(run(streams, streaming, "here", JOINED_HERE[name]), expected, name)


@pytest.mark.extra
@pytest.mark.parametrize("name", LEFT_TO_SPARK)
def test_around_a_join_that_is_left_to_spark(streaming: SparkSession, streams: Streams, name: str) -> None:
    query, why = LEFT_TO_SPARK[name]
    expected = run(streams, streaming, "spark", query)
    gpujoin.enable(streaming)
    left, right = streams.frames(streaming, streams.folder / "spark")
    assert why in str(gpujoin.explain(query((left, right))))
    output = run(streams, streaming, "here", query)
    assert output.operators == expected.operators
    assert output.rows == expected.rows
    assert output.watermarks() == expected.watermarks()


@pytest.mark.extra
@pytest.mark.parametrize("name", SINKS)
def test_what_sinks_do_with_rows(streaming: SparkSession, streams: Streams, name: str) -> None:
    expected = run(streams, streaming, "spark", joined, SINKS[name])
    assert expected.total
    gpujoin.enable(streaming)
    assert_equal(run(streams, streaming, "here", joined, SINKS[name]), expected, name)


@pytest.mark.extra
@pytest.mark.parametrize("name", RESTARTS)
def test_other_columns_above_the_join_after_a_restart(streaming: SparkSession, streams: Streams, name: str) -> None:
    outputs = []
    for engine in ("spark", "here"):
        source, output = streams.folder / engine, Output()
        for number, above in enumerate((as_it_is, RESTARTS[name])):
            streams.write(source, number, number + 1)
            left, right = streams.frames(streaming, source)
            output.add(started(above(joined((left, right))), source / "checkpoint"))
        outputs.append(output)
        gpujoin.enable(streaming)
    expected, here = outputs
    assert_equal(here, expected, name)


@pytest.mark.extra
def test_two_queries_of_a_session_at_once(streaming: SparkSession, streams: Streams) -> None:
    """The same DataFrame is started twice, beside a query of another join."""
    expected = run(streams, streaming, "spark", joined)
    gpujoin.enable(streaming)
    source = streams.folder / "here"
    streams.write(source, 0, streams.batches)
    left, right = streams.frames(streaming, source)
    rows = joined((left, right))
    queries = {
        name: query.writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", str(source / name))
        .trigger(availableNow=True)
        .start()
        for name, query in {"once": rows, "twice": rows, "other": joined((left, right), how="inner")}.items()
    }
    for query in queries.values():
        query.awaitTermination(300)
    counts = {name: streaming.table(name).count() for name in queries}
    assert counts["once"] == counts["twice"] == expected.total
    assert 0 < counts["other"] < expected.total
