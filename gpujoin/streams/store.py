"""Stores the chunks of a state in Spark's state store, and in files shared by an executor's workers.

A partition may come to another worker in each micro-batch. What one worker has written or read the others need not ask
Spark's state store for, and it takes memory once, however many workers map it. A chunk never changes, and its
identifier stands for its content, so that files need no lock::

    LOCAL_DIR/gpujoin-streams/QUERY/PARTITION/0000000007-00000-8f1d…

The folder is Spark's local one, which ends with the executor. Nothing depends on the files: one that is missing or was
altered is read from the state again. Where there is no such folder, it is full, or rows must not be on disk as they are
(``spark.io.encryption.enabled``), a worker keeps chunks in its own memory, within a limit.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from gpujoin.cache import Cache
from gpujoin.config import Compression, Options
from gpujoin.engine import blob
from gpujoin.errors import CorruptBlobError, StreamStateError
from gpujoin.streams.format import Manifest, StateChunk, decode, missing

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import MapState

_FOLDER = "gpujoin-streams"
_LOCAL_DIRS = "SPARK_LOCAL_DIRS"
"""Names the folders of an executor's block manager to its workers."""
_COUNT = struct.Struct("<I")
"""The number of partitions, before the manifest."""
_UNUSED_SECONDS = 3600.0
"""After this time without a micro-batch the files of a query are removed."""


class ChunkFiles:
    """Chunks of one partition of a query in files, in a folder of the partition, in that of its query."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def for_partition(cls, query: str, partition: int, options: Options) -> ChunkFiles | None:
        """Give the files of a partition; ``None`` if its chunks must not, or cannot, be in files."""
        local = [part for part in os.environ.get(_LOCAL_DIRS, "").split(",") if part]
        if not local or options.spill_encryption:
            return None
        files = cls(Path(local[partition % len(local)]) / _FOLDER / query / str(partition))
        try:
            if not files.folder.exists():
                files._remove_unused()
                files._root.mkdir(mode=0o700, exist_ok=True)
                files.folder.mkdir(parents=True, exist_ok=True)
            os.utime(files.folder.parent)
        except OSError:
            return None
        return files

    @property
    def _root(self) -> Path:
        """Folder of all queries."""
        return self.folder.parent.parent

    def path(self, name: str) -> Path:
        """The file of a chunk."""
        return self.folder / name

    def write(self, name: str, rows: pa.RecordBatch) -> bool:
        """Write a chunk, and tell whether that was possible."""
        options = blob.write_options(Compression.NONE)
        data = blob.encode(rows, blob.schema_fingerprint(rows.schema), options)
        unfinished = self.folder / f".{name}.{os.getpid()}"
        try:
            with open(unfinished, "wb", opener=_private) as file:  # Path.open takes no opener
                file.write(data)
            unfinished.replace(self.path(name))
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            return False
        return True

    def read(self, name: str, schema: pa.Schema) -> pa.RecordBatch | None:
        """Rows of a chunk in mapped memory; ``None`` if there is no file of it, or it was altered."""
        try:
            with pa.memory_map(str(self.path(name))) as file:
                data = file.read_buffer()
            rows, _ = blob.decode(data, blob.schema_fingerprint(schema), name)
        except (OSError, CorruptBlobError):
            return None
        return rows

    def keep_only(self, names: Collection[str]) -> None:
        """Remove all chunks but some. What others have mapped stays until they let go of it."""
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name not in names and not entry.name.startswith("."):
                    with contextlib.suppress(OSError):
                        Path(entry.path).unlink()

    def _remove_unused(self) -> None:
        """Remove the files of queries that had no micro-batch for long."""
        oldest = time.time() - _UNUSED_SECONDS
        with contextlib.suppress(OSError), os.scandir(self._root) as queries:
            for query in queries:
                if query.stat().st_mtime < oldest:
                    shutil.rmtree(query.path, ignore_errors=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@dataclass(frozen=True)
class CachedChunk:
    """A chunk in a process's own memory, or in a mapped file."""

    rows: pa.RecordBatch
    nbytes: int
    """Bytes of the process's own memory; 0 for a mapped file."""
    file: Path | None = None


def chunk_cache(limit: int = 0) -> Cache[str, CachedChunk]:
    """Make a cache of chunks by their identifiers, of which so many bytes may be in the process's own memory."""
    return Cache(limit, lambda chunk: chunk.nbytes)


class SparkStore:
    """Chunks in Spark's state store, cached once this host has read or written them.

    A chunk never changes, and its identifier stands for its content: what is at hand needs no check.

    Parameters
    ----------
    state : MapState
        Bytes by name: chunks by their identifiers, marks, and the manifest.
    cache : Cache
        What this process has at hand.
    files : ChunkFiles or None
        What the workers of the executor share.
    """

    _MANIFEST = "manifest".ljust(64, ".")
    """Longer than all other names, which so are before it in Spark's order of keys. As long as new keys come after old
    ones RocksDB need not write old files again."""

    def __init__(self, state: MapState, cache: Cache[str, CachedChunk], files: ChunkFiles | None) -> None:
        self._state = state
        self._cache = cache
        self._files = files

    def manifest(self, partitions: int) -> bytes | None:
        """What :meth:`finish` has stored last, of a query with as many partitions; ``None``: nothing yet.

        Raises
        ------
        StreamStateError
            If the query had another number of partitions then.
        """
        saved = self._bytes_of(self._MANIFEST)
        if saved is None:
            return None
        begun = _COUNT.unpack_from(saved)[0]
        if begun != partitions:
            raise StreamStateError(
                f"the state was begun with {begun} partitions, and the query has {partitions} now"
                " (spark.sql.shuffle.partitions): its keys are in other partitions; start from a new checkpoint"
            )
        return saved[_COUNT.size :]

    def finish(self, manifest: Manifest, partitions: int) -> None:
        """Store the manifest of a micro-batch, and let go of what it does not name."""
        self._state.updateValue((self._MANIFEST,), (_COUNT.pack(partitions) + manifest.to_bytes(),))
        if self._files is not None:
            self._files.keep_only({chunk.id for chunk in manifest.chunks})
        # Mapped files that were removed, here or by another worker, take space until they are let go of.
        for name, chunk in self._cache.items():
            if chunk.file is not None and not chunk.file.exists():
                self._cache.pop(name)

    def get(self, chunk: StateChunk, schema: pa.Schema) -> pa.RecordBatch:
        """Rows of a chunk.

        Raises
        ------
        StreamStateError
            If there is none of that identifier.
        CorruptBlobError
            If it was altered.
        """
        cached = self._cache.get(chunk.id)
        rows = self._mapped(chunk, schema) if cached is None else cached.rows
        if rows is None:
            stored = self._bytes_of(chunk.id)
            if stored is None:
                raise missing(chunk)
            rows = self._keep(chunk, decode(stored, schema, chunk.id))
        return rows

    def put(self, chunk: StateChunk, data: pa.Buffer, rows: pa.RecordBatch) -> None:
        """Store a new chunk."""
        self._state.updateValue((chunk.id,), (data.to_pybytes(),))
        self._keep(chunk, rows)

    def get_marks(self, chunk: StateChunk) -> bytes | None:
        """Marks that were stored last for a chunk."""
        return self._bytes_of(self._marks(chunk))

    def put_marks(self, chunk: StateChunk, bits: bytes) -> None:
        """Store the marks of a chunk."""
        self._state.updateValue((self._marks(chunk),), (bits,))

    def remove(self, chunk: StateChunk) -> None:
        """Remove a chunk and its marks."""
        self._state.removeKey((chunk.id,))
        if chunk.matched:
            self._state.removeKey((self._marks(chunk),))
        self._cache.pop(chunk.id)

    @staticmethod
    def _marks(chunk: StateChunk) -> str:
        return f"{chunk.id} marks"

    def _bytes_of(self, name: str) -> bytes | None:
        stored = self._state.getValue((name,))
        return None if stored is None else bytes(stored[0])

    def _keep(self, chunk: StateChunk, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Cache the rows of a chunk, in a file if possible; gives the cached ones."""
        if self._files is not None and self._files.write(chunk.id, rows):
            mapped = self._mapped(chunk, rows.schema)
            if mapped is not None:
                return mapped
        self._cache.put(chunk.id, CachedChunk(rows, chunk.nbytes))
        return rows

    def _mapped(self, chunk: StateChunk, schema: pa.Schema) -> pa.RecordBatch | None:
        """Cache the rows of a chunk from its file; ``None`` if there is no such file."""
        if self._files is None:
            return None
        rows = self._files.read(chunk.id, schema)
        if rows is not None:
            self._cache.put(chunk.id, CachedChunk(rows, 0, self._files.path(chunk.id)))
        return rows
