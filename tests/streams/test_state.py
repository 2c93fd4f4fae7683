"""The state of a join of streams: what is written and read, merging, eviction without reading, restarts, refusals."""

from __future__ import annotations

import dataclasses
import datetime as dt
import doctest
import json
from itertools import pairwise

import pyarrow as pa
import pytest

from gpujoin.errors import (
    ConditionError,
    ConfigurationError,
    CorruptBlobError,
    ExpressionEvaluationError,
    JoinSpecError,
    StreamStateError,
)
from gpujoin.model.expressions import EvalMode, Expression, Function, call, left, lit, right
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.plan.resolve import resolve
from gpujoin.streams import symmetric
from gpujoin.streams.format import Manifest, MemoryStore, StateChunk, decode, encode, pack, unpack
from gpujoin.streams.join import SemiOrder, StreamJoin
from gpujoin.streams.state import StateOptions
from gpujoin.streams.symmetric import SymmetricJoin

TIME = pa.timestamp("us", "UTC")
LEFT = pa.schema([("k", pa.int64()), ("t", TIME), ("v", pa.string())])
RIGHT = pa.schema([("j", pa.int64()), ("u", TIME), ("w", pa.string())])
WITHIN = right("u").between(left("t"), left("t") + dt.timedelta(seconds=5))
SMALL = StateOptions(chunk_bytes=8 << 20, fan_in=4)


class ReadStore(MemoryStore):
    """A store that tells what was read and written."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []
        self.written: list[str] = []
        self.marked: list[str] = []

    def get(self, chunk: StateChunk, schema: pa.Schema) -> pa.RecordBatch:
        self.read.append(chunk.id)
        return super().get(chunk, schema)

    def put(self, chunk: StateChunk, data: pa.Buffer, rows: pa.RecordBatch) -> None:
        self.written.append(chunk.id)
        super().put(chunk, data, rows)

    def put_marks(self, chunk: StateChunk, bits: bytes) -> None:
        self.marked.append(chunk.id)
        super().put_marks(chunk, bits)

    def forget(self) -> None:
        self.read, self.written, self.marked = [], [], []


def stream_join(kind: JoinType, condition: Expression | None = WITHIN) -> StreamJoin:
    resolved = None if condition is None else resolve(condition, LEFT, RIGHT)
    outputs = ((0, 2), () if kind is JoinType.LEFT_SEMI else (0, 2))
    return StreamJoin(JoinSpec(kind, (KeyPair(0, 0),), resolved, *outputs), LEFT, RIGHT, (1,), (1,))


def rows(schema: pa.Schema, *given: tuple[int | None, float | None, str]) -> list[pa.RecordBatch]:
    """Rows of key, second and text."""
    seconds = [row[1] for row in given]
    times = pa.array([None if s is None else int(s * 1e6) for s in seconds], pa.int64()).cast(TIME)
    keys, texts = pa.array([row[0] for row in given], pa.int64()), pa.array([row[2] for row in given])
    return [pa.RecordBatch.from_arrays([keys, times, texts], schema=schema)]


def output(join: SymmetricJoin, *push: object) -> list[dict[str, object]]:
    found = [row for batch in join.push(*push) for row in batch.to_pylist()]  # type: ignore[arg-type]
    return sorted(found, key=repr)


def test_the_example_of_the_docstring_holds() -> None:
    results = doctest.testmod(symmetric)
    assert results.attempted > 5
    assert not results.failed


def test_the_table_of_the_docstring_holds() -> None:
    join = SymmetricJoin(stream_join(JoinType.LEFT))
    assert output(join, rows(LEFT, (1, 10, "a")), rows(RIGHT, (1, 12, "a")), 0) == [
        {"k": 1, "v": "a", "j": 1, "w": "a"}
    ]
    assert output(join, rows(LEFT, (2, 11, "b")), rows(RIGHT, (1, 14, "a")), 10_000) == [
        {"k": 1, "v": "a", "j": 1, "w": "a"}
    ]
    assert output(join, rows(LEFT, (3, 9, "c"), (3, 18, "c")), [], 17_000) == [{"k": 2, "v": "b", "j": None, "w": None}]
    assert [batch.column(1).to_pylist() for batch in join.rows(Side.LEFT)] == [
        [dt.datetime(1970, 1, 1, 0, 0, 18, tzinfo=dt.UTC)]
    ]
    assert list(join.rows(Side.RIGHT)) == []
    assert join.metrics.late_rows == {Side.LEFT: 1, Side.RIGHT: 0}


@pytest.mark.parametrize("kind", [JoinType.INNER, JoinType.RIGHT, JoinType.LEFT_SEMI], ids=lambda k: k.value)
def test_chunks_leave_without_being_read(kind: JoinType) -> None:
    store = ReadStore()
    join = SymmetricJoin(stream_join(kind), store)
    for second in (10, 20, 30):
        output(join, rows(LEFT, (second, second, "a"), (second, second + 1, "b")), [], 0)
    store.forget()
    output(join, [], [], 27_000)
    assert [chunk.span for chunk in join.manifest.of(Side.LEFT)] == [(30_000_000, 31_000_000)]
    assert (store.read, store.written, store.marked) == ([], [], [])
    assert len(store.data) == 1


def test_chunks_whose_rows_all_matched_leave_without_being_read() -> None:
    store = ReadStore()
    join = SymmetricJoin(stream_join(JoinType.LEFT), store)
    output(join, rows(LEFT, (1, 10, "a"), (2, 11, "b")), rows(RIGHT, (1, 12, "x"), (2, 12, "y")), 0)
    output(join, rows(LEFT, (3, 12, "c")), [], 0)
    store.forget()
    assert output(join, [], [], 60_000) == [{"k": 3, "v": "c", "j": None, "w": None}]
    assert len(store.read) == 1
    assert join.manifest.chunks == ()


def test_only_the_chunks_in_reach_are_read() -> None:
    store = ReadStore()
    join = SymmetricJoin(stream_join(JoinType.INNER), store)
    for second in (10, 20, 30):
        output(join, rows(LEFT, (1, second, "a")), [], 0)
    store.forget()
    assert len(output(join, [], rows(RIGHT, (1, 24, "x")), 0)) == 1
    assert len(store.read) == 1
    assert (join.metrics.chunks_excluded, join.metrics.chunks_read) == (2, 1)


def test_only_changed_marks_are_written() -> None:
    store = ReadStore()
    join = SymmetricJoin(stream_join(JoinType.LEFT), store)
    output(join, rows(LEFT, (1, 10, "a"), (2, 10, "b")), [], 0)
    output(join, rows(LEFT, (3, 10, "c")), [], 0)
    assert store.marked == []
    store.forget()
    output(join, [], rows(RIGHT, (1, 11, "x"), (9, 11, "y")), 0)
    first, second = join.manifest.of(Side.LEFT)
    assert store.marked == [first.id]
    assert (first.matched, second.matched) == (1, 0)
    assert store.bits == {first.id: b"\x01"}
    store.forget()
    output(join, [], rows(RIGHT, (1, 12, "x")), 0)
    assert store.marked == []


def test_semi_joins_drop_left_rows_at_their_match() -> None:
    store = ReadStore()
    join = SymmetricJoin(stream_join(JoinType.LEFT_SEMI), store)
    assert output(join, rows(LEFT, (1, 10, "a"), (2, 10, "b")), rows(RIGHT, (2, 11, "y")), 0) == [{"k": 2, "v": "b"}]
    assert [chunk.rows for chunk in join.manifest.of(Side.LEFT)] == [1]
    assert output(join, [], rows(RIGHT, (1, 11, "x")), 0) == [{"k": 1, "v": "a"}]
    assert join.manifest.of(Side.LEFT) == ()
    assert output(join, [], rows(RIGHT, (1, 11, "x")), 0) == []


@pytest.mark.parametrize("order", SemiOrder, ids=lambda order: order.value)
def test_semi_joins_of_rows_that_come_and_go_in_one_micro_batch(order: SemiOrder) -> None:
    join = SymmetricJoin(dataclasses.replace(stream_join(JoinType.LEFT_SEMI), semi_order=order))
    output(join, rows(LEFT, (9, 120, "a")), rows(RIGHT, (1, 106, "old")), 70_000)
    # The right row of second 110 goes at once, that of 106 goes too but was there before, and that of 115 stays.
    new_left = rows(LEFT, (1, 105, "meets the old one"), (2, 105, "meets none that stays"), (3, 112, "meets one"))
    found = output(join, new_left, rows(RIGHT, (2, 110, "goes"), (3, 115, "stays")), 114_000)
    lost = order is SemiOrder.RIGHT_FIRST
    expected = [{"k": 1, "v": "meets the old one"}, {"k": 3, "v": "meets one"}]
    assert found == sorted([*expected, *([] if lost else [{"k": 2, "v": "meets none that stays"}])], key=repr)


def test_small_chunks_are_merged_and_dead_rows_left_out() -> None:
    join = SymmetricJoin(stream_join(JoinType.LEFT), state_options=SMALL)
    for second in range(3):
        output(join, rows(LEFT, (1, 10 + second, "a"), (None, 20 + second, "b")), [], 0)
    assert [chunk.rows for chunk in join.manifest.of(Side.LEFT)] == [2, 2, 2]
    output(join, rows(LEFT, (1, 23, "a"), (None, 24, "b")), rows(RIGHT, (1, 15, "x")), 15_501)
    # The row of second 10 has gone; those of seconds 11 and 12 have matched, and are kept.
    (merged,) = join.manifest.of(Side.LEFT)
    assert (merged.rows, merged.matched, merged.span) == (7, 2, (11_000_000, 24_000_000))
    assert join.metrics.chunks_merged == 1
    padded = [row["v"] for row in output(join, [], [], 100_000)]
    assert sorted(map(str, padded)) == ["a", "b", "b", "b", "b"]


def test_merging_keeps_the_number_of_chunks_small() -> None:
    join = SymmetricJoin(stream_join(JoinType.INNER), state_options=SMALL)
    most = 0
    for push in range(64):
        output(join, rows(LEFT, (push, 10 + push, "a")), [], 0)
        most = max(most, len(join.manifest.chunks))
    assert most <= 12
    assert join.manifest.rows == 64


def test_large_batches_are_cut_by_time_and_rows_without_a_time_are_apart() -> None:
    join = SymmetricJoin(stream_join(JoinType.INNER), state_options=StateOptions(chunk_bytes=100, fan_in=100))
    shuffled = [(1, float(second * 7 % 20), "abc") for second in range(20)]
    output(join, rows(LEFT, *shuffled[1:], (1, None, "never")), [], 0)
    spans = [chunk.span for chunk in join.manifest.chunks]
    assert spans.count(None) == 1
    timed = [span for span in spans if span is not None]
    assert len(timed) > 3
    assert timed == sorted(timed)
    assert all(before[1] <= after[0] for before, after in pairwise(timed))
    output(join, [], [], 10**9)
    assert [batch.column(2).to_pylist() for batch in join.rows(Side.LEFT)] == [["never"]]


def test_a_micro_batch_that_is_not_taken_to_its_end_changes_nothing() -> None:
    store = ReadStore()
    join = SymmetricJoin(stream_join(JoinType.LEFT), store)
    output(join, rows(LEFT, (1, 10, "a"), (2, 10, "b")), [], 0)
    before, bits = join.manifest, dict(store.bits)
    store.forget()
    pushed = join.push(rows(LEFT, (1, 11, "c")), rows(RIGHT, (1, 11, "x")), 12_000)
    next(pushed)
    pushed.close()  # type: ignore[attr-defined]
    assert join.manifest == before
    assert (store.written, store.marked, store.bits) == ([], [], bits)
    assert len(output(join, rows(LEFT, (1, 11, "c")), rows(RIGHT, (1, 11, "x")), 12_000)) == 2


def test_the_watermark_never_falls() -> None:
    join = SymmetricJoin(stream_join(JoinType.LEFT))
    output(join, [], [], 20_000)
    output(join, rows(LEFT, (1, 30, "a")), [], 5_000)
    assert join.manifest.watermark_ms == 20_000
    output(
        join,
        rows(LEFT, (1, 20, "late"), (1, 20.001, "in time")),
        [],
        20_000,
    )
    assert join.metrics.late_rows[Side.LEFT] == 1


def test_lateness_may_be_given() -> None:
    join = SymmetricJoin(stream_join(JoinType.LEFT))
    list(join.push(rows(LEFT, (1, 30, "a")), [], 20_000, late_ms=30_000))
    assert join.metrics.late_rows[Side.LEFT] == 1


def test_a_manifest_is_text_that_reads_back() -> None:
    join = SymmetricJoin(stream_join(JoinType.FULL))
    output(join, rows(LEFT, (1, 10, "a"), (1, None, "b")), rows(RIGHT, (2, 10, "x")), 5_000)
    saved = join.manifest.to_bytes()
    assert json.loads(saved)["format"] == Manifest.FORMAT == 1
    assert Manifest.from_bytes(saved) == join.manifest
    assert len(join.manifest.chunks) == 3
    assert join.manifest.stored == sum(data.size for data in join.store.data.values())  # type: ignore[attr-defined]
    assert [chunk.id for chunk in join.manifest.chunks] == sorted(chunk.id for chunk in join.manifest.chunks)


def test_a_state_of_another_format_or_join_is_refused() -> None:
    saved = SymmetricJoin(stream_join(JoinType.LEFT)).manifest.to_bytes()
    with pytest.raises(StreamStateError, match="another join"):
        SymmetricJoin(stream_join(JoinType.RIGHT), manifest=saved)
    with pytest.raises(StreamStateError, match="another join"):
        SymmetricJoin(stream_join(JoinType.LEFT, WITHIN & (left("v") != right("w"))), manifest=saved)
    newer = json.dumps({**json.loads(saved), "format": 2}).encode()
    with pytest.raises(StreamStateError, match="format 2, and this version of gpujoin reads format 1"):
        SymmetricJoin(stream_join(JoinType.LEFT), manifest=newer)
    with pytest.raises(StreamStateError, match="no manifest"):
        SymmetricJoin(stream_join(JoinType.LEFT), manifest=b"\x80")


def test_a_lost_or_altered_chunk_is_refused() -> None:
    store = MemoryStore()
    join = SymmetricJoin(stream_join(JoinType.INNER), store)
    output(join, rows(LEFT, (1, 10, "a")), [], 0)
    (chunk,) = join.manifest.chunks
    data = store.data[chunk.id].to_pybytes()
    fresh = MemoryStore()
    again = SymmetricJoin(stream_join(JoinType.INNER), fresh, join.manifest.to_bytes())
    with pytest.raises(StreamStateError, match=chunk.id):
        output(again, [], rows(RIGHT, (1, 11, "x")), 0)
    fresh.data[chunk.id] = pa.py_buffer(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptBlobError, match=f"state chunk {chunk.id}"):
        output(again, [], rows(RIGHT, (1, 11, "x")), 0)
    with pytest.raises(StreamStateError, match="1 bytes of marks"):
        unpack(b"\x01", 9)


def test_lost_marks_are_refused() -> None:
    store = MemoryStore()
    join = SymmetricJoin(stream_join(JoinType.LEFT), store)
    output(join, rows(LEFT, (1, 10, "a"), (2, 10, "b")), rows(RIGHT, (1, 11, "x")), 0)
    store.bits.clear()
    with pytest.raises(StreamStateError, match="lacks the marks"):
        output(join, [], [], 10**6)


def test_columns_may_be_renamed_between_runs() -> None:
    store = MemoryStore()
    join = SymmetricJoin(stream_join(JoinType.LEFT), store)
    output(join, rows(LEFT, (1, 10, "a")), [], 0)
    renamed = pa.schema([field.with_name(f"new_{field.name}") for field in LEFT])
    within = right("u").between(left("new_t"), left("new_t") + dt.timedelta(seconds=5))
    spec = JoinSpec(JoinType.LEFT, (KeyPair(0, 0),), resolve(within, renamed, RIGHT), (0, 2), (0, 2))
    again = SymmetricJoin(StreamJoin(spec, renamed, RIGHT, (1,), (1,)), store, join.manifest.to_bytes())
    assert output(again, [], rows(RIGHT, (1, 11, "x")), 0) == [{"new_k": 1, "new_v": "a", "j": 1, "w": "x"}]


def test_equal_rows_of_two_micro_batches_are_two_chunks() -> None:
    join = SymmetricJoin(stream_join(JoinType.INNER))
    for _ in range(2):
        output(join, rows(LEFT, (1, 10, "a")), [], 0)
    assert len({chunk.id for chunk in join.manifest.chunks}) == 2
    other = SymmetricJoin(stream_join(JoinType.INNER))
    output(other, rows(LEFT, (1, 10, "a")), [], 0)
    assert other.manifest.chunks[0] == join.manifest.chunks[0]


def test_chunks_and_marks_read_back() -> None:
    (batch,) = rows(LEFT, (1, 10, "a"), (None, None, "b"))
    sliced = pa.concat_batches([batch] * 3).slice(1, 4)
    assert decode(encode(sliced), LEFT, "x").equals(sliced)
    assert decode(encode(sliced.slice(1, 0)), LEFT, "x").num_rows == 0
    marks = unpack(b"\x05\x01", 9)
    assert pack(marks) == b"\x05\x01"
    assert marks.tolist() == [True, False, True, False, False, False, False, False, True]


def test_what_cannot_be_joined_is_refused() -> None:
    zoned = pa.schema([LEFT.field(0), ("t", pa.timestamp("us", "Europe/Berlin")), LEFT.field(2)])
    condition = resolve(call(Function.HOUR, left("t")) == lit(1), zoned, RIGHT)
    spec = JoinSpec(JoinType.LEFT, (KeyPair(0, 0),), condition)
    with pytest.raises(ConditionError, match="cannot be evaluated exactly"):
        SymmetricJoin(StreamJoin(spec, zoned, RIGHT))
    with pytest.raises(ConfigurationError, match="at least 2 at a time"):
        StateOptions(fan_in=1)
    encoded = pa.schema([("k", pa.dictionary(pa.int32(), pa.string()))])
    with pytest.raises(JoinSpecError, match="dictionary-encoded"):
        StreamJoin(JoinSpec(JoinType.INNER, (KeyPair(0, 0),)), encoded, encoded)
    join = SymmetricJoin(stream_join(JoinType.INNER))
    (batch,) = rows(LEFT, (1, 10, "a"))
    with pytest.raises(JoinSpecError, match="a left batch has columns"):
        output(join, [batch.select([0, 1])], [])


def test_a_condition_that_raises_leaves_the_state_as_it_was() -> None:
    failing = WITHIN & (left("v").cast(pa.int32(), EvalMode.ANSI) > right("w").cast(pa.int32(), EvalMode.ANSI))
    join = SymmetricJoin(stream_join(JoinType.INNER, failing))
    assert len(output(join, rows(LEFT, (1, 10, "3")), rows(RIGHT, (1, 11, "2")), 0)) == 1
    before = join.manifest
    with pytest.raises(ExpressionEvaluationError):
        output(join, [], rows(RIGHT, (1, 11, "no number")), 0)
    assert join.manifest == before
    assert len(output(join, [], rows(RIGHT, (1, 11, "1")), 0)) == 1


def test_joins_without_output_columns_count_rows() -> None:
    spec = JoinSpec(JoinType.LEFT, (KeyPair(0, 0),), resolve(WITHIN, LEFT, RIGHT))
    join = SymmetricJoin(StreamJoin(spec, LEFT, RIGHT, (1,), (1,)))
    first = list(join.push(rows(LEFT, (1, 10, "a"), (2, 10, "b")), rows(RIGHT, (1, 11, "x"), (1, 12, "y")), 0))
    assert sum(batch.num_rows for batch in first) == 2
    assert sum(batch.num_rows for batch in join.push([], [], 10**6)) == 1
