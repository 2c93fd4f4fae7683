"""Chunks of states that the workers of an executor share: files, which each worker maps into its memory.

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
import time
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from gpujoin.config import Compression, Options
from gpujoin.engine import blob
from gpujoin.errors import CorruptBlobError

_FOLDER = "gpujoin-streams"
_LOCAL_DIRS = "SPARK_LOCAL_DIRS"
"""Names the folders of an executor's block manager to its workers."""
_UNUSED_SECONDS = 3600.0
"""After this time without a micro-batch the files of a query are removed."""


class ChunkFiles:
    """Chunks of one partition of a query in files.

    Parameters
    ----------
    folder : Path
        Folder of the partition, in that of its query.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, query: str, partition: int, options: Options) -> ChunkFiles | None:
        """Those of a partition; ``None`` if its chunks must not, or cannot, be in files."""
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
class _Kept:
    rows: pa.RecordBatch
    nbytes: int
    """Bytes of this process's memory; 0 for a mapped file."""
    file: Path | None


class KeptChunks:
    """Chunks that a process has at hand by their identifiers.

    Those in its own memory are let go of beyond a number of bytes, the ones used last stay longest.

    Attributes
    ----------
    limit : int
        Most bytes of its own memory.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self._nbytes = 0
        self._chunks: OrderedDict[str, _Kept] = OrderedDict()

    def get(self, name: str) -> pa.RecordBatch | None:
        """Rows of a chunk."""
        if name not in self._chunks:
            return None
        self._chunks.move_to_end(name)
        return self._chunks[name].rows

    def put(self, name: str, rows: pa.RecordBatch, nbytes: int, file: Path | None = None) -> None:
        """Keep a chunk, which takes so many bytes of memory; 0 for that of a mapped file."""
        self.forget(name)
        kept = _Kept(rows, nbytes, file)
        self._chunks[name] = kept
        self._nbytes += kept.nbytes
        while self._nbytes > self.limit:
            oldest = next((n for n, c in self._chunks.items() if c.nbytes and n != name), None)
            if oldest is None:
                break
            self.forget(oldest)

    def forget(self, name: str) -> None:
        """Keep a chunk no longer."""
        kept = self._chunks.pop(name, None)
        if kept is not None:
            self._nbytes -= kept.nbytes

    def forget_removed(self) -> None:
        """Let go of mapped files that were removed, here or by another worker: they take space until then."""
        for name, kept in list(self._chunks.items()):
            if kept.file is not None and not kept.file.exists():
                self.forget(name)
