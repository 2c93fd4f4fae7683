"""As-of joins of DataFrames, against those of Arrow tables."""

from __future__ import annotations

import datetime as dt

import pytest
from pyspark.sql import SparkSession

from gpujoin import asof_join_tables, gpu_asof_join
from gpujoin.errors import JoinSpecError, KeyTypeError
from gpujoin.testing import assert_same_rows

pytestmark = pytest.mark.spark


def test_shuffled_and_broadcast(spark: SparkSession) -> None:
    one = spark.range(300).selectExpr(
        "if(id % 29 = 0, null, timestamp_seconds(id * 37 % 1000)) as t", "cast(id % 7 as int) as g", "id as i"
    )
    two = spark.range(200).selectExpr(
        "timestamp_seconds(id * 53 % 1000) as t", "if(id % 31 = 0, null, cast(id % 7 as int)) as g", "id as j"
    )
    for by, strategy in (("g", "shuffle"), ("g", "broadcast"), (None, None)):
        for direction in ("backward", "nearest"):
            tolerance = dt.timedelta(seconds=9)
            found = gpu_asof_join(
                one, two, "t", by, direction=direction, tolerance=tolerance, strategy=strategy, backend="cpu"
            )
            expected = asof_join_tables(
                one.toArrow(), two.toArrow(), "t", by, direction=direction, tolerance=tolerance, backend="cpu"
            )
            assert found.columns == expected.schema.names
            assert found.where("j is not null").count() > 20
            assert_same_rows(found.toArrow(), expected, check_types=False)


def test_bad_input(spark: SparkSession) -> None:
    frame = spark.range(3).selectExpr("id as t", "array(id) as l")
    texts = frame.selectExpr(
        "t", "named_struct('s', 'x' collate utf8_lcase) as c", "'y' collate unicode as s"
    )
    for on, by in (("t", "c"), ("s", "t")):
        with pytest.raises(KeyTypeError, match="are compared by bytes"):
            gpu_asof_join(texts, texts, on, by)
    assert gpu_asof_join(texts, texts, "t").columns == ["t", "c", "s", "c_right", "s_right"]
    with pytest.raises(JoinSpecError, match="negative"):
        gpu_asof_join(frame, frame, "t", tolerance=-1)
    with pytest.raises(KeyTypeError, match="no common order"):
        gpu_asof_join(frame, frame, "l")
    with pytest.raises(JoinSpecError, match="must be a Spark DataFrame"):
        gpu_asof_join(frame, None, "t")  # type: ignore[arg-type]
    with pytest.raises(JoinSpecError, match="shuffled or broadcast"):
        gpu_asof_join(frame, frame, "t", strategy="nested_loop")
