"""Thresholds of the state of a join of streams, against those that Spark derives from the same conditions."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from gpujoin.model.expressions import Expression, Function, call, left, lit, right
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.plan.resolve import resolve
from gpujoin.streams.join import StreamJoin
from gpujoin.streams.plan import plan_stream_join

pytestmark = pytest.mark.spark

TIME = pa.timestamp("us", "UTC")
LEFT = pa.schema([("k", pa.int32()), ("t", TIME), ("v", pa.int32()), ("t2", TIME), ("c", pa.float64())])
RIGHT = pa.schema([("j", pa.int32()), ("u", TIME), ("x", pa.int32()), ("u2", TIME), ("d", pa.float64())])
WATERMARKS = (1_700_000_000_123, 5_000_000_000)
"""Milliseconds; Spark's helper takes longs, which py4j makes of numbers beyond 32 bits alone."""


def seconds(number: float) -> dt.timedelta:
    return dt.timedelta(seconds=number)


def double(column: Expression) -> Expression:
    return column.cast(pa.float64())


t, u, v, x, c = left("t"), right("u"), left("v"), right("x"), left("c")
CASES: dict[str, Expression] = {
    "u >= t and u <= t + interval 5 seconds": (u >= t) & (u <= t + seconds(5)),
    "u > t and u < t + interval 5 seconds": (u > t) & (u < t + seconds(5)),
    "t < u - interval 5 seconds": t < u - seconds(5),
    "u >= t and u <= t + interval 9 seconds and v > 2": (u >= t) & (u <= t + seconds(9)) & (v > 2),
    "u >= t and v < 2": (u >= t) & (v < 2),
    "v > 2": v > 2,
    "v > -2": v > -2,
    "0 < v": lit(0) < v,
    "c > 0.1D and u >= t": (c > 0.1) & (u >= t),
    "v < x": v < x,
    "t > timestamp'1960-01-01 00:00:00'": t > dt.datetime(1960, 1, 1, tzinfo=dt.UTC),
    "t >= u - interval 3 seconds and t > timestamp'2020-01-01 00:00:00'": (t >= u - seconds(3))
    & (t > dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
    "u <= t + interval 5 seconds + interval 5 seconds": u <= t + seconds(5) + seconds(5),
    "u + interval 5 seconds <= t - interval 5 seconds": u + seconds(5) <= t - seconds(5),
    "u <= t + interval 1 day": u <= t + dt.timedelta(days=1),
    "u < t + interval 3 days 5 hours": u < t + dt.timedelta(days=3, hours=5),
    "u <= t + interval '1.0005' second": u <= t + seconds(1.0005),
    "u <= t + interval '-1.0005' second": u <= t + seconds(-1.0005),
    "u <= t + interval 100 milliseconds": u <= t + seconds(0.1),
    "cast(u as double) <= cast(t as double) + 5.5D": double(u) <= double(t) + 5.5,
    "cast(u as double) <= cast(t as double) + 5.5D + 5.5D": double(u) <= double(t) + 5.5 + 5.5,
    "cast(u as double) + cast(u as double) <= cast(t as double)": double(u) + double(u) <= double(t),
    "cast(u as bigint) <= cast(t as bigint) + 5": u.cast(pa.int64()) <= t.cast(pa.int64()) + 5,
    "cast(u as decimal(20,3)) <= cast(t as decimal(20,3)) + 5.5BD": u.cast(pa.decimal128(20, 3))
    <= t.cast(pa.decimal128(20, 3)) + Decimal("5.5"),
    "-cast(u as double) >= -cast(t as double) - 3D": -double(u) >= -double(t) - 3.0,
    "u between t - interval 2 seconds and t + interval 3 seconds": u.between(t - seconds(2), t + seconds(3)),
    "u2 >= left_t2 and u2 <= left_t2 + interval 5 seconds": (right("u2") >= left("t2"))
    & (right("u2") <= left("t2") + seconds(5)),
    "left_t2 >= u - interval 5 seconds": left("t2") >= u - seconds(5),
    "u >= t or v > 1": (u >= t) | (v > 1),
    "u = t + interval 1 second": u == t + seconds(1),
    "u >= t and v * 2 > 3": (u >= t) & (v * 2 > 3),
    "u >= t and 3 < abs(v)": (u >= t) & (lit(3) < abs(v)),
    "u >= t + interval 5 seconds and u >= t - interval 5 seconds": (u >= t + seconds(5))
    & (u >= t - seconds(5)),
    "coalesce(u, t) > t": call(Function.COALESCE, u, t) > t,
    "cast(u as timestamp_ntz) <= cast(t as timestamp_ntz)": u.cast(pa.timestamp("us")) <= t.cast(pa.timestamp("us")),
}  # fmt: skip


@pytest.fixture(scope="module")
def sides(spark_session: SparkSession) -> tuple[Any, Any]:
    mark = {"spark.watermarkDelayMs": 0}
    lefts = spark_session.createDataFrame([], "k int, t timestamp, v int, left_t2 timestamp, c double")
    rights = spark_session.createDataFrame([], "j int, u timestamp, x int, u2 timestamp, d double")
    return lefts.withMetadata("t", mark), rights.withMetadata("u", mark)


@pytest.mark.parametrize("sql", CASES)
def test_thresholds_are_sparks(spark_session: SparkSession, sides: tuple[Any, Any], sql: str) -> None:
    condition = resolve(CASES[sql], LEFT, RIGHT)
    spec = JoinSpec(JoinType.LEFT, (KeyPair(0, 0),), condition)
    plan = plan_stream_join(StreamJoin(spec, LEFT, RIGHT, (1,), (1,)))
    node = _join(sides[0].join(sides[1], f.expr(sql), "left")._jdf.queryExecution().analyzed())
    assert node is not None
    jvm: Any = spark_session._jvm
    helper = getattr(jvm.org.apache.spark.sql.catalyst.analysis, "StreamingJoinHelper$").__getattr__("MODULE$")
    outputs = {Side.LEFT: node.left().outputSet(), Side.RIGHT: node.right().outputSet()}
    for watermark in WATERMARKS:
        for side in Side:
            spark_s = helper.getStateValueWatermark(
                outputs[side], outputs[side.other], node.condition(), jvm.scala.Some(watermark)
            )
            eviction = plan.evictions[side]
            own = None if eviction is None else min(bound.threshold_ms(watermark) for bound in eviction.bounds)
            assert own == (None if spark_s.isEmpty() else spark_s.get()), side


def _join(plan: Any) -> Any:
    """The join of a plan."""
    if plan.nodeName() == "Join":
        return plan
    children = plan.children()
    below = (_join(children.apply(i)) for i in range(children.size()))
    return next((node for node in below if node is not None), None)
