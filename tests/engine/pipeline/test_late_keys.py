"""Grouping keys of a build side that are gathered for groups, not for rows, compared with the row loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.config import Options
from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.expressions import Literal, left, lit
from gpujoin.model.jointype import Side
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import ExchangeSource, Expand, Output, PartialAggregate, Union, column
from gpujoin.plan.late_keys import late_keys
from tests.engine.pipeline.places import everywhere, on_device, run
from tests.oracle.aggregates import aggregated, assert_same_groups, merged
from tests.trees import Aggregate, Tree, average, count, total

ROWS, BUILT = 600, 80


@pytest.fixture
def sales(rng: np.random.Generator) -> pa.Table:
    """Rows of customers, some unknown and some null, and of shops."""
    customers = rng.integers(0, BUILT + 20, ROWS)
    return pa.table({
        "who": pa.array(customers, mask=rng.random(ROWS) < 0.1),
        "shop": pa.array(rng.integers(0, 5, ROWS), pa.int32()),
        "v": pa.array(rng.integers(-(1 << 40), 1 << 40, ROWS), mask=rng.random(ROWS) < 0.1),
    })  # fmt: skip


@pytest.fixture
def customers(rng: np.random.Generator) -> pa.Table:
    """Customers of whom several are alike, and some of whom nothing is known."""
    numbers = rng.integers(0, 12, BUILT)
    special = np.array([np.nan, 0.0, -0.0, np.inf, 1.5, -1.5])[numbers % 6]
    return pa.table({
        "id": pa.array(range(BUILT)),
        "name": pa.array([None if n < 3 else f"name {n % 7}" for n in numbers]),
        "score": pa.array(special, mask=numbers < 3),
        "age": pa.array(numbers, pa.int32()),
    })  # fmt: skip


SHOPS = pa.table({"s": pa.array(range(4), pa.int32()), "town": ["a", "b", None, "a"]})

AGGREGATES: dict[str, Aggregate] = {"n": count(), "t": total(left("v")), "m": average(left("v"))}


def check(
    tree: Callable[[Tree, Tree], Tree], sales: pa.Table, customers: pa.Table, seed: int, *, final: bool = False,
    **options: Any,
) -> PipelineMetrics:  # fmt: skip
    """Run in ten pieces, and compare with the row loop over the rows of the join."""
    grouped = tree(Tree.source(sales.schema, 0), Tree.source(customers.schema, 1)).relation
    assert isinstance(grouped, PartialAggregate)
    node = dataclasses.replace(grouped, final=final)
    metrics = PipelineMetrics()
    inputs = {0: sales.to_batches(max_chunksize=max(1, len(sales) // 10)), 1: customers, 2: SHOPS}
    out = run(node, inputs, piece_bytes=1, options=Options(**options), metrics=metrics)
    partial = pa.Table.from_batches(out, node.schema)
    rows = pa.Table.from_batches(run(node.child, {**inputs, 0: sales}), node.child.schema)
    given = node.with_children([ExchangeSource(0, rows.schema)])
    assert isinstance(given, PartialAggregate)
    assert_same_groups(merged(node, partial), aggregated(given, rows), f"seed {seed}")
    for key in partial.columns[: len(node.keys)]:
        assert "-0.0" not in map(str, key.to_pylist()), "a key of a group is no negative zero, whatever its rows have"
    if final:
        keys = partial.select(range(len(node.keys)))
        assert len(set(map(str, zip(*keys.to_pydict().values(), strict=True)))) == keys.num_rows
    return metrics


@everywhere
@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_join_types(how: str, final: bool, sales: pa.Table, customers: pa.Table, seed: int) -> None:
    """A row that the join pads is in one group with a customer of whom nothing is known."""
    metrics = check(
        lambda s, c: s.join(c, {"who": "id"}, how).group("name", "score", **AGGREGATES),
        sales, customers, seed, final=final,
    )  # fmt: skip
    assert metrics.late_keys == (not on_device())


PATHS: dict[str, tuple[Callable[[Tree, Tree], Tree], int]] = {
    "left side built": (lambda s, c: c.join(s, {"id": "who"}, build=Side.LEFT).group("name", "shop", **AGGREGATES), 1),
    "the join's key too": (lambda s, c: s.join(c, {"who": "id"}).group("id", "name", **AGGREGATES), 1),
    "keys alone": (lambda s, c: s.join(c, {"who": "id"}).group("name", "score"), 1),
    "renamed, and filtered by others": (
        lambda s, c: (
            s.join(c, {"who": "id"}).where((left("age") > 2) & (left("shop") > 0))
            .select("v", "shop", title=left("name"), x=left("score")).group("shop", "title", "x", **AGGREGATES)
        ), 1,
    ),
    "below another join": (
        lambda s, c: (
            s.join(c, {"who": "id"}).join(Tree.source(SHOPS.schema, 2), {"shop": "s"}, "left")
            .group("town", "name", "score", **AGGREGATES)
        ), 1,
    ),
    "read by a filter": (
        lambda s, c: s.join(c, {"who": "id"}).where(left("name") != "name 3").group("name", **AGGREGATES), 1,
    ),
    "computed": (
        lambda s, c: (
            s.join(c, {"who": "id"}).select("v", "shop", x=left("name").is_null(), y=left("name"))
            .group("x", "y", **AGGREGATES)
        ), 1,
    ),
    "computed of padded rows": (
        lambda s, c: (
            s.join(c, {"who": "id"}, "left").select("v", "shop", x=left("name").is_null(), y=left("name"))
            .group("x", "y", **AGGREGATES)
        ), 0,
    ),
    "read by a condition": (
        lambda s, c: s.join(c, {"who": "id"}, condition=left("shop") > 1).group("name", **AGGREGATES), 1,
    ),
    "aggregated too": (
        lambda s, c: (
            s.join(c, {"who": "id"}).group("name", n=count(left("name")), t=total(left("v")), a=total(left("age")))
        ), 1,
    ),
    "gathered for lists": (
        lambda s, c: (
            s.join(c, {"who": "id"}).group("name", a=Aggregate(AggregateFunction.COLLECT_SET, (left("name"),)))
        ), 1,
    ),
    "no texts": (lambda s, c: s.join(c, {"who": "id"}).group("score", "age", **AGGREGATES), 0),
    "of both sides": (lambda s, c: s.join(c, {"who": "id"}).group("shop", "name", "age", **AGGREGATES), 1),
}  # fmt: skip
"""Aggregations over joins, and how many of them gather keys late."""


@pytest.mark.parametrize("path", PATHS)
def test_what_stands_between(path: str, sales: pa.Table, customers: pa.Table, seed: int) -> None:
    tree, late = PATHS[path]
    metrics = check(tree, sales, customers, seed, final=True)
    assert metrics.late_keys == late


@pytest.mark.parametrize("rows", [0, 1, BUILT // 2, BUILT // 2 + 1])
def test_few_rows_are_grouped_by_the_keys_themselves(
    rows: int, sales: pa.Table, customers: pa.Table, seed: int
) -> None:
    known = sales.set_column(0, "who", pa.array(np.arange(ROWS) % BUILT)).slice(0, rows)
    metrics = check(
        lambda s, c: s.join(c, {"who": "id"}).group("shop", "name", "score", **AGGREGATES), known, customers, seed
    )
    assert metrics.late_keys == (rows > BUILT // 2)


def test_a_build_side_without_rows(sales: pa.Table, customers: pa.Table, seed: int) -> None:
    for how in ("inner", "left"):
        check(
            lambda s, c: s.join(c, {"who": "id"}, how).group("name", "shop", **AGGREGATES),  # noqa: B023
            sales, customers.slice(0, 0), seed,
        )  # fmt: skip


def test_memory(sales: pa.Table, customers: pa.Table, seed: int) -> None:
    """A build side that does not fit is joined on disk, with its keys; groups that do not fit go to disk by number."""
    wide = customers.set_column(1, "name", pa.array([f"{n % 60}" + "x" * 3000 for n in range(BUILT)]))

    def tree(s: Tree, c: Tree) -> Tree:
        return s.join(c, {"who": "id"}).group("name", "shop", "v", **AGGREGATES)

    spilled = check(tree, sales, wide, seed, final=True, memory_budget=1 << 18)
    assert spilled.late_keys == 0
    divided = check(tree, sales, customers, seed, final=True, memory_budget=1 << 16)
    assert (divided.late_keys, divided.spills > 0) == (1, True)


def test_a_part_that_others_read_too_is_left_as_it_is(sales: pa.Table, customers: pa.Table) -> None:
    joined = Tree.source(sales.schema, 0).join(Tree.source(customers.schema, 1), {"who": "id"})
    grouped = joined.group("name", n=count()).relation
    assert isinstance(grouped, PartialAggregate)
    assert late_keys(grouped, ()) is not None
    assert late_keys(grouped, [joined.relation]) is None
    other = joined.group("score", n=count()).relation
    both = Union((Tree(grouped).select("n.count").relation, Tree(other).select("n.count").relation))
    inputs = {0: sales, 1: customers}
    metrics = PipelineMetrics()
    rows = pa.Table.from_batches(run(both, inputs, metrics=metrics), both.schema)
    assert sum(rows.column(0).to_pylist()) == 2 * sum(b.num_rows for b in run(joined.relation, inputs))
    assert (metrics.late_keys, metrics.parts_reused) == (0, 1)


def test_projections_above_one_another_that_read_a_column_twice(sales: pa.Table, customers: pa.Table) -> None:
    """There are 2**60 ways down to the join: keys that small are gathered late, larger ones are left where they are."""
    joined = Tree.source(sales.schema, 0).join(Tree.source(customers.schema, 1), {"who": "id"})
    plans = []
    for depth in (3, 60):
        tree = joined.select("v", name=left("name"), age=left("age"))
        for _ in range(depth):
            tree = tree.select("v", "name", age=left("age").is_null() == left("age").is_null())
        grouped = tree.group("name", "age", n=count()).relation
        assert isinstance(grouped, PartialAggregate)
        plans.append(late_keys(grouped, ()))
    small, large = plans
    assert small is not None
    assert len(small.keys) == 2
    assert large is None


KEYS = ("name", "score", "shop")
SETS: dict[str, tuple[tuple[str, ...], ...]] = {
    "rollup": (KEYS, ("name", "score"), ("name",), ()),
    "rollup from the other end": (("shop", "name", "score"), ("shop", "name"), ("shop",), ()),
    "late keys apart": (KEYS, ("score", "shop"), ("name", "shop"), ("score",), ("name",), ("shop",)),
}


def by_sets(tree: Tree, sets: tuple[tuple[str, ...], ...]) -> Tree:
    """Aggregate by several sets of keys, as Spark plans it."""
    schema = tree.schema

    def key(name: str, kept: tuple[str, ...]) -> Output:
        own = column(schema, name)
        return Output(f"{name}'", own if name in kept else Literal(value=None, type=own.type))

    ways = tuple(
        (Output("v", column(schema, "v")), *(key(name, kept) for name in KEYS), Output("set", lit(n, pa.int64())))
        for n, kept in enumerate(sets)
    )
    return Tree(Expand(tree.relation, ways)).group(*(f"{name}'" for name in KEYS), "set", **AGGREGATES)


@pytest.mark.few
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("sets", SETS)
def test_grouping_sets_have_numbers_for_the_late_keys_that_each_keeps(
    sets: str, how: str, sales: pa.Table, customers: pa.Table, seed: int
) -> None:
    def tree(s: Tree, c: Tree) -> Tree:
        return by_sets(s.join(c, {"who": "id"}, how), SETS[sets])

    metrics = check(tree, sales, customers, seed, final=True)
    assert (metrics.late_keys, metrics.regrouped_sets) == (1, len(SETS[sets]) - 1)
    few = check(tree, sales.slice(0, BUILT // 2), customers, seed, final=True)
    assert (few.late_keys, few.regrouped_sets) == (0, len(SETS[sets]) - 1)
    spilled = check(tree, sales, customers, seed, final=True, memory_budget=1 << 14)
    assert (spilled.late_keys, spilled.spills > 0) == (1, True)
