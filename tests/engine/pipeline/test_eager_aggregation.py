"""Aggregations over joins with keys of many rows: the build side is aggregated first, where nothing else changes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gpujoin.engine.pipeline import run, supports
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.expressions import EvalMode, coalesce, left, lit
from gpujoin.model.jointype import Side
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import Join, PartialAggregate
from gpujoin.model.spec import AsOf, NullEquality
from gpujoin.plan.eager_aggregation import EagerAggregation, eager_aggregation
from tests.oracle.aggregates import aggregated, assert_same_groups, merged
from tests.oracle.join import oracle_join
from tests.trees import Aggregate, Tree, count, total

LEAST, MOST = AggregateFunction.MIN, AggregateFunction.MAX


def sides(rng: np.random.Generator) -> tuple[pa.Table, pa.Table]:
    """Few keys, null among them, and one that has most rows of both sides; values with nulls, NaN and −0.0."""

    def column(values: Any, dtype: pa.DataType, nulls: float = 0.2) -> pa.Array:
        return pa.array(values, dtype, mask=rng.random(len(values)) < nulls)

    def side(rows: int, names: tuple[str, str, str, str, str]) -> pa.Table:
        keys = np.where(rng.random(rows) < 0.6, 7, rng.integers(0, 9, rows))
        k, i, n, f, s = names
        return pa.table({
            k: column(keys, pa.int32(), 0.1), i: column(rng.integers(-9, 9, rows), pa.int32()),
            n: column(rng.integers(-99, 99, rows), pa.int64()),
            f: column(rng.choice([0.0, -0.0, 1.5, np.nan, -np.inf], rows), pa.float64()),
            s: column(rng.choice(["", "é", "z"], rows), pa.string()),
        })  # fmt: skip

    return side(40, ("k", "i", "n", "f", "s")), side(30, ("q", "j", "m", "g", "t"))


def tree(
    left_table: pa.Table, right_table: pa.Table, build: Side, mode: EvalMode = EvalMode.ANSI,
    nulls: NullEquality = NullEquality.UNEQUAL, how: str = "inner",
) -> Tree:  # fmt: skip
    left_tree, right_tree = (
        Tree.source(left_table.schema, 0, mode=mode),
        Tree.source(right_table.schema, 1, mode=mode),
    )
    return left_tree.join(right_tree, {"k": "q"}, how, build=build, nulls=nulls)


def check(made: Tree, left_table: pa.Table, right_table: pa.Table, *, eager: int, context: str = "") -> None:
    node = made.relation
    assert isinstance(node, PartialAggregate)
    assert isinstance(node.child, Join)
    assert supports(node) == ()
    pairs = oracle_join(left_table, right_table, node.child.spec)
    for rows in (1000, 13):
        metrics = PipelineMetrics()
        inputs = {0: left_table.to_batches(max_chunksize=rows), 1: right_table.to_batches(max_chunksize=rows)}
        out = run(node, inputs, metrics=metrics, piece_bytes=1)
        partial = pa.Table.from_batches(out, node.schema)
        assert_same_groups(merged(node, partial), aggregated(node, pairs), f"{context}, {rows} rows a batch")
        assert metrics.eager_aggregations == eager
        if not node.keys:
            assert partial.num_rows == 1


def every(build: Side) -> dict[str, Aggregate]:
    """All that can be computed of a key's rows as one, with the sides exchanged for the other build side."""
    i, n, j, m = map(left, ("i", "n", "j", "m") if build is Side.RIGHT else ("j", "m", "i", "n"))
    return {
        "pairs": count(), "of_stream": count(i), "of_build": count(j, m), "s": total(i), "t": total(m),
        "sum": total(i + lit(2) * j), "difference": total(j - i), "other": total(n - m), "product": total(m * n),
        "least": Aggregate(LEAST, (left("f"),)), "most": Aggregate(MOST, (left("g"),)),
        "text": Aggregate(MOST, (left("s"),)), "texts": Aggregate(LEAST, (left("t"),)),
        "computed": Aggregate(MOST, (m * lit(3),)),
    }  # fmt: skip


@pytest.mark.few
@pytest.mark.parametrize("build", Side, ids=lambda side: f"build {side.value}")
@pytest.mark.parametrize("keys", [(), ("i",), ("k", "s")], ids=str)
def test_against_the_row_loop(keys: tuple[str, ...], build: Side, rng: np.random.Generator, seed: int) -> None:
    left_table, right_table = sides(rng)
    names = keys if build is Side.RIGHT else tuple({"i": "j", "k": "q", "s": "t"}[key] for key in keys)
    ways = ((EvalMode.ANSI, NullEquality.UNEQUAL), (EvalMode.LEGACY, NullEquality.EQUAL))
    for mode, nulls in ways:
        made = tree(left_table, right_table, build, mode, nulls).group(*names, **every(build))
        assert isinstance(made.relation, PartialAggregate)
        once = dataclasses.replace(made.relation, final=nulls is NullEquality.EQUAL)
        context = f"seed {seed}, {mode.value}, {nulls.value}"
        check(dataclasses.replace(made, relation=once), left_table, right_table, eager=1, context=context)


@pytest.mark.few
@pytest.mark.parametrize("build", Side, ids=lambda side: f"build {side.value}")
@pytest.mark.parametrize("keys", [(), ("i",), ("k", "s")], ids=str)
def test_outer_joins_against_the_row_loop(
    keys: tuple[str, ...], build: Side, rng: np.random.Generator, seed: int
) -> None:
    """A half of the streamed rows, and those with a null for a key, have no match."""
    left_table, right_table = sides(rng)
    if build is Side.RIGHT:
        names, how, right_table = keys, "left", right_table.filter(pc.greater(right_table["q"], 5))
    else:
        names, how, left_table = keys, "right", left_table.filter(pc.greater(left_table["k"], 5))
        names = tuple({"i": "j", "k": "q", "s": "t"}[key] for key in keys)
    for mode, nulls in ((EvalMode.ANSI, NullEquality.UNEQUAL), (EvalMode.LEGACY, NullEquality.EQUAL)):
        made = tree(left_table, right_table, build, mode, nulls, how).group(*names, **every(build))
        check(made, left_table, right_table, eager=1, context=f"seed {seed}, {mode.value}, {nulls.value}")


def test_many_rows_of_each_of_many_keys(rng: np.random.Generator) -> None:
    """The commonest key of a sample has few rows, but there are fewer possible keys than a tenth of the rows."""
    rows = 600_000
    numbers = pa.table({"q": pa.array(rng.integers(0, 50_000, rows), pa.int32()), "j": rng.integers(0, 9, rows)})
    streamed = pa.table({"k": pa.array(np.arange(0, 100_000), pa.int32()), "i": np.arange(0, 100_000) % 5})
    made = tree(streamed, numbers, Side.RIGHT, how="left").group("i", n=count(), c=count(left("j")), s=total(left("j")))
    metrics = PipelineMetrics()
    out = pa.Table.from_batches(run(made.relation, {0: streamed, 1: numbers}, metrics=metrics), made.relation.schema)
    assert metrics.eager_aggregations == 1
    keys, values = numbers["q"].to_numpy(), numbers["j"].to_numpy()
    matched = np.bincount(keys, minlength=100_000)
    for row in out.to_pylist():
        of_group = np.arange(0, 100_000) % 5 == row["i"]
        assert row["n.count"] == np.maximum(matched, 1)[of_group].sum()
        assert row["c.count"] == matched[of_group].sum()
        assert row["s.sum"] == values[keys % 5 == row["i"]].sum()


def test_empty_sides(rng: np.random.Generator) -> None:
    left_table, right_table = sides(rng)
    for left_rows, right_rows in (
        (left_table.slice(0, 0), right_table),
        (left_table, right_table.slice(0, 0)),
        (left_table.slice(0, 0), right_table.slice(0, 0)),
    ):
        made = tree(left_table, right_table, Side.RIGHT).group(**every(Side.RIGHT))
        check(made, left_rows, right_rows, eager=int(right_rows.num_rows > 0))


def test_what_may_overflow_is_computed_pair_by_pair() -> None:
    """Sums that stay within 64 bits although products on the way would not, and the error of one pair."""
    big = 1 << 61
    keys = pa.array([1] * 20, pa.int32())
    near = pa.table({"k": keys, "i": pa.array([5] * 20, pa.int32()), "n": pa.array([big, -big] * 10)})
    right_table = pa.table({"q": keys, "j": pa.array([1] * 20, pa.int32()), "m": pa.array([1] * 20)})
    made = tree(near, right_table, Side.RIGHT).group(a=total(left("n") + left("m")), b=count(), c=total(left("n")))
    check(made, near, right_table, eager=1)
    # The sum over the build side's own rows might overflow: then it is not aggregated at all.
    other = near.rename_columns(["q", "j", "m"])
    left_table = right_table.rename_columns(["k", "i", "n"])
    check(tree(left_table, other, Side.RIGHT).group(a=total(left("m"))), left_table, other, eager=0)
    far = near.set_column(2, "n", pa.array([(1 << 63) - 1] * 20))
    failing = tree(far, right_table, Side.RIGHT).group(a=total(left("n") + left("m")), b=count())
    with pytest.raises(ExpressionEvaluationError, match="overflow"):
        list(run(failing.relation, {0: far.to_batches(), 1: right_table.to_batches()}))


def test_unique_and_light_keys_are_joined_first(rng: np.random.Generator) -> None:
    left_table, _ = sides(rng)
    right_table = pa.table({"q": pa.array(range(9), pa.int32()), "j": pa.array(range(9), pa.int32())})
    check(
        tree(left_table, right_table, Side.RIGHT).group("i", a=count(), b=total(left("j"))),
        left_table,
        right_table,
        eager=0,
    )


def eager_aggregation_of(made: Tree) -> EagerAggregation | None:
    assert isinstance(made.relation, PartialAggregate)
    return eager_aggregation(made.relation)


def test_aggregations_that_are_not_eager(rng: np.random.Generator) -> None:
    left_table, right_table = sides(rng)
    left_tree, right_tree = Tree.source(left_table.schema, 0), Tree.source(right_table.schema, 1)
    joined = tree(left_table, right_table, Side.RIGHT)
    outer = tree(left_table, right_table, Side.RIGHT, how="left").relation
    assert isinstance(outer, Join)
    assert eager_aggregation_of(Tree(outer).group(a=count())) is not None
    outer_tree = Tree(outer)
    nearest = Tree(dataclasses.replace(outer, spec=dataclasses.replace(outer.spec, as_of=AsOf(2, 2))))
    for name, made in {
        "groups of the build side": joined.group("j", a=count()),
        "both sides' columns are counted": joined.group(a=count(left("i"), left("j"))),
        "floats are summed in any order, not multiplied": joined.group(a=total(left("f"))),
        "the larger of both sides": joined.group(a=Aggregate(MOST, (left("n") + left("m"),))),
        "no linear sum": joined.group(a=total(left("i") * left("j") + left("n"))),
        "a filter": joined.group(a=Aggregate(AggregateFunction.COUNT, (), left("i") > lit(3))),
        "a condition": left_tree.join(right_tree, {"k": "q"}, condition=left("i") < lit(3)).group(a=count()),
        "the build side's rows are kept": left_tree.join(right_tree, {"k": "q"}, "right").group(a=count()),
        "the nearest row of the build side": nearest.group(a=count()),
        "a value of a row without a match": outer_tree.group(a=total(coalesce(left("m"), lit(5)))),
        "the same, the greatest": outer_tree.group(a=Aggregate(MOST, (coalesce(left("m"), lit(99)),))),
        "a count of rows without a match": outer_tree.group(a=count(coalesce(left("m"), lit(5)))),
        "a sum with it": outer_tree.group(a=total(left("n") + coalesce(left("m"), lit(7)))),
        "whether there is no match": outer_tree.group(a=Aggregate(MOST, (left("q").is_null(),))),
        "all rows are kept": left_tree.join(right_tree, {"k": "q"}, "full").group(a=count()),
    }.items():
        assert eager_aggregation_of(made) is None, name


def test_the_worked_example() -> None:
    """`gpujoin.plan.eager_aggregation`: five pairs in two groups."""
    left_table = pa.table({"g": ["x", "x", "y"], "k": pa.array([1, 1, 2], pa.int32()), "v": [7, 8, 9]})
    right_table = pa.table({"q": pa.array([1, 1, 2], pa.int32()), "w": [10, 20, 5]})
    joined = tree(left_table, right_table, Side.RIGHT)
    made = joined.group("g", n=count(), w=total(left("w")), v=total(left("v")))
    node = made.relation
    assert isinstance(node, PartialAggregate)
    assert eager_aggregation(node) is not None
    out = pa.Table.from_batches(run(node, {0: left_table.to_batches(), 1: right_table.to_batches()}), node.schema)
    rows = {tuple(row.values()) for row in out.to_pylist()}
    assert rows == {("x", 4, 60, 30), ("y", 1, 5, 9)}
