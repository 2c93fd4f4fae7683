"""Broadcasting a build side: collected once as Arrow blobs, one file per executor, one hash table per worker.

The build side is computed when the join is made, not when its result is first used. The public API leaves no other way
that keeps one copy per host: a worker function is pickled when it is attached to a DataFrame, so what it carries must
exist by then. The alternative, to attach the blobs to one row of each partition by a broadcast join of Spark's own,
would be lazy, but passes the whole build side through the JVM and a socket once per task.

On an executor Spark itself keeps a broadcast value of Python's in a file of its local directory, and removes it with
the broadcast or the executor. Workers map that very file: nothing is copied, and nothing of ours can be left behind. On
the driver PySpark keeps one more file of each value in the application's temporary directory until that ends: plans
may outlive every Python object that knows of it, and nothing says when the last of them is gone.
"""

from __future__ import annotations

import pickle
import struct
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gpujoin.engine import blob as blobs
from gpujoin.engine.join.derive import Rest, derive
from gpujoin.engine.join.hash_join import HashJoin
from gpujoin.errors import CorruptBlobError, GpuJoinError, JoinSpecError
from gpujoin.model.jointype import JoinType, Side

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpujoin.spark.blobrows import BlobFormat

MAX_PAYLOAD_BYTES = 8 << 30
"""Spark's own limit for a broadcast table."""

_MAGIC = b"GPJBCST1"
_HEAD = struct.Struct("<8sqq40x")  # mark, blobs, length of the whole
_ALIGNMENT = 64
_SEARCHED = 4096


def can_broadcast(join_type: JoinType, side: Side) -> bool:
    """Whether a side may be broadcast: its rows must reach the result only through rows of the other side."""
    try:
        return derive(join_type, side).build_rest is Rest.NOTHING
    except JoinSpecError:
        return False


@dataclass(frozen=True, slots=True)
class Payload:
    """A build side, ready to be sent.

    Attributes
    ----------
    data : bytes
        Head and blobs, each at a multiple of 64 bytes once pickled by Spark.
    key : str
        Unique; names the hash table in a worker's cache.
    rows, blobs : int
        What it holds.
    """

    data: bytes
    key: str
    rows: int
    blobs: int


def make_payload(values: Iterable[pa.Buffer]) -> Payload:
    """Put collected blobs together.

    Parameters
    ----------
    values : iterable of Buffer
        Blobs of the build side, in any order.

    Raises
    ------
    GpuJoinError
        If they are too large for a broadcast.
    """
    found = list(values)
    length = _HEAD.size + sum(_aligned(value.size) for value in found)
    if length > MAX_PAYLOAD_BYTES:
        raise GpuJoinError(
            f"the build side has {length} bytes, more than the {MAX_PAYLOAD_BYTES} that can be broadcast. "
            'Use strategy="shuffle".'
        )
    shift = -_pickle_header(length) % _ALIGNMENT
    data = bytearray(shift + length)
    _HEAD.pack_into(data, shift, _MAGIC, len(found), length)
    position = shift + _HEAD.size
    rows = 0
    for value in found:
        data[position : position + value.size] = memoryview(value)
        position += _aligned(value.size)
        rows += blobs.rows_of(value)
    return Payload(bytes(data), uuid.uuid4().hex, rows, len(found))


def _aligned(size: int) -> int:
    return size + -size % _ALIGNMENT


def _pickle_header(length: int) -> int:
    """Bytes that pickle puts before a long bytes value: opcodes and its length, in 4 or 8 bytes."""
    sample = b"\x01" * (1 << 17)
    header = pickle.dumps(sample, pickle.HIGHEST_PROTOCOL).index(sample[:_ALIGNMENT])
    return header if length < 1 << 32 else header + 4


def open_payload(source: Any) -> pa.Buffer:
    """The payload in a worker, mapped from Spark's file where there is one.

    Parameters
    ----------
    source : pyspark.Broadcast or bytes
        What the worker function carries.

    Raises
    ------
    CorruptBlobError
        If it is not the whole of a payload.
    """
    if isinstance(source, bytes):
        return _trimmed(pa.py_buffer(source), "the join's closure")
    path = getattr(source, "_path", None)
    if path is None or hasattr(source, "_value"):  # encrypted broadcasts come by a socket
        return _trimmed(pa.py_buffer(source.value), "a broadcast")
    return _trimmed(pa.memory_map(str(Path(path))).read_buffer(), f"broadcast file {path}")


def _trimmed(buffer: pa.Buffer, origin: str) -> pa.Buffer:
    start = bytes(buffer.slice(0, min(_SEARCHED, buffer.size))).find(_MAGIC)
    if start < 0 or buffer.size - start < _HEAD.size:
        raise CorruptBlobError(f"{origin}: does not hold a build side; it was altered or truncated")
    _, _, length = _HEAD.unpack_from(buffer, start)
    if not _HEAD.size <= length <= buffer.size - start:
        raise CorruptBlobError(
            f"{origin}: {buffer.size - start} of {length} bytes are there; it was truncated"
        )
    return buffer.slice(start, length)


def read_payload(buffer: pa.Buffer, form: BlobFormat) -> Iterator[pa.RecordBatch]:
    """The build rows, sharing the buffer's memory.

    Raises
    ------
    CorruptBlobError
        If a blob is not what was written.
    """
    _, count, length = _HEAD.unpack_from(buffer)
    position = _HEAD.size
    for number in range(count):
        batch, used = blobs.decode(
            buffer.slice(position), form.fingerprint(0), f"broadcast blob {number} of {count}"
        )
        yield batch
        position += _aligned(used)
    if position != length:
        raise CorruptBlobError(f"broadcast: {count} blobs end at byte {position} of {length}; it was altered")


class BuildCache:
    """Hash tables of this process, kept from task to task.

    Parameters
    ----------
    limit : int
        Bytes that tables not in use may hold; the least recently used go first.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Condition()
        self._entries: OrderedDict[Any, _Entry] = OrderedDict()

    @contextmanager
    def borrow(self, key: Any, make: Callable[[], HashJoin]) -> Iterator[HashJoin]:
        """A built join, made by the first who asks, shared by all who ask while it is kept.

        Parameters
        ----------
        key : hashable
            Names the build side, the backend and the device.
        make : callable
            Makes and builds it.
        """
        entry = self._take(key, make)
        try:
            yield entry.join
        finally:
            with self._lock:
                entry.users -= 1
                self._trim()

    def _take(self, key: Any, make: Callable[[], HashJoin]) -> _Entry:
        with self._lock:
            while key in self._entries and self._entries[key].pending:
                self._lock.wait()
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
                entry.users += 1
                return entry
            entry = self._entries[key] = _Entry()
        try:
            entry.made = make()
        except BaseException:
            with self._lock:
                del self._entries[key]
                self._lock.notify_all()
            raise
        with self._lock:
            entry.pending = False
            self._lock.notify_all()
        return entry

    def drop(self, matches: Callable[[Any], bool]) -> None:
        """Let go of tables not in use whose key matches."""
        with self._lock:
            for key in [k for k, e in self._entries.items() if e.users == 0 and matches(k)]:
                self._entries.pop(key).join.close()

    def keys(self) -> tuple[Any, ...]:
        """What is kept, least recently used first."""
        with self._lock:
            return tuple(self._entries)

    def _trim(self) -> None:
        def held() -> int:
            return sum(entry.join.built_bytes for entry in self._entries.values() if not entry.pending)

        for key, entry in list(self._entries.items()):
            if entry.users == 0 and (held() > self.limit or entry.join.spilled):
                self._entries.pop(key).join.close()


class _Entry:
    def __init__(self) -> None:
        self.made: HashJoin | None = None
        self.users = 1
        self.pending = True

    @property
    def join(self) -> HashJoin:
        if self.made is None:
            raise GpuJoinError("a hash table was used before it was built")
        return self.made
