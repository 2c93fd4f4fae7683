"""What Python workers do of a join of two streams: split rows by key, join a partition with its state, unpack rows."""

from __future__ import annotations

import time
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
from gpujoin.errors import CorruptBlobError, StreamStateError
from gpujoin.model.jointype import Side
from gpujoin.spark.shuffle.blobrows import BlobCounts, BlobFormat, BlobPacker
from gpujoin.spark.shuffle.scattering import rounds, scatter
from gpujoin.spark.worker.process import acknowledge_at_once
from gpujoin.spark.worker.task import check_version
from gpujoin.streams.join import StreamJoin
from gpujoin.streams.plan import plan_stream_join
from gpujoin.streams.store import ChunkFiles, SparkStore, chunk_cache
from gpujoin.streams.symmetric import SymmetricJoin

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import (
        MapState,
        StatefulProcessorHandle,
        TimerValues,
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
"""Counters of a partition in a micro-batch, with their NumPy types."""
_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"

_chunks = chunk_cache()
"""Those of this process, of all streams whose partitions come to it."""


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
        codec = KeyCodec.from_spec(plan_stream_join(self.join).spec, self.join.left, self.join.right)
        memory, counts = HostMemory.from_budget(self.options.memory_budget), BlobCounts()
        packer = BlobPacker(BlobFormat(schema, place=PLACES[self.side]), self.blob_bytes, counts)
        for rows in rounds(batches, schema, memory.round_bytes, counts):
            targets = partition_ids(codec.codes(rows, self.side), len(self.labels))
            yield from scatter(rows, targets, self.labels, packer)
        yield from packer.flush()


@dataclass(frozen=True)
class UnpackRows:
    """Unpacks the rows of a join from its blobs, without its counters."""

    schema: pa.Schema
    """Columns of the rows that the join gives."""

    def run(self, batches: Batches, task: Task) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Turn blobs, and the label of each one's partition, into rows."""
        form = BlobFormat(self.schema, place=JOINED)
        numbered = [f"c{number}" for number in range(len(self.schema))]
        for batch in batches:
            for label, data in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                if data.is_valid:
                    yield form.decode(data.as_buffer(), label).rename_columns(numbered)


class LateBy(Enum):
    """By which watermark rows are late."""

    LAST_WATERMARK = "that of the micro-batch before"
    OWN_WATERMARK = "that of their own micro-batch"
    DRIVERS_WATERMARK = "one that the driver tells"


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
        """Name the state: one map, since Spark prepares each state anew in each micro-batch."""
        self._state: MapState = handle.getMapState("state", "name string", "data binary")

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
        where = _Place.from_partition(self._labels.index(label))
        try:
            yield from self._output(int(label), where, rows, timerValues)
        except (StreamStateError, CorruptBlobError) as problem:
            raise StreamStateError(f"{where}: {problem}") from problem

    def _output(
        self, label: int, where: _Place, rows: Iterator[pd.DataFrame], timer: TimerValues
    ) -> Iterator[pd.DataFrame]:
        check_version(self._version)
        began = time.monotonic()
        acknowledge_at_once()
        new = self._new_rows(label, rows)
        _chunks.limit = HostMemory.from_budget(self._options.memory_budget).build_bytes
        files = ChunkFiles.for_partition(where.query, label, self._options)
        store = SparkStore(self._state, _chunks, files)
        join = SymmetricJoin(self._join, store, store.manifest(len(self._labels)), options=self._options)
        watermark = max(0, timer.getCurrentWatermarkInMs())
        late = {
            LateBy.LAST_WATERMARK: None, LateBy.OWN_WATERMARK: watermark, LateBy.DRIVERS_WATERMARK: self._late_ms
        }[self._late_by]  # fmt: skip
        form = BlobFormat(join.output_schema, place=JOINED)
        returned = 0
        for batch in join.push(new[Side.LEFT], new[Side.RIGHT], watermark, late_ms=late):
            if batch.num_rows:
                returned += batch.num_rows
                yield _output_row(label, form.encode(batch, label).to_pybytes(), {})
        store.finish(join.manifest, len(self._labels))
        yield _output_row(label, None, _counters(join, returned, time.monotonic() - began))

    def _new_rows(self, label: int, rows: Iterable[pd.DataFrame]) -> dict[Side, list[pa.RecordBatch]]:
        new: dict[Side, list[pa.RecordBatch]] = {side: [] for side in Side}
        forms = {place: (side, BlobFormat(self._join.schema(side), place=place)) for side, place in PLACES.items()}
        for frame in rows:
            for place, data in zip(frame["side"], frame["data"], strict=True):
                if place in forms:
                    side, form = forms[place]
                    new[side].append(form.decode(pa.py_buffer(data), label))
        return new

    def close(self) -> None:
        """Do nothing: nothing is open."""


def _counters(join: SymmetricJoin, returned: int, seconds: float) -> dict[str, float]:
    """The counters of a micro-batch, by the names of :data:`COUNTERS`."""
    metrics = join.metrics
    return {
        **{f"{side.value}_rows": metrics.new_rows[side] for side in Side},
        **{f"{side.value}_late_rows": metrics.late_rows[side] for side in Side},
        "output_rows": returned,
        "unmatched_rows": metrics.padded_rows,
        "state_rows": join.manifest.rows,
        "state_bytes": join.manifest.stored,
        "chunks_read": metrics.chunks_read,
        "chunks_written": metrics.chunks_written,
        "chunks_removed": metrics.chunks_removed,
        "seconds": seconds,
    }


def _output_row(label: int, data: bytes | None, counters: Mapping[str, float]) -> pd.DataFrame:
    """One row of what a partition gives: a blob of rows, or its counters."""
    import pandas as pd

    columns: dict[str, pd.Series[Any]] = {"p": pd.Series([label], dtype="int32"), "data": pd.Series([data])}
    for name, kind in COUNTERS.items():
        columns[name] = pd.Series([counters.get(name, 0)], dtype=kind)
    return pd.DataFrame(columns)


@dataclass(frozen=True)
class _Place:
    """Which query, micro-batch and partition a task is of, as errors name them."""

    query: str
    batch: str
    partition: int

    @classmethod
    def from_partition(cls, partition: int) -> _Place:
        """Name a partition of the join: what follows it in a task, as a union, may give the task another number."""
        context = TaskContext.get()
        assert context is not None
        query, batch = (context.getLocalProperty(name) or "?" for name in (_QUERY_ID, _BATCH_ID))
        return cls(query, batch, partition)

    def __str__(self) -> str:
        return f"query {self.query}, micro-batch {self.batch}, partition {self.partition}"
