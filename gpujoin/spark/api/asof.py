"""As-of joins of Spark DataFrames: :func:`gpu_asof_join`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, StructType

from gpujoin.config import BackendChoice, BackendChoiceName, Options, Strategy, StrategyName
from gpujoin.errors import JoinSpecError, KeyTypeError, type_name
from gpujoin.model.jointype import Side
from gpujoin.model.reasons import ReasonKind
from gpujoin.model.spec import Direction, DirectionName, JoinSpec
from gpujoin.model.stages import Distribution
from gpujoin.plan.asof import AsOfPlan, plan_as_of
from gpujoin.report.explanation import Explanation
from gpujoin.report.outcomes import keep, new_join_id, tell_query, text_of
from gpujoin.spark.api.frames import FrameInput, FrameJoin
from gpujoin.spark.compat import arrow_schema, check_running, is_connect
from gpujoin.spark.jvm.compiled import new_instance
from gpujoin.spark.jvm.gateway import dataframe_of, gateway_of, logical_plan
from gpujoin.spark.query.asof import AsOfTerms, spark_query
from gpujoin.spark.query.hooks import as_of_rule, plan_as_of_joins
from gpujoin.spark.resources import check_resources
from gpujoin.spark.settings import check_backend, join_options, session_conf

if TYPE_CHECKING:
    import pyarrow as pa

_BY_BYTES = "UTF8_BINARY"


def gpu_asof_join(
    left: DataFrame,
    right: DataFrame,
    on: str | None = None,
    by: str | Sequence[str] | None = None,
    *,
    left_on: str | None = None,
    right_on: str | None = None,
    left_by: str | Sequence[str] | None = None,
    right_by: str | Sequence[str] | None = None,
    direction: DirectionName | Direction = Direction.BACKWARD,
    tolerance: Any = None,
    allow_exact: bool = True,
    suffixes: tuple[str, str] = ("", "_right"),
    strategy: Strategy | StrategyName | None = None,
    backend: BackendChoice | BackendChoiceName | None = None,
) -> DataFrame:
    """Join each left row with the nearest right row by an order key, within equal ``by`` columns.

    The meaning is that of :func:`gpujoin.asof_join_tables`, whose parameters these are. The join is planned with the
    query that it becomes a part of, as :func:`gpu_join` is: filters, projections, joins and aggregations written before
    and after it count. What gpujoin cannot run of it, Spark does; :func:`explain` says why. Over Spark Connect it is
    planned by itself: with ``by`` both sides are shuffled, without, or if asked, every task is sent the right side.

    Parameters
    ----------
    left, right : DataFrame
        Two DataFrames of one session, classic or Spark Connect; column names must be unique within each. The left one
        may be a stream.
    on, by, left_on, right_on, left_by, right_by, direction, tolerance, allow_exact, suffixes
        See :func:`gpujoin.asof_join_tables`.
    strategy : Strategy or str, optional
        ``"shuffle"``, ``"broadcast"`` or ``"auto"``; overrides ``spark.gpujoin.strategy``.
    backend : BackendChoice or str, optional
        ``"gpu"``, ``"cpu"`` or ``"auto"``; overrides ``spark.gpujoin.backend``.

    Returns
    -------
    DataFrame
        The left columns, then the right ones, which may be null; every left row once.

    Raises
    ------
    JoinSpecError
        Missing or contradicting arguments, no DataFrames, a streaming one on the right, a strategy that cannot run the
        join.
    KeyTypeError
        Keys without a common order or distance; texts with a collation other than ``UTF8_BINARY``.
    GpuJoinError
        If a session has been stopped.
    FallbackError
        By the actions of a query: if the join is left to Spark and ``spark.gpujoin.fallback`` is ``raise``.

    Examples
    --------
    >>> quoted = gpu_asof_join(trades, quotes, on="time", by="symbol")  # doctest: +SKIP
    """
    for name, frame in (("left", left), ("right", right)):
        if not isinstance(frame, DataFrame):
            raise JoinSpecError(f"{name} must be a Spark DataFrame, got {type_name(frame)}")
        check_running(frame.sparkSession, "gpu_asof_join()")
    conf = session_conf(left.sparkSession)
    options = join_options(conf, strategy, backend)
    check_backend(conf, options)
    check_resources(conf)
    frames = {Side.LEFT: left, Side.RIGHT: right}
    schemas = {side: arrow_schema(frame.schema) for side, frame in frames.items()}
    plan = plan_as_of(
        schemas[Side.LEFT], schemas[Side.RIGHT], on=on, left_on=left_on, right_on=right_on, by=by, left_by=left_by,
        right_by=right_by, direction=direction, tolerance=tolerance, allow_exact=allow_exact, suffixes=suffixes,
    )  # fmt: skip
    _check_collations(frames, plan.spec)
    keyed = bool(plan.spec.keys)
    distribution = options.strategy
    if distribution is Strategy.AUTO:
        distribution = Strategy.SHUFFLE if keyed else Strategy.BROADCAST
    if distribution not in (Strategy.SHUFFLE, Strategy.BROADCAST):
        raise JoinSpecError(
            f"an as-of join is shuffled or broadcast, not {distribution.value!r}; give strategy='shuffle' or"
            " 'broadcast'"
        )
    shuffled = distribution is Strategy.SHUFFLE
    planned = FrameJoin(
        left=_input(left), right=_input(right), spec=plan.spec, build_side=Side.RIGHT,
        distribution=Distribution.PARTITIONED if shuffled else Distribution.RIGHT_REPLICATED,
        options=options, conf=conf, join_id=new_join_id(),
    )  # fmt: skip
    of_connect = is_connect(left.sparkSession)
    obstacles = [why for why in planned.obstacles if of_connect or why.kind is not ReasonKind.CONFIGURED]
    if obstacles:
        raise JoinSpecError(f"the as-of join cannot be run: {'; '.join(map(str, obstacles))}")
    if of_connect:
        return _place(planned, plan.names, _why(options, keyed=keyed))
    hint = [
        None if argument is None else option.value
        for argument, option in ((strategy, options.strategy), (backend, options.backend))
    ]
    return _mark(left, right, schemas, plan, hint)


def _mark(
    left: DataFrame,
    right: DataFrame,
    schemas: Mapping[Side, pa.Schema],
    plan: AsOfPlan,
    hint_arguments: Sequence[str | None],
) -> DataFrame:
    """Put a node into the plan that is planned with the query."""
    if right.isStreaming:
        raise JoinSpecError(
            "an as-of join takes no streaming DataFrame on the right, whose batches do not hold all rows; on the left"
            " each micro-batch of one is joined with all rows of the right"
        )
    spark, spec = left.sparkSession, plan.spec
    assert spec.as_of is not None
    described = {
        "orders": [spec.as_of.left, spec.as_of.right],
        "keys": [[key.left for key in spec.keys], [key.right for key in spec.keys]],
        "kept": spec.right_output,
        "names": plan.names,
        "terms": AsOfTerms.from_as_of(spec.as_of).text(),
        "query": spark_query(schemas[Side.LEFT], schemas[Side.RIGHT], spec),
    }
    hint = new_instance(gateway_of(spark), "GpuJoinHint", *hint_arguments)
    plan_as_of_joins(spark)
    plan_with_join = as_of_rule(spark).join(logical_plan(left), logical_plan(right), json.dumps(described), hint)
    return dataframe_of(spark, plan_with_join)


def _place(planned: FrameJoin, names: Sequence[str], why: str) -> DataFrame:
    """Run the join by itself, as Spark Connect has no plans of others."""
    explained = planned.explained(why)
    explanation = Explanation((explained,))
    tell_query(explanation, planned.options, lambda: text_of(planned.left.frame))
    keep(planned.join_id, explanation)
    joined = planned.execute(explained)
    return joined.alias(planned.join_id).select(
        *(sf.col(old).alias(new) for old, new in zip(joined.columns, names, strict=True))
    )


def _why(options: Options, *, keyed: bool) -> str:
    if options.strategy is not Strategy.AUTO:
        return f"{options.strategy.value} was asked for"
    return "rows of equal keys are brought together" if keyed else "there are no keys to shuffle by"


def _input(frame: DataFrame) -> FrameInput:
    """Give what the join reads of a DataFrame."""
    schema = frame.schema
    return FrameInput(frame.toDF(*(f"c{n}" for n in range(len(schema)))), schema)


def _check_collations(frames: dict[Side, DataFrame], spec: JoinSpec) -> None:
    """Refuse keys whose texts Spark does not compare by bytes.

    Raises
    ------
    KeyTypeError
        If there is one.
    """
    for side in Side:
        for position in (key.of(side) for key in spec.keys):
            field = frames[side].schema.fields[position]
            collation = _collation(field.dataType)
            if collation is not None:
                raise KeyTypeError(
                    f"{side.value} {field.name!r} has texts of collation {collation}, and texts are compared by bytes"
                    " here; give a column of plain strings that are equal where these are, such as its lower()"
                )


def _collation(dtype: DataType) -> str | None:
    """Give the first collation of a type's texts, fields included, that is not by bytes."""
    if isinstance(dtype, StructType):
        return next(filter(None, (_collation(field.dataType) for field in dtype.fields)), None)
    name = getattr(dtype, "collation", _BY_BYTES)
    return None if name == _BY_BYTES else str(name)
