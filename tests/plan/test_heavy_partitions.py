"""Which joins may have their heavy partitions split, and into how many shares."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from gpujoin.engine.pipeline import run
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import ExchangeSource, Join, Relation
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.model.stages import Exchange, NullKeys, Share, Stage
from gpujoin.plan.partition_sizes import SplitPartitions, Splitting, exchanged_join, split_partitions
from gpujoin.testing import assert_same_rows
from tests.oracle.join import oracle_join
from tests.plan.test_stages import BIG, SMALL, grouped, joined, planned, scan

MIB = 1 << 20
SIDES = {
    JoinType.INNER: tuple(Side),
    JoinType.LEFT: (Side.LEFT,),
    JoinType.RIGHT: (Side.RIGHT,),
    JoinType.FULL: (),
    JoinType.LEFT_SEMI: (Side.LEFT,),
    JoinType.LEFT_ANTI: (Side.LEFT,),
    JoinType.EXISTENCE: (Side.LEFT,),
}


def split_of(tree: Relation, *small: int) -> SplitPartitions | None:
    return split_partitions(planned(tree, *(SMALL if number in small else BIG for number in range(4))))


@pytest.mark.parametrize("kind", SIDES, ids=lambda kind: kind.value)
def test_sides_by_join_type(kind: JoinType) -> None:
    split = split_of(joined(scan(0), scan(1), kind))
    assert split is not None
    assert split.sides == (tuple(Side) if kind is JoinType.FULL else SIDES[kind])
    assert split.finds_unmatched is (kind is JoinType.FULL)


def test_what_stands_above() -> None:
    inner = joined(scan(0), scan(1))
    assert split_of(joined(inner, scan(2), key=1), 2) is not None, "a side that is read whole changes nothing"
    assert split_of(grouped(inner)) is None, "groups are in one task since their keys are"
    assert split_of(joined(inner, scan(2))) is None, "the second join needs the first's partitions"


def with_indeterminate(stage: Stage, place: int) -> Stage:
    inputs = [
        dataclasses.replace(exchange, indeterminate=frozenset({1})) if n == place else exchange
        for n, exchange in enumerate(stage.inputs)
    ]
    return dataclasses.replace(stage, inputs=tuple(inputs))


def test_rows_that_may_change_are_read_by_one_task() -> None:
    stage = planned(joined(scan(0), scan(1)), BIG, BIG)
    join = exchanged_join(stage)
    assert join is not None
    for place, exchange in enumerate(stage.inputs):
        split = split_partitions(with_indeterminate(stage, place))
        assert split is not None
        (side,) = split.sides
        assert split.source(side) == exchange.index
    full = planned(joined(scan(0), scan(1), JoinType.FULL), BIG, BIG)
    assert split_partitions(full) is not None
    assert all(split_partitions(with_indeterminate(full, place)) is None for place in range(2))


def test_exchanges_that_are_kept() -> None:
    stage = planned(joined(scan(0), scan(1)), BIG, BIG)
    assert all(split_partitions(stage, {exchange.index}) is None for exchange in stage.inputs)


@pytest.mark.parametrize(
    ("nbytes", "partitions", "mappers", "expected"),
    [
        (100 * MIB, 16, 50, 8),
        (100 * MIB, 16, 5, 5),
        (100 * MIB, 60, 50, 3),
        (100 * MIB, 150, 50, 4),
        (100 * MIB, 800, 50, 2),
        (100 * MIB, 2000, 50, 1),
        (50 * MIB, 16, 50, 1),
    ],
    ids=[
        "most",
        "few mappers",
        "shuffles unsorted",
        "shuffles sorted",
        "sizes known",
        "sizes unknown",
        "too few bytes",
    ],
)
def test_divisions(nbytes: int, partitions: int, mappers: int, expected: int) -> None:
    stage = planned(joined(scan(0), scan(1)), BIG, BIG)
    exchange = dataclasses.replace(stage.inputs[0], nbytes=nbytes)
    assert Splitting().divisions(exchange, partitions, mappers) == expected


LEFT = pa.table({"k": [7, 7, 7, 3, None, 5], "i": [1, 2, 3, 4, 5, 6]})
RIGHT = pa.table({"k": [7, 7, 8, None, 5], "j": ["a", "b", "c", "d", "e"], "x": [[1], None, [2], [3], []]})


@pytest.mark.parametrize("build", Side, ids=lambda side: f"{side.value} built")
@pytest.mark.parametrize("divided", Side, ids=lambda side: f"{side.value} divided")
def test_shares_of_a_full_join_are_the_full_join(divided: Side, build: Side) -> None:
    tables = {Side.LEFT: LEFT, Side.RIGHT: RIGHT}
    spec = JoinSpec(JoinType.FULL, (KeyPair(0, 0),), None, (1, 0), (1, 2))
    sources = {side: ExchangeSource(n, tables[side].schema) for n, side in enumerate(Side)}
    exchanges = tuple(
        Exchange(n, Stage(sources[side]), (0,), (pa.int64(),), (False,), NullKeys.SPREAD, 1 << 30)
        for n, side in enumerate(Side)
    )
    split = split_partitions(Stage(Join(sources[Side.LEFT], sources[Side.RIGHT], spec, build), (), exchanges, 8))
    assert split is not None
    share, unmatched = (
        (Share.LEFT, Share.UNMATCHED_RIGHT) if divided is Side.LEFT else (Share.RIGHT, Share.UNMATCHED_LEFT)
    )
    work = [(share, {**tables, divided: tables[divided].slice(first, 2)}) for first in range(0, 6, 2)]
    found = [
        batch
        for kind, rows in [*work, (unmatched, tables)]
        for batch in run(split.trees[kind], {n: rows[side] for n, side in enumerate(Side)}, {})
    ]
    assert_same_rows(pa.Table.from_batches(found), oracle_join(LEFT, RIGHT, spec))
