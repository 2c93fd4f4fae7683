"""What workers do of a join of streams, without Spark: which partition a key is in, and the store of chunks."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from gpujoin.config import Options
from gpujoin.engine.streaming.chunks import StateChunk, encode, storage_schema
from gpujoin.errors import CorruptBlobError, StreamStateError
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.model.streams import StreamJoin
from gpujoin.spark.shuffle.blobrows import BlobFormat
from gpujoin.spark.streaming.worker import (
    PLACES,
    KeptChunks,
    LateBy,
    PartitionJoin,
    SparkStore,
    SplitRows,
)
from gpujoin.spark.worker.task import Task

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
    join = StreamJoin(
        JoinSpec(JoinType.INNER, (KeyPair(0, 0, NullEquality.EQUAL),), None, (0,), (0,)), schema, schema
    )
    work = SplitRows(join, Side.RIGHT, tuple(range(PARTITIONS)), Options(), 1 << 20)
    batch = pa.record_batch(
        [pa.array(values, dtype), pa.array(range(len(values)), pa.int32())], schema=schema
    )
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


SCHEMA = pa.schema([("k", pa.int64())])


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


def stored(store: SparkStore, name: str, rows: int = 3) -> StateChunk:
    """Put a chunk into a store."""
    stored = storage_schema(SCHEMA)
    data = encode(pa.RecordBatch.from_arrays([pa.array(range(rows), pa.int64())], schema=stored))
    chunk = StateChunk(name, Side.LEFT, rows, data.size, None, None)
    store.put(chunk, data)
    return chunk


def test_chunks_that_were_written_or_read_are_kept() -> None:
    chunks, kept = Values(), KeptChunks(1 << 20)
    store = SparkStore(chunks, Values(), kept)  # type: ignore[arg-type]
    chunk = stored(store, "a")
    assert store.get(chunk, storage_schema(SCHEMA)).num_rows == 3
    assert chunks.reads == 0
    other = SparkStore(chunks, Values(), KeptChunks(1 << 20))  # type: ignore[arg-type]
    assert other.get(chunk, storage_schema(SCHEMA)) is other.get(chunk, storage_schema(SCHEMA))
    assert chunks.reads == 1
    store.remove(chunk)
    assert kept.get("a") is None


def test_what_is_kept_is_bounded() -> None:
    chunks = Values()
    kept = KeptChunks()
    store = SparkStore(chunks, Values(), kept)  # type: ignore[arg-type]
    first = stored(store, "a")
    kept.limit = 2 * first.nbytes
    second, third = stored(store, "b"), stored(store, "c")
    assert kept.get(first.id) is None
    assert kept.get(second.id) is not None
    assert kept.get(third.id) is not None
    store.get(first, storage_schema(SCHEMA))
    assert chunks.reads == 1
    assert kept.get(second.id) is None or kept.get(third.id) is None


def test_lost_and_altered_chunks_are_refused() -> None:
    chunks = Values()
    chunk = stored(SparkStore(chunks, Values(), KeptChunks(1 << 20)), "a")  # type: ignore[arg-type]
    for position in range(0, len(chunks.data["a"]), 7):
        altered = bytearray(chunks.data["a"])
        altered[position] ^= 4
        damaged = Values()
        damaged.data["a"] = bytes(altered)
        store = SparkStore(damaged, Values(), KeptChunks(1 << 20))  # type: ignore[arg-type]
        with pytest.raises(CorruptBlobError, match="state chunk a"):
            store.get(chunk, storage_schema(SCHEMA))
    with pytest.raises(StreamStateError, match="lacks chunk a"):
        SparkStore(Values(), Values(), KeptChunks(1)).get(chunk, storage_schema(SCHEMA))  # type: ignore[arg-type]


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
        self.saved: tuple[bytes, int] | None = None
        self.chunks, self.marks = Values(), Values()

    def getValueState(self, name: str, schema: str) -> Handle:  # noqa: N802
        assert (name, schema) == ("manifest", "data binary, partitions int")
        return self

    def getMapState(self, name: str, key: str, value: str) -> Values:  # noqa: N802
        return {"chunks": self.chunks, "marks": self.marks}[name]

    def get(self) -> tuple[bytes, int] | None:
        return self.saved

    def update(self, saved: tuple[bytes, int]) -> None:
        self.saved = saved


class Timer:
    def getCurrentWatermarkInMs(self) -> int:  # noqa: N802
        return 0


def push_nothing(handle: Handle, partitions: int) -> None:
    """Run a micro-batch of the first partition without rows."""
    join = StreamJoin(JoinSpec(JoinType.INNER, (KeyPair(0, 0),), None, (0,), (0,)), SCHEMA, SCHEMA)
    work = PartitionJoin(join, tuple(range(partitions)), Options(), LateBy.OWN_WATERMARK)
    work.init(handle)  # type: ignore[arg-type]
    assert list(work.handleInputRows((0,), iter([]), Timer()))  # type: ignore[arg-type]


def test_another_number_of_partitions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpujoin.spark.streaming.worker.TaskContext", Context)
    handle = Handle()
    push_nothing(handle, 2)
    push_nothing(handle, 2)
    with pytest.raises(StreamStateError, match=r"partition 0: the state was begun with 2 partitions.* 3 now"):
        push_nothing(handle, 3)
