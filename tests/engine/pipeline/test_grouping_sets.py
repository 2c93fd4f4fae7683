"""Grouping sets that are merged from the groups of finer ones, compared with the row loop."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.config import Options
from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.expressions import Literal, left
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import ExchangeSource, Expand, Output, PartialAggregate, column
from gpujoin.plan.grouping_sets import grouping_sets, most_held
from tests.brief import brief
from tests.engine.pipeline.places import everywhere, on_device, run
from tests.oracle.aggregates import aggregated, assert_same_groups, merged
from tests.trees import Aggregate, Tree, average, count, total

ROWS = 1_000
AMOUNT = pa.decimal128(18, 2)
KEYS = ("a", "b", "c")
ROLLUP = (("a", "b", "c"), ("a", "b"), ("a",), ())
CUBE = tuple(itertools.chain.from_iterable(itertools.combinations(KEYS, n) for n in range(4)))
SETS: dict[str, tuple[tuple[tuple[str, ...], ...], int]] = {
    "rollup": (ROLLUP, 3),
    "cube": (CUBE, 7),
    "the finest in the middle": ((("b",), ("a", "b", "c"), ("a", "c")), 2),
    "a set twice": ((("a", "b"), ("a", "b"), ("b",), ("b",)), 3),
    "without a set of all keys": ((("a", "b"), ("b", "c")), 0),
}
"""The sets, and how many are merged from finer ones."""


@pytest.fixture
def table(rng: np.random.Generator) -> pa.Table:
    """Keys with nulls of their own, special numbers, and some 700 groups of all keys."""
    a, b, c = (rng.integers(0, n, ROWS) for n in (6, 12, 25))
    return pa.table({
        "a": pa.array([None if v == 0 else f"text {v}" for v in a]),
        "b": pa.array(b, pa.int32(), mask=b == 1),
        "c": pa.array(np.array([np.nan, 0.0, -0.0, np.inf, *range(21)])[c], mask=c == 7),
        "v": pa.array(rng.integers(-(1 << 62), 1 << 62, ROWS), mask=rng.random(ROWS) < 0.1),
        "d": pa.array([Decimal(int(v)).scaleb(-2) for v in rng.integers(-(10**15), 10**15, ROWS)], AMOUNT),
        "x": pa.array(rng.normal(5.0, 2.0, ROWS), mask=rng.random(ROWS) < 0.1),
    })  # fmt: skip


def tree(table: pa.Table, sets: Sequence[Sequence[str]], *, final: bool = True) -> PartialAggregate:
    """An aggregation as Spark plans it: over each row once for each set, with the set's number."""
    source = Tree.source(table.schema)
    payload = [Output(name, column(table.schema, name)) for name in ("v", "d", "x")]

    def key(name: str, kept: Sequence[str]) -> Output:
        own = column(table.schema, name)
        return Output(f"{name}'", own if name in kept else Literal(value=None, type=own.type))

    ways = tuple(
        (*payload, *(key(name, kept) for name in KEYS), Output("set", Literal(value=n, type=pa.int64())))
        for n, kept in enumerate(sets)
    )
    expanded = Tree(Expand(source.relation, ways))
    grouped = expanded.group(
        *(f"{name}'" for name in KEYS), "set", n=count(), v=count(left("v")), d=total(left("d")),
        least=Aggregate(AggregateFunction.MIN, (left("v"),)), some=total(left("d"), left("v") > 0),
        spread=Aggregate(AggregateFunction.VAR_POP, (left("x"),)), mean=average(left("d")),
    ).relation  # fmt: skip
    assert isinstance(grouped, PartialAggregate)
    return dataclasses.replace(grouped, final=final)


def check(node: PartialAggregate, table: pa.Table, seed: int, **options: Any) -> PipelineMetrics:
    """Run in ten pieces, and compare with the row loop over what the ``Expand`` gives."""
    metrics = PipelineMetrics()
    batches = table.to_batches(max_chunksize=ROWS // 10)
    out = run(node, {0: batches}, piece_bytes=1, options=Options(**options), metrics=metrics)
    partial = pa.Table.from_batches(out, node.schema)
    rows = pa.Table.from_batches(run(node.child, {0: table}), node.child.schema)
    given = node.with_children([ExchangeSource(0, rows.schema)])
    assert isinstance(given, PartialAggregate)
    assert_same_groups(merged(node, partial), aggregated(given, rows), f"seed {seed}")
    if node.final:
        keys = partial.select(range(len(node.keys)))
        assert keys.group_by(keys.schema.names).aggregate([]).num_rows == keys.num_rows
    return metrics


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize("sets", SETS)
def test_sets_are_merged_from_finer_ones(sets: str, final: bool, table: pa.Table, seed: int) -> None:
    kept, merged_sets = SETS[sets]
    metrics = check(tree(table, kept, final=final), table, seed)
    assert metrics.regrouped_sets == (0 if on_device() else merged_sets)


@pytest.mark.parametrize("sets", brief(["rollup", "cube"], "rollup"))
def test_sets_beyond_memory(sets: str, table: pa.Table, seed: int) -> None:
    """Groups that come once go to disk, those that may come often are returned early, in all sets."""
    kept, merged_sets = SETS[sets]
    spilled = check(tree(table, kept), table, seed, memory_budget=1 << 18)
    early = check(tree(table, kept, final=False), table, seed, memory_budget=1 << 18)
    assert (spilled.regrouped_sets, early.regrouped_sets) == (merged_sets, merged_sets)
    assert spilled.spills > 0
    assert early.early_groups > 0


def test_no_rows_have_no_groups(table: pa.Table, seed: int) -> None:
    """Not even that of the set without keys, as in Spark."""
    metrics = check(tree(table, ROLLUP), table.slice(0, 0), seed)
    assert metrics.groups == 0


def test_an_aggregate_of_a_key_that_sets_leave_out_is_computed_of_rows(table: pa.Table) -> None:
    """As distinct aggregates of several columns have it: each reads its own copies of the rows."""
    node = tree(table, ROLLUP)
    assert grouping_sets(node) is not None
    of_key = Tree(node.child).group("a'", "set", n=count(left("b'"))).relation
    assert isinstance(of_key, PartialAggregate)
    assert grouping_sets(of_key) is None


@everywhere
@pytest.mark.parametrize("final", [True, False])
def test_a_set_with_neither_keys_nor_aggregates_is_a_row_without_values(
    table: pa.Table, seed: int, final: bool
) -> None:
    without_aggregates = dataclasses.replace(tree(table, ROLLUP, final=final), aggregates=())
    assert grouping_sets(without_aggregates) is None
    check(without_aggregates, table, seed)


@everywhere
@pytest.mark.parametrize("final", [True, False])
def test_groups_of_two_sets_that_may_be_one_group_are_not_given_twice(table: pa.Table, seed: int, final: bool) -> None:
    """As Spark has it where an aggregation above asks neither for the sets' number nor for a key that only one has."""
    of_all = Tree(tree(table, (("a", "b"), ("b",))).child)
    grouped = of_all.group("a'", v=count(left("v"))).relation
    assert isinstance(grouped, PartialAggregate)
    node = dataclasses.replace(grouped, final=final)
    assert (grouping_sets(node) is None) is final
    check(node, table, seed)


def test_each_set_is_merged_from_the_one_with_fewest_keys(table: pa.Table) -> None:
    sets = grouping_sets(tree(table, CUBE))
    assert sets is not None
    assert [each.keys for each in sets.sets] == [(0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,), ()]
    assert [each.source for each in sets.sets] == [None, 0, 0, 0, 1, 1, 2, 4]
    assert most_held(sets.finest, [each.source for each in sets.sets]) == 4
    rollup = grouping_sets(tree(table, ROLLUP))
    assert rollup is not None
    assert most_held(rollup.finest, [each.source for each in rollup.sets]) == 2


def test_rows_with_lists_that_no_set_reads(table: pa.Table, seed: int) -> None:
    with_lists = table.append_column("tags", pa.array([["x"], None] * (ROWS // 2)))
    assert check(tree(with_lists, ROLLUP), with_lists, seed).regrouped_sets == 3
