"""The columnar exchange: splitting, checking and reading blobs, without Spark and through Spark's shuffle."""

from __future__ import annotations

import datetime as dt
import decimal
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.config import Compression
from gpujoin.errors import CorruptBlobError, GpuJoinError
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.model.stages import NullKeys, null_keys_of
from gpujoin.spark import blobrows
from gpujoin.spark.blobrows import (
    BLOB_SCHEMA,
    BlobCounts,
    BlobFormat,
    BlobPacker,
    BlobReader,
    Role,
)
from gpujoin.spark.exchange import Splitter
from gpujoin.spark.partitioning import hashed_labels, murmur3
from gpujoin.spark.scattering import conform

LEFT = pa.schema([pa.field("l0", pa.int64()), pa.field("l1", pa.string())])
RIGHT = pa.schema([pa.field("r0", pa.int32()), pa.field("r1", pa.float64())])


def spec(how: JoinType, nulls: NullEquality = NullEquality.UNEQUAL) -> JoinSpec:
    right = () if how.left_rows_only else (0, 1)
    return JoinSpec(how, (KeyPair(0, 0, nulls),), left_output=(0, 1), right_output=right)


def splitter(
    how: JoinType, side: Side, partitions: int, *, blob_bytes: int = 1 << 12, salt: int = 0
) -> Splitter:
    role = Role.BUILD if side is Side.RIGHT else Role.STREAM
    form = BlobFormat(LEFT if side is Side.LEFT else RIGHT, role)
    return Splitter(form, spec(how), LEFT, RIGHT, side, tuple(range(partitions)), blob_bytes, salt)


def left_rows(rng: np.random.Generator, rows: int, nulls: float = 0.2) -> pa.RecordBatch:
    keys = pa.array(rng.integers(-50, 50, rows), pa.int64(), mask=rng.random(rows) < nulls)
    words = pa.array([None if n % 7 == 0 else "ß" * int(n % 5) for n in range(rows)], pa.string())
    return pa.RecordBatch.from_arrays([keys, words], schema=LEFT)


def right_rows(rng: np.random.Generator, rows: int, nulls: float = 0.2) -> pa.RecordBatch:
    keys = pa.array(rng.integers(-50, 50, rows).astype(np.int32), mask=rng.random(rows) < nulls)
    return pa.RecordBatch.from_arrays([keys, pa.array(rng.random(rows))], schema=RIGHT)


def shuffled(blob_rows: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """What Spark does: all rows, sorted by partition and role."""
    if not blob_rows:
        return []
    table = pa.Table.from_batches(blob_rows).sort_by([("p", "ascending"), ("side", "ascending")])
    return list(table.to_batches(max_chunksize=3))


def rows_of(batch: pa.RecordBatch) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row.values()) for row in batch.to_pylist())


@pytest.mark.parametrize(
    "how",
    [j for j in JoinType if j is not JoinType.CROSS and not j.null_aware],
    ids=lambda j: j.value,
)
@pytest.mark.parametrize("partitions", [1, 2, 7, 200])
def test_rows_arrive_where_their_keys_meet(how: JoinType, partitions: int, rng: np.random.Generator) -> None:
    left, right = left_rows(rng, 999), right_rows(rng, 501)
    made = [
        *splitter(how, Side.LEFT, partitions).split(left.slice(start, 97) for start in range(0, 999, 97)),
        *splitter(how, Side.RIGHT, partitions).split([right]),
    ]
    assert all(batch.schema == BLOB_SCHEMA for batch in made)
    reader = BlobReader(shuffled(made), BlobFormat(RIGHT, Role.BUILD), BlobFormat(LEFT, Role.STREAM))
    home: dict[object, int] = {}
    found: dict[Side, Counter[tuple[object, ...]]] = {side: Counter() for side in Side}
    for label, build, stream in reader.partitions():
        for side, batches in ((Side.RIGHT, build), (Side.LEFT, stream)):
            for batch in batches:
                found[side] += rows_of(batch)
                for key in batch.column(0).to_pylist():
                    if key is not None:
                        assert home.setdefault(key, label) == label, f"key {key} in two partitions"
    for side, rows in ((Side.LEFT, left), (Side.RIGHT, right)):
        expected = rows_of(rows)
        if partitions > 1 and null_keys_of(how, side) is NullKeys.DROP:
            expected = Counter({row: n for row, n in expected.items() if row[0] is not None})
        elif partitions == 1 and null_keys_of(how, side) is NullKeys.DROP:
            assert sum(found[side].values()) < rows.num_rows, "null keys were not dropped"
            expected = Counter({row: n for row, n in expected.items() if row[0] is not None})
        assert found[side] == expected
    if partitions == 7:
        assert len(set(home.values())) == 7


def test_null_keys_that_matter() -> None:
    keeps = {how: tuple(null_keys_of(how, side) is NullKeys.SPREAD for side in Side) for how in JoinType}
    assert keeps == {
        JoinType.INNER: (False, False),
        JoinType.CROSS: (False, False),
        JoinType.LEFT: (True, False),
        JoinType.RIGHT: (False, True),
        JoinType.FULL: (True, True),
        JoinType.LEFT_SEMI: (False, False),
        JoinType.LEFT_ANTI: (True, False),
        JoinType.EXISTENCE: (True, False),
        JoinType.NULL_AWARE_ANTI: (True, True),
        JoinType.NULL_AWARE_EXISTENCE: (True, True),
    }


def test_kept_null_keys_are_spread_and_do_not_depend_on_order() -> None:
    rows = pa.RecordBatch.from_arrays(
        [pa.nulls(4000, pa.int64()), pa.array([str(i) for i in range(4000)])], schema=LEFT
    )

    def homes(batch: pa.RecordBatch, salt: int = 0) -> dict[str, int]:
        part = splitter(JoinType.LEFT, Side.LEFT, 8, salt=salt)
        reader = BlobReader(
            shuffled(list(part.split([batch]))), BlobFormat(RIGHT, Role.BUILD), BlobFormat(LEFT, Role.STREAM)
        )
        return {
            word: label
            for label, _, stream in reader.partitions()
            for piece in stream
            for word in piece.column(1).to_pylist()
        }

    forward = homes(rows)
    assert min(Counter(forward.values()).values()) > 300, "null keys went to few partitions"
    assert homes(rows.take(pa.array(np.arange(3999, -1, -1)))) == forward
    assert homes(rows, salt=1) != forward
    same = pa.RecordBatch.from_arrays([pa.nulls(10, pa.int64()), pa.array(["x"] * 10)], schema=LEFT)
    assert len({homes(same, salt)["x"] for salt in range(8)}) == 8, (
        "equal rows of all mappers in one partition"
    )


def test_null_safe_keys_travel_like_any_other(rng: np.random.Generator) -> None:
    terms = spec(JoinType.INNER, NullEquality.EQUAL)
    labels: dict[Side, set[int]] = {}
    for side, rows, role in (
        (Side.LEFT, left_rows(rng, 50, 1.0), Role.STREAM),
        (Side.RIGHT, right_rows(rng, 50, 1.0), Role.BUILD),
    ):
        form = BlobFormat(rows.schema, role)
        made = Splitter(form, terms, LEFT, RIGHT, side, tuple(range(5)), 1 << 12).split([rows])
        labels[side] = {label for batch in made for label in batch.column(0).to_pylist()}
    assert labels[Side.LEFT] == labels[Side.RIGHT]
    assert len(labels[Side.LEFT]) == 1


def test_blobs_have_the_wanted_size(rng: np.random.Generator) -> None:
    rows = left_rows(rng, 50_000, 0.0)
    part = splitter(JoinType.INNER, Side.LEFT, 4, blob_bytes=1 << 16)
    sizes = [len(v) for batch in part.split([rows]) for v in batch.column(2).to_pylist()]
    assert max(sizes) < 2 << 16
    assert np.median(sizes) > 1 << 14
    assert part.counts.rows == 50_000
    assert part.counts.blobs == len(sizes)
    assert part.counts.blob_bytes == sum(sizes)


@pytest.mark.parametrize("compression", list(Compression), ids=lambda c: c.value)
def test_every_type_passes(compression: Compression) -> None:
    columns: dict[str, pa.Array] = {
        "null": pa.nulls(3),
        "bool": pa.array([True, None, False]),
        "decimal": pa.array(
            [decimal.Decimal("1.50"), None, decimal.Decimal(-(10**35))], pa.decimal128(38, 2)
        ),
        "time": pa.array([0, None, -1], pa.timestamp("us", "UTC")),
        "duration": pa.array([dt.timedelta(days=-1), None, dt.timedelta(0)], pa.duration("us")),
        "month": pa.array([(1, 2, 3), None, (0, 0, 0)], pa.month_day_nano_interval()),
        "binary": pa.array([b"", None, b"\0\xff"]),
        "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
        "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int32())),
        "struct": pa.array([{"x": 1, "y": None}, None, {"x": None, "y": "é"}]),
    }
    rows = pa.RecordBatch.from_pydict({"k": pa.array([1, 2, 3]), **columns})
    form = BlobFormat(rows.schema, Role.BUILD, compression)
    terms = JoinSpec(JoinType.INNER, (KeyPair(0, 0),), left_output=(0,))
    other = pa.schema([pa.field("k", pa.int64())])
    made = Splitter(form, terms, rows.schema, other, Side.LEFT, (0, 1, 2), 1 << 10).split([rows])
    reader = BlobReader(shuffled(list(made)), form, BlobFormat(other, Role.STREAM))
    back = [batch for _, build, _ in reader.partitions() for batch in build]
    table = pa.Table.from_batches(back).sort_by("k")
    assert table.to_pylist() == rows.to_pylist()


def blob_row(data: bytes, label: int = 0, side: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([label], pa.int32()), pa.array([side], pa.int8()), pa.array([data], pa.binary())],
        schema=BLOB_SCHEMA,
    )


def one_blob(form: BlobFormat, rows: pa.RecordBatch, label: int = 0) -> bytes:
    header, message = form.encode(rows, label)
    return bytes(header + message.to_pybytes())


def read_all(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    reader = BlobReader(batches, BlobFormat(RIGHT, Role.BUILD), BlobFormat(LEFT, Role.STREAM))
    return [b for _, build, stream in reader.partitions() for side in (build, stream) for b in side]


def damaged(blob: bytes) -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    yield "short header", blob[:10]
    yield "truncated", blob[:-8]
    yield "extended", blob + bytes(8)
    yield "foreign", b"PAR1" + blob[4:]
    for position in (9, len(blob) // 2, len(blob) - 20):
        flipped = bytearray(blob)
        flipped[position] ^= 0x10
        yield f"bit flipped at {position}", bytes(flipped)


def test_damaged_blobs_are_refused(rng: np.random.Generator) -> None:
    blob = one_blob(BlobFormat(RIGHT, Role.BUILD), right_rows(rng, 100), 5)
    assert sum(b.num_rows for b in read_all([blob_row(blob, 5)])) == 100
    for what, bad in damaged(blob):
        with pytest.raises(CorruptBlobError, match="partition 5"):
            pytest.fail(f"{what} was read: {read_all([blob_row(bad, 5)])}")


def test_misplaced_blobs_are_refused(rng: np.random.Generator) -> None:
    build = one_blob(BlobFormat(RIGHT, Role.BUILD), right_rows(rng, 9), 1)
    stream = one_blob(BlobFormat(LEFT, Role.STREAM), left_rows(rng, 9), 1)
    for batches in (
        [blob_row(build, 2)],
        [blob_row(build, 1, side=1)],
        [blob_row(build, 1, side=2)],
        [blob_row(stream, 1)],
        [blob_row(stream, 1, side=1), blob_row(build, 1)],
    ):
        with pytest.raises(CorruptBlobError, match="partition"):
            read_all(batches)
    assert len(read_all([blob_row(build, 1), blob_row(stream, 1, side=1)])) == 2


def test_unread_sides_are_skipped(rng: np.random.Generator) -> None:
    batches = [
        blob_row(one_blob(BlobFormat(RIGHT, Role.BUILD), right_rows(rng, 3), p), p) for p in (0, 0, 1)
    ] + [blob_row(one_blob(BlobFormat(LEFT, Role.STREAM), left_rows(rng, 3), 1), 1, side=1)]
    reader = BlobReader(batches, BlobFormat(RIGHT, Role.BUILD), BlobFormat(LEFT, Role.STREAM))
    assert [label for label, _, _ in reader.partitions()] == [0, 1]
    assert reader.blobs == 4


def test_a_row_too_large_is_refused_and_halved_batches_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobrows, "MAX_BLOB_BYTES", (1 << 20) + 1000)
    schema = pa.schema([pa.field("t", pa.string())])
    packer = BlobPacker(BlobFormat(schema, Role.BUILD), 1 << 30, BlobCounts())
    rows = pa.RecordBatch.from_arrays([pa.array(["x" * 600] * 8)], schema=schema)
    made = [*packer.add(rows, 0), *packer.flush()]
    assert sum(b.num_rows for b in made) == 8
    with pytest.raises(GpuJoinError, match=r"a row of \d+ bytes"):
        list(packer.add(pa.RecordBatch.from_arrays([pa.array(["x" * 2000])], schema=schema), 0))


def test_conform_renames_and_casts_but_loses_nothing() -> None:
    given = pa.RecordBatch.from_pydict(
        {
            "a": pa.array([[1], None], pa.list_(pa.field("item", pa.int32()))),
            "b": pa.array([1, 2], pa.timestamp("us", "Europe/Paris")),
        }
    )
    items = pa.list_(pa.field("element", pa.int32()))
    wanted = pa.schema([pa.field("l0", items), pa.field("l1", pa.timestamp("us", "UTC"), nullable=False)])
    batch = conform(given, wanted)
    assert batch.schema == wanted
    assert batch.column(0).to_pylist() == [[1], None]
    assert batch.column(1).cast(pa.int64()).to_pylist() == [1, 2]
    with pytest.raises(GpuJoinError, match="2 columns"):
        conform(given, LEFT.append(pa.field("more", pa.int8())))


@pytest.mark.parametrize("partitions", [1, 2, 3, 17, 200, 1000])
def test_hashed_labels_fall_into_their_partitions(partitions: int) -> None:
    labels = hashed_labels(partitions)
    assert np.mod(murmur3(labels), partitions).tolist() == list(range(partitions))
