"""What runs in Spark's Python workers.

A stage's function (`gpujoin.spark.stages`) calls :func:`enter` with a pickled *work*, which turns a task's input
batches into its output batches.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa

from gpujoin._version import __version__
from gpujoin.config import Options
from gpujoin.engine.join.hash_join import HashJoin
from gpujoin.engine.keys import KeyCodec
from gpujoin.engine.memory import HostMemory, within_limits
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import GpuJoinError
from gpujoin.model.backend import BackendName
from gpujoin.model.jointype import Side
from gpujoin.model.spec import JoinSpec
from gpujoin.model.stages import DeterminismLevel, NullKeys, null_keys_of
from gpujoin.spark.blobrows import BlobCounts, BlobFormat, BlobReader, Portion, Role
from gpujoin.spark.broadcast import BuildCache, open_payload, read_payload
from gpujoin.spark.devices import Chosen, chosen_backend
from gpujoin.spark.exchange import Splitter, pack_all
from gpujoin.spark.metrics import ExchangeMetrics, Part, TaskRecord
from gpujoin.spark.portions import Heavy, PortionJoin, padded, portion_joins
from gpujoin.spark.scattering import conform
from gpujoin.spark.slots import GpuSlots, task_name

Batches = Iterable[pa.RecordBatch]

ROWS_COLUMN = "rows"
"""Stands in for the columns of a side or a result that has none: Spark's Arrow batches would lose their row count."""


def unheard(record: TaskRecord) -> None:
    """Drop a record: there is no driver to hear it."""


@dataclass(frozen=True)
class Task:
    """What a work knows of the task it runs in.

    Attributes
    ----------
    stage, partition, attempt : int
        Where the task stands; ``attempt`` is unique in the application.
    gpus : tuple of str
        GPU addresses that Spark assigned.
    name : str or None
        Of the task attempt, unique on this host, the same in the workers of all its stages.
    report : callable
        Takes a record for the driver.
    payload : pyspark.Broadcast, bytes or None
        The broadcast build side, in a broadcast join.
    retry : int
        How often this part has been tried before.
    """

    stage: int = 0
    partition: int = 0
    attempt: int = 0
    gpus: tuple[str, ...] = ()
    name: str | None = None
    report: Callable[[TaskRecord], None] = unheard
    payload: Any = None
    retry: int = 0


class Work(Protocol):
    """A stage's part for one task."""

    def run(self, batches: Batches, task: Task) -> Iterator[pa.RecordBatch]:
        """Turn a task's input into its output."""
        ...


def enter(
    pickled: bytes, version: str, payload: Any, accumulator: Any, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run a pickled work in this worker; called by the closure of `gpujoin.spark.stages`.

    Raises
    ------
    GpuJoinError
        If the driver has another version of this package.
    """
    if version != __version__:
        raise GpuJoinError(
            f"the driver has gpujoin {version}, this executor's Python has {__version__}. Install the same version."
        )
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        task = Task(payload=payload)
    else:
        gpu = context.resources().get("gpu")
        task = Task(
            context.stageId(), context.partitionId(), int(context.taskAttemptId()),
            tuple(gpu.addresses) if gpu is not None else (),
            task_name(int(context.taskAttemptId())),
            unheard if accumulator is None else (lambda record: accumulator.add((record,))),
            payload,
            context.attemptNumber(),
        )  # fmt: skip
    work: Work = pickle.loads(pickled)  # noqa: S301  # the driver's own bytes
    with closing(work.run(batches, task)) as output:  # type: ignore[type-var]
        yield from output


@dataclass(frozen=True)
class JoinTerms:
    """What every stage of a join needs to know of it.

    Attributes
    ----------
    join_id : str
        Its name.
    spec : JoinSpec
        What to compute.
    left, right : Schema
        Columns of the sides.
    build_side : Side
        Which side is built.
    options : Options
        Settings.
    blob_bytes : int
        Target size of a blob.
    heavy : Heavy or None
        Keys whose rows are split over the partitions of an exchange.
    nulls_label : int or None
        Label of the partition of left rows of ``NOT IN`` with a null key.
    probe_rows : int or None
        Stream rows that one build side is expected to meet.
    determinism : mapping from Side to DeterminismLevel
        What the partitions of each side are known to have when a task runs again; the same rows where nothing is said.
    """

    join_id: str
    spec: JoinSpec
    left: pa.Schema
    right: pa.Schema
    build_side: Side
    options: Options
    blob_bytes: int
    heavy: Heavy | None = None
    nulls_label: int | None = None
    probe_rows: int | None = None
    determinism: Mapping[Side, DeterminismLevel] = field(default_factory=dict)

    def form(self, role: Role) -> BlobFormat:
        """Format of the blobs of a role."""
        return BlobFormat(self.schema(role), role, self.options.exchange_compression)

    def portions(self) -> dict[Portion, PortionJoin]:
        """How each portion is joined."""
        apart = self.nulls_label is not None
        return portion_joins(self.spec, self.build_side, self.heavy, nulls_apart=apart)

    def forms_of(self, portion: Portion, join: PortionJoin) -> tuple[BlobFormat, BlobFormat]:
        """Formats of the build and stream blobs of a portion."""
        compression = self.options.exchange_compression
        build, stream = (self.schema_of(side) for side in (join.build, join.build.other))
        return (
            BlobFormat(build, Role.BUILD, compression, portion),
            BlobFormat(stream, Role.STREAM, compression, portion),
        )

    def schema_of(self, side: Side) -> pa.Schema:
        """Columns of a side."""
        return self.left if side is Side.LEFT else self.right

    def portion_join(self, portion: PortionJoin, chosen: Chosen, metrics: JoinMetrics) -> HashJoin:
        """The engine's join of a portion, nothing built yet."""
        return HashJoin(
            portion.spec, self.schema_of(portion.left), self.schema_of(portion.right),
            build_side=portion.build_side, options=within_limits(self.options), backend=chosen.backend, metrics=metrics,
            probe_rows=self.probe_rows,
        )  # fmt: skip

    def side(self, role: Role) -> Side:
        """Which side has a role."""
        return self.build_side if role is Role.BUILD else self.build_side.other

    def schema(self, role: Role) -> pa.Schema:
        """Columns of the side with a role."""
        return self.left if self.side(role) is Side.LEFT else self.right

    def join(self, chosen: Chosen, metrics: JoinMetrics) -> HashJoin:
        """The engine's join, nothing built yet."""
        return HashJoin(
            self.spec, self.left, self.right, build_side=self.build_side, options=within_limits(self.options),
            backend=chosen.backend, metrics=metrics, probe_rows=self.probe_rows,
        )  # fmt: skip


@dataclass(frozen=True)
class Split:
    """Mapper of the exchange: rows of one side to blob rows."""

    terms: JoinTerms
    role: Role
    labels: Sequence[int]

    def run(self, batches: Batches, task: Task) -> Iterator[pa.RecordBatch]:
        """Split the task's rows."""
        terms = self.terms
        side = terms.side(self.role)
        determinism = terms.determinism.get(side, DeterminismLevel.UNORDERED)
        splitter = Splitter(
            terms.form(self.role), terms.spec, terms.left, terms.right, side, self.labels, terms.blob_bytes,
            task.partition, heavy=terms.heavy, nulls_label=terms.nulls_label, determinism=determinism,
        )  # fmt: skip
        part = Part.BUILD_EXCHANGE if self.role is Role.BUILD else Part.STREAM_EXCHANGE
        return _counted(splitter.split, batches, splitter.counts, part, terms.join_id, task)


@dataclass(frozen=True)
class Pack:
    """Mapper of a broadcast: rows of the build side to blob rows of partition 0."""

    terms: JoinTerms

    def run(self, batches: Batches, task: Task) -> Iterator[pa.RecordBatch]:
        """Pack the task's rows."""
        terms = self.terms
        side = terms.side(Role.BUILD)
        counts = BlobCounts()
        codec = KeyCodec.of(terms.spec, terms.left, terms.right)

        def keep(rows: pa.RecordBatch) -> pa.RecordBatch:
            mask = codec.null_mask(rows, side)
            return rows if mask is None else rows.filter(pa.array(~mask))

        dropping = null_keys_of(terms.spec.join_type, side) is NullKeys.DROP
        form = terms.form(Role.BUILD)

        def pack(rows: Batches) -> Iterator[pa.RecordBatch]:
            return pack_all(rows, form, terms.blob_bytes, counts, keep if dropping else lambda kept: kept)

        return _counted(pack, batches, counts, Part.BROADCAST, terms.join_id, task)


def _counted(
    work: Callable[[Batches], Iterator[pa.RecordBatch]], batches: Batches, counts: BlobCounts,
    part: Part, join_id: str, task: Task,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Run a mapper and report what it did; time in which Spark gives or takes rows does not count."""
    waiting = 0.0

    def watched() -> Iterator[pa.RecordBatch]:
        nonlocal waiting
        source = iter(batches)
        while True:
            start = time.perf_counter()
            batch = next(source, None)
            waiting += time.perf_counter() - start
            if batch is None:
                return
            yield batch

    busy = 0.0
    output = work(watched())
    while True:
        start = time.perf_counter()
        batch = next(output, None)
        busy += time.perf_counter() - start
        if batch is None:
            break
        yield batch
    found = ExchangeMetrics(
        counts.rows, counts.nbytes, counts.dropped, counts.blobs, counts.blob_bytes, busy - waiting, 1, counts.heavy
    )  # fmt: skip
    task.report(TaskRecord(join_id, part, task.stage, task.partition, task.attempt, found))


@dataclass(frozen=True)
class JoinPartitions:
    """Reducer of the exchange: joins the partitions that come to the task."""

    terms: JoinTerms

    def run(self, batches: Batches, task: Task) -> Iterator[pa.RecordBatch]:
        """Join sorted blob rows."""
        terms = self.terms
        metrics = JoinMetrics()
        joins = terms.portions()
        regular, *others = (terms.forms_of(portion, join) for portion, join in joins.items())
        reader = BlobReader(batches, *regular, others)
        output = terms.spec.output_schema(terms.left, terms.right)
        notes: tuple[str, ...] = ()
        portions = reader.portions()
        first = next(portions, None)  # an empty task takes no GPU slot
        if first is not None:
            with task_backend(terms, task, metrics) as chosen:
                notes = chosen.notes
                for _, portion, build, stream in chain((first,), portions):
                    part = joins[portion]
                    with terms.portion_join(part, chosen, metrics) as join:
                        join.build(build)
                        found = chain(join.probe(stream), join.finish())
                        if portion is not Portion.REGULAR:
                            # Before a stand-in for columns of a result that has none.
                            found = chain(padded(batch, part, output, terms.spec) for batch in found)
                        yield from output_of(found)
        task.report(
            TaskRecord(terms.join_id, Part.JOIN, task.stage, task.partition, task.attempt, metrics, notes)
        )


_builds = BuildCache(0)


@dataclass(frozen=True)
class JoinBroadcast:
    """Joins the task's stream rows with the broadcast build side."""

    terms: JoinTerms
    key: str

    def run(self, batches: Batches, task: Task) -> Iterator[pa.RecordBatch]:
        """Join stream rows."""
        terms = self.terms
        metrics = JoinMetrics()
        notes: tuple[str, ...] = ()
        source = (batch for batch in batches if batch.num_rows)
        first = next(source, None)
        if first is not None:
            schema = terms.schema(Role.STREAM)
            with task_backend(terms, task, metrics) as chosen:
                notes = chosen.notes

                def make() -> HashJoin:
                    join = terms.join(chosen, metrics)
                    try:
                        join.build(read_payload(open_payload(task.payload), terms.form(Role.BUILD)))
                    except BaseException:
                        join.close()
                        raise
                    return join

                with borrowed(terms, self.key, chosen, make) as join, closing(join.start(metrics)) as run:
                    yield from output_of(run.probe(conformed(first, source, schema)))
                    yield from output_of(run.finish())
        task.report(
            TaskRecord(terms.join_id, Part.JOIN, task.stage, task.partition, task.attempt, metrics, notes)
        )


@contextmanager
def borrowed(terms: JoinTerms, key: str, chosen: Chosen, make: Callable[[], HashJoin]) -> Iterator[HashJoin]:
    """A built join kept from task to task in this worker; its device memory is freed if another process waits for it.

    Parameters
    ----------
    terms : JoinTerms
        The join.
    key : str
        Names its build side.
    chosen : Chosen
        The task's backend.
    make : callable () -> HashJoin
        Builds it.
    """
    _builds.limit = HostMemory.of(terms.options.memory_budget).cache_bytes
    with _builds.borrow((key, chosen.backend.name, chosen.slot and chosen.slot.gpu), make) as join:
        yield join
    _yield_device(terms.options, chosen)


def conformed(first: pa.RecordBatch, rest: Batches, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches in exactly the given schema."""
    yield conform(first, schema)
    for batch in rest:
        yield conform(batch, schema)


def _yield_device(options: Options, chosen: Chosen) -> None:
    """Free device memory of hash tables kept for later tasks if another process waits for the GPU."""
    if chosen.slot is not None and GpuSlots(options.gpu_concurrent_tasks).wanted(chosen.slot.gpu):
        _builds.drop(lambda key: key[1] is BackendName.GPU)


@contextmanager
def task_backend(terms: JoinTerms, task: Task, metrics: JoinMetrics) -> Iterator[Chosen]:
    """The task's backend, counted."""
    with chosen_backend(terms.options, task.gpus, task.name) as chosen:
        name = chosen.backend.name.value
        metrics.backends[name] = metrics.backends.get(name, 0) + 1
        metrics.wait_seconds += chosen.waited
        yield chosen


def output_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches for Spark, never without columns and never empty."""
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if batch.num_columns == 0:
            yield pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows, pa.bool_())], names=[ROWS_COLUMN])
        else:
            yield batch
