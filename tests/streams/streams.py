"""Random streams: conditions with the thresholds that Spark has for them, rows that come early and late, restarts."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal

import pyarrow as pa

from gpujoin.backends.cpu.backend import CpuBackend
from gpujoin.config import Options
from gpujoin.model.backend import AnyBackend
from gpujoin.model.expressions import Expression, left, lit, right
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.plan.resolve import resolve
from gpujoin.streams.format import MemoryStore
from gpujoin.streams.join import STREAMED, SemiOrder, StreamJoin
from gpujoin.streams.state import StateOptions
from gpujoin.streams.symmetric import SymmetricJoin
from tests.faults import FaultyBackend
from tests.oracle.streams import Evicts, StreamOracle, rows_of, time_of

TIME = pa.timestamp("us", "UTC")
WINDOW = pa.struct([("start", TIME), ("end", TIME)])
SECOND = 1_000_000
K, T, WIN, V, S, T2 = range(6)
"""Columns of either side: key, event time, its window, two values, another time."""

KEYS: dict[str, tuple[pa.DataType, list[object]]] = {
    "int64": (pa.int64(), [1, 2, 3, 4, None]),
    "string": (pa.string(), ["", "a", "b", "ab", None]),
    "double": (pa.float64(), [0.0, -0.0, float("nan"), 1.5, None]),
    "decimal": (pa.decimal128(20, 2), [Decimal("1.00"), Decimal("-2.50"), Decimal(0), None]),
    "struct": (pa.struct([("x", pa.int32())]), [{"x": 1}, {"x": None}, {"x": 3}, None]),
}

Threshold = Callable[[int], int]


def after(milliseconds: int) -> Threshold:
    """The watermark plus so much."""
    return lambda watermark: (watermark + milliseconds) * 1000


def _cut(micros: int, inclusive: bool) -> Threshold:
    """The watermark plus microseconds, cut towards zero to whole milliseconds, as Spark cuts a double to a long."""
    return lambda watermark: (int((watermark * 1000 + micros) / 1000) - inclusive) * 1000


def seconds(number: float) -> dt.timedelta:
    return dt.timedelta(seconds=number)


@dataclass(frozen=True)
class Form:
    """A kind of join.

    Attributes
    ----------
    condition : Expression or None
        What is tested besides the key ``k``.
    keys : tuple of int
        Further equality keys, the same columns on both sides.
    times : tuple of (tuple of int, tuple of int)
        Columns under a watermark.
    left, right : callable or None
        Threshold of each side.
    evicted_by : int
        Column whose time the thresholds are of.
    outer : bool
        Whether Spark takes outer and semi joins of this form.
    """

    condition: Expression | None = None
    keys: tuple[int, ...] = ()
    times: tuple[tuple[int, ...], tuple[int, ...]] = ((T,), (T,))
    left: Threshold | None = None
    right: Threshold | None = None
    evicted_by: int = T
    outer: bool = True


t, u = left("t"), right("t")
FORMS: dict[str, Form] = {
    "range": Form((u >= t) & (u <= t + seconds(5)), left=after(-5001), right=after(-1)),
    "range, strict": Form((u > t) & (u < t + seconds(5)), left=after(-5000), right=after(0)),
    "range, mirrored": Form(
        (t - seconds(2) <= u) & (t + seconds(3) >= u), left=after(-3001), right=after(-2001)
    ),
    "range, and a residual": Form(
        (u >= t - seconds(4)) & (u <= t + seconds(4)) & (left("v") < right("v")),
        left=after(-4001), right=after(-4001),
    ),
    "range, and filters of each side": Form(
        (u >= t) & (u <= t + seconds(9)) & (left("v") > 2) & right("s").is_not_null(),
        # Spark takes l.v > 2 for a bound of left times, of two seconds after 1970.
        left=lambda watermark: min(watermark - 9001, 2000) * 1000, right=after(-1),
    ),
    "range, two bounds of which the lower counts": Form(
        (t >= u - seconds(6)) & (t > u - seconds(2)) & (t <= u), left=after(-6001), right=after(-1)
    ),
    "range below milliseconds": Form(
        (u <= t + dt.timedelta(microseconds=1_000_500)) & (u >= t - dt.timedelta(microseconds=500)),
        left=_cut(-1_000_500, True), right=_cut(-500, True),
    ),
    "one side": Form(t < u - seconds(5), right=after(5000)),
    "one side, other way": Form(u < t + seconds(5), left=after(-5000)),
    "one side, filter of constants": Form((t <= u) & lit(True), right=after(-1)),
    "key is the time": Form(keys=(T,), left=after(0), right=after(0)),
    "key is the time, and a range": Form(
        (u >= t - seconds(5)) & (left("v") != right("v")), keys=(T,), left=after(0), right=after(0)
    ),
    "key is the time, watermark on the left": Form(
        keys=(T,), times=((T,), ()), left=after(0), right=after(0)
    ),
    "key is the time, watermark on the right": Form(
        keys=(T,), times=((), (T,)), left=after(0), right=after(0)
    ),
    "key is another column than the time": Form(
        (u >= t) & (u <= t + seconds(5)), keys=(V,), left=after(-5001), right=after(-1)
    ),
    "window": Form(keys=(WIN,), times=((WIN,), (WIN,)), left=after(0), right=after(0), evicted_by=WIN),
    "window, watermark on the left": Form(
        left("v") <= right("v"), keys=(WIN,), times=((WIN,), ()), left=after(0), right=after(0), evicted_by=WIN
    ),
    "plain keys": Form(left("v") <= right("v"), outer=False),
    "plain keys, no watermark": Form(times=((), ()), outer=False),
    "range, no watermark": Form((u >= t) & (u <= t + seconds(5)), times=((), ()), outer=False),
    "range, watermark on one side": Form((u >= t) & (u <= t + seconds(5)), times=((T,), ()), outer=False),
    "several event times": Form(
        (u >= t) & (u <= t + seconds(5)), times=((T, T2), (T, T2)), left=after(-5001), right=after(-1)
    ),
    "several event times, range of the second": Form(
        (right("t2") >= left("t2")) & (right("t2") <= left("t2") + seconds(5)),
        times=((T, T2), (T, T2)), left=after(-5001), right=after(-1),
    ),
}  # fmt: skip


@dataclass
class Tally:
    """What a sweep met.

    Attributes
    ----------
    streams, pushes, rows : int
        Streams compared, their micro-batches, and the rows returned.
    padded, late, restarts : int
        Rows with nulls in place of a side, late rows, restarts.
    merged, excluded, removed : int
        Chunks made of others, left out because of their times, removed.
    faults : int
        Times that a device ran out of memory.
    kinds : Counter
        Streams by form and join type.
    """

    streams: int = 0
    pushes: int = 0
    rows: int = 0
    padded: int = 0
    late: int = 0
    restarts: int = 0
    merged: int = 0
    excluded: int = 0
    removed: int = 0
    faults: int = 0
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)


def schema(key: pa.DataType) -> pa.Schema:
    """Columns of either side."""
    return pa.schema([
        ("k", key), ("t", TIME), ("w", WINDOW), ("v", pa.int32()), ("s", pa.string()), ("t2", TIME),
    ])  # fmt: skip


def rows(draw: random.Random, columns: pa.Schema, pool: list[object], base: int, count: int) -> pa.Table:
    """Rows with times up to 30 seconds before and 12 after ``base``, some without; some rows twice."""
    made: list[dict[str, object]] = []
    for _ in range(count):
        if made and draw.random() < 0.1:
            made.append(dict(made[-1]))
            continue
        moment = base + draw.randint(-30, 12) * SECOND + draw.choice((0, 0, 0, 1, 500, 999, 1000, -1))
        time = None if draw.random() < 0.08 else moment
        start = None if time is None else time // (10 * SECOND) * 10 * SECOND
        made.append({
            "k": draw.choice(pool), "t": time,
            "w": None if start is None else {"start": start, "end": start + 10 * SECOND},
            "v": draw.choice((None, *range(6))), "s": draw.choice((None, "x", "y", "longer than twelve bytes")),
            "t2": None if time is None or draw.random() < 0.05 else time + draw.randint(-2, 2) * SECOND,
        })  # fmt: skip
    return pa.Table.from_pylist(made, columns)


def stream_join(
    form: Form,
    kind: JoinType,
    columns: pa.Schema,
    *,
    null_safe: bool = False,
    semi_order: SemiOrder = SemiOrder.RIGHT_FIRST,
) -> StreamJoin:
    """The join of a form."""
    nulls = NullEquality.EQUAL if null_safe else NullEquality.UNEQUAL
    keys = (KeyPair(K, K, nulls), *(KeyPair(i, i) for i in form.keys))
    condition = None if form.condition is None else resolve(form.condition, columns, columns)
    everything = tuple(range(len(columns)))
    spec = JoinSpec(kind, keys, condition, everything, () if kind is JoinType.LEFT_SEMI else everything)
    return StreamJoin(spec, columns, columns, *form.times, semi_order=semi_order)


def oracle(form: Form, join: StreamJoin) -> StreamOracle:
    """Spark's operator for a form."""

    def time(column: int) -> Callable[..., int | None]:
        return time_of(column, "end", join.left) if column == WIN else time_of(column)

    late = {side: time(columns[0]) for side, columns in zip(Side, form.times, strict=True) if columns}
    evicts = {
        side: Evicts(time(form.evicted_by), threshold)
        for side, threshold in ((Side.LEFT, form.left), (Side.RIGHT, form.right))
        if threshold is not None
    }
    right_first = join.semi_order is SemiOrder.RIGHT_FIRST
    return StreamOracle(join.left, join.right, join.spec, late, evicts, right_first)


def reopened(store: MemoryStore) -> MemoryStore:
    """A store with nothing but the bytes of another one."""
    copy = MemoryStore()
    copy.data = {id_: pa.py_buffer(data.to_pybytes()) for id_, data in store.data.items()}
    copy.bits = dict(store.bits)
    return copy


def faulty(draw: random.Random) -> AnyBackend:
    """A device that runs out of memory now and then, or whenever rows are many."""
    if draw.random() < 0.5:
        return FaultyBackend(CpuBackend(1), every=draw.choice((3, 7, 19)))
    return FaultyBackend(CpuBackend(1), max_rows=draw.choice((1, 5)))


def check_stream(seed: int, tally: Tally) -> None:
    """Compare a stream with Spark's operator, micro-batch by micro-batch.

    Raises
    ------
    AssertionError
        With the seed and the stream, if a micro-batch differs in its rows, or a state in its live rows.
    """
    draw = random.Random(seed)
    name = list(FORMS)[seed % len(FORMS)]
    form = FORMS[name]
    kind = draw.choice(STREAMED) if form.outer else JoinType.INNER
    dtype, pool = KEYS[draw.choice(list(KEYS))]
    columns = schema(dtype)
    join = stream_join(form, kind, columns, null_safe=draw.random() < 0.15, semi_order=draw.choice(list(SemiOrder)))
    sizes = StateOptions(chunk_bytes=draw.choice((1, 4000, 20_000, 8 << 20)), fan_in=draw.choice((2, 2, 4)))
    options = Options(
        batch_bytes=draw.choice((1, 500, 1 << 25)), candidate_pairs=draw.choice((1, 7, 1 << 20)),
        memory_budget=draw.choice((1, 1000, 1 << 30, 1 << 30)),
    )  # fmt: skip
    backend = CpuBackend(1) if draw.random() < 0.7 else faulty(draw)
    context = f"seed {seed}: {kind.value}, {name}, {dtype}, {sizes}"

    expecting, store = oracle(form, join), MemoryStore()
    running = SymmetricJoin(join, store, options=options, state_options=sizes, backend=backend)
    watermark = late = 0
    base = 100 * SECOND
    for push in range(draw.choice((4, 8, 12))):
        base += draw.choice((0, 3, 12, 12, 40)) * SECOND
        lefts, rights = (rows(draw, columns, pool, base, draw.choice((0, 0, 1, 4, 9))) for _ in Side)
        want = expecting.push(lefts, rights, late, watermark)
        cut = draw.choice((1, 3, 100))
        got = list(running.push(lefts.to_batches(cut), rights.to_batches(cut), watermark))
        assert all(batch.schema == running.output_schema for batch in got), context
        output = rows_of(got, running.output_schema)
        assert counted(output) == counted(want), f"{context}, push {push}"
        for side in Side:
            live = rows_of(list(running.rows(side)), columns)
            assert counted(live) == counted(expecting.live(side)), f"{context}, push {push}, {side}"
        tally.rows += len(output)
        tally.pushes += 1
        if draw.random() < 0.3:
            count(tally, running)
            store = reopened(store)
            saved = running.manifest.to_bytes()
            running = SymmetricJoin(join, store, saved, options=options, state_options=sizes, backend=backend)
            tally.restarts += 1
        late = watermark
        if draw.random() < 0.7:
            watermark = max(watermark, base // 1000 - draw.choice((0, 8000, 20000)))
    kept = {chunk.id for chunk in running.manifest.chunks}
    assert set(store.data) == kept >= set(store.bits), context
    count(tally, running)
    tally.streams += 1
    tally.faults += backend.faults if isinstance(backend, FaultyBackend) else 0
    tally.kinds[name, kind.value] += 1


def count(tally: Tally, running: SymmetricJoin) -> None:
    """Add the counters of a join."""
    metrics = running.metrics
    tally.padded += metrics.padded_rows
    tally.late += sum(metrics.late_rows.values())
    tally.merged += metrics.chunks_merged
    tally.excluded += metrics.chunks_excluded
    tally.removed += metrics.chunks_removed


def counted(rows: list[tuple[object, ...]]) -> Counter[str]:
    """Rows as a multiset: NaN is itself, and −0.0 is not 0.0."""
    return Counter(map(repr, rows))
