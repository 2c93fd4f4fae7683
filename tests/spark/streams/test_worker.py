"""What workers do of a join of streams, without Spark: which partition a key is in, and the store of chunks."""

from __future__ import annotations

import datetime as dt
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gpujoin.cache import Cache
from gpujoin.config import Options
from gpujoin.errors import CorruptBlobError, StreamStateError
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.spark.shuffle.blobrows import BlobFormat
from gpujoin.spark.worker.task import Task
from gpujoin.streams.format import Manifest, StateChunk, encode, storage_schema
from gpujoin.streams.join import StreamJoin
from gpujoin.streams.store import CachedChunk, ChunkFiles, SparkStore, chunk_cache
from gpujoin.streams.worker import PLACES, LateBy, PartitionJoin, SplitRows

PARTITIONS = 7
KEYS: dict[str, tuple[pa.DataType, list[Any], list[int]]] = {
    "bool": (pa.bool_(), [True, False, None], [6, 3, 2]),
    "int8": (pa.int8(), [-128, 0, 127, None], [1, 3, 6, 2]),
    "int32": (pa.int32(), [-(2**31), -1, 0, 1, 2**31 - 1, None], [1, 4, 3, 6, 3, 2]),
    "int64": (pa.int64(), [-(2**63), -1, 0, 1, 2**63 - 1, None], [4, 4, 1, 3, 3, 2]),
    "float": (pa.float32(), [0.0, 1.5, float("inf"), None], [3, 1, 5, 2]),
    "double": (pa.float64(), [0.0, -0.0, 1.5, float("nan"), None], [1, 1, 6, 5, 2]),
    "decimal": (pa.decimal128(20, 2), [Decimal("1.00"), Decimal("-2.50"), Decimal(0), None], [4, 0, 3, 6]),
    "string": (pa.string(), ["", "a", "ab", "longer than eight", "x" * 300, None], [1, 5, 1, 5, 2, 2]),
    "binary": (pa.binary(), [b"", b"\xff", b"abc", None], [1, 4, 6, 2]),
    "date": (pa.date32(), [dt.date(1970, 1, 1), dt.date(2026, 11, 23), None], [3, 2, 2]),
    "timestamp": (pa.timestamp("us", "UTC"), [dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC), None], [6, 2]),
    "struct": (pa.struct([("x", pa.int32())]), [{"x": 1}, {"x": None}, None], [2, 0, 0]),
}


def split(dtype: pa.DataType, values: list[Any]) -> list[int]:
    """Give the partition of each value. Null equals null, as in all joins of streams that are read from Spark."""
    schema = pa.schema([("k", dtype), ("n", pa.int32())])
    join = StreamJoin(JoinSpec(JoinType.INNER, (KeyPair(0, 0, NullEquality.EQUAL),), None, (0,), (0,)), schema, schema)
    work = SplitRows(join, Side.RIGHT, tuple(range(PARTITIONS)), Options(), 1 << 20)
    batch = pa.record_batch([pa.array(values, dtype), pa.array(range(len(values)), pa.int32())], schema=schema)
    found = {}
    form = BlobFormat(schema, place=PLACES[Side.RIGHT])
    for blobs in work.run([batch], Task()):
        for label, data in zip(blobs.column(0).to_pylist(), blobs.column(2), strict=True):
            for number in form.decode(data.as_buffer(), label).column(1).to_pylist():
                found[number] = label
    return [found[number] for number in range(len(values))]


@pytest.mark.parametrize("name", KEYS)
def test_keys_stay_in_their_partitions(name: str) -> None:
    """The state of a partition is in checkpoints: another release must find the same keys in it."""
    dtype, values, partitions = KEYS[name]
    assert split(dtype, values) == partitions


def test_zeros_and_types_of_equal_keys_are_in_one_partition() -> None:
    positive, negative = split(pa.float64(), [0.0, -0.0])
    assert positive == negative


STORED = storage_schema(pa.schema([("k", pa.int64())]))


class Values:
    """A map state in memory."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.reads = 0

    def getValue(self, key: tuple[str]) -> tuple[bytes] | None:  # noqa: N802
        self.reads += 1
        return (self.data[key[0]],) if key[0] in self.data else None

    def updateValue(self, key: tuple[str], value: tuple[bytes]) -> None:  # noqa: N802
        self.data[key[0]] = value[0]

    def removeKey(self, key: tuple[str]) -> None:  # noqa: N802
        del self.data[key[0]]


def store_of(state: Values, kept: Cache[str, CachedChunk], files: ChunkFiles | None = None) -> SparkStore:
    return SparkStore(state, kept, files)  # type: ignore[arg-type]


def stored(store: SparkStore, name: str, rows: int = 3) -> StateChunk:
    """Put a chunk into a store."""
    batch = pa.RecordBatch.from_arrays([pa.array(range(rows), pa.int64())], schema=STORED)
    data = encode(batch)
    chunk = StateChunk(name, Side.LEFT, rows, batch.nbytes, data.size, None, None)
    store.put(chunk, data, batch)
    return chunk


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChunkFiles:
    """Files of partition 3 of a query."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'a'},{tmp_path / 'b'}")
    made = ChunkFiles.for_partition("query", 3, Options())
    assert made is not None
    assert made.folder == tmp_path / "b" / "gpujoin-streams" / "query" / "3"
    assert (tmp_path / "b" / "gpujoin-streams").stat().st_mode & 0o777 == 0o700
    return made


def test_chunks_that_were_written_or_read_are_kept() -> None:
    state, kept = Values(), chunk_cache(1 << 20)
    store = store_of(state, kept)
    chunk = stored(store, "a")
    assert store.get(chunk, STORED).num_rows == 3
    assert state.reads == 0
    other = store_of(state, chunk_cache(1 << 20))
    assert other.get(chunk, STORED) is other.get(chunk, STORED)
    assert state.reads == 1
    store.remove(chunk)
    assert kept.get("a") is None


def test_what_is_kept_in_memory_is_bounded() -> None:
    state, kept = Values(), chunk_cache()
    store = store_of(state, kept)
    first = stored(store, "a")
    kept.limit = 2 * first.nbytes
    second, third = stored(store, "b"), stored(store, "c")
    assert kept.get(first.id) is None
    assert kept.get(second.id) is not None
    assert kept.get(third.id) is not None
    store.get(first, STORED)
    assert state.reads == 1
    assert kept.get(second.id) is None or kept.get(third.id) is None


def test_workers_of_an_executor_share_chunks(files: ChunkFiles) -> None:
    state = Values()
    store = store_of(state, chunk_cache(), files)
    first, second = stored(store, "a", 5), stored(store, "b")
    kept = chunk_cache()
    other = store_of(state, kept, files)
    assert other.get(first, STORED).column(0).to_pylist() == [0, 1, 2, 3, 4]
    assert state.reads == 0
    other.get(second, STORED)
    manifest = Manifest("", chunks=(second,))
    store.finish(manifest, 7)
    assert [entry.name for entry in files.folder.iterdir()] == ["b"]
    assert kept.get("a") is not None
    other.finish(manifest, 7)
    assert kept.get("a") is None
    assert kept.get("b") is not None


@pytest.mark.parametrize("damage", ["altered", "cut", "removed", "foreign"])
def test_files_that_were_altered_are_read_from_the_state(files: ChunkFiles, damage: str) -> None:
    state = Values()
    chunk = stored(store_of(state, chunk_cache(), files), "a")
    path = files.path("a")
    data = path.read_bytes()
    if damage == "altered":
        path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    elif damage == "cut":
        path.write_bytes(data[:50])
    elif damage == "removed":
        path.unlink()
    else:
        files.write("a", pa.record_batch({"other": [1.5]}))
    again = store_of(state, chunk_cache(), files)
    assert again.get(chunk, STORED).column(0).to_pylist() == [0, 1, 2]
    assert state.reads == 1
    assert path.read_bytes() == data


def test_a_folder_that_cannot_be_written_is_done_without(files: ChunkFiles) -> None:
    state, kept = Values(), chunk_cache(1 << 20)
    files.folder.rmdir()
    store = store_of(state, kept, files)
    chunk = stored(store, "a")
    assert not files.folder.exists()
    assert store.get(chunk, STORED).num_rows == 3
    assert state.reads == 0
    assert kept.get("a") is not None
    store.finish(Manifest("", chunks=(chunk,)), 1)
    assert kept.get("a") is not None


def test_rows_that_must_not_be_on_disk_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    assert ChunkFiles.for_partition("query", 0, Options(spill_encryption=True)) is None
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "")
    assert ChunkFiles.for_partition("query", 0, Options()) is None
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "missing"))
    assert ChunkFiles.for_partition("query", 0, Options()) is None
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "file"))
    assert ChunkFiles.for_partition("query", 0, Options()) is None
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_files_of_queries_that_ended_are_removed(files: ChunkFiles) -> None:
    stored(store_of(Values(), chunk_cache(), files), "a")
    os.utime(files.folder.parent, (0, 0))
    other = ChunkFiles.for_partition("other", 1, Options())
    assert other is not None
    assert other.folder.exists()
    assert not files.folder.exists()


def test_lost_and_altered_chunks_are_refused() -> None:
    state = Values()
    chunk = stored(store_of(state, chunk_cache(1 << 20)), "a")
    for position in range(0, len(state.data["a"]), 7):
        altered = bytearray(state.data["a"])
        altered[position] ^= 4
        damaged = Values()
        damaged.data["a"] = bytes(altered)
        with pytest.raises(CorruptBlobError, match="state chunk a"):
            store_of(damaged, chunk_cache(1 << 20)).get(chunk, STORED)
    with pytest.raises(StreamStateError, match="lacks chunk a"):
        store_of(Values(), chunk_cache(1)).get(chunk, STORED)


class Context:
    """A task's context: that of a union or a coalesce numbers its tasks otherwise than the join its partitions."""

    @staticmethod
    def get() -> Context:
        return Context()

    def partitionId(self) -> int:  # noqa: N802
        return 7

    def getLocalProperty(self, name: str) -> str:  # noqa: N802
        return name


class Handle:
    """State of a partition in memory."""

    def __init__(self) -> None:
        self.state = Values()

    def getMapState(self, name: str, key: str, value: str) -> Values:  # noqa: N802
        assert (name, key, value) == ("state", "name string", "data binary")
        return self.state


class Timer:
    def getCurrentWatermarkInMs(self) -> int:  # noqa: N802
        return 0


def push_nothing(handle: Handle, partitions: int) -> None:
    """Run a micro-batch of the first partition without rows."""
    schema = pa.schema([("k", pa.int64())])
    join = StreamJoin(JoinSpec(JoinType.INNER, (KeyPair(0, 0),), None, (0,), (0,)), schema, schema)
    work = PartitionJoin(join, tuple(range(partitions)), Options(), LateBy.OWN_WATERMARK)
    work.init(handle)  # type: ignore[arg-type]
    assert list(work.handleInputRows((0,), iter([]), Timer()))  # type: ignore[arg-type]


def test_another_number_of_partitions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpujoin.streams.worker.TaskContext", Context)
    handle = Handle()
    push_nothing(handle, 2)
    push_nothing(handle, 2)
    with pytest.raises(StreamStateError, match=r"partition 0: the state was begun with 2 partitions.* 3 now"):
        push_nothing(handle, 3)
