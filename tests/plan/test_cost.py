"""The cost rule: which parts of queries are predicted to take fewer seconds here than in Spark."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from gpujoin.costs import Costs
from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.expressions import Call, ColumnRef, Expression, Function, Literal
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import (
    Filter,
    Join,
    Output,
    PartialAggregate,
    Relation,
    Scan,
    SortKey,
    SparkSource,
    Window,
    column,
)
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.model.windows import WindowCall, WindowFunction
from gpujoin.plan.cost import Estimate, SparkTables, crossing_seconds, looked_up_rows, predict
from gpujoin.plan.estimates import Sizes

COLUMNS = pa.schema([("k", pa.int64()), ("v", pa.int64())])
VALUES = tuple(ColumnRef(side=side, name="v", index=1, type=pa.int64()) for side in Side)
LESS = Call(function=Function.LT, arguments=VALUES, type=pa.bool_())


def _joined(left: Relation, right: Relation, condition: Expression | None = None) -> Relation:
    keys = () if condition is not None else (KeyPair(0, 0),)
    kind = JoinType.INNER
    joined = Join(left, right, JoinSpec(kind, keys, condition, left_output=(0, 1), right_output=(1,)))
    count = AggregateCall(function=AggregateFunction.COUNT, name="n")
    return PartialAggregate(joined, (Output("k", column(joined.schema, 0)),), (count,))


def _predicted(relation: Relation, rows: float, *, exchanges: int = 1) -> Estimate:
    return predict(relation, Sizes({0: rows}), 2, exchanges, Costs()).estimate


def _spark(rows: float) -> SparkSource:
    return SparkSource(0, COLUMNS, rows)


def test_few_rows_from_spark_beside_a_large_file_are_taken() -> None:
    assert _predicted(_joined(Scan(COLUMNS), _spark(1e3)), 1e7).is_faster
    assert not _predicted(_joined(Scan(COLUMNS), _spark(1e3)), 1e3, exchanges=2).is_faster


def test_many_rows_from_spark_are_left_there() -> None:
    assert not _predicted(_joined(Scan(COLUMNS), _spark(1e7)), 1e5).is_faster
    assert not _predicted(_joined(_spark(1e6), _spark(1e6)), 1.0).is_faster


def test_rows_from_spark_are_taken_for_what_spark_does_pair_by_pair() -> None:
    assert _predicted(_joined(_spark(1e5), _spark(1e5), LESS), 1.0).is_faster
    assert not _predicted(_joined(_spark(1e2), _spark(1e2), LESS), 1.0, exchanges=2).is_faster


def test_scans_of_files_are_taken_and_the_seconds_grow_with_the_rows() -> None:
    small, large = (_predicted(_joined(Scan(COLUMNS), Scan(COLUMNS)), rows, exchanges=0) for rows in (1e4, 1e8))
    assert small.is_faster
    assert large.is_faster
    assert large.here > small.here
    assert large.spark - large.here > small.spark - small.here


def test_windows_over_files_are_taken_and_those_over_rows_of_spark_are_not() -> None:
    def windowed(child: Relation) -> Relation:
        calls = (WindowCall(function=WindowFunction.RANK, name="r"),)
        return Window(child, (0,), (SortKey(column(child.schema, 1)),), calls)

    assert _predicted(windowed(Scan(COLUMNS)), 1e7, exchanges=0).is_faster
    assert not _predicted(windowed(_spark(1e6)), 1.0).is_faster


def test_searches_of_arrays_in_files_are_taken() -> None:
    scan = Scan(COLUMNS.append(pa.field("tags", pa.list_(pa.string()))))
    wanted = Literal(value="a", type=pa.string())
    contains = Call(function=Function.ARRAY_CONTAINS, arguments=(column(scan.schema, 2), wanted), type=pa.bool_())
    count = AggregateCall(function=AggregateFunction.COUNT, name="n")
    assert _predicted(PartialAggregate(Filter(scan, contains), (), (count,)), 1.5e6, exchanges=0).is_faster


WIDE = pa.schema([("k", pa.int64()), *((f"d{n}", pa.decimal128(15, 2)) for n in range(3))])


def test_rows_from_spark_cost_what_their_columns_weigh() -> None:
    """Measured at TPC-H scale 1: 5.0 M rows of 56 bytes, in tasks of two cores, 4.9 s more than in Spark."""
    narrow, wide = (crossing_seconds(5e6, columns, Costs()) for columns in (COLUMNS, WIDE))
    assert 3.5 < wide / 2 < 6.5
    assert narrow < wide / 2


def _chain(rows: tuple[float, ...]) -> Relation:
    """The first of some tables, joined with all others, and grouped, as TPC-H 5, 7, 8 and 9 are."""
    joined: Relation = SparkSource(0, WIDE, rows[0])
    for index, others in enumerate(rows[1:], 1):
        table = SparkSource(index, COLUMNS, others)
        joined = Join(joined, table, JoinSpec(JoinType.INNER, (KeyPair(0, 0),), left_output=(0, 1, 2, 3)))
    count = AggregateCall(function=AggregateFunction.COUNT, name="n")
    return PartialAggregate(joined, (Output("k", column(joined.schema, 0)),), (count,))


SIZES = (6e6, 1.5e6, 2e5, 1.5e5, 1e4, 25.0)
"""Rows of TPC-H's tables at scale 1, from lineitem to nation."""


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("share", [1.0, 0.1], ids=["no filters", "filters"])
def test_a_chain_of_joins_over_rows_from_spark_is_left_there(scale: float, share: float) -> None:
    rows = tuple(number if number < 100 else number * scale for number in SIZES)
    tables = SparkTables({}, 10 << 20, {n: number * 30 for n, number in enumerate(rows)})
    least = Sizes(spark_rows=dict(enumerate(number * share for number in rows)))
    estimate = predict(_chain(rows), Sizes(), 2, len(rows), Costs(), tables=tables, least=least).estimate
    assert not estimate.is_faster


def test_a_part_that_may_gain_is_seen_within_one_that_does_not() -> None:
    chain = predict(_chain(SIZES), Sizes(), 2, 0, Costs(), tables=SparkTables({}, 10 << 20))
    assert not chain.estimate.is_faster
    assert chain.greatest_gain < 0
    pairs = _joined(_spark(1e5), _spark(1e5), LESS)
    gain = predict(pairs, Sizes(), 2, 0, Costs()).greatest_gain
    assert gain > 0
    table = SparkSource(1, COLUMNS, 1e10)
    slow = Join(pairs, table, JoinSpec(JoinType.INNER, (KeyPair(0, 0),), left_output=(0,)))
    prediction = predict(slow, Sizes(), 2, 0, Costs())
    assert not prediction.estimate.is_faster
    assert prediction.greatest_gain == pytest.approx(gain)


def test_a_side_that_proves_small_is_not_taken_to_be_shuffled_with_the_other() -> None:
    tables = SparkTables({}, 1 << 20, {0: math.inf, 1: math.inf})
    relation = _joined(SparkSource(0, COLUMNS, 5e6), SparkSource(1, COLUMNS, 2e5))
    join = next(node for node in relation.walk() if isinstance(node, Join))
    assert tables.shuffled(relation) == {join}
    assert tables.exchanged_rows(join, Sizes()) == 5.2e6
    assert tables.exchanged_rows(join, Sizes(spark_rows={1: 1e3})) == 1e3
    fixed = SparkTables({}, 1 << 20, {0: math.inf, 1: math.inf}, adapts=False)
    assert fixed.exchanged_rows(join, Sizes(spark_rows={1: 1e3})) == 5.001e6


def test_rows_that_spark_only_looks_up_in_tables_that_it_broadcasts_are_counted() -> None:
    def counted(*rows: float, share: float = 1.0) -> float:
        return looked_up_rows(_chain(rows), Sizes(spark_rows={1: rows[1] * share}), 10 << 20)

    assert counted(5e6, 1e4, 25.0) == 5e6
    assert counted(5e6, 1e6, 25.0) == 0, "both sides of the first join are shuffled"
    assert counted(5e6, 1e6, 25.0, share=0.01) == 5e6, "a filter may leave few"
    assert looked_up_rows(_joined(_spark(5e6), _spark(1e3), LESS), Sizes(), 10 << 20) == 0, "pairs are compared"
