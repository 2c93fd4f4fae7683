"""The saved state of a join of streams: immutable chunks of rows, marks beside them, and a manifest of both.

A chunk holds rows of one side that came in one micro-batch, or that were merged from smaller chunks. It never changes,
so whoever has read it may keep it. Only the manifest and the marks of matched rows are written again. An example, left
outer join, after three micro-batches::

    manifest   watermark 12:00, rows at or before 11:50 are gone
    chunks     a  left   3 rows  11:48 to 11:59    the row of 11:48 is gone, though it is still stored
               b  left   2 rows  11:58 to 12:03
               c  right  4 rows  11:59 to 12:04
    marks      a  0 1 0                            b has none, so none of its rows has matched

Chunk ``a`` leaves as a whole, and without being read if all its rows have matched, once 11:59 is gone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.config import Compression
from gpujoin.engine import blob
from gpujoin.errors import StreamStateError
from gpujoin.model.expressions import ColumnRef, Expression, conjuncts
from gpujoin.model.jointype import Side
from gpujoin.streams.join import StreamJoin

Marks = npt.NDArray[np.bool_]
"""For each row of a chunk, dead ones included, whether it has matched."""

_ID_BYTES = 16
_OPERANDS = frozenset({"child", "arguments", "conditions", "values", "otherwise"})
"""Fields of expressions that are expressions."""


@dataclass(frozen=True, slots=True)
class StateChunk:
    """What the manifest says of a chunk."""

    id: str
    """The micro-batch that wrote it, its number in that, and a hash of its rows: equal for equal content alone. Chunks
    are in the order of their identifiers as they were written."""
    side: Side
    """Side that the rows are of."""
    rows: int
    nbytes: int
    stored: int
    """Rows, their bytes in memory, and their bytes as stored."""
    low: int | None
    high: int | None
    """Least and greatest event time in microseconds; ``None``: no row has one. Rows with a time and rows without one
    are in different chunks."""
    matched: int = 0
    """Rows that have matched, of a side whose matches are counted."""

    @property
    def span(self) -> tuple[int, int] | None:
        """Least and greatest event time; ``None``: all are null."""
        return None if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The state of a join but for the chunks' rows and marks."""

    FORMAT: ClassVar[int] = 1

    fingerprint: str
    """Fingerprint of the join, from :func:`fingerprint`."""
    watermark_ms: int = 0
    """Watermark of the last micro-batch. Rows at or before it are late in the next one."""
    pushes: int = 0
    """Micro-batches so far."""
    evicted: dict[Side, int | None] = field(default_factory=lambda: dict.fromkeys(Side))
    """Time in microseconds up to which rows of a side are gone; ``None``: none are."""
    chunks: tuple[StateChunk, ...] = ()
    """The chunks, oldest first."""

    @property
    def rows(self) -> int:
        """Count the stored rows, dead ones included."""
        return sum(chunk.rows for chunk in self.chunks)

    @property
    def nbytes(self) -> int:
        """Bytes of the chunks in memory."""
        return sum(chunk.nbytes for chunk in self.chunks)

    @property
    def stored(self) -> int:
        """Bytes of the chunks as stored."""
        return sum(chunk.stored for chunk in self.chunks)

    def of(self, side: Side) -> tuple[StateChunk, ...]:
        """The chunks of one side."""
        return tuple(chunk for chunk in self.chunks if chunk.side is side)

    def to_bytes(self) -> bytes:
        """The manifest as JSON text."""
        content = {
            "format": self.FORMAT,
            "fingerprint": self.fingerprint,
            "watermark_ms": self.watermark_ms,
            "pushes": self.pushes,
            "evicted": {side.value: self.evicted[side] for side in Side},
            "chunks": [[c.id, c.side.value, c.rows, c.nbytes, c.stored, c.low, c.high, c.matched] for c in self.chunks],
        }
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Read what :meth:`to_bytes` has written.

        Raises
        ------
        StreamStateError
            If it is something else, or of another format.
        """
        try:
            content = json.loads(data)
            written = content["format"]
        except (ValueError, TypeError, KeyError) as problem:
            raise StreamStateError("the saved state has no manifest that can be read") from problem
        if written != cls.FORMAT:
            raise StreamStateError(
                f"the state was saved in format {written}, and this version of gpujoin reads format {cls.FORMAT}; run"
                " the query with the version that wrote it, or from a new checkpoint"
            )
        return cls(
            content["fingerprint"], content["watermark_ms"], content["pushes"],
            {side: content["evicted"][side.value] for side in Side},
            tuple(StateChunk(id_, Side(side), *rest) for id_, side, *rest in content["chunks"]),
        )  # fmt: skip


def fingerprint(join: StreamJoin) -> str:
    """Fingerprint of a join: equal for joins that may share a state.

    Names of columns do not count, as in Spark, nor does the order of conjuncts and keys.
    """
    spec = join.spec
    types = [[str(field.type) for field in join.schema(side)] for side in Side]
    parts = [] if spec.condition is None else conjuncts(spec.condition)
    condition = sorted(repr(_described(part)) for part in parts)
    keys = sorted((key.left, key.right, key.nulls.value) for key in spec.keys)
    times = [join.times(side) for side in Side]
    computed = [join.computed(side) for side in Side]
    described = repr((spec.join_type.value, keys, condition, times, types, computed))
    return hashlib.blake2b(described.encode(), digest_size=_ID_BYTES).hexdigest()


def _described(node: Expression) -> tuple[object, ...]:
    """Describe a condition without names of columns, as saved states have it."""
    if isinstance(node, ColumnRef):
        node = dataclasses.replace(node, name="")
    own = tuple(
        (field.name, repr(getattr(node, field.name)) if field.name == "value" else getattr(node, field.name))
        for field in dataclasses.fields(node)
        if field.compare and field.name not in _OPERANDS
    )
    return type(node).__name__, own, tuple(map(_described, node.children))


def storage_schema(schema: pa.Schema) -> pa.Schema:
    """The schema in which rows of a side are stored: columns are named by position."""
    return pa.schema([field.with_name(f"c{number}") for number, field in enumerate(schema)])


class ChunkStore(Protocol):
    """Where chunks and marks are kept.

    Nothing is written before a micro-batch has returned all its rows. What was written becomes valid with the manifest
    of that micro-batch: a store must keep what an older manifest names until that one cannot come back.
    """

    def get(self, chunk: StateChunk, schema: pa.Schema) -> pa.RecordBatch:
        """Rows of a chunk, in the schema in which they are stored.

        They may be shared with others that read the same chunk: it is never changed.
        """

    def put(self, chunk: StateChunk, data: pa.Buffer, rows: pa.RecordBatch) -> None:
        """Store a new chunk: its bytes, which :func:`decode` reads; its rows may be kept beside them."""

    def get_marks(self, chunk: StateChunk) -> bytes | None:
        """Marks that were stored last for a chunk; ``None``: none were."""

    def put_marks(self, chunk: StateChunk, bits: bytes) -> None:
        """Store the marks of a chunk, in the place of those that it had."""

    def remove(self, chunk: StateChunk) -> None:
        """Remove a chunk and its marks."""


class MemoryStore:
    """Chunks in this process.

    Attributes
    ----------
    data : dict of str to Buffer
        Stored bytes by the chunk's identifier.
    bits : dict of str to bytes
        Stored marks by the chunk's identifier.
    """

    def __init__(self) -> None:
        self.data: dict[str, pa.Buffer] = {}
        self.bits: dict[str, bytes] = {}
        self._rows: dict[str, pa.RecordBatch] = {}

    def get(self, chunk: StateChunk, schema: pa.Schema) -> pa.RecordBatch:
        """Rows of a chunk, decoded once.

        Raises
        ------
        StreamStateError
            If there is none of that identifier.
        """
        if chunk.id not in self.data:
            raise missing(chunk)
        rows = self._rows.get(chunk.id)
        if rows is None:
            rows = self._rows[chunk.id] = decode(self.data[chunk.id], schema, chunk.id)
        return rows

    def put(self, chunk: StateChunk, data: pa.Buffer, rows: pa.RecordBatch) -> None:  # noqa: ARG002
        """Store a new chunk."""
        self.data[chunk.id] = data

    def get_marks(self, chunk: StateChunk) -> bytes | None:
        """Marks that were stored last for a chunk."""
        return self.bits.get(chunk.id)

    def put_marks(self, chunk: StateChunk, bits: bytes) -> None:
        """Store the marks of a chunk."""
        self.bits[chunk.id] = bits

    def remove(self, chunk: StateChunk) -> None:
        """Remove a chunk and its marks."""
        for values in (self.data, self.bits, self._rows):
            values.pop(chunk.id, None)


def missing(chunk: StateChunk) -> StreamStateError:
    """Make the error for a store that lacks a chunk."""
    return StreamStateError(f"the state lacks chunk {chunk.id}, which its manifest names")


def encode(rows: pa.RecordBatch) -> pa.Buffer:
    """Rows as bytes that cannot be misread: a compressed blob (:mod:`gpujoin.engine.blob`).

    Values of several bytes are stored byte by byte, all first bytes before all second ones: the high bytes of numbers
    and times are much alike, and are compressed to next to nothing.
    """
    split = pa.RecordBatch.from_arrays([_bytes_apart(c) for c in rows.columns], schema=rows.schema)
    return blob.encode(split, blob.schema_fingerprint(rows.schema), blob.write_options(Compression.ZSTD))


def decode(data: pa.Buffer | bytes, schema: pa.Schema, origin: str) -> pa.RecordBatch:
    """Rows of a chunk from its bytes.

    Raises
    ------
    CorruptBlobError
        If the bytes are not those that were written; the message names their origin.
    """
    rows, _ = blob.decode(data, blob.schema_fingerprint(schema), f"state chunk {origin}")
    return pa.RecordBatch.from_arrays([_bytes_together(c) for c in rows.columns], schema=rows.schema)


def _bytes_apart(column: pa.Array) -> pa.Array:
    """A column of the same type whose buffer of values has the bytes of each value apart."""
    width = _width(column.type)
    if width < 2 or not len(column):
        return column
    values = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * width :][: len(column) * width]
    return _with_values(column, values.reshape(-1, width).T)


def _bytes_together(column: pa.Array) -> pa.Array:
    """The counterpart of :func:`_bytes_apart`."""
    width = _width(column.type)
    if width < 2 or not len(column):
        return column
    values = np.frombuffer(column.buffers()[1], np.uint8)[: len(column) * width]
    return _with_values(column, values.reshape(width, -1).T)


def _with_values(column: pa.Array, values: npt.NDArray[np.uint8]) -> pa.Array:
    valid = pc.is_valid(column).buffers()[1] if column.null_count else None
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(column.type, len(column), [valid, data])


def _width(dtype: pa.DataType) -> int:
    """Bytes of a value of a type that has one buffer of values; 0: of another type."""
    if pat.is_decimal(dtype) or (pat.is_primitive(dtype) and dtype.bit_width % 8 == 0):
        return int(dtype.bit_width) // 8
    return 0


def identifier(data: pa.Buffer, push: int, number: int) -> str:
    """Identifier of a chunk of these bytes, the ``number``-th that a micro-batch has written."""
    content = hashlib.blake2b(data, digest_size=_ID_BYTES).hexdigest()
    return f"{push:010}-{number:05}-{content}"


def pack(marks: Marks) -> bytes:
    """Marks as bits."""
    return np.packbits(marks, bitorder="little").tobytes()


def unpack(bits: bytes | None, rows: int) -> Marks:
    """Marks from bits; none where nothing is stored.

    Raises
    ------
    StreamStateError
        If there are too few or too many.
    """
    if bits is None:
        return np.zeros(rows, np.bool_)
    if len(bits) != (rows + 7) // 8:
        raise StreamStateError(f"{len(bits)} bytes of marks are stored for a chunk of {rows} rows")
    packed = np.frombuffer(bits, np.uint8)
    return np.unpackbits(packed, count=rows, bitorder="little").astype(np.bool_)
