"""Cases of the engine alone: each returns a record with its seconds, after its answer was checked."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from gpujoin import JoinMetrics, asof_join_tables, join_tables, left, right
from gpujoin.model.jointype import JoinName

SEED = 20261121


def timed(run: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    best, answer = float("inf"), None
    for _ in range(repeats):
        start = time.perf_counter()
        answer = run()
        best = min(best, time.perf_counter() - start)
    return best, answer


def range_case(rows: int, how: JoinName, repeats: int) -> dict[str, Any]:
    """``x between y - 5 and y + 5``, about five matches a row."""
    rng = np.random.default_rng(SEED)
    x, y = (rng.integers(0, 2 * rows, rows) for _ in range(2))
    one, two = pa.table({"x": x, "i": np.arange(rows)}), pa.table({"y": y, "j": np.arange(rows)})
    condition = (left("x") >= right("y") - 5) & (left("x") <= right("y") + 5)
    seconds, found = timed(lambda: join_tables(one, two, how=how, condition=condition, backend="cpu"), repeats)
    ordered = np.sort(y)
    counts = np.searchsorted(ordered, x + 5, "right") - np.searchsorted(ordered, x - 5, "left")
    expected = int(counts.sum())
    if how == "full":
        ordered = np.sort(x)
        met = np.searchsorted(ordered, y + 5, "right") > np.searchsorted(ordered, y - 5, "left")
        expected += int((counts == 0).sum()) + int((~met).sum())
    assert found.num_rows == expected
    return {
        "case": f"range, {how}",
        "rows": rows,
        "other_rows": rows,
        "out": found.num_rows,
        "seconds": seconds,
    }


def overlap_case(rows: int, repeats: int) -> dict[str, Any]:
    """Intervals of very different lengths that overlap: two bounds that no one order serves."""
    rng = np.random.default_rng(SEED)
    low, at = (rng.integers(0, 100 * rows, rows) for _ in range(2))
    high = low + np.where(rng.random(rows) < 1e-4, 10_000 * 100, 200)
    one = pa.table({"lo": at, "hi": at + 100})
    two = pa.table({"from": low, "to": high})
    condition = (left("lo") <= right("to")) & (left("hi") >= right("from"))
    metrics = JoinMetrics()
    seconds, found = timed(lambda: join_tables(one, two, condition=condition, backend="cpu", metrics=metrics), repeats)
    expected = int(
        (np.searchsorted(np.sort(low), at + 100, "right") - np.searchsorted(np.sort(high), at, "left")).sum()
    )
    assert found.num_rows == expected
    assert "range_pair" in metrics.algorithms
    return {
        "case": "interval overlap",
        "rows": rows,
        "other_rows": rows,
        "out": found.num_rows,
        "seconds": seconds,
    }


def not_in_tables(rows: int, other: int, columns: int) -> tuple[pa.Table, pa.Table]:
    rng = np.random.default_rng(SEED)
    names, others = "abc"[:columns], "xyz"[:columns]
    made = []
    for count, used, nulls in ((rows, names, 0.05), (other, others, 0.0)):
        data = {name: pa.array(rng.integers(0, 4 * rows, count), mask=rng.random(count) < nulls) for name in used}
        made.append(data)
    # A null in one column of a few right rows: enough to need their own search, too few to drop everything.
    few = np.zeros(other, np.bool_)
    few[:: max(1, other // 50)] = True
    made[1][others[0]] = pa.array(made[1][others[0]].to_numpy(), mask=few)
    return pa.table(made[0]), pa.table(made[1])


def kept_by_definition(one: pa.Table, two: pa.Table) -> int:
    """Rows of ``NOT IN``, by one lookup of mixed values for each pair of null patterns."""
    rng = np.random.default_rng(SEED)
    factors = rng.integers(1, 1 << 62, one.num_columns, np.uint64) * np.uint64(2) + np.uint64(1)

    def parts(table: pa.Table) -> tuple[list[Any], Any]:
        values = [column.fill_null(0).to_numpy().astype(np.uint64) for column in table.columns]
        nulls = [column.is_null().to_numpy() for column in table.columns]
        return values, sum(mask.astype(np.int64) << i for i, mask in enumerate(nulls))

    (mine, own), (theirs, other) = parts(one), parts(two)
    dropped = np.zeros(one.num_rows, np.bool_)
    for p in np.unique(own):
        for q in np.unique(other):
            rows, others = np.flatnonzero(own == p), np.flatnonzero(other == q)
            common = [i for i in range(one.num_columns) if not (int(p) | int(q)) >> i & 1]
            if not common:
                dropped[rows] = True
                continue
            a = sum(mine[i][rows] * factors[i] for i in common)
            b = sum(theirs[i][others] * factors[i] for i in common)
            dropped[rows[np.isin(a, b)]] = True
    return int((~dropped).sum())


def not_in_case(rows: int, other: int, columns: int, repeats: int) -> dict[str, Any]:
    one, two = not_in_tables(rows, other, columns)

    def run() -> pa.Table:
        return join_tables(
            one,
            two,
            how="null_aware_anti",
            left_on=one.schema.names,
            right_on=two.schema.names,
            backend="cpu",
        )

    seconds, found = timed(run, repeats)
    assert found.num_rows == kept_by_definition(one, two)
    return {
        "case": f"NOT IN, {columns} columns", "rows": rows, "other_rows": other, "out": found.num_rows,
        "seconds": seconds,
    }  # fmt: skip


def as_of_case(rows: int, groups: int, repeats: int) -> dict[str, Any]:
    import polars as pl

    rng = np.random.default_rng(SEED)
    frames = []
    for name in "ij":
        at = np.sort(rng.integers(0, 10 * rows, rows))
        frames.append(pl.DataFrame({"t": at, "g": rng.integers(0, groups, rows), name: np.arange(rows)}))
    one, two = frames
    left, right = one.to_arrow(), two.to_arrow()

    def ours() -> pa.Table:
        return asof_join_tables(left, right, on="t", by="g", backend="cpu")

    # Taking turns: whichever comes first pays for fresh memory.
    seconds, found = timed(ours, repeats)
    theirs, expected = timed(
        lambda: one.join_asof(two, on="t", by="g", check_sortedness=False, allow_parallel=True), repeats
    )
    seconds = min(seconds, timed(ours, repeats)[0])
    got = found["j"].fill_null(-1).to_numpy()[np.argsort(found["i"].to_numpy())]
    wanted = expected.sort("i")["j"].fill_null(-1).to_numpy()
    differ = np.flatnonzero(got != wanted)
    right_t = two["t"].to_numpy()
    # Of right rows with one key any may be the last: the times must be the same.
    assert (got[differ] >= 0).all()
    assert (right_t[got[differ]] == right_t[wanted[differ]]).all()
    return {
        "case": f"as-of by {groups} groups", "rows": rows, "other_rows": rows, "out": found.num_rows,
        "seconds": seconds, "other_engine": "polars", "other_seconds": theirs,
    }  # fmt: skip
