"""Joins of two DataFrames on their first columns, here and by Spark."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from gpujoin.config import Options
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.model.stages import DeterminismLevel, Distribution
from gpujoin.report.outcomes import new_join_id
from gpujoin.spark.api.frames import FrameInput, FrameJoin
from gpujoin.spark.settings import session_conf


def renamed(frame: DataFrame, letter: str) -> DataFrame:
    """A frame with columns l0, l1, … or r0, r1, …"""
    return frame.toDF(*(f"{letter}{i}" for i in range(len(frame.columns))))


def frame_join(
    left: DataFrame, right: DataFrame, how: JoinType, distribution: Distribution = Distribution.PARTITIONED,
    build_side: Side = Side.RIGHT, *, nulls: NullEquality = NullEquality.UNEQUAL, rows: float | None = None,
    level: DeterminismLevel = DeterminismLevel.UNORDERED, partitions: int | None = 3, **settings: object,
) -> FrameJoin:  # fmt: skip
    """A join in stages that public methods place; it returns the columns l0, l1, …, r0, r1, …"""
    inputs = {
        side: FrameInput(renamed(frame, "c"), frame.schema, rows, level)
        for side, frame in ((Side.LEFT, left), (Side.RIGHT, right))
    }
    settings = {"backend": "cpu", "fallback": "raise", "exchange_partitions": partitions, **settings}
    return FrameJoin(
        left=inputs[Side.LEFT], right=inputs[Side.RIGHT],
        spec=JoinSpec(
            how, (KeyPair(0, 0, nulls),), left_output=tuple(range(len(left.columns))),
            right_output=() if how.left_rows_only else tuple(range(len(right.columns))),
        ),
        build_side=build_side, distribution=distribution, options=Options().replace(**settings),
        conf=session_conf(left.sparkSession), join_id=new_join_id(),
    )  # fmt: skip


def joined(left: DataFrame, right: DataFrame, how: JoinType, *given: object, **settings: object) -> DataFrame:
    """The result of :func:`frame_join`."""
    planned = frame_join(left, right, how, *given, **settings)  # type: ignore[arg-type]
    assert planned.obstacles == ()
    return planned.execute()


def spark_join(
    left: DataFrame, right: DataFrame, how: JoinType, nulls: NullEquality = NullEquality.UNEQUAL
) -> DataFrame:
    """The same join by Spark, of frames of :func:`renamed`."""
    keys = sf.col("l0"), sf.col("r0")
    equal = keys[0].eqNullSafe(keys[1]) if nulls is NullEquality.EQUAL else keys[0] == keys[1]
    return left.join(right, equal, how.value)
