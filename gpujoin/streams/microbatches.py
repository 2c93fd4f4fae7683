"""Puts joins of streams, with one another and with tables, into the plans of a stream's micro-batches.

Spark optimizes each micro-batch by itself, and asks here (`PythonRule.java`). Whether a join runs here is decided once
for a run of the stream, in its first micro-batch, and from then on nothing else is possible: the state is written by
Spark's operator or by gpujoin. So what a checkpoint holds decides where there is one::

    no state yet                  here, if the join is covered; else Spark
    Spark's state                 Spark
    state that was written here   here; an error where that is not possible

Joins of a stream with tables keep no state: each micro-batch is a query by itself, whose rows of the stream come from
Spark, and whether it runs here is decided anew each time. What Spark does with event times stays in its part of the
plan, below and above::

    aggregation by window             Spark, with its state
      join                            here: rows from Spark, and a scan of the table
        event time, watermark         Spark
          stream
        table

A query whose task fails has no other plan, unlike one that is no stream: the stream ends. Spark runs the micro-batch
when it is started again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    BinaryType,
    DayTimeIntervalType,
    DoubleType,
    IntegerType,
    LongType,
    StructField,
    StructType,
)

from gpujoin.cache import Cache
from gpujoin.config import BackendChoice, FallbackMode, Strategy
from gpujoin.errors import (
    ConditionError,
    FallbackError,
    JoinSpecError,
    KeyTypeError,
    RelationError,
    StreamStateError,
)
from gpujoin.logs import log
from gpujoin.model.jointype import Side
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.switches import STREAMS, join_switched_off, off
from gpujoin.report.outcomes import Scope
from gpujoin.spark.catalyst.joins import JOIN
from gpujoin.spark.catalyst.nodes import NotTranslatableError
from gpujoin.spark.compat import type_in_arrow
from gpujoin.spark.failures import is_survivable, unexpected
from gpujoin.spark.jvm.gateway import JvmNames, gateway_of, java_session
from gpujoin.spark.jvm.rewrite import Rewriting
from gpujoin.spark.query.accelerate import plan_query
from gpujoin.spark.query.planner import StreamFacts
from gpujoin.spark.query.plans import PlanNode, read_plan
from gpujoin.spark.query.trees.builder import BrokenError
from gpujoin.spark.settings import blob_bytes, disabled_reason, join_options, session_conf
from gpujoin.spark.shuffle.blobrows import BLOB_DDL
from gpujoin.spark.shuffle.labels import hashed_labels
from gpujoin.spark.worker.functions import stage_function
from gpujoin.spark.worker.python import refusal
from gpujoin.streams.join import SemiOrder
from gpujoin.streams.plan import plan_stream_join
from gpujoin.streams.reading import ReadJoin, read_join
from gpujoin.streams.worker import COUNTERS, LateBy, PartitionJoin, SplitRows, UnpackRows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from gpujoin.config import Options
    from gpujoin.spark.catalyst.nodes import Node

_MOST_RUNS = 1000
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PARTITIONS = ("spark.sql.streaming.internal.stateStore.partitions", "spark.sql.shuffle.partitions")
"""The number of a stream's partitions: the first that is set. A checkpoint sets them for a stream that goes on."""
_ALLOW_MULTIPLE = "spark.sql.streaming.statefulOperator.allowMultiple"
_FURTHER = ("pandas", "google.protobuf")
"""Modules that workers need for state, besides those of other joins."""
_JOINED = StructType(
    [
        StructField("p", IntegerType()),
        StructField("data", BinaryType()),
        *(StructField(name, LongType() if kind == "int64" else DoubleType()) for name, kind in COUNTERS.items()),
    ]
)
"""Rows of a partition's output: blobs, and counters in a row without one."""
OPERATOR = "transformWithStateInPandasExec"
"""Spark's name of the operator by which gpujoin keeps state."""
_OPERATOR_FILES = ("state/*/_metadata/metadata", "state/*/_metadata/v2/*")
"""Files of both versions of Spark's notes, by the number of the operator."""
OBSERVED = "gpujoin"
"""Name of the counters among the ``observedMetrics`` of a micro-batch's progress."""
_NOT_COVERED = (
    BrokenError, NotTranslatableError, JoinSpecError, KeyTypeError, ConditionError, RelationError,
)  # fmt: skip
_RIGHT_FIRST_SINCE = (4, 3)
_STATEFUL = frozenset(
    {
        "Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "FlatMapGroupsInPandasWithState",
        "FlatMapGroupsWithState", "GlobalLimit", "LocalLimit", "Offset", "TransformWithState",
        "TransformWithStateInPandas", "TransformWithStateInPySpark",
    }
)  # fmt: skip
"""Operators that keep state where their input is a stream."""

_runs: Cache[str, Reason | None] = Cache(_MOST_RUNS)
"""For each run of a stream why Spark joins it; ``None``: it is joined here."""


class LeftToSparkError(Exception):
    """A join of streams is left to Spark.

    Attributes
    ----------
    reason : Reason
        Why.
    """

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass(frozen=True)
class MicroBatch:
    """Which micro-batch is planned."""

    query: str
    run: str
    """Ids of the stream and of its run."""
    number: int
    """Its number."""


@dataclass(frozen=True)
class StreamingRun:
    """A run of a streaming query: from one start to its end."""

    checkpoint: str
    """Folder of the query's checkpoint."""
    real_time: bool
    """Whether micro-batches end when Spark likes, and rows are given as they come."""
    current_time: bool
    """Whether the query reads the current time, which is another literal in the plan of each micro-batch."""

    @classmethod
    def find(cls, spark: SparkSession, batch: MicroBatch) -> StreamingRun | None:
        """Find an active run; ``None`` if it is not active."""
        active = execution_of(spark, batch)
        if active is None or str(active.runId().toString()) != batch.run:
            return None
        real_time = is_in_real_time(active)
        current_time = reads_current_time(spark, active.logicalPlan())
        return cls(str(active.resolvedCheckpointRoot()), real_time, current_time)


def is_in_real_time(execution: Any) -> bool:
    """Tell whether micro-batches of a stream end when Spark likes, and rows are given as they come."""
    return "RealTime" in str(execution.trigger().getClass().getName())


def reads_current_time(spark: SparkSession, plan: Any) -> bool:
    """Tell whether a plan, before its optimization, reads the current time."""
    pattern = gateway_of(spark).org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    return bool(plan.containsPattern(pattern))


def execution_of(spark: SparkSession, batch: MicroBatch) -> Any:
    """Give the JVM's execution of a running stream; ``None`` if it does not run."""
    key = gateway_of(spark).java.util.UUID.fromString(batch.query)
    return java_session(spark).sharedState().activeStreamingQueries().get(key)


def stateful_operators(spark: SparkSession, checkpoint: str) -> frozenset[str]:
    """Name the operators whose state a checkpoint has; none for a query that has not begun."""
    jvm = gateway_of(spark)
    root = jvm.org.apache.hadoop.fs.Path(checkpoint)
    files = root.getFileSystem(java_session(spark).sessionState().newHadoopConf())
    names = set()
    for pattern in _OPERATOR_FILES:
        for status in files.globStatus(jvm.org.apache.hadoop.fs.Path(root, pattern)) or ():
            with_version = _text(jvm, files.open(status.getPath()))
            names.add(str(json.loads(with_version.splitlines()[-1])["operatorInfo"]["operatorName"]))
    return frozenset(names)


def _text(jvm: JvmNames, stream: Any) -> str:
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def plan_micro_batch(spark: SparkSession, plan: Any, rule: Any, batch: MicroBatch) -> Any:
    """Give the plan that replaces a micro-batch's optimized one; ``None`` if Spark runs its own.

    Raises ``StreamStateError`` if the stream's state was written here, and the join cannot be run here, and
    ``FallbackError`` if the join is left to Spark, and ``spark.gpujoin.fallback`` is ``raise``.
    """
    run = batch.run
    goes_on = run in _runs
    if _runs.get(run) is not None:
        return None
    operators: frozenset[str] = frozenset()
    current_time = False
    conf = session_conf(spark)
    options = join_options(conf, None, None)
    try:
        if not goes_on:
            running = StreamingRun.find(spark, batch)
            if running is None:
                return None
            operators = stateful_operators(spark, running.checkpoint)
            _check_run(running, operators)
            current_time = running.current_time
        root = read_plan(plan, gateway_of(spark), conf)
        join = readable_join(spark, root, conf, options, current_time=current_time)
        with_join = _with_join(spark, root, join, conf, options, batch)
        if not with_join.resolved():
            with_join = rule.optimized(java_session(spark), with_join)
        result = rule.withOutputOf(plan, with_join)
    except Exception as problem:
        reason = reason_of(problem)
        if reason is None:
            raise
        if goes_on or OPERATOR in operators:
            raise StreamStateError(
                f"the state of the stream's join was written by gpujoin, which cannot go on with it: {reason}"
            ) from problem
        _runs.put(run, reason)
        _tell(reason, options)
        return None
    _runs.put(run, None)
    return result


def reason_of(problem: Exception) -> Reason | None:
    """Tell why Spark joins instead; ``None`` where somebody ended the query."""
    if isinstance(problem, LeftToSparkError):
        return problem.reason
    if isinstance(problem, _NOT_COVERED):
        return Reason(ReasonKind.UNSUPPORTED, "join of streams", str(problem))
    return unexpected(problem) if is_survivable(problem) else None


def _tell(reason: Reason, options: Options) -> None:
    """Tell that Spark joins streams, as ``spark.gpujoin.fallback`` says."""
    if reason.kind is ReasonKind.CONFIGURED:
        return
    if options.fallback is FallbackMode.RAISE:
        raise FallbackError("a join of streams is left to Spark", (reason,))
    if options.fallback is FallbackMode.WARN:
        log.warning("a join of streams is left to Spark: %s", reason)


def _left(where: str, why: str, advice: str = "", kind: ReasonKind = ReasonKind.UNSUPPORTED) -> LeftToSparkError:
    return LeftToSparkError(Reason(kind, where, why, advice))


def _check_run(running: StreamingRun, operators: frozenset[str]) -> None:
    if running.real_time:
        raise _left("trigger", "a stream in real-time mode has no micro-batches that end")
    others = operators - {OPERATOR}
    if others:
        raise _left("checkpoint", f"its state was written by Spark ({', '.join(sorted(others))})", "a new checkpoint")


def readable_join(
    spark: SparkSession, root: PlanNode, conf: Mapping[str, str], options: Options, *, current_time: bool
) -> ReadJoin:
    """Read the join of streams of an optimized plan, if it runs here.

    Of a query that reads the ``current_time`` any literal may be another one in the next micro-batch. Raises
    ``LeftToSparkError`` if the join does not run here, and what :func:`.read_join` raises if it is not covered.
    """
    joins = [node for node in root.walk() if is_join_of_streams(node)]
    if len(joins) > 1:
        raise _left("query", "it has several joins of streams")
    (node,) = joins
    _check_settings(node, conf, options)
    if current_time and node.condition is not None and any(map(_may_be_moment, node.condition.walk())):
        raise _left("condition", "it may hold the current time, which is another one in each micro-batch")
    for other in root.walk():
        if other.name in _STATEFUL and "@streaming" in other.fields:
            raise _left("query", f"it has another operator that keeps state: {other.name}")
    refused = refusal(spark.sparkContext, conf, further=_FURTHER)
    if refused is not None:
        raise LeftToSparkError(refused)
    first = pyspark.__version__.split(".")[:2]
    newer = tuple(map(int, first)) >= _RIGHT_FIRST_SINCE
    join = read_join(node, options, SemiOrder.RIGHT_FIRST if newer else SemiOrder.LEFT_FIRST)
    switch = join_switched_off(join.join.spec, options.disable)
    if switch is not None:
        raise LeftToSparkError(switch)
    for side in Side:
        if len(join.join.times(side)) > 1 and not _at_once(conf):
            raise _left("query", f"its {side.value} side has several event times, which Spark refuses")
    return join


def _may_be_moment(node: Node) -> bool:
    """Tell whether an expression may be the current time, or computed from it."""
    return node.name == "Literal" and not isinstance(node.data_type, DayTimeIntervalType)


def _at_once(conf: Mapping[str, str]) -> bool:
    """Whether the watermark of their own micro-batch makes rows late, as with a single stateful operator."""
    return conf.get(_ALLOW_MULTIPLE, "true").lower() == "false"


def is_join_of_streams(node: PlanNode) -> bool:
    """Tell whether both inputs of a join are streams."""
    return node.class_name == JOIN and all("@streaming" in node.child(side).fields for side in Side)


def settings_obstacle(options: Options) -> Reason | None:
    """Give the setting that leaves joins of streams to Spark; ``None`` if none does."""
    if not options.enabled:
        return disabled_reason()
    return off(STREAMS) if STREAMS in options.disable else None


def _check_settings(node: PlanNode, conf: Mapping[str, str], options: Options) -> None:
    switched_off = settings_obstacle(options)
    if switched_off is not None:
        raise LeftToSparkError(switched_off)
    if node.strategy(options) is Strategy.SPARK:
        raise _left("settings", "Spark was asked for", "strategy", ReasonKind.CONFIGURED)
    backend = (node.request or {}).get("backend", options.backend.value)
    if backend == BackendChoice.GPU.value:
        raise _left("backend", "streams are joined on the CPU only, and the GPU was asked for", "backend=auto")
    if conf.get(_PROVIDER) != _ROCKSDB:
        raise _left(
            "state store",
            "its provider is not RocksDB, which alone keeps state of Python",
            f"{_PROVIDER}={_ROCKSDB}",
        )


def _with_join(
    spark: SparkSession,
    root: PlanNode,
    join: ReadJoin,
    conf: Mapping[str, str],
    options: Options,
    batch: MicroBatch,
) -> Any:
    """Give the plan of a micro-batch with the join in it."""
    rewriting = Rewriting(spark, root.reading)
    partitions = next((conf[name] for name in _PARTITIONS if name in conf), spark.conf.get(_PARTITIONS[-1]))
    assert partitions is not None
    labels = tuple(hashed_labels(int(partitions)).tolist())
    size = blob_bytes(conf.get, options.exchange_blob_bytes)
    blobs: DataFrame | None = None
    for side in Side:
        rows = rewriting.rows(join.node.child(side), [column.number for column in join.rows[side].columns])
        split = stage_function(SplitRows(join.join, side, labels, options, size), f"split_{side.value}_stream")
        part = rows.mapInArrow(split, BLOB_DDL)
        blobs = part if blobs is None else blobs.unionAll(part)
    assert blobs is not None
    spec = join.join.spec
    plan = plan_stream_join(join.join)
    evicts = any(plan.evictions.values())
    at_once = _at_once(conf)
    late_by = LateBy.OWN_WATERMARK if at_once else LateBy.LAST_WATERMARK
    late_ms = 0
    if any(plan.late.values()) and not evicts:
        # Spark tells a watermark only to operators that it runs micro-batches without rows for.
        late_by, late_ms = LateBy.DRIVERS_WATERMARK, _watermark(spark, batch, batch.number - (not at_once))
    joined = (
        blobs.unionAll(rewriting.announcing(labels))
        .groupBy("p")
        .transformWithStateInPandas(
            PartitionJoin(join.join, labels, options, late_by, late_ms),
            _JOINED,
            # To Spark the mode says no more than whether the operator wants micro-batches without rows.
            "Append" if evicts else "Complete",
            "EventTime" if evicts else "None",
        )
        .observe(OBSERVED, *(sf.sum(name).alias(name) for name in COUNTERS))
    )
    columns = StructType(
        [
            StructField(f"c{n}", type_in_arrow(column.data_type), nullable=True)
            for n, column in enumerate(join.node.output)
        ]
    )
    rows = joined.mapInArrow(
        stage_function(UnpackRows(spec.output_schema(join.join.left, join.join.right)), "joined_streams"),
        columns,
    )
    rewriting.replace_renamed(join.node, rows)
    return rewriting.current(root)


def _watermark(spark: SparkSession, batch: MicroBatch, number: int) -> int:
    """The watermark of a micro-batch of a stream, in milliseconds, as its log has it; 0 before the first."""
    if number < 0:
        return 0
    metadata = execution_of(spark, batch).offsetLog().offsetSeqMetadataForBatchId(number)
    if metadata.isEmpty():
        raise StreamStateError(f"the log of query {batch.query} lacks micro-batch {number}")
    return max(0, int(metadata.get().batchWatermarkMs()))


_MOST_STREAMS = 1000
_planned: Cache[str, tuple[str, int]] = Cache(_MOST_STREAMS)
"""For each stream the run and the number of the last micro-batch that was planned here."""


def plan_with_tables(spark: SparkSession, plan: Any, rule: Any, batch: MicroBatch) -> Any:
    """Give the plan that replaces a micro-batch's optimized one; ``None`` if Spark runs its own.

    Raises ``FallbackError`` if a join is left to Spark, not because that is faster, and ``spark.gpujoin.fallback`` is
    ``raise``.
    """
    if STREAMS in join_options(session_conf(spark), None, None).disable:
        return None
    running = execution_of(spark, batch)
    if running is None or is_in_real_time(running):
        return None
    if _ended_in(batch):
        log.warning(
            "an earlier run of stream %s ended in micro-batch %d, which gpujoin had planned; Spark runs it this time",
            batch.query, batch.number,
        )  # fmt: skip
        return None
    scope = Scope.EVERY_QUERY if rule.isForEveryQuery() else Scope.GPU_JOINS
    planned = plan_query(spark, plan, rule, scope, StreamFacts(batch.run, _rows_before(running)))
    if not planned.changed:
        return None
    _planned.put(batch.query, (batch.run, batch.number))
    return planned.plan


def _ended_in(batch: MicroBatch) -> bool:
    """Whether another run of the stream has failed, or was stopped, in this micro-batch, planned here."""
    run, number = _planned.get(batch.query) or (batch.run, -1)
    return run != batch.run and number == batch.number


def _rows_before(running: Any) -> float | None:
    """Count the rows of the stream's last micro-batch with any; ``None`` if there is none."""
    for progress in reversed(running.recentProgress()):
        rows = int(progress.numInputRows())
        if rows:
            return float(rows)
    return None
