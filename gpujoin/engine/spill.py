"""Spills checked Arrow batches to disk, in files that have no name.

A file is opened without a name (``O_TMPFILE``, or its name is removed at once), so that no other process can open or
alter it, and the kernel frees its space when the last descriptor is closed: by :meth:`SpillStore.close`, or because the
process ended, by whatever signal. There is nothing to clean up.

The *manifest*, which is in memory only, says what the file must hold: for each blob its place, its header with row
count and CRC-32, and its nonce if it is encrypted. The file itself holds messages and nothing else, so that a change of
any bit is noticed::

    part 3, manifest:  rows 0..8191    at 0       header (8191 rows, 65,700 bytes, CRC 0x8f1d…)
                       rows 8192..9999 at 131,400 header (1808 rows, 14,500 bytes, CRC 0x02aa…)

Rows that exceed their share of memory are divided into parts by the hash of their keys, and each part is read back and
finished by itself (:func:`part_by_part`). A part that still exceeds the share is divided again, with another hash, up
to :data:`MAX_DIVISIONS` times. An example with four groups, a fan-out of 2, and memory for two groups::

    groups a b c d  --hash 0-->  part 0: a b c  --hash 1-->  part 0: a      finished
                                                             part 1: b c    finished
                                 part 1: d                                  finished

A store has one file, whatever the number of its parts, and one more for each directory that it falls back to when one
is full. A join that is divided :data:`MAX_DIVISIONS` times has at most ten files open, two for each level.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, Self, TypeVar

import pyarrow as pa

from gpujoin.config import Options
from gpujoin.engine.blob import HEADER_BYTES, decode_message, encode, schema_fingerprint, write_options
from gpujoin.errors import CorruptBlobError, SpillError, pip_install
from gpujoin.model.hostgather import buffer_bytes, one_batch

T = TypeVar("T")

_BUFFERED = 1 << 20
"""Bytes of a part that are gathered before they are written, so that blobs are not small.

Fewer where the budget is small: all parts together take at most a quarter of it."""
_SEALED = 64 << 20
"""Bytes encrypted at a time; AES-GCM takes less than 2 GiB in one call."""
MAX_DIVISIONS = 4
"""Most divisions by hash: 16**4 parts, enough for 128 TiB at the default budget of 2 GiB. A part that is too large even
then has few keys, which no hash divides."""
_STUCK = 0.8
"""A part with more than this share of the divided rows is not divided by hash again."""
_NONCE_BYTES = 12
_TAG_BYTES = 16

_turn = itertools.count()


class SpillCounts(Protocol):
    """Counters that a store adds to."""

    spills: int
    spill_bytes: int


@dataclass(frozen=True, slots=True)
class _Blob:
    """The manifest's entry for one blob."""

    header: bytes
    file: IO[bytes]
    directory: str
    offset: int
    length: int
    nonce: int


class SpillStore:
    """Rows on disk in parts, in files that no other process can see.

    Raises ``SpillError`` if no directory can be written to, or rows are to be encrypted and cannot be.
    """

    def __init__(self, options: Options, metrics: SpillCounts) -> None:
        self.metrics = metrics
        self.write_options = write_options(options.exchange_compression)
        self.buffered = min(_BUFFERED, options.memory_budget // 64)
        self._cipher = _new_cipher() if options.spill_encryption else None
        self._nonces = 0
        directories = spill_directories(options)
        first = (os.getpid() + next(_turn)) % len(directories)
        self._untried = [*directories[first:], *directories[:first]]
        self._problems: list[str] = []
        self._files: list[IO[bytes]] = []
        self._written = 0
        self._directory = ""
        self._open_next(0)

    def new_parts(self, schema: pa.Schema, count: int) -> tuple[SpillPart, ...]:
        """Make empty parts for rows of one schema."""
        self.metrics.spills += count
        return tuple(SpillPart(self, schema) for _ in range(count))

    def close(self) -> None:
        """Free the space; a second call does nothing."""
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, header: bytes, message: pa.Buffer) -> _Blob:
        """Write the message of a blob. If a directory fails, the next one is used.

        Raises ``SpillError`` if no directory is left.
        """
        nonce = self._nonces
        pieces = [memoryview(message)] if self._cipher is None else list(self._encrypted(message))
        length = sum(len(piece) for piece in pieces)
        while True:
            file, offset = self._files[-1], self._written
            try:
                position = offset
                for piece in pieces:
                    position = _write_at(file.fileno(), piece, position)
            except OSError as problem:
                with contextlib.suppress(OSError):
                    os.ftruncate(file.fileno(), offset)
                self._problems.append(f"{self._directory}: {problem.strerror} after {offset:,} bytes")
                self._open_next(length)
                continue
            self._written = position
            self.metrics.spill_bytes += length
            return _Blob(header, file, self._directory, offset, length, nonce)

    def read(self, blob: _Blob, origin: str) -> pa.Buffer:
        """Read the message of a blob.

        Raises ``CorruptBlobError`` if it is truncated, or if it is encrypted and was altered.
        """
        try:
            data = _read_at(blob.file.fileno(), blob.length, blob.offset)
        except OSError as problem:
            raise CorruptBlobError(f"{origin}: cannot be read: {problem.strerror}") from problem
        if len(data) != blob.length:
            raise CorruptBlobError(f"{origin}: {len(data)} of {blob.length} bytes are there; it was truncated")
        return pa.py_buffer(data if self._cipher is None else self._decrypted(data, blob.nonce, origin))

    def _open_next(self, size: int) -> None:
        """Open a file in the next directory that can be written to."""
        while self._untried:
            directory = self._untried.pop(0)
            try:
                Path(directory).mkdir(mode=0o700, exist_ok=True)
                # Unbuffered, so that errors come from the call that causes them.
                file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115  # closed by close()
            except OSError as problem:
                self._problems.append(f"{directory}: {problem.strerror}")
                continue
            self._files.append(file)
            self._directory, self._written = directory, 0
            return
        amount = f"{size:,} bytes" if size else "anything"
        raise SpillError(
            f"spark.gpujoin.spillDir: cannot spill {amount} ({'; '.join(self._problems)}). Free space there, name"
            " directories that can be written to, separated by commas, or raise spark.gpujoin.memoryBudget."
        )

    def _encrypted(self, message: pa.Buffer) -> Iterator[bytes]:
        assert self._cipher is not None
        view = memoryview(message).cast("B")
        for start in range(0, max(1, len(view)), _SEALED):
            nonce = self._nonces.to_bytes(_NONCE_BYTES, "big")
            self._nonces += 1
            yield self._cipher.encrypt(nonce, view[start : start + _SEALED], None)

    def _decrypted(self, data: bytes, nonce: int, origin: str) -> bytes:
        from cryptography.exceptions import InvalidTag

        assert self._cipher is not None
        view, plain = memoryview(data), []
        for start in range(0, len(view), _SEALED + _TAG_BYTES):
            sealed = view[start : start + _SEALED + _TAG_BYTES]
            try:
                plain.append(self._cipher.decrypt(nonce.to_bytes(_NONCE_BYTES, "big"), sealed, None))
            except InvalidTag:
                raise CorruptBlobError(f"{origin}: cannot be decrypted; it was altered") from None
            nonce += 1
        return plain[0] if len(plain) == 1 else b"".join(plain)


class SpillPart:
    """Record batches of one schema on disk: appended, then read any number of times.

    Made by :meth:`SpillStore.new_parts`.

    Attributes
    ----------
    rows, nbytes : int
        Rows appended, and their bytes in memory.
    """

    def __init__(self, store: SpillStore, schema: pa.Schema) -> None:
        self.schema = schema
        self.rows = 0
        self.nbytes = 0
        self._store = store
        self._fingerprint = schema_fingerprint(schema)
        self._blobs: list[_Blob] = []
        self._buffer: list[pa.RecordBatch] = []
        self._buffered = 0

    def append(self, batch: pa.RecordBatch) -> None:
        """Add a batch at the end. Raises ``SpillError`` if it cannot be written."""
        if batch.num_rows == 0:
            return
        size = buffer_bytes(batch)
        self.rows += batch.num_rows
        self.nbytes += size
        self._buffer.append(batch)
        self._buffered += size
        if self._buffered >= self._store.buffered:
            self.flush()

    def flush(self) -> None:
        """Write the batches that were gathered."""
        if not self._buffer:
            return
        batch = one_batch(self._buffer, self.schema)
        self._buffer, self._buffered = [], 0
        blob = encode(batch, self._fingerprint, self._store.write_options)
        header, message = blob.slice(0, HEADER_BYTES).to_pybytes(), blob.slice(HEADER_BYTES)
        self._blobs.append(self._store.write(header, message))

    def read(self) -> Iterator[pa.RecordBatch]:
        """All rows, in the order in which they were appended.

        Raises ``CorruptBlobError`` if the rows are not those that were written; the message names the directory and
        the place.
        """
        self.flush()
        for blob in self._blobs:
            origin = f"spilled rows in {blob.directory} at byte {blob.offset}"
            message = self._store.read(blob, origin)
            yield decode_message(blob.header, message, self._fingerprint, origin)


def divisible(divisions: int, *, stuck: bool) -> bool:
    """Whether rows may be divided by hash once more: not if one key has too many rows."""
    return divisions < MAX_DIVISIONS and not stuck


def part_by_part(
    inputs: Sequence[Sequence[SpillPart]], work: Callable[[Sequence[SpillPart], bool], Iterator[T]]
) -> Iterator[T]:
    """Run work over rows that were divided by hash, part by part. The work may divide a part again.

    Rows of equal keys are in parts of the same number. The work gets the parts of one number, one of each input, and
    whether they are stuck (:func:`divisible`).
    """
    rows = sum(part.rows for part in inputs[0])
    for parts in zip(*inputs, strict=True):
        yield from work(parts, parts[0].rows > _STUCK * rows)


def spill_directories(options: Options) -> Sequence[str]:
    """Directories to spill to: those of the setting, else Spark's local directories in a worker, else the system's."""
    folders = options.spill_dir or os.environ.get("SPARK_LOCAL_DIRS", "")
    return [part for part in (text.strip() for text in folders.split(",")) if part] or [tempfile.gettempdir()]


def _new_cipher() -> Any:
    """AES-GCM with a new key, which is kept nowhere but in this process's memory."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as problem:
        raise SpillError(
            "rows cannot be spilled: they are to be encrypted (spark.io.encryption.enabled or"
            " spark.gpujoin.spillEncryption), and this Python has no package 'cryptography'. Run"
            f" {pip_install('encryption')} in the workers' Python, or raise spark.gpujoin.memoryBudget."
        ) from problem
    return AESGCM(AESGCM.generate_key(256))


def _write_at(descriptor: int, data: memoryview | bytes, position: int) -> int:
    """Write all bytes at a position; returns the position after them."""
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, position)  # less than 2 GiB at a time
        view, position = view[count:], position + count
    return position


def _read_at(descriptor: int, length: int, position: int) -> bytes:
    """Read bytes at a position; fewer if the file ends before."""
    data = os.pread(descriptor, length, position)
    if len(data) == length:
        return data
    parts = [data]
    while data and length > sum(map(len, parts)):  # pread gives less than 2 GiB at a time
        data = os.pread(descriptor, length - sum(map(len, parts)), position + sum(map(len, parts)))
        parts.append(data)
    return b"".join(parts)
