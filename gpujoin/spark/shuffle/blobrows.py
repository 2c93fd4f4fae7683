"""Blob rows: exchanged rows as Arrow blobs, so that Spark's shuffle moves bytes and builds no rows.

A *blob row* is ``(p, side, data)``: ``p`` labels the partition, ``side`` is the place of the source that takes the rows
among those that a stage reads, ``data`` is one checked blob (`gpujoin.engine.blob`) of rows of that source and
partition. Spark brings equal labels together and sorts by ``(p, side)``: the sources come in the order in which they
are read, the build side of a join first.

Nothing here needs Spark: blob rows are plain record batches.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from gpujoin.config import Compression
from gpujoin.engine import blob as blobs
from gpujoin.errors import CorruptBlobError, GpuJoinError
from gpujoin.spark.shuffle.narrowing import widened

Carrier = TypeVar("Carrier")
"""What a packer hands to Spark."""

BLOB_DDL = "p int, side tinyint, data binary"
_FIELDS: list[pa.Field[Any]] = [
    pa.field("p", pa.int32()),
    pa.field("side", pa.int8()),
    pa.field("data", pa.binary()),
]
BLOB_SCHEMA = pa.schema(_FIELDS)

MAX_BLOB_BYTES = 768 << 20
"""Spark's Arrow writer doubles a column's buffer up to 2 GiB, and packs up to 256 MiB of other blobs before one."""
_OUTPUT_BYTES = 32 << 20
"""Blobs handed to Spark at a time; a larger single blob goes alone."""


@dataclass(frozen=True)
class BlobFormat:
    """What the blobs of one source of a stage look like."""

    schema: pa.Schema
    """Columns of the rows; in a blob they may be narrower (`gpujoin.spark.shuffle.narrowing`)."""
    compression: Compression = Compression.NONE
    """How the Arrow buffers are compressed."""
    place: int = 0
    """Number of the source among those of the stage, in the order in which they are read: the side of a blob row, and
    the tag of a blob. Of packets that several stages read, a number that no place has."""
    labelled: bool = True
    """Whether the fingerprint covers the label. It does not where a task may read several partitions as one."""

    def __reduce__(self) -> tuple[type[BlobFormat], tuple[object, ...]]:
        # What is cached cannot be pickled.
        return BlobFormat, (self.schema, self.compression, self.place, self.labelled)

    @cached_property
    def _fingerprint(self) -> int:
        return blobs.schema_fingerprint(self.schema)

    @cached_property
    def _options(self) -> pa.ipc.IpcWriteOptions:
        return blobs.write_options(self.compression)

    def fingerprint(self, label: int) -> int:
        """Number in a blob's header: a blob of another schema, source or partition has another."""
        label = label if self.labelled else 0
        return zlib.crc32(
            label.to_bytes(8, "little", signed=True) + self.place.to_bytes(4, "little"), self._fingerprint
        )

    def encode(self, batch: pa.RecordBatch, label: int) -> pa.Buffer:
        """A batch as a blob, whose tag is the place."""
        return blobs.encode(batch, self.fingerprint(label), self._options, self.place)

    def decode(self, data: pa.Buffer, label: int) -> pa.RecordBatch:
        """A blob's batch, sharing its memory where its columns are as wide as they were.

        Raises ``CorruptBlobError`` if it is not the whole of a blob written with this format and label; the message
        names the partition.
        """
        origin = f"exchanged blob of partition {label}, source {self.place}"
        batch, length = blobs.decode(data, self.fingerprint(label), origin, self.place)
        if length != data.size:
            raise CorruptBlobError(f"{origin}: {data.size - length} bytes follow where it should end; it was altered")
        return widened(batch, self.schema, origin)


@dataclass(slots=True)
class BlobCounts:
    """What a task sent through an exchange."""

    rows: int = 0
    nbytes: int = 0
    """Rows taken in, and their bytes as Arrow data."""
    dropped: int = 0
    """Rows left out because their key is null."""
    blobs: int = 0
    blob_bytes: int = 0
    """Blobs written, and their bytes."""

    def merge(self, other: BlobCounts) -> None:
        """Add another task's counters to this one's."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Packer(ABC, Generic[Carrier]):
    """Cuts the rows of one partition into blobs of about ``blob_bytes``, and hands them to a transport."""

    def __init__(self, form: BlobFormat, blob_bytes: int, counts: BlobCounts) -> None:
        self._form = form
        self._blob_bytes = blob_bytes
        self._counts = counts

    def add(self, rows: pa.RecordBatch, label: int) -> Iterator[Carrier]:
        """Pack rows of one partition; yields what may be sent by now.

        Raises ``GpuJoinError`` if a single row is larger than :data:`MAX_BLOB_BYTES`.
        """
        step = rows.num_rows
        if rows.nbytes > self._blob_bytes * 3 // 2:
            step = max(1, rows.num_rows * self._blob_bytes // rows.nbytes)
        for start in range(0, rows.num_rows, step):
            yield from self._one(rows.slice(start, step), label)

    def _one(self, rows: pa.RecordBatch, label: int) -> Iterator[Carrier]:
        if rows.nbytes > MAX_BLOB_BYTES - (1 << 20):
            if rows.num_rows == 1:
                raise GpuJoinError(
                    f"a row of {rows.nbytes} bytes cannot be exchanged: Spark passes at most {MAX_BLOB_BYTES} bytes "
                    "in one binary value. Drop or shorten its longest columns before the join."
                )
            half = rows.num_rows // 2
            yield from self._one(rows.slice(0, half), label)
            yield from self._one(rows.slice(half), label)
            return
        blob = self._form.encode(rows, label)
        self._counts.blobs += 1
        self._counts.blob_bytes += blob.size
        yield from self._send(blob, label)

    @abstractmethod
    def _send(self, blob: pa.Buffer, label: int) -> Iterator[Carrier]:
        """Take a blob; yields what may be sent by now."""

    @abstractmethod
    def flush(self) -> Iterator[Carrier]:
        """What has been packed and not yet returned."""


class BlobPacker(Packer[pa.RecordBatch]):
    """Gathers blobs into batches of blob rows, of :data:`BLOB_SCHEMA`.

    At most ``output_bytes`` of blobs are handed over at a time.
    """

    def __init__(
        self, form: BlobFormat, blob_bytes: int, counts: BlobCounts, output_bytes: int = _OUTPUT_BYTES
    ) -> None:
        super().__init__(form, blob_bytes, counts)
        self._output_bytes = min(output_bytes, _OUTPUT_BYTES)
        self._reset()

    def _reset(self) -> None:
        self._blobs: list[pa.Buffer] = []
        self._labels: list[int] = []
        self._offsets: list[int] = [0]

    def _send(self, blob: pa.Buffer, label: int) -> Iterator[pa.RecordBatch]:
        if self._labels and self._offsets[-1] + blob.size > self._output_bytes:
            yield from self.flush()
        self._blobs.append(blob)
        self._labels.append(label)
        self._offsets.append(self._offsets[-1] + blob.size)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """What has been packed and not yet returned."""
        if not self._labels:
            return
        count = len(self._labels)
        offsets = pa.py_buffer(np.array(self._offsets, np.int32).tobytes())
        values = pa.Array.from_buffers(pa.binary(), count, [None, offsets, self._joined()])
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(np.array(self._labels, np.int32)),
                pa.array(np.full(count, self._form.place, np.int8)),
                values,
            ],
            schema=BLOB_SCHEMA,
        )
        self._reset()
        yield batch

    def _joined(self) -> pa.Buffer:
        """The blobs one after the other; a single one is not copied."""
        if len(self._blobs) == 1:
            return self._blobs[0]
        # Allocated once at its size: a stream that grows would copy and fault in its memory several times.
        data = pa.allocate_buffer(self._offsets[-1])
        target = memoryview(data).cast("B")
        for start, blob in zip(self._offsets, self._blobs, strict=False):
            target[start : start + blob.size] = memoryview(blob).cast("B")
        return data
