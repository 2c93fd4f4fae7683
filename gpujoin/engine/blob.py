"""Checked blobs: Arrow record batches as bytes that cannot be misread.

A blob is a fixed header and one Arrow IPC message. The header holds a magic number, a format version, a fingerprint of
the schema, a tag that the writer chooses, the row count, and the length and CRC-32 of the message, so that a truncated,
altered or foreign blob is refused instead of read.
"""

from __future__ import annotations

import struct
import zlib

import pyarrow as pa

from gpujoin.config import Compression
from gpujoin.errors import CorruptBlobError

_MAGIC = b"GPJ1"
_HEADER = struct.Struct("<4sIIIqq")  # magic number, schema fingerprint, CRC-32, tag, rows, length
HEADER_BYTES = _HEADER.size


def schema_fingerprint(schema: pa.Schema) -> int:
    """Fingerprint of a schema's names and types; metadata does not count."""
    return zlib.crc32(repr([(f.name, str(f.type)) for f in schema]).encode())


def write_options(compression: Compression) -> pa.ipc.IpcWriteOptions:
    """Arrow's IPC options for writing one batch."""
    codec = None if compression is Compression.NONE else compression.value
    return pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)


def encode(batch: pa.RecordBatch, fingerprint: int, options: pa.ipc.IpcWriteOptions, tag: int = 0) -> pa.Buffer:
    """Encode a batch without dictionary columns: header and message in one buffer."""
    sink = pa.BufferOutputStream()
    sink.write(bytes(HEADER_BYTES))
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    blob = sink.getvalue()
    message = blob.slice(HEADER_BYTES)
    header = _HEADER.pack(_MAGIC, fingerprint, zlib.crc32(message), tag, batch.num_rows, message.size)
    memoryview(blob).cast("B")[:HEADER_BYTES] = header  # the buffer is the sink's own, and nobody has read it yet
    return blob


def tag_of(blob: pa.Buffer, origin: str) -> int:
    """Give the tag that a blob was written with; ``origin`` is for the error.

    Raises ``CorruptBlobError`` if the bytes are too few for a blob.
    """
    if blob.size < HEADER_BYTES:
        raise CorruptBlobError(f"{origin}: {blob.size} bytes, shorter than a blob's header; it was truncated")
    return int(_HEADER.unpack_from(blob)[3])


def decode(blob: pa.Buffer | bytes, fingerprint: int, origin: str, tag: int = 0) -> tuple[pa.RecordBatch, int]:
    """Read the blob at the start of a buffer, without copying, and the number of bytes read.

    The batch must have the schema of the fingerprint, and the tag; ``origin`` is for the error. Raises
    ``CorruptBlobError`` if the bytes are not those that were written.
    """
    buffer = pa.py_buffer(blob)
    if buffer.size < HEADER_BYTES:
        raise CorruptBlobError(f"{origin}: {buffer.size} bytes, shorter than a blob's header; it was truncated")
    header = buffer.slice(0, HEADER_BYTES)
    length = _HEADER.unpack_from(header)[-1]
    message = buffer.slice(HEADER_BYTES, max(0, min(length, buffer.size - HEADER_BYTES)))
    batch = decode_message(header, message, fingerprint, origin, tag)
    return batch, HEADER_BYTES + length


def decode_message(
    header: pa.Buffer | bytes, message: pa.Buffer, fingerprint: int, origin: str, tag: int = 0
) -> pa.RecordBatch:
    """Decode a message whose header is known, without copying; the counterpart of :func:`encode`.

    ``origin`` is for the error. Raises ``CorruptBlobError`` if header and message are not those that were written.
    """
    magic, written, checksum, tagged, rows, length = _HEADER.unpack_from(header)
    if magic != _MAGIC:
        raise CorruptBlobError(f"{origin}: does not start with {_MAGIC!r} but {magic!r}; it is not one of ours")
    if written != fingerprint:
        raise CorruptBlobError(f"{origin}: written with another schema ({written:#x}) than expected ({fingerprint:#x})")
    if length != message.size:
        raise CorruptBlobError(f"{origin}: {message.size} of {length} bytes are there; it was truncated")
    if tagged != tag or zlib.crc32(message) != checksum:
        raise CorruptBlobError(f"{origin}: its checksum does not match; it was altered")
    try:
        with pa.ipc.open_stream(message) as reader:
            batch = reader.read_next_batch()
    except (pa.ArrowInvalid, StopIteration, OSError) as problem:
        raise CorruptBlobError(f"{origin}: cannot be read as Arrow data: {problem}") from problem
    if batch.num_rows != rows:
        raise CorruptBlobError(f"{origin}: holds {batch.num_rows} rows where {rows} were written")
    return batch
