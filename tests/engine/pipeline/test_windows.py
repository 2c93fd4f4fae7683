"""Window functions: what a row loop gives, of values of every type, with ties, and by way of the disk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.config import Options
from gpujoin.engine import pipeline
from gpujoin.engine.pipeline import supports
from gpujoin.errors import ExpressionEvaluationError, RelationError
from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.backend import BackendName
from gpujoin.model.expressions import EvalMode, left, lit
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import Window
from gpujoin.model.windows import WHOLE_PARTITION, Frame, FrameType, RankLimit, WindowFunction
from gpujoin.testing import Cell, assert_same_rows
from tests.backends.cudf.pipeline import ShortBackend, host_pipeline
from tests.brief import brief
from tests.engine.pipeline.places import everywhere, on_device, run
from tests.engine.pipeline.test_aggregates import KINDS, random_table
from tests.expressions.values import VALUES
from tests.oracle.windows import finals, windowed
from tests.trees import Over, Tree

A, W = AggregateFunction, WindowFunction
ROWS, RANGE = FrameType.ROWS, FrameType.RANGE
SMALL = ("i8", "i16", "i32", "f32", "d9_2", "d18_6", "d38_18")
"""Kinds of numbers whose sums are the same in every order, or come near."""
RANKS = {
    "rn": Over(W.ROW_NUMBER), "rk": Over(W.RANK), "dr": Over(W.DENSE_RANK), "pr": Over(W.PERCENT_RANK),
    "cd": Over(W.CUME_DIST), "nt": Over(W.NTILE, count=3),
}  # fmt: skip
FRAMES = {
    "partition": WHOLE_PARTITION, "running": Frame(ROWS, None, 0), "running range": Frame(RANGE, None, 0),
    "peers": Frame(RANGE, 0, 0), "rest": Frame(RANGE, 0, None), "sliding": Frame(ROWS, -2, 3),
    "before": Frame(ROWS, -5, -2), "after": Frame(ROWS, 2, 4), "long": Frame(ROWS, -40, 30),
    "until": Frame(ROWS, None, -3), "from": Frame(ROWS, 1, None), "one": Frame(ROWS, 0, 0),
}  # fmt: skip


def numbered(table: pa.Table) -> pa.Table:
    return table.append_column("id", pa.array(np.arange(table.num_rows)))


def is_same(actual: Cell, expected: Cell, *, exact: bool) -> bool:
    if not (isinstance(actual, float) and isinstance(expected, float)):
        return type(actual) is type(expected) and actual == expected
    if math.isnan(actual) or math.isnan(expected):
        return math.isnan(actual) and math.isnan(expected)
    if exact:
        return actual == expected and math.copysign(1, actual) == math.copysign(1, expected)
    return math.isclose(actual, expected, rel_tol=1e-6, abs_tol=1e-6)


def check(
    tree: Tree,
    table: pa.Table,
    context: str,
    *,
    pieces: int = 3,
    exact: bool = True,
    by_device: bool = True,
    **options: Any,
) -> PipelineMetrics:
    """Run over a table with row numbers in its last column, and compare with the row loop.

    ``by_device``: where there is a device, it computes the window.
    """
    node = tree.relation
    assert isinstance(node, Window)
    assert supports(node) == ()
    metrics = PipelineMetrics()
    batches = table.to_batches(max_chunksize=max(1, -(-table.num_rows // pieces)))
    out = run(node, {0: batches}, metrics=metrics, options=Options(**options), piece_bytes=1)
    result = pa.Table.from_batches(out, node.schema).sort_by("id")
    if on_device():
        assert (metrics.device_steps > 0, metrics.host_steps > 0) == (by_device, not by_device), context
    assert_same_rows(result.select(table.column_names), table)
    names = [call.name for call in node.calls]
    for row, (actual, expected) in enumerate(zip(finals(node, result), windowed(node, table), strict=True)):
        for name, value, wanted in zip(names, actual, expected, strict=True):
            assert is_same(value, wanted, exact=exact), f"{context}: row {row}, {name}: {value}, expected {wanted}"
    return metrics


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_by_keys_of_every_type(kind: str, rng: np.random.Generator, seed: int) -> None:
    table = numbered(random_table(rng, 120, 4))
    last = ("id", False, True)
    for order in [(kind, False, True)], [(kind, True, True)], [("g", False, False), (kind, True, False)]:
        check(Tree.source(table.schema).window([], [*order, last], **RANKS), table, f"seed {seed}, all by {order}")
        by_keys = {name: RANKS[name] for name in ("rk", "dr", "pr", "cd")}
        check(Tree.source(table.schema).window(["g"], order, **by_keys), table, f"seed {seed}, {order}")
    check(Tree.source(table.schema).window([kind, "g"], [last], **RANKS), table, f"seed {seed}, by {kind}")


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("kind", brief(KINDS, "i64", "f64", "d38_18", "str", "ts"))
def test_values_of_other_rows(kind: str, rng: np.random.Generator, seed: int) -> None:
    table = numbered(random_table(rng, 150, 5))
    value = left(kind)
    calls = {
        "lag": Over(W.LAG, value), "lead": Over(W.LEAD, value, count=3), "none": Over(W.LAG, value, count=0),
        "far": Over(W.LEAD, value, count=1000, default=value), "other": Over(W.LAG, value, count=2, default=value),
        "known": Over(W.LAG, value, ignore_nulls=True), "next": Over(W.LEAD, value, count=2, ignore_nulls=True),
    }  # fmt: skip
    for name, frame in FRAMES.items():
        calls |= {
            f"first {name}": Over(A.FIRST, value, frame), f"last {name}": Over(A.LAST, value, frame),
            f"first known {name}": Over(A.FIRST, value, frame, ignore_nulls=True),
            f"last known {name}": Over(A.LAST, value, frame, ignore_nulls=True),
            f"third {name}": Over(W.NTH_VALUE, value, frame, count=3),
            f"second known {name}": Over(W.NTH_VALUE, value, frame, count=2, ignore_nulls=True),
        }  # fmt: skip
    tree = Tree.source(table.schema).window(["g"], [("i8", True, False), ("id", False, True)], **calls)
    check(tree, table, f"seed {seed}")


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("name", brief(FRAMES, "partition", "running", "running range", "sliding", "long", "from"))
def test_aggregates_over_frames(name: str, rng: np.random.Generator, seed: int) -> None:
    frame = FRAMES[name]
    table = numbered(random_table(rng, 150, 3))
    # Sums in which large numbers cancel out depend on the order of additions.
    mild = pa.array(rng.normal(size=150), pa.float32(), mask=rng.random(150) < 0.1)
    table = table.set_column(table.schema.get_field_index("f32"), "f32", mild)
    calls = {"n": Over(A.COUNT, frame=frame), "some": Over(A.COUNT, frame=frame, where=left("i32") > 0)}
    for kind in SMALL:
        calls |= {
            f"sum {kind}": Over(A.SUM, left(kind), frame), f"avg {kind}": Over(A.AVG, left(kind), frame),
            f"some {kind}": Over(A.SUM, left(kind), frame, where=left("bool")),
        }  # fmt: skip
    for kind in KINDS:
        calls |= {
            f"min {kind}": Over(A.MIN, left(kind), frame), f"max {kind}": Over(A.MAX, left(kind), frame),
            f"count {kind}": Over(A.COUNT, left(kind), frame),
            f"least {kind}": Over(A.MIN, left(kind), frame, where=left("bool")),
        }  # fmt: skip
    order = [("i8", False, True), ("id", False, True)] if frame.type is ROWS else [("i8", False, True)]
    tree = Tree.source(table.schema, mode=EvalMode.LEGACY).window(["g"], order, **calls)
    check(tree, table, f"seed {seed}", exact=False)


@everywhere
@pytest.mark.parametrize("name", ["running", "sliding", "running range", "one", "until"])
def test_sums_of_floats_are_added_in_order(name: str, rng: np.random.Generator, seed: int) -> None:
    table = numbered(random_table(rng, 200, 3))
    frame = FRAMES[name]
    order = [("i8", False, True)] if frame.type is RANGE else [("i8", False, True), ("id", False, True)]
    tree = Tree.source(table.schema).window(
        ["g"], order, s=Over(A.SUM, left("f64"), frame), a=Over(A.AVG, left("f64"), frame),
        f=Over(A.SUM, left("f32"), frame), i=Over(A.AVG, left("i64"), frame),
    )  # fmt: skip
    check(tree, table, f"seed {seed}")


@everywhere
def test_of_zeros_the_first_is_the_extreme() -> None:
    table = numbered(pa.table({"v": [0.0, -0.0, math.nan, None, -0.0, 0.0]}))
    tree = Tree.source(table.schema).window(
        [], [("id", False, True)],
        running=Over(A.MIN, left("v"), FRAMES["running"]), last=Over(A.MAX, left("v"), Frame(ROWS, -1, 0)),
        whole=Over(A.MIN, left("v")),
    )  # fmt: skip
    (batch,) = run(tree.relation, {0: table})
    for name in ("running", "whole"):
        assert [math.copysign(1, v) for v in batch.column(f"{name}.value").to_pylist()] == [1.0] * 6
    last = batch.column("last.value").to_pylist()
    assert [math.copysign(1, last[i]) for i in (0, 1, 4, 5)] == [1.0, 1.0, -1.0, -1.0]


LARGEST = (1 << 63) - 1


@everywhere
@pytest.mark.parametrize("frame", [FRAMES["running"], FRAMES["sliding"], FRAMES["partition"]], ids=str)
def test_sums_of_integers_wrap_or_fail(frame: Frame) -> None:
    values = [LARGEST, LARGEST, -5, None, 7, -LARGEST - 1]
    table = numbered(pa.table({"v": values}))
    window = {"s": Over(A.SUM, left("v"), frame)}
    tree = Tree.source(table.schema, mode=EvalMode.LEGACY).window([], [("id", False, True)], **window)
    assert isinstance(tree.relation, Window)
    (batch,) = run(tree.relation, {0: table})
    expected = [(value + LARGEST + 1) % (1 << 64) - LARGEST - 1 for (value,) in windowed(tree.relation, table)]
    assert batch.column("s.sum").to_pylist() == expected
    ansi = Tree.source(table.schema).window([], [("id", False, True)], **window)
    with pytest.raises(ExpressionEvaluationError, match="overflows"):
        list(run(ansi.relation, {0: table}))


@everywhere
@pytest.mark.parametrize("values", [[LARGEST, 1, -5], [-5, LARGEST, 10]], ids=["first", "later"])
def test_a_sum_that_overflows_on_the_way_fails(values: list[int]) -> None:
    table = numbered(pa.table({"v": values}))
    tree = Tree.source(table.schema).window([], [("id", False, True)], s=Over(A.SUM, left("v"), FRAMES["running"]))
    with pytest.raises(ExpressionEvaluationError, match="overflows"):
        list(run(tree.relation, {0: table}))


@everywhere
def test_a_sum_that_is_near_the_largest_does_not_fail() -> None:
    table = numbered(pa.table({"v": [LARGEST - 5, 5, -LARGEST, -LARGEST, -1, LARGEST]}))
    tree = Tree.source(table.schema).window([], [("id", False, True)], s=Over(A.SUM, left("v"), FRAMES["running"]))
    (batch,) = run(tree.relation, {0: table})
    assert batch.column("s.sum").to_pylist() == [LARGEST - 5, LARGEST, 0, -LARGEST, -LARGEST - 1, -1]


@everywhere
@pytest.mark.parametrize("frame", [FRAMES["running"], FRAMES["sliding"], FRAMES["partition"]], ids=str)
def test_sums_of_decimals_with_too_many_digits_are_null(frame: Frame) -> None:
    large, least = Decimal("9" * 38), Decimal("-" + "9" * 38)
    table = numbered(pa.table({"v": pa.array([large, large, least, None, least, least, large], pa.decimal128(38, 0))}))
    tree = Tree.source(table.schema).window(
        [], [("id", False, True)], s=Over(A.SUM, left("v"), frame), a=Over(A.AVG, left("v"), frame)
    )
    check(tree, table, str(frame))


UNITS = {"i8": 1, "i32": 1, "i64": 1, "d9_2": 1, "date": 1, "ts": 10**6, "f64": 0.5}
"""Types of order keys with distances, and a distance of each."""


def near_keys(rng: np.random.Generator, kind: str, rows: int) -> pa.Array:
    """Keys from -6 to 6 of a type's distances, with nulls, and special values of doubles."""
    numbers, mask, dtype = rng.integers(-6, 7, rows) * UNITS[kind], rng.random(rows) < 0.15, VALUES[kind][0]
    if kind == "f64":
        special = np.choose(rng.integers(0, 8, rows), [*[numbers] * 5, np.nan, -np.inf, -0.0])
        return pa.array(special, mask=mask, from_pandas=False)
    if kind == "d9_2":
        return pa.array([None if m else Decimal(int(n)) / 100 for n, m in zip(numbers, mask, strict=True)], dtype)
    width = {"date": pa.int32(), "ts": pa.int64()}.get(kind, dtype)
    return pa.array(numbers, width, mask=mask).cast(dtype)


def numbers_of(column: pa.Array) -> list[Any]:
    """Numbers by which distances count; ``None`` for null."""
    if pa.types.is_decimal(column.type):
        return [None if v is None else int(v.scaleb(column.type.scale)) for v in column.to_pylist()]
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    return list(column.to_pylist())


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("kind", UNITS)
@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
def test_ranges_by_distance(kind: str, descending: bool, rng: np.random.Generator, seed: int) -> None:
    """Rows whose key is not before the lower bound and not after the upper one, nulls being as far as their place."""
    table = numbered(pa.table({"g": rng.integers(0, 3, 90), "k": near_keys(rng, kind, 90)}))
    rows = list(zip(table["g"].to_pylist(), numbers_of(table["k"].combine_chunks()), strict=True))
    unit = UNITS[kind]
    bounds = [(-1, 1), (None, -2), (3, None), (-2, 0), (0, 2), (1, 3)]
    frames = [Frame(RANGE, *(None if n is None else n * unit for n in pair)) for pair in bounds]

    def place(key: Any, nulls_first: bool) -> tuple[int, Any]:
        if key is None:
            return (0 if nulls_first else 2), ()
        number, is_nan = (math.inf, 1) if key != key else (key, 0)
        return 1, (-number, -is_nan) if descending else (number, is_nan)

    def moved(key: Any, distance: float) -> Any:
        return None if key is None else key + (-distance if descending else distance)

    for first in (True, False):
        calls = {f"n{i}": Over(A.COUNT, frame=frame) for i, frame in enumerate(frames)}
        tree = Tree.source(table.schema).window(["g"], [("k", descending, first)], **calls)
        result = pa.Table.from_batches(run(tree.relation, {0: table}), tree.schema).sort_by("id")
        for i, frame in enumerate(frames):
            expected = [
                sum(
                    h == g
                    and (frame.start is None or place(other, first) >= place(moved(key, frame.start), first))
                    and (frame.end is None or place(other, first) <= place(moved(key, frame.end), first))
                    for h, other in rows
                )
                for g, key in rows
            ]
            assert result[f"n{i}.count"].to_pylist() == expected, f"{frame}, nulls first {first}, seed {seed}"


@everywhere
@pytest.mark.parametrize("kind", ["i8", "i64", "date"])
def test_bounds_that_leave_the_type_of_the_key_fail(kind: str) -> None:
    """Spark wraps them, or fails; here nothing is computed with them."""
    table = random_table(np.random.default_rng(1), 100, 3)
    call = Over(A.COUNT, left("i32"), Frame(RANGE, -(2**40), 0))
    with pytest.raises(ExpressionEvaluationError, match="range frame"):
        list(run(Tree.source(table.schema).window(["g"], [(kind, False, True)], c=call).relation, {0: table}))


@everywhere
def test_no_rows_and_no_columns() -> None:
    table = numbered(pa.table({"v": pa.array([], pa.float64())}))
    tree = Tree.source(table.schema).window(["v"], [("id", False, True)], **RANKS, s=Over(A.SUM, left("v")))
    assert list(run(tree.relation, {0: table})) == []
    empty = pa.table({"v": [1, 2, 3]}).select([])
    counted = Tree.source(empty.schema).window([], [], n=Over(A.COUNT))
    rows = pa.table({"rows": pa.nulls(3)}).select([])
    (batch,) = run(counted.relation, {0: rows.to_batches()})
    assert batch.column("n.count").to_pylist() == [3, 3, 3]


@everywhere
@pytest.mark.parametrize("name", ["sorted", "wide keys", "one partition", "one row each", "few values"])
def test_orders_of_many_rows(name: str, rng: np.random.Generator, seed: int) -> None:
    """Rows that are in order already, keys of more bits than a word has, and many or few peers."""
    count = 5_000
    columns = {
        "sorted": (np.arange(count) // 7, np.arange(count)),
        "wide keys": (rng.integers(-LARGEST - 1, LARGEST, 50).repeat(100), rng.integers(-LARGEST - 1, LARGEST, count)),
        "one partition": (np.zeros(count, np.int64), rng.integers(0, 1 << 40, count)),
        "one row each": (rng.permutation(count), np.zeros(count, np.int64)),
        "few values": (rng.integers(0, 3, count), rng.integers(0, 4, count)),
    }
    k, t = columns[name]
    table = numbered(pa.table({"k": k, "t": t}))
    tree = Tree.source(table.schema, mode=EvalMode.LEGACY).window(
        ["k"], [("t", True, True), ("id", False, True)], **RANKS, lag=Over(W.LAG, left("t"))
    )
    node = tree.relation
    assert isinstance(node, Window)
    result = pa.Table.from_batches(run(node, {0: table}), node.schema)
    order = np.lexsort((np.arange(count), -t.astype(object) if name == "wide keys" else -t, k))
    places = np.empty(count, np.int64)
    begins = np.concatenate([[True], k[order][1:] != k[order][:-1]])
    starts = np.maximum.accumulate(np.where(begins, np.arange(count), 0))
    places[order] = np.arange(count) - starts + 1
    by_id = result.sort_by("id")
    assert by_id.column("rn").to_pylist() == places.tolist(), f"seed {seed}"
    assert by_id.column("rk").to_pylist() == places.tolist(), f"seed {seed}"
    previous = [None if begins[i] else int(t[order[i - 1]]) for i in range(count)]
    lags = by_id.column("lag").to_pylist()
    assert [lags[i] for i in order] == previous, f"seed {seed}"


@everywhere
def test_text_that_is_no_utf8(rng: np.random.Generator) -> None:
    raw = [b"a", b"\xff", None, b"a\x80", b"b", b"\xff", b"a"] * 5
    texts = pa.array(raw, pa.binary()).view(pa.string())
    table = numbered(pa.table({"s": texts, "v": rng.integers(0, 3, len(raw))}))
    tree = Tree.source(table.schema).window(
        ["s"], [("v", False, True), ("id", False, True)], **RANKS, lag=Over(W.LAG, left("s"), default=lit("none"))
    )
    node = tree.relation
    assert isinstance(node, Window)
    result = pa.Table.from_batches(run(node, {0: table.to_batches(max_chunksize=4)}), node.schema).sort_by("id")
    as_bytes = [result.column(name).combine_chunks().cast(pa.binary()).to_pylist() for name in ("s", "lag")]
    first = [i for i, n in enumerate(result.column("rn").to_pylist()) if n == 1]
    assert as_bytes[0] == raw
    assert sorted({raw[i] for i in first}, key=str) == sorted(set(raw), key=str)
    assert all(lagged == (b"none" if i in first else raw[i]) for i, lagged in enumerate(as_bytes[1]))


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("keys", [["g", "str"], []], ids=["divided", "one partition"])
def test_rows_beyond_their_share_of_memory_go_to_disk(
    keys: Sequence[str], rng: np.random.Generator, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpujoin.engine.memory.HostMemory.build_bytes", 20_000)
    table = numbered(random_table(rng, 400, 20))
    calls = RANKS | {"s": Over(A.SUM, left("d38_18"), FRAMES["running"]), "m": Over(A.MAX, left("str"))}
    tree = Tree.source(table.schema).window(keys, [("ts", False, True), ("id", False, True)], **calls)
    metrics = check(tree, table, f"seed {seed}", pieces=10)
    assert (metrics.spills > 0, metrics.oversized_parts > 0) == (bool(keys), not keys)
    assert metrics.windows > 1 if keys else metrics.windows == 1


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("count", [0, 1, 7, 1_000])
@pytest.mark.parametrize("function", [W.ROW_NUMBER, W.RANK, W.DENSE_RANK])
def test_rows_beyond_a_limit_of_ranks_are_dropped_as_they_come_in(
    function: WindowFunction, count: int, rng: np.random.Generator, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rows of each partition are those of a row loop; of the others few are held."""
    monkeypatch.setattr("gpujoin.engine.pipeline.windows._DROPPED_ROWS", 100)
    table = numbered(random_table(rng, 1_000, 20))
    order = [("d9_2", True, False)] if function is not W.ROW_NUMBER else [("d9_2", True, False), ("id", False, True)]
    calls = {"r": Over(function), "n": Over(A.COUNT, left("i32"), FRAMES["running"])}
    limited = Tree.source(table.schema).window(["g"], order, RankLimit(function, count), **calls).relation
    assert isinstance(limited, Window)
    batches = table.to_batches(max_chunksize=100)
    result = pa.Table.from_batches(run(limited, {0: batches}, piece_bytes=1), limited.schema)
    expected = windowed(limited, table)
    first = {row for row, (rank, _) in enumerate(expected) if rank <= count}
    kept = dict(zip(result["id"].to_pylist(), finals(limited, result), strict=True))
    assert first == {row for row, (rank, _) in kept.items() if rank <= count}, f"seed {seed}"
    assert len(kept) == (table.num_rows if count == 1_000 else len(first))
    assert all(kept[row][0] == expected[row][0] for row in first), f"seed {seed}"
    if function is W.ROW_NUMBER:
        assert all(kept[row] == expected[row] for row in first), f"seed {seed}"


@everywhere
def test_a_sum_over_rows_beyond_the_limit_does_not_fail() -> None:
    """As in Spark, which drops them before it adds."""
    table = numbered(pa.table({"g": [1, 1, 1], "v": [1, 2, (1 << 63) - 1]}))
    tree = Tree.source(table.schema, mode=EvalMode.ANSI)
    calls = {"r": Over(W.ROW_NUMBER), "s": Over(A.SUM, left("v"), FRAMES["running"])}
    limited = tree.window(["g"], [("v", False, True)], RankLimit(W.ROW_NUMBER, 2), **calls).relation
    result = pa.Table.from_batches(run(limited, {0: table.to_batches()}), limited.schema)
    assert sorted(result["v"].to_pylist()) == [1, 2]


@everywhere
@pytest.mark.parametrize("share", [1 << 30, 1_000], ids=["in memory", "by way of the disk"])
def test_columns_of_other_types_are_passed_on(
    share: int, rng: np.random.Generator, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpujoin.engine.memory.HostMemory.build_bytes", share)
    rows = 60
    lists = [None if i % 5 == 0 else [f"{i}", None] for i in range(rows)]
    table = numbered(pa.table({"g": rng.integers(0, 6, rows), "t": rng.integers(0, 9, rows), "l": lists}))
    calls = RANKS | {"s": Over(A.SUM, left("t"), FRAMES["sliding"]), "o": Over(W.LAG, left("id"), default=left("g"))}
    tree = Tree.source(table.schema).window(["g"], [("t", True, True), ("id", False, True)], **calls)
    metrics = check(tree, table, f"seed {seed}", by_device=False)
    assert (metrics.spills > 0) == (share == 1_000)


@everywhere
@pytest.mark.parametrize("frame", [WHOLE_PARTITION, Frame(ROWS, -3, 1), Frame(ROWS, 2, 5)], ids=str)
def test_aggregates_of_the_rows_of_frames(frame: Frame, rng: np.random.Generator, seed: int) -> None:
    """Functions without running results, over partitions and short frames, of which some are empty."""
    numbers = pa.array(rng.normal(size=120), mask=rng.random(120) < 0.2)
    table = numbered(random_table(rng, 120, 4).append_column("x", numbers))
    calls = {
        "dev": Over(A.STDDEV_SAMP, left("x"), frame), "var": Over(A.VAR_POP, left("x"), frame, where=left("bool")),
        "sum": Over(A.SUM, left("d38_18"), frame), "avg": Over(A.AVG, left("i64"), frame),
        "last": Over(A.LAST, left("str"), frame), "n": Over(A.COUNT, left("str"), frame),
    }  # fmt: skip
    tree = Tree.source(table.schema, mode=EvalMode.LEGACY).window(
        ["g"], [("i8", True, True), ("id", False, True)], **calls
    )
    check(tree, table, f"seed {seed}", exact=False)


class TestDevice:
    """What a device leaves to the CPU."""

    def test_functions_and_distances_in_single_precision(self) -> None:
        schema = pa.schema([("v", pa.float32()), ("x", pa.int64())])
        tree, order = Tree.source(schema), [("v", False, True)]
        whys = {
            "not computed": {"c": Over(A.BIT_OR, left("x"))},
            "single precision": {"c": Over(A.COUNT, left("x"), Frame(RANGE, -1.5, 0))},
        }
        for why, calls in whys.items():
            (reason,) = supports(tree.window([], order, **calls).relation, BackendName.GPU)
            assert why in reason.why
        ranked = tree.window([], order, rn=Over(W.RANK), c=Over(A.COUNT, left("x"), Frame(RANGE, None, 0)))
        assert supports(ranked.relation, BackendName.GPU) == ()

    def test_doubles_along_many_rows(self, rng: np.random.Generator, seed: int) -> None:
        """They are added one after the other: of all partitions at a time, unless one is long."""
        for sizes, by_device in ([40, 1, 700, 3], True), ([40, 5000], False):
            groups = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
            table = numbered(pa.table({"g": groups, "x": rng.normal(size=len(groups)) * 10.0 ** rng.integers(-9, 9)}))
            tree = Tree.source(table.schema).window(
                ["g"], [("id", True, True)], s=Over(A.SUM, left("x"), FRAMES["running"]), n=Over(A.COUNT)
            )
            wanted = pa.Table.from_batches(pipeline.run(tree.relation, {0: table}), tree.schema)
            metrics = PipelineMetrics()
            out = pipeline.run(tree.relation, {0: table}, metrics=metrics, device=host_pipeline())
            result = pa.Table.from_batches(out, tree.schema)
            assert result.sort_by("id").equals(wanted.sort_by("id")), f"seed {seed}"
            assert (metrics.device_steps, metrics.host_steps) == ((1, 0) if by_device else (0, 1))

    def test_rows_that_do_not_fit(self, rng: np.random.Generator, seed: int) -> None:
        table = numbered(random_table(rng, 100, 4))
        calls = RANKS | {"lag": Over(W.LAG, left("str"), default=lit("none"))}
        tree = Tree.source(table.schema).window(["g"], [("ts", True, True), ("id", False, True)], **calls)
        metrics = PipelineMetrics()
        out = pipeline.run(tree.relation, {0: table}, metrics=metrics, device=host_pipeline(ShortBackend((), 50)))
        wanted = pa.Table.from_batches(pipeline.run(tree.relation, {0: table}), tree.schema)
        assert_same_rows(pa.Table.from_batches(out, tree.schema), wanted, context=f"seed {seed}")
        assert (metrics.device_retries, metrics.host_steps) == (1, 1)


def test_what_is_not_computed_is_refused() -> None:
    tree = Tree.source(pa.schema([("v", pa.int64()), ("s", pa.list_(pa.int64()))]))
    for call in (
        Over(A.STDDEV_SAMP, left("v").cast(pa.float64()), FRAMES["running"]), Over(A.COLLECT_LIST, left("v")),
        Over(W.NTILE, count=0), Over(W.LAG, left("v"), count=-1), Over(W.LAG, left("v"), default=lit(1) / left("v")),
        Over(W.LAG, left("v"), count=0, ignore_nulls=True), Over(W.LAG, left("v"), default=lit("x")),
    ):  # fmt: skip
        with pytest.raises(RelationError):
            tree.window([], [("v", False, True)], c=call)
    for order in ([], [("v", False, True), ("s", False, True)]):
        with pytest.raises(RelationError, match="one order key"):
            tree.window([], order, c=Over(A.COUNT, left("v"), Frame(RANGE, -3, 0)))
    assert supports(tree.window(["s"], [("v", False, True)], rn=Over(W.ROW_NUMBER)).relation)
    assert supports(tree.window(["v"], [("v", False, True)], rn=Over(W.LAG, left("s"))).relation)
