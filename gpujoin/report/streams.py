"""What is decided of the joins of a stream before the query runs, and how long rows are kept, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpujoin.config import Strategy
from gpujoin.model.backend import BackendName
from gpujoin.model.jointype import Side
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.sqltext import show_condition
from gpujoin.report.explanation import Explanation
from gpujoin.report.operations import JoinOperation, NoteKind, join_words, notes_of
from gpujoin.report.parts import join_left_to_spark
from gpujoin.spark.catalyst.joins import JOINS
from gpujoin.spark.jvm.gateway import analyzed_plan, gateway_of, java_session
from gpujoin.spark.query.planner import QueryPlanner
from gpujoin.spark.query.plans import PlanNode, read_plan
from gpujoin.spark.settings import join_options, session_conf
from gpujoin.streams.microbatches import (
    is_join_of_streams,
    readable_join,
    reads_current_time,
    reason_of,
    settings_obstacle,
)
from gpujoin.streams.plan import EvictedBy, plan_stream_join

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from gpujoin.config import Options
    from gpujoin.streams.join import TimeColumn
    from gpujoin.streams.plan import StreamPlan, WatermarkBound
    from gpujoin.streams.reading import ReadJoin

_SHAPE = "stream with stream: new rows meet new and kept rows of the other side"
_BESIDE_STREAMS = Reason(ReasonKind.UNSUPPORTED, "query", "it joins streams with one another too")


def explain_stream(frame: DataFrame, rule: Any) -> Explanation:
    """Say of the joins in a streaming DataFrame who runs them; nothing is run. ``rule`` is the session's.

    What a checkpoint holds is not looked at: its state decides when the query starts.
    """
    spark = frame.sparkSession
    conf = session_conf(spark)
    options = join_options(conf, None, None)
    analyzed = analyzed_plan(frame)
    optimized = rule.optimizedStream(java_session(spark), analyzed)
    root = read_plan(optimized, gateway_of(spark), conf)
    of_stream = [node for node in root.walk() if node.class_name in JOINS and node.streaming]
    joins = [node for node in of_stream if is_join_of_streams(node)]
    if not joins:
        return _with_tables(spark, optimized, of_stream, conf, options)
    roots = [_left(node, _BESIDE_STREAMS) for node in of_stream if not is_join_of_streams(node)]
    try:
        roots.insert(
            0,
            _join_of_streams(
                readable_join(spark, root, conf, options, current_time=reads_current_time(spark, analyzed))
            ),
        )
    except Exception as problem:
        reason = reason_of(problem)
        if reason is None:
            raise
        roots = [*(_left(node, reason) for node in joins), *roots]
    return Explanation(tuple(roots))


def _with_tables(
    spark: SparkSession, optimized: Any, joins: Sequence[PlanNode], conf: Mapping[str, str], options: Options
) -> Explanation:
    """Describe the joins of a stream with tables in a micro-batch of unknown size."""
    switched_off = settings_obstacle(options)
    if switched_off is not None:
        return Explanation(tuple(_left(node, switched_off) for node in joins))
    planner = QueryPlanner(spark, conf, options, runs=False)
    planner.rewrite(optimized)
    return planner.explanation


def _left(node: PlanNode, reason: Reason) -> JoinOperation:
    """Describe a join of streams of unknown size that Spark runs."""
    return join_left_to_spark(node, reason, sized=False)


def _join_of_streams(read_join: ReadJoin) -> JoinOperation:
    """Describe a join of two streams."""
    plan, spec = plan_stream_join(read_join.join), read_join.join.spec
    names = {side: [column.fields["name"] for column in read_join.rows[side].columns] for side in Side}
    keys = tuple(f"{names[Side.LEFT][key.left]} = {names[Side.RIGHT][key.right]}" for key in spec.keys)
    condition = None if spec.condition is None else show_condition(spec.condition)
    kind, strategy, backend = spec.join_type.value, Strategy.SHUFFLE, BackendName.CPU.value
    for_ever = (
        f"{side.value} rows are kept for ever: no watermark and no range of times says when they may go"
        for side in Side
        if plan.evictions[side] is None
    )
    return JoinOperation(
        operation=f"{join_words(kind, keys, condition)}: {strategy.value} on {backend}",
        backend=backend, join_type=kind, strategy=strategy, shape=_SHAPE, keys=keys, condition=condition,
        notes=(
            *notes_of(NoteKind.DECISION, _SHAPE), *notes_of(NoteKind.WARNING, *for_ever),
            *notes_of(NoteKind.DECISION, *_state_notes(plan)),
        ),
    )  # fmt: skip


def _state_notes(plan: StreamPlan) -> Iterator[str]:
    """Sentences about late rows and about the state of each side."""
    for side in Side:
        late, eviction = plan.late[side], plan.evictions[side]
        schema = plan.join.schema(side)
        if late is not None:
            yield f"{side.value} rows are late, and dropped, where {_time_name(late, schema.names)} <= watermark before"
        if eviction is not None:
            limits = " and ".join(map(_limit, eviction.bounds))
            by = ", a key" if eviction.by is EvictedBy.KEY else ""
            yield f"{side.value} rows are kept until {_time_name(eviction.time, schema.names)} <= {limits}{by}"


def _time_name(time: TimeColumn, names: list[str]) -> str:
    return names[time.column] if time.field is None else f"the end of {names[time.column]}"


def _limit(bound: WatermarkBound) -> str:
    seconds = bound.threshold_ms(0) / 1000
    if not bound.counted:
        return f"{seconds:g} s after 1970"
    return "watermark" if not seconds else f"watermark {'-' if seconds < 0 else '+'} {abs(seconds):g} s"
