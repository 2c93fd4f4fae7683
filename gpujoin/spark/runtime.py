"""Executes one decided join over two DataFrames, through public DataFrame methods only."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from pyspark.sql.types import BooleanType, StructField, StructType

from gpujoin.config import Strategy
from gpujoin.errors import GpuJoinError, JoinSpecError
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import NullEquality
from gpujoin.plan.strategy import marked_side
from gpujoin.spark.blobrows import BLOB_DDL, Role
from gpujoin.spark.broadcast import Payload, can_broadcast, make_payload
from gpujoin.spark.compat import context_of
from gpujoin.spark.marking import MARKS_DDL, MarkBroadcast, ReturnMarked
from gpujoin.spark.metrics import JoinDescription, accumulator_of, store_of
from gpujoin.spark.partitioning import partition_labels, repartition_by_label
from gpujoin.spark.request import JoinRequest, PreparedSide
from gpujoin.spark.settings import blob_bytes
from gpujoin.spark.skew import find_heavy
from gpujoin.spark.stages import stage_function
from gpujoin.spark.worker import (
    ROWS_COLUMN,
    JoinBroadcast,
    JoinPartitions,
    JoinTerms,
    Pack,
    Split,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITION_BYTES = 64 << 20
"""Size of both sides together that one task of a shuffled join is given, by Spark's estimate."""

MAX_CLOSURE_BYTES = 64 << 20
"""Largest build side that goes to a Spark Connect server within a request, whose limit is 128 MiB by default."""

_CORES = 8
"""Taken for the number of cores where Spark Connect does not tell it."""


def execute(request: JoinRequest, left: DataFrame, right: DataFrame) -> DataFrame:
    """Run a join as columnar stages.

    The shuffled strategy is lazy, as Spark's own joins are. The broadcast strategies collect the build side in this
    call, for reasons given in `gpujoin.spark.broadcast`.

    Parameters
    ----------
    request : JoinRequest
        The join, fully decided.
    left, right : DataFrame
        The inputs, with the columns of ``request.left`` and ``request.right``.

    Returns
    -------
    DataFrame
        With the columns of ``request.output_schema``, in Spark's types.

    Raises
    ------
    JoinSpecError
        If the strategy cannot run the join with that build side.
    GpuJoinError
        If the build side is too large to be broadcast.
    """
    result = result_schema(request)
    request, left = _with_columns(request, Side.LEFT, left)
    request, right = _with_columns(request, Side.RIGHT, right)
    session = left.sparkSession
    context = context_of(session)
    if context is not None:
        description = JoinDescription(request.join_id, request.description, request.strategy.value)
        store_of(context).register(description)
    terms = JoinTerms(
        request.join_id, request.spec, request.left.arrow, request.right.arrow, request.build_side,
        request.options, blob_bytes(session.conf.get, request.options.exchange_blob_bytes),
        determinism={side: request.side(side).determinism for side in Side},
    )  # fmt: skip
    schema = result if result.fields else StructType([StructField(ROWS_COLUMN, BooleanType())])
    run = _shuffled if request.strategy is Strategy.SHUFFLE else _broadcast
    joined = run(request, terms, {Side.LEFT: left, Side.RIGHT: right}, schema)
    return joined if result.fields else joined.select()


def result_schema(request: JoinRequest) -> StructType:
    """Schema of the result in Spark's types: fields of the sides, nullable where a side may be absent."""
    fields = []
    for side in Side:
        absent = request.spec.join_type in (
            JoinType.FULL,
            JoinType.RIGHT if side is Side.LEFT else JoinType.LEFT,
        )
        given = request.side(side).spark.fields
        for position in request.spec.output_of(side):
            one = given[position]
            fields.append(StructField(one.name, one.dataType, one.nullable or absent, one.metadata))
    if request.spec.join_type.flags_rows:
        fields.append(StructField(request.spec.existence_name, BooleanType(), False))
    return StructType(fields)


def _with_columns(request: JoinRequest, side: Side, frame: DataFrame) -> tuple[JoinRequest, DataFrame]:
    """Give a side without columns one, since a batch without columns loses its row count on the way to Python."""
    prepared = request.side(side)
    if prepared.spark.fields:
        return request, frame
    name = f"{side.value}_{ROWS_COLUMN}"
    filled = PreparedSide(
        spark=StructType([StructField(name, BooleanType(), False)]),
        arrow=pa.schema([pa.field(name, pa.bool_(), nullable=False)]),
        size_bytes=prepared.size_bytes,
        rows=prepared.rows,
        determinism=prepared.determinism,
    )
    frame = frame.select(sf.lit(True).alias(name))
    return (
        dataclasses.replace(request, left=filled)
        if side is Side.LEFT
        else dataclasses.replace(request, right=filled)
    ), frame


def _shuffled(
    request: JoinRequest, terms: JoinTerms, frames: dict[Side, DataFrame], schema: StructType
) -> DataFrame:
    session = frames[Side.LEFT].sparkSession
    context = context_of(session)
    accumulator = None if context is None else accumulator_of(context)
    partitions = exchange_partitions(request, session)
    apart = _nulls_apart(request, partitions)
    *labels, last = partition_labels(partitions + apart).tolist()
    if not apart:
        labels.append(last)
    heavy = find_heavy(request, terms, frames, partitions)
    terms = dataclasses.replace(
        terms, heavy=heavy, nulls_label=last if apart else None, probe_rows=_probe_rows(request, partitions)
    )
    halves = []
    for role in Role:
        name = f"{request.join_id}_{role.name.lower()}"
        function = stage_function(Split(terms, role, tuple(labels)), name, accumulator=accumulator)
        halves.append(frames[terms.side(role)].mapInArrow(function, BLOB_DDL))
    moved = repartition_by_label(halves[0].union(halves[1]), partitions + apart, "p")
    function = stage_function(JoinPartitions(terms), request.join_id, accumulator=accumulator)
    return moved.sortWithinPartitions("p", "side").mapInArrow(function, schema)


def _probe_rows(request: JoinRequest, builds: int) -> int | None:
    """Rows that each of so many copies or partitions of the build side is expected to meet, by Spark's estimate."""
    rows = request.side(request.build_side.other).rows
    return None if rows is None else -(-int(rows) // builds)


def _nulls_apart(request: JoinRequest, partitions: int) -> bool:
    """Whether left rows of a ``NOT IN`` with a null key have a partition of their own, if they can be."""
    fields = request.left.spark.fields
    return (
        request.spec.join_type.null_aware
        and partitions > 1
        and any(fields[key.left].nullable and key.nulls is NullEquality.UNEQUAL for key in request.spec.keys)
    )


def _broadcast(
    request: JoinRequest, terms: JoinTerms, frames: dict[Side, DataFrame], schema: StructType
) -> DataFrame:
    kind, side = request.spec.join_type, request.build_side
    marked = marked_side(kind) is side
    if not can_broadcast(kind, side) and not marked:
        raise JoinSpecError(
            f"a {kind.value} join cannot broadcast its {side.value} side, whose rows may reach the result unmatched. "
            'Broadcast the other side, or use strategy="shuffle".'
        )
    stream = frames[side.other]
    context = context_of(stream.sparkSession)
    accumulator = None if context is None else accumulator_of(context)
    payload = collect_build_side(terms, frames[side], accumulator)
    # A worker keeps the build side for the tasks that come after, so one meets the rows of all tasks of a core.
    terms = dataclasses.replace(terms, probe_rows=_probe_rows(request, _cores(stream.sparkSession)))
    carried: Any = (
        _in_closure(payload, 2 if marked else 1) if context is None else context.broadcast(payload.data)
    )
    work = MarkBroadcast(terms, payload.key) if marked else JoinBroadcast(terms, payload.key)
    name = f"{request.join_id}_marks" if marked else request.join_id
    function = stage_function(work, name, payload=carried, accumulator=accumulator)
    if not marked:
        return stream.mapInArrow(function, schema)
    # The last task must run even if no other one does.
    none = stream.sparkSession.range(0, 1, 1, 1).select(sf.lit(None).cast("binary").alias("marks"))
    marks = stream.mapInArrow(function, MARKS_DDL).union(none).repartition(1)
    function = stage_function(ReturnMarked(terms), request.join_id, payload=carried, accumulator=accumulator)
    return marks.mapInArrow(function, schema)


def _in_closure(payload: Payload, copies: int) -> bytes:
    """A payload to be sent with so many functions themselves: Spark Connect has no broadcast variables."""
    if len(payload.data) * copies > MAX_CLOSURE_BYTES:
        raise GpuJoinError(
            f"the build side has {len(payload.data)} bytes; over Spark Connect at most {MAX_CLOSURE_BYTES} can be "
            'broadcast. Use strategy="shuffle", or a classic session.'
        )
    return payload.data


def collect_build_side(terms: JoinTerms, frame: DataFrame, accumulator: Any) -> Payload:
    """Compute a build side and bring it to the driver as Arrow blobs.

    Raises
    ------
    GpuJoinError
        If it is larger than Spark lets a driver collect, or than can be broadcast.
    """
    function = stage_function(Pack(terms), f"{terms.join_id}_build", accumulator=accumulator)
    try:
        collected = frame.mapInArrow(function, BLOB_DDL).select("data").toArrow()
    except PySparkException as problem:
        if "maxResultSize" in str(problem):
            raise GpuJoinError(
                "the build side is larger than spark.driver.maxResultSize lets the driver collect. Use "
                'strategy="shuffle", or raise that setting.'
            ) from problem
        raise
    return make_payload(value.as_buffer() for chunk in collected.column("data").chunks for value in chunk)


def exchange_partitions(request: JoinRequest, session: SparkSession) -> int:
    """Partitions of a shuffled join.

    As asked; else so many that one task gets some 64 MiB by Spark's estimate, at least one per core where there is that
    much for each, and at most ``spark.sql.shuffle.partitions``. One where rows cannot be told apart by key.
    """
    if not request.spec.keys:
        return 1
    asked = request.partitions or request.options.exchange_partitions
    if asked is not None:
        return asked
    most = max(1, int(session.conf.get("spark.sql.shuffle.partitions") or 200))
    cores = _cores(session)
    sizes = (request.left.size_bytes, request.right.size_bytes)
    if sizes[0] is None or sizes[1] is None:
        return min(most, 4 * cores)
    total = sizes[0] + sizes[1]
    wanted = -(-total // PARTITION_BYTES)
    return int(max(1, min(most, max(wanted, min(cores, -(-total // (PARTITION_BYTES // 8)))))))


def _cores(session: SparkSession) -> int:
    """Tasks that run at once, as far as it can be told."""
    context = context_of(session)
    if context is not None:
        return max(1, context.defaultParallelism)
    return max(1, int(session.conf.get("spark.default.parallelism", None) or _CORES))
