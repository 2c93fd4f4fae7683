"""Parts that occur several times in a tree: computed once where they may be, with the same rows everywhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpujoin.config import Options
from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.expressions import EvalMode, left
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import Limit, PartialAggregate, Relation, Union
from gpujoin.plan.null_groups import with_null_groups
from gpujoin.plan.repeated import repeated_parts
from gpujoin.testing import assert_same_rows
from tests.engine.pipeline.places import everywhere, run
from tests.trees import Aggregate, Tree, count, total

ROWS = 20_000


@pytest.fixture
def path(tmp_path: Path, rng: np.random.Generator) -> Path:
    """A file of keys with nulls, and numbers."""
    keys = rng.integers(0, 500, ROWS)
    table = pa.table({
        "k": pa.array(keys, mask=keys % 50 == 0),
        "n": pa.array(rng.integers(0, 100, ROWS), pa.int32()),
        "x": pa.array(rng.choice([0.0, -0.0, 1.5, np.nan], ROWS)),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


def sums(path: Path, index: int, limit: int = 0) -> Tree:
    """Sums by key of a scan with a number of its own."""
    return filtered(path, index, limit).group("k", s=total(left("n")))


def filtered(path: Path, index: int = 1, limit: int = 0) -> Tree:
    return Tree.scan(path, ["k", "n"], index=index).where(left("n") >= limit)


def ran(tree: Relation, **settings: int) -> tuple[pa.Table, PipelineMetrics]:
    metrics = PipelineMetrics()
    batches = run(tree, options=Options(**settings), metrics=metrics)  # type: ignore[arg-type]
    return pa.Table.from_batches(list(batches), tree.schema), metrics


@everywhere
def test_equal_parts_are_computed_once(path: Path) -> None:
    joined = sums(path, 0).join(sums(path, 1).select(key=left("k"), other=left("s.sum")), {"k": "key"}).relation
    result, metrics = ran(joined)
    # They differ by the projection above one of them, which is computed each time.
    assert (metrics.parts_reused, metrics.scanned_rows) == (1, ROWS)
    expected, alone = ran(sums(path, 0).relation)
    assert alone.parts_reused == 0
    assert result.num_rows == expected.num_rows - 1  # without the group of null
    assert result["s.sum"].equals(result["other"])
    assert_same_rows(result.select(["k", "s.sum"]), expected.filter(expected["k"].is_valid()).select(["k", "s.sum"]))


@pytest.mark.parametrize("budget", [1, 1 << 30])
def test_where_memory_is_short_they_are_computed_again(path: Path, budget: int) -> None:
    tree = Union((sums(path, 0).relation, sums(path, 1).relation, sums(path, 2).relation))
    result, metrics = ran(tree, memory_budget=budget)
    expected, _ = ran(sums(path, 0).relation)
    assert_same_rows(result, pa.concat_tables([expected] * 3))
    assert (metrics.parts_reused, metrics.scanned_rows) == ((0, 3 * ROWS) if budget == 1 else (2, ROWS))


def test_a_part_that_was_not_read_to_its_end_is_computed_again(path: Path) -> None:
    once = Limit(sums(path, 0).relation, 3)
    result, metrics = ran(Union((once, sums(path, 1).relation)))
    expected, _ = ran(sums(path, 0).relation)
    assert result.num_rows == expected.num_rows + 3
    assert metrics.scanned_rows in (ROWS, 2 * ROWS)


@pytest.mark.parametrize(
    "other",
    [
        lambda path: sums(path, 1, limit=5),
        lambda path: filtered(path).group("k", s=total(left("n"), left("n") > 3)),
    ],
    ids=["filter", "filtered aggregate"],
)
def test_parts_that_differ_are_not_taken_for_equal(path: Path, other: Callable[[Path], Tree]) -> None:
    tree = Union((sums(path, 0).relation, other(path).relation))
    _, metrics = ran(tree)
    assert (metrics.parts_reused, metrics.scanned_rows) == (0, 2 * ROWS)


def test_zeros_of_both_signs_are_different_constants(path: Path) -> None:
    def signed(zero: float, index: int) -> Relation:
        grouped = Tree.scan(path, ["k", "n"], index=index).select("k", z=zero).group("k", "z")
        return grouped.relation

    result, metrics = ran(Union((signed(0.0, 0), signed(-0.0, 1))))
    assert metrics.parts_reused == 0
    assert result.num_rows == 2 * (ran(signed(0.0, 0))[0].num_rows)


def test_names_of_columns_do_not_count(path: Path) -> None:
    """A view used twice: Spark gives the columns of the second use new names."""

    def view(index: int, key: str, value: str) -> Tree:
        return sums(path, index).select(**{key: left("k"), value: left("s.sum")}).where(left(value) > 100)

    joined = view(0, "k#1", "s#2").join(view(1, "k#7", "s#8"), {"k#1": "k#7"}).relation
    result, metrics = ran(joined)
    assert (metrics.parts_reused, metrics.scanned_rows) == (1, ROWS)
    assert result.schema.names == ["k#1", "s#2", "k#7", "s#8"]
    assert result["s#2"].equals(result["s#8"])
    assert result.num_rows > 0


def test_a_part_within_a_repeated_part_and_elsewhere(path: Path) -> None:
    """The sums are read by themselves and by a larger part that is read twice: they are computed once, it once."""

    def largest(index: int) -> Tree:
        return sums(path, index).select("k", s=left("s.sum")).group("s", n=count())

    tree = Union(tuple(Tree(part).select(n=left(name)).relation for part, name in (
        (sums(path, 0).relation, "s.sum"), (largest(1).relation, "n.count"), (largest(2).relation, "n.count"),
    )))  # fmt: skip
    result, metrics = ran(tree)
    assert (metrics.parts_reused, metrics.scanned_rows) == (2, ROWS)
    expected = [ran(part.relation)[0] for part in (sums(path, 0), largest(1))]
    assert result.num_rows == expected[0].num_rows + 2 * expected[1].num_rows
    repeated = repeated_parts(tree)
    assert sorted(repeated.uses.values()) == [2, 2]


def test_lists_come_under_the_names_of_each_use(path: Path) -> None:
    def lists(index: int, name: str) -> Tree:
        collected = Aggregate(AggregateFunction.COLLECT_LIST, (left("n"),))
        grouped = Tree.scan(path, ["k", "n"], index=index).where(left("k") < 3).group("k", l=collected)
        assert isinstance(grouped.relation, PartialAggregate)
        once = Tree(dataclasses.replace(grouped.relation, final=True))
        return once.select("k", **{name: left(once.schema.names[1])})

    tree = lists(0, "a").join(lists(1, "b"), {"k": "k"}).relation
    result, metrics = ran(tree)
    assert metrics.parts_reused == 1
    assert result.schema.names == ["k", "a", "k", "b"]
    assert result.column(1).to_pylist() == result.column(3).to_pylist()


def by_key(path: Path, index: int, *, null: bool, by: str = "scan", mode: EvalMode = EvalMode.LEGACY) -> Relation:
    """Sums by key with the group of null, or without, left out by a scan, a filter or above a projection."""
    there = None if null else left("k").is_not_null()
    rows = Tree.scan(path, ["k", "n"], there if by == "scan" else None, index=index, mode=mode)
    if by == "projection":
        rows = rows.select(n=left("n"), k=left("k"))
    if there is not None and by != "scan":
        rows = rows.where((left("n") >= 0) & there)
    elif by != "scan":
        rows = rows.where(left("n") >= 0)
    return rows.group("k", s=total(left("n") * 2)).relation


@everywhere
@pytest.mark.parametrize("by", ["scan", "filter", "projection"])
def test_a_group_of_null_is_left_out_above_where_another_use_needs_it(path: Path, by: str) -> None:
    tree = Union(tuple(by_key(path, n, null=null, by=by) for n, null in enumerate([False, True, False])))
    expected, apart = ran(tree)
    result, metrics = ran(with_null_groups(tree))
    assert_same_rows(result, expected)
    assert result["k"].null_count == 1
    assert (apart.parts_reused, apart.scanned_rows) == (1, 2 * ROWS)
    assert (metrics.parts_reused, metrics.scanned_rows) == (2, ROWS)


def test_a_group_of_null_that_no_other_use_needs_is_left_out_below(path: Path) -> None:
    for other in (by_key(path, 1, null=False), sums(path, 1).relation, filtered(path, 1, 5).group("k").relation):
        tree = Tree(by_key(path, 0, null=False)).join(Tree(other).select(key=left("k")), {"k": "key"}).relation
        assert with_null_groups(tree) is tree


def test_a_group_of_null_that_may_fail_needs_a_use_that_reads_all_rows(path: Path) -> None:
    """Spark computes it for that use, and fails, or not for any."""
    alone, whole = (by_key(path, n, null=null, mode=EvalMode.ANSI) for n, null in enumerate([False, True]))
    counted = Tree(Tree(whole).group(n=count()).relation)
    stopped = Tree(Limit(whole, 1)).select(n=left("s.sum"))
    for other, shares in ((counted, True), (stopped, False)):
        tree = Union(
            (Tree(alone).select(n=left("s.sum")).relation, other.select(n=left(other.schema.names[0])).relation)
        )
        assert (with_null_groups(tree) is not tree) is shares
