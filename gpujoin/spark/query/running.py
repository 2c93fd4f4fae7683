"""Putting an island into a plan, and running it in workers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.core.rdd import _prepare_for_python_RDD
from pyspark.serializers import CloudPickleSerializer, NoOpSerializer
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    IntegerType,
    StructType,
)
from pyspark.util import PythonEvalType

from gpujoin.config import BackendChoice, Options, Transport
from gpujoin.engine.memory import HostMemory
from gpujoin.errors import STAGE_NOTE, CorruptBlobError, InvalidTextError, UnsupportedValueError
from gpujoin.model.pipeline import Rung
from gpujoin.model.relations import ExchangeSource, Relation
from gpujoin.model.stages import Share
from gpujoin.report.islands import progress_name, stage_names
from gpujoin.report.metrics import IslandReport, accumulator_of, store_of
from gpujoin.report.stages import stage_label
from gpujoin.spark.jvm.compiled import byte_exchange
from gpujoin.spark.jvm.gateway import gateway_of, java_accumulator, shipped_files
from gpujoin.spark.query.adapted import described_coalescing
from gpujoin.spark.query.columns import arrow_form, column_numbers, described_finish, named_attributes, schema_of
from gpujoin.spark.query.island import Finish, Island
from gpujoin.spark.query.runs import IslandRun, LateRun, SplitRun, StageRun
from gpujoin.spark.query.stores import without_logs_of_calls
from gpujoin.spark.query.taskreads import Reads, TaskReads
from gpujoin.spark.settings import blob_bytes
from gpujoin.spark.shuffle.blobrows import BlobFormat
from gpujoin.spark.shuffle.exchanges import ExchangeReader, Outlet, row_entries
from gpujoin.spark.shuffle.labels import has_direct_partition_ids, partition_labels
from gpujoin.spark.shuffle.packets import PacketPacker, packet_entries, row_packets
from gpujoin.spark.shuffle.scattering import conform
from gpujoin.spark.shuffle.shares import share_and_blobs
from gpujoin.spark.worker.devices import chosen_device
from gpujoin.spark.worker.functions import packet_function, stage_function
from gpujoin.spark.worker.record import IslandMetrics, TaskRecord
from gpujoin.storage.locations import has_changed, is_local, know_stores, stores_named

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from gpujoin.model.stages import Exchange, SparkInput, Stage
    from gpujoin.model.stores import Store
    from gpujoin.plan.coalescing import Coalescing
    from gpujoin.plan.heavy_partitions import SplitPartitions
    from gpujoin.report.operations import IslandOperation
    from gpujoin.spark.jvm.rewrite import Rewriting
    from gpujoin.spark.shuffle.exchanges import Entry
    from gpujoin.spark.worker.functions import StageFunction
    from gpujoin.spark.worker.task import Task


@dataclass(frozen=True)
class RunStage:
    """A worker's part of a stage."""

    tree: Relation
    reads: TaskReads
    """What each task reads, by the index of the scan; one entry for all tasks of a stage whose rows come by key, or
    from Spark."""
    sources: tuple[int, ...]
    """Indexes of the tree's sources, in the order in which they are read; of a stage that takes rows from Spark, that
    one."""
    forms: tuple[BlobFormat, ...]
    """Formats of the blobs of each source, in that order; none where rows come from Spark as they are."""
    labels: tuple[int, ...]
    """Labels of the partitions that belong to the entries of ``reads``, where there are several."""
    outlet: Outlet | None
    """Where the rows go; ``None``: to Spark."""
    options: Options
    """Settings."""
    name: str
    """Under which metrics are reported."""
    keeps_tables: bool = False
    """Whether the process keeps tables that it builds."""
    stores: Mapping[str, Store] = field(default_factory=dict)
    """Those that files are in, by name."""
    transport: Transport = Transport.ROWS
    """How blobs come in and go out. With ``BYTES`` a task knows its number, and takes and gives packets."""
    arrow: pa.Schema | None = None
    """Arrow form of the rows that go to Spark as packets."""
    whole: frozenset[int] = frozenset()
    """Indexes of the scans that each of several tasks reads whole."""
    remark: str | None = None
    """What is reported of each task."""
    split: SplitPartitions | None = None
    """The join whose heavy partitions are split, if tasks may compute shares of partitions."""

    def run(self, batches: Iterable[Any], task: Task) -> Iterator[Any]:
        """Compute the parts whose numbers come in, or the partitions whose blobs do, on a GPU if the task gets one.

        Raises ``CorruptBlobError``, which names the stage, if a blob is not what was written.
        """
        know_stores(self.stores)
        measured = IslandMetrics(began=time.time())
        notes = [] if self.remark is None else [self.remark]
        try:
            yield from self._sent(self._rows(batches, task, measured, notes), task, measured)
        except (InvalidTextError, UnsupportedValueError) as problem:
            problem.add_note(f"{STAGE_NOTE}{self.name}")
            raise
        except CorruptBlobError as problem:
            raise CorruptBlobError(f"stage {self.name}, {task.stage} of Spark's: {problem}") from problem
        measured.ended = time.time()
        notes += measured.pipeline.recovered
        task.report(TaskRecord(self.name, task.stage, task.partition, task.attempt, measured, tuple(notes)))

    def _sent(self, rows: Iterator[pa.RecordBatch], task: Task, measured: IslandMetrics) -> Iterator[Any]:
        """What Spark is handed."""
        outlet, sent = self.outlet, measured.sent
        if outlet is None:
            return rows if self.arrow is None else row_packets(rows, self.arrow)
        round_bytes = HostMemory.of(self.options.memory_budget).round_bytes
        if self.transport is Transport.ROWS:
            return outlet.split(rows, task.partition, sent, round_bytes)
        packer = PacketPacker(outlet.form, outlet.blob_bytes, sent, outlet.divisions, task.partition)
        return outlet.packed(rows, task.partition, packer, sent, round_bytes)

    def _rows(
        self, batches: Iterable[Any], task: Task, measured: IslandMetrics, notes: list[str]
    ) -> Iterator[pa.RecordBatch]:
        from gpujoin.engine.pipeline import run
        from gpujoin.engine.pipeline.tables import TABLES

        # What failed may have been a GPU, or on one: a task that is tried again has nothing to do with any.
        options = self.options.replace(backend=BackendChoice.CPU) if task.retry else self.options
        with chosen_device(options, task.gpus, task.name) as place:
            notes += place.chosen.notes
            rung = Rung.CAREFUL if task.retry else None
            if rung is not None:
                notes.append(f"{rung.value}: Spark has tried the task before")
            measured.joins.backends[place.chosen.backend.name.value] = 1
            measured.joins.wait_seconds += place.chosen.waited
            tree = self.tree
            if self.split is not None:
                share, batches = share_and_blobs(batches)
                tree = self.split.trees.get(share, tree)
                if share is not Share.WHOLE:
                    notes.append(share.value)
            work = self._of_rows(batches) if self.transport is Transport.ROWS else self._of_packets(batches, task)
            for inputs, reads in work:
                yield from run(
                    tree, inputs, reads, options=place.options, metrics=measured.pipeline,
                    join_metrics=measured.joins, device=place.device, rung=rung,
                    tables=TABLES, residents=place.chosen.residents, keep_tables=self.keeps_tables,
                    whole=self._keepable(reads),
                )  # fmt: skip

    def _keepable(self, reads: Reads) -> frozenset[int]:
        """Indexes of the scans of which rows may be kept, and taken from those that are.

        Not where a local file has changed, so that it is read, and refused. Asking a store takes as long as reading.
        """
        if not self.whole:
            return self.whole
        return frozenset(
            index
            for index in self.whole
            if not any(is_local(part.path) and has_changed(part) for part in reads.get(index, ()))
        )

    def _of_packets(self, packets: Iterable[Any], task: Task) -> Iterator[tuple[dict[int, Any], Reads]]:
        """What the pipeline reads of a task that takes packets."""
        if self.forms:
            tags = [form.place for form in self.forms]
            yield from self._partitions(packet_entries(packets, task.partition, tags, announced=bool(self.labels)))
            return
        for _ in packets:  # Spark takes a worker for broken that leaves its input
            pass
        yield {}, self.reads[task.partition]

    def _partitions(self, entries: Iterable[Entry]) -> Iterator[tuple[dict[int, Any], Reads]]:
        for label, sources in ExchangeReader(entries, self.forms).partitions():
            reads = self.reads[self.labels.index(label) if self.labels else 0]
            yield dict(zip(self.sources, sources, strict=True)), reads

    def _of_rows(self, batches: Iterable[Any]) -> Iterator[tuple[dict[int, Any], Reads]]:
        """What the pipeline reads of batches, each time that it runs."""
        if self.forms:
            yield from self._partitions(row_entries(batches))
        elif self.sources:
            (source,) = self.sources
            (schema,) = {node.schema for node in self.tree.walk() if isinstance(node, ExchangeSource)}
            yield {source: (conform(batch, schema) for batch in batches if batch.num_rows)}, self.reads[0]
        else:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield {}, self.reads[number]


@dataclass(frozen=True)
class StageWork:
    """A stage as the work that its tasks do, with the stages before it."""

    run: StageRun
    """How it runs."""
    description: str
    """Its operations, in a few words."""
    work: RunStage
    """What each task does."""
    inputs: tuple[StageWork, ...] = ()
    """The producers of its exchanges, in order."""
    shared: int | None = None
    """A number that it has in common with the works whose rows are the same."""
    coalescing: Coalescing | None = None
    """How its partitions are coalesced, if they are."""
    split: SplitRun | None = None
    """How its heavy partitions are split, if they are."""
    late: LateWork | None = None
    """What runs in its place where one of its inputs proves small."""
    explanation: IslandOperation | None = None
    """What was decided of the island, of the last stage."""

    @classmethod
    def of(
        cls, run: IslandRun, options: Options, explanation: IslandOperation, blob_bytes: int,
        transport: Transport = Transport.ROWS, arrow: pa.Schema | None = None,
    ) -> StageWork:  # fmt: skip
        """Make the work of an island's stages.

        The last stage has the name of the island that is explained; those before it have numbers too. ``blob_bytes`` is
        the size of the blobs between stages, ``transport`` takes them there. With ``Transport.BYTES`` the last stage
        gives rows in the form ``arrow``.
        """
        keeps_tables, stores = run.keeps_tables, stores_named(run.stores)
        # Its only task reads everything once: what it reads is of no use to other tasks.
        reads_all = run.in_one_task and not run.last.inputs
        shared = dict(run.shared) if transport is Transport.BYTES else {}
        shared_forms: dict[int, BlobFormat] = {}

        def form_of(reader: Stage, exchange: Exchange, place: int) -> BlobFormat:
            number, compression = shared.get(exchange.index), options.exchange_compression
            if number is None:
                return BlobFormat(exchange.schema, compression, place, labelled=not island.coalesces(reader))
            if number not in shared_forms:
                tag = _MOST_SOURCES + len(shared_forms)
                labelled = not island.adapts
                shared_forms[number] = BlobFormat(exchange.schema, compression, tag, labelled=labelled)
            return shared_forms[number]

        def late_work_of(late: LateRun, work: RunStage, inputs: Mapping[int, StageWork]) -> LateWork:
            stage = late.run.stage
            labels = tuple(range(late.run.tasks)) if stage.branches else ()
            fused = dataclasses.replace(
                work, tree=stage.tree, reads=TaskReads.of(late.run.reads), sources=tuple(e.index for e in stage.inputs),
                forms=tuple(form_of(stage, exchange, place) for place, exchange in enumerate(stage.inputs)),
                labels=labels, whole=stage.read_by_all, remark=_PROVED_SMALL, split=None,
            )  # fmt: skip
            below = tuple(inputs[exchange.index] for exchange in stage.inputs)
            return LateWork(cls(late.run, descriptions[work.name], fused, below), late.planned.small.index, late.limit)

        def work_of(run: StageRun, outlet: Outlet | None, name: str, number: int | None = None) -> StageWork:
            stage = run.stage
            late = island.late(run)
            if late is not None:  # both ways read the same rows
                both = (late.planned.small, *late.planned.large.producer.inputs)
                shared.update({e.index: -1 - e.index for e in both if e.index not in shared})
            forms = tuple(form_of(stage, exchange, place) for place, exchange in enumerate(stage.inputs))
            labelled = partition_labels if transport is Transport.ROWS else np.arange
            places = labelled(run.tasks).tolist() if forms else []
            split = island.splits(run)
            divisions = {} if split is None else split.divisions
            outlets = [
                Outlet.of(
                    exchange, form, places, blob_bytes, heavy.get(exchange.index), divisions.get(exchange.index, 1)
                )
                for exchange, form in zip(stage.inputs, forms, strict=True)
            ]
            inputs = tuple(
                work_of(before, out, f"{name}_{place}", shared.get(exchange.index))
                for place, (before, out, exchange) in enumerate(zip(run.inputs, outlets, stage.inputs, strict=True))
            )
            sources = (
                tuple(exchange.index for exchange in stage.inputs) if stage.spark is None else (stage.spark.source,)
            )
            labels = tuple(places) if stage.branches else ()
            work = RunStage(
                stage.tree, TaskReads.of(run.reads), sources, forms, labels, outlet, options, name, keeps_tables,
                stores, transport, arrow if outlet is None else None, frozenset() if reads_all else stage.read_by_all,
                split=None if split is None else split.planned,
            )  # fmt: skip
            made.update(zip((exchange.index for exchange in stage.inputs), inputs, strict=True))
            coalescing = island.coalescing if island.coalesces(stage) else None
            late_work = None if late is None else late_work_of(late, work, made)
            return cls(run, descriptions[name], work, inputs, number, coalescing, split, late_work)

        heavy = run.heavy
        made: dict[int, StageWork] = {}
        island = run
        if transport is not Transport.BYTES:
            island = dataclasses.replace(run, coalescing=None, late_threshold=None)
        assert explanation.name is not None
        descriptions = stage_names(explanation)
        return dataclasses.replace(work_of(run.last, None, explanation.name), explanation=explanation)

    def function(self, context: SparkContext | None) -> StageFunction:
        """Make the function of the stage's tasks, which report to a context's metrics, if one is given."""
        accumulator = None
        if context is not None:
            accumulator = accumulator_of(context)
            planned = None if self.coalescing is None else self.run.tasks
            store_of(context).register(
                IslandReport(self.work.name, self.description, island=self.explanation, partitions=planned)
            )
        label = f"island_{stage_label(self.work.tree)}_{self.work.name}"
        return stage_function(self.work, label, accumulator=accumulator)


@dataclass(frozen=True)
class LateWork:
    """The work that runs in the place of a stage's where one of its inputs proves small."""

    work: StageWork
    """What runs; its tasks read all rows of that input."""
    small: int
    """Index of that input's exchange."""
    limit: int
    """Most bytes of it, as Spark compresses them."""


_PROVED_SMALL = "an input of a join proved small and was sent to every task; the other was not exchanged"


class IslandPlacer:
    """Puts stages of Python tasks in the place of an island."""

    def __init__(self, spark: SparkSession, conf: Mapping[str, str], rewriting: Rewriting, island: Island) -> None:
        self._spark = spark
        self._conf = conf
        self._rewriting = rewriting
        self._island = island
        self._commands = bytearray()
        self._broadcasts: list[Any] = []
        self._described: set[int] = set()
        """Numbers of the stages that several stages read and that are described already."""

    def place(
        self,
        run: IslandRun,
        options: Options,
        explanation: IslandOperation,
        nbytes: float | None = None,
    ) -> None:
        """Put the stages in the island's place.

        The last has the name of the island that is explained; those before it have numbers too. Spark takes the rows
        to have ``nbytes``; ``None``: as many as it takes those of the plan to have.
        """
        island = self._island
        named = named_attributes(island)
        context = self._spark.sparkContext
        schema = schema_of(island, named)
        arrow = arrow_form(schema) if _may_send_bytes(run, options) else None
        exchange = None if arrow is None else byte_exchange(gateway_of(self._spark))
        if exchange is None:
            size = blob_bytes(self._conf.get, options.exchange_blob_bytes)
            work = StageWork.of(run, options, explanation, size)
        else:
            work = StageWork.of(
                run, options, explanation, options.exchange_blob_bytes, Transport.BYTES, arrow
            )  # fmt: skip
        described: dict[str, Any] = {
            "stage": self._stage(work, schema),
            "columns": column_numbers(island, named),
            "bytes": None if nbytes is None else int(min(nbytes, _LARGEST)),
            "python": {
                "environment": context.environment,
                "includes": shipped_files(context),
                "executable": context.pythonExec,
                "version": context.pythonVer,
                "kind": PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
                "direct": has_direct_partition_ids(),
            },
        }
        if island.read is not None and island.finish is not Finish.NOTHING:
            described |= described_finish(island, island.read)
        with without_logs_of_calls() if run.stores else nullcontext():
            self._rewriting.place(
                island.node, described, bytes(self._commands),
                java_accumulator(context),
                self._broadcasts or None,
                exchange,
            )  # fmt: skip

    def _stage(self, work: StageWork, schema: StructType) -> dict[str, Any]:
        """Describe what makes the rows of a stage, or the blob rows of one whose rows are exchanged."""
        if work.shared is not None:
            if work.shared in self._described:
                return {"shared": work.shared}
            self._described.add(work.shared)
        run, inputs = work.run, [self._stage(before, _BLOB_ROWS) for before in work.inputs]
        late = None if work.late is None else self._late(work, work.late, schema)
        function = work.function(self._spark.sparkContext)  # which is known by the name that both have
        return {
            "late": late,
            "name": function.__name__,
            "shown": progress_name(work.description),
            "schema": schema.json(),
            "tasks": run.tasks,
            "inputs": inputs,
            "announced": work.work.labels,
            "shared": work.shared,
            "coalescing": described_coalescing(run.stage, work.coalescing, work.split),
            "divisions": 1 if work.work.outlet is None else work.work.outlet.divisions,
            "spark": None if run.stage.spark is None else self._from_spark(run.stage.spark),
            **self._command(
                (function, schema)
                if work.work.transport is Transport.ROWS
                else (packet_function(function), None, NoOpSerializer(), NoOpSerializer())
            ),
        }

    def _late(self, work: StageWork, late: LateWork, schema: StructType) -> dict[str, Any]:
        """Describe what runs in the place of a stage, whose inputs are described already."""
        indexes = [exchange.index for exchange in work.run.stage.inputs]
        exchanges = late.work.run.stage.inputs
        return {
            "stage": self._stage(late.work, schema),
            "small": indexes.index(late.small),
            "limit": late.limit,
            "whole": [exchange.index == late.small for exchange in exchanges],
        }

    def _from_spark(self, taken: SparkInput) -> dict[str, Any]:
        """Say of which plan Spark gives the rows, and which of its columns."""
        source = self._island.spark_sources[taken.rows]
        described: dict[str, Any] = {
            "plan": source.node.number,
            "columns": [column.number for column in source.columns],
        }
        if source.first is not None:
            places = {column.expr_id: n for n, column in enumerate(source.columns)}
            described["equal"] = [places[i] for i in source.first.equal]
            described["order"] = [(places[i], *directed) for i, *directed in source.first.order]
        return described

    def _command(self, called: tuple[Any, ...]) -> dict[str, Any]:
        """Pickle a function, with what a worker has to know of it, as PySpark does; a large one is broadcast."""
        start, context = len(self._commands), self._spark.sparkContext
        command = CloudPickleSerializer().dumps(called)  # type: ignore[no-untyped-call]
        described: dict[str, Any] = {}
        if len(command) > _BROADCAST_BYTES:
            command, broadcasts, _, _ = _prepare_for_python_RDD(context, called)
            described["broadcasts"] = len(self._broadcasts)
            self._broadcasts.append(broadcasts)
        self._commands += command
        return {**described, "command": [start, len(self._commands)]}


_MOST_SOURCES = 1 << 16
"""No stage has so many sources: tags from here on are of blobs that several stages read."""
_BLOB_ROWS = StructType().add("p", IntegerType()).add("side", ByteType()).add("data", BinaryType())
_LARGEST = (1 << 63) - 1
"""As many bytes as Spark says of what it knows no size of."""
_BROADCAST_BYTES = 1 << 20
"""Functions that are larger when pickled are broadcast, if ``spark.broadcast.UDFCompressionThreshold`` says so too."""


def _may_send_bytes(run: IslandRun, options: Options) -> bool:
    """Whether an island's stages may exchange bytes: there are several, and none takes rows from Spark."""
    return (
        options.exchange_transport is Transport.BYTES
        and bool(run.last.inputs)
        and all(stage.stage.spark is None for stage in run.last.walk())
    )


def sends_bytes(island: Island, run: IslandRun, options: Options) -> bool:
    """Tell whether an island's stages exchange bytes, and the JVM reads the form of its rows."""
    return _may_send_bytes(run, options) and arrow_form(schema_of(island, named_attributes(island))) is not None
