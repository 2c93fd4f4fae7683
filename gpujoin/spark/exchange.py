"""The columnar exchange: rows of both sides as Arrow blobs, so that Spark's shuffle moves bytes and builds no rows.

A mapper turns its rows into *blob rows* ``(p, side, data)``: ``p`` labels the partition, ``side`` is the role of the
rows in the join, ``data`` is one checked blob (`gpujoin.engine.blob`) of rows of that role and partition. Spark brings
equal labels together and sorts by ``(p, side)``; the reader gets each partition's build rows first and the stream rows
as they come.

Nothing here needs Spark: blob rows are plain record batches.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.config import Compression
from gpujoin.engine import blob as blobs
from gpujoin.engine.hashing import hash_rows, partitions_of
from gpujoin.engine.keys import KeyCodec
from gpujoin.errors import CorruptBlobError, GpuJoinError, KeyTypeError
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.model.stages import NullKeys, null_keys_of

if TYPE_CHECKING:
    from gpujoin.spark.portions import Heavy

BLOB_DDL = "p int, side tinyint, data binary"
_FIELDS: list[pa.Field[Any]] = [
    pa.field("p", pa.int32()),
    pa.field("side", pa.int8()),
    pa.field("data", pa.binary()),
]
BLOB_SCHEMA = pa.schema(_FIELDS)

MAX_BLOB_BYTES = 768 << 20
"""Spark's Arrow writer doubles a column's buffer up to 2 GiB, and packs up to 256 MiB of other blobs before one."""

_ROUND_BYTES = 128 << 20
"""Most rows, in bytes, that a mapper buffers before it splits them."""
_OUTPUT_BYTES = 32 << 20
"""Blobs handed to Spark at a time; a larger single blob goes alone."""
_SPREAD_COLUMNS = 4
_SPREAD_SEED = 0x5B


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
        Columns of the rows.
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
        """A blob's batch, sharing its memory.

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
        return batch


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
    """

    def __init__(self, form: BlobFormat, blob_bytes: int, counts: BlobCounts) -> None:
        self._form = form
        self._blob_bytes = blob_bytes
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
        if self._labels and self._offsets[-1] + size > _OUTPUT_BYTES:
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


@dataclass(frozen=True)
class Splitter:
    """Splits the rows of one side by partition of their key.

    The partition of a row depends on the row and on :attr:`salt` only, never on the order in which rows come: Spark may
    run a mapper again and mix what the two runs made.

    Attributes
    ----------
    form : BlobFormat
        Of the blobs.
    spec : JoinSpec
        The join.
    left, right : Schema
        Columns of the two sides, for the common types of the keys.
    side : Side
        Which side's rows these are.
    labels : tuple of int
        Label of each partition.
    blob_bytes : int
        Target size of a blob.
    salt : int
        Number of the mapper's partition, which decides with the row's content where rows with a null key go.
    counts : BlobCounts
        Counted into.
    heavy : Heavy or None
        Keys with very many rows, see `gpujoin.spark.portions`.
    nulls_label : int or None
        Label of the partition in which left rows of a ``NOT IN`` with a null key meet all right rows.
    """

    form: BlobFormat
    spec: JoinSpec
    left: pa.Schema
    right: pa.Schema
    side: Side
    labels: Sequence[int]
    blob_bytes: int
    salt: int = 0
    counts: BlobCounts = field(default_factory=BlobCounts)
    heavy: Heavy | None = None
    nulls_label: int | None = None

    def split(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows as blob rows.

        Parameters
        ----------
        batches : iterable of RecordBatch
            Rows of the side; types that convert into the format's schema are accepted.

        Yields
        ------
        RecordBatch
            Of :data:`BLOB_SCHEMA`.
        """
        packers = _Packers(self.form, self.blob_bytes, self.counts)
        limit = min(_ROUND_BYTES, self.blob_bytes * len(self.labels))
        for rows in rounds(batches, self.form.schema, limit, self.counts):
            for portion, role, some, targets in self._placed(rows):
                packer = packers.of(portion, role)
                yield from self._pack(packer, some, targets)
        yield from packers.flush()

    def _pack(
        self, packer: BlobPacker, rows: pa.RecordBatch, targets: npt.NDArray[np.int32] | int | None
    ) -> Iterator[pa.RecordBatch]:
        """Pack rows for a partition each, or for one label, or for all partitions."""
        if rows.num_rows == 0:
            return
        if isinstance(targets, int):
            yield from packer.add(rows, targets)
            return
        partitions = len(self.labels)
        if targets is None or partitions == 1:
            for label in self.labels:
                yield from packer.add(rows, label)
            return
        yield from scatter(rows, targets, self.labels, packer)

    def _placed(self, rows: pa.RecordBatch) -> Iterator[_Placed]:
        """Portion, role, rows, and their partitions."""
        role = self.form.role
        mask = self._codec.null_mask(rows, self.side)
        if mask is not None and self._drops:
            self.counts.dropped += int(mask.sum())
            rows = rows.filter(pa.array(~mask))
            mask = None
        if self.spec.join_type is JoinType.NULL_AWARE_ANTI and len(self.labels) > 1:
            yield from self._nulls_of_not_in(rows, mask)
            if mask is not None:
                rows = rows.filter(pa.array(~mask))
                mask = None
        if rows.num_rows == 0:
            return
        if len(self.labels) == 1:
            yield Portion.REGULAR, role, rows, None
            return
        hashes = hash_rows(self._codec.codes(rows, self.side))
        targets = partitions_of(hashes, len(self.labels))
        if mask is not None:
            targets[mask] = self._spread(rows.filter(pa.array(mask)))
        heavy = None if self.heavy is None else self.heavy.mask(hashes)
        if heavy is None or not heavy.any():
            yield Portion.REGULAR, role, rows, targets
            return
        if mask is not None:
            heavy &= ~mask
        some = pa.array(heavy)
        yield from self._heavy_rows(rows.filter(some), targets[heavy], hashes[heavy])
        yield Portion.REGULAR, role, rows.filter(pc.invert(some)), targets[~heavy]

    def _heavy_rows(
        self, rows: pa.RecordBatch, targets: npt.NDArray[np.int32], hashes: npt.NDArray[np.uint64]
    ) -> Iterator[_Placed]:
        assert self.heavy is not None
        self.counts.heavy += rows.num_rows
        full = self.spec.join_type is JoinType.FULL
        if self.side is self.heavy.split:
            yield Portion.HEAVY, Role.STREAM, rows, self._scattered(rows, hashes)
            if full:
                first = self._first_of_each_key(rows)
                yield Portion.UNMET, Role.BUILD, rows.take(pa.array(first)), targets[first]
            return
        yield Portion.HEAVY, Role.BUILD, rows, None
        if full:
            yield Portion.UNMET, Role.STREAM, rows, targets

    def _nulls_of_not_in(self, rows: pa.RecordBatch, mask: npt.NDArray[np.bool_] | None) -> Iterator[_Placed]:
        nulls = None if mask is None else rows.filter(pa.array(mask))
        if self.side is Side.RIGHT:
            if self.nulls_label is not None:
                yield Portion.NULLS, Role.BUILD, rows, self.nulls_label
            if nulls is not None:
                yield Portion.REGULAR, Role.BUILD, nulls, None
                if self.heavy is not None:
                    yield Portion.HEAVY, Role.BUILD, nulls, None
        elif nulls is not None:
            if self.nulls_label is None:
                raise GpuJoinError("a key that Spark says is never null is null")
            yield Portion.NULLS, Role.STREAM, nulls, self.nulls_label

    def _scattered(self, rows: pa.RecordBatch, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
        """Partitions of rows that may go anywhere: by content, and, of rows with keys alone, by number too."""
        targets = self._spread(rows)
        if not self._keys_alone:
            return targets
        # Rows of one key are equal here, so which of them gets which number does not matter.
        for key in np.unique(hashes).tolist():
            same = np.flatnonzero(hashes == np.uint64(key))
            start = self._numbers.get(key, 0)
            self._numbers[key] = start + len(same)
            targets[same] = (targets[same] + start + np.arange(len(same))) % len(self.labels)
        return targets

    @cached_property
    def _numbers(self) -> dict[int, int]:
        """How many rows of keys alone were scattered so far, by hash of the key."""
        return {}

    @cached_property
    def _keys_alone(self) -> bool:
        """Whether rows of one key cannot differ: there are no other columns, and equal keys are the same values."""
        keys = {key.of(self.side) for key in self.spec.keys}
        types = [field.type for field in self.form.schema]
        # Integers may be compared as floats, in which different ones are equal.
        return keys == set(range(len(types))) and not any(
            pat.is_floating(dtype) or pat.is_nested(dtype) for dtype in (*types, *self._codec.types)
        )

    def _first_of_each_key(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        codes = self._codec.codes(rows, self.side)
        numbered = codes.append_column("row", pa.array(np.arange(rows.num_rows)))
        first = numbered.group_by(codes.column_names).aggregate([("row", "min")])
        return np.sort(first.column("row_min").to_numpy())

    @cached_property
    def _codec(self) -> KeyCodec:
        return KeyCodec.of(self.spec, self.left, self.right)

    @cached_property
    def _drops(self) -> bool:
        return null_keys_of(self.spec.join_type, self.side) is NullKeys.DROP

    @cached_property
    def _spread_codec(self) -> KeyCodec:
        return spread_codec(self.form.schema)

    def _spread(self, rows: pa.RecordBatch) -> npt.NDArray[np.int32]:
        return spread(rows, self._spread_codec, self.salt, len(self.labels))


_Placed: TypeAlias = tuple[Portion, Role, pa.RecordBatch, "npt.NDArray[np.int32] | int | None"]
"""Rows of a portion and role with their partitions: one each, one label for all, or every partition for each."""


def scatter(
    rows: pa.RecordBatch, targets: npt.NDArray[np.int32], labels: Sequence[int], packer: BlobPacker
) -> Iterator[pa.RecordBatch]:
    """Pack rows by partition.

    Parameters
    ----------
    rows : RecordBatch
        The rows.
    targets : ndarray of int32, shape (rows,)
        Number of each row's partition.
    labels : sequence of int
        Label of each partition.
    packer : BlobPacker
        What packs.
    """
    narrow = targets.astype(np.uint16) if len(labels) <= 1 << 16 else targets
    order = np.argsort(narrow, kind="stable")  # a radix sort on 16 bits
    bounds = np.searchsorted(narrow[order], np.arange(len(labels) + 1))
    ordered = rows.take(pa.array(order, pa.int64()))
    for target in np.flatnonzero(np.diff(bounds)).tolist():
        first, last = int(bounds[target]), int(bounds[target + 1])
        yield from packer.add(ordered.slice(first, last - first), labels[target])


def spread_codec(schema: pa.Schema) -> KeyCodec:
    """Codes of a few columns by which rows that may go anywhere are told apart."""
    found: list[KeyPair] = []
    for index in range(len(schema)):
        pair = KeyPair(index, index, NullEquality.EQUAL)
        try:
            KeyCodec.of(JoinSpec(JoinType.INNER, (pair,)), schema, schema)
        except KeyTypeError:
            continue
        found.append(pair)
    # Keys come first in most schemas and are the null ones here: take the last columns.
    return KeyCodec.of(JoinSpec(JoinType.INNER, tuple(found[-_SPREAD_COLUMNS:])), schema, schema)


def spread(rows: pa.RecordBatch, codec: KeyCodec, salt: int, partitions: int) -> npt.NDArray[np.int32]:
    """Partitions for rows that may go anywhere, by their content and the mapper's number alone."""
    codes = codec.codes(rows, Side.LEFT)
    hashes = hash_rows(codes, _SPREAD_SEED) if codes.num_columns else np.zeros(rows.num_rows, np.uint64)
    return ((hashes + np.uint64(salt)) % np.uint64(partitions)).astype(np.int32)


class _Packers:
    """A packer for each portion and role that occurs."""

    def __init__(self, form: BlobFormat, blob_bytes: int, counts: BlobCounts) -> None:
        self._form, self._blob_bytes, self._counts = form, blob_bytes, counts
        self._made: dict[tuple[Portion, Role], BlobPacker] = {}

    def of(self, portion: Portion, role: Role) -> BlobPacker:
        if (portion, role) not in self._made:
            form = BlobFormat(self._form.schema, role, self._form.compression, portion)
            self._made[portion, role] = BlobPacker(form, self._blob_bytes, self._counts)
        return self._made[portion, role]

    def flush(self) -> Iterator[pa.RecordBatch]:
        for packer in self._made.values():
            yield from packer.flush()


def pack_all(
    batches: Iterable[pa.RecordBatch], form: BlobFormat, blob_bytes: int, counts: BlobCounts,
    keep: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda rows: rows,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Rows as blob rows of the one partition 0, for a broadcast.

    Parameters
    ----------
    batches : iterable of RecordBatch
        The rows.
    form : BlobFormat
        Of the blobs.
    blob_bytes : int
        Target size of a blob.
    counts : BlobCounts
        Counted into.
    keep : callable
        Leaves out rows that are not needed.
    """
    packer = BlobPacker(form, blob_bytes, counts)
    for rows in rounds(batches, form.schema, blob_bytes, counts):
        kept = keep(rows)
        counts.dropped += rows.num_rows - kept.num_rows
        if kept.num_rows:
            yield from packer.add(kept, 0)
    yield from packer.flush()


def rounds(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, limit: int, counts: BlobCounts
) -> Iterator[pa.RecordBatch]:
    """Batches joined into larger ones of some ``limit`` bytes, in the given schema."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for given in batches:
        batch = conform(given, schema)
        if batch.num_rows == 0:
            continue
        counts.rows += batch.num_rows
        counts.nbytes += batch.nbytes
        if pending and size + batch.nbytes > limit:
            yield _together(pending)
            pending, size = [], 0
        pending.append(batch)
        size += batch.nbytes
    if pending:
        yield _together(pending)


def _together(pending: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(pending) == 1:
        return pending[0]
    return pa.Table.from_batches(pending).combine_chunks().to_batches()[0]


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch in exactly the given schema; Spark versions differ in names of nested fields, zones and nullability.

    Raises
    ------
    GpuJoinError
        If the number of columns differs.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    if batch.num_columns != len(schema):
        raise GpuJoinError(
            f"Spark handed over {batch.num_columns} columns where {schema.names} were expected"
        )
    columns = [
        column if column.type == wanted.type else pc.cast(column, wanted.type)
        for column, wanted in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


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
