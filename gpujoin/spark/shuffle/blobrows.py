"""Blob rows: exchanged rows as Arrow blobs, so that Spark's shuffle moves bytes and builds no rows.

A *blob row* is ``(p, side, data)``: ``p`` labels the partition, ``side`` is the place of the source that takes the rows
among those that a stage reads, ``data`` is one checked blob (`gpujoin.engine.blob`) of rows of that source and
partition. Spark brings equal labels together and sorts by ``(p, side)``: the sources come in the order in which they
are read, the build side of a join first.

Nothing here needs Spark: blob rows are plain record batches.

Whole numbers in blobs are as narrow as the values of a blob allow, and wide again where it is read. A byte that is
exchanged is written, moved and read some ten times on its way from one worker to another; finding the least and the
greatest value of a column is next to nothing beside that. Integers, dates, timestamps and decimals become integers of
8, 16, 32 or 64 bits. A blob holds its own schema, so each says by itself how narrow its columns are.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.config import Compression
from gpujoin.engine import blob as blobs
from gpujoin.errors import CorruptBlobError, GpuJoinError

Carrier = TypeVar("Carrier")
"""The form in which a blob goes to Spark: a row, or packets."""

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
    """Columns of the rows; in a blob they may be narrower (`gpujoin.spark.shuffle.blobrows`)."""
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
            yield from self._pack(rows.slice(start, step), label)

    def _pack(self, rows: pa.RecordBatch, label: int) -> Iterator[Carrier]:
        if rows.nbytes > MAX_BLOB_BYTES - (1 << 20):
            if rows.num_rows == 1:
                raise GpuJoinError(
                    f"a row of {rows.nbytes} bytes cannot be exchanged: Spark passes at most {MAX_BLOB_BYTES} bytes "
                    "in one binary value. Drop or shorten its longest columns before the join."
                )
            half = rows.num_rows // 2
            yield from self._pack(rows.slice(0, half), label)
            yield from self._pack(rows.slice(half), label)
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


_WIDTHS: tuple[pa.DataType, ...] = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def narrowed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Make whole numbers of a batch narrow; columns that would not become narrower stay as they are."""
    if batch.num_rows == 0 or batch.num_columns == 0:
        return batch
    return pa.RecordBatch.from_arrays([_narrow(column) for column in batch.columns], names=batch.schema.names)


def widened(batch: pa.RecordBatch, schema: pa.Schema, origin: str) -> pa.RecordBatch:
    """Give the batch, of the given schema, that :func:`narrowed` was given; ``origin`` is for the error.

    Raises ``CorruptBlobError`` if it cannot have been made of a batch with that schema.
    """
    types = [field.type for field in schema]
    if batch.schema.equals(schema):
        return batch
    if batch.num_columns != len(types):
        raise CorruptBlobError(f"{origin}: holds {batch.num_columns} columns, not {len(types)}")
    columns = []
    for column, dtype in zip(batch.columns, types, strict=True):
        if column.type != dtype and not (_is_whole(dtype) and column.type in _WIDTHS):
            raise CorruptBlobError(f"{origin}: a column is {column.type}, not {dtype}")
        columns.append(column if column.type == dtype else _wide(column, dtype))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _is_whole(dtype: pa.DataType) -> bool:
    return pat.is_signed_integer(dtype) or pat.is_date32(dtype) or pat.is_timestamp(dtype) or pat.is_decimal128(dtype)


def _narrow(column: pa.Array) -> pa.Array:
    if not _is_whole(column.type):
        return column
    whole = _digits(column) if pat.is_decimal128(column.type) else _as_integers(column)
    if whole is None:
        return column
    ends = pc.min_max(whole).as_py()
    least, most = ends["min"] or 0, ends["max"] or 0
    for dtype in _WIDTHS:
        bound = 1 << (dtype.bit_width - 1)
        if dtype.bit_width >= column.type.bit_width:
            break
        if -bound <= least and most < bound:
            return whole if whole.type == dtype else pc.cast(whole, dtype, safe=False)
    return column


def _as_integers(column: pa.Array) -> pa.Array:
    if pat.is_signed_integer(column.type):
        return column
    return column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())


def _digits(column: pa.Array) -> pa.Array | None:
    """The digits of decimals as 64-bit integers; ``None`` if some need more."""
    words = _words(column)
    low, high = words[:, 0], words[:, 1]
    absent = None if column.null_count == 0 else np.asarray(column.is_null())
    wide = high != low >> 63
    if absent is not None:
        wide &= ~absent
    return None if wide.any() else pa.array(np.ascontiguousarray(low), mask=absent)


def _words(column: pa.Array) -> npt.NDArray[np.int64]:
    """The low and the high word of decimals."""
    words = np.frombuffer(column.buffers()[1], "<i8").reshape(-1, 2)
    return words[column.offset : column.offset + len(column)]


def _wide(column: pa.Array, dtype: pa.DataType) -> pa.Array:
    if not pat.is_decimal128(dtype):
        integers = pa.int32() if dtype.bit_width == 32 else pa.int64() if dtype.bit_width == 64 else dtype
        wide = pc.cast(column, integers, safe=False)
        return wide if integers == dtype else wide.view(dtype)
    values = pc.cast(column, pa.int64(), safe=False)
    low = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values)]
    words = np.empty((len(low), 2), np.int64)
    words[:, 0] = low
    np.right_shift(low, 63, out=words[:, 1])
    validity = None if column.null_count == 0 else pc.is_valid(column).buffers()[1]
    return pa.Array.from_buffers(dtype, len(low), [validity, pa.py_buffer(words)], column.null_count)
