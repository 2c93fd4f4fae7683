"""Joins as the runtime is asked for them, made straight from DataFrames, and Spark's own join to compare with."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from gpujoin.config import Options, Strategy
from gpujoin.model.expressions import Expression
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.model.stages import DeterminismLevel
from gpujoin.spark.compat import arrow_schema
from gpujoin.spark.metrics import JoinReport, metrics
from gpujoin.spark.request import JoinRequest, PreparedSide
from gpujoin.spark.runtime import execute

_ids = itertools.count()
SPARK_NAMES = {JoinType.LEFT_SEMI: "left_semi", JoinType.LEFT_ANTI: "left_anti"}


def renamed(frame: DataFrame, letter: str) -> DataFrame:
    """A frame with columns l0, l1, … or r0, r1, …"""
    return frame.toDF(*(f"{letter}{i}" for i in range(len(frame.columns))))


def request(
    left: DataFrame, right: DataFrame, how: JoinType, strategy: Strategy, *,
    keys: Sequence[tuple[int, int]] = ((0, 0),), nulls: NullEquality = NullEquality.UNEQUAL,
    build_side: Side = Side.RIGHT, condition: Expression | None = None, options: Options | None = None,
    partitions: int | None = None, output: tuple[Sequence[int], Sequence[int]] | None = None,
    sizes: tuple[int | None, int | None] = (None, None),
) -> JoinRequest:  # fmt: skip
    """A request for a join of two frames with columns of :func:`renamed`."""
    left_output = range(len(left.columns)) if output is None else output[0]
    right_output = range(len(right.columns)) if output is None else output[1]
    return JoinRequest(
        spec=JoinSpec(
            how, tuple(KeyPair(a, b, nulls) for a, b in keys), condition=condition,
            left_output=tuple(left_output), right_output=() if how.left_rows_only else tuple(right_output),
        ),
        left=_prepared(left, sizes[0]), right=_prepared(right, sizes[1]),
        strategy=strategy, build_side=build_side, options=options or Options(fallback="raise"),  # type: ignore[arg-type]
        partitions=partitions, join_id=f"gpujoin_test_{next(_ids)}", description=f"{how.value} join",
    )  # fmt: skip


def _prepared(frame: DataFrame, size: int | None) -> PreparedSide:
    schema = arrow_schema(frame.schema)
    return PreparedSide(
        spark=frame.schema, arrow=schema, size_bytes=size, determinism=DeterminismLevel.UNORDERED
    )


def join(left: DataFrame, right: DataFrame, how: JoinType, strategy: Strategy, **more: object) -> DataFrame:
    """Run a join through the runtime."""
    return execute(request(left, right, how, strategy, **more), left, right)  # type: ignore[arg-type]


def spark_join(
    left: DataFrame, right: DataFrame, how: JoinType, nulls: NullEquality = NullEquality.UNEQUAL
) -> DataFrame:
    """The same join on the first columns, by Spark."""
    lhs, rhs = sf.col("l0"), sf.col("r0")
    equal = lhs.eqNullSafe(rhs) if nulls is NullEquality.EQUAL else lhs == rhs
    if how is JoinType.EXISTENCE:
        marked = left.join(right.select("r0").distinct(), equal, "left")
        return marked.select(*left.columns, sf.col("r0").isNotNull().alias("exists"))
    return left.join(right, equal, SPARK_NAMES.get(how, how.value))


def join_reports(frame: DataFrame) -> list[JoinReport]:
    """What is reported of a frame's joins, of which none is in an island."""
    reports = metrics(frame)
    joins = [report for report in reports if isinstance(report, JoinReport)]
    assert len(joins) == len(reports)
    return joins


def arrow_of(frame: DataFrame) -> pa.Table:
    """A frame's rows."""
    return frame.toArrow()
