"""What Python workers do of a join of two streams: split rows by key, join a partition with its state, unpack rows."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from gpujoin._version import __version__
from gpujoin.config import Options
from gpujoin.engine.hashing import partition_ids
from gpujoin.engine.keys import KeyCodec
from gpujoin.engine.memory import HostMemory
from gpujoin.engine.streaming.chunks import StateChunk, decode
from gpujoin.engine.streaming.symmetric import SymmetricJoin
from gpujoin.errors import CorruptBlobError, StreamStateError
from gpujoin.model.jointype import Side
from gpujoin.model.streams import StreamJoin
from gpujoin.plan.streams import plan_stream_join
from gpujoin.spark.shuffle.blobrows import BlobCounts, BlobFormat, BlobPacker
from gpujoin.spark.shuffle.scattering import rounds, scatter
from gpujoin.spark.worker.task import check_version

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import (
        MapState,
        StatefulProcessorHandle,
        TimerValues,
        ValueState,
    )

    from gpujoin.spark.worker.task import Batches, Task

PLACES = {Side.LEFT: 0, Side.RIGHT: 1}
"""Sources of the blob rows that a partition takes; a partition is announced by -1."""
JOINED = 2
"""Source of the blobs that it gives."""
COUNTERS = {
    "left_rows": "int64", "right_rows": "int64", "left_late_rows": "int64", "right_late_rows": "int64",
    "output_rows": "int64", "unmatched_rows": "int64", "state_rows": "int64", "state_bytes": "int64",
    "chunks_read": "int64", "chunks_written": "int64", "chunks_removed": "int64", "seconds": "float64",
}  # fmt: skip
"""What a partition counts in a micro-batch, and the type of each counter in NumPy."""
_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True)
class SplitRows:
    """Splits new rows of one side by their keys.

    Rows of equal keys are in one partition for as long as the state is kept: how keys are hashed must not change.
    """

    join: StreamJoin
    side: Side
    labels: tuple[int, ...]
    """Label of each partition."""
    options: Options
    blob_bytes: int
    """Size of the blobs between the tasks."""

    def run(self, batches: Batches, task: Task) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Turn rows into blob rows."""
        schema = self.join.schema(self.side)
        codec = KeyCodec.of(plan_stream_join(self.join).spec, self.join.left, self.join.right)
        memory, counts = HostMemory.of(self.options.memory_budget), BlobCounts()
        packer = BlobPacker(BlobFormat(schema, place=PLACES[self.side]), self.blob_bytes, counts)
        for rows in rounds(batches, schema, memory.round_bytes, counts):
            targets = partition_ids(codec.codes(rows, self.side), len(self.labels))
            yield from scatter(rows, targets, self.labels, packer)
        yield from packer.flush()


@dataclass(frozen=True)
class UnpackRows:
    """Gives the rows of the blobs in which a join gives them; what it has counted is left out."""

    join: StreamJoin

    def run(self, batches: Batches, task: Task) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Turn blobs, and the label of each one's partition, into rows."""
        schema = SymmetricJoin(self.join).output_schema
        form = BlobFormat(schema, place=JOINED)
        numbered = [f"c{number}" for number in range(len(schema))]
        for batch in batches:
            for label, data in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                if data.is_valid:
                    yield form.decode(data.as_buffer(), label).rename_columns(numbered)


class LateBy(Enum):
    """By which watermark rows are late."""

    LAST_WATERMARK = "that of the micro-batch before"
    OWN_WATERMARK = "that of their own micro-batch"
    GIVEN = "one that the driver tells"


class PartitionJoin(StatefulProcessor):
    """Joins one partition, as Spark's ``transformWithState`` runs it; each partition is a group.

    A group gets a row in each micro-batch, so that it sees each watermark.

    Parameters
    ----------
    join : StreamJoin
        What is joined.
    labels : tuple of int
        Label of each partition.
    options : Options
        Settings.
    late_by : LateBy
        By which watermark rows are late.
    late_ms : int
        That watermark in milliseconds, if it is given.
    """

    def __init__(
        self, join: StreamJoin, labels: tuple[int, ...], options: Options, late_by: LateBy, late_ms: int = 0
    ) -> None:
        self._join = join
        self._labels = labels
        self._options = options
        self._late_by = late_by
        self._late_ms = late_ms
        self._version = __version__

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the states: a manifest and the number of partitions, and chunks and marks by the chunk's identifier."""
        self._manifest: ValueState = handle.getValueState("manifest", "data binary, partitions int")
        self._chunks: MapState = handle.getMapState("chunks", "id string", "data binary")
        self._marks: MapState = handle.getMapState("marks", "id string", "data binary")

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Join the new rows of a micro-batch.

        Raises
        ------
        StreamStateError
            If the state is of another join or another number of partitions, is incomplete, or was altered; the message
            names the query, the micro-batch and the partition.
        """
        (label,) = key
        where = _Place.of(self._labels.index(label))
        try:
            yield from self._joined(int(label), rows, timerValues)
        except (StreamStateError, CorruptBlobError) as problem:
            raise StreamStateError(f"{where}: {problem}") from problem

    def _joined(self, label: int, rows: Iterator[pd.DataFrame], timer: TimerValues) -> Iterator[pd.DataFrame]:
        check_version(self._version)
        began = time.monotonic()
        saved = self._manifest.get()
        if saved is not None and saved[1] != len(self._labels):
            raise StreamStateError(
                f"the state was begun with {saved[1]} partitions, and the query has {len(self._labels)} now"
                " (spark.sql.shuffle.partitions): its keys are in other partitions; start from a new checkpoint"
            )
        new = self._received(label, rows)
        _kept.limit = HostMemory.of(self._options.memory_budget).build_bytes
        store = SparkStore(self._chunks, self._marks, _kept)
        join = SymmetricJoin(
            self._join, store, None if saved is None else bytes(saved[0]), options=self._options
        )
        watermark = max(0, timer.getCurrentWatermarkInMs())
        late = {
            LateBy.LAST_WATERMARK: None, LateBy.OWN_WATERMARK: watermark, LateBy.GIVEN: self._late_ms
        }[self._late_by]  # fmt: skip
        form = BlobFormat(join.output_schema, place=JOINED)
        returned = 0
        for batch in join.push(new[Side.LEFT], new[Side.RIGHT], watermark, late_ms=late):
            if batch.num_rows:
                returned += batch.num_rows
                header, message = form.encode(batch, label)
                yield _output(label, header + message.to_pybytes(), {})
        self._manifest.update((join.manifest.to_bytes(), len(self._labels)))
        yield _output(label, None, _counted(join, returned, time.monotonic() - began))

    def _received(self, label: int, rows: Iterable[pd.DataFrame]) -> dict[Side, list[pa.RecordBatch]]:
        new: dict[Side, list[pa.RecordBatch]] = {side: [] for side in Side}
        forms = {
            place: (side, BlobFormat(self._join.schema(side), place=place)) for side, place in PLACES.items()
        }
        for frame in rows:
            for place, data in zip(frame["side"], frame["data"], strict=True):
                if place in forms:
                    side, form = forms[place]
                    new[side].append(form.decode(pa.py_buffer(data), label))
        return new

    def close(self) -> None:
        """Do nothing: nothing is open."""


def _counted(join: SymmetricJoin, returned: int, seconds: float) -> dict[str, float]:
    """The counters of a micro-batch, by the names of :data:`COUNTERS`."""
    counted = join.metrics
    return {
        **{f"{side.value}_rows": counted.new_rows[side] for side in Side},
        **{f"{side.value}_late_rows": counted.late_rows[side] for side in Side},
        "output_rows": returned,
        "unmatched_rows": counted.padded_rows,
        "state_rows": join.manifest.rows,
        "state_bytes": join.manifest.nbytes,
        "chunks_read": counted.chunks_read,
        "chunks_written": counted.chunks_written,
        "chunks_removed": counted.chunks_removed,
        "seconds": seconds,
    }


def _output(label: int, data: bytes | None, counted: Mapping[str, float]) -> pd.DataFrame:
    """One row of what a partition gives: a blob of rows, or its counters."""
    import pandas as pd

    columns: dict[str, pd.Series[Any]] = {"p": pd.Series([label], dtype="int32"), "data": pd.Series([data])}
    for name, kind in COUNTERS.items():
        columns[name] = pd.Series([counted.get(name, 0)], dtype=kind)
    return pd.DataFrame(columns)


@dataclass(frozen=True)
class _Place:
    """Which query, micro-batch and partition a task is of, as errors name them."""

    query: str
    batch: str
    partition: int

    @classmethod
    def of(cls, partition: int) -> _Place:
        """Name a partition of the join: what follows it in a task, as a union, may give the task another number."""
        context = TaskContext.get()
        assert context is not None
        query, batch = (context.getLocalProperty(name) or "?" for name in (_QUERY_ID, _BATCH_ID))
        return cls(query, batch, partition)

    def __str__(self) -> str:
        return f"query {self.query}, micro-batch {self.batch}, partition {self.partition}"


class SparkStore:
    """Chunks in Spark's state store; those that were read or written by this process are kept decoded.

    A chunk never changes, and its identifier stands for its content: what is kept needs no check.

    Parameters
    ----------
    chunks, marks : MapState
        Bytes by the chunk's identifier.
    kept : KeptChunks
        What this process has read and written.
    """

    def __init__(self, chunks: MapState, marks: MapState, kept: KeptChunks) -> None:
        self._chunks = chunks
        self._marks = marks
        self._kept = kept

    def get(self, chunk: StateChunk, schema: pa.Schema) -> pa.RecordBatch:
        """Rows of a chunk.

        Raises
        ------
        StreamStateError
            If there is none of that identifier.
        CorruptBlobError
            If it was altered.
        """
        known = self._kept.get(chunk.id)
        if isinstance(known, pa.RecordBatch):
            return known
        if known is None:
            stored = self._chunks.getValue((chunk.id,))
            if stored is None:
                raise StreamStateError(f"the state lacks chunk {chunk.id}, which its manifest names")
            known = pa.py_buffer(bytes(stored[0]))
        rows = decode(known, schema, chunk.id)
        self._kept.put(chunk, rows)
        return rows

    def put(self, chunk: StateChunk, data: pa.Buffer) -> None:
        """Store a new chunk."""
        stored = data.to_pybytes()
        self._chunks.updateValue((chunk.id,), (stored,))
        self._kept.put(chunk, pa.py_buffer(stored))

    def get_marks(self, chunk: StateChunk) -> bytes | None:
        """Marks that were stored last for a chunk."""
        stored = self._marks.getValue((chunk.id,))
        return None if stored is None else bytes(stored[0])

    def put_marks(self, chunk: StateChunk, bits: bytes) -> None:
        """Store the marks of a chunk."""
        self._marks.updateValue((chunk.id,), (bits,))

    def remove(self, chunk: StateChunk) -> None:
        """Remove a chunk and its marks."""
        self._chunks.removeKey((chunk.id,))
        if chunk.matched:
            self._marks.removeKey((chunk.id,))
        self._kept.forget(chunk.id)


class KeptChunks:
    """Chunks that a process keeps by their identifiers, up to a number of bytes; those used last stay longest.

    Attributes
    ----------
    limit : int
        Most bytes, as stored, that are kept.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self._nbytes = 0
        self._chunks: OrderedDict[str, tuple[int, pa.RecordBatch | pa.Buffer]] = OrderedDict()

    def get(self, name: str) -> pa.RecordBatch | pa.Buffer | None:
        """Rows of a chunk, or its bytes as long as nobody has read it."""
        if name not in self._chunks:
            return None
        self._chunks.move_to_end(name)
        return self._chunks[name][1]

    def put(self, chunk: StateChunk, content: pa.RecordBatch | pa.Buffer) -> None:
        """Keep a chunk, in the place of what was kept of it."""
        self.forget(chunk.id)
        self._chunks[chunk.id] = chunk.nbytes, content
        self._nbytes += chunk.nbytes
        while self._nbytes > self.limit and len(self._chunks) > 1:
            self.forget(next(iter(self._chunks)))

    def forget(self, name: str) -> None:
        """Keep a chunk no longer."""
        nbytes, _ = self._chunks.pop(name, (0, None))
        self._nbytes -= nbytes


_kept = KeptChunks()
"""Those of this process, of all streams whose partitions come to it."""
