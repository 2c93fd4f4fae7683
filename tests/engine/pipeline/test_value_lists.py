"""Aggregates that keep all values of a group, sums that may be null, and regressions, against the row loop."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.aggregates import REGRESSIONS, AggregateFunction
from gpujoin.model.expressions import EvalMode, left
from gpujoin.model.relations import PartialAggregate
from tests.brief import brief
from tests.engine.pipeline.places import everywhere, run
from tests.engine.pipeline.test_aggregates import KINDS, check, random_table
from tests.trees import Aggregate, Tree, count

COUNTED = [kind for kind in KINDS if kind not in ("f32", "f64")]


def check_once(table: pa.Table, seed: int, **calls: Aggregate) -> None:
    """By key and without, in pieces, of no rows, and where memory suffices for no group."""
    for keys, pieces in ((("g",), 1), (("str", "g"), 7), ((), 7)):
        check(once(table, *keys, **calls), table, f"seed {seed}", pieces=pieces)
        check(once(table, *keys, **calls), table.slice(0, 0), "no rows")
    metrics = check(once(table, "g", **calls), table, f"seed {seed}", pieces=9, memory_budget=2000)
    assert metrics.spills > 0


def once(table: pa.Table, *keys: str, **calls: Aggregate) -> Tree:
    tree = Tree.source(table.schema, mode=EvalMode.LEGACY).group(*keys, **calls)
    assert isinstance(tree.relation, PartialAggregate)
    return Tree(dataclasses.replace(tree.relation, final=True), tree.mode)


@pytest.mark.few
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("kind", brief(COUNTED, "bool", "i32", "d38_18", "str", "bin", "ts"))
def test_modes(kind: str, descending: bool, rng: np.random.Generator, seed: int) -> None:
    table = random_table(rng, 200, 20)
    mode = Aggregate(AggregateFunction.MODE, (left(kind),), descending=descending)
    check_once(table, seed, v=mode, w=dataclasses.replace(mode, where=left("bool")), n=count())


@pytest.mark.few
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("function", [AggregateFunction.PERCENTILE, AggregateFunction.PERCENTILE_DISC])
@pytest.mark.parametrize("kind", ["i8", "i64", "f64"])
def test_several_percentages(
    kind: str, function: AggregateFunction, descending: bool, rng: np.random.Generator, seed: int
) -> None:
    table = random_table(rng, 200, 20)
    if kind == "f64":  # which of two zeros comes first is not said
        table = table.set_column(table.schema.get_field_index("f64"), "f64", pa.array(rng.normal(size=200)))
    percentages: dict[str, float | tuple[float, ...]] = {"v": (0.0, 0.3, 0.5, 1.0), "w": 0.25, "x": (0.9,)}
    calls = {
        name: Aggregate(function, (left(kind),), percentage=percentage, descending=descending)
        for name, percentage in percentages.items()
    }
    check_once(table, seed, **calls)


@pytest.mark.few
@pytest.mark.parametrize("kind", ["str", "bin"])
@pytest.mark.parametrize("directions", [(), ((False, True),), ((True, False),), ((True, True), (False, False))])
def test_joined_texts(
    kind: str, directions: tuple[tuple[bool, bool], ...], rng: np.random.Generator, seed: int
) -> None:
    table = random_table(rng, 200, 20).append_column("row", pa.array(rng.permutation(200)))
    by = (left("i32"), left("f64"))[: len(directions)]
    if directions:  # so that no two texts are in the same place
        by, directions = (*by, left("row")), (*directions, (False, True))
    call = Aggregate(AggregateFunction.LISTAGG, (left(kind), *by), delimiter=b", ", directions=directions)
    calls = {"v": call, "w": dataclasses.replace(call, where=left("bool"), delimiter=b"")}
    if directions:
        check_once(table, seed, **calls)
    else:
        check(once(table, "g", **calls), table, f"seed {seed}", pieces=7)
        check(once(table, **calls), table.slice(0, 0), "no rows")


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("sign", [1, -1])
def test_sums_that_are_null_where_they_overflow(sign: int, pieces: int, rng: np.random.Generator, seed: int) -> None:
    """Group 0 overflows, group 1 has nothing but nulls."""
    group = np.arange(200) % 9
    values = [
        None if g == 1 else sign * int(v) << (56 if g == 0 else 3)
        for g, v in zip(group, rng.integers(1, 99, 200), strict=True)
    ]
    table = pa.table({"g": pa.array(group, pa.int32()), "v": pa.array(values, pa.int64()), "b": rng.random(200) < 0.5})
    call = Aggregate(AggregateFunction.SUM, (left("v"),), mode=EvalMode.TRY)
    calls = {"v": call, "w": dataclasses.replace(call, where=left("b"))}
    for keys in (("g",), ()):
        tree = once(table, *keys, **calls)
        check(tree, table, f"seed {seed}", pieces=pieces)
        check(tree, table.slice(0, 0), "no rows")


def test_a_sum_that_overflows_in_some_orders_fails() -> None:
    table = pa.table({"v": pa.array([(1 << 63) - 1, 1, -1])})
    tree = once(table, v=Aggregate(AggregateFunction.SUM, (left("v"),), mode=EvalMode.TRY))
    with pytest.raises(ExpressionEvaluationError, match="the order of rows"):
        list(run(tree.relation, {0: table}))


@everywhere
@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("function", sorted(REGRESSIONS, key=str))
def test_regressions(function: AggregateFunction, pieces: int, rng: np.random.Generator, seed: int) -> None:
    """Group 2 has no pairs, group 3 one x; in all others either may be null."""
    rows, group = 400, np.arange(400) % 7
    x = pa.array(np.where(group == 3, 0.1, rng.normal(50.0, 9.0, rows)), mask=rng.random(rows) < 0.2)
    y = pa.array(rng.normal(-7.0, 3.0, rows), mask=(rng.random(rows) < 0.2) | (group == 2))
    table = pa.table({"g": pa.array(group, pa.int32()), "x": x, "y": y})
    call = Aggregate(function, (left("y"), left("x")))
    calls = {"v": call, "w": dataclasses.replace(call, where=left("x") > 50.0)}
    for keys in (("g",), ()):
        tree = Tree.source(table.schema).group(*keys, **calls)
        check(tree, table, f"seed {seed}", pieces=pieces)
        check(tree, table.slice(0, 0), "no rows")
