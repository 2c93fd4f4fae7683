"""Moments of infinities and of what overflows follow from the order of rows, and are Spark's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.model.aggregates import COMOMENTS, MOMENTS, REGRESSIONS, AggregateFunction
from gpujoin.model.expressions import left
from tests.engine.pipeline.places import everywhere, run
from tests.trees import Aggregate, Tree

INF, NAN = math.inf, math.nan
VALUES = (1.0, 2.0, 0.0, -0.0, INF, -INF, NAN, 5e-324, -1.7e308, 1e200)
Pair = tuple[float, float]
State = list[float]


def spark_state(function: AggregateFunction, rows: Sequence[Pair]) -> State:
    """Update a state of Spark's row by row: its expressions, as ``mergeExpressions`` and the like print them."""
    n = x_avg = y_avg = ck = x_mk = y_mk = 0.0
    for x, y in rows:
        n += 1
        dx, dy = x - x_avg, y - y_avg
        x_avg, y_avg = x_avg + dx / n, y_avg + dy / n
        ck += dx * (y - y_avg)
        x_mk += dx * (x - x_avg)
        y_mk += dy * (y - y_avg)
    squares = [x_mk, y_mk] if function in {AggregateFunction.CORR, AggregateFunction.REGR_R2} else []
    return [n, x_avg, y_avg, ck, *squares]


def spark_merged(left_state: State, right_state: State) -> State:
    """Merge two states of Spark's."""
    (n, x, y, ck, *squares), (m, u, v, dk, *others) = left_state, right_state
    dx, dy = u - x, v - y
    total = n + m
    shares = [dx * (dx / total) * n * m, dy * (dy / total) * n * m]
    return [
        total, x + dx / total * m, y + dy / total * m, ck + dk + dx * (dy / total) * n * m,
        *(a + b + c for a, b, c in zip(squares, others, shares, strict=False)),
    ]  # fmt: skip


def central(rows: Sequence[float]) -> State:
    """Update the state of Spark's ``CentralMomentAgg`` value by value."""
    n = avg = m2 = m3 = m4 = 0.0
    for value in rows:
        n += 1
        delta = value - avg
        step = delta / n
        avg += step
        m2 += delta * (delta - step)
        m3 += -3.0 * step * m2 + delta * (delta * delta - step * step)
        m4 += -4.0 * step * m3 - 6.0 * step * step * m2 + delta * (delta * delta * delta - step * step * step)
    return [n, avg, m2, m3, m4]


def buffers(function: AggregateFunction, pairs: Sequence[Pair], pieces: int) -> list[State]:
    """Buffers of all pairs as rows of a group each, and the group cut in so many pieces."""
    groups = list(rows_of(pairs))
    table = pa.table({
        "g": pa.array(np.tile(np.arange(len(groups)), 3), pa.int32()),
        "x": pa.array([group[row][0] for row in range(3) for group in groups], pa.float64()),
        "y": pa.array([group[row][1] for row in range(3) for group in groups], pa.float64()),
    })  # fmt: skip
    arguments = (left("x"), left("y")) if function in COMOMENTS | REGRESSIONS else (left("x"),)
    node = Tree.source(table.schema).group("g", v=Aggregate(function, arguments)).relation
    batches = table.to_batches(max_chunksize=table.num_rows // pieces)
    result = pa.Table.from_batches(run(node, {0: batches}, piece_bytes=1), node.schema).sort_by("g")
    return [list(row.values())[1:] for row in result.to_pylist()]


def rows_of(pairs: Sequence[Pair]) -> Iterator[tuple[Pair, Pair, Pair]]:
    for a, b in product(pairs, repeat=2):
        for c in (pairs[0], pairs[7], pairs[-1]):
            yield a, b, c


def kind(value: float) -> str:
    """What a moment is: NaN, an infinity, or a number, of which digits may differ."""
    return str(value) if not math.isfinite(value) else "a number"


def pairs_of(rng: np.random.Generator) -> list[Pair]:
    return [(VALUES[i], VALUES[j]) for i, j in [(0, 1), *rng.integers(0, len(VALUES), (8, 2))]]


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("function", sorted(COMOMENTS, key=str))
def test_pairs_of_special_values(function: AggregateFunction, pieces: int, rng: np.random.Generator, seed: int) -> None:
    """In three pieces each row is one of its own, which adds what it does in one."""
    pairs = pairs_of(rng)
    for rows, buffer in zip(rows_of(pairs), buffers(function, pairs, pieces), strict=True):
        expected = spark_state(function, rows)
        assert [kind(part) for part in buffer[3:]] == [kind(part) for part in expected[3:]], (seed, rows, buffer)
        assert buffer[0] == 3.0


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("function", sorted(REGRESSIONS, key=str))
def test_regressions_of_special_values(
    function: AggregateFunction, pieces: int, rng: np.random.Generator, seed: int
) -> None:
    """Of y, the first argument, and x, whose covariance Spark has the other way round."""
    pairs = pairs_of(rng)
    for rows, buffer in zip(rows_of(pairs), buffers(function, pairs, pieces), strict=True):
        expected = spark_state(function, [(x, y) for y, x in rows])
        variance = central([x for _, x in rows])
        assert kind(buffer[3]) == kind(expected[3]), (seed, rows, buffer, expected)
        assert kind(buffer[6]) == kind(variance[2]), (seed, rows, buffer, variance)


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("function", sorted(MOMENTS - COMOMENTS - REGRESSIONS, key=str))
def test_special_values(function: AggregateFunction, pieces: int, rng: np.random.Generator, seed: int) -> None:
    pairs = pairs_of(rng)
    for rows, buffer in zip(rows_of(pairs), buffers(function, pairs, pieces), strict=True):
        expected = central([x for x, _ in rows])[: len(buffer)]
        assert kind(buffer[2]) == kind(expected[2]), (seed, rows, buffer, expected)


@everywhere
@pytest.mark.parametrize("rows", [
    [(1.0, 1.0), (2.0, 5.0), (INF, 2.0), (3.0, 7.0)],
    [(INF, 2.0), (1.0, 1.0), (1.0, 3.0), (4.0, 3.0)],
    [(1.0, INF), (2.0, 2.0), (3.0, 4.0), (4.0, 3.0)],
    [(1.0, 2.0), (2.0, 2.0), (-INF, 4.0), (4.0, 3.0)],
])  # fmt: skip
def test_states_are_merged_as_sparks_are(rows: list[Pair]) -> None:
    table = pa.table({"g": pa.array([0] * 4, pa.int32()), "x": [x for x, _ in rows], "y": [y for _, y in rows]})
    call = Aggregate(AggregateFunction.COVAR_POP, (left("x"), left("y")))
    node = Tree.source(table.schema).group("g", v=call).relation
    result = pa.Table.from_batches(run(node, {0: table.to_batches(max_chunksize=2)}, piece_bytes=1), node.schema)
    (buffer,) = ([*row.values()][1:] for row in result.to_pylist())
    halves = [spark_state(AggregateFunction.COVAR_POP, half) for half in (rows[:2], rows[2:])]
    expected = spark_merged(*halves)
    assert [kind(part) for part in buffer] == [kind(part) for part in expected]


@everywhere
def test_a_state_that_is_merged_with_none_stays() -> None:
    """Its mean of x is NaN, its sum of products is not."""
    rows = [(0, 1.0, 1.0), (0, INF, 2.0), (0, 3.0, 0.0), (1, 1.0, 1.0), (1, 2.0, 2.0), (2, 5.0, 5.0)]
    table = pa.table({name: [row[n] for row in rows] for n, name in enumerate(("g", "x", "y"))})
    call = Aggregate(AggregateFunction.COVAR_POP, (left("x"), left("y")))
    node = Tree.source(table.schema).group("g", v=call).relation
    result = pa.Table.from_batches(run(node, {0: table.to_batches(max_chunksize=3)}, piece_bytes=1), node.schema)
    assert dict(zip(result["g"].to_pylist(), result["v.ck"].to_pylist(), strict=True)) == {0: INF, 1: 0.5, 2: 0.0}
