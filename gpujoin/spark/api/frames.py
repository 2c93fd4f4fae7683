"""Runs stages over DataFrames by public methods alone: joins over Spark Connect, which has no plans to put them into.

A stage that takes rows from Spark is a ``mapInArrow`` of the DataFrame that gives them; a stage with exchanges is a
``mapInArrow`` of what its producers give, brought together by label. For ``left`` and ``right`` joined by ``k`` in two
partitions::

    left.mapInArrow(exchange)       right.mapInArrow(exchange)          rows (k, a), (k, b)
                      └── union ────────┘                               blob rows (p, side, data)
                            repartitionById(2, p)                       p = 0, 1: where hash(k) sends the rows
                            sortWithinPartitions(p, side)               the build side of each partition first
                            mapInArrow(join)                            rows (k, a, b)

All of it is lazy, as Spark's own joins are: nothing runs until the result is used.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from gpujoin.config import BackendChoice, FallbackMode
from gpujoin.engine.pipeline import supports
from gpujoin.errors import GpuJoinError
from gpujoin.model.backend import BackendName
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.relations import Join, Output, Project, Relation, SparkSource, column
from gpujoin.model.stages import DeterminismLevel, Distribution, Stage
from gpujoin.model.switches import join_switched_off
from gpujoin.plan.estimates import row_bytes
from gpujoin.plan.parts import StageLimits
from gpujoin.plan.stages import plan_one_task, plan_stages
from gpujoin.report.amounts import show_about
from gpujoin.report.islands import explain_stages
from gpujoin.report.operations import IslandOperation
from gpujoin.report.parts import expected_backend
from gpujoin.report.stages import IslandFacts, Prices
from gpujoin.spark.compat import arrow_schema, context_of
from gpujoin.spark.query.running import StageWork
from gpujoin.spark.query.runs import IslandRun, StageRun
from gpujoin.spark.query.trees.builder import UNKNOWN_ROWS
from gpujoin.spark.settings import blob_bytes, gpu_outlook
from gpujoin.spark.shuffle.blobrows import BLOB_DDL
from gpujoin.spark.shuffle.labels import repartition_by_label

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from gpujoin.config import Options
    from gpujoin.model.spec import JoinSpec

_CORES = 8
"""Taken for the number of cores where Spark Connect does not tell it."""


@dataclass(frozen=True)
class FrameInput:
    """A DataFrame that a join reads."""

    frame: DataFrame
    """Its rows, under unique names that nobody sees."""
    schema: StructType
    """Its columns, under the names that users know."""
    rows: float | None = None
    """Estimated rows; ``None`` where nothing is known."""
    level: DeterminismLevel = DeterminismLevel.INDETERMINATE
    """Whether the rows are the same when Spark computes them again."""

    @cached_property
    def arrow(self) -> pa.Schema:
        """The columns in Arrow's types, under unique names."""
        names = self.schema.names
        unique = [name if names.count(name) == 1 else f"{name}#{n}" for n, name in enumerate(names)]
        fields = [
            StructField(name, field.dataType, field.nullable) for name, field in zip(unique, self.schema, strict=True)
        ]
        return arrow_schema(StructType(fields))

    def source(self, index: int) -> SparkSource:
        """Give the leaf of a relation that reads the rows."""
        return SparkSource(index, self.arrow, UNKNOWN_ROWS if self.rows is None else self.rows, self.level)

    @property
    def nbytes(self) -> float | None:
        """About how many bytes the rows have."""
        return None if self.rows is None else self.rows * row_bytes(self.arrow)


@dataclass(frozen=True, kw_only=True)
class FrameJoin:
    """A join of two DataFrames.

    The columns of its result are ``l0``, ``l1``, … for the left columns that are returned, by their positions, and
    ``r0``, ``r1``, … for the right ones.
    """

    left: FrameInput
    right: FrameInput
    """The inputs."""
    spec: JoinSpec
    """The join, over the columns that it reads."""
    build_side: Side
    """Which input is held in memory."""
    distribution: Distribution
    """How rows of several tasks are brought together."""
    options: Options
    """Settings and arguments."""
    conf: Mapping[str, str]
    """The session's configuration."""
    join_id: str
    """Unique in the driver; names functions, metrics and explanations."""

    @property
    def obstacles(self) -> tuple[Reason, ...]:
        """Why workers cannot run it as Spark would, or a setting leaves it to Spark."""
        try:
            reasons = supports(self.relation)
        except GpuJoinError as problem:
            return (Reason(ReasonKind.UNSUPPORTED, "columns", str(problem)),)
        must_be_gpu = self.options.backend is BackendChoice.GPU and self.options.fallback is FallbackMode.RAISE
        if not reasons and must_be_gpu:
            reasons = supports(self.relation, BackendName.GPU)
        switch = join_switched_off(self.spec, self.options.disable)
        return reasons or (() if switch is None else (switch,))

    def explained(self, *notes: str) -> IslandOperation:
        """Describe the stages; ``notes`` say what decided on them."""
        keyed = bool(self.spec.keys)
        backend, about = expected_backend(self.options, gpu_outlook(self.conf), keyed=keyed)
        inputs = [self._input(side) for side in Side]
        facts = IslandFacts(
            name=self.join_id, backend=BackendName(backend), prices=Prices(self.options.costs, _cores(self._session)),
            rows=tuple(f"{show_about(self._input(side).nbytes)}: {side.value} DataFrame" for side in Side),
            guessed=frozenset(n for n, each in enumerate(inputs) if each.rows is None),
            counts={n: each.rows for n, each in enumerate(inputs) if each.rows is not None},
        )  # fmt: skip
        return explain_stages(self.relation, self._run, facts, (*notes, *about))

    def execute(self, explanation: IslandOperation | None = None) -> DataFrame:
        """Give the result, computed when it is used; ``explanation`` is the one shown for it."""
        explanation = explanation or self.explained()
        size = blob_bytes(self._session.conf.get, self.options.exchange_blob_bytes)
        options = self.options.replace(cpu_threads=self.options.cpu_threads or self._run.threads)
        work = StageWork.from_run(self._run, options, explanation, size)
        frames = [self._input(side).frame for side in Side]
        return place(work, frames, self._schema)

    @cached_property
    def relation(self) -> Relation:
        """The join over rows from Spark."""
        left, right = (self._input(side).source(n) for n, side in enumerate(Side))
        joined = Join(left, right, self.spec, self.build_side, self.distribution)
        outputs = (Output(name, column(joined.schema, n)) for n, name in enumerate(self._schema.names))
        return Project(joined, tuple(outputs))

    @cached_property
    def _run(self) -> IslandRun:
        limits = StageLimits(
            _cores(self._session), self.options.scan_task_bytes, self.options.broadcast_threshold,
            partitions=self._partitions, guessed_partitions=self._shuffle_partitions, indeterminate_keys=True,
        )  # fmt: skip
        stage = plan_stages(self.relation, {}, limits) or plan_one_task(self.relation, limits)
        return IslandRun(_run_of(stage), (), 1, ())

    @property
    def _partitions(self) -> int | None:
        """Partitions of exchanges, where they do not depend on sizes."""
        partitions, has_sizes = self.options.exchange_partitions, None not in (self.left.rows, self.right.rows)
        if partitions is not None or has_sizes or self.distribution is not Distribution.PARTITIONED:
            return partitions  # a side that is replicated has as many copies as there are tasks: one for each core
        return min(self._shuffle_partitions, 4 * _cores(self._session))

    @cached_property
    def _shuffle_partitions(self) -> int:
        return max(1, int(self.conf.get("spark.sql.shuffle.partitions") or 200))

    @cached_property
    def _schema(self) -> StructType:
        """Columns of the result in Spark's types, nullable where a side may be absent."""
        fields = []
        for side in Side:
            absent = self.spec.join_type in (
                JoinType.FULL,
                JoinType.RIGHT if side is Side.LEFT else JoinType.LEFT,
            )
            for position in self.spec.output_of(side):
                field = self._input(side).schema[position]
                nullable = field.nullable or absent
                fields.append(StructField(f"{side.value[0]}{position}", field.dataType, nullable, field.metadata))
        return StructType(fields)

    def _input(self, side: Side) -> FrameInput:
        return self.left if side is Side.LEFT else self.right

    @property
    def _session(self) -> SparkSession:
        return self.left.frame.sparkSession


def place(work: StageWork, frames: Sequence[DataFrame], schema: StructType | str) -> DataFrame:
    """Give what a stage's tasks return.

    Parameters
    ----------
    work : StageWork
        The stage and those before it.
    frames : sequence of DataFrame
        The rows that it takes from Spark, by the index of the source.
    schema : StructType or str
        Columns that it returns.
    """
    spark_input = work.run.stage.spark
    if spark_input is not None:
        source = frames[spark_input.rows]
    else:
        blobs = functools.reduce(DataFrame.union, [place(before, frames, BLOB_DDL) for before in work.inputs])
        source = repartition_by_label(blobs, work.run.tasks, "p").sortWithinPartitions("p", "side")
    return source.mapInArrow(work.function(context_of(source.sparkSession)), schema)


def _run_of(stage: Stage) -> StageRun:
    """How a stage runs that reads no files."""
    return StageRun(stage, ({},), tuple(_run_of(exchange.producer) for exchange in stage.inputs))


def _cores(session: SparkSession) -> int:
    """Tasks that run at once, as far as it can be told."""
    context = context_of(session)
    if context is not None:
        return max(1, context.defaultParallelism)
    return max(1, int(session.conf.get("spark.default.parallelism", None) or _CORES))
