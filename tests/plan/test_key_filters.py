"""Keys that drop rows before they are exchanged: where they are sent, where they come from, where they may not be."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.expressions import Call, EvalMode, Function, Literal
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import (
    ExchangeSource,
    Filter,
    Join,
    Limit,
    Output,
    PartialAggregate,
    Project,
    Relation,
    Scan,
    SparkSource,
    column,
)
from gpujoin.model.spec import AsOf, JoinSpec, KeyPair, NullEquality
from gpujoin.model.stages import DeterminismLevel, NullKeys, Stage, null_keys_of
from gpujoin.plan.estimates import Sizes
from gpujoin.plan.parts import ScanFacts
from gpujoin.plan.runtime_filters import filtered_by_keys
from tests.plan.test_stages import BIG, MIB, SCHEMA, joined, planned, scan

MIDDLING = ScanFacts(5e6, 500 * MIB)
ROWS = {0: 1e8, 1: 5e6, 2: 1e5}


def few(relation: Relation) -> Filter:
    schema = relation.schema
    equal = Call(function=Function.EQ, arguments=(column(schema, 0), column(schema, 1)), type=pa.bool_())
    return Filter(relation, equal)


def keys_of(join: Join, side: Side = Side.LEFT) -> Relation | None:
    """What a side is filtered by; its only column is named as the columns of scans are."""
    semi = filtered_by_keys(join, side, Sizes(ROWS))
    return None if semi is None else semi.right


def scanned(stage: Stage) -> list[int]:
    return [node.index for node in stage.tree.walk() if isinstance(node, Scan)]


def test_the_keys_of_a_selective_side_are_sent_to_the_tasks_of_the_other() -> None:
    stage = planned(joined(scan(0), few(scan(1))), BIG, MIDDLING, broadcast_threshold=4 * MIB)
    right, left = stage.inputs
    assert (scanned(right.producer), right.producer.inputs) == ([1], ())
    assert scanned(left.producer) == [0]
    (sent,) = left.producer.inputs
    assert (sent.replicated, scanned(sent.producer), sent.schema.names) == (True, [1], ["key0"])
    semi = left.producer.tree
    while not isinstance(semi, Join):
        (semi,) = semi.children
    assert semi.spec.join_type is JoinType.LEFT_SEMI
    assert semi.right == ExchangeSource(sent.index, sent.schema)
    assert (
        left.nbytes < planned(joined(scan(0), scan(1)), BIG, MIDDLING, broadcast_threshold=4 * MIB).inputs[1].nbytes / 5
    )


@pytest.mark.parametrize("mode", [EvalMode.ANSI, EvalMode.LEGACY], ids=lambda mode: mode.value)
def test_an_order_key_that_may_raise_is_computed_of_all_rows(mode: EvalMode) -> None:
    operands = (Literal(value=10, type=pa.int64()), column(SCHEMA, 1))
    quotient = Call(function=Function.INTEGRAL_DIVIDE, arguments=operands, type=pa.int64(), mode=mode)
    large = Project(
        scan(0), (*(Output(field.name, column(SCHEMA, n)) for n, field in enumerate(SCHEMA)), Output("q", quotient))
    )
    join = joined(few(scan(1)), large, JoinType.LEFT, as_of=AsOf(1, 3))
    stage = planned(join, BIG, MIDDLING, broadcast_threshold=4 * MIB)
    sent = [exchange for part in stage.walk() for exchange in part.inputs if exchange.replicated]
    assert len(sent) == (0 if mode is EvalMode.ANSI else 1)


def test_nothing_is_sent_where_it_costs_more_than_it_saves() -> None:
    for facts, threshold in [((MIDDLING, MIDDLING), MIB), ((ScanFacts(2e5, 20 * MIB), MIDDLING), 4 * MIB)]:
        stage = planned(joined(scan(0), few(scan(1))), *facts, broadcast_threshold=threshold)
        assert not any(exchange.replicated for part in stage.walk() for exchange in part.inputs), facts


@pytest.mark.parametrize(("threshold", "sent"), [(1, 1), (0, 1), (-1, 0)])
def test_keys_may_go_to_every_task_where_a_small_table_may_not(threshold: int, sent: int) -> None:
    stage = planned(joined(scan(0), few(scan(1))), BIG, MIDDLING, broadcast_threshold=threshold)
    exchanges = [exchange for part in stage.walk() for exchange in part.inputs]
    assert sum(exchange.filters for exchange in exchanges) == sent
    assert sum(not exchange.replicated for exchange in exchanges) == 2


@pytest.mark.parametrize("kind", [kind for kind in JoinType if kind is not JoinType.CROSS])
@pytest.mark.parametrize("side", Side)
def test_only_rows_that_cannot_reach_the_result_are_dropped(kind: JoinType, side: Side) -> None:
    join = joined(few(scan(1)), few(scan(2)), kind)
    assert (filtered_by_keys(join, side, Sizes(ROWS)) is not None) == (null_keys_of(kind, side) is NullKeys.DROP)


@pytest.mark.parametrize(
    "small",
    [
        few(Limit(scan(1), 10)),
        few(SparkSource(0, SCHEMA, rows=1e3, level=DeterminismLevel.DETERMINATE)),
        few(
            PartialAggregate(
                scan(1),
                (Output("k", column(SCHEMA, 0)),),
                (AggregateCall(function=AggregateFunction.MAX, arguments=(column(SCHEMA, 1),), name="n"),),
            )
        ),
        scan(1),
    ],
    ids=["first rows", "rows from Spark", "groups that come twice", "all keys"],
)
def test_keys_that_may_be_others_the_second_time_or_are_many_filter_nothing(small: Relation) -> None:
    assert keys_of(joined(scan(0), small)) is None


def test_keys_come_from_where_fewest_rows_are_read() -> None:
    orders = few(scan(1))
    with_customers = joined(orders, scan(2), key=1)
    source = keys_of(joined(scan(0), with_customers))
    assert isinstance(source, Project)
    assert source.child == orders, "no customer drops an order"
    renamed = Project(with_customers, (Output("k", column(with_customers.schema, 0)), Output("j", column(SCHEMA, 1))))
    source = keys_of(joined(scan(0), renamed))
    assert isinstance(source, Project)
    assert source.child == orders
    of_few = joined(scan(1), few(scan(2)), key=0)
    source = keys_of(joined(scan(0), of_few))
    assert isinstance(source, Project)
    assert source.child == few(scan(2)), "its keys are those of the join"


@pytest.mark.parametrize("kind", [JoinType.LEFT, JoinType.RIGHT, JoinType.FULL, JoinType.LEFT_ANTI])
def test_keys_of_other_joins_are_not_those_of_their_other_side(kind: JoinType) -> None:
    source = keys_of(joined(scan(0), joined(few(scan(1)), few(few(scan(2))), kind)))
    if source is not None:
        assert source.child != few(few(scan(2)))  # type: ignore[attr-defined]


def test_keys_that_null_may_equal_come_from_the_side_itself() -> None:
    small = joined(few(scan(1)), scan(2), JoinType.LEFT, key=1)
    source = keys_of(joined(scan(0), small, null_safe=True))
    assert isinstance(source, Project)
    assert source.child == small
    semi = filtered_by_keys(joined(scan(0), small, null_safe=True), Side.LEFT, Sizes(ROWS))
    assert semi is not None
    assert semi.spec.keys == (KeyPair(0, 0, NullEquality.EQUAL),)


def test_several_keys_filter_together() -> None:
    spec = JoinSpec(JoinType.INNER, (KeyPair(0, 1), KeyPair(1, 0), KeyPair(0, 0)), left_output=(0,))
    semi = filtered_by_keys(Join(scan(0), few(scan(1)), spec), Side.LEFT, Sizes(ROWS))
    assert semi is not None
    assert semi.spec.keys == (KeyPair(0, 0), KeyPair(1, 1), KeyPair(0, 1))
    assert semi.schema == scan(0).schema


def test_keys_of_a_chain_of_joins_are_placed_once_per_join() -> None:
    joins = 40  # to place all below at each join twice would take years
    tree: Relation = few(scan(0))
    spec = JoinSpec(JoinType.INNER, (KeyPair(0, 0), KeyPair(1, 1)), left_output=(0, 1, 2))
    for index in range(1, joins):
        tree = Join(scan(index), tree, spec)
    stage = planned(tree, *[BIG] * joins, broadcast_threshold=1 << 40, partitions=4)
    assert stage.exchanges >= joins


def test_what_filters_is_not_filtered_in_turn() -> None:
    tree: Relation = few(scan(0))
    for index in range(1, 7):
        tree = dataclasses.replace(joined(scan(index), tree))
    stage = planned(tree, *[BIG] * 7, broadcast_threshold=400 * MIB)
    assert stage.exchanges < 40
