"""Exchanges between stages: splitting rows, checking and reading blobs, without Spark."""

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
from gpujoin.model.stages import NullKeys, null_keys_of
from gpujoin.spark.shuffle import blobrows
from gpujoin.spark.shuffle.blobrows import BLOB_SCHEMA, BlobCounts, BlobFormat, BlobPacker
from gpujoin.spark.shuffle.exchanges import ANNOUNCED, ExchangeReader, Outlet, row_entries
from gpujoin.spark.shuffle.labels import hashed_labels, murmur3
from gpujoin.spark.shuffle.scattering import conform

LEFT = pa.schema([pa.field("l0", pa.int64()), pa.field("l1", pa.string())])
RIGHT = pa.schema([pa.field("r0", pa.int32()), pa.field("r1", pa.float64())])
SCHEMAS = {Side.LEFT: LEFT, Side.RIGHT: RIGHT}
FORMS = {side: BlobFormat(SCHEMAS[side], place=place) for place, side in enumerate((Side.RIGHT, Side.LEFT))}
"""The right side is built, so it is read first."""


def outlet(
    side: Side, partitions: int, nulls: NullKeys = NullKeys.SPREAD, *, null_safe: bool = False,
    blob_bytes: int = 1 << 12,
) -> Outlet:  # fmt: skip
    labels = tuple(range(partitions))
    return Outlet(FORMS[side], (0,), (pa.int64(),), (null_safe,), nulls, frozenset(), labels, blob_bytes)


def left_rows(rng: np.random.Generator, rows: int, nulls: float = 0.2) -> pa.RecordBatch:
    keys = pa.array(rng.integers(-50, 50, rows), pa.int64(), mask=rng.random(rows) < nulls)
    words = pa.array([None if n % 7 == 0 else "ß" * int(n % 5) for n in range(rows)], pa.string())
    return pa.RecordBatch.from_arrays([keys, words], schema=LEFT)


def right_rows(rng: np.random.Generator, rows: int, nulls: float = 0.2) -> pa.RecordBatch:
    keys = pa.array(rng.integers(-50, 50, rows).astype(np.int32), mask=rng.random(rows) < nulls)
    return pa.RecordBatch.from_arrays([keys, pa.array(rng.random(rows))], schema=RIGHT)


def shuffled(blob_rows: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """What Spark does: all rows, sorted by partition and source."""
    if not blob_rows:
        return []
    table = pa.Table.from_batches(blob_rows).sort_by([("p", "ascending"), ("side", "ascending")])
    return list(table.to_batches(max_chunksize=3))


def received(blob_rows: list[pa.RecordBatch]) -> Iterator[tuple[int, dict[Side, list[pa.RecordBatch]]]]:
    """Each partition's rows of both sides."""
    for label, sources in ExchangeReader(row_entries(shuffled(blob_rows)), tuple(FORMS.values())).partitions():
        yield label, {side: list(source) for side, source in zip(FORMS, sources, strict=True)}


def rows_of(batch: pa.RecordBatch) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row.values()) for row in batch.to_pylist())


@pytest.mark.parametrize(
    "how",
    [j for j in JoinType if j is not JoinType.CROSS and not j.null_aware],
    ids=lambda j: j.value,
)
@pytest.mark.parametrize("partitions", [1, 2, 7, 200])
def test_rows_arrive_where_their_keys_meet(how: JoinType, partitions: int, rng: np.random.Generator) -> None:
    rows = {Side.LEFT: left_rows(rng, 999), Side.RIGHT: right_rows(rng, 501)}
    nulls = {side: null_keys_of(how, side) for side in Side}
    made = [
        batch
        for side in Side
        for batch in outlet(side, partitions, nulls[side]).split(
            (rows[side].slice(start, 97) for start in range(0, 999, 97)), 0
        )
    ]
    assert all(batch.schema == BLOB_SCHEMA for batch in made)
    home: dict[object, int] = {}
    found: dict[Side, Counter[tuple[object, ...]]] = {side: Counter() for side in Side}
    for label, sides in received(made):
        for side, batches in sides.items():
            for batch in batches:
                found[side] += rows_of(batch)
                for key in batch.column(0).to_pylist():
                    if key is not None:
                        assert home.setdefault(key, label) == label, f"key {key} in two partitions"
    for side in Side:
        expected = rows_of(rows[side])
        if nulls[side] is NullKeys.DROP:
            expected = Counter({row: n for row, n in expected.items() if row[0] is not None})
        assert found[side] == expected
    if partitions == 7:
        assert len(set(home.values())) == 7


def test_null_keys_that_match_nothing_are_dropped_where_no_result_needs_them() -> None:
    spread = {how: tuple(null_keys_of(how, side) is NullKeys.SPREAD for side in Side) for how in JoinType}
    assert {how: kept for how, kept in spread.items() if not how.null_aware} == {
        JoinType.INNER: (False, False),
        JoinType.CROSS: (False, False),
        JoinType.LEFT: (True, False),
        JoinType.RIGHT: (False, True),
        JoinType.FULL: (True, True),
        JoinType.LEFT_SEMI: (False, False),
        JoinType.LEFT_ANTI: (True, False),
        JoinType.EXISTENCE: (True, False),
    }


def test_kept_null_keys_are_spread_and_do_not_depend_on_order() -> None:
    rows = pa.RecordBatch.from_arrays(
        [pa.nulls(4000, pa.int64()), pa.array([str(i) for i in range(4000)])], schema=LEFT
    )

    def homes(batch: pa.RecordBatch, salt: int = 0) -> dict[str, int]:
        return {
            word: label
            for label, sides in received(list(outlet(Side.LEFT, 8).split([batch], salt)))
            for rows in sides[Side.LEFT]
            for word in rows.column(1).to_pylist()
        }

    forward = homes(rows)
    assert min(Counter(forward.values()).values()) > 300, "null keys went to few partitions"
    assert homes(rows.take(pa.array(np.arange(3999, -1, -1)))) == forward
    assert homes(rows, salt=1) != forward
    same = pa.RecordBatch.from_arrays([pa.nulls(10, pa.int64()), pa.array(["x"] * 10)], schema=LEFT)
    homes_of_equal_rows = {homes(same, salt)["x"] for salt in range(8)}
    assert len(homes_of_equal_rows) == 8, "equal rows of all tasks in one partition"


def test_null_safe_keys_travel_like_any_other(rng: np.random.Generator) -> None:
    labels = {}
    for side, rows in ((Side.LEFT, left_rows(rng, 50, 1.0)), (Side.RIGHT, right_rows(rng, 50, 1.0))):
        made = outlet(side, 5, null_safe=True).split([rows], 0)
        labels[side] = {label for batch in made for label in batch.column(0).to_pylist()}
    assert labels[Side.LEFT] == labels[Side.RIGHT]
    assert len(labels[Side.LEFT]) == 1


def test_blobs_have_the_wanted_size(rng: np.random.Generator) -> None:
    counts, rows = BlobCounts(), left_rows(rng, 50_000, 0.0)
    made = outlet(Side.LEFT, 4, blob_bytes=1 << 16).split([rows], 0, counts)
    sizes = [len(v) for batch in made for v in batch.column(2).to_pylist()]
    assert max(sizes) < 2 << 16
    assert np.median(sizes) > 1 << 13
    assert counts.rows == 50_000
    assert counts.blobs == len(sizes)
    assert counts.blob_bytes == sum(sizes)


@pytest.mark.parametrize("compression", list(Compression), ids=lambda c: c.value)
def test_every_type_passes(compression: Compression) -> None:
    columns: dict[str, pa.Array] = {
        "null": pa.nulls(3),
        "bool": pa.array([True, None, False]),
        "decimal": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal(-(10**35))], pa.decimal128(38, 2)),
        "time": pa.array([0, None, -1], pa.timestamp("us", "UTC")),
        "duration": pa.array([dt.timedelta(days=-1), None, dt.timedelta(0)], pa.duration("us")),
        "month": pa.array([(1, 2, 3), None, (0, 0, 0)], pa.month_day_nano_interval()),
        "binary": pa.array([b"", None, b"\0\xff"]),
        "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
        "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int32())),
        "struct": pa.array([{"x": 1, "y": None}, None, {"x": None, "y": "é"}]),
    }
    rows = pa.RecordBatch.from_pydict({"k": pa.array([1, 2, 3]), **columns})
    form = BlobFormat(rows.schema, compression=compression)
    sent = Outlet(form, (0,), (pa.int64(),), (False,), NullKeys.DROP, frozenset(), (0, 1, 2), 1 << 10)
    reader = ExchangeReader(row_entries(shuffled(list(sent.split([rows], 0)))), [form])
    back = [batch for _, (source,) in reader.partitions() for batch in source]
    assert pa.Table.from_batches(back).sort_by("k").to_pylist() == rows.to_pylist()


def blob_row(data: bytes, label: int = 0, side: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([label], pa.int32()), pa.array([side], pa.int8()), pa.array([data], pa.binary())],
        schema=BLOB_SCHEMA,
    )


def one_blob(form: BlobFormat, rows: pa.RecordBatch, label: int = 0) -> bytes:
    return form.encode(rows, label).to_pybytes()


def read_all(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    reader = ExchangeReader(row_entries(batches), tuple(FORMS.values()))
    return [batch for _, sources in reader.partitions() for source in sources for batch in source]


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
    blob = one_blob(FORMS[Side.RIGHT], right_rows(rng, 100), 5)
    assert sum(b.num_rows for b in read_all([blob_row(blob, 5)])) == 100
    for what, bad in damaged(blob):
        with pytest.raises(CorruptBlobError, match="partition 5"):
            pytest.fail(f"{what} was read: {read_all([blob_row(bad, 5)])}")


def test_misplaced_blobs_are_refused(rng: np.random.Generator) -> None:
    build = one_blob(FORMS[Side.RIGHT], right_rows(rng, 9), 1)
    stream = one_blob(FORMS[Side.LEFT], left_rows(rng, 9), 1)
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


def test_sources_may_be_left_unread_and_read_late(rng: np.random.Generator) -> None:
    batches = [blob_row(one_blob(FORMS[Side.RIGHT], right_rows(rng, 3), p), p) for p in (0, 0, 1)]
    batches.append(blob_row(one_blob(FORMS[Side.LEFT], left_rows(rng, 3), 1), 1, side=1))
    reader = ExchangeReader(row_entries(batches), tuple(FORMS.values()))
    assert [label for label, _ in reader.partitions()] == [0, 1]
    reader = ExchangeReader(row_entries(batches), tuple(FORMS.values()))
    for label, (right, left) in reader.partitions():
        rows = [sum(batch.num_rows for batch in source) for source in (left, right)]
        assert rows == ([0, 6] if label == 0 else [3, 3])


def test_a_partition_to_which_nothing_is_sent_is_announced() -> None:
    reader = ExchangeReader(row_entries([blob_row(b"", 4, side=ANNOUNCED)]), tuple(FORMS.values()))
    assert [(label, [list(source) for source in sources]) for label, sources in reader.partitions()] == [(4, [[], []])]


def test_a_row_too_large_is_refused_and_halved_batches_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobrows, "MAX_BLOB_BYTES", (1 << 20) + 1000)
    schema = pa.schema([pa.field("t", pa.string())])
    packer = BlobPacker(BlobFormat(schema), 1 << 30, BlobCounts())
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
