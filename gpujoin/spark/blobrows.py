"""Blob rows: rows of a join as Arrow blobs, so that Spark's shuffle moves bytes and builds no rows.

A *blob row* is ``(p, side, data)``: ``p`` labels the partition, ``side`` is the portion and the role of the rows in the
join, ``data`` is one checked blob (`gpujoin.engine.blob`) of rows of that role and partition. Spark brings equal labels
together and sorts by ``(p, side)``; the reader gets each partition's build rows first and the stream rows as they come.

Nothing here needs Spark: blob rows are plain record batches.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gpujoin.config import Compression
from gpujoin.engine import blob as blobs
from gpujoin.errors import CorruptBlobError, GpuJoinError
from gpujoin.spark.narrowing import widened

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


class Role(IntEnum):
    """What rows are for in a join; the order in which the reader gets them."""

    BUILD = 0
    STREAM = 1


class Portion(IntEnum):
    """A part of a join that is computed by itself in each partition; the order in which the reader gets them.

    `gpujoin.spark.portions` says what each is.
    """

    REGULAR = 0
    HEAVY = 1
    UNMET = 2
    NULLS = 3


@dataclass(frozen=True)
class BlobFormat:
    """What the blobs of one role look like.

    Attributes
    ----------
    schema : Schema
        Columns of the rows; in a blob they may be narrower (`gpujoin.spark.narrowing`).
    role : Role
        What they are for.
    compression : Compression
        Of the Arrow buffers.
    portion : Portion
        The part of the join they belong to.
    """

    schema: pa.Schema
    role: Role
    compression: Compression = Compression.NONE
    portion: Portion = Portion.REGULAR

    def __reduce__(self) -> tuple[type[BlobFormat], tuple[object, ...]]:
        # What is cached cannot be pickled.
        return BlobFormat, (self.schema, self.role, self.compression, self.portion)

    @property
    def number(self) -> int:
        """What is written as the side of a blob row: portion by portion, the build rows of each first."""
        return 2 * self.portion + self.role

    @cached_property
    def _fingerprint(self) -> int:
        return blobs.schema_fingerprint(self.schema)

    @cached_property
    def _options(self) -> pa.ipc.IpcWriteOptions:
        return blobs.write_options(self.compression)

    def fingerprint(self, label: int) -> int:
        """Number in a blob's header: a blob of another schema, role or partition has another."""
        return zlib.crc32(label.to_bytes(8, "little", signed=True) + bytes([self.number]), self._fingerprint)

    def encode(self, batch: pa.RecordBatch, label: int) -> tuple[bytes, pa.Buffer]:
        """A batch as header and message."""
        return blobs.encode(batch, self.fingerprint(label), self._options)

    def decode(self, data: pa.Buffer, label: int) -> pa.RecordBatch:
        """A blob's batch, sharing its memory where its columns are as wide as they were.

        Raises
        ------
        CorruptBlobError
            If it is not the whole of a blob written with this format and label; the message names the partition.
        """
        origin = f"exchanged blob of partition {label}, {self.role.name.lower()} side"
        batch, length = blobs.decode(data, self.fingerprint(label), origin)
        if length != data.size:
            raise CorruptBlobError(
                f"{origin}: {data.size - length} bytes follow where it should end; it was altered"
            )
        return widened(batch, self.schema, origin)


@dataclass
class BlobCounts:
    """What a mapper made.

    Attributes
    ----------
    rows, nbytes : int
        Rows taken in, and their bytes as Arrow data.
    dropped : int
        Rows left out because their key is null.
    heavy : int
        Rows of heavy keys.
    blobs, blob_bytes : int
        Blobs written, and their bytes.
    """

    rows: int = 0
    nbytes: int = 0
    dropped: int = 0
    heavy: int = 0
    blobs: int = 0
    blob_bytes: int = 0


class BlobPacker:
    """Gathers blobs into batches of blob rows, each blob written into one buffer that Spark reads.

    Parameters
    ----------
    form : BlobFormat
        Of the blobs.
    blob_bytes : int
        Target size of a blob.
    counts : BlobCounts
        Counted into.
    output_bytes : int
        Most bytes of blobs that are handed over at a time.
    """

    def __init__(
        self, form: BlobFormat, blob_bytes: int, counts: BlobCounts, output_bytes: int = _OUTPUT_BYTES
    ) -> None:
        self._form = form
        self._blob_bytes = blob_bytes
        self._output_bytes = min(output_bytes, _OUTPUT_BYTES)
        self._counts = counts
        self._reset()

    def _reset(self) -> None:
        self._pieces: list[bytes | pa.Buffer] = []
        self._labels: list[int] = []
        self._offsets: list[int] = [0]

    def add(self, rows: pa.RecordBatch, label: int) -> Iterator[pa.RecordBatch]:
        """Pack rows of one partition.

        Yields
        ------
        RecordBatch
            Of :data:`BLOB_SCHEMA`, whenever enough blobs have come together.

        Raises
        ------
        GpuJoinError
            If a single row is larger than :data:`MAX_BLOB_BYTES`.
        """
        step = rows.num_rows
        if rows.nbytes > self._blob_bytes * 3 // 2:
            step = max(1, rows.num_rows * self._blob_bytes // rows.nbytes)
        for start in range(0, rows.num_rows, step):
            yield from self._one(rows.slice(start, step), label)

    def _one(self, rows: pa.RecordBatch, label: int) -> Iterator[pa.RecordBatch]:
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
        header, message = self._form.encode(rows, label)
        size = len(header) + message.size
        if self._labels and self._offsets[-1] + size > self._output_bytes:
            yield from self.flush()
        self._pieces += [header, message]
        self._labels.append(label)
        self._offsets.append(self._offsets[-1] + size)
        self._counts.blobs += 1
        self._counts.blob_bytes += size

    def flush(self) -> Iterator[pa.RecordBatch]:
        """What has been packed and not yet returned."""
        if not self._labels:
            return
        count = len(self._labels)
        # Allocated once at its size: a stream that grows would copy and fault in its memory several times.
        data = pa.allocate_buffer(self._offsets[-1])
        target, position = memoryview(data).cast("B"), 0
        for piece in self._pieces:
            view = memoryview(piece).cast("B")
            target[position : position + view.nbytes] = view
            position += view.nbytes
        offsets = pa.py_buffer(np.array(self._offsets, np.int32).tobytes())
        values = pa.Array.from_buffers(pa.binary(), count, [None, offsets, data])
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(np.array(self._labels, np.int32)),
                pa.array(np.full(count, self._form.number, np.int8)),
                values,
            ],
            schema=BLOB_SCHEMA,
        )
        self._reset()
        yield batch


class BlobReader:
    """Reads blob rows that come sorted by partition, portion and role.

    Parameters
    ----------
    batches : iterable of RecordBatch
        Of :data:`BLOB_SCHEMA`; the binary column may be of the large type.
    build, stream : BlobFormat
        What is expected.
    others : sequence of (BlobFormat, BlobFormat)
        The same for further portions.

    Attributes
    ----------
    blobs, blob_bytes : int
        What has been read.
    """

    def __init__(
        self, batches: Iterable[pa.RecordBatch], build: BlobFormat, stream: BlobFormat,
        others: Sequence[tuple[BlobFormat, BlobFormat]] = (),
    ) -> None:  # fmt: skip
        self._forms = {form.number: form for pair in ((build, stream), *others) for form in pair}
        self._rows = self._walk(batches)
        self._next: _BlobRow | None = None
        self.blobs = 0
        self.blob_bytes = 0

    def partitions(self) -> Iterator[tuple[int, Iterator[pa.RecordBatch], Iterator[pa.RecordBatch]]]:
        """Each partition's label, build rows and stream rows, where there is one portion only."""
        for label, _, build, stream in self.portions():
            yield label, build, stream

    def portions(
        self,
    ) -> Iterator[tuple[int, Portion, Iterator[pa.RecordBatch], Iterator[pa.RecordBatch]]]:
        """Each partition's label, and of each of its portions the build rows and stream rows; take the former first.

        Raises
        ------
        CorruptBlobError
            While reading, if a blob is not what was written.
        """
        self._advance()
        while (head := self._next) is not None:
            label, portion = head.label, self._forms[head.number].portion
            build, stream = (self._part(label, 2 * portion + role) for role in Role)
            yield label, portion, build, stream
            for rest in (build, stream):
                for _ in rest:
                    pass
            late = self._next
            if late is not None and late.label == label and late.number <= 2 * portion + Role.STREAM:
                role = self._forms[late.number].role
                raise CorruptBlobError(
                    f"partition {label}: blobs came out of order, {role.name.lower()} side last"
                )

    def _part(self, label: int, number: int) -> Iterator[pa.RecordBatch]:
        while (head := self._next) is not None and head.label == label and head.number == number:
            self.blobs += 1
            self.blob_bytes += head.data.size
            yield self._forms[number].decode(head.data, label)
            self._advance()

    def _advance(self) -> None:
        self._next = next(self._rows, None)

    def _walk(self, batches: Iterable[pa.RecordBatch]) -> Iterator[_BlobRow]:
        for batch in batches:
            labels, sides, data = batch.columns
            if labels.null_count or sides.null_count or data.null_count:
                raise CorruptBlobError("an exchanged row holds a null; it is not one of ours")
            for row in range(batch.num_rows):
                label, side = int(labels[row].as_py()), int(sides[row].as_py())
                if side not in self._forms:
                    raise CorruptBlobError(f"partition {label}: role {side} is neither build nor stream")
                yield _BlobRow(label, side, data[row].as_buffer())


class _BlobRow(NamedTuple):
    label: int
    number: int
    data: pa.Buffer
