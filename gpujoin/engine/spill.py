"""Spilling to disk: files of checked Arrow blobs in a directory that is removed whatever happens."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pyarrow as pa

from gpujoin.config import Options
from gpujoin.engine.blob import HEADER_BYTES, decode, encode, schema_fingerprint, write_options
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import ConfigurationError, CorruptBlobError

_PREFIX = "gpujoin-spill-"
_UNNOTICED = "gpujoin-new-"
_LOCK = "lock"


class SpillDirectory:
    """A private directory for spill files.

    It is removed by :meth:`close`, when the object is collected, and at interpreter exit. What a killed process left
    behind is removed by the next one on the host that spills to the same place.

    Parameters
    ----------
    options : Options
        ``spill_dir``, ``exchange_compression``.
    metrics : JoinMetrics
        Counts spilled partitions and bytes.

    Raises
    ------
    ConfigurationError
        If there can be no such directory.
    """

    def __init__(self, options: Options, metrics: JoinMetrics) -> None:
        self.options = options
        self.metrics = metrics
        parent = options.spill_dir or _default_parent()
        try:
            Path(parent).mkdir(exist_ok=True)
            _remove_abandoned(Path(parent))
            # Locked under a name that nobody looks for, so that no other process takes it for abandoned.
            unnoticed = Path(tempfile.mkdtemp(prefix=_UNNOTICED, dir=parent))
        except OSError as problem:
            raise ConfigurationError(
                f"spark.gpujoin.spillDir: cannot spill to {parent!r}: {problem.strerror}; name a writable directory"
                " whose parent exists"
            ) from problem
        self._lock = (unnoticed / _LOCK).open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = unnoticed.rename(unnoticed.with_name(_PREFIX + unnoticed.name.removeprefix(_UNNOTICED)))
        self._finalizer = weakref.finalize(self, _remove_if_owner, self.path, os.getpid())
        self._files = 0

    def new_file(self, schema: pa.Schema) -> SpillFile:
        """A new, empty spill file for batches of one schema."""
        self._files += 1
        self.metrics.spills += 1
        return SpillFile(self, self.path / f"{self._files:05d}.arrow", schema)

    def close(self) -> None:
        """Remove the directory and everything in it."""
        self._finalizer()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SpillFile:
    """Record batches on disk: appended, then read any number of times.

    Attributes
    ----------
    rows, nbytes : int
        What was appended, in rows and bytes of memory.
    """

    def __init__(self, directory: SpillDirectory, path: Path, schema: pa.Schema) -> None:
        self.directory = directory
        self.path = path
        self.schema = schema
        self.rows = 0
        self.nbytes = 0
        self._length = 0
        self._fingerprint = schema_fingerprint(schema)
        self._options = write_options(directory.options.exchange_compression)

    def append(self, batch: pa.RecordBatch) -> None:
        """Write a batch at the end."""
        if batch.num_rows == 0:
            return
        header, message = encode(batch, self._fingerprint, self._options)
        with self.path.open("ab") as file:
            file.write(header)
            file.write(message)
        self.rows += batch.num_rows
        self.nbytes += batch.nbytes
        self._length += len(header) + message.size
        self.directory.metrics.spill_bytes += len(header) + message.size

    def read(self) -> Iterator[pa.RecordBatch]:
        """All batches in order, memory-mapped.

        Raises
        ------
        CorruptBlobError
            If the file is not what was written; the message names it.
        """
        if self.rows == 0:
            return
        try:
            found = self.path.stat().st_size
        except OSError as problem:
            raise CorruptBlobError(
                f"spill file {self.path}: {problem.strerror}; was it removed?"
            ) from problem
        if found != self._length:
            raise CorruptBlobError(f"spill file {self.path}: {found} bytes where {self._length} were written")
        with pa.memory_map(str(self.path)) as file:
            position = 0
            while position < self._length:
                header = file.read_buffer(HEADER_BYTES)
                length = int.from_bytes(memoryview(header)[-8:], "little", signed=True)
                file.seek(position)
                blob = file.read_buffer(max(0, min(HEADER_BYTES + length, self._length - position)))
                batch, used = decode(blob, self._fingerprint, f"spill file {self.path} at byte {position}")
                yield batch
                position += used
                file.seek(position)

    def remove(self) -> None:
        """Delete the file now instead of with its directory."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


def _default_parent() -> str:
    """Spark's local directory in a Spark worker, else the system's temporary one."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()


def _remove_if_owner(path: Path, pid: int) -> None:
    """Remove a directory, but not from a forked child that inherited the finalizer."""
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    """Remove directories whose owner is gone: the kernel drops a dead process's lock, in any PID namespace."""
    for path in parent.glob(f"{_PREFIX}*"):
        try:
            with (path / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:  # locked by a live owner, being made, or just removed
            continue
