"""What a task of an island's stage does: it runs the stage's tree over its files, exchanged blobs or Spark's rows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gpujoin.config import BackendChoice, Options, Transport
from gpujoin.engine.memory import HostMemory
from gpujoin.errors import STAGE_NOTE, CorruptBlobError, InvalidTextError, UnsupportedValueError
from gpujoin.model.pipeline import Rung
from gpujoin.model.relations import ExchangeSource, Relation
from gpujoin.model.stages import Share
from gpujoin.spark.shuffle.blobrows import BlobFormat
from gpujoin.spark.shuffle.exchanges import ExchangeReader, Outlet, row_entries
from gpujoin.spark.shuffle.packets import PacketPacker, packet_entries, row_packets, share_and_blobs
from gpujoin.spark.shuffle.scattering import conform
from gpujoin.spark.worker.calling import PySparkCaller
from gpujoin.spark.worker.devices import allocate_device
from gpujoin.spark.worker.record import IslandMetrics, TaskRecord
from gpujoin.spark.worker.taskreads import Reads, TaskReads
from gpujoin.storage.locations import has_changed, is_local, know_stores

if TYPE_CHECKING:
    from gpujoin.model.files import Store
    from gpujoin.plan.partition_sizes import SplitPartitions
    from gpujoin.spark.shuffle.exchanges import Entry
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
    """Exchange that takes the rows of the stage; ``None``: Spark takes them."""
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
    """A note in each task's report."""
    split: SplitPartitions | None = None
    """The join whose heavy partitions are split, if tasks may compute shares of partitions."""

    def run(self, batches: Iterable[Any], task: Task) -> Iterator[Any]:
        """Compute parts by number, or partitions by their blobs, on a GPU if the task gets one.

        Raises ``CorruptBlobError``, which names the stage, if a blob is not what was written.
        """
        know_stores(self.stores)
        measured = IslandMetrics(began=time.time())
        notes = [] if self.remark is None else [self.remark]
        try:
            yield from self._output(self._rows(batches, task, measured, notes), task, measured)
        except (InvalidTextError, UnsupportedValueError) as problem:
            problem.add_note(f"{STAGE_NOTE}{self.name}")
            raise
        except CorruptBlobError as problem:
            raise CorruptBlobError(f"stage {self.name}, {task.stage} of Spark's: {problem}") from problem
        measured.ended = time.time()
        notes += measured.pipeline.recovered
        record = TaskRecord(
            self.name, task.stage, task.partition, task.attempt, measured, tuple(notes), task.execution
        )  # fmt: skip
        task.report(record)

    def _output(self, rows: Iterator[pa.RecordBatch], task: Task, measured: IslandMetrics) -> Iterator[Any]:
        """What Spark is handed."""
        outlet, counts = self.outlet, measured.sent
        if outlet is None:
            return rows if self.arrow is None else row_packets(rows, self.arrow)
        round_bytes = HostMemory.from_budget(self.options.memory_budget).round_bytes
        if self.transport is Transport.ROWS:
            return outlet.split(rows, task.partition, counts, round_bytes)
        packer = PacketPacker(outlet.form, outlet.blob_bytes, counts, outlet.divisions, task.partition)
        return outlet.packed(rows, task.partition, packer, counts, round_bytes)

    def _rows(
        self, batches: Iterable[Any], task: Task, measured: IslandMetrics, notes: list[str]
    ) -> Iterator[pa.RecordBatch]:
        from gpujoin.engine.pipeline import run
        from gpujoin.engine.pipeline.tables import TABLES, TableCache

        # What failed may have been a GPU, or on one: a task that is tried again has nothing to do with any.
        options = self.options.replace(backend=BackendChoice.CPU) if task.retry else self.options
        with allocate_device(options, task.gpus, task.name) as place:
            notes += place.allocation.notes
            rung = Rung.CAREFUL if task.retry else None
            if rung is not None:
                notes.append(f"{rung.value}: Spark has tried the task before")
            measured.joins.backends[place.allocation.backend.name.value] = 1
            measured.joins.wait_seconds += place.allocation.waited
            tree = self.tree
            if self.split is not None:
                share, batches = share_and_blobs(batches)
                tree = self.split.trees.get(share, tree)
                if share is not Share.WHOLE:
                    notes.append(share.value)
            caller = PySparkCaller(task.partition)
            work = self._of_rows(batches) if self.transport is Transport.ROWS else self._of_packets(batches, task)
            for inputs, reads in work:
                yield from run(
                    tree, inputs, reads, options=place.options, metrics=measured.pipeline,
                    join_metrics=measured.joins, device=place.device, rung=rung,
                    cache=TableCache(TABLES, place.allocation.residents, self.keeps_tables, self._keepable(reads)),
                    caller=caller,
                )  # fmt: skip

    def _keepable(self, reads: Reads) -> frozenset[int]:
        """Give the indexes of scans whose rows may be kept for later runs.

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
        """Give the pipeline's input in a task that takes packets."""
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
        """Give the pipeline's input in a task that takes batches, anew each time it runs."""
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
