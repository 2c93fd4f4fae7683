"""As-of joins of DataFrames, against those of Arrow tables."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from gpujoin import asof_join_tables, explain, gpu_asof_join
from gpujoin.errors import JoinSpecError, KeyTypeError
from gpujoin.testing import assert_same_rows

pytestmark = pytest.mark.spark


@pytest.mark.few
@pytest.mark.parametrize("direction", ["backward", "nearest"])
@pytest.mark.parametrize(("by", "strategy"), [("g", "shuffle"), ("g", "broadcast"), (None, None)])
def test_shuffled_and_broadcast(spark: SparkSession, by: str | None, strategy: Any, direction: Any) -> None:
    one = spark.range(300).selectExpr(
        "if(id % 29 = 0, null, timestamp_seconds(id * 37 % 1000)) as t", "cast(id % 7 as int) as g", "id as i"
    )
    two = spark.range(200).selectExpr(
        "timestamp_seconds(id * 53 % 1000) as t", "if(id % 31 = 0, null, cast(id % 7 as int)) as g", "id as j"
    )
    given: dict[str, Any] = {"direction": direction, "tolerance": dt.timedelta(seconds=9), "backend": "cpu"}
    found = gpu_asof_join(one, two, "t", by, strategy=strategy, **given)
    expected = asof_join_tables(one.toArrow(), two.toArrow(), "t", by, **given)
    assert found.columns == expected.schema.names
    (planned,) = explain(found.where("i > 0")).joins
    assert (planned.shape, planned.strategy.value) == ("as-of: n log n", strategy or "broadcast")
    assert planned.keys == (("g = g",) if by else ())
    terms = {"backward": "backward, right.t <= left.t", "nearest": "right.t nearest to left.t"}
    assert planned.condition == f"{terms[direction]}, within interval 9 seconds"
    assert found.where("j is not null").count() > 20
    assert_same_rows(found.toArrow(), expected, check_types=False)


def test_keys_that_are_not_numbers_match_nothing(spark: SparkSession) -> None:
    """Rows come in no order; NaN and null keys are returned with nulls; infinities and both zeros are keys."""
    keys = "(values (5.0D), (double('NaN')), (-0.0D), (null), (double('infinity')), (1.5D), (double('-infinity')))"
    one = spark.sql(f"select t, monotonically_increasing_id() i from {keys} as v(t)")
    two = one.selectExpr("if(t = 1.5D, 1.0D, t) as t", "i as j")
    found = {row.i: row.j for row in gpu_asof_join(one, two, "t", allow_exact=True, backend="cpu").collect()}
    assert found == {0: 0, 1: None, 2: 2, 3: None, 4: 4, 5: 5, 6: 6}


def test_nothing_runs_when_it_is_called(spark: SparkSession) -> None:
    frame = spark.range(3).selectExpr("id as t", "cast(raise_error('computed') as int) as i")
    joined = gpu_asof_join(frame, frame, "t", backend="cpu")
    assert joined.columns == ["t", "i", "i_right"]
    with pytest.raises(PySparkException, match="computed"):
        joined.collect()


def test_bad_input(spark: SparkSession) -> None:
    frame = spark.range(3).selectExpr("id as t", "array(id) as l")
    texts = frame.selectExpr("t", "named_struct('s', 'x' collate utf8_lcase) as c", "'y' collate unicode as s")
    for by in ("c", "s"):
        with pytest.raises(KeyTypeError, match="are compared by bytes"):
            gpu_asof_join(texts, texts, "t", by)
    with pytest.raises(KeyTypeError, match="are texts"):
        gpu_asof_join(texts, texts, "s")
    assert gpu_asof_join(texts, texts, "t").columns == ["t", "c", "s", "c_right", "s_right"]
    with pytest.raises(JoinSpecError, match="negative"):
        gpu_asof_join(frame, frame, "t", tolerance=-1)
    moments = spark.range(1).selectExpr(
        "timestamp_seconds(id) as t", "cast(timestamp_seconds(id) as timestamp_ntz) as n", "current_date() as d",
        "array(id) as l", "map(id, id) as m", "true as b", "'x' as s", "cast(id as double) as f", "id as i",
    )  # fmt: skip
    for one, two in (("l", "l"), ("m", "m"), ("b", "b"), ("s", "i"), ("d", "t")):
        with pytest.raises(KeyTypeError, match="no common order"):
            gpu_asof_join(moments, moments, left_on=one, right_on=two)
    with pytest.raises(KeyTypeError, match="time zone"):
        gpu_asof_join(moments, moments, left_on="t", right_on="n")
    for key, tolerance in (("t", 2), ("d", 1), ("i", 0.5), ("i", dt.timedelta(1)), ("f", "1"), ("i", True)):
        with pytest.raises(JoinSpecError, match="the tolerance of as-of keys"):
            gpu_asof_join(moments, moments, key, tolerance=tolerance)
    for key, tolerance in (("t", -dt.timedelta(1)), ("f", float("nan")), ("f", -1)):
        with pytest.raises(JoinSpecError, match="negative or NaN"):
            gpu_asof_join(moments, moments, key, tolerance=tolerance)
    with pytest.raises(JoinSpecError, match="suffixes must be two texts"):
        gpu_asof_join(frame, frame, "t", suffixes="_r")  # type: ignore[arg-type]
    with pytest.raises(JoinSpecError, match="by columns are given by name, got Column"):
        gpu_asof_join(frame, frame, "t", by=frame.t)  # type: ignore[arg-type]
    with pytest.raises(JoinSpecError, match="must be a Spark DataFrame"):
        gpu_asof_join(frame, None, "t")  # type: ignore[arg-type]
    with pytest.raises(JoinSpecError, match="streaming"):
        gpu_asof_join(moments, spark.readStream.format("rate").load(), left_on="t", right_on="timestamp")
    with pytest.raises(JoinSpecError, match="shuffled or broadcast"):
        gpu_asof_join(frame, frame, "t", strategy="nested_loop")
